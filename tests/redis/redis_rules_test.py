# SPDX-License-Identifier: Apache-2.0
"""redis_rules_test MODULE: what the gate does in the server's place keeps the rules of the server (LUNAR_REDIS_SERVER:
of another one).

A plain server tells what they are. Counts decide: lengths of chains, words in the append-only file, keys that expired.
"""
import os
import re
import sys
import time

from redis_server import Server, Servers, scratch, wait_until
from resp import Connection

PATIENCE_S = 120
COLD, SIZE = 36_000, 500        # keys that do not fit into DRAM: a table of 2^16 slots
SCRIPT = "for i = 1, tonumber(ARGV[2]) do redis.call('SET', ARGV[1] .. i, 'x') end"
SCRIPT_KEYS = 12_000
CHAIN_MAX = 32                  # a plain server's are 8 to 10 keys; thousands when its table does not grow
DUE, LATER = 4_000, 30_000
NEW = 8_000                     # keys written at maxmemory
FIELDS, ROUND, ROUNDS_MAX = 200, 1_000, 200

FAILURES = []


def require(good, what):
    if not good:
        print("FAILED: " + what)
        FAILURES.append(what)


class CheckedServer(Server):
    def __init__(self, root, name, *further):
        super().__init__(os.path.join(root, name), "--appendonly", "yes", "--appendfsync", "no",
                         "--auto-aof-rewrite-percentage", "0", *further, patience_s=PATIENCE_S)
        self.ask = self.client.ask

    def line(self, name):
        """Of INFO; None: it is not there."""
        return self.info("everything").get(name)

    def longest_chain(self, database):
        tables = self.ask("DEBUG", "HTSTATS", str(database))
        return max(map(int, re.findall(rb"max chain length: (\d+)", tables)), default=0)

    def appended(self):
        where = os.path.join(self.directory, "appendonlydir")
        names = [name for name in os.listdir(where) if name.endswith("incr.aof")]
        return b"".join(open(os.path.join(where, name), "rb").read() for name in names)


def key_tables(server, name):
    """One client's command adds many keys: the table has to grow meanwhile, whatever the gate does to its growth."""
    for database in (5, 0):   # a table of a few slots, and a cold one that is large
        server.ask("SELECT", str(database))
        server.ask("SET", "first", "x")
        for _ in range(40):
            server.ask("EXISTS", "first")
        server.ask("EVAL", SCRIPT, "0", "script:", str(SCRIPT_KEYS))
        chain = server.longest_chain(database)
        print(f"{name}: database {database}, chains of at most {chain} keys after a script")
        require(chain <= CHAIN_MAX, f"{name}: {chain} keys in a chain of database {database} after a script")
    server.ask("SELECT", "6")
    server.ask("SET", "first", "x")
    queued = [("SET", f"queued:{i}", "x") for i in range(SCRIPT_KEYS)]
    server.client.send([("EXISTS", "first")] * 40 + [("MULTI",), *queued, ("EXEC",)])
    for _ in range(40 + SCRIPT_KEYS + 2):
        server.client.receive()
    require(server.longest_chain(6) <= CHAIN_MAX, f"{name}: {server.longest_chain(6)} keys in a chain after EXEC")
    server.ask("SELECT", "0")


def rehash_goes_on(server):
    """Without a client, and when the gate is switched off in the midst of it."""
    server.ask("SELECT", "7")
    for gate in ("yes", "no"):
        server.pipeline([("SET", f"double:{gate}:{i}", "x") for i in range(16385 if gate == "yes" else 16384)])
        if gate == "no":
            server.ask("CONFIG", "SET", "lunar.gate", "no")
        time.sleep(1.0)
        wait_until(f"the end of a rehash, gate {gate}",
                   lambda: b"rehashing target" not in server.ask("DEBUG", "HTSTATS", "7"), PATIENCE_S)
    server.ask("CONFIG", "SET", "lunar.gate", "yes")
    server.ask("SELECT", "0")


def deletions(text):
    """In an append-only file. What the server does by itself is an UNLINK where lazyfree settings say so (the default
    of Valkey)."""
    return text.count(b"$3\r\nDEL\r\n") + text.count(b"$6\r\nUNLINK\r\n")


