# SPDX-License-Identifier: Apache-2.0
"""What the tests of example programs share: EXAMPLES INCLUDE LIBRARY of their command line, the programs built by the
line that their README gives, with gcc and nothing of the project but header and library, and run."""
import os
import shutil
import subprocess
import sys
import tempfile

EXAMPLES, INCLUDE, LIBRARY = map(os.path.abspath, sys.argv[1:4])
MIB = 1 << 20
problems = []


def check(held, what):
    if not held:
        problems.append(what)


COMPILERS = {".c": ["gcc"], ".cpp": ["g++", "-std=c++20"]}


def compile_program(source, program, *words):
    language = COMPILERS[os.path.splitext(source)[1]]
    line = [*language, "-Wall", "-Wextra", "-Werror", source, "-o", program, "-I", INCLUDE, *words]
    result = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    check(result.returncode == 0, f"{' '.join(line)}: {result.stderr}")
    return program


def build(directory, link, other_links=None):
    """gcc x.c -l<link>, g++ -std=c++20 x.cpp -l<link>, or with other_links[x]; the library as a program at run time
    finds it."""
    programs = {}
    for file in sorted(os.listdir(EXAMPLES)):
        name, suffix = os.path.splitext(file)
        if suffix in COMPILERS:
            links = (other_links or {}).get(name, ["-L", os.path.dirname(LIBRARY), "-l" + link])
            programs[name] = compile_program(os.path.join(EXAMPLES, file), os.path.join(directory, name), *links)
    return programs


def run(program, *words, **variables):
    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(LIBRARY), **variables}
    return subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env=environment)


def check_options(program, wrong=(), name=None):
    """--help; an option that there is not; words that are wrong."""
    name = name or os.path.basename(program)
    result = run(program, "--help")
    check(result.returncode == 0 and result.stdout.startswith("usage: " + name) and result.stderr == "",
          f"{name} --help: {result}")
    for words in (["--nonsense"], *wrong):
        result = run(program, *words)
        check(result.returncode == 2 and result.stdout == "" and "usage: " + name in result.stderr,
              f"{name} {words}: {result}")


def changes_nothing(path, program, *words, **variables):
    """Runs it on a file that holds foreign data."""
    with open(path, "rb") as file:
        before = file.read()
    result = run(program, *words, **variables)
    with open(path, "rb") as file:
        check(file.read() == before, f"{os.path.basename(program)}: changed a file that holds foreign data")
    return result


def main(body):
    """The test's exit code."""
    if shutil.which("gcc") is None:
        print("skip: gcc: no gcc here")
        return 77
    directory = tempfile.mkdtemp(prefix="lunar-test-", dir="/var/tmp")
    try:
        body(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(problems) or "ok")
    return 1 if problems else 0
