# SPDX-License-Identifier: Apache-2.0
"""The twin test: random commands over all types (redis_twin_commands), the same to a tiered server
at 1/8 of the DRAM its data wants (or less) and to a plain one. Equal replies, equal DEBUG DIGEST at
checkpoints, after BGSAVE and a restart, after AOF rewrites and a replay, and on a tiered replica.

Eight clients send pipelines at once, each on keys of its own (MULTI, WATCH, scripts, functions,
RESP2 and RESP3 among them); scenes of several connections come between (blocking commands, WATCH,
DUMP and RESTORE, SWAPDB, SCAN). The clock of both stands still (frozen_clock.c) and is moved by the
test, so that deadlines pass at the same command; expiry is lazy. LUNAR_SEED= replays. With
TWIN_PLAIN=1 both servers are plain: what differs then is chance in this test.

Left out: RANDOMKEY and random picks of some elements (chance), BYLEX on sets of several scores
(follows random levels); OBJECT IDLETIME and FREQ (set by the server's timer); MEMORY, INFO, CLIENT,
SLOWLOG, LATENCY, COMMAND, CONFIG GET (they name the server, not the data); MONITOR, pub/sub
(redis_wire_test has SUBSCRIBE); MIGRATE, CLUSTER, WAIT; FLUSHALL (nothing would be left); cut and
inline input, endings (redis_wire_test).
"""
import mmap
import os
import time

import pytest

from build_tree import BUILD
from redis_server import MIB, SEED, Wire, packed, wait_until
from redis_twin_commands import CLIENTS, KEYS_EACH, LIBRARY, SCRIPTS, TYPES, Commands

CLOCK = os.path.join(BUILD, "tests/redis/libfrozen-clock.so")
PLAIN = os.environ.get("TWIN_PLAIN")
CAP_MIB, CHECKPOINTS = 16, 10
CONNECTIONS = CLIENTS + 3   # those behind CLIENTS wait in blocking commands
PATIENCE_S = 900            # DEBUG DIGEST on a loaded machine
START_MS = 1_700_000_000_000
END = packed("PING", "<end>"), b"$5\r\n<end>\r\n"
# jemalloc's thread would spin while the clock stands still. DUMP's payloads are compared:
# compression leaves chance in them (LZF's table is not cleared). It is on while a child saves.
SETTINGS = ("--databases", "4", "--hash-max-listpack-entries", "32", "--rdbcompression", "no",
            "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0", "--jemalloc-bg-thread",
            "no")


def parse(data, at):
    """The reply at `at`, RESP2 or RESP3, as (type, text or list; None: null), and where it ends."""
    end = data.index(b"\r\n", at)
    kind, line, at = data[at:at + 1], data[at + 1:end], end + 2
    assert kind in b"+-:,#(_$=*~>%", f"a reply begins with {kind + line!r}"
    if kind in b"_$=*~>%" and (kind == b"_" or int(line) < 0):
        return (kind, None), at
    if kind in b"$=":
        size = int(line)
        return (kind, data[at:at + size]), at + size + 2
    if kind not in b"*~>%":
        return (kind, line), at
    items = []
    for _ in range(int(line) * (2 if kind == b"%" else 1)):
        item, at = parse(data, at)
        items.append(item)
    return (kind, items), at


def parse_all(data, count):
    replies, at = [], 0
    for _ in range(count):
        reply, at = parse(data, at)
        replies.append(reply)
    assert data[at:] == END[1], f"{len(data) - at} bytes follow {count} replies"
    return replies


ORDERS = {   # as a set, as pairs, [cursor, the same]; by length; arrays at all depths as sets
    "set": ("SMEMBERS SINTER SUNION SDIFF SPOP SRANDMEMBER HKEYS HVALS HRANDFIELD ZRANDMEMBER "
            "KEYS"),
    "pairs": "HGETALL", "scan": "SSCAN", "scan pairs": "HSCAN ZSCAN", "deep": "FUNCTION",
}


