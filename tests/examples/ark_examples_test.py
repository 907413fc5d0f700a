#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ark_examples_test.py EXAMPLES INCLUDE LIBRARY`: each program of examples/ark is built by the line that its README gives, with gcc and
nothing of the project but header and library, and run in memory and on files: one result line, exit code 0. On a file that holds somebody's
data each of them refuses and changes no byte."""
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


def build(directory):
    """gcc x.c -larkdb; the library as a program at run time finds it."""
    programs = {}
    for name in sorted(os.listdir(EXAMPLES)):
        if not name.endswith(".c"):
            continue
        program = os.path.join(directory, name[:-2])
        line = ["gcc", "-Wall", "-Wextra", "-Werror", os.path.join(EXAMPLES, name), "-o", program, "-I", INCLUDE, "-L",
                os.path.dirname(LIBRARY), "-larkdb"]
        result = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
        check(result.returncode == 0, f"{' '.join(line)}: {result.stderr}")
        programs[name[:-2]] = program
    return programs


def run(program, *words):
    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(LIBRARY), "LUNAR_KV_DRAM": "256m"}
    return subprocess.run([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, env=environment)


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
        result = run(program, *words)
        check(result.returncode in (1, 2) and result.stdout == "", f"run_kv_persist {words}: {result}")


def main():
    if shutil.which("gcc") is None:
        print("skip: gcc: no gcc here")
        return 77
    directory = tempfile.mkdtemp(prefix="lunar-test-", dir="/var/tmp")
    try:
        programs = build(directory)
        check(len(programs) == 3, f"programs: {list(programs)}")
        place = file_of(directory, "store.img", b"")
        check_persist(programs.pop("run_kv_persist"), file_of(directory, "kept.img", b""), file_of(directory, "other", b"somebody's"))
        for name, program in programs.items() if not problems else ():
            for words in ([], ["", "3", "200"], [place, "4", "500"], [place, "4", "500"]):   # on a blank file, and where a store was
                result = run(program, *words)
                what = f"{name} {words}: exit {result.returncode}: {result.stdout!r} {result.stderr!r}"
                check(result.returncode == 0 and result.stdout.count("\n") == 1 and result.stdout.startswith(name + ": "), what)
                check("all equal" in result.stdout and result.stderr == "", what)
            somebodys = file_of(directory, "foreign", b"somebody's")
            with open(somebodys, "rb") as file:
                before = file.read()
            result = run(program, somebodys)
            with open(somebodys, "rb") as file:
                check(file.read() == before, f"{name}: changed a file that holds somebody's data")
            check(result.returncode == 1 and result.stdout == "", f"{name} on somebody's data: {result.returncode}: {result.stdout!r}")
            check(run(program, "", "0").returncode == 2, f"{name} with a number that cannot be")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
