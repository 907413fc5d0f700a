# SPDX-License-Identifier: Apache-2.0
"""The server's own latency monitor shows what cold data costs: `lunar-fault` when the main thread
waited for a page, `lunar-stall` when it waited for many in one turn, `lunar-hold` when a client
waited at the gate; only above latency-monitor-threshold, and nothing while that is 0. The LUN is
one that takes its time."""
import time

from redis_server import sets, value, wait_until

KEYS, SIZE, READS = 12_000, 3000, 200
SLOW_MS, MANY_MS = 3, 40   # thresholds: of one read, of many pages


class Monitor:
    def __init__(self, servers):
        self.client = servers.tiered(lun="sim:160m,latency_us=4000", size="128mb",
                                     forks="no").client
        self.client.pipeline(sets("k", range(KEYS), SIZE))

    def read(self, start):
        """Keys that are cold, one after the other."""
        for n in range(READS):
            key = (start + n * 97) % KEYS
            assert self.client.ask("GET", f"k:{key}") == value(key, SIZE)

    def configure(self, threshold, gate):
        self.client.ask("LATENCY", "RESET")
        self.client.ask("CONFIG", "SET", "lunar.gate", gate)
        self.client.ask("CONFIG", "SET", "latency-monitor-threshold", threshold)

    def latest(self):
        return {event[0].decode() for event in self.client.ask("LATENCY", "LATEST")
                if event[0].startswith(b"lunar-")}

    def after_cron(self):
        time.sleep(0.4)
        return self.latest()


def test_latency(servers):
    monitor = Monitor(servers)
    monitor.read(0)
    assert monitor.after_cron() == set(), "the monitor is off"
    monitor.configure(SLOW_MS, "no")
    monitor.read(20)
    wait_until("a fault", lambda: "lunar-fault" in monitor.latest(), 10)
    assert "lunar-hold" not in monitor.latest(), "a hold without the gate"
    assert monitor.client.ask("LATENCY", "HISTORY", "lunar-fault")
    # One command, many pages: each is short.
    monitor.configure(MANY_MS, "no")
    monitor.client.ask("MGET", *(f"k:{(70 + n * 131) % KEYS}" for n in range(40)))
    wait_until("a stall", lambda: "lunar-stall" in monitor.latest(), 10)
    monitor.configure(SLOW_MS, "yes")
    monitor.read(40)
    wait_until("a hold", lambda: "lunar-hold" in monitor.latest(), 10)
    monitor.configure(60_000, "yes")
    monitor.read(60)
    assert monitor.after_cron() == set(), "nothing took a minute"