def order_of(words):
    """How its reply is compared: what has the order of a hash table as a set of elements, DUMP of
    one by its length. RESP3's own sets and maps are unordered anyway."""
    verb = words[0]
    if verb.endswith("RANDFIELD") or verb == "ZRANDMEMBER":
        return "pairs" if words[-1].startswith("WITH") else "set"
    if verb == "SORT" and "GET" in words:
        return "pairs"   # ties
    if verb == "DUMP":
        return "length" if words[1].split(":")[1] in "ht" else ""
    return next((order for order, verbs in ORDERS.items() if verb in verbs.split()), "")


def canonical(reply, order):
    """Equal for equal replies."""
    kind, what = reply
    if not isinstance(what, list):
        return (kind, len(what)) if order == "length" and what is not None else reply
    if order.startswith("scan") and len(what) == 2:
        return kind, [what[0], canonical(what[1], "pairs" if "pairs" in order else "set")]
    items = [canonical(item, "deep" if order == "deep" else "") for item in what]
    if kind not in b"%~" and order not in ("set", "pairs", "deep"):
        return kind, items
    # RESP3's pairs are arrays of two
    pairs = kind == b"%" or (order == "pairs" and items and items[0][0] != b"*")
    step = 2 if pairs else 1
    return kind, sorted((items[at:at + step] for at in range(0, len(items), step)), key=repr)


def shown(what):
    text = repr(what)
    return text if len(text) < 400 else f"{text[:400]}... ({len(text)} characters)"


def must_be_equal(words, one, other, where):
    order = order_of(words)
    one, other = canonical(one, order), canonical(other, order)
    if one == other:
        return
    a, b = repr(one), repr(other)
    at = max(0, next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), 0) - 40)
    pytest.fail(f"{where}: {shown(words)}\n  tiered: {shown(one)}\n  plain:  {shown(other)}\n"
                f"  at {at}: {a[at:at + 160]} and {b[at:at + 160]}")


