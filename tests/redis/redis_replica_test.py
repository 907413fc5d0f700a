# SPDX-License-Identifier: Apache-2.0
"""A tiered replica follows a tiered master, both with a quarter of the data in DRAM."""
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redis_server import NOISE, PATIENCE_S, SEED, same_data, sets

SIZE = 1000
FAULTS_MAX = 0.3       # of the replica's main thread, an operation
KINDS = ["SETRANGE"] * 20 + ["SET"] * 10 + ["HSET", "MSET", "DEL", "APPEND", "APPEND"] * 2 + ["BIG"]


def part(key, size):
    at = key * 7919 % (len(NOISE) - size)
    return NOISE[at:at + size]


def member(servers, name):
    return servers.tiered("--repl-backlog-size", "8mb", "--client-output-buffer-limit",
                          "replica 0 0 0", name=name, size="1gb")


class Writer:
    """Uniform writes to `keys` keys, a pipeline at a time, on a connection of its own."""

    def __init__(self, master, number, keys, operations, kinds):
        self.master, self.random = master, random.Random(SEED * 100 + number)
        self.keys, self.left, self.kinds = keys, operations, kinds

    def word(self):
        key, kind = self.random.randrange(self.keys), self.random.choice(self.kinds)
        if kind == "SETRANGE":
            at = str(self.random.randrange(SIZE - 40))
            return ("SETRANGE", f"key:{key}", at, part(self.random.randrange(1 << 20), 32))
        if kind == "SET":
            return ("SET", f"key:{key}", part(self.random.randrange(1 << 20), SIZE))
        if kind == "HSET":
            return ("HSET", f"hash:{key % 200}", f"field:{key % 300}", part(key, 100))
        if kind == "BIG":
            return ("SET", f"big:{key % 4}",
                    part(key, self.random.choice([70_000, 300_000, 1_300_000])))
        if kind == "MSET":
            return ("MSET",
                    *(w for i in range(40)
                      for w in (f"key:{(key + i * 977) % self.keys}", part(key + i, 200))))
        if kind == "DEL":
            return ("DEL", f"key:{key}")
        return ("APPEND", f"list:{key % 999}", part(key, 20))

    def work(self):
        client = self.master.connect()
        while self.left > 0:
            words = [self.word() for _ in range(min(64, self.left))]
            if "BIG" in self.kinds and self.random.randrange(4) == 0:
                words = [("SELECT", "3"), ("MULTI",), *words, ("EXEC",), ("SELECT", "0")]
            client.pipeline(words)
            self.left -= 64
        client.close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as threads:
        yield threads


