# SPDX-License-Identifier: Apache-2.0
"""Many live maps with guard pages: their contents, and the CPU time of a cycle of unmap, map and
guard as a ratio to that of a plain run, in turns. The bounds are generous: what grows with the
number of maps would pass them by far."""
import os
import statistics
import subprocess

import pytest

from build_tree import BUILD, LUNAR

PROGRAM = os.path.join(BUILD, "tests/preload/many_maps")
ROUNDS = 3


def cycle_ns(command, live, cycles):
    return float(subprocess.run([*command, PROGRAM, str(live), str(cycles)], stdout=subprocess.PIPE,
                                check=True).stdout)


@pytest.mark.parametrize("dram, live, cycles, most", [   # with 64 MiB the process is active
    ("16g", 200, 10000, 2.5), ("16g", 20000, 4000, 2.5), ("64m", 10000, 2000, 4.0)])
def test_cycle(dram, live, cycles, most):
    lunar, ratios = [LUNAR, "run", "--dram", dram, "--size", "16g", "--"], []
    for _ in range(ROUNDS):
        plain = cycle_ns([], live, cycles)
        ratios.append(cycle_ns(lunar, live, cycles) / plain)
    assert statistics.median(ratios) <= most, "of a plain run's"
