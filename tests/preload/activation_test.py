#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`activation_test.py LUNAR WORKER CASE [--long]`: what a process has before its pager is activated, and how it gets
from plain to tiered memory. Every step of the worker checks all that it holds."""
import os
import re
import subprocess
import sys
import tempfile

LUNAR, WORKER = map(os.path.abspath, sys.argv[1:3])
CASE = sys.argv[3]
LONG = "--long" in sys.argv
MIB = 1 << 20
ANOTHER_USER = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


def fail(what):
    raise SystemExit(f"FAIL: {CASE}: {what}")


def skip(capability, reason):
    print(f"skip: {capability}: {reason}")
    raise SystemExit(77)


def command(dram, *steps, before=(), size="512m", stats=True):
    flags = ["--dram", dram, "--size", size, *(["--stats"] if stats else [])]
    return [LUNAR, "run", *flags, "--", *before, WORKER, *steps]


def run(dram, *steps, before=(), expect=0, **further):
    result = subprocess.run(command(dram, *steps, before=before), stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, check=False, **further)
    if result.returncode != expect or (expect == 0 and "sound" not in result.stdout):
        fail(f"{' '.join(steps)}: exit code {result.returncode}\n{result.stdout}{result.stderr[-3000:]}")
    return result


def figure(text, key):
    found = re.findall(rf"lunar: stats: {key} (\d+)", text)
    return int(found[-1]) if found else 0


def evicted(result, what):
    of_each_process = map(int, re.findall(r"lunar: stats: evictions (\d+)", result.stderr))
    if max(of_each_process, default=0) < 1000:
        fail(f"{what}: nothing was evicted, nothing is proven\n{result.stdout}{result.stderr}")


def anonymous(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return int(re.search(r"Pss_Anon:\s*(\d+) kB", file.read()).group(1)) * 1024


# A program that starts workers and ends them: each line to it is a command.
SHELL = """import subprocess, sys
children = []
for line in sys.stdin:
    words = line.split()
    if words[0] == 'start':
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child = subprocess.Popen(words[1:], close_fds=False, **pipes)
        children.append(child)
        said = ''
        while not said.strip().endswith(('held', 'FAIL')) and child.poll() is None: said = child.stdout.readline()
        print(child.pid, said.strip(), flush=True)
    else:
        bad = 0
        for child in children:
            out = child.communicate('go\\n')[0]
            bad += child.returncode != 0 or 'sound' not in out
        print(bad, 'bad', flush=True)
