#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`run_tree_test.py LUNAR CASE`: what `lunar run` does for a whole tree of processes, and what is left of it.

  one-budget   programs that a program executes share its budget: by the kernel's count, all of them together stay
               within it
  no-files     with the default LUN nothing lies in its directory by name: not while a tree runs, and not after kill -9
  file-size    a limit on file sizes (ulimit -f) ends no program: one that needs little runs, one that needs more gets
               no memory, and one line
"""
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile

LUNAR, CASE = os.path.abspath(sys.argv[1]), sys.argv[2]
MIB = 1 << 20
# Takes memory, says so, and gives it up when it is told to.
HOLDS = "import sys\nheld = bytearray(b'x') * ({mib} << 20)\nprint('held', flush=True)\nsys.stdin.readline()\n"
# The same by `count` programs of its own, which each begin anew by exec; says their process ids.
PARENT = ("import subprocess, sys\n"
          "how = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
          "children = [subprocess.Popen([sys.executable, '-c', sys.argv[1]], **how) for _ in range({count})]\n"
          "said = [child.stdout.readline().strip() for child in children]\n"
          "print(*(child.pid for child in children), *said, flush=True)\n"
          "sys.stdin.readline()\n"
          "for child in children: child.communicate('go\\n')\n"
          "sys.exit(max(child.returncode for child in children))\n")


def fail(what):
    raise SystemExit(f"FAIL: {CASE}: {what}")


def start(dram, mib, count, *flags):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LUNAR_")}
    program = [sys.executable, "-c", PARENT.format(count=count), HOLDS.format(mib=mib)]
    flags = ["--dram", dram, "--size", "1g", *flags]
    tree = subprocess.Popen([LUNAR, "run", *flags, "--", *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env={**environment, "PYTHONMALLOC": "malloc"})
    words = tree.stdout.readline().split()
    if words[count:] != ["held"] * count:
        tree.kill()
        error = tree.communicate()[1]
        if "userfaultfd" in error and os.geteuid() != 0:
            print("skip: userfaultfd: " + error.splitlines()[0])
            raise SystemExit(77)
        fail(f"it said {words}: {error[-2000:]}")
    return tree, [tree.pid, *map(int, words[:count])]


def end(tree):
    error = tree.communicate("go\n")[1]
    if tree.returncode != 0:
        fail(f"exit code {tree.returncode}: {error[-2000:]}")


def anonymous(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return int(re.search(r"Pss_Anon:\s*(\d+) kB", file.read())[1]) * 1024


def one_budget():
    """Four programs of 40 MiB under 64: one of them alone stays within it, and four budgets would hold all of the 160
    MiB."""
    small, pids = start("64m", 1, 4)
    idle = sum(map(anonymous, pids))
    end(small)
    tree, pids = start("64m", 40, 4)
    held = sum(map(anonymous, pids))
    print(f"{held / MIB:.1f} MiB, of which {idle / MIB:.1f} MiB are there without the data")
    if held - idle > 64 * MIB + 5 * MIB // 2:   # each process's own: tools/README.md, "What `--dram` covers"
        fail(f"{(held - idle) / MIB:.1f} MiB more than idle under a budget of 64 MiB")
    if held < 48 * MIB:
        fail(f"{held / MIB:.1f} MiB: nothing is proven")
    end(tree)


def named_files(pids, directory):
    """What these processes have open in the directory and could be found there by name. The pager's threads have
    descriptors of their own."""
    unlinked, named = 0, []
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            for fd in os.listdir(f"/proc/{pid}/task/{task}/fd"):
                try:
                    target = os.readlink(f"/proc/{pid}/task/{task}/fd/{fd}")
                except OSError:
                    continue
                if target.startswith(directory + "/"):
                    if target.endswith(" (deleted)"):
                        unlinked += 1
                    else:
                        named.append(target)
    return unlinked, named


def no_files():
    tree, pids = start("32m", 40, 2)
    unlinked, named = named_files(pids, "/var/tmp")
    if named:
        fail(f"named files while it runs: {named}")
    if not unlinked:
        fail("no process has a LUN in /var/tmp: nothing is proven")
    inodes = {entry.inode() for entry in os.scandir("/var/tmp")}
    os.killpg(tree.pid, signal.SIGKILL)
    tree.communicate()
    new = [entry for entry in os.scandir("/var/tmp") if entry.inode() not in inodes]
    left = [entry.name for entry in new if "lunar" in entry.name and entry.is_file()]
    if left:
        fail(f"kill -9 left {left}")
    # The same in a directory of our own, where every file would be ours.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="lunar-test-") as directory:
        tree, pids = start("32m", 40, 2, "--lun", directory)
        if os.listdir(directory):
            fail(f"named files while it runs: {os.listdir(directory)}")
        os.killpg(tree.pid, signal.SIGKILL)
        tree.communicate()
        if os.listdir(directory):
            fail(f"kill -9 left {os.listdir(directory)}")


# Takes memory; exit code 3 when it gets none.
TAKES = ("import sys\n"
         "try:\n"
         "  held = bytearray(b'x') * ({mib} << 20)\n"
         "except MemoryError:\n"
         "  sys.exit(3)\n"
         "sys.exit(held.count(b'x') != {mib} << 20)\n")


def with_file_size(limit, mib):
    """In a pipe: what the program writes is no file. Returns the exit code, and what was said."""
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    program = [sys.executable, "-c", TAKES.format(mib=mib)]
    ended = subprocess.run([LUNAR, "run", "--dram", "32m", "--size", "1g", "--", *program], capture_output=True,
                           text=True, check=False, env={**os.environ, "PYTHONMALLOC": "malloc"}, preexec_fn=limited)
    return ended.returncode, ended.stderr


def file_size():
    for limit, mib, code, says in ((resource.RLIM_INFINITY, 80, 0, ""), (40 * MIB, 4, 0, ""),
                                   (40 * MIB, 80, 3, "limit on file sizes"),
                                   (64 << 10, 80, 3, "limit on file sizes")):
        got, said = with_file_size(limit, mib)
        lines = [line for line in said.splitlines() if "lunar" in line]
        if "userfaultfd" in said and got == 125 and os.geteuid() != 0:
            print("skip: userfaultfd: " + lines[0])
            raise SystemExit(77)
        if got != code or says not in said or len(lines) != (says != ""):
            fail(f"{mib} MiB with files of at most {limit}: exit code {got} where {code} is expected; "
                 f"it said {said[-2000:]}")


{"one-budget": one_budget, "no-files": no_files, "file-size": file_size}[CASE]()
