#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_documents.py ROOT LIBRARY ARK`: what the documents promise to a reader who follows them.
Every relative link of every page leads to a file, and to a heading where it names one; the C
program on README.md's first screen, that of runtime/kv/README.md and the C++ program of
runtime/kv/ark/README.md build with the public headers and the library (liblunar, libarkdb) alone,
and run. So do the recipes for CAPI Flash: those for an installed Lunar in a directory with what
they name, as they stand; those "from the root of a build tree" there."""
import os
import re
import subprocess
import sys
import tempfile

ROOT, LIBRARY, ARK = map(os.path.abspath, sys.argv[1:4])
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```.*?^```", re.S | re.M)
problems = []


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def pages():
    for directory, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if not f.startswith((".", "build"))]
        for name in files:
            if name.endswith(".md"):
                yield os.path.join(directory, name)


def anchors(text):
    """The headings' names as web pages of Markdown give them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", CODE.sub("", text), re.M):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


def check_links(page):
    text = CODE.sub("", read(page))
    for target, anchor in LINK.findall(text):
        if "://" in target:
            continue
        path = os.path.join(os.path.dirname(page), target) if target else page
        if not os.path.exists(path):
            problems.append(f"{os.path.relpath(page, ROOT)}: links to {target}, which is not there")
        elif anchor and anchor not in anchors(read(path)):
            problems.append(f"{os.path.relpath(page, ROOT)}: links to {target}#{anchor}: no such "
                            f"heading there")


COMPILERS = {"c": ["gcc"], "cpp": ["g++", "-std=c++20", "-Wpedantic"]}


def run_sample(directory, page, language, library):
    """The one block of that language on the page, as a program: what it printed and its exit code;
    None: it does not build."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", read(os.path.join(ROOT, page)), re.S | re.M)
    if len(blocks) != 1:
        problems.append(f"{page} has {len(blocks)} blocks of {language}: one program is expected")
        return None
    source, program = os.path.join(directory, "program." + language), os.path.join(directory,
        "program")
    with open(source, "w", encoding="utf-8") as file:
        file.write(blocks[0])
    include = os.path.join(ROOT, "runtime/include")
    line = [*COMPILERS[language], "-Wall", "-Wextra", "-Werror", source, "-o", program, "-I",
            include, library]
    built = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    if built.returncode != 0:
        problems.append(f"{page}: its program does not build: {built.stderr}")
        return None
    return subprocess.run([program], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, cwd=directory,
                          env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)})


def check_samples(directory):
    ran = run_sample(directory, "README.md", "c", LIBRARY)
    if ran and "userfaultfd" in ran.stderr and ran.returncode == 1:
        print(f"skip: userfaultfd: the C program of README.md is not run: {ran.stderr.strip()}")
    elif ran and ran.returncode != 0:
        problems.append(f"README.md: its C program ends with {ran.returncode}: {ran.stderr}")
    for page, language, output in (("runtime/kv/README.md", "c", "value\n"),
                                   ("runtime/kv/ark/README.md", "cpp", "value\nkey\nvalue\n")):
        ran = run_sample(directory, page, language, ARK)
        if ran and (ran.returncode, ran.stdout, ran.stderr) != (0, output, ""):
            problems.append(f"{page}: its {language} program ends with {ran.returncode}: "
                            f"{ran.stdout}{ran.stderr}")


def run_recipe(page, lines, directory, **variables):
    done = subprocess.run(["sh", "-ec", lines], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False, cwd=directory, env={**os.environ, **variables})
    if done.returncode != 0:
        problems.append(f"{page}: its recipe {lines.strip()!r} ends with {done.returncode}: "
                        f"{done.stderr}")


def check_recipes(directory):
    build = os.path.dirname(os.path.dirname(LIBRARY))
    libraries = f"{build}/runtime/cblk:{build}/runtime/kv/ark"
    for name in ("examples", "README.md", "runtime"):
        os.symlink(os.path.join(ROOT, name), os.path.join(directory, name))
    os.symlink(build, os.path.join(directory, "build"))
    installed = tree = 0
    for page in sorted(pages()):
        name, text = os.path.relpath(page, ROOT), read(page)
        for block in (found.strip("`") for found in CODE.findall(text)):
            if "gcc examples/" in block:
                installed += 1
                run_recipe(name, block, directory,
                           C_INCLUDE_PATH=os.path.join(ROOT, "runtime/include"),
                           LIBRARY_PATH=libraries, LD_LIBRARY_PATH=libraries)
        for line in re.findall(r"^From the root of a build tree: `(.*)`\.$", text, re.M):
            tree += 1
            run_recipe(name, line, directory)
    if (installed, tree) != (2, 2):
        problems.append(f"{installed} recipes for an installed Lunar and {tree} for a build tree: "
                        f"2 of each are known")


def main():
    for page in sorted(pages()):
        check_links(page)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        check_samples(directory)
        check_recipes(directory)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
