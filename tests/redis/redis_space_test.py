# SPDX-License-Identifier: Apache-2.0
"""A server whose LUN is full of fragments, of buffers or of one large value answers OOM and goes
on.

The LUN is charged by what the allocator has committed, maxmemory bounds what the server has
allocated: between the two lie the holes that deleted values of another size have left.
"""
import contextlib
import os
import random
import re
import signal
import time

import pytest

from redis_server import (MIB, MODULE, NOISE, SEED, Refused, out_of_memory, packed, sets, value,
                          wait_until)

SIZE = "96mb"


def store(server, prefix, keys, size):
    """SETs until the first OOM; how many were stored. No other refusal is allowed."""
    stored = 0
    for first in range(keys.start, keys.stop, 100):
        replies = server.client.all_of(sets(prefix, keys[first - keys.start:][:100], size))
        refused = [reply for reply in replies if isinstance(reply, Refused)]
        assert all(map(out_of_memory, refused)), f"{refused[0]}; {space(server.client)}"
        stored += len(replies) - len(refused)
        if refused:
            break
    return stored


def fill(server, size=4000, mib=110):
    return store(server, "fill", range(mib * MIB // size), size)


def space(client):
    memory, lunar = client.info("memory"), client.info("lunar")

    def figure(name):
        text = lunar.get("lunar_" + name)
        return f"{name} {int(text) / MIB:.1f}" if text and text.isdigit() else f"{name} {text}"

    names = ("committed_bytes", "lun_size_bytes", "maxmemory_ceiling_bytes", "lun_free_bytes",
             "lun_holes_bytes", "space_state")
    used, limit = int(memory["used_memory"]) / MIB, int(memory["maxmemory"]) / MIB
    return f"used {used:.1f} maxmemory {limit:.1f}; " + ", ".join(map(figure, names))


def drop_most(client, prefix, count, seed):
    """7 of 8 keys at random; those that stay."""
    keys = list(range(count))
    random.Random(SEED + seed).shuffle(keys)
    client.pipeline([("UNLINK", f"{prefix}:{key}") for key in keys[:count * 7 // 8]])
    return keys[count * 7 // 8:]


def all_right(client, prefix, keys, size):
    replies = client.pipeline([("GET", f"{prefix}:{key}") for key in keys])
    for key, reply in zip(keys, replies):
        assert reply == value(key, size), f"{prefix}:{key} is not what was stored"


def saves(client):
    return client.info("persistence")["rdb_bgsave_in_progress"] != "0"


def save(client, maxmemory=None):
    """`maxmemory`: what it must be all the time."""
    client.ask("BGSAVE")
    while saves(client):
        assert maxmemory in (None,
                             client.config("maxmemory")), f"a child has lowered it: {space(client)}"
        time.sleep(0.02)
    assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"


@pytest.mark.parametrize("forks, policy", [("yes", "noeviction"), ("yes", "allkeys-random"),
                                           pytest.param("no", "noeviction",
                                                        marks=pytest.mark.slow)])
def test_fragments(servers, forks, policy):
    """Rounds of other sizes between what is left of those before, 7 of 8 deleted at random. Every
    answer is OK or OOM, and OK where keys may be evicted; BGSAVE is never refused, and no write
    gets MISCONF."""
    server = servers.tiered("--save", "3600 1", "--maxmemory-policy", policy, size="64mb",
                            forks=forks)
    client, evicts, kept = server.client, policy != "noeviction", []
    for number, size in enumerate((1000, 2100, 700, 3500, 300, 5000)):
        prefix, wanted = f"r{number}", (75 if not evicts else 10 if number else 30) * MIB // size
        stored = store(server, prefix, range(wanted), size)
        print(f"{size:5} bytes: {stored} of {wanted} stored; {space(client)}", flush=True)
        assert stored > 0 or number > 0, "nothing could be stored"
        assert stored == wanted or not evicts, (
            f"{stored} of {wanted} stored although keys may be evicted")
        if forks == "yes":
            save(client, client.config("maxmemory") if number == 0 else None)
            reply = client.all_of([("SET", "after-save", "x")])[0]
            assert reply == b"OK" or out_of_memory(reply)
        kept.append((prefix, drop_most(client, prefix, stored, number), size))
    if not evicts:
        for prefix, keys, size in kept:
            all_right(client, prefix, random.Random(SEED).sample(keys, min(len(keys), 300)), size)
        assert "LUN space runs short" in server.text()
    server.must_live("at the end")


def test_packing(servers):
    """When space is short values are moved together: maxmemory comes back, and nothing changes."""
    server = servers.tiered(size=SIZE)
    client, ceiling = server.client, server.figure("maxmemory_ceiling_bytes")
    stored = store(server, "a", range(110 * MIB // 1000), 1000)
    kept = [("a", drop_most(client, "a", stored, 0)[::20], 1000)]
    client.pipeline([("RPUSH", f"list:{key}", *[value(key + part, 50) for part in range(12)])
                     for key in range(2000)])
    client.ask("UNLINK", *[f"list:{key}" for key in range(2000) if key % 4])
    stored = store(server, "b", range(110 * MIB // 2100), 2100)
    kept.append(("b", drop_most(client, "b", stored, 1)[::20], 2100))
    # While values are moved, others come and go: until an OOM, and again.
    digest, other, passes = server.digest(), 0, client.figure("packing_passes")

    def packed_up():
        nonlocal other
        store(server, "other", range(other, other + 100), 1300)
        client.ask("UNLINK", *[f"other:{key}" for key in range(other, other + 100)])
        other += 100
        return (client.figure("packing_passes") >= passes + 3
                or client.figure("lun_holes_bytes") <= 6 * MIB)
    wait_until("it is packed", packed_up)
    time.sleep(1)
    assert client.figure("packed_values") > 1000, "nothing was moved"
    assert server.digest() == digest
    assert int(client.config("maxmemory")) > ceiling * 9 // 10, (
        f"maxmemory did not come back: {space(client)}")
    for prefix, keys, size in kept:
        all_right(client, prefix, keys, size)


@pytest.mark.parametrize("run", [False, True], ids=["module", "run"])
def test_purge(servers, run):
    """Near the limit, the module and the preload library under it give back the memory of deleted
    values. Nothing but a purge takes free memory from the allocator here."""
    keeping = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
    if run:
        server = servers.run("--loadmodule", MODULE, "forks", "yes", size="96m",
                             environment=keeping)
    else:
        server = servers.tiered(size=SIZE, environment=keeping)
    stored = fill(server, 1000)
    # from there on it stays with the allocator
    full, enough = server.figure("committed_bytes"), 42 * MIB * 15 // 16
    assert full > enough
    for first in range(0, stored, 500):
        server.client.ask("DEL", *(f"fill:{key}" for key in range(first, first + 500)))
    wait_until(f"no more than {enough} of {full} bytes are committed",
               lambda: server.figure("committed_bytes") <= enough)


def test_large(servers):
    """10 MiB are left for each of these commands: none may end the server, and all that was stored
    stays."""
    server = servers.tiered(size=SIZE, forks="no")
    client = server.client
    fill(server)
    body = NOISE * 16
    assert server.connect().refused("SET", "one", body), "64 MiB were stored where 10 MiB are left"
    server.must_live("SET of 64 MiB")
    for command in (("SETRANGE", "two", 64 * MIB, "x"), ("SETBIT", "three", 8 * 64 * MIB, 1),
                    ("APPEND", "four", body[:8 * MIB])):
        assert server.connect().refused(*command), f"{command[0]} was done"
        server.must_live(command[0])
    clients = [server.connect() for _ in range(40)]   # each has sent the head of a value, and waits
    for each in clients:
        each.socket.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nhead\r\n$%d\r\n" % MIB + body[:1000])
    time.sleep(0.3)
    server.must_live("40 heads of values")
    # at once they take the last resort; one after the other, as on a busy machine, clients are
    # evicted before
    took = client.figure("last_resort_allocations") + int(client.info("stats")["evicted_clients"])
    assert took > 0, "40 MiB fit where 10 MiB are left?"
    for each in clients:
        each.close()
    # Replies that no client reads.
    client.ask("UNLINK", *[f"fill:{key}" for key in range(600)])
    time.sleep(0.3)
    assert not client.refused("SET", "big", body[:MIB // 2]), (
        f"half a MiB does not fit into 2 MiB\n{space(client)}")
    greedy = server.connect()
    greedy.socket.settimeout(2)
    with contextlib.suppress(OSError):
        greedy.socket.sendall(packed("GET", "big") * 400)
    time.sleep(1)
    server.must_live("replies that no client reads")
    assert not client.refused("GET", "big"), "an honest client was ended"
    script = "for i = 1, 400 do redis.call('SET', 's:' .. i, string.rep('x', 100000)) end return 1"
    server.connect().refused("EVAL", script, 0)
    server.must_live("a script")
    server.connect().refused("EVAL",
                             "local t = {} for i = 1, 200 do t[i] = redis.call('GET', 'big') end "
                             "return #t", 0)
    server.must_live("a script's own memory")
    server.connect().refused("MGET", *["big"] * 100)
    server.must_live("one reply of 50 MiB")
    server.peak_within(16 + 128)   # what SIZING.md says
    all_right(client, "fill", range(600, 1000, 10), 4000)


def test_large_transaction(servers):
    """More is written in one EXEC than is left, which the server asks once: the last resort takes
    it, the next write is refused, and a deletion ends it."""
    server = servers.tiered(size=SIZE, forks="no")
    client, other = server.client, server.connect()
    fill(server)
    client.ask("UNLINK", *[f"fill:{key}" for key in range(1500)])
    time.sleep(0.3)
    body = NOISE[:MIB // 2]
    assert not client.refused("SET", "big",
                              body), f"half a MiB does not fit into 6 MiB\n{space(client)}"
    copies = 60 * MIB // len(body)
    replies = other.pipeline([("MULTI",), *[("COPY", "big", f"copy:{n}") for n in range(copies)],
                              ("EXEC",)])
    assert replies[-1] == [1] * copies, "not all were copied"
    assert client.figure("last_resort_allocations") > 0, (
        f"60 MiB fit where 18 are left? {space(client)}")
    assert out_of_memory(client.all_of([("SET", "one",
                                         "x")])[0]), f"a write beyond it is done: {space(client)}"
    for n in range(copies):
        assert client.ask("GET", f"copy:{n}") == body, f"copy:{n} is not what was copied"
    client.ask("UNLINK", *[f"copy:{n}" for n in range(copies)])
    wait_until("writes go on", lambda: not client.refused("SET", "one", "x"))
    all_right(client, "fill", range(1500, 2000, 10), 4000)


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_stopped_replica_of_full_server(servers, policy):
    """A replica that takes nothing: its stream lies in the LUN, and counts for no maxmemory of the
    server. Writes are answered, with OK or OOM; when the replica takes it, both have the same data,
    and writes go on."""
    server = servers.tiered("--maxmemory-policy", policy, size=SIZE)
    client = server.client
    fill(server, mib=16)
    follower = servers.plain(name="replica")
    follower.follow(server)
    follower.process.send_signal(signal.SIGSTOP)
    written = answers = 0
    while written < 100 * MIB and answers < 40:   # the LUN has 96
        keys = range(written // 4000, written // 4000 + 100)
        replies = client.all_of([("SET", f"fill:{key % 3000}", value(key, 4000)) for key in keys])
        refused = [reply for reply in replies if isinstance(reply, Refused)]
        assert all(map(out_of_memory, refused)), refused
        answers += bool(refused)
        written += 400_000
    assert client.ask("DBSIZE") * 4000 > 8 * MIB, (
        f"little is left of 16 MiB for a replica's stream: {space(client)}")
    server.peak_within(16 + 128)
    follower.process.send_signal(signal.SIGCONT)
    follower.has_all_of(server)
    wait_until("writes go on", lambda: not client.refused("SET", "one", "x"))


def test_while_child_saves(servers):
    """A script and many clients while a forked child holds its half."""
    server = servers.tiered("--save", "3600 1", size=SIZE)
    client = server.client
    stored = fill(server, mib=24)
    client.ask("CONFIG", "SET", "rdb-key-save-delay", 250)
    client.ask("BGSAVE")
    time.sleep(0.2)
    assert client.figure("lun_forked_bytes") >= 24 * MIB
    script = "for i = 1, 2000 do redis.call('SET', 's:' .. i, string.rep('x', 100000)) end return 1"
    answer = client.refused("EVAL", script, 0)
    assert "script" in answer, f"200 MB were written: {answer}"
    assert not client.refused("GET", "s:200"), "what it has written is not there"
    heads = [server.connect() for _ in range(60)]
    for each in heads:
        each.socket.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nhead\r\n$%d\r\n" % MIB + NOISE[:1000])
    time.sleep(0.3)
    server.must_live("60 heads of values")
    for each in heads:
        each.close()
    client.ask("CONFIG", "SET", "rdb-key-save-delay", 0)
    all_right(client, "fill", range(200, stored, 50), 4000)
    client.ask("UNLINK", *[f"s:{key}" for key in range(2001)])
    wait_until("the end of BGSAVE", lambda: not saves(client))
    save(client)


def test_child_is_ended(servers):
    """Replies that grow from one to the next until the child's share of the LUN is needed end the
    child that saves, and no write gets MISCONF for that."""
    server = servers.tiered("--save", "3600 1", size=SIZE)
    client = server.client
    fill(server, mib=24)
    assert not client.refused("SET", "big", NOISE[:MIB // 2])
    client.ask("CONFIG", "SET", "rdb-key-save-delay", 10000)
    client.ask("BGSAVE")
    time.sleep(0.2)
    count = 200
    while client.figure("last_resort_children_ended") == 0:
        assert count < 600, f"no child was ended: {space(client)}"
        server.connect().refused("MGET", *["big"] * count)
        server.must_live(f"one reply of {count // 2} MiB")
        count += 10
    wait_until("the end of the child", lambda: not saves(client))
    assert not client.refused("SET", "fill:1", value(1, 4000))
    assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"


MAX, CLIENTS = "maxmemory", "maxmemory-clients"
# A size, what a setting is then (at the least and at the most), what a client sets, and an edit of
# the file before.
LIVES = [("96mb", MAX, 42 * MIB), ("192mb", MAX, 84 * MIB), ("128mb", MAX, 56 * MIB),
         ("16gb", "proto-max-bulk-len", 512 * MIB), ("96mb", MAX, 42 * MIB, (MAX, 30 * MIB)),
         # less than the user's own fits
         ("192mb", MAX, 30 * MIB), ("48mb", MAX, (21 * MIB * 7 // 8, 21 * MIB)),
         ("192mb", MAX, 30 * MIB),
         ("192mb", MAX, 20 * MIB, None, (r"^maxmemory .*$", "maxmemory 20mb")),
         ("192mb", CLIENTS, "5%", (CLIENTS, 5 * MIB),
          (r"^maxmemory-clients .*$", "maxmemory-clients 5%")),
         ("192mb", CLIENTS, 5 * MIB)]


def test_config_rewrite(servers, directory):
    """Sentinel rewrites the configuration; what the module has derived must not come back as the
    user's own: maxmemory follows a larger size, and an own maxmemory stays."""
    config = os.path.join(directory, "redis.conf")
    text = "# written by the test\n"
    for size, name, wanted, change, edit in ((*life, None, None)[:5] for life in LIVES):
        if edit:
            assert re.search(edit[0], text, re.M), f"no {edit[0]} in:\n{text}"
            text = re.sub(edit[0], edit[1], text, flags=re.M)
        with open(config, "w", encoding="utf-8") as file:
            file.write(text)
        server = servers.tiered(size=size, config=config)
        got = server.client.config(name)
        if isinstance(wanted, tuple):   # of so small a LUN the holes of a start already count
            assert wanted[0] <= int(got) <= wanted[1]
        else:
            assert got == str(wanted), f"{name} with {size}"
        if change:
            server.client.ask("CONFIG", "SET", *change)
        server.client.ask("CONFIG", "REWRITE")
        server.end()
        with open(config, encoding="utf-8") as file:   # the module's arguments are in the file now
            text = "".join(line for line in file
                           if not line.startswith(("loadmodule", "port", "bind", "dir")))
