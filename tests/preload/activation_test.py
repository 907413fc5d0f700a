# SPDX-License-Identifier: Apache-2.0
"""A process before its pager is activated, and its change from plain to tiered memory. Every step
of the worker checks all of its memory."""
import os
import re
import subprocess
import sys

import pytest

from build_tree import BUILD, LUNAR

WORKER = os.path.join(BUILD, "tests/preload/activation_worker")
MIB = 1 << 20
ANOTHER_USER = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def command(dram, *steps, before=(), flags=("--stats",)):
    return [LUNAR, "run", "--dram", dram, "--size", "512m", *flags, "--", *before, WORKER, *steps]


def run(dram, *steps, **options):
    result = subprocess.run(command(dram, *steps, **options), stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "sound" in result.stdout, f"{steps}: {result}"
    return result


def figure(text, key):
    found = re.findall(rf"lunar: stats: {key} (\d+)", text)
    return int(found[-1]) if found else 0


def evicted(*arguments, **options):
    result = run(*arguments, **options)
    of_each_process = map(int, re.findall(r"lunar: stats: evictions (\d+)", result.stderr))
    assert max(of_each_process,
               default=0) >= 1000, f"{arguments}: nothing was evicted, nothing is proven"


@pytest.mark.parametrize("steps",
                         ["setuid", "closeall setuid", "chroot", "chroot setuid", "seccomp",
                          "grow:4 setuid"])
def test_rights(directory, as_root, steps):
    """A process that drops root, changes its root directory, or installs a filter before it grows
    is served."""
    evicted("32m", *steps.replace("chroot", f"chroot:{directory}").split(), "grow:64")


def test_rights_of_children(as_root):
    evicted("32m", "grow:64", before=ANOTHER_USER)
    # A child that is started with neither descriptors nor rights.
    spawn = ("import subprocess, sys\n"
             "rights = dict(close_fds=True, user=65534, group=65534, extra_groups=[])\n"
             "sys.exit(subprocess.run(sys.argv[1:], **rights).returncode)\n")
    evicted("32m", "grow:64", before=(sys.executable, "-c", spawn))
    # A forked child grows after its parent has dropped root. runtime/LIMITS.md: not on a host with
    # swap.
    with open("/proc/swaps", encoding="ascii") as swaps:
        if not any(line.startswith("/") for line in swaps):
            evicted("48m", "setuid", "grow:4", "fork:64", "grow:64")


def test_one_line(directory, as_root):
    """A process whose activation fails says so once."""
    lun = os.path.join(directory, "private")
    os.mkdir(lun, 0o700)
    words = command("32m", "grow:64", "again:500", before=ANOTHER_USER)
    words[2:2] = ["--lun", lun]
    result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            check=False)
    lines = [line for line in result.stderr.splitlines() if line.startswith("lunar")
             and "stats:" not in line]
    assert result.returncode == 0 and "refused" in result.stdout, result
    assert len(lines) == 1 and lun in lines[0]


@pytest.mark.parametrize("dram, steps", [
    ("64m", "map:24 huge grow:100 map:40 grow:20"),
    ("64m", "grow:20 advise huge grow:12 fork:2 grow:60"),
    ("64m", "map:24 huge fork:20 grow:100 fork:8")], ids=["maps", "heap", "forks"])
def test_huge(dram, steps):
    """Huge pages that are there before activation are adopted and evicted."""
    with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
        if "[never]" in file.read():
            pytest.skip("huge-pages: switched off")
    evicted(dram, *steps.split())


def test_small():
    """Once activated, no memory of ours can become a huge page behind the account's back (where
    they are `always`)."""
    evicted("64m", "grow:100", "small")


@pytest.mark.parametrize("dram, steps", [
    ("64m", "grow:8 fork:4 fork:100 grow:30 fork:8 grow:60 fork:8"),
    ("32m", "grow:20 fork:8 fork:8 grow:30"),
    ("32m", "stray grow:4 fork:4 grow:60 fork:8")],
    ids=["around", "activates", "first-thread-ended"])
def test_forks(dram, steps):
    """Children made before activation, by it, and after it."""
    evicted(dram, *steps.split())


def test_plain():
    """A process that fits stays plain and says so."""
    result = run("64m", "grow:40")
    assert figure(result.stderr, "armed") == 0 and "plain" in result.stderr


@pytest.mark.parametrize("runs", [24, pytest.param(100, marks=pytest.mark.slow)])
def test_discards(runs):
    """Discards during the first evictions of what was there before activation. The two meet in
    every tenth run or so."""
    for _ in range(runs):
        evicted("24m", "discards:16")


def test_noreserve():
    """MAP_NORESERVE memory is plain too while there is room, and counted by what is there
    afterwards."""
    assert figure(run("64m", "noreserve:24", "grow:8").stderr, "armed") == 0
    evicted("64m", "noreserve:24", "grow:8", "noreserve:60", "grow:20", "fork:4")


@pytest.mark.parametrize("end", ["return", "exit"])
def test_table(end):
    """The table is printed once, after a return from main and after _exit, also when the program
    has closed standard error (as coreutils do); not by a child between vfork and exec."""
    text = run("32m", "grow:64", "vfork", "deaf", *["exit"] * (end == "exit")).stderr
    assert text.count("lunar: stats: armed 1\n") == text.count("lunar: stats: armed ") == 1
    table = {key: int(value) for key, value in re.findall(r"lunar: stats: (\w+) (\d+)", text)}
    assert table["cap_bytes"] == 32 * MIB >= table["peak_resident_bytes"]
    assert table["evictions_bytes"] == 4096 * table["evictions"] > table["evicted_bytes"]
    assert min(table[key] for key in ("faults", "lun_written_bytes", "peak_rss_bytes")) > 0
    assert table["poisoned"] == 0


@pytest.mark.parametrize("flags, says", [("--stats", 1), ("--log=info", 1), ("--log=warning", 1),
                                         ("--log=error", 0)])
@pytest.mark.parametrize("step", ["outside:64", "child:64"])
def test_outside(step, flags, says):
    """Memory outside the tier is reported for plain processes also, in the table or in the log."""
    text = run("32m", step, flags=[flags]).stderr
    line = r"6[45]\.[^\n]* of anonymous memory in DRAM were outside the tier"
    assert len(re.findall(line, text)) == says, text
    if flags == "--stats" and step.startswith("outside"):
        assert figure(text, "armed") == 0 and figure(text, "outside_bytes") >= 64 * MIB


def test_outside_in_pieces():
    """The kernel makes one map of the pieces."""
    text = run("32m", "pieces:64").stderr
    assert figure(text, "outside_bytes") >= 64 * MIB and "B, maps and stacks 64." in text
