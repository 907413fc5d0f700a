#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_man.py ROOT LUNAR [--write]`: man pages that render without a warning and say what the
code says.

groff (and mandoc, where it is installed) must be silent on every page, and each page of Lunar's
that a page refers to must exist. The synopsis of a call is its declaration in the public header;
the pages of lunar.h name every member and constant of it. Lists that the program knows (options,
verbs, variables) stand between `.\\" begin: NAME` and `.\\" end: NAME` as this script makes them of
the program's help, and likewise the options table in tools/README.md; --write fixes them."""
import os
import re
import shutil
import subprocess
import sys

ROOT, LUNAR = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HEADERS = "lunar/lunar.h", "capiblock.h", "arkdb.h", "lunar/kv.h"
BLOCK = re.compile(r'(\.\\" begin: ([^\n]+)\n)(.*?)(\.\\" end: \2\n)', re.S)
README = os.path.join(ROOT, "tools/README.md")
README_BLOCK = re.compile(r"(<!-- begin: options [^\n]*-->\n)(.*?)(<!-- end: options -->)", re.S)
problems = []


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def pages():
    """path -> text of each page in the source tree."""
    found = {}
    for top in ("runtime", "tools", "adapters"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            if os.path.basename(folder) == "man":
                found |= {os.path.join(folder, name): read(os.path.join(folder, name))
                          for name in names}
    if len(found) < 20:
        problems.append(f"only {len(found)} man pages were found")
    return dict(sorted(found.items()))


def output_of(*words):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False).stdout


# ---- rendering, references ----

def check_rendering(paths):
    if shutil.which("groff") is None:
        print("skip: groff: it is not installed, so no page is rendered")
    for path in paths:
        said = ""
        if shutil.which("groff"):
            said += output_of("groff", "-ww", "-mdoc", "-Tutf8", "-z", path)
        if shutil.which("mandoc"):
            said += output_of("mandoc", "-Tlint", "-W", "warning", path)
        if said:
            problems.append(f"{os.path.relpath(path, ROOT)}: {said.strip()}")


def names_of(path, text):
    """The names of a page: "cblk_open 3", ..."""
    head = text.split("\n.Sh NAME\n", 1)[-1].split("\n.Sh ", 1)[0]
    section = path.rsplit(".", 1)[1]
    return {f"{name} {section}" for name in re.findall(r"^\.Nm (\S+)", head, re.M)}


def check_references(texts):
    known = set().union(*(names_of(path, text) for path, text in texts.items()))
    for path, text in texts.items():
        for name, section in re.findall(r"\bXr (\S+) (\d)", text):
            if re.match(r"(lunar|cblk_|ark_)", name) and f"{name} {section}" not in known:
                problems.append(f"{os.path.relpath(path, ROOT)} refers to {name}({section}), "
                                f"which is not there")


# ---- calls ----

def declarations():
    """name -> "type name(arguments)" of the public headers, white space folded."""
    found = {}
    for header in HEADERS:
        text = re.sub(r"/\*.*?\*/", "", read(os.path.join(ROOT, "runtime/include", header)),
                      flags=re.S)
        text = re.sub(r"LUNAR_API|LUNAR_NOEXCEPT|__attribute__\(\(.*?\)\)(?=;)", "", text)
        for kind, name, arguments in re.findall(r"^\s?(\w[\w ]*[ "
                                                r"*])((?:lunar|cblk|ark)_\w+)\(([^;{]*)\)\s*;",
                                                text, re.M):
            found[name] = folded(f"{kind} {name}({arguments})")
    return found


def folded(text):
    text = re.sub(r"\s+", " ", text).replace("* ", "*").replace(" *", "*")
    return re.sub(r" ?([(),]) ?", r"\1", text).strip()


