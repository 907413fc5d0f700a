# SPDX-License-Identifier: Apache-2.0
"""redis_space_test MODULE SCENARIO: a server whose LUN is full of fragments, of buffers or of one large value answers
OOM and goes on.

The LUN is charged by what the allocator has committed, maxmemory bounds what the server has allocated: between the two
lie the holes that deleted values of another size have left.

  forks       1000-byte values, 7 of 8 deleted at random, refilled with other sizes: BGSAVE is never refused, no write
              gets MISCONF
  no-forks    the same with `forks no`: every answer is OK or OOM, and the server lives
  evict       the same with maxmemory-policy allkeys-random: the answers are OK
  pack        when space is short values are moved together: maxmemory comes back, and nothing changes
  child       a script and many clients while a forked child holds its half
  transaction more is written in one EXEC than is left, which the server asks once: the last resort takes it, the next
              write is refused, and a deletion ends it
  large       one value larger than what is left: SET, SETRANGE, APPEND, a reply that no client reads, a script
  purge       what deleted values leave near the limit is given back, by the module and by the preload library under it
  last-child  replies that fit nowhere end the child that saves, and no write gets MISCONF for that
  replica     a replica that takes nothing: its stream lies in the LUN. Writes are answered, with OK or OOM; when the
              replica takes it, both have the same data, and writes go on
  rewrite     CONFIG REWRITE, then a start with a larger size: maxmemory follows; an own maxmemory stays
"""
import os
import random
import re
import signal
import sys
import time

from redis_server import Server, Servers, run_scenario, wait_until
from resp import Refused

PATIENCE_S = 60
MIB = 1 << 20


class TieredServer(Server):
    def __init__(self, directory, module, *further, size="96mb", forks="yes", lun=None, wrapper=(), **options):
        tier = ["dram", "16mb", "lun", lun or directory, "size", size] if not wrapper else []
        super().__init__(directory, *further, "--loadmodule", os.path.abspath(module), *tier, "forks", forks,
                         wrapper=wrapper, **options)


SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))
NOISE = random.Random(SEED).randbytes(4 * MIB)


def value(key, size):
    at = key * 7919 % (len(NOISE) - 8192)
    return NOISE[at:at + size]


def store(server, client, prefix, first, count, size):
    """SETs until the first OOM; how many were stored. Any other refusal ends the test."""
    stored = 0
    for batch in range(first, first + count, 100):
        keys = range(batch, min(batch + 100, first + count))
        try:
            client.send([("SET", f"{prefix}:{key}", value(key, size)) for key in keys])
            replies = [client.receive() for _ in keys]
        except (OSError, ConnectionError):
            time.sleep(0.5)
            server.must_live(f"SET of {size} bytes")
            raise
        refused = [str(reply) for reply in replies if isinstance(reply, Refused)]
        wrong = [text for text in refused if not text.startswith("OOM ")]
        assert not wrong, f"{prefix}, {size} bytes: {wrong[0]}\n{space(client)}"
        stored += len(replies) - len(refused)
        if refused:
            break
    return stored


def space(client):
    memory, lunar = client.info("memory"), client.info("lunar")

    def figure(name):
        text = lunar.get("lunar_" + name)
        return f"{name} {int(text) / MIB:.1f}" if text and text.isdigit() else f"{name} {text}"

    names = ("committed_bytes", "lun_size_bytes", "maxmemory_ceiling_bytes", "lun_free_bytes", "lun_holes_bytes",
             "space_state")
    used, limit = int(memory["used_memory"]) / MIB, int(memory["maxmemory"]) / MIB
    return f"used {used:.1f} maxmemory {limit:.1f}; " + ", ".join(map(figure, names))


