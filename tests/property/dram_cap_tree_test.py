# SPDX-License-Identifier: Apache-2.0
"""The DRAM budget holds for a whole process tree, by the kernel's
count.

Each tree runs in a memory cgroup of its own, whose anonymous memory is read every few 100 us. What
is allowed beyond the budget is a slack (tools/README.md, "What --dram covers"): SLACK_TREE, and for
each process that was there at once SLACK_SERVICE (stacks, data of the libraries; twice that for one
that exec began, which shares none of it) and what the program has outside of the tier by itself
(brk, maps below 256 KiB: SLACK_PROGRAM for a Python or a compiler). Trees: a process that forks 1,
4, 8 and 64 times with all members writing, processes that end while others press, make -j, a Python
pool and a heap that doubles at once. A tree that never came near its budget proves nothing, and
fails. Skipped where no memory cgroup can be made.

The kernel keeps its count of anonymous memory by processor, and a reader adds the processors up one
after the other: where it has to wait in between, what was freed on the first one meanwhile is
missing, and what was taken on the others is there. On a busy machine some reading in ten thousand
shows ten MiB and more that never were, and the next one may show them again. The group's total is
one counter, right at any moment, and a few MiB above what is anonymous: a reading that is above it
is cut to it."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

from build_tree import BUILD, LUNAR
from memory_cgroup import Cgroup

MEMBER = os.path.join(BUILD, "tests/property/cap_member")
MIB = 1 << 20
SLACK_TREE = 4 * MIB
SLACK_SERVICE = MIB // 2
SLACK_PROGRAM = 3 * MIB // 2


def watch(name, dram_mib, command, size="4g", near=0.7, outside=0):
    """Runs the tree: its anonymous memory stays within what is allowed."""
    group = Cgroup()
    began = time.time()
    output = tempfile.TemporaryFile()
    try:
        child = subprocess.Popen(
            [LUNAR, "run", "--dram", f"{dram_mib}m", "--size", size, "--", *command],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            preexec_fn=lambda: open(group.procs, "w").write(str(os.getpid())))
        peak = above = most = samples = worst = 0
        cap = dram_mib * MIB
        processes = 1
        while child.poll() is None:
            if samples % 32 == 0:
                processes = len(group.processes())
                most = max(most, processes)
            anonymous = group.anonymous()
            samples += 1
            peak = max(peak, anonymous)
            if anonymous - cap > above:
                # Counted again: processes come and go between two counts.
                processes = max(processes, len(group.processes()))
                most = max(most, processes)
                above = anonymous - cap
            time.sleep(0.0002)   # the machine may have two processors
            worst = max(worst, anonymous - cap - SLACK_TREE - most * (SLACK_SERVICE + outside))
        text = (f"{name}: budget {dram_mib} MiB, anonymous peak {peak / MIB:.1f} MiB, {most} "
                f"processes, "
                f"{samples} samples, {time.time() - began:.1f} s")
        print(text)
        if child.returncode != 0:
            dump(output)
        assert child.returncode == 0
        assert worst <= 0, "bytes above the budget and its slack"
        assert peak >= near * cap, "the budget was hardly used, nothing was proven"
    finally:
        group.end()


def dump(output):
    output.seek(0)
    print(output.read()[-4000:].decode(errors="replace"), flush=True)


POOL = """
import multiprocessing, sys
def work(seed):
    data = [bytes([seed %% 251 + 1]) * 4096 for _ in range(2000)]
    mine = bytearray(base)
    for at in range(0, len(mine), 4096): mine[at] = seed %% 256
    return sum(len(d) for d in data) + len(mine)
base = bytearray(16 << 20)
for at in range(0, len(base), 4096): base[at] = 1
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(work, range(%d)) == [2000 * 4096 + (16 << 20)] * %d
"""

MAKEFILE = "all: $(addsuffix .o,$(basename $(wildcard *.c)))\n%.o: %.c\n\t$(CC) -O2 -c -o $@ $<\n"


# Children that descriptors are taken from before they start, as programs do it: each must still
# find the tree's account.
CLOSERS = """
import ctypes, os, subprocess, sys
member, how = sys.argv[1:3]
libc = ctypes.CDLL(None)
def close_each():
    for fd in range(3, 1100): libc.close(fd)
def set_cloexec():
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2: libc.fcntl(int(name), 2, 1)
def dup_over():
    for fd in (600, 700, 701): libc.dup2(1, fd)
before = {"subprocess": None, "raw": None, "closefrom": lambda: libc.closefrom(3),
          "each": close_each,
          "cloexec": set_cloexec, "dup2": dup_over}[how]
