#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`cblk_examples_test.py EXAMPLES INCLUDE LIBRARY`: each program of examples/cblk is built by the line that its README gives, with gcc and
nothing of the project but header and library, and run on files: one result line, exit code 0, nothing left on the device. On a device that holds
somebody's data each of them refuses and changes no byte."""
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
    """gcc x.c -lcflsh_block; the library as a program at run time finds it."""
    libraries = os.path.dirname(LIBRARY)
    programs = {}
    for name in sorted(os.listdir(EXAMPLES)):
        if not name.endswith(".c"):
            continue
        program = os.path.join(directory, name[:-2])
        line = ["gcc", "-Wall", "-Wextra", "-Werror", os.path.join(EXAMPLES, name), "-o", program, "-I", INCLUDE, "-L", libraries,
                "-lcflsh_block"]
        result = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
        check(result.returncode == 0, f"{' '.join(line)}: {result.stderr}")
        programs[name[:-2]] = program
    return programs


def run(program, *words):
    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(LIBRARY)}
    return subprocess.run([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, env=environment)


def blank(directory, name):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 32 * MIB)
    return path


def foreign(directory):
    path = blank(directory, "foreign")
    with open(path, "r+b") as file:
        file.write(b"somebody's")
    return path


def words_for(name, devices, source):
    return {"cblk_test": [devices[0], source], "cblk_raid0": devices}.get(name, [devices[0]])


def main():
    if shutil.which("gcc") is None:
        print("skip: gcc: no gcc here")
        return 77
    directory = tempfile.mkdtemp(prefix="lunar-test-", dir="/var/tmp")
    try:
        programs = build(directory)
        check(len(programs) == 5, f"programs: {list(programs)}")
        devices = [blank(directory, "a.img"), blank(directory, "b.img")]
        source = os.path.join(EXAMPLES, "cblk_test.c")
        for name, program in programs.items() if not problems else ():
            for turn in ("first", "second"):   # on a blank device, and on one that has the format
                result = run(program, *words_for(name, devices, source))
                what = f"{name} ({turn}): exit {result.returncode}: {result.stdout!r} {result.stderr!r}"
                check(result.returncode == 0 and result.stdout.count("\n") == 1 and result.stdout.startswith(name + ": "), what)
                check("equal" in result.stdout or name == "cblk_share", what)
            somebodys = foreign(directory)
            with open(somebodys, "rb") as file:
                before = file.read()
            result = run(program, *words_for(name, [somebodys, devices[1]], source))
            with open(somebodys, "rb") as file:
                check(file.read() == before, f"{name}: changed a device that holds somebody's data")
            check(result.returncode == 1 and result.stdout == "" and result.stderr.count("\n") == 1,
                  f"{name} on somebody's data: exit {result.returncode}: {result.stdout!r} {result.stderr!r}")
            check(run(program).returncode == 2, f"{name} without arguments")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
