# SPDX-License-Identifier: Apache-2.0
"""`lunar bench NAME` for its tests. A machine runs one bench at a time, so a test waits for the end
of another program's bench."""
import json
import os
import subprocess
import time

from build_tree import LUNAR


def start(bench, directory, *words):
    place = [] if "--lun" in words else ["--lun", directory]
    return subprocess.Popen([LUNAR, "bench", bench, *place, *words], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def run(bench, directory, *words):
    """(pid, exit code, standard output, standard error)"""
    while True:
        child = start(bench, directory, *words)
        out, err = child.communicate()
        if "another bench runs" not in err:
            return child.pid, child.returncode, out, err
        time.sleep(1)


def begin(bench, directory, *words, seen):
    """One that has said `seen`, and what it said before."""
    while True:
        child, said = start(bench, directory, *words), ""
        for line in iter(child.stderr.readline, ""):
            said += line
            if seen in line:
                return child, said
        child.communicate()
        assert "another bench runs" in said, f"no runs: {said}"
        time.sleep(1)


def processes_of(pid):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                if int(name) != pid and f"lunar-bench-{pid}-" in line.read():
                    yield f"process {name}"
        except OSError:
            pass


def traces(pid, directory):
    """Files that a run of process `pid` has left."""
    found = [os.path.join(directory, name) for name in os.listdir(directory)]
    for place in ("/var/tmp", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        if os.path.isdir(place):
            found += [os.path.join(place, name) for name in os.listdir(place)
                      if f"{name}-".startswith(f"lunar-bench-{pid}-")]
    with open("/proc/swaps", encoding="utf-8") as swaps:
        found += [line.split()[0] for line in swaps if f"lunar-bench-{pid}" in line]
    return found + list(processes_of(pid))


def check_gone(pid, directory):
    assert traces(pid, directory) == [], "left behind"


def report_of(bench, directory, *words, code=0):
    """The report, and standard error."""
    pid, ended, out, err = run(bench, directory, "--json", *words)
    check_gone(pid, directory)
    assert ended == code and out.startswith("{"), f"exit code {ended}: {out[:500]}\n{err[-3000:]}"
    report = json.loads(out)
    assert report["bench"] == bench and report["host"]["cpus"] > 0, "bench or host is missing"
    return report, err
