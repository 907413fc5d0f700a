# SPDX-License-Identifier: Apache-2.0
"""redis_slow_replica_test MODULE SCENARIO: which replica a master ends when the stream that it keeps for one of them
takes LUN space that data needs.

  plain    two plain replicas, one of them stopped: the other keeps its connection, with all data, and the stopped one
           is ended before data is evicted for it
  tiered   the same with tiered replicas
  syncing  a replica that takes its full sync slowly keeps its connection while it makes progress; when it takes
           nothing any more, it is ended
"""
import os
import re
import signal
import sys
import time

from redis_server import Server as PlainServer, Servers, run_scenario, wait_until
from redis_space_test import MIB, SEED, space, store, value, with_server
from resp import Connection, Refused

PATIENCE_S = 60
KEYS = 3000
MASTER = ("--save", "", "--maxmemory-policy", "allkeys-lru", "--repl-diskless-sync-delay", "0",
          "--enable-debug-command", "yes", "--client-output-buffer-limit", "replica 0 0 0")


def write(server, client, batch):
    """400 KB of values over the keys that there are."""
    keys = range(batch * 100, batch * 100 + 100)
    client.send([("SET", f"fill:{key % KEYS}", value(key, 4000)) for key in keys])
    replies = [client.receive() for _ in keys]
    server.must_live("a replica that takes nothing")
    wrong = [str(r) for r in replies if isinstance(r, Refused) and not str(r).startswith("OOM ")]
    assert not wrong, f"{wrong[0]}\n{space(client)}"


def replicas(client):
    """Numbers of the connections of the master's replicas."""
    lines = client.ask("CLIENT", "LIST", "TYPE", "replica").decode().splitlines()
    return {int(re.match(r"id=(\d+)", line)[1]) for line in lines}


def ended(server):
    return re.findall(r"replica with client id (\d+) has not taken", server.text())


def follow(servers, server, client, directory, *further):
    """A replica of `server`, and the number of its connection there."""
    before = replicas(client)
    follower = servers.add(PlainServer(directory, "--repl-diskless-load", "disabled", *further))
    follower.client.ask("REPLICAOF", "127.0.0.1", str(server.port))
    wait_until("the link", lambda: follower.info("replication")["master_link_status"] == "up", PATIENCE_S)
    new = replicas(client) - before
    assert len(new) == 1, f"new connections of replicas: {new}"
    return follower, new.pop()


def two_replicas(server, directory, tier):
    client = server.connect()
    store(server, client, "fill", 0, KEYS, 4000)
    with Servers() as servers:
        (healthy, healthy_id), (stopped, stopped_id) = (
            follow(servers, server, client, there, *tier(there))
            for there in (os.path.join(directory, name) for name in ("healthy", "stopped")))
        syncs = int(client.info("stats")["sync_full"])
        stopped.process.send_signal(signal.SIGSTOP)
        batch = 0
        while stopped_id in replicas(client):
            assert batch < 500, f"{batch * 400 // 1000} MB, and the stopped replica is still there: {space(client)}"
            write(server, client, batch)
            batch += 1
            # what a loaded machine has not brought there yet is not what this test is about
            wait_until("the healthy replica takes its stream", lambda: lag(client, healthy_id) < 2 * MIB, PATIENCE_S)
        for batch in range(batch, batch + 50):
            write(server, client, batch)
            wait_until("the healthy replica takes its stream", lambda: lag(client, healthy_id) < 2 * MIB, PATIENCE_S)
        print(f"the stopped one was ended after {batch - 49} batches; {space(client)}")
        assert ended(server) == [str(stopped_id)], f"ended: {ended(server)}, the stopped one is {stopped_id}"
        assert healthy_id in replicas(client), "the healthy replica has lost its connection"
        assert int(client.info("stats")["sync_full"]) == syncs, "there were further full syncs"
        wait_until("the healthy replica has all", lambda: healthy.info("replication").get("slave_repl_offset")
                   == client.info("replication")["master_repl_offset"], PATIENCE_S)
        assert healthy.digest() == client.ask("DEBUG", "DIGEST"), "master and replica differ"


def lag(client, number):
    for line in client.ask("CLIENT", "LIST", "TYPE", "replica").decode().splitlines():
        if line.startswith(f"id={number} "):
            return int(re.search(r" omem=(\d+)", line)[1])
    return 0


def plain(directory, module):
    with_server(directory, module, lambda s: two_replicas(s, directory, lambda there: ()), *MASTER)


def tiered(directory, module):
    def tier(there):
        return "--loadmodule", os.path.abspath(module), "dram", "16mb", "lun", there, "size", "200mb"
    with_server(directory, module, lambda s: two_replicas(s, directory, tier), *MASTER)


class SlowSync:
    """A replica that asks for a full sync, and takes what is sent when it is told to."""

    def __init__(self, port):
        self.link = Connection(port, PATIENCE_S)
        self.link.ask("REPLCONF", "capa", "eof", "capa", "psync2")
        self.link.socket.sendall(b"PSYNC ? -1\r\n")
        self.taken = 0

    def take(self, most):
        self.link.socket.setblocking(False)
        try:
            data = self.link.socket.recv(most)
            self.taken += len(data)
        except BlockingIOError:
            pass


def slow_sync(server):
    client = server.connect()
    store(server, client, "fill", 0, KEYS, 4000)
    slow = SlowSync(server.port)
    wait_until("the sync begins", lambda: len(replicas(client)) == 1, PATIENCE_S)
    number = replicas(client).pop()
    batch = pressed = 0
    while pressed < 15:      # looks of the server's cron with too long a stream
        assert batch < 150, f"the stream never took too much: {space(client)}"
        write(server, client, batch)
        batch += 1
        slow.take(1000)
        if lag(client, number) > 7 * MIB and client.info("lunar")["lunar_space_state"] in ("held", "full"):
            pressed += 1
            time.sleep(0.1)
        assert number in replicas(client), f"a replica that takes its sync was ended: {space(client)}"
    print(f"{slow.taken} bytes taken; {space(client)}")
    begun = time.monotonic()
    while number in replicas(client):
        assert time.monotonic() < begun + PATIENCE_S, f"a replica that takes nothing stays: {space(client)}"
        if lag(client, number) < 20 * MIB:
            write(server, client, batch)
            batch += 1
        time.sleep(0.1)
    print(f"ended {time.monotonic() - begun:.1f} s after the last byte")
    assert ended(server) == [str(number)]


def syncing(directory, module):
    with_server(directory, module, slow_sync, *MASTER, "--repl-diskless-sync", "no", "--repl-timeout", "600",
                size="192mb")


if __name__ == "__main__":
    print(f"seed {SEED}")
    sys.exit(run_scenario("slow-replica", globals(), sys.argv[2], sys.argv[1]))
