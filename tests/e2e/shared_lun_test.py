# SPDX-License-Identifier: Apache-2.0
"""Processes that share one formatted LUN (a file), and stripes. Each checks every page of its own.
Some are killed: their space is taken back, that of the living is not; a daemon that forked twice
and closed everything keeps its own. At the end the LUN checks clean and is empty."""
import json
import os
import signal
import subprocess

from build_tree import BUILD, LUNAR
from waiting import wait_until

STAMPED = os.path.join(BUILD, "tests/e2e/workload-stamped")
MIB = 1 << 20


def file_of(directory, name, mib):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, mib * MIB)
    return path


def start(luns, seed, mib, passes, *further, size=None):
    flags = [word for lun in luns for word in ("--lun", lun)]
    words = ["--dram", "16m", "--size", size or f"{3 * mib}m", *flags, "--", STAMPED, str(seed),
             str(mib), str(passes)]
    return subprocess.Popen([LUNAR, "run", *words, *further], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def sound(child, what):
    output = child.communicate()[0]
    assert child.returncode == 0 and "sound" in output, f"{what}: {output}"


def lunar(*words):
    return subprocess.run([LUNAR, "lun", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)


def check_clean(lun):
    result = lunar("check", lun)
    assert result.returncode == 0, result.stdout


def scratch_luns(lun):
    result = lunar("list", "--json", lun)
    assert result.returncode == 0, result.stdout
    entries = json.loads(result.stdout)["devices"][0]["virtual_luns"]
    return [entry for entry in entries if entry["scratch"] and entry["in_use"]]


def test_together(directory):
    """Three at a time on a LUN that has room for them only if the killed one's space comes back."""
    lun = file_of(directory, "shared", 384)
    victim = start([lun], 1, 48, 10000)
    assert victim.stdout.readline() == "filled\n"
    others = [start([lun], seed, 36, 2) for seed in (2, 3)]
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    for child in others:
        sound(child, "next to a killed one")
    sound(start([lun], 4, 72, 1), "in the space of the killed one")
    check_clean(lun)
    # the kernel ends the rings of a process, and with them its locks, some time after it
    wait_until("scratch LUNs are left", lambda: not scratch_luns(lun), every_s=0.1)


def test_daemon(directory):
    lun = file_of(directory, "daemon", 512)
    report = os.path.join(directory, "report")
    parent = start([lun], 5, 96, 1, report, size="304m")
    parent.wait()
    parent.stdout.close()
    while not os.path.exists(report):
        sound(start([lun], 6, 32, 1), "next to a daemon")   # takes what has no owner
    with open(report, encoding="utf-8") as file:
        assert file.read() == "sound\n"
    check_clean(lun)


def test_plain(directory):
    """An empty file is one tree's: its processes share it, and no other process has it while one of
    them lives, be it a daemon that closed everything before it forked."""
    lun = os.path.join(directory, "plain")
    open(lun, "wb").close()
    report = os.path.join(directory, "report-plain")
    # large: the LUN is open before the forks
    parent = start([lun], 11, 64, 2, report, "close-first", size="512m")
    parent.wait()
    parent.stdout.close()
    refused = 0
    while not os.path.exists(report):
        foreign = start([lun], 12, 16, 1)
        output = foreign.communicate()[0]
        if foreign.returncode == 125 and "in use" in output:
            refused += 1
        else:
            assert os.path.exists(report), (
                f"another program took the LUN of a living daemon: {output}")
    with open(report, encoding="utf-8") as file:
        assert file.read() == "sound\n"
    assert refused, "the daemon was done before any process could be refused; give it more passes"


def test_composed(directory):
    first, second, third = (file_of(directory, name, 192) for name in ("a", "b", "c"))
    sound(start([first, second], 7, 48, 1), "on a stripe of two --lun")
    sound(start([f"stripe:{third};{file_of(directory, 'd', 192)}"], 8, 48, 1),
          "on a labelled stripe")
    created = lunar("create", f"{first}#cold", "--size", "144m", "--yes")
    assert created.returncode == 0, created.stdout
    sound(start([f"{first}#cold"], 10, 32, 1, size="64m"), "on a named LUN")
    check_clean(first)
