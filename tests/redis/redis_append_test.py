# SPDX-License-Identifier: Apache-2.0
"""An append-only file loads at about the pace of a plain server.

A plain server writes the file (a dump, or commands, first; then SETRANGE, SET, hashes, several
databases over all of it); a tiered one, a quarter of whose data fits in DRAM, loads it. Its main
thread seldom faults, the gate's fetchers read ahead of its commands, and the data is the same.
"""
import random

import pytest

from redis_server import NOISE, PATIENCE_S, SEED, wait_until

KEYS, SIZE, WRITES = 48_000, 1000, 30_000
FAULTS_MAX = 0.4       # of the main thread, a write over a key that is there
COLD_MAX = 0.02        # of these, those that wait for the LUN
# reads that the fetchers were asked for, a write: of four keys three are cold
AHEAD_MIN = 0.5
APPENDING = ("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0",
             "--aof-timestamp-enabled", "yes")


def rewriting(server):
    persistence = server.info("persistence")
    return "1" in (persistence["aof_rewrite_in_progress"], persistence["aof_rewrite_scheduled"])


def writes(pick):
    def noise(size):
        at = pick.randrange(len(NOISE) - size)
        return NOISE[at:at + size]

    def random_hash():
        return f"hash:{pick.randrange(500)}"

    yield "SELECT", "2"
    for i in range(500):
        yield ("HSET", f"hash:{i}",
               *(part for j in range(20) for part in (f"field:{j}", noise(100))))
    yield "SELECT", "0"
    for i in range(WRITES):
        key = f"key:{pick.randrange(KEYS)}"
        if i % 4:
            yield "SETRANGE", key, str(pick.randrange(SIZE - 20)), noise(16)
        else:
            yield "SET", key, noise(SIZE)
        if i % 5000 == 0:
            yield from [("SELECT", "2"), ("HSET", random_hash(), "field:3", noise(50)),
                        ("MULTI",), ("DEL", random_hash()), ("EXEC",),
                        ("SELECT", "0"), ("SET", f"large:{i}", noise(900_000))]


@pytest.mark.parametrize("first", ["commands", "dump"])
@pytest.mark.parametrize("how", ["tiered", pytest.param("run", marks=pytest.mark.slow)])
def test_load(servers, how, first):
    server = servers.plain(*APPENDING, name=how)
    server.pipeline([("SET", f"key:{key}", NOISE[key:key + SIZE]) for key in range(KEYS)])
    if first == "dump":
        server.client.ask("BGREWRITEAOF")
        wait_until("the rewrite", lambda: not rewriting(server))
    server.pipeline(list(writes(random.Random(SEED))))
    digest = server.digest()
    server.client.send([("SHUTDOWN", "NOSAVE")])
    server.process.wait(PATIENCE_S)
    server.start()
    plain_s = server.took
    server.end()

    server = getattr(servers, how)(*APPENDING, name=how, size="500mb" if how == "tiered"
                                   else "500m")
    faults = server.faults() / WRITES   # before those of the digest
    print(f"plain {plain_s:.2f} s, tiered {server.took:.2f} s; a later write: {faults:.3f} faults")
    cold, ahead = 0, AHEAD_MIN
    if how == "tiered":
        cold, ahead = (server.figure(name) / WRITES
                       for name in ("main_cold_faults", "overlapped_reads"))
        print(f"{cold:.4f} of them cold, {ahead:.2f} reads ahead")
        assert server.figure("gate_commands") < WRITES // 2, "only commands of clients count"
    assert server.digest() == digest
    assert faults <= FAULTS_MAX
    assert cold <= COLD_MAX
    assert ahead >= AHEAD_MIN, "commands wait for their window"
