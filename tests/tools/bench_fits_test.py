#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench_fits_test.py LUNAR`: `lunar bench fits` leaves nothing behind: interrupted, it removes what it has made;
killed, the next run does."""
import glob
import os
import re
import signal
import subprocess
import sys
import time

LUNAR = os.path.abspath(sys.argv[1])
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


def fail(what):
    raise SystemExit(f"FAIL: {what}")


def mode():
    """The machine's: another one would be set for all."""
    try:
        with open(THP, encoding="ascii") as file:
            now = re.search(r"\[(\w+)\]", file.read())[1]
    except OSError:
        now = "never"
    if now == "never":
        print("skip: huge-pages: this machine has them switched off")
        raise SystemExit(77)
    return now


def end(number):
    """Starts a run, sends it the signal once it has made its directory. Exit code, what it said, and the directory."""
    words = [LUNAR, "bench", "fits", "--programs", "chase", "--huge-pages", mode()]
    run = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                           text=True, start_new_session=True)
    directory = f"/var/tmp/lunar-bench-{run.pid}"
    while not glob.glob(directory + "/*") and run.poll() is None:
        time.sleep(0.01)
    if run.poll() is not None:
        said = run.communicate()[1]
        if "another bench runs" in said:   # another program's: the machine has one at a time
            time.sleep(1)
            return end(number)
        fail(f"the bench ended by itself: {said}")
    if number == signal.SIGKILL:
        os.killpg(run.pid, number)
    else:
        os.kill(run.pid, number)
    said = run.communicate()[1]
    return run.returncode, said, directory


code, said, directory = end(signal.SIGINT)
if code != 130 or os.path.exists(directory):
    fail(f"interrupted: exit code {code}, {directory} is {'there' if os.path.exists(directory) else 'gone'}: {said}")
code, _, directory = end(signal.SIGKILL)
if not os.path.isdir(directory):
    fail(f"killed: {directory} should be there; nothing is proven")
_, said, later = end(signal.SIGINT)
for path in (directory, later):
    if os.path.exists(path):
        fail(f"{path} is there still: {said}")
print("interrupted, killed, swept")