class Twins:
    """The two servers, under one clock that stands still."""

    def __init__(self, servers, directory, commands):
        self.servers, self.commands, self.sent = servers, commands, 0
        path = os.path.join(directory, "clock")
        with open(path, "w+b") as file:
            file.truncate(4096)
            self.clock = mmap.mmap(file.fileno(), 4096)
        self.set_ms(START_MS)
        self.environment = {"LD_PRELOAD": CLOCK, "FROZEN_CLOCK": path, "LC_ALL": "C"}
        self.both = self.tiered, self.plain = [self.another(name) for name in ("tiered", "plain")]
        self.commands_of = [server.command for server in self.both]
        self.connect()

    def set_ms(self, now):
        self.ms = self.commands.now_ms = now
        self.clock[:8] = (now * 1000).to_bytes(8, "little")

    def advance_ms(self, by):
        self.set_ms(self.ms + by)

    def another(self, name, *words):
        # An expired key goes when a command looks at it, the same one in both. (Otherwise the
        # gate would look at the real clock.)
        options = {"name": name, "environment": self.environment,
                   "first": ("DEBUG", "SET-ACTIVE-EXPIRE", "0")}
        if PLAIN or name == "plain":
            return self.servers.plain(*SETTINGS, *words, **options)
        return self.servers.tiered(*SETTINGS, *words, dram=f"{CAP_MIB}mb", size=f"{40 * CAP_MIB}mb",
                                   **options)

    def connect(self):
        self.wires = [[Wire(server.port, PATIENCE_S) for server in self.both]
                      for _ in range(CONNECTIONS)]
        # Every second one speaks RESP3. Its greeting names versions and ids: not compared.
        for wires in self.wires[1::2]:
            for wire in wires:
                wire.send(packed("HELLO", "3") + END[0])
                wire.until(END[1])
        self.commands.digests = [self.ask(0, "SCRIPT", "LOAD", text)[1].decode()
                                 for text, _, _ in SCRIPTS]

    def restart(self, *words, at_ms=None):
        for server in self.both:
            check_result(server)
            server.client.refused("SHUTDOWN", "NOSAVE", "NOW")
            server.process.wait(PATIENCE_S)
        self.set_ms(at_ms or self.ms)
        for server, command in zip(self.both, self.commands_of):
            server.command = [*command, *words]
            server.start()
        self.connect()

    def send(self, connection, batch):
        data = b"".join(packed(*words) for words in batch) + END[0]
        for wire in self.wires[connection]:
            wire.send(data)
        self.sent += len(batch)

    def receive(self, connection, batch):
        """Replies to the batch: those of the tiered server, equal to the plain one's."""
        one, other = (wire.until(END[1]) for wire in self.wires[connection])
        replies = parse_all(one, len(batch))
        if one == other:
            return replies
        queued = []   # since MULTI
        for at, (words, a, b) in enumerate(zip(batch, replies, parse_all(other, len(batch)))):
            where = f"step {at} on connection {connection}, {self.sent} commands into the run"
            if words[0] in ("MULTI", "DISCARD"):
                queued = []
            if a[1] == b"QUEUED":
                queued.append(words)
            if words[0] != "EXEC" or not a[1] or not b[1] or {len(a[1]), len(b[1])} != {
                    len(queued)}:
                must_be_equal(words, a, b, where)
                continue
            for words_of_it, x, y in zip(queued, a[1], b[1]):
                must_be_equal(words_of_it, x, y, f"{where}, in EXEC")
            queued = []
        return replies

    def exchange(self, *batches):
        """The batch of connection i to both, all of them before any reply is read."""
        for connection, batch in enumerate(batches):
            self.send(connection, batch)
        return [reply for connection, batch in enumerate(batches)
                for reply in self.receive(connection, batch)]

    def ask(self, connection, *words):
        self.send(connection, [words])
        return self.receive(connection, [words])[0]

    def tell(self, *words):
        """Checks that are no part of the comparison."""
        for server in self.both:
            server.client.ask(*words)

    def digest(self):
        clients = [server.client for server in self.both]
        for client in clients:
            client.send([("DEBUG", "DIGEST")])
        one, other = (client.receive() for client in clients)
        assert one == other and len(one) == 40, "DEBUG DIGEST of the tiered and the plain server"
        return one

    def digest_of_the_living(self):
        """Looks at expired keys, so that they go: a load may drop them or not."""
        for database in range(4):
            self.scan(database)
        return self.digest()

    def scan(self, database, *options):
        """Each server by its own cursors: the keys it names."""
        found = []
        for server in self.both:
            client, keys, cursor = server.connect(), set(), None
            client.ask("SELECT", str(database))
            while cursor != b"0":
                cursor, some = client.ask("SCAN", cursor or "0", "COUNT", "2000", *options)
                keys |= set(some)
            client.close()
            found.append(keys)
        assert found[0] == found[1], f"SCAN {options} of database {database}"

    def wait_until_both(self, section, name, value):
        for server in self.both:
            wait_until(f"{name} of {value}", lambda: server.info(section)[name] == str(value),
                       PATIENCE_S)


def check_result(server):
    """It lived above its budget, without an error."""
    lunar = server.info("lunar")
    if not lunar:
        return
    figures = {name.removeprefix("lunar_"): int(text) for name, text in lunar.items()
               if text.isdigit()}
    budget, evicted = figures["dram_budget_bytes"], figures["evicted_pages"] * 4096
    assert budget == CAP_MIB * MIB and figures["resident_peak_bytes"] <= budget
    assert min(evicted, figures["lun_read_bytes"]) >= 2 * budget, "it hardly tiered"
    assert figures["read_errors"] == figures["write_errors"] == figures["poisoned_pages"] == 0
    assert figures["gate_held"] >= 100 or "replica" in server.directory


# ---- scenes: what needs several connections in a known order, or the whole database --------------

