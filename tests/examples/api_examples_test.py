# SPDX-License-Identifier: Apache-2.0
"""Programs of examples/api answer --help, refuse words that are wrong, and say why where their
sizes show nothing. (What they do otherwise they check themselves.)"""
import os

import pytest

from build_tree import BUILD
from example_programs import check_options, run


@pytest.mark.parametrize("name", ["matrix", "bigmap", "pin"])
def test_words(name):
    program = os.path.join(BUILD, "examples/api/example-" + name)
    check_options(program, (["x"], ["0"], ["-1"], ["8", "0"], ["8", "64", "word"]), name)
    if name != "matrix":
        result = run(program, "4")   # MiB, or entries: all of it stays in DRAM
        told = result.returncode == 1 and f"{name}: nothing was evicted; give more" in result.stderr
        assert told or result.returncode == 77, result
