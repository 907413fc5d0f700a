# SPDX-License-Identifier: Apache-2.0
"""Which replica a master ends when the stream that it keeps for one of them takes LUN space that
data needs."""
import re
import signal
import time

import pytest

from redis_server import MIB, Refused, out_of_memory, sets, value, wait_until

KEYS = 3000
MASTER = ("--maxmemory-policy", "allkeys-lru", "--client-output-buffer-limit",
          "replica 0 0 0")


def write(server, batch):
    """400 KB of values over the keys that there are."""
    keys = range(batch * 100, batch * 100 + 100)
    replies = server.client.all_of([("SET", f"fill:{key % KEYS}", value(key, 4000))
                                    for key in keys])
    assert all(out_of_memory(reply) for reply in replies if isinstance(reply, Refused))


def replicas(server):
    """Bytes that wait for each of the master's replicas, by the numbers of their connections."""
    lines = server.client.ask("CLIENT", "LIST", "TYPE", "replica").decode().splitlines()
    return {int(re.match(r"id=(\d+)", line)[1]): int(re.search(r" omem=(\d+)", line)[1])
            for line in lines}


def ended(server):
    return [int(number) for number in re.findall(r"replica with client id (\d+) has not taken",
                                                 server.text())]


def follow(server, follower):
    """The number of its connection there."""
    before = replicas(server)
    follower.follow(server)
    new = set(replicas(server)) - set(before)
    assert len(new) == 1
    return new.pop()


@pytest.mark.parametrize("kind", ["plain", "tiered"])
def test_stopped_replica(servers, kind):
    """One of two is stopped: the other keeps its connection, with all data, and the stopped one is
    ended before data is evicted for it."""
    server = servers.tiered(*MASTER, name="master", size="96mb")
    server.pipeline(sets("fill", range(KEYS), 4000))
    options = {"size": "200mb"} if kind == "tiered" else {}
    healthy, stopped = (getattr(servers, kind)("--repl-diskless-load", "disabled", name=name,
                                               **options)
                        for name in ("healthy", "stopped"))
    healthy_id, stopped_id = follow(server, healthy), follow(server, stopped)
    syncs = server.info("stats")["sync_full"]
    stopped.process.send_signal(signal.SIGSTOP)
    batch, last = 0, None
    while last is None or batch < last:
        write(server, batch)
        # what a loaded machine has not brought there yet is not what this test is about
        wait_until("the healthy replica takes its stream",
                   lambda: replicas(server).get(healthy_id, 0) < 2 * MIB)
        batch += 1
        assert batch < 550, "the stopped replica is still there"
        if last is None and stopped_id not in replicas(server):
            last = batch + 50
    assert ended(server) == [stopped_id]
    assert healthy_id in replicas(server), "the healthy replica has lost its connection"
    assert server.info("stats")["sync_full"] == syncs, "there were further full syncs"
    healthy.has_all_of(server)


class SlowSync:
    """A replica that asks for a full sync, and takes what is sent when it is told to."""

    def __init__(self, server):
        self.link = server.connect()
        self.link.ask("REPLCONF", "capa", "eof", "capa", "psync2")
        self.link.socket.sendall(b"PSYNC ? -1\r\n")
        self.link.socket.setblocking(False)

    def take(self, most):
        try:
            self.link.socket.recv(most)
        except BlockingIOError:
            pass


def test_slow_sync(servers):
    """A replica that takes its full sync slowly keeps its connection while it makes progress; when
    it takes nothing any more, it is ended."""
    server = servers.tiered(*MASTER, "--repl-diskless-sync", "no", "--repl-timeout", "600",
                            size="192mb")
    server.pipeline(sets("fill", range(KEYS), 4000))
    slow = SlowSync(server)
    wait_until("the sync begins", lambda: len(replicas(server)) == 1)
    number = next(iter(replicas(server)))
    batch = pressed = 0
    while pressed < 15:      # looks of the server's cron with too long a stream
        assert batch < 150, "the stream never took too much"
        write(server, batch)
        batch += 1
        slow.take(1000)
        waits = replicas(server)
        assert number in waits, "a replica that takes its sync was ended"
        if waits[number] > 7 * MIB and server.info("lunar")["lunar_space_state"] in ("held",
            "full"):
            pressed += 1
            time.sleep(0.1)

    def gone():
        nonlocal batch
        if (waits := replicas(server).get(number)) is not None and waits < 20 * MIB:
            write(server, batch)
            batch += 1
        return waits is None
    wait_until("a replica that takes nothing is ended", gone, every_s=0.1)
    assert ended(server) == [number]
