# SPDX-License-Identifier: Apache-2.0
"""Each program of examples/cblk runs on files: one result line, exit code 0, nothing left on the
device. On a device that holds foreign data each of them refuses and changes no byte."""
import os

from build_tree import ROOT
from example_programs import CBLK, MIB, build, changes_nothing, check_options, run


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


def test_programs(directory):
    programs = build(directory, "cblk", CBLK)
    assert len(programs) == 5
    devices = [blank(directory, "a.img"), blank(directory, "b.img")]
    source = os.path.join(ROOT, "examples/cblk/cblk_test.c")
    for name, program in programs.items():
        for _ in range(2):   # on a blank device, and on one that has the format
            result = run(program, *words_for(name, devices, source))
            assert result.returncode == 0, result
            assert result.stdout.count("\n") == 1 and result.stdout.startswith(name + ": ")
            assert "equal" in result.stdout or name == "cblk_share"
        foreign = with_data(directory)
        result = changes_nothing(foreign, program, *words_for(name, [foreign, devices[1]], source))
        lines = result.stderr.splitlines()   # the library's, then the program's
        assert result.returncode == 1 and result.stdout == "" and len(lines) == 2, result
        assert "holds unknown data" in lines[0]
        check_options(program, ([],))
