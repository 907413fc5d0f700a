# SPDX-License-Identifier: Apache-2.0
"""A server that saves in the foreground (SAVE, DEBUG RELOAD, SHUTDOWN) is read ahead of.

A third of the data fits in DRAM. What counts is how often the server itself waited for the LUN, a
key: without reading ahead it is once or more. Keys have an expiry or none, and the table of
expiries is being rehashed when one of the saves begins: what changes while the server saves is left
alone. What was saved is compared with a plain server that loads it.
"""
import os
import shutil

import pytest

from redis_server import NOISE, PATIENCE_S, value

KEYS, SIZE = 26_000, 1600
FAULTS_MAX = 0.08      # of the server's own, a key
SLEEPS_MAX = 120       # a plain server has 10 or so


def fill(server, keys, *expiry):
    server.pipeline([("SET", f"key:{key}", value(key, SIZE), *expiry) for key in keys])


def others():
    """Values of the other kinds, large and small."""
    def noise(at, size):
        return NOISE[at:at + size]

    def name(number, at, size):
        return b"%d:" % number + noise(at, size).hex().encode()

    for i in range(60):
        fields = ((f"field:{j}", noise(j * 97 + i, 90)) for j in range(200))
        scores = ((str(j * i), name(j, j * 53 + i, 60)) for j in range(200))
        yield from [("RPUSH", f"list:{i}", *(noise(j * 311 + i, 120) for j in range(80))),
                    ("HSET", f"hash:{i}", *(word for pair in fields for word in pair)),
                    ("ZADD", f"zset:{i}", *(word for pair in scores for word in pair)),
                    ("SADD", f"set:{i}", *(name(j, j * 71 + i, 80) for j in range(150))),
                    ("XADD", f"stream:{i}", "1-1", "field", noise(i * 1009, 900))]


def faults_of(server, *words):
    """A key."""
    before = server.faults()
    assert server.client.ask(*words) == b"OK"
    return (server.faults() - before) / KEYS


def test_save_of_what_is_resident(servers):
    """Nothing is cold, nothing is read ahead: the server does not wait. (Sleeps are counted, as a
    busy machine changes the time.)"""
    server = servers.tiered(size="400mb")
    server.pipeline([("SET", f"small:{n}", "value") for n in range(30_000)], 1000)
    assert server.figure("cold_bytes") == 0
    before = server.status("voluntary_ctxt_switches")
    assert server.client.ask("SAVE") == b"OK"
    assert server.status("voluntary_ctxt_switches") - before <= SLEEPS_MAX


@pytest.mark.parametrize("how", ["tiered", pytest.param("run", marks=pytest.mark.slow)])
def test_save(servers, how):
    server = getattr(servers, how)(name="saver", size="400mb" if how == "tiered" else "400m")
    fill(server, range(KEYS // 2))
    fill(server, range(KEYS // 2, KEYS), "EX", "100000")
    server.pipeline(list(others()))
    faults = {"SAVE": faults_of(server, "SAVE")}
    # 16,384 expiries and one: the table is being rehashed as the save begins.
    fill(server, range(KEYS, KEYS + 16_385 - KEYS // 2), "EX", "100000")
    faults["while rehashing"] = faults_of(server, "SAVE")
    assert server.client.ask("DEBUG", "RELOAD") == b"OK"
    faults["after a reload"] = faults_of(server, "SAVE")
    server.pipeline([("SET", "last", "one"), ("SET", "last", "two")])
    digest = server.digest()
    server.client.send([("SHUTDOWN", "SAVE")])
    assert server.process.wait(PATIENCE_S) == 0
    shutil.copy(os.path.join(server.directory, "dump.rdb"),
                os.path.join(servers.made("plain"), "dump.rdb"))
    assert servers.plain().digest() == digest, "what was saved is not what there was"
    print(faults)
    assert max(faults.values()) <= FAULTS_MAX
