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
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

DRAM, VALUES = "16m", 16384      # 64 MiB of values: four times the DRAM
RATIO_MAX, ROUNDS = 1.5, 8
SERVER = os.environ.get("LUNAR_REDIS_SERVER") or "/usr/bin/redis-server"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connect(server, port):
    for _ in range(600):
        if server.poll() is not None:
            return None
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.05)
    return None


def fill(client):
    replies = client.makefile("rb")
    for first in range(0, VALUES, 128):
        client.sendall(b"".join(b"*3\r\n$3\r\nSET\r\n$9\r\nk%08d\r\n$4000\r\n%s\r\n" % (i, os.urandom(4000))
                                for i in range(first, first + 128)))
        for _ in range(128):
            answer = replies.readline()
            assert answer == b"+OK\r\n", answer


def crash(name, prefix, further):
    """Seconds until it has died, and bytes that its memory test went through."""
    directory = tempfile.mkdtemp(prefix="lunar-crash-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    port, log = free_port(), os.path.join(directory, "log")
    command = prefix + [SERVER, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory,
                        "--enable-debug-command", "yes"] + [word.replace("DIRECTORY", directory) for word in further]
    server = None
    try:
        with open(log, "wb") as out:
            command = [word.replace("DIRECTORY", directory) for word in command]
            server = subprocess.Popen(command, stdout=out, stderr=out)
        client = connect(server, port)
        if client is None:
            text = open(log, errors="replace").read()
            if "userfaultfd" in text and os.geteuid() != 0:
                print("skip: userfaultfd: " + text.splitlines()[-1])
                sys.exit(77)
            sys.exit(f"{name}: the server did not start:\n{text}")
        fill(client)
        start = time.monotonic()
        client.sendall(b"DEBUG SEGFAULT\r\n")
        status = server.wait()
        seconds = time.monotonic() - start
        text = open(log, errors="replace").read()
        tested = sum(int(n) for n in re.findall(r"memory region [0-9a-f]+ \((\d+) bytes\)", text))
        assert status == -signal.SIGSEGV, f"{name}: it ended with {status}:\n{text[-2000:]}"
        assert "REDIS BUG REPORT START" in text and tested > VALUES * 4000, (
            f"{name}: no report, or {tested} bytes tested:\n{text[-2000:]}")
        print(f"{name:7} died after {seconds:.1f} s, {tested >> 20} MiB tested, {seconds / tested * 2**30:.1f} s a GiB")
        return seconds, tested
    finally:
        if server is not None and server.poll() is None:
            server.kill()
            server.wait()
        shutil.rmtree(directory, ignore_errors=True)


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
