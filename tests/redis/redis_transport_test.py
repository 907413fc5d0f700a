# SPDX-License-Identifier: Apache-2.0
"""The gate serves clients that come another way; the module is loaded and unloaded in another
order."""
import os
import random

import pytest

from redis_server import HELPER, MIB, MODULE, SEED, UnixClient, sets, value, wait_until

# Redis 7.0 has to be told; Redis 8 and Valkey know no such option any more, or do so anyway.
DO_READS = ["--io-threads-do-reads", "yes"]
KEYS, BYTES = 16000, 4000   # four times the budget
SCAN_MS = 3000


def fill(client):
    client.pipeline(sets("k", range(KEYS), BYTES))


def read(client, pick, count, pipeline):
    for _ in range(count // pipeline):
        keys = [pick.randrange(KEYS) for _ in range(pipeline)]
        assert client.all_of([("GET", f"k:{key}") for key in keys]) == [value(key, BYTES)
            for key in keys]


def sent_and_closed(client, path, key, mark):
    gone = UnixClient(path)
    gone.send([("SET", "hot", "x"), ("SETRANGE", key, "0", mark)])
    gone.close()
    wait_until("a command whose client had gone runs",
               lambda: client.ask("GETRANGE", key, "0", "7") == mark.encode(), 10, every_s=0.001)


def test_unix_socket(servers, directory):
    """Cold reads over a unix socket are held like those over TCP, which run at the same time."""
    path = os.path.join(directory, "socket")
    server = servers.tiered("--unixsocket", path)
    one, pick = UnixClient(path), random.Random(SEED)
    fill(one)
    read(one, pick, 500, 1)
    before = one.figure("gate_commands"), one.figure("gate_held")
    assert one.info("lunar")["lunar_gate"] == "watching"
    read(one, pick, 500, 1)
    assert one.figure("gate_commands") - before[0] >= 500, "looked up"
    assert one.figure("gate_held") - before[1] >= 250, "held"
    both = [one, server.connect()]
    for turn in range(40):   # pipelines of both, one hangs up now and then
        read(both[turn % 2], pick, 50, 25)
        if turn % 10 == 9:
            half = UnixClient(path)
            half.send([("GET", f"k:{pick.randrange(KEYS)}")] * 20)
            half.close()
    # the server reads both commands at once, and its reply finds no reader
    for gate in ("no", "yes"):
        server.client.ask("CONFIG", "SET", "lunar.gate", gate)
        for _ in range(200):   # the gate begins to watch
            one.ask("EXISTS", "k:1")
        for n in range(20):
            sent_and_closed(one, path, f"k:{pick.randrange(KEYS)}", f"{gate:>3}{n:05}")


@pytest.mark.parametrize("forks", ["yes", "no"])
def test_config(servers, forks):
    """CONFIG GET lunar.*, then CONFIG SET of what it said: only what the server itself calls
    immutable is refused."""
    client = servers.tiered(forks=forks).client
    fill(client)
    got = client.ask("CONFIG", "GET", "*")
    settings = {name.decode(): text for name, text in zip(got[::2], got[1::2])}
    ours = {name: text for name, text in settings.items() if name.startswith("lunar.")}
    of_server = client.refused("CONFIG", "SET", "databases", settings["databases"])
    assert "immutable" in of_server
    mutable = {}
    for name, text in ours.items():
        error = client.refused("CONFIG", "SET", name, text)
        assert error in ("", of_server.replace("databases", name))
        if error == "":
            mutable[name] = text
    assert {"lunar.dram", "lunar.forks", "lunar.gate", "lunar.gate-hold-ms"} <= set(mutable)
    # As tools do it: all that can be set, at once. What the server refuses of its own goes first.
    for name, text in settings.items():
        if name not in ours and client.refused("CONFIG", "SET", name, text) == "":
            mutable[name] = text
    client.ask("CONFIG", "SET", *[word for pair in mutable.items() for word in pair])
    again = client.ask("CONFIG", "GET", "lunar.*")
    assert dict(zip(again[::2], again[1::2])) == {name.encode(): text for name,
                                                  text in ours.items()}
    read(client, random.Random(SEED), 100, 10)


def test_threads_that_read(servers):
    """Only a thread of the server's own that reads for it opens the gate; other threads that read
    do not."""
    server = servers.tiered(*HELPER)
    client, pick = server.client, random.Random(SEED)
    fill(client)
    read(client, pick, 300, 1)
    for name, state in (("worker", "watching"), ("io_thd_7", "bypassed")):
        assert client.info("lunar")["lunar_gate"] == "watching"
        assert client.ask("KILLER.READ", name) == b"OK", "nothing was read"
        read(client, pick, 100, 10)
        assert client.info("lunar")["lunar_gate"] == state, name
    assert "io-threads" in client.info("lunar")["lunar_gate_reason"]
    assert server.text().count("input gate stays open") == 1
    read(client, pick, 300, 10)


def test_io_threads(servers):
    server = servers.tiered("--io-threads", "3", *DO_READS)
    fill(server.client)
    clients = [server.connect() for _ in range(24)]
    for _ in range(60):
        for one in clients:
            one.send([("GET", "k:1")] * 4)
        for one in clients:
            assert [one.receive() for _ in range(4)] == [value(1, BYTES)] * 4
    figures = server.info("lunar")
    assert figures["lunar_gate"] == "bypassed"
    assert "io-threads" in figures["lunar_gate_reason"]


def test_scans(servers):
    """RM_Scan, by a module's thread, pauses the move of a table by a counter that the gate uses
    too. Both have to have the server's lock: tables can be moved to another size afterwards."""
    server = servers.tiered(*HELPER)
    client, readers = server.client, [server.connect() for _ in range(4)]
    fill(client)
    client.ask("SELECT", "1")
    # a table of as many slots; most of it is empty then
    small = [("SET", f"small:{key}", "x") for key in range(4096)]
    client.pipeline(small)
    client.ask("DEL", *[f"small:{key}" for key in range(800, 4096)])
    client.ask("SELECT", "0")
    read(client, random.Random(SEED), 500, 1)
    assert client.info("lunar")["lunar_gate"] == "watching"
    assert client.ask("KILLER.SCAN", SCAN_MS) == b"OK"
    rounds = 0
    while rounds % 50 != 0 or client.ask("KILLER.SCANNING") == b"YES":
        for one in readers:
            one.send([("EXISTS", "k:1")])
        for one in readers:
            assert one.receive() == 1
        rounds += 1
    assert rounds > 100, f"{rounds} rounds of reads while keys were scanned"
    client.ask("CONFIG", "SET", "lunar.gate", "no")
    client.ask("SELECT", "1")
    # the table is doubled
    client.pipeline(small + [("SET", "one more", "x"), ("SET", "and one", "x")])

    def moved():
        client.ask("EXISTS", "small:1")
        return b"rehashing target" not in client.ask("DEBUG", "HTSTATS", "1")
    wait_until("the table is moved", moved, 10, every_s=0.1)


FIGURES = ("dram_budget_bytes", "lun_size_bytes", "maxmemory_ceiling_bytes",
           "forks_refused_at_bytes")
# Arguments that fail, and what the line says; the later the stage, the more there is to take back.
# PLACE: a directory.
BAD = [
    ("dram 4xb", "is not a size"),
    ("dram 16mb lun PLACE/not/there", "there is no such file"),
    ("dram 16mb lun /dev/null", "neither a directory"),
    ("dram 64mb size 32mb lun PLACE", "smaller than the DRAM budget"),
    ("dram 16mb lun PLACE/lun handlers 64", "give more (--dram)"),
    ("dram 16mb lun PLACE handlers 64", "give more (--dram)"),
    ("dram 16mb lun sim:160m handlers 64", "give more (--dram)"),
]


@pytest.mark.parametrize("good",
                         ["dram 24mb lun PLACE size 256mb", "dram 16mb lun PLACE/lun forks no"])
def test_loads(servers, directory, good):
    """MODULE LOAD after loads that failed at each stage: one line that says why, and a server that
    is as without them. The module loads once, and cannot be unloaded."""
    with open(os.path.join(directory, "lun"), "wb") as out:
        out.truncate(700 * MIB)

    def load(server, arguments):
        return server.client.refused("MODULE", "LOAD", MODULE,
                                     *arguments.replace("PLACE", directory).split())

    fresh = servers.plain("--enable-module-command", "yes", name="fresh")
    assert load(fresh, good) == ""
    expected = [fresh.figure(name) for name in FIGURES]
    fresh.end()   # it owns the LUN
    for order in range(0, len(BAD), 4):
        server = servers.plain("--enable-module-command", "yes", name=f"from-{order}")
        for failing, text in BAD[order:] + BAD[:order]:
            seen = len(server.text())
            assert load(server, failing), f"{failing} loads"
            server.must_live(failing)
            assert text in server.text()[seen:]
        assert server.client.ask("CONFIG", "GET",
                                 "lunar.*") == [], "settings are left of a load that failed"
        assert "unknown command" in server.client.refused("LUNAR", "STATS").lower()
        assert load(server, good) == ""
        assert [server.figure(name) for name in FIGURES] == expected
        seen = len(server.text())
        assert load(server, good) and load(server, ""), "it loads twice"
        assert server.text()[seen:].count("the module is loaded already") == 2
        seen = len(server.text())
        assert server.client.refused("MODULE", "UNLOAD", "lunar"), "it is unloaded"
        assert "restart the server without the module" in server.text()[seen:]
        server.pipeline(sets("k", range(8000), BYTES))
        for key in range(8000):
            assert server.client.ask("GET", f"k:{key}") == value(key,
                BYTES), f"k:{key} is not right"
        assert server.figure("evicted_pages") > 0
        server.end()


@pytest.mark.parametrize("words", [(), ("--list-compress-depth", "1")], ids=["plain", "compressed"])
def test_collections(servers, words):
    """Lists, hashes, sets, sorted sets and streams of this server are laid out as the gate has
    them."""
    server = servers.tiered(*words)
    client = server.client
    fill(client)
    for i in range(60):
        client.pipeline([("RPUSH", f"l{i}", *[value(i + n, 300) for n in range(100)]),
                         ("RPUSH", f"large{i}", value(i, 8000), value(i, 8000)),
                         ("HSET", f"h{i}",
                          *[word for n in range(600) for word in (f"f{n}", value(n, 20))]),
                         ("SADD", f"s{i}", *[value(i + n, 20) for n in range(600)]),
                         ("ZADD", f"z{i}",
                          *[word for n in range(200) for word in (n, value(i + n, 50))]),
                         *[("XADD", f"x{i}", "*", "a", value(n, 100)) for n in range(150)],
                         ("XTRIM", f"x{i}", "MAXLEN", i % 3 * 70)])
        read(client, random.Random(SEED + i), 60, 20)
    before = client.figure("gate_held")
    for i in range(60):
        for words in (("LINDEX", f"l{i}", 0), ("LINDEX", f"large{i}", 1), ("HGET", f"h{i}", "f1"),
                      ("SISMEMBER", f"s{i}", "x"), ("ZSCORE", f"z{i}", "x"), ("XLEN", f"x{i}")):
            client.ask(*words)
    assert client.figure("gate_held") - before > 60, "of 360 commands"
    assert "looks no further" not in server.text() and "stays open" not in server.text()