def synopses(text):
    """name -> "type name(arguments)" of a page's synopsis."""
    found, kind = {}, ""
    section = text.split("\n.Sh SYNOPSIS\n", 1)[-1].split("\n.Sh ", 1)[0]
    section = re.sub(r"^\.Fo (.*?)\n\.Fc$", lambda call: ".Fn " + call[1].replace("\n.Fa", ""),
                     section, flags=re.S | re.M)
    for line in section.splitlines():
        if line.startswith(".Ft "):
            kind = line[4:].strip('"')
        elif line.startswith(".Fn "):
            name, rest = (line[4:] + " ").split(" ", 1)
            quoted = re.findall(r'"([^"]*)"', rest)
            found[name] = folded(f"{kind} {name}({','.join(quoted) or rest.strip()})")
    return found


def check_calls(texts):
    declared, told = declarations(), {}
    for path, text in texts.items():
        if path.endswith(".3"):
            told |= synopses(text)
    for name, declaration in sorted(declared.items()):
        if name not in told:
            problems.append(f"{name}: no page's synopsis has it")
        elif told[name] != declaration:
            problems.append(f"{name}: the header declares `{declaration}`, its page `{told[name]}`")
    for name in sorted(set(told) - set(declared)):
        problems.append(f"{name}: no public header declares what a page's synopsis has")
    if len(declared) < 90:
        problems.append(f"only {len(declared)} declarations were found")


# For each header the place of its pages, and its least number of members and constants.
MEMBERS = {"lunar/lunar.h": ("/heap/man/", 45), "capiblock.h": ("/cblk/man/", 95),
           "arkdb.h": ("/ark/man/", 6), "lunar/kv.h": ("/ark/man/", 12)}
# of no meaning to a caller
UNTOLD = re.compile(r"reserved|data|LUNAR_(API|NOEXCEPT|VERSION_\w+|\w+_H|CBLK_ASSERT)")


def check_members(texts):
    """Each member of a structure, and each constant, of a public header is told of."""
    for header_name, (folder, least) in MEMBERS.items():
        header = re.sub(r"/\*.*?\*/", "", read(os.path.join(ROOT, "runtime/include", header_name)),
                        flags=re.S)
        wanted = set(re.findall(r"^#define ([A-Z]\w+)", header, re.M))
        header = re.sub(r"^\s*(#.*|__extension__)$", "", header, flags=re.M)
        for body in re.findall(r"typedef (?:struct|enum)\b.*?\{(.*?)\n\} ?\w+;", header, re.S):
            wanted |= set(re.findall(r"(\w+)(?:\[\d*\])?;", body))
            wanted |= set(re.findall(r"^\s+([A-Z]\w+) = ", body, re.M))
        wanted = {name for name in wanted if not UNTOLD.fullmatch(name)}
        page = "".join(text for path, text in texts.items() if folder in path)
        told = set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:Va|Dv|Fa|Fn|Vt) (.*)", page))))
        problems.extend(f"no page of {header_name} tells of {name}"
                        for name in sorted(wanted - told))
        if len(wanted) < least:
            problems.append(f"{header_name}: only {len(wanted)} members and constants were found")


# ---- lists that the program knows ----

def escaped(text):
    """Prose of a help text: what stands between backticks is bold, options keep their hyphens."""
    text = text.replace("\\", r"\e")
    text = re.sub(r"`([^`]*)`", lambda code: r"\fB" + code[1] + r"\fP", text)
    return re.sub(r"(?<![\w-])-(?=[\w-])|(?<=-)-(?=\w)", r"\\-", text)


def options():
    """flag, variable, key, value, default and meaning of each option."""
    for line in output_of(LUNAR, "help", "options", "--markdown").splitlines()[2:]:
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        yield [cell.strip("`") for cell in cells[:5]] + cells[5:]


def sentence(text):
    return (text if text.startswith("redis-server") else text[0].upper() + text[1:]) + "."