def propagation(server, name):
    """Each key that expires is one deletion, outside of any transaction."""
    before = server.line("expired_keys")
    server.pipeline([("SET", f"due:{i}", "x" * 300, "PX", "1500") for i in range(DUE)])
    wait_until("the keys that are due", lambda: int(server.line("expired_keys")) == int(before) + DUE, PATIENCE_S)
    server.ask("SET", "last", "x")
    text = server.appended()
    text = text[text.index(b"due:0"):]
    require(deletions(text) == DUE, f"{name}: {deletions(text)} deletions in the append-only file, {DUE} keys expired")
    require(b"MULTI" not in text, f"{name}: expired keys are deleted in {text.count(b'MULTI')} transactions")


def eviction(server, name, policy):
    """Each key that is evicted is one deletion outside of any transaction, one event and one in INFO; no client sees
    another policy or limit meanwhile."""
    server.ask("CONFIG", "SET", "notify-keyspace-events", "Ee")
    listener = Connection(server.port, PATIENCE_S)
    listener.ask("PSUBSCRIBE", "__keyevent@*__:evicted")
    before, limit = int(server.line("evicted_keys")), server.line("used_memory")
    server.ask("SET", "mark", "x")
    server.ask("CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", limit)
    ask = [("CONFIG", "GET", "maxmemory*"), ("MULTI",), ("SET", "queued", "x"), ("EXEC",)]
    replies = []
    for first in range(0, NEW, 50):
        server.client.send([("SET", f"{policy}:{i}", "x" * SIZE) for i in range(first, first + 50)] + ask)
        replies += [server.client.receive() for _ in range(50 + len(ask))]
    settings = {repr(reply) for reply in replies if isinstance(reply, list) and len(reply) > 2}
    require(len(settings) == 1 and policy in min(settings) and limit in min(settings),
            f"{name}: CONFIG GET says {settings}")
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "0")
    evicted = int(server.line("evicted_keys")) - before
    text = server.appended()
    text = text[text.rindex(b"$3\r\nSET\r\n$4\r\nmark\r\n"):]   # keys may go before the first new one comes
    print(f"{name}, {policy}: {evicted} keys evicted for {NEW} new ones")
    require(evicted > NEW // 2, f"{name}: {evicted} keys were evicted")
    deleted = deletions(text)
    require(deleted == evicted, f"{name}: {deleted} deletions in the append-only file, {evicted} keys evicted")
    require(text.count(b"MULTI") == 0, f"{name}: {text.count(b'MULTI')} transactions in the append-only file")
    for _ in range(evicted):
        listener.receive()
    server.ask("PUBLISH", "__keyevent@0__:evicted", "last")
    require(b"last" in listener.receive(), f"{name}: more events than keys evicted")


def wish(server, name, behind_blocked):
    """DEBUG SET-ACTIVE-EXPIRE 0 while keys are being expired, by itself or behind a command that blocks."""
    blocked = Connection(server.port, PATIENCE_S)
    before = server.line("expired_keys")
    server.pipeline([("SET", f"later:{i}", "x" * 100, "PX", "2000") for i in range(LATER)])
    wait_until("the first keys that are due", lambda: server.line("expired_keys") != before, PATIENCE_S)
    if behind_blocked:
        blocked.send([("BLPOP", "list", "0"), ("DEBUG", "SET-ACTIVE-EXPIRE", "0")])
        server.ask("RPUSH", "list", "x")
        blocked.receive()
        blocked.receive()
    else:
        server.ask("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    stopped = int(server.line("expired_keys"))
    time.sleep(0.7)
    further = int(server.line("expired_keys")) - stopped
    print(f"{name}: {stopped - int(before)} keys expired before SET-ACTIVE-EXPIRE 0, {further} after it")
    require(further == 0, f"{name}: {further} keys expired after DEBUG SET-ACTIVE-EXPIRE 0")
    server.ask("DEBUG", "SET-ACTIVE-EXPIRE", "1")
    wait_until("the rest of the keys", lambda: int(server.line("expired_keys")) == int(before) + LATER, PATIENCE_S)


def expire_some(server, prefix):
    """How many of the cold keys that expire now do so in the gate's turns. They do on a tiered server, unless expiry is
    off."""
    before, gate = int(server.line("expired_keys")), int(server.line("lunar_gate_expired"))
    server.pipeline([("SET", f"{prefix}:{i}", "x" * SIZE, "PX", "700") for i in range(DUE)])
    wait_until("the keys that are due", lambda: int(server.line("expired_keys")) >= before + DUE, PATIENCE_S)
    return int(server.line("lunar_gate_expired")) - gate


def wish_refused(server, user, word):
    """Expiry stays the gate's when a client says SET-ACTIVE-EXPIRE 0 to which the server does not listen."""
    server.ask("ACL", "SETUSER", "nothing", "on", ">pw", "~*", "-@all")
    other = Connection(server.port, PATIENCE_S)
    if user != "default":
        other.ask("AUTH", user, "pw")
    other.send([("DEBUG", "SET-ACTIVE-EXPIRE", "0")])
    reply = str(other.receive())
    require(word in reply, f"DEBUG of the user {user}: {reply}")
    expired = expire_some(server, "refused")
    print(f"tiered: {expired} of {DUE} keys expired in turns after '{reply[:6]}'")
    require(expired > DUE // 2, f"{expired} of {DUE} keys expired in turns after SET-ACTIVE-EXPIRE 0 got '{reply}'")


def wish_taken_back(server):
    """By itself, and in the same input."""
    for words in ("0",), ("1",), ("0", "1"):
        server.pipeline([("DEBUG", "SET-ACTIVE-EXPIRE", word) for word in words])
    expired = expire_some(server, "again")
    print(f"tiered: {expired} of {DUE} keys expired in turns after SET-ACTIVE-EXPIRE 1")
    require(expired > DUE // 2, f"{expired} of {DUE} keys expired in turns after SET-ACTIVE-EXPIRE 1")


def fields(server, name):
    """Redis 8: fields of hashes expire by the server's own cycle, also while keys are due all the time."""
    if b"hpexpire" not in repr(server.ask("COMMAND", "INFO", "HPEXPIRE")).lower().encode():
        return
    before, rounds, size = int(server.line("expired_subkeys")), 0, server.ask("DBSIZE")
    server.pipeline([("HSET", f"hash:{i}", "short", "x") for i in range(FIELDS)])
    server.pipeline([("HPEXPIRE", f"hash:{i}", "200", "FIELDS", "1", "short") for i in range(FIELDS)])
    while int(server.line("expired_subkeys")) < before + FIELDS and rounds < ROUNDS_MAX:
        rounds += 1
        server.pipeline([("SET", f"short:{rounds}:{i}", "x" * SIZE, "PX", "150") for i in range(ROUND)])
    print(f"{name}: fields of {FIELDS} hashes expired behind {rounds} times {ROUND} keys")
    require(rounds < ROUNDS_MAX, f"{name}: fields do not expire while keys do")
    wait_until("the last of the short-lived keys", lambda: server.ask("DBSIZE") == size, PATIENCE_S)


def import_mode(server, name):
    """Valkey: nothing expires in import mode."""
    if not server.ask("CONFIG", "GET", "import-mode"):
        return
    server.ask("CONFIG", "SET", "import-mode", "yes")
    before = int(server.line("expired_keys"))
    server.pipeline([("SET", f"imported:{i}", "x" * SIZE, "PX", "100") for i in range(DUE)])
    time.sleep(1.0)
    expired = int(server.line("expired_keys")) - before
    print(f"{name}: {expired} keys expired in import mode")
    require(expired == 0, f"{name}: {expired} keys expired in import mode")
    server.ask("CONFIG", "SET", "import-mode", "no")
    wait_until("the imported keys", lambda: int(server.line("expired_keys")) == before + DUE, PATIENCE_S)


def main(module):
    with scratch("rules") as root, Servers() as servers:
        tier = ("--loadmodule", os.path.abspath(module), "dram", "16mb", "lun", root, "size", "400mb")
        for name, further in (("plain", ()), ("tiered", tier)):
            server = servers.add(CheckedServer(root, name, *further))
            server.pipeline([("SET", f"cold:{i}", "v" * SIZE) for i in range(COLD)])
            if further:
                require(server.line("lunar_gate") == "watching" and int(server.line("lunar_evicted_pages")) > 0,
                        "the gate does not watch: nothing is tested")
            key_tables(server, name)
            propagation(server, name)
            fields(server, name)
            import_mode(server, name)
            if further:
                wish_refused(server, "nothing", "NOPERM")
            wish(server, name, False)
            wish(server, name, True)
            if further:
                wish_taken_back(server)
            for policy in ("allkeys-random", "allkeys-lru"):
                eviction(server, name, policy)
        rehash_goes_on(server)   # the tiered one
        server.end()
        server = servers.add(CheckedServer(root, "no-debug", *tier, "--enable-debug-command", "no"))
        server.pipeline([("SET", f"cold:{i}", "v" * SIZE) for i in range(COLD)])
        wish_refused(server, "default", "not allowed")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(2)
    sys.exit(main(*sys.argv[1:]))