options = dict(close_fds=how == "subprocess", preexec_fn=before)
words = ["closing"] * (how == "raw") + ["burst", "20"]   # past every library
children = [subprocess.Popen([member, *words], **options) for _ in range(3)]
sys.exit(max(child.wait() for child in children))
"""

# A daemon whose ancestors are gone and that has closed everything by raw system calls: no process
# has the account any more.
ORPHAN = """
import os, sys, time
root = os.getpid()
if os.fork() == 0:
    os.setsid()
    while os.getppid() == root: time.sleep(0.01)
    os.execv(sys.argv[1], [sys.argv[1], "closing", "burst", "96"])
"""


def test_orphan(directory):
    """Refused with one line: no budget of its own, and not without one."""
    script = os.path.join(directory, "orphan.py")
    with open(script, "w") as file:
        file.write(ORPHAN)
    with tempfile.TemporaryFile() as output:
        subprocess.run([LUNAR, "run", "--dram", "48m", "--", sys.executable, script, MEMBER],
                       stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True)
        for _ in range(100):
            output.seek(0)
            text = output.read().decode()
            if text:
                break
            time.sleep(0.1)
    assert text.count("\n") == 1 and "account of this tree's DRAM budget cannot be found" in text


def test_overhead():
    """With data of four times the budget, less than 5% of the budget holds no pages of the
    program."""
    dram = 256 * MIB
    with tempfile.TemporaryFile() as output:
        subprocess.run([LUNAR, "run", "--dram", "256m", "--size", "2g", "--stats", "--", MEMBER,
                        "burst", "512"],
                       stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True)
        output.seek(0)
        lines = output.read().decode().splitlines()
        stats = dict(line.split()[2:4] for line in lines if line.startswith("lunar: stats: "))
    fixed, resident = int(stats["fixed_bytes"]), int(stats["peak_resident_bytes"])
    assert 0 < fixed < 0.05 * dram
    assert resident > 0.95 * dram


def make_tree(directory, files):
    for i in range(files):
        with open(os.path.join(directory, f"f{i}.c"), "w") as file:
            file.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
            for k in range(400):
                file.write(f"int g{i}_{k}(int *a, int n) {{ int s = {k}; "
                           f"for (int i = 0; i < n; i++) s += a[i] * {k + 3} % (i + 1); "
                           f"return s > {k} ? s : printf(\"%d\", s); }}\n")
    with open(os.path.join(directory, "Makefile"), "w") as file:
        file.write(MAKEFILE)
    return ["make", "-s", "-j4", "-C", directory, "CC=cc"]   # not a cache of compilations


def script_of(directory, text):
    path = os.path.join(directory, "program.py")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


# Children that write, the budget, what each writes, in MiB, and how often.
@pytest.mark.parametrize("children, dram, mib, rounds", [
    (1, 64, 50, 1), (4, 64, 30, 1), (64, 256, 10, 1),
    *(pytest.param(*row, 6, marks=pytest.mark.slow)
      for row in ((1, 128, 100), (4, 128, 100), (8, 128, 60), (64, 256, 24)))])
def test_forks(children, dram, mib, rounds):
    watch(f"{children} forks", dram, [MEMBER, "forks", str(children), str(mib), str(rounds)],
          size="12g")


@pytest.mark.parametrize("words, dram, outside", [
    ("burst 96", 64, 0), ("late 44", 64, 0),   # late: a fork handler that allocates
    ("spawns 60 1900", 64, SLACK_SERVICE), ("ends 150 5", 128, 0),
    pytest.param("ends 300 36", 256, 0, marks=pytest.mark.slow)])
def test_members(words, dram, outside):
    watch(words, dram, [MEMBER, *words.split()], outside=outside)


@pytest.mark.parametrize("jobs", [12, pytest.param(64, marks=pytest.mark.slow)])
def test_python_pool(directory, jobs):
    script = script_of(directory, POOL % (jobs, jobs))
    watch("python pool", 64, [sys.executable, script], outside=SLACK_PROGRAM)


@pytest.mark.parametrize("how", ["subprocess", "raw", "closefrom", "each", "cloexec", "dup2"])
def test_descriptors(directory, how):
    watch(how, 48, [sys.executable, script_of(directory, CLOSERS), MEMBER, how],
          outside=SLACK_PROGRAM)


@pytest.mark.parametrize("files", [2, pytest.param(32, marks=pytest.mark.slow)])
def test_make(directory, files):
    if not shutil.which("cc"):
        pytest.skip("gcc: there is no C compiler on this system")
    watch("make -j4", 64, make_tree(directory, files), near=0.3, outside=SLACK_PROGRAM)