def flags_list():
    out = ""
    for flag, _, _, value, default, meaning in options():
        if not flag:
            continue
        name = flag.removeprefix("--")
        if value != "yes|no":
            out += f".It Fl Fl {name} Ar {value}\n"
        elif default == "yes":
            out += f".It Fl Fl {name} , Fl Fl no-{name}\n"
        else:
            out += f".It Fl Fl {name}\n"
        out += escaped(sentence(meaning)) + "\n" + (f"Default:\n.Cm {default} .\n" if default
                                                    else "")
    return out


def keys_list():
    out = ""
    for flag, variable, key, value, default, meaning in options():
        out += f".It Cm {key} = Ar {value}\n" + escaped(sentence(meaning)) + "\n"
        out += f"Default:\n.Cm {default} .\n" if default else ""
        out += f"Variable:\n.Ev {variable} .\n" + (f"Flag:\n.Fl Fl {flag.removeprefix('--')} .\n"
                                                   if flag else "")
    return out


def other_variables_list():
    text, out = output_of(LUNAR, "help", "options").split("\nVariables of the libraries",
                                                          1)[1].split("\n", 1)[1], ""
    for entry in re.split(r"\n(?=  \S)", text.strip("\n")):
        name, rest = entry.split(None, 1)
        meaning, _, page = " ".join(rest.split()).rpartition("; man 3 ")
        value, colon, help_text = meaning.partition(": ")
        value, help_text = (value, help_text) if colon else ("", meaning)
        out += f".It Ev {name}" + (f" = Ar {value}" if value else "") + "\n"
        out += escaped(sentence(help_text)) + f"\nSee\n.Xr {page} 3 .\n"
    return out


def verbs_list(*command):
    out = ""
    for name, summary in re.findall(r"^  ([a-z]+) {2,}(\S.*)$",
                                    output_of(LUNAR, *command, "--help"), re.M):
        out += f".It Cm {name}\n" + escaped(sentence(summary)) + "\n"
    return out


LISTS = {"flags of run": flags_list, "keys": keys_list, "other variables": other_variables_list,
         "verbs of lun": lambda: verbs_list("lun"), "verbs of kv": lambda: verbs_list("kv"),
         "names of bench": lambda: verbs_list("bench")}


def keep_or_fix(path, text, now):
    if now == text:
        return
    if "--write" not in sys.argv:
        problems.append(f"{os.path.relpath(path, ROOT)}: its lists are not what the program's help "
                        f"says; fix them: {sys.argv[0]} {ROOT} {LUNAR} --write")
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(now)


def check_readme():
    table, text = output_of(LUNAR, "help", "options", "--markdown"), read(README)
    if "|" not in table or not README_BLOCK.search(text):
        problems.append(f"{README}: no block of options, or the program prints no table")
    keep_or_fix(README, text, README_BLOCK.sub(
        lambda block: block[1] + table.strip() + "\n" + block[3], text))


def check_lists(texts):
    seen = set()
    for path, text in texts.items():
        def block(match):
            seen.add(match[2])
            made = LISTS[match[2]]()
            if made.count(".It ") < 4:
                problems.append(f"the program's help has hardly anything for the list `{match[2]}`")
            return match[1] + made + match[4]
        keep_or_fix(path, text, BLOCK.sub(block, text))
    problems.extend(f"no page has the list `{name}`" for name in sorted(set(LISTS) - seen))


def check_subcommands(texts):
    """lunar(1) has a subsection for each subcommand."""
    page = "".join(text for path, text in texts.items() if path.endswith("/lunar.1"))
    listed = output_of(LUNAR, "--help").split("\nSubcommands:\n", 1)[1].split("\n\n", 1)[0]
    for name in re.findall(r"^  (\w+) ", listed, re.M):
        if f"\n.Ss lunar {name}\n" not in page or f"\n.Cm {name}\n" not in page:
            problems.append(f"lunar(1) has no subsection or no synopsis of `lunar {name}`")


def main():
    texts = pages()
    check_readme()
    check_lists(texts)
    check_rendering(texts)
    check_references(texts)
    check_calls(texts)
    check_members(texts)
    check_subcommands(texts)
    print("\n".join(problems) or f"{len(texts)} man pages as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
