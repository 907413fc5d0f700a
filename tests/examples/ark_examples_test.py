#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ark_examples_test.py EXAMPLES INCLUDE LIBRARY`: each program of examples/ark runs in memory and on files: one result line, exit code 0. On a
file that holds somebody's data each of them refuses and changes no byte."""
import functools
import os
import sys

from example_programs import MIB, build, changes_nothing, check, main, problems, run

DRAM = {"LUNAR_KV_DRAM": "256m"}
run = functools.partial(run, **DRAM)


def file_of(directory, name, head):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(64 * MIB)
    return path


def check_persist(program, place, somebodys):
    for found, more in ((0, 1000), (1000, 300), (1300, 1)):
        result = run(program, place, str(more))
        wanted = f"run_kv_persist: {found} pairs were there, all equal, and {more} more are now\n"
        check((result.returncode, result.stdout, result.stderr) == (0, wanted, ""), f"run_kv_persist: {result}")
    for words in ((), ("",), (somebodys,)):
        result = changes_nothing(somebodys, program, *words, **DRAM)
        check(result.returncode in (1, 2) and result.stdout == "", f"run_kv_persist {words}: {result}")


def check_all(directory):
    programs = build(directory, "arkdb")
    check(len(programs) == 3, f"programs: {list(programs)}")
    place, somebodys = file_of(directory, "store.img", b""), file_of(directory, "foreign", b"somebody's")
    check_persist(programs.pop("run_kv_persist"), file_of(directory, "kept.img", b""), somebodys)
    for name, program in programs.items() if not problems else ():
        for words in ([], ["", "3", "200"], [place, "4", "500"], [place, "4", "500"]):   # on a blank file, and where a store was
            result = run(program, *words)
            what = f"{name} {words}: exit {result.returncode}: {result.stdout!r} {result.stderr!r}"
            check(result.returncode == 0 and result.stdout.count("\n") == 1 and result.stdout.startswith(name + ": "), what)
            check("all equal" in result.stdout and result.stderr == "", what)
        result = changes_nothing(somebodys, program, somebodys, **DRAM)
        check(result.returncode == 1 and result.stdout == "", f"{name} on somebody's data: {result.returncode}: {result.stdout!r}")
        check(run(program, "", "0").returncode == 2, f"{name} with a number that cannot be")


if __name__ == "__main__":
    sys.exit(main(check_all))
