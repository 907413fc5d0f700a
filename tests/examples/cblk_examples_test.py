#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`cblk_examples_test.py EXAMPLES INCLUDE LIBRARY`: each program of examples/cblk runs on files: one result line, exit
code 0, nothing left on the device. On a device that holds foreign data each of them refuses and changes no byte."""
import os
import sys

from example_programs import EXAMPLES, MIB, build, changes_nothing, check, check_options, main, problems, run


def blank(directory, name):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 32 * MIB)
    return path


def with_data(directory):
    path = blank(directory, "foreign")
    with open(path, "r+b") as file:
        file.write(b"foreign data")
    return path


def words_for(name, devices, source):
    return {"cblk_test": [devices[0], source], "cblk_raid0": devices}.get(name, [devices[0]])


def check_all(directory):
    programs = build(directory, "cflsh_block")
    check(len(programs) == 5, f"programs: {list(programs)}")
    devices = [blank(directory, "a.img"), blank(directory, "b.img")]
    source = os.path.join(EXAMPLES, "cblk_test.c")
    for name, program in programs.items() if not problems else ():
        for turn in ("first", "second"):   # on a blank device, and on one that has the format
            result = run(program, *words_for(name, devices, source))
            what = f"{name} ({turn}): exit {result.returncode}: {result.stdout!r} {result.stderr!r}"
            in_one_line = result.stdout.count("\n") == 1 and result.stdout.startswith(name + ": ")
            check(result.returncode == 0 and in_one_line, what)
            check("equal" in result.stdout or name == "cblk_share", what)
        foreign = with_data(directory)
        result = changes_nothing(foreign, program, *words_for(name, [foreign, devices[1]], source))
        lines = result.stderr.splitlines()   # the library's, then the program's
        check(result.returncode == 1 and result.stdout == "" and len(lines) == 2 and "holds unknown data" in lines[0],
              f"{name} on foreign data: exit {result.returncode}: {result.stdout!r} {result.stderr!r}")
        check_options(program, ([],))


if __name__ == "__main__":
    sys.exit(main(check_all))
