# SPDX-License-Identifier: Apache-2.0
"""Many live maps with guard pages: their contents, and the CPU time of a cycle of unmap, map and guard as a ratio to
that of a plain run, in turns. The bounds are generous: what grows with the number of maps would pass them by far.
usage: many_maps_test.py LUNAR MANY_MAPS"""
import statistics
import subprocess
import sys

LUNAR, PROGRAM = sys.argv[1:3]
ROUNDS = 3
# DRAM, live maps, cycles, the most that a cycle may take in plain ones. With 64 MiB the process is active.
CASES = [("16g", 200, 10000, 2.5), ("16g", 20000, 4000, 2.5), ("64m", 10000, 2000, 8.0)]


def cycle_ns(command, live, cycles):
    run = subprocess.run([*command, PROGRAM, str(live), str(cycles)], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: {run.returncode}: {run.stderr}")
    return float(run.stdout)


failed = False
for dram, live, cycles, most in CASES:
    ratios = []
    for _ in range(ROUNDS):
        plain = cycle_ns([], live, cycles)
        ratios.append(cycle_ns([LUNAR, "run", "--dram", dram, "--size", "16g", "--"], live, cycles) / plain)
    ratio = statistics.median(ratios)
    print(f"{live} maps, {dram}: {ratio:.2f} of plain (at most {most})")
    failed |= ratio > most
sys.exit(failed)