def blocked(twins, commands):
    """Two or three clients wait in blocking commands, one after the other; what is then pushed goes
    to them in that order; who gets nothing times out when the clock moves."""
    pick = commands.pick
    a, b, form = f"wait:{pick(3)}", f"wait:{pick(3)}", pick(9)
    twins.ask(0, "DEL", a, b, "wait:to")
    if form >= 7:
        for key in (a, b):
            twins.ask(0, "XGROUP", "CREATE", key, "g", "$", "MKSTREAM")
    command = [
        ["BLPOP", a, b, "1.5"], ["BRPOP", b, a, "2"],
        ["BLMOVE", a, "wait:to", "LEFT", "RIGHT", "1"],
        ["BLMPOP", "2", "2", a, b, "RIGHT", "COUNT", "2"],
        ["BZPOPMIN", a, b, "1"], ["BZPOPMAX", a, "1.5"],
        ["BZMPOP", "1", "2", b, a, "MIN", "COUNT", "2"],
        ["XREAD", "BLOCK", "1000", "STREAMS", a, b, "$", "$"],
        ["XREADGROUP", "GROUP", "g", "ann", "BLOCK", "1500", "COUNT", "1", "STREAMS", a, ">"],
    ][form]
    batches = []
    for waiter in range(2 + pick(2)):
        commands.client = pick(CLIENTS)
        behind = commands.key("s")   # may run before the clock moves, or after
        twins.ask(0, "PERSIST", behind)
        batches.append([command, ["GET", behind]])
        twins.send(CLIENTS + waiter, batches[-1])
        twins.wait_until_both("clients", "blocked_clients", waiter + 1)
    value = commands.text(pick(3000))
    if form >= 7:
        push = [["XADD", a, "*", "f", value], ["XADD", b, "*", "f", "2"]]
    elif form >= 4:
        push = [["ZADD", a, "1", "m", "2", value], ["ZADD", b, "3", "n"]]
    else:
        push = [["RPUSH", a, value], ["LPUSH", b, "2"]]
    if commands.one_in(3):
        push.pop()
    push = commands.one_of([
        push, [["MULTI"], *push, ["EXEC"]],
        [["EVAL", "for i = 1, 2 do redis.call('RPUSH', KEYS[1], ARGV[1] .. i) end return 1", "1", a,
          value]],
        [["DEL", a], ["SORT", commands.key("l"), "ALPHA", "STORE", a]],   # unblocks lists
    ])
    twins.exchange(push)
    twins.advance_ms(3000)
    for waiter, batch in enumerate(batches):
        twins.receive(CLIENTS + waiter, batch)
    twins.exchange([["TYPE", a], ["TYPE", b], ["LRANGE", "wait:to", "0", "-1"],
                    ["DEL", a, b, "wait:to"]])


def watched(twins, commands):
    """WATCH on one connection, a write or nothing on another, or time passes; then EXEC."""
    commands.client = commands.pick(CLIENTS)
    a, b, what = commands.word("any"), commands.word("any"), commands.pick(5)
    if commands.one_in(3):
        twins.ask(1, "PEXPIRE", a, "50")
    twins.ask(0, "WATCH", a, b, "nothing")
    if what == 0:
        twins.ask(1, "DEL", a)
    elif what == 1:
        twins.ask(1, "RENAME", b, a)
    elif what == 2:
        twins.advance_ms(100)
    elif what == 3:
        twins.exchange([], [commands.any(), commands.any()])
    twins.exchange([["MULTI"], ["EXISTS", a, b], commands.any(), ["TYPE", b],
                    ["DISCARD" if commands.one_in(6) else "EXEC"]])


def dumped(twins, commands):
    """DUMP of one key; the tiered server's payload is given to both, under another name, with or
    without a deadline, whole or spoilt."""
    commands.client, kind = commands.pick(CLIENTS), commands.one_of(TYPES)
    key, to = commands.key(kind), commands.key(kind)
    payload = twins.ask(2, "DUMP", key)[1]
    if payload is None:
        return
    if commands.one_in(10):
        payload = bytearray(payload)
        payload[commands.pick(len(payload))] ^= 1
    deadline = commands.one_of([["0"], [commands.deadline("px")],
                                [commands.deadline("pxat"), "ABSTTL"]])
    words = ["RESTORE", to, deadline[0], bytes(payload), *deadline[1:],
             *([] if commands.one_in(4) else ["REPLACE"])]
    twins.exchange([words, ["TYPE", to], ["OBJECT", "ENCODING", to], ["PTTL", to],
                    ["DEBUG", "DIGEST-VALUE", to, key]])


