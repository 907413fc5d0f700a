# SPDX-License-Identifier: Apache-2.0
"""`lunar bench fits` leaves nothing behind: interrupted, it removes what it has made; killed, the
next run does."""
import glob
import os
import re
import signal
import subprocess
import time

import pytest

from build_tree import LUNAR

THP = "/sys/kernel/mm/transparent_hugepage/enabled"


def mode():
    """The machine's: another one would be set for all."""
    if not os.path.exists(THP):
        pytest.skip("huge-pages: this kernel has none")
    with open(THP, encoding="ascii") as file:
        now = re.search(r"\[(\w+)\]", file.read())[1]
    if now == "never":
        pytest.skip("huge-pages: this machine has them switched off")
    return now


def begun():
    """A run that has made its directory, and that. The machine has one bench at a time: another
    program's is waited for."""
    words = [LUNAR, "bench", "fits", "--programs", "chase", "--huge-pages", mode()]
    while True:
        run = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, start_new_session=True)
        directory = f"/var/tmp/lunar-bench-{run.pid}"
        while not glob.glob(directory + "/*") and run.poll() is None:
            time.sleep(0.01)
        if run.poll() is None:
            return run, directory
        assert "another bench runs" in run.communicate()[1], "the bench ended by itself"
        time.sleep(1)


def end(number):
    """Sends a run the signal. Exit code, what it said, and its directory."""
    run, directory = begun()
    if number == signal.SIGKILL:
        os.killpg(run.pid, number)
    else:
        os.kill(run.pid, number)
    said = run.communicate()[1]
    return run.returncode, said, directory


def test_nothing_is_left():
    code, said, directory = end(signal.SIGINT)
    assert code == 130 and not os.path.exists(directory), said
    _, _, directory = end(signal.SIGKILL)
    assert os.path.isdir(directory), "nothing is proven"
    _, said, later = end(signal.SIGINT)
    assert not os.path.exists(directory) and not os.path.exists(later), said
