#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ships knows none of the switches that take protections away. `shipped_test.py SWITCHES TEST_PROGRAM SHIPPED...`:
SWITCHES is base/test_switches.def; TEST_PROGRAM links the runtime of the tests and must know them all, or the names
looked for would be the wrong ones."""
import re
import sys

switches, test_program, *shipped = sys.argv[1:]
names = ["test_" + name for name in re.findall(r"^LUNAR_SWITCH_\w+\((\w+)", open(switches).read(), re.M)]
assert len(names) >= 5, names


def found(path):
    content = open(path, "rb").read()
    return [name for name in names if name.encode() in content]


assert found(test_program) == names, "the test program lacks some of " + " ".join(names)
bad = [f"{path}: {' '.join(found(path))}" for path in shipped if found(path)]
print("\n".join(bad) or f"{len(shipped)} files, {len(names)} names: none in any")
sys.exit(1 if bad or not shipped else 0)
