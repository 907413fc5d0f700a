#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_variables.py ROOT`: every LUNAR_* variable that any part reads or sets is known to the readers of options: it
is an option (config/options.def, base/test_switches.def) or stands in config/variables.cpp; `lunar run` warns of
others. One line a name that is not, exit 1 when there is any."""
import os
import re
import sys

FOLDERS = "runtime", "adapters", "tools", "tests", "examples", ".ci"
TABLES = "options.def", "test_switches.def", "variables.cpp", "options.cpp"
# getenv("LUNAR_X"), os.environ["LUNAR_X"], environment_value(...); outside of the tests any string that is one name.
CALL = re.compile(r"""\w*(?:env|environ|variable)\w*(?:\.get)?\s*[(\[]\s*["'](LUNAR_\w+)["']""")
STRING = re.compile(r"""["'](LUNAR_[A-Z0-9_]+)["']""")
SHELL = re.compile(r"\$\{?(LUNAR_[A-Z0-9_]+)")


def text_of(*pieces):
    with open(os.path.join(*pieces), encoding="utf-8") as file:
        return file.read()


def known_names(root):
    runtime = os.path.join(root, "runtime")
    options = re.findall(r"^LUNAR_OPTION_\w+\((\w+),", text_of(runtime, "config", "options.def"), re.M)
    switches = re.findall(r"^LUNAR_SWITCH_\w+\((\w+),", text_of(runtime, "base", "test_switches.def"), re.M)
    former = re.findall(r'kFormerNames\[\]\[2\] = \{\{"(\w+)"', text_of(runtime, "config", "options.cpp"))
    others = re.findall(r'^    \{"(LUNAR_\w+)"', text_of(runtime, "config", "variables.cpp"), re.M)
    names = options + former + ["test_" + name for name in switches]
    return {"LUNAR_" + name.upper() for name in names} | set(others)


def used_names(root):
    """(name, path) of what is read or set."""
    for folder in FOLDERS:
        for where, folders, files in os.walk(os.path.join(root, folder)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                if name in TABLES or name == os.path.basename(__file__):
                    continue
                try:
                    text = text_of(where, name)
                except (UnicodeDecodeError, OSError):
                    continue
                script = text.startswith(("#!/bin/sh", "#!/bin/bash")) or name.endswith((".sh", ".conf", ".service"))
                code = name.endswith((".c", ".cpp", ".h", ".hpp", ".py"))
                pattern = SHELL if script else CALL if folder == "tests" or not code else STRING
                for found in pattern.findall(text):
                    yield found, os.path.relpath(os.path.join(where, name), root)


def main():
    root = sys.argv[1]
    known, used = known_names(root), set(used_names(root))
    problems = [f"{path}: {name} is no option and does not stand in runtime/config/variables.cpp"
                for name, path in sorted(used) if name not in known]
    if len({name for name, _ in used}) < 15:
        problems.append(f"only {len(used)} uses of LUNAR_* variables were found: this test's patterns are stale")
    print("\n".join(problems) or f"{len(known)} variables are known, and no other is read")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