"""


class Tree:
    """A shell under `lunar run` whose children are workers: they share one account."""

    def __init__(self, dram):
        words = [LUNAR, "run", "--dram", dram, "--size", "512m", "--", sys.executable, "-c", SHELL]
        self.shell = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env=dict(os.environ, PYTHONMALLOC="malloc"))

    def ask(self, line):
        self.shell.stdin.write(line + "\n")
        self.shell.stdin.flush()
        return self.shell.stdout.readline().split()

    def start(self, *steps):
        pid, said = self.ask(f"start {WORKER} {' '.join(steps)}")
        if said != "held":
            fail(f"a worker said {said}")
        return int(pid)

    def end(self):
        bad = int(self.ask("end")[0])
        self.shell.communicate()
        if bad:
            fail(f"{bad} workers did not find what they had written")


def eight():
    """Eight processes of 7 MiB under 16 MiB: no more than the budget and what an idle worker has."""
    tree = Tree("16m")
    idle = anonymous(tree.start("say:held"))
    workers = [tree.start("grow:7", "say:held") for _ in range(8)]
    held = sum(max(0, anonymous(pid) - idle) for pid in workers)
    print(f"eight workers hold {held / MIB:.1f} MiB more than the {idle / MIB:.1f} MiB of an idle one each")
    # Each has tables, jemalloc's metadata and stacks of its own that are no tiered memory.
    if held > 16 * MIB + 8 * MIB // 4:
        fail(f"{held / MIB:.1f} MiB under a budget of 16 MiB")
    tree.end()


def rights():
    """A process that drops root, changes its root directory, or installs a filter before it grows is served."""
    if os.geteuid() != 0:
        skip("root", "only root has rights to drop")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        for steps in (["setuid"], ["closeall", "setuid"], [f"chroot:{root}"], [f"chroot:{root}", "setuid"],
                      ["seccomp"], ["grow:4", "setuid"]):
            evicted(run("32m", *steps, "grow:64"), " ".join(steps))
    evicted(run("32m", "grow:64", before=ANOTHER_USER), "setpriv")
    # A child that is started with neither descriptors nor rights.
    spawn = ("import subprocess, sys\n"
             "rights = dict(close_fds=True, user=65534, group=65534, extra_groups=[])\n"
             "sys.exit(subprocess.run(sys.argv[1:], **rights).returncode)\n")
    evicted(run("32m", "grow:64", before=(sys.executable, "-c", spawn)), "a child without descriptors")
    # A forked child grows after its parent has dropped root. runtime/LIMITS.md: not on a host with swap.
    if not any(line.startswith("/") for line in open("/proc/swaps")):
        evicted(run("48m", "setuid", "grow:4", "fork:64", "grow:64"), "setuid, then fork")


def one_line():
    """What cannot be activated says so once."""
    if os.geteuid() != 0:
        skip("root", "needs another user")
    directory = tempfile.mkdtemp(dir="/var/tmp")
    lun = os.path.join(directory, "private")
    os.mkdir(lun, 0o700)
    try:
        words = command("32m", "grow:64", "again:500", before=ANOTHER_USER)
        words[2:2] = ["--lun", lun]
        os.chmod(directory, 0o755)
        result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        lines = [line for line in result.stderr.splitlines() if line.startswith("lunar") and "stats:" not in line]
        if result.returncode != 0 or "refused" not in result.stdout or len(lines) != 1 or lun not in lines[0]:
            fail(f"exit code {result.returncode}, {len(lines)} lines\n{result.stdout}{result.stderr[:3000]}")
    finally:
        os.rmdir(lun)
        os.rmdir(directory)


def huge():
    """Huge pages that are there before activation are adopted and evicted."""
    with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
        if "[never]" in file.read():
            skip("huge-pages", "switched off")
    evicted(run("64m", "map:24", "huge", "grow:100", "map:40", "grow:20"), "huge pages")
    evicted(run("64m", "grow:20", "advise", "huge", "grow:12", "fork:2", "grow:60"), "huge pages of the heap")
    evicted(run("64m", "map:24", "huge", "fork:20", "grow:100", "fork:8"), "huge pages and forks")


def small():
    """Once activated, no memory of ours can become a huge page behind the account's back (where they are `always`)."""
    evicted(run("64m", "grow:100", "small"), "small pages")


def forks():
    """Children made before activation, by it, and after it."""
    evicted(run("64m", "grow:8", "fork:4", "fork:100", "grow:30", "fork:8", "grow:60", "fork:8"), "forks")
    evicted(run("32m", "grow:20", "fork:8", "fork:8", "grow:30"), "a fork that activates")
    evicted(run("32m", "stray", "grow:4", "fork:4", "grow:60", "fork:8"), "the first thread ended")


def plain():
    """A process that fits stays plain and says so."""
    result = run("64m", "grow:40")
    if figure(result.stderr, "armed") != 0 or "plain" not in result.stderr:
        fail(f"no word of it:\n{result.stderr}")


def storm():
    """Threads that write, discard, protect, move and unmap, and fork, while the process is activated."""
    words = [os.path.join(os.path.dirname(WORKER), "activation_storm"), "3"]
    activated = 0
    if "LUNAR_SEED" in os.environ:
        seeds = [int(os.environ["LUNAR_SEED"])]
    else:
        seeds = [int.from_bytes(os.urandom(4), "little") for _ in range(12 if LONG else 3)]
    for seed in seeds:
        print(f"LUNAR_SEED={seed}", flush=True)
        result = subprocess.run([LUNAR, "run", "--dram", "48m", "--size", "4g", "--stats", "--", *words, str(seed)],
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if result.returncode != 0 or "sound" not in result.stdout:
            fail(f"seed {seed}: exit code {result.returncode}\n{result.stdout}{result.stderr[-3000:]}")
        activated += figure(result.stderr, "armed")
    if not activated:
        fail("no run was activated")


def discards():
    """Discards during the first evictions of what was there before activation. The two meet in every tenth run or
    so."""
    for _ in range(100 if LONG else 24):
        evicted(run("24m", "discards:16"), "discards")


def noreserve():
    """MAP_NORESERVE memory is plain too while there is room, and counted by what is there afterwards."""
    result = run("64m", "noreserve:24", "grow:8")
    if figure(result.stderr, "armed") != 0:
        fail(f"activated by 32 MiB of 64\n{result.stderr}")
    evicted(run("64m", "noreserve:24", "grow:8", "noreserve:60", "grow:20", "fork:4"), "MAP_NORESERVE")


{"storm": storm, "discards": discards, "noreserve": noreserve, "eight": eight, "rights": rights, "one-line": one_line,
 "huge": huge, "small": small, "forks": forks, "plain": plain}[CASE]()
