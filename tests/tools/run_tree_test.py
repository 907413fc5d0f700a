# SPDX-License-Identifier: Apache-2.0
"""`lunar run` of a whole tree of processes, and the files that remain."""
import os
import re
import resource
import signal
import subprocess
import sys

import pytest

from build_tree import LUNAR

MIB = 1 << 20
# Takes memory, says so, and gives it up when it is told to.
HOLDS = ("import sys\nheld = bytearray(b'x') * ({mib} << 20)\nprint('held', flush=True)\n"
         "sys.stdin.readline()\n")
# The same by `count` programs of its own, which each begin anew by exec; says their process ids.
PARENT = ("import subprocess, sys\n"
          "how = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
          "children = [subprocess.Popen([sys.executable, '-c', sys.argv[1]], **how) for _ in "
          "range({count})]\n"
          "said = [child.stdout.readline().strip() for child in children]\n"
          "print(*(child.pid for child in children), *said, flush=True)\n"
          "sys.stdin.readline()\n"
          "for child in children: child.communicate('go\\n')\n"
          "sys.exit(max(child.returncode for child in children))\n")


def skip_without_right(said):
    if "userfaultfd" in said and os.geteuid() != 0:
        pytest.skip("userfaultfd: " + said.splitlines()[0])


def start(dram, mib, count, *flags):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("LUNAR_")}
    program = [sys.executable, "-c", PARENT.format(count=count), HOLDS.format(mib=mib)]
    flags = ["--dram", dram, "--size", "1g", *flags]
    tree = subprocess.Popen([LUNAR, "run", *flags, "--", *program], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True,
                            env={**environment, "PYTHONMALLOC": "malloc"})
    words = tree.stdout.readline().split()
    if words[count:] != ["held"] * count:
        tree.kill()
        error = tree.communicate()[1]
        skip_without_right(error)
        pytest.fail(f"it said {words}: {error[-2000:]}")
    return tree, [tree.pid, *map(int, words[:count])]


def end(tree):
    error = tree.communicate("go\n")[1]
    assert tree.returncode == 0, error


def anonymous(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return int(re.search(r"Pss_Anon:\s*(\d+) kB", file.read())[1]) * 1024


def test_one_budget():
    """Four programs of 40 MiB under 64: one of them alone stays within it, and four budgets would
    hold all of the 160 MiB."""
    small, pids = start("64m", 1, 4)
    idle = sum(map(anonymous, pids))
    end(small)
    tree, pids = start("64m", 40, 4)
    held = sum(map(anonymous, pids))
    print(f"{held / MIB:.1f} MiB, of which {idle / MIB:.1f} MiB are there without the data")
    # each process's own: tools/README.md, "What `--dram` covers"
    assert held - idle <= 64 * MIB + 5 * MIB // 2
    assert held >= 48 * MIB, "nothing is proven"
    end(tree)


def named_files(pids, directory):
    """The files with a name that these processes have open in the directory. The pager's threads
    have descriptors of their own."""
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


@pytest.mark.parametrize("own", [False, True], ids=["default", "own"])
def test_no_files(directory, own):
    """With the default LUN, or in a directory of our own, nothing lies there by name: not while a
    tree runs, and not after kill -9."""
    place = directory if own else "/var/tmp"
    before = {entry.inode() for entry in os.scandir(place)}
    tree, pids = start("32m", 40, 2, *(["--lun", directory] if own else []))
    unlinked, named = named_files(pids, place)
    assert not named
    assert unlinked, "no process has a LUN there: nothing is proven"
    os.killpg(tree.pid, signal.SIGKILL)
    tree.communicate()
    new = [entry for entry in os.scandir(place) if entry.inode() not in before]
    assert not [entry.name for entry in new if own or ("lunar" in entry.name and entry.is_file())]


# Takes memory; exit code 3 when it gets none.
TAKES = ("import sys\n"
         "try:\n"
         "  held = bytearray(b'x') * ({mib} << 20)\n"
         "except MemoryError:\n"
         "  sys.exit(3)\n"
         "sys.exit(held.count(b'x') != {mib} << 20)\n")


@pytest.mark.parametrize("limit, mib, code, says", [
    (resource.RLIM_INFINITY, 80, 0, ""), (40 * MIB, 4, 0, ""),
    (40 * MIB, 80, 3, "limit on file sizes"),
    (64 << 10, 80, 3, "limit on file sizes")])
def test_file_size(limit, mib, code, says):
    """A limit on file sizes (ulimit -f) ends no program: one that needs little runs, one that needs
    more gets no memory, and one line. (In a pipe: what the program writes is no file.)"""
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    program = [sys.executable, "-c", TAKES.format(mib=mib)]
    ended = subprocess.run([LUNAR, "run", "--dram", "32m", "--size", "1g", "--", *program],
                           capture_output=True,
                           text=True, check=False, env={**os.environ, "PYTHONMALLOC": "malloc"},
                           preexec_fn=limited)
    if ended.returncode == 125:
        skip_without_right(ended.stderr)
    assert ended.returncode == code, ended.stderr
    assert says in ended.stderr
    assert len([line for line in ended.stderr.splitlines() if "lunar" in line]) == (says != "")