def swapped(twins, commands):
    client = commands.pick(CLIENTS)
    twins.ask(0, "SWAPDB", "0", "1")
    twins.exchange(commands.batch(client), commands.batch((client + 1) % CLIENTS))
    twins.ask(3, "SWAPDB", "0", "1")
    if commands.one_in(3):
        twins.ask(1, "SWAPDB", "1", "2")
    if commands.one_in(8):
        twins.exchange([["SELECT", "3"], commands.any(), ["DBSIZE"], ["FLUSHDB", "SYNC"],
                        ["DBSIZE"], ["SELECT", "0"]])


def functions(twins, commands):
    what, library = commands.pick(6), LIBRARY % commands.pick(1000)
    if what == 0:
        twins.ask(0, "FUNCTION", "LOAD", library)   # refused when it is there
    elif what == 1:
        twins.ask(0, "FUNCTION", "DELETE", "twin")
    elif what == 2:
        payload = twins.ask(0, "FUNCTION", "DUMP")[1]
        twins.ask(1, "FUNCTION", "FLUSH")
        twins.ask(0, "FUNCTION", "RESTORE", payload, commands.one_of(["APPEND", "REPLACE"]))
    else:
        twins.ask(0, "FUNCTION", "LOAD", "REPLACE", library)
    twins.ask(2, "FUNCTION", "LIST", "WITHCODE")
    twins.ask(1, "FUNCTION", "STATS")


def described(twins, commands):
    some = f"c{commands.pick(CLIENTS)}:{commands.one_of(TYPES)}:7*"
    twins.exchange([["SELECT", "0"], ["DBSIZE"], ["KEYS", some], ["TIME"]])
    if commands.one_in(4):
        twins.scan(0, *commands.one_of([("TYPE", "hash"), ("MATCH", "c1:?:*5")]))


def time_passes(twins, commands):
    twins.advance_ms(1 + commands.pick(2000))


SCENES = [blocked] * 3 + [watched] * 4 + [dumped] * 5 + [swapped] * 2 + [functions] * 2 + [
    described, time_passes, time_passes]


# ---- the run -------------------------------------------------------------------------------------

