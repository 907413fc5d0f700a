# SPDX-License-Identifier: Apache-2.0
"""redis_crowded_test MODULE: other programs keep all CPUs busy but the one that the server runs on.

The gate's fetchers keep off the server's CPU. Where all others are taken, a fetcher that is woken waits there for a
time slice, and the clients with it: on two CPUs next to one busy loop, GETs of cold keys fell from 46,000 to 6,500 per
second. So they have to come back to the server's CPU. Their affinity is looked at, not the time. They have the lowest
priority here: a server that is itself short of CPU gives them so little to do that the kernel lets them run at once.
"""
import os
import subprocess
import sys
import threading

import redis_bgsave_test
from redis_server import Server, Servers, scratch, wait_until

PATIENCE_S = 100
CLIENTS = 8


def fetchers(pid):
    """The threads that fetch."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as name:
            if name.read().strip() == "lunar-fetch":
                found.append(int(thread))
    return found


def main(module):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        print("skip: cpus: one CPU only, which the fetchers share with the server in any case")
        sys.exit(77)
    stop, problems = threading.Event(), []
    with scratch("crowded") as root, Servers() as servers:
        server = servers.add(Server(root, "--loadmodule", os.path.abspath(module), "dram", "16mb", "lun", root,
                                    "size", "400mb", patience_s=PATIENCE_S))
        servers.callback(stop.set)
        clients = [threading.Thread(target=redis_bgsave_test.ask_for_cold_keys, args=(server, stop, problems))
                   for _ in range(CLIENTS)]
        redis_bgsave_test.fill(server)
        os.sched_setaffinity(server.process.pid, cpus[:1])   # the main thread alone
        threads = fetchers(server.process.pid)
        assert threads, "no thread fetches"

        def off():
            return not any(cpus[0] in os.sched_getaffinity(thread) for thread in threads)
        for client in clients:
            client.start()
        wait_until("fetchers that keep off the server's CPU", off, PATIENCE_S, every_s=0.001)
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, 19)
        for cpu in cpus[1:]:
            loop = subprocess.Popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"])
            servers.callback(loop.wait)
            servers.callback(loop.kill)
        wait_until("fetchers that may run next to the server", lambda: not off(), PATIENCE_S)
        stop.set()
        for client in clients:
            client.join()
        assert not problems, f"wrong values of keys {problems[:5]}"


if __name__ == "__main__":
    main(*sys.argv[1:])
