# SPDX-License-Identifier: Apache-2.0
"""What the gate does in the server's place keeps the rules of the server (LUNAR_REDIS_SERVER: of
another one).

A plain server tells what they are. Counts decide: lengths of chains, words in the append-only file,
keys that expired. """
import os
import re
import time

import pytest

from redis_server import wait_until

COLD, SIZE = 36_000, 500        # keys that do not fit into DRAM: a table of 2^16 slots
SCRIPT = "for i = 1, tonumber(ARGV[2]) do redis.call('SET', ARGV[1] .. i, 'x') end"
SCRIPT_KEYS = 12_000
# a plain server's are 8 to 10 keys; thousands when its table does not grow
CHAIN_MAX = 32
DUE, LATER = 4_000, 30_000
NEW = 8_000                     # keys written at maxmemory
FIELDS, ROUND, ROUNDS_MAX = 200, 1_000, 200

APPENDING = ("--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0")


def line(server, name):
    """A line of INFO; None: there is no such line."""
    return server.info("everything").get(name)


def count(server, name):
    return int(line(server, name))


def longest_chain(server, database):
    tables = server.client.ask("DEBUG", "HTSTATS", str(database))
    return max(map(int, re.findall(rb"max chain length: (\d+)", tables)), default=0)


def appended(server):
    where = os.path.join(server.directory, "appendonlydir")
    names = [os.path.join(where, name) for name in os.listdir(where) if name.endswith("incr.aof")]
    return b"".join(open(name, "rb").read() for name in names)


def key_tables(server):
    """One client's command adds many keys: the table has to grow meanwhile, whatever the gate does
    to its growth."""
    ask = server.client.ask
    for database in (5, 0):   # a table of a few slots, and a cold one that is large
        ask("SELECT", str(database))
        ask("SET", "first", "x")
        for _ in range(40):
            ask("EXISTS", "first")
        ask("EVAL", SCRIPT, "0", "script:", str(SCRIPT_KEYS))
        assert longest_chain(server, database) <= CHAIN_MAX, "after a script"
    ask("SELECT", "6")
    ask("SET", "first", "x")
    queued = [("SET", f"queued:{i}", "x") for i in range(SCRIPT_KEYS)]
    server.client.all_of([("EXISTS", "first")] * 40 + [("MULTI",), *queued, ("EXEC",)],
                         batch=1 << 20)
    assert longest_chain(server, 6) <= CHAIN_MAX, "after EXEC"
    ask("SELECT", "0")


def rehash_goes_on(server):
    """Without a client, and when the gate is switched off in the midst of it."""
    ask = server.client.ask
    ask("SELECT", "7")
    for gate in ("yes", "no"):
        server.pipeline([("SET", f"double:{gate}:{i}", "x")
                         for i in range(16385 if gate == "yes" else 16384)])
        if gate == "no":
            ask("CONFIG", "SET", "lunar.gate", "no")
        time.sleep(1.0)
        wait_until(f"the end of a rehash, gate {gate}",
                   lambda: b"rehashing target" not in ask("DEBUG", "HTSTATS", "7"))


def deletions(text):
    """In an append-only file. What the server does by itself is an UNLINK where lazyfree settings
    say so (the default of Valkey)."""
    return text.count(b"$3\r\nDEL\r\n") + text.count(b"$6\r\nUNLINK\r\n")


def propagation(server):
    """Each key that expires is one deletion, outside of any transaction."""
    before = count(server, "expired_keys")
    server.pipeline([("SET", f"due:{i}", "x" * 300, "PX", "1500") for i in range(DUE)])
    wait_until("the keys that are due", lambda: count(server, "expired_keys") == before + DUE)
    server.client.ask("SET", "last", "x")
    text = appended(server)
    text = text[text.index(b"due:0"):]
    assert deletions(text) == DUE
    assert b"MULTI" not in text


