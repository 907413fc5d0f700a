#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_readme.py README LUNAR [--write]`: the options table in tools/README.md is what `lunar
help options --markdown` prints today. --write fixes it."""
import re
import subprocess
import sys

BLOCK = re.compile(r"(<!-- begin: options [^\n]*-->\n)(.*?)(<!-- end: options -->)", re.S)


def main():
    readme, lunar = sys.argv[1:3]
    result = subprocess.run([lunar, "help", "options", "--markdown"], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0 or "|" not in result.stdout:
        print(f"`{lunar} help options --markdown` failed: exit code {result.returncode}")
        return 1
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    match = BLOCK.search(text)
    if match is None:
        print(f"{readme}: no block `<!-- begin: options` ... `<!-- end: options -->`")
        return 1
    if match[2].strip() == result.stdout.strip():
        return 0
    if "--write" not in sys.argv:
        print(f"{readme}: the options table is not the program's; fix it: {sys.argv[0]} {readme} "
              f"{lunar} --write")
        return 1
    with open(readme, "w", encoding="utf-8") as file:
        file.write(text[:match.start(2)] + result.stdout.strip() + "\n" + text[match.end(2):])
    return 0


if __name__ == "__main__":
    sys.exit(main())