def write(pool, master, keys, operations, kinds):
    return [pool.submit(Writer(master, i, keys, operations // 8, kinds).work) for i in range(8)]


def joined(writers):
    for writer in writers:
        writer.result(PATIENCE_S)


def caught_up(master, replica):
    replica.catch_up(master)
    if master.info("replication")["role"] == "master":   # a replica refuses it
        assert master.client.ask("WAIT", "1", str(PATIENCE_S * 1000)) == 1


def equal(master, replica):
    caught_up(master, replica)
    replica.has_all_of(master)


# A replica of the replica: its stream is the one that the first reads.
CHAIN = ["replica", "replica-of-it"]


@pytest.mark.parametrize("keys, operations, names", [
    pytest.param(48_000, 20_000, CHAIN[:1], id="one"),
    pytest.param(36_000, 8_000, CHAIN, id="chain"),
    pytest.param(60_000, 40_000, CHAIN[:1], id="one-long", marks=pytest.mark.slow),
    pytest.param(60_000, 40_000, CHAIN, id="chain-long", marks=pytest.mark.slow)])
def test_stream(pool, servers, keys, operations, names):
    """The last replica has all of it soon after the master, its main thread seldom waits for the
    LUN itself, and its own clients are answered meanwhile."""
    line = [member(servers, name) for name in ["master", *names]]
    master, replica = line[0], line[-1]
    master.pipeline(sets("key", range(keys), SIZE))
    for above, below in zip(line, line[1:]):
        below.follow(above)
        caught_up(above, below)
    for kind in ("SETRANGE", "SET"):
        cold = replica.figure("cold_faults")
        writers = write(pool, master, keys, operations, [kind])
        while not all(writer.done() for writer in writers):
            assert replica.client.ask("PING") == b"PONG"
            time.sleep(0.01)
        joined(writers)
        for above, below in zip(line, line[1:]):
            caught_up(above, below)
        assert (replica.figure("cold_faults") - cold) / operations <= FAULTS_MAX, (
            f"{kind}: cold faults an operation")
    for above, below in zip(line, line[1:]):
        below.catch_up(above)
    same_data(*line)


@pytest.mark.slow
def test_faults(pool, servers):
    """Links killed on either side, commands larger than what is read ahead, transactions, other
    databases, and kill -9 of the replica and of the master: equal data, and a partial resync where
    a plain server makes one."""
    keys, master, replica = 40_000, member(servers, "master"), member(servers, "replica")
    master.pipeline(sets("key", range(keys), SIZE))
    replica.follow(master)
    partial = int(master.info("stats")["sync_partial_ok"])
    writers = write(pool, master, keys, 9_600, KINDS)
    for i in range(6):
        time.sleep(0.4)
        if i % 2 == 0:
            replica.client.ask("CLIENT", "KILL", "TYPE", "master")
        else:
            master.client.ask("CLIENT", "KILL", "TYPE", "replica")
    joined(writers)
    equal(master, replica)
    assert int(master.info("stats")["sync_partial_ok"]) > partial, "no partial resync"

    writers = write(pool, master, keys, 6_400, KINDS)
    time.sleep(0.5)
    replica.end()
    replica.start()
    replica.follow(master)
    joined(writers)
    equal(master, replica)

    master.client.ask("SAVE")
    writers = write(pool, master, keys, 6_400, KINDS)
    time.sleep(0.5)
    master.end()
    for writer in writers:
        writer.exception(PATIENCE_S)   # they have lost it
    master.start()
    replica.wait_link()
    joined(write(pool, master, keys, 3_200, KINDS))
    equal(master, replica)
    replica.client.ask("REPLICAOF", "NO", "ONE")
    assert replica.client.ask("SET", "own", "one") == b"OK"


def test_over_keys(servers):
    """A reload, a full sync and dumps of another server replace keys that are cold."""
    keys, master, replica = 20_000, member(servers, "master"), member(servers, "replica")
    master.pipeline(sets("key", range(keys), SIZE))
    master.pipeline([("HSET", f"hash:{key}",
                      *(word for n in range(40) for word in (f"f{n}", part(key + n, 60))))
                     for key in range(300)])
    digest = master.digest()
    for options in (["NOFLUSH", "MERGE"], []):
        assert master.client.ask("DEBUG", "RELOAD", *options) == b"OK"
        assert master.digest() == digest
    for load in ("disabled", "swapdb"):
        if replica.client.refused("CONFIG", "SET", "repl-diskless-load", load):
            continue
        replica.pipeline([("SET", f"key:{key}", part(key + 1, SIZE))
                          for key in range(keys // 2, keys)])
        replica.pipeline([("SET", f"own:{key}", part(key, SIZE)) for key in range(keys // 2)])
        replica.follow(master)
        equal(master, replica)
        replica.client.ask("REPLICAOF", "NO", "ONE")

    count = 4000
    some = [f"key:{key * 7919 % keys}" for key in range(count)]
    dumps = master.pipeline([("DUMP", key) for key in some])
    replica.pipeline([("SET", key, "x" * SIZE) for key in some])
    # all that was written has left DRAM
    replica.pipeline([("STRLEN", f"key:{key}") for key in range(keys)])
    replica.client.ask("CONFIG", "SET", "lunar.gate-hold-ms", "2000")   # of a busy machine
    before = replica.figure("main_cold_faults")
    replica.pipeline([("RESTORE", key, "0", dump, "REPLACE") for key, dump in zip(some, dumps)])
    each = (replica.figure("main_cold_faults") - before) / count
    same_data(master, replica)
    assert each <= 0.1, f"{each:.3f} faults of the main thread for a RESTORE over a cold key"