def eviction(server, policy):
    """Each key that is evicted is one deletion outside of any transaction, one event and one in
    INFO; no client sees another policy or limit meanwhile."""
    ask = server.client.ask
    ask("CONFIG", "SET", "notify-keyspace-events", "Ee")
    listener = server.connect()
    listener.ask("PSUBSCRIBE", "__keyevent@*__:evicted")
    before, limit = count(server, "evicted_keys"), line(server, "used_memory")
    ask("SET", "mark", "x")
    ask("CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", limit)
    look = [("CONFIG", "GET", "maxmemory*"), ("MULTI",), ("SET", "queued", "x"), ("EXEC",)]
    replies = []
    for first in range(0, NEW, 50):
        replies += server.client.all_of([("SET", f"{policy}:{i}", "x" * SIZE)
                                         for i in range(first, first + 50)] + look)
    settings = {repr(reply) for reply in replies if isinstance(reply, list) and len(reply) > 2}
    assert len(settings) == 1 and policy in min(settings) and limit in min(settings)
    ask("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "0")
    evicted = count(server, "evicted_keys") - before
    assert evicted > NEW // 2
    text = appended(server)
    # keys may go before the first new one comes
    text = text[text.rindex(b"$3\r\nSET\r\n$4\r\nmark\r\n"):]
    assert deletions(text) == evicted
    assert text.count(b"MULTI") == 0
    for _ in range(evicted):
        listener.receive()
    ask("PUBLISH", "__keyevent@0__:evicted", "last")
    assert b"last" in listener.receive(), "more events than keys evicted"


def wish(server, behind_blocked):
    """DEBUG SET-ACTIVE-EXPIRE 0 while keys are being expired, by itself or behind a command that
    blocks."""
    ask, before = server.client.ask, count(server, "expired_keys")
    server.pipeline([("SET", f"later:{i}", "x" * 100, "PX", "2000") for i in range(LATER)])
    wait_until("the first keys that are due", lambda: count(server, "expired_keys") != before)
    if behind_blocked:
        blocked = server.connect()
        blocked.send([("BLPOP", "list", "0"), ("DEBUG", "SET-ACTIVE-EXPIRE", "0")])
        ask("RPUSH", "list", "x")
        blocked.receive()
        blocked.receive()
    else:
        ask("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    stopped = count(server, "expired_keys")
    time.sleep(0.7)
    assert count(server, "expired_keys") == stopped
    ask("DEBUG", "SET-ACTIVE-EXPIRE", "1")
    wait_until("the rest of the keys", lambda: count(server, "expired_keys") == before + LATER)


def expire_in_turns(server):
    """Cold keys that expire do so in the gate's turns, unless expiry is off."""
    before, gate = count(server, "expired_keys"), count(server, "lunar_gate_expired")
    server.pipeline([("SET", f"turn:{i}", "x" * SIZE, "PX", "700") for i in range(DUE)])
    wait_until("the keys that are due", lambda: count(server, "expired_keys") >= before + DUE)
    assert count(server, "lunar_gate_expired") - gate > DUE // 2


def wish_refused(server, user, word):
    """Expiry stays the gate's when a client says SET-ACTIVE-EXPIRE 0 to which the server does not
    listen."""
    server.client.ask("ACL", "SETUSER", "nothing", "on", ">pw", "~*", "-@all")
    other = server.connect()
    if user != "default":
        other.ask("AUTH", user, "pw")
    assert word in other.refused("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    expire_in_turns(server)


def wish_taken_back(server):
    """By itself, and in the same input."""
    for words in ("0",), ("1",), ("0", "1"):
        server.pipeline([("DEBUG", "SET-ACTIVE-EXPIRE", word) for word in words])
    expire_in_turns(server)


def fields(server):
    """Redis 8: fields of hashes expire by the server's own cycle, also while keys are due all the
    time."""
    ask = server.client.ask
    if b"hpexpire" not in repr(ask("COMMAND", "INFO", "HPEXPIRE")).lower().encode():
        return
    before, rounds, size = count(server, "expired_subkeys"), 0, ask("DBSIZE")
    server.pipeline([("HSET", f"hash:{i}", "short", "x") for i in range(FIELDS)])
    server.pipeline([("HPEXPIRE", f"hash:{i}", "200", "FIELDS", "1", "short")
                     for i in range(FIELDS)])
    while count(server, "expired_subkeys") < before + FIELDS:
        rounds += 1
        assert rounds < ROUNDS_MAX, "fields do not expire while keys do"
        server.pipeline([("SET", f"short:{rounds}:{i}", "x" * SIZE, "PX", "150")
                         for i in range(ROUND)])
    wait_until("the last of the short-lived keys", lambda: ask("DBSIZE") == size)


def import_mode(server):
    """Valkey: nothing expires in import mode."""
    ask = server.client.ask
    if not ask("CONFIG", "GET", "import-mode"):
        return
    ask("CONFIG", "SET", "import-mode", "yes")
    before = count(server, "expired_keys")
    server.pipeline([("SET", f"imported:{i}", "x" * SIZE, "PX", "100") for i in range(DUE)])
    time.sleep(1.0)
    assert count(server, "expired_keys") == before
    ask("CONFIG", "SET", "import-mode", "no")
    wait_until("the imported keys", lambda: count(server, "expired_keys") == before + DUE)


def cold_keys(server):
    server.pipeline([("SET", f"cold:{i}", "v" * SIZE) for i in range(COLD)])


@pytest.mark.parametrize("kind", ["plain", "tiered"])
def test_rules(servers, kind):
    """A plain server tells what they are."""
    server = getattr(servers, kind)(*APPENDING)
    cold_keys(server)
    if kind == "tiered":
        assert line(server, "lunar_gate") == "watching" and count(server, "lunar_evicted_pages") > 0
    key_tables(server)
    propagation(server)
    fields(server)
    import_mode(server)
    if kind == "tiered":
        wish_refused(server, "nothing", "permissions")
    wish(server, behind_blocked=False)
    wish(server, behind_blocked=True)
    if kind == "tiered":
        wish_taken_back(server)
    eviction(server, "allkeys-random")
    eviction(server, "allkeys-lru")
    if kind == "tiered":
        rehash_goes_on(server)


def test_debug_is_refused(servers):
    server = servers.tiered(*APPENDING, debug=False)
    cold_keys(server)
    wish_refused(server, "default", "not allowed")
