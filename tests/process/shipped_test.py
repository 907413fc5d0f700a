# SPDX-License-Identifier: Apache-2.0
"""Shipped files know no switch that takes protections away (base/test_switches.def). A
program that links the runtime of the tests must know them all, or the names looked for would be the
wrong ones."""
import os
import re

import pytest

from build_tree import BUILD, ROOT


def found(path):
    with open(os.path.join(ROOT, "runtime/base/test_switches.def"), encoding="ascii") as switches:
        names = ["test_" + name
                 for name in re.findall(r"^LUNAR_SWITCH_\w+\((\w+)", switches.read(), re.M)]
    with open(os.path.join(BUILD, path), "rb") as file:
        content = file.read()
    assert len(names) >= 5
    return names, [name for name in names if name.encode() in content]


def test_test_program():
    names, known = found("tests/process/api_heap_test")
    assert known == names


@pytest.mark.parametrize("path", [
    "tools/lunar", "runtime/liblunar.so", "adapters/preload/liblunar-preload.so",
    "adapters/redis/liblunar-redis.so",
    "runtime/cblk/libcflsh_block-0.so", "runtime/kv/ark/libarkdb-0.so"])
def test_shipped(path):
    assert found(path)[1] == []
