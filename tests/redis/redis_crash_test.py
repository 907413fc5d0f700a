# SPDX-License-Identifier: Apache-2.0
"""redis_crash_test LUNAR MODULE: a redis-server that crashes reports and dies, above its DRAM too.

Its crash report tests memory: it saves, overwrites and restores every writable map that /proc/self/maps shows without
a file. On tiered memory the pager's service threads run on meanwhile, and their tables must not be among these maps.
(What the test does to libc's own memory may end it early on plain memory as well; so what counts is that it begins,
and that the process dies by the signal, in at most 1.5 times the time that plain memory takes, a byte tested: the best
of up to ROUNDS runs of each, in turn, as others use the machine.)
"""
import os
import re
import signal
import sys
import time

from redis_server import SERVER, Server, Servers, scratch

DRAM, VALUES, BATCH = "16m", 16384, 128      # 64 MiB of values: four times the DRAM
RATIO_MAX, ROUNDS = 1.5, 8


def crash(name, prefix, further):
    """Seconds until it has died, and bytes that its memory test went through."""
    with scratch("crash") as directory, Servers() as servers:
        prefix, further = ([word.replace("DIRECTORY", directory) for word in words] for words in (prefix, further))
        server = servers.add(Server(directory, *further, wrapper=prefix))
        for first in range(0, VALUES, BATCH):
            server.pipeline([("SET", f"k{i:08}", os.urandom(4000)) for i in range(first, first + BATCH)])
        start = time.monotonic()
        server.client.send([("DEBUG", "SEGFAULT")])
        status = server.process.wait()
        seconds = time.monotonic() - start
        text = server.text()
        tested = sum(int(n) for n in re.findall(r"memory region [0-9a-f]+ \((\d+) bytes\)", text))
        assert status == -signal.SIGSEGV, f"{name}: it ended with {status}"
        reported = "REDIS BUG REPORT START" in text and tested > VALUES * 4000
        assert reported, f"{name}: no report, or {tested} bytes tested"
        print(f"{name:7} died after {seconds:.1f} s, {tested >> 20} MiB tested, {seconds / tested * 2**30:.1f} s a GiB")
        return seconds, tested


def main(lunar, module):
    if not os.access(SERVER, os.X_OK):
        print(f"skip: redis-server: {SERVER} is not there")
        return 77
    sides = {"plain": ([], []),
             "run": ([lunar, "run", f"--dram={DRAM}", "--size=1g", "--lun=DIRECTORY", "--"], []),
             "module": ([], ["--loadmodule", os.path.abspath(module), "dram", DRAM, "lun", "DIRECTORY", "size", "1g"])}
    best = dict.fromkeys(sides, float("inf"))   # seconds a byte
    for turn in range(ROUNDS):
        for name, (prefix, further) in sides.items():
            seconds, tested = crash(name, prefix, further)
            best[name] = min(best[name], seconds / tested)
        ratios = {name: best[name] / best["plain"] for name in ("run", "module")}
        print("best so far, a byte, of plain:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
        if turn >= 1 and max(ratios.values()) <= RATIO_MAX:
            return 0
    sys.exit(f"a crash report takes more than {RATIO_MAX} times as long as on plain memory")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
