# SPDX-License-Identifier: Apache-2.0
"""Other programs keep all CPUs busy but the one that the server runs on.

The gate's fetchers keep off the server's CPU. Where all others are taken, a fetcher that is woken
waits there for a time slice, and the clients with it: on two CPUs next to one busy loop, GETs of
cold keys fell from 46,000 to 6,500 per second. So they have to come back to the server's CPU. Their
affinity is looked at, not the time. They have the lowest priority here: a server that is itself
short of CPU gives them so little to do that the kernel lets them run at once. """
import os
import subprocess

import pytest

from redis_clients import cold_readers, fill
from redis_server import wait_until


def fetchers(pid):
    """The threads that fetch."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as name:
            if name.read().strip() == "lunar-fetch":
                found.append(int(thread))
    return found


def test_fetchers_come_back(servers):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("cpus: one CPU only, which the fetchers share with the server in any case")
    server = servers.tiered(size="400mb")
    fill(server)
    os.sched_setaffinity(server.process.pid, cpus[:1])   # the main thread alone
    threads = fetchers(server.process.pid)
    assert threads, "no thread fetches"

    def off():
        return not any(cpus[0] in os.sched_getaffinity(thread) for thread in threads)
    with cold_readers(server, 8):
        wait_until("fetchers that keep off the server's CPU", off, every_s=0.001)
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, 19)
        for cpu in cpus[1:]:
            loop = subprocess.Popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"])
            servers.callback(loop.wait)
            servers.callback(loop.kill)
        wait_until("fetchers that may run next to the server", lambda: not off())