def drop_most(client, prefix, count, seed):
    """7 of 8 keys at random; those that stay."""
    keys = list(range(count))
    random.Random(SEED + seed).shuffle(keys)
    for at in range(0, count * 7 // 8, 200):
        client.ask("UNLINK", *[f"{prefix}:{key}" for key in keys[at:min(at + 200, count * 7 // 8)]])
    return keys[count * 7 // 8:]


def save(server, client, when, maxmemory=None):
    """`maxmemory`: what it must be all the time."""
    try:
        client.ask("BGSAVE")
    except RuntimeError as refused:
        sys.exit(f"{when}: {refused}\n{space(client)}\n{server.text()[-2000:]}")
    end = time.monotonic() + PATIENCE_S
    while client.info("persistence")["rdb_bgsave_in_progress"] != "0":
        assert time.monotonic() < end, f"{when}: BGSAVE does not end"
        limit = client.config("maxmemory")
        assert maxmemory in (None, limit), f"{when}: a child has lowered maxmemory: {space(client)}"
        time.sleep(0.02)
    status = client.info("persistence")["rdb_last_bgsave_status"]
    assert status == "ok", f"{when}: BGSAVE failed:\n{server.text()[-2000:]}"


ROUNDS = (2100, 700, 3500, 300, 5000)


def fragmented(server, client, saves, evicts):
    """Rounds of other sizes between what is left of those before. (Prefix, size, keys that must be there) of each."""
    kept = []
    for number, size in enumerate((1000,) + ROUNDS):
        prefix, wanted = f"r{number}", (110 if not evicts else 15 if number else 45) * MIB // size
        stored = store(server, client, prefix, 0, wanted, size)
        print(f"{size:5} bytes: {stored} of {wanted} stored; {space(client)}", flush=True)
        assert stored > 0 or number > 0, "nothing could be stored"
        if evicts:
            assert stored == wanted, f"{stored} of {wanted} stored although keys may be evicted"
        if saves:
            save(server, client, f"after {size} bytes", client.config("maxmemory") if number == 0 else None)
            client.send([("SET", "after-save", "x")])
            reply = client.receive()
            assert not isinstance(reply, Refused) or str(reply).startswith("OOM "), reply
        kept.append((prefix, size, drop_most(client, prefix, stored, number)))
    if not evicts:
        for prefix, size, keys in kept:
            for key in random.Random(SEED).sample(keys, min(len(keys), 300)):
                stored = client.ask("GET", f"{prefix}:{key}")
                assert stored == value(key, size), f"{prefix}:{key} is not what was stored"
        assert "LUN space runs short" in server.text(), "the log says nothing"
    server.must_live("at the end")


def forks(directory, module):
    with_server(directory, module, lambda s: fragmented(s, s.connect(), True, False), "--save", "3600 1")


def no_forks(directory, module):
    with_server(directory, module, lambda s: fragmented(s, s.connect(), False, False), forks="no")


def pack(directory, module):
    with_server(directory, module, pack_values)


def pack_values(server):
    client = server.connect()
    ceiling = client.figure("maxmemory_ceiling_bytes")
    stored = store(server, client, "a", 0, 110 * MIB // 1000, 1000)
    kept = [("a", 1000, drop_most(client, "a", stored, 0))]
    for key in range(2000):
        client.ask("RPUSH", f"list:{key}", *[value(key + part, 50) for part in range(12)])
    client.ask("UNLINK", *[f"list:{key}" for key in range(2000) if key % 4])
    stored = store(server, client, "b", 0, 110 * MIB // 2100, 2100)
    kept.append(("b", 2100, drop_most(client, "b", stored, 1)))
    # While values are moved, others come and go: until an OOM, and again.
    before, start = client.ask("DEBUG", "DIGEST"), time.monotonic()
    print(f"with holes: {space(client)}")
    other, passes = 0, client.figure("packing_passes")
    while client.figure("packing_passes") < passes + 3 and client.figure("lun_holes_bytes") > 6 * MIB:
        assert time.monotonic() < start + PATIENCE_S, f"it is not packed: {space(client)}\n{server.text()[-2000:]}"
        store(server, client, "other", other, 100, 1300)
        other += 100
        client.ask("UNLINK", *[f"other:{key}" for key in range(other - 100, other)])
        time.sleep(0.02)
    time.sleep(1)
    print(f"packed in {time.monotonic() - start:.1f} s, {client.figure('packed_values')} values: {space(client)}")
    assert client.figure("packed_values") > 1000, "nothing was moved"
    assert client.ask("DEBUG", "DIGEST") == before, "the data changed"
    assert int(client.config("maxmemory")) > ceiling * 9 // 10, f"maxmemory did not come back: {space(client)}"
    for prefix, size, keys in kept:
        for key in keys[::20]:
            assert client.ask("GET", f"{prefix}:{key}") == value(key, size), f"{prefix}:{key} is not what was stored"


def evict(directory, module):
    with_server(directory, module, lambda s: fragmented(s, s.connect(), True, True), "--save", "3600 1",
                "--maxmemory-policy", "allkeys-random")


def purge(directory, module, lunar):
    keeping = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}
    for wrapper in ((), (lunar, "run", "--dram", "16m", "--lun", directory, "--size", "96m", "--")):
        with_server(directory, module, purged, wrapper=wrapper, environment=keeping)


def purged(server):
    """Nothing but a purge takes free memory from the allocator here."""
    client = server.connect()
    stored = store(server, client, "fill", 0, 110 * MIB // 1000, 1000)
    full = client.figure("committed_bytes")
    for first in range(0, stored, 500):
        client.ask("DEL", *(f"fill:{key}" for key in range(first, first + 500)))
    until = time.monotonic() + PATIENCE_S
    enough = 42 * MIB * 15 // 16    # of the limit: from there on what is free stays with the allocator
    while client.figure("committed_bytes") > enough and time.monotonic() < until:
        time.sleep(0.1)
    left = client.figure("committed_bytes")
    print(f"committed: {full >> 20} MiB full, {left >> 20} MiB when empty")
    assert full > enough >= left, f"{left} bytes of {full} are still committed, {enough} at the most expected"


def refused(client, *command):
    """The text of an error reply; "closed" when the server ended the connection; "" when it did as asked."""
    try:
        client.send([command])
        reply = client.receive()
    except (OSError, ConnectionError):
        return "closed"
    return str(reply) if isinstance(reply, Refused) else ""


def large(directory, module):
    """What is left is 10 MiB for each of these: none may end the server, all that was stored stays."""
    with_server(directory, module, large_values, forks="no")


def large_values(server):
    client = server.connect()
    store(server, client, "fill", 0, 110 * MIB // 4000, 4000)
    print(space(client), flush=True)
    body = NOISE * 16
    assert refused(server.connect(), "SET", "one", body), "64 MiB were stored where 10 MiB are left"
    server.must_live("SET of 64 MiB")
    for command in (("SETRANGE", "two", 64 * MIB, "x"), ("SETBIT", "three", 8 * 64 * MIB, 1),
                    ("APPEND", "four", body[:8 * MIB])):
        assert refused(server.connect(), *command), f"{command[0]} was done"
        server.must_live(command[0])
    clients = [server.connect() for _ in range(40)]   # each has sent the head of a value, and waits
    for each in clients:
        each.socket.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nhead\r\n$%d\r\n" % MIB + body[:1000])
    time.sleep(0.3)
    server.must_live("40 heads of values")
    # at once they take the last resort; one after the other, as on a busy machine, clients are evicted before
    took = client.figure("last_resort_allocations") + int(client.info("stats")["evicted_clients"])
    assert took > 0, "40 MiB fit where 10 MiB are left?"
    for each in clients:
        each.close()
    # Replies that no client reads.
    client.ask("UNLINK", *[f"fill:{key}" for key in range(600)])
    time.sleep(0.3)
    assert not refused(client, "SET", "big", body[:MIB // 2]), f"half a MiB does not fit into 2 MiB\n{space(client)}"
    greedy = server.connect()
    greedy.socket.settimeout(2)
    try:
        greedy.send([("GET", "big")] * 400)
    except OSError:
        pass
    time.sleep(1)
    server.must_live("replies that no client reads")
    assert not refused(client, "GET", "big"), "an honest client was ended"
    script = "for i = 1, 400 do redis.call('SET', 's:' .. i, string.rep('x', 100000)) end return 1"
    refused(server.connect(), "EVAL", script, 0)
    server.must_live("a script")
    refused(server.connect(), "EVAL", "local t = {} for i = 1, 200 do t[i] = redis.call('GET', 'big') end return #t", 0)
    server.must_live("a script's own memory")
    refused(server.connect(), "MGET", *["big"] * 100)
    server.must_live("one reply of 50 MiB")
    peak = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{server.process.pid}/status").read())[1]) >> 10
    assert peak <= 16 + 128, f"its resident set peaked at {peak} MiB, {16 + 128} is what SIZING.md says"
    for key in range(600, 1000, 10):
        assert client.ask("GET", f"fill:{key}") == value(key, 4000), f"fill:{key} is not what was stored"


def transaction(directory, module):
    with_server(directory, module, large_transaction, forks="no")


def large_transaction(server):
    client, other = server.connect(), server.connect()
    store(server, client, "fill", 0, 110 * MIB // 4000, 4000)
    client.ask("UNLINK", *[f"fill:{key}" for key in range(1500)])
    time.sleep(0.3)
    body = NOISE[:MIB // 2]
    assert not refused(client, "SET", "big", body), f"half a MiB does not fit into 6 MiB\n{space(client)}"
    copies = 60 * MIB // len(body)
    other.send([("MULTI",), *[("COPY", "big", f"copy:{n}") for n in range(copies)], ("EXEC",)])
    for _ in range(copies + 1):
        assert not isinstance(other.receive(), Refused), "not queued"
    assert other.receive() == [1] * copies, "not all were copied"
    server.must_live("a transaction of 60 MiB")
    assert client.figure("last_resort_allocations") > 0, f"60 MiB fit where 18 are left? {space(client)}"
    assert refused(client, "SET", "one", "x").startswith("OOM "), f"a write beyond it is done: {space(client)}"
    for n in range(copies):
        assert client.ask("GET", f"copy:{n}") == body, f"copy:{n} is not what was copied"
    client.ask("UNLINK", *[f"copy:{n}" for n in range(copies)])
    end = time.monotonic() + PATIENCE_S
    while refused(client, "SET", "one", "x"):
        assert time.monotonic() < end, f"writes are still refused: {space(client)}"
        time.sleep(0.1)
    for key in range(1500, 2000, 10):
        assert client.ask("GET", f"fill:{key}") == value(key, 4000), f"fill:{key} is not what was stored"


def replica(directory, module):
    """Without and with a policy of eviction: what a replica has not taken counts for no maxmemory of the server."""
    for policy in ("noeviction", "allkeys-lru"):
        there = os.path.join(directory, policy)
        os.makedirs(os.path.join(there, "replica"))
        with_server(there, module, lambda s, d=there: slow_replica(s, d), "--maxmemory-policy", policy,
                    "--repl-diskless-sync-delay", "0")


def slow_replica(server, directory):
    client = server.connect()
    store(server, client, "fill", 0, 16 * MIB // 4000, 4000)
    with Servers() as servers:
        follower = servers.add(Server(os.path.join(directory, "replica")))
        follower.client.ask("REPLICAOF", "127.0.0.1", str(server.port))
        wait_until("the link", lambda: follower.info("replication")["master_link_status"] == "up", PATIENCE_S)
        follower.process.send_signal(signal.SIGSTOP)
        written = answers = 0
        while written < 200 * MIB and answers < 40:
            keys = range(written // 4000, written // 4000 + 100)
            client.send([("SET", f"fill:{key % 3000}", value(key, 4000)) for key in keys])
            replies = [client.receive() for _ in keys]
            server.must_live("a replica that takes nothing")
            wrong = [str(r) for r in replies if isinstance(r, Refused) and not str(r).startswith("OOM ")]
            assert not wrong, f"{wrong[0]}\n{space(client)}"
            answers += any(isinstance(r, Refused) for r in replies)
            written += 400_000
        resident = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{server.process.pid}/status").read())[1]) >> 10
        memory = client.info("memory")
        print(f"{written >> 20} MiB written, {answers} batches of them with OOM; the replica has "
              f"{int(memory['mem_clients_slaves']) >> 20} MiB to take; {client.ask('DBSIZE')} keys; {space(client)}; "
              f"resident {resident} MiB at its peak")
        stored = client.ask("DBSIZE") * 4000
        assert stored > 8 * MIB, f"{stored >> 20} MiB are left of 16 for a replica's stream"
        assert resident <= 16 + 128, f"its resident set peaked at {resident} MiB"
        follower.process.send_signal(signal.SIGCONT)
        wait_until("the replica has all", lambda: follower.info("replication").get("slave_repl_offset")
                   == client.info("replication")["master_repl_offset"], PATIENCE_S)
        assert follower.digest() == client.ask("DEBUG", "DIGEST"), "master and replica differ"
        wait_until("writes go on", lambda: not refused(client, "SET", "one", "x"), PATIENCE_S)


def child(directory, module):
    """The same while a save goes on that has taken its half."""
    with_server(directory, module, while_child_saves, "--save", "3600 1")


def while_child_saves(server):
    client = server.connect()
    stored = store(server, client, "fill", 0, 24 * MIB // 4000, 4000)
    client.ask("CONFIG", "SET", "rdb-key-save-delay", 1000)
    client.ask("BGSAVE")
    time.sleep(0.2)
    assert client.figure("lun_forked_bytes") >= 24 * MIB, space(client)
    script = "for i = 1, 2000 do redis.call('SET', 's:' .. i, string.rep('x', 100000)) end return 1"
    answer = refused(client, "EVAL", script, 0)
    assert "script" in answer, f"200 MB were written: {answer}"
    assert not refused(client, "GET", "s:200"), "what it has written is not there"
    print(f"a script of 200 MB: {answer}; {space(client)}")
    heads = [server.connect() for _ in range(60)]
    for each in heads:
        each.socket.sendall(b"*3\r\n$3\r\nSET\r\n$4\r\nhead\r\n$%d\r\n" % MIB + NOISE[:1000])
    time.sleep(0.3)
    server.must_live("60 heads of values")
    for each in heads:
        each.close()
    client.ask("CONFIG", "SET", "rdb-key-save-delay", 0)
    for key in range(200, stored, 50):
        assert client.ask("GET", f"fill:{key}") == value(key, 4000), f"fill:{key} is not what was stored"
    client.ask("UNLINK", *[f"s:{key}" for key in range(2001)])
    end = time.monotonic() + PATIENCE_S
    while client.info("persistence")["rdb_bgsave_in_progress"] != "0":
        assert time.monotonic() < end, "BGSAVE does not end"
        time.sleep(0.05)
    save(server, client, "after all that")


def last_child(directory, module):
    with_server(directory, module, child_is_ended, "--save", "3600 1")


def child_is_ended(server):
    """Replies that grow from one to the next until the child's share of the LUN is needed."""
    client = server.connect()
    store(server, client, "fill", 0, 24 * MIB // 4000, 4000)
    assert not refused(client, "SET", "big", NOISE[:MIB // 2])
    client.ask("CONFIG", "SET", "rdb-key-save-delay", 10000)
    client.ask("BGSAVE")
    time.sleep(0.2)
    count = 200
    while client.figure("last_resort_children_ended") == 0:
        assert count < 600, f"no child was ended: {space(client)}"
        refused(server.connect(), "MGET", *["big"] * count)
        server.must_live(f"one reply of {count // 2} MiB")
        count += 10
    end = time.monotonic() + PATIENCE_S
    while client.info("persistence")["rdb_bgsave_in_progress"] != "0":
        assert time.monotonic() < end, "the child goes on"
        time.sleep(0.05)
    status = client.info("persistence")["rdb_last_bgsave_status"]
    print(f"a reply of {count // 2 - 5} MiB ended the child; the save is {status}; {space(client)}")
    answer = refused(client, "SET", "fill:1", value(1, 4000))
    assert not answer, f"a write after the child's end: {answer}"
    assert status == "ok", f"rdb_last_bgsave_status is {status}"


def rewrite(directory, module):
    """Sentinel rewrites the configuration; what the module has derived must not come back as the user's own."""
    config = os.path.join(directory, "redis.conf")

    def life(size, test, change=None):
        if change:
            text = open(config).read()
            assert re.search(change[0], text, re.M), f"no {change[0]} in:\n{text}"
            open(config, "w").write(re.sub(change[0], change[1], text, flags=re.M))
        with Servers() as servers:
            client = servers.add(TieredServer(directory, module, size=size, config=config)).connect()
            test(client)
            client.ask("CONFIG", "REWRITE")
        text = open(config).read()     # the module's arguments are in the file now
        added = ("loadmodule", "port", "bind", "dir")
        open(config, "w").write("".join(line for line in text.splitlines(True) if not line.startswith(added)))

    def maxmemory(wanted, name="maxmemory"):
        def test(client):
            assert client.config(name) == str(wanted), f"{name} is {client.config(name)}, not {wanted}"
        return test

    def nearly(most):   # of so small a LUN the holes of a start already count
        def test(client):
            got = int(client.config("maxmemory"))
            assert most * 7 // 8 <= got <= most, f"maxmemory is {got}, not {most} or a little less"
        return test

    def own(client):
        client.ask("CONFIG", "SET", "maxmemory", 30 * MIB)

    def own_clients(client):
        client.ask("CONFIG", "SET", "maxmemory-clients", 5 * MIB)

    open(config, "w").write("# written by the test\n")
    life("96mb", maxmemory(42 * MIB))
    life("192mb", maxmemory(84 * MIB))
    life("128mb", maxmemory(56 * MIB))
    life("16gb", maxmemory(512 * MIB, "proto-max-bulk-len"))
    life("96mb", own)
    life("192mb", maxmemory(30 * MIB))
    life("48mb", nearly(21 * MIB))              # less than the user's own fits
    life("192mb", maxmemory(30 * MIB))          # and now it does
    life("192mb", maxmemory(20 * MIB), (r"^maxmemory .*$", "maxmemory 20mb"))   # an edit of the file counts
    life("192mb", maxmemory("5%", "maxmemory-clients"), (r"^maxmemory-clients .*$", "maxmemory-clients 5%"))
    life("192mb", own_clients)
    life("192mb", maxmemory(5 * MIB, "maxmemory-clients"))


def with_server(directory, module, test, *further, **options):
    with Servers() as servers:
        test(servers.add(TieredServer(directory, module, *further, **options)))


if __name__ == "__main__":
    print(f"seed {SEED}")
    sys.exit(run_scenario("space", globals(), sys.argv[2], sys.argv[1], *sys.argv[3:]))
