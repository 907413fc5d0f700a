#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`api_examples_test.py EXAMPLES INCLUDE LIBRARY PROGRAM...`: programs of examples/api answer --help, refuse words that
are wrong, and say why where their sizes show nothing. (What they do otherwise they check themselves.)"""
import os
import sys

from example_programs import check, check_options, main, run


def check_all(_):
    for program in map(os.path.abspath, sys.argv[4:]):
        name = os.path.basename(program).removeprefix("example-")
        check_options(program, (["x"], ["0"], ["-1"], ["8", "0"], ["8", "64", "word"]), name)
        if name == "matrix":
            continue
        result = run(program, "4")   # MiB, or entries: all of it stays in DRAM
        told = result.returncode == 1 and f"{name}: nothing was evicted; give more" in result.stderr
        check(told or result.returncode == 77, f"{name} 4: {result}")


if __name__ == "__main__":
    sys.exit(main(check_all))