class Run:
    def __init__(self, twins, commands):
        self.twins, self.commands, self.played = twins, commands, 0
        self.began = time.monotonic()

    def say(self, what):
        print(f"{self.played:7} commands {time.monotonic() - self.began:6.1f} s  {what}",
              flush=True)

    def fill(self):
        for first in range(0, KEYS_EACH, 20):
            self.twins.exchange(*([["SELECT", "0"], *(
                words for kind in TYPES for number in range(first, first + 20)
                for words in self.commands.fill(f"c{client}:{kind}:{number}", kind))]
                for client in range(CLIENTS)))

    def rounds(self, count=1):
        for _ in range(count):
            before = self.twins.sent
            self.twins.exchange(*map(self.commands.batch, range(CLIENTS)))
            if self.commands.one_in(4):
                for connection in range(4):
                    self.twins.ask(connection, "SELECT", "0")
                self.commands.one_of(SCENES)(self.twins, self.commands)
            self.played += self.twins.sent - before

    def census(self):
        """Encoding and deadline of every key of database 0, all there is to tell of every stream;
        what is no longer there is made anew."""
        for kind in TYPES:
            batches = []
            for client in range(CLIENTS):
                batches.append([["SELECT", "0"]])
                for number in range(KEYS_EACH):
                    key = f"c{client}:{kind}:{number}"
                    batches[-1] += [["OBJECT", "ENCODING", key], ["PTTL", key]]
                    if kind == "x":
                        batches[-1].append(["XINFO", "STREAM", key, "FULL", "COUNT", "0"])
            replies = iter(self.twins.exchange(*batches))
            self.twins.exchange(*([words for asked in batch
                                   if next(replies)[1] is None and asked[0] == "OBJECT"
                                   for words in self.commands.fill(asked[2], kind)]
                                  for batch in batches))

    def checkpoint(self, what, wanted=None):
        digest = self.twins.digest()
        data = int(self.twins.plain.info("memory")["used_memory"])
        self.say(f"{what}: equal, {data / MIB:.0f} MiB of data")
        assert data >= 8 * CAP_MIB * MIB, "less than 8 times the budget"
        assert wanted in (None, digest), f"DEBUG DIGEST {what}"
        return digest

    def wait_for_children(self, running, status):
        self.twins.wait_until_both("persistence", running, 0)
        self.twins.wait_until_both("persistence", status, "ok")

    def save_and_restart(self):
        at_fork, time_of_fork = self.twins.digest_of_the_living(), self.twins.ms
        self.twins.tell("CONFIG", "SET", "rdbcompression", "yes")
        self.twins.tell("BGSAVE")
        self.rounds(20)
        self.wait_for_children("rdb_bgsave_in_progress", "rdb_last_bgsave_status")
        self.twins.restart(at_ms=time_of_fork)   # a load drops what has expired since
        self.checkpoint("after BGSAVE and a restart", at_fork)
        self.census()

    def append_and_restart(self, preamble):
        self.twins.tell("CONFIG", "SET", "rdbcompression", "yes")
        self.twins.tell("CONFIG", "SET", "aof-use-rdb-preamble", preamble)
        self.twins.tell("CONFIG", "SET", "appendonly", "yes")
        self.rounds(20)
        self.wait_for_children("aof_rewrite_in_progress", "aof_last_bgrewrite_status")
        self.twins.tell("BGREWRITEAOF")
        self.rounds(20)
        self.wait_for_children("aof_rewrite_in_progress", "aof_last_bgrewrite_status")
        self.twins.tell("CONFIG", "SET", "rdbcompression", "no")
        self.rounds(40)
        wanted = self.twins.digest_of_the_living()
        self.twins.restart("--appendonly", "yes")
        self.checkpoint(f"after a replay of the AOF (preamble {preamble})", wanted)
        self.twins.tell("CONFIG", "SET", "appendonly", "no")
        self.census()

    def replicate(self, load):
        replica = self.twins.another(f"replica-{load}", "--repl-diskless-load", load)
        master = self.twins.tiered
        self.twins.tell("CONFIG", "SET", "rdbcompression", "yes")
        replica.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
        self.rounds(20)
        wait_until("the replica", replica.linked, PATIENCE_S)
        self.twins.tell("CONFIG", "SET", "rdbcompression", "no")
        self.rounds(40)
        wanted = self.checkpoint("with a replica")
        replica.catch_up(master)
        assert replica.digest() == wanted
        libraries = [canonical(parse_all(one.until(END[1]), 1)[0], "deep") for one in
                     map(listing, (replica, self.twins.plain))]
        assert libraries[0] == libraries[1]
        assert int(master.info("stats")["sync_full"]) > 0
        check_result(replica)
        replica.end()


def listing(server):
    wire = Wire(server.port)
    wire.send(packed("FUNCTION", "LIST", "WITHCODE") + END[0])
    return wire


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_twin(servers, directory, count):
    commands = Commands(SEED)
    twins = Twins(servers, directory, commands)
    run = Run(twins, commands)
    run.fill()
    run.checkpoint("filled")
    then = {2: run.save_and_restart, 3: lambda: run.append_and_restart("yes"),
            5: lambda: run.replicate("disabled"), 7: lambda: run.append_and_restart("no"),
            8: lambda: run.replicate("swapdb"), 9: run.save_and_restart}
    for number in range(1, CHECKPOINTS + 1):
        while run.played < number * count // CHECKPOINTS:
            run.rounds()
        if number % 2 == 0:
            run.census()
        run.checkpoint(f"checkpoint {number} of {CHECKPOINTS}")
        if number in then:
            then[number]()
    check_result(twins.tiered)
