# SPDX-License-Identifier: Apache-2.0
"""redis_walks_test MODULE SCENARIO: what it costs that the gate goes through whole values.

  hot     a large value whose memory is in DRAM is no cold one, and nothing is asked for; one look is short, whatever a
          command names
  part    of sets that are compared, and of places around one, only what is read is asked for, not a quarter of the DRAM
  types   large values of each type, cold, are known to the gate and scanned (LUNAR_REDIS_SERVER: on another server)
  slow    a lookup that takes longer than gate-hold-ms goes on, and its command finds its pages: a LUN of 40 ms
  long        commands of more keys than a read or 512 arguments hold: MGET, MSET, DEL
  arguments   commands of which the server has a part, whose memory leaves DRAM before the rest comes
"""
import re
import sys
import time

from redis_server import run_scenario, wait_until
from redis_space_test import MIB, PATIENCE_S, SEED, value, with_server
from resp import words_of

LATENCY_MS, HOLD_MS = 40, 250
LONG_KEYS, LONG_BYTES, LONG = 100_000, 600, 700   # keys, of values, of a command


def ask_all(client, commands, batch=500):
    for first in range(0, len(commands), batch):
        part = commands[first:first + batch]
        client.send(part)
        for _ in part:
            client.receive()


def sweep(client, mib=20):
    """Everything else leaves DRAM."""
    ask_all(client, [("GET", f"other:{n}") for n in range(mib * 256)])


def fill_others(client, mib=20):
    ask_all(client, [("SET", f"other:{n}", value(n, 4000)) for n in range(mib * 256)])


def hot(directory, module):
    def test(server):
        client = server.connect()
        fill_others(client)
        ask_all(client, [("HSET", "h", f"f{n}", "v" * 20) for n in range(3000)])
        ask_all(client, [("SADD", "s", f"m{n}") for n in range(1000)])
        wanted = client.ask("HGETALL", "h")
        names = ("gate_seen", "gate_seen_cold", "overlapped_reads")
        before = [client.figure(name) for name in names]
        for _ in range(50):
            assert client.ask("HGETALL", "h") == wanted, "HGETALL gives something else"
        seen, cold, reads = (client.figure(name) - was for name, was in zip(names, before))
        print(f"50 HGETALL of 3,000 hot fields: {seen} seen, {cold} of them cold, {reads} pieces asked for")
        assert seen == 50 and cold <= 5 and reads <= 50, "what is in DRAM is told to be cold"

        client.ask("SCARD", "s")
        looks = client.figure("gate_commands")
        client.ask("MULTI")
        client.send([("DEL", *["s"] * 500)])
        assert client.receive() == b"QUEUED"
        client.ask("DISCARD")
        looks = client.figure("gate_commands") - looks
        print(f"DEL that names a set of 1,000 members 500 times: {looks} looks")
        assert looks >= 50, "one look took it all, and no other client was served meanwhile"
        assert client.ask("DEL", *["s"] * 500) == 1

    with_server(directory, module, test, size="512mb")

def member(n):
    return f"member:{n:06}"


def long_member(n):
    return member(n) + "y" * 40


def fill_places(client, count):
    """A set, scores and places; the parts of each lie among the others'."""
    for first in range(0, count, 500):
        some = range(first, first + 500)
        places = []
        for n in some:
            longitude, latitude = n * 7919 % 340 - 170 + n / count, n * 104729 % 160 - 80 + n / count
            places.append(("GEOADD", "places", str(longitude), str(latitude), f"place:{n}"))
        ask_all(client, [("SADD", "large", long_member(n)) for n in some]
                + [("ZADD", "scores", str(n), member(n)) for n in some] + places)


def part(directory, module):
    def test(server):
        client = server.connect()
        fill_places(client, 40000)
        few = (5, 777, 1999)
        ask_all(client, [("SADD", "small", long_member(n)) for n in few])
        ask_all(client, [("ZADD", "few", "1", member(n)) for n in few])
        fill_others(client)
        for words in (("SINTER", "small", "large"), ("SINTERCARD", "2", "large", "small"), ("SDIFF", "small", "large"),
                      ("ZINTER", "2", "scores", "few"), ("SINTER", "none", "large"),
                      ("SINTERSTORE", "to", "large", "small"), ("ZDIFF", "2", "few", "scores"),
                      ("GEOSEARCH", "places", "FROMLONLAT", "10", "10", "BYRADIUS", "50", "km")):
            sweep(client)
            before = client.figure("lun_read_bytes")
            reply = client.ask(*words)
            read = client.figure("lun_read_bytes") - before
            print(f"{' '.join(words)}: {read / 1024:.0f} KiB, {reply if isinstance(reply, int) else len(reply)}")
            assert read < MIB, f"{words[0]}: {read / MIB:.1f} MiB were read from the LUN"
            if words[0] == "SINTER":
                assert len(reply) == (3 if words[1] == "small" else 0), f"{words}: {reply}"

    with_server(directory, module, test, size="512mb")


def types(directory, module):
    def test(server):
        client = server.connect()
        some = range(2000)
        ask_all(client, [command for n in some for command in (
            ("HSET", "h", f"f{n}", f"value {n}"), ("SADD", "s", f"member {n}"), ("ZADD", "z", str(n), f"member {n}"),
            ("RPUSH", "l", f"{n} " + "e" * 200), ("XADD", "x", f"{n + 1}-1", "f", f"{n}"))])
        fill_others(client)

        def scan(name, key):
            found, cursor = [], b"0"
            while not found or cursor != b"0":
                sweep(client, 1)
                cursor, part_of = client.ask(name, key, cursor.decode(), "COUNT", "100")
                found += part_of
            return found

        sweep(client)
        assert len(set(scan("SSCAN", "s"))) == 2000 and len(dict(zip(*[iter(scan("ZSCAN", "z"))] * 2))) == 2000
        assert len(dict(zip(*[iter(scan("HSCAN", "h"))] * 2))) == 2000
        for name, key in (("ZSCAN", "z"), ("SSCAN", "s"), ("HSCAN", "h")):   # all of it at once
            sweep(client)
            assert client.ask(name, key, "0", "COUNT", "100000")[0] == b"0"
        sweep(client)
        assert client.ask("LPOP", "l").startswith(b"0 ")
        assert len(client.ask("LRANGE", "l", "0", "-1")) == 1999
        assert client.ask("XLEN", "x") == len(client.ask("XRANGE", "x", "-", "+")) == 2000
        assert len(client.ask("ZRANGE", "z", "0", "-1")) == len(client.ask("SMEMBERS", "s")) == 2000
        for key in "hszlx":
            assert client.ask("DEL", key) == 1
        assert client.info("lunar")["lunar_gate"] == "watching"
        server.must_live("scans")
        assert "looks no further" not in server.text(), server.text()[-1000:]

    with_server(directory, module, test, size="512mb")


def slow(directory, module):
    def field(key, n):
        return value(key * 5000 + n, 100)

    def test(server):
        client = server.connect()
        keys = range(3)
        for first in range(0, 4000, 100):
            some = range(first, first + 100)
            ask_all(client, [("HSET", f"h:{key}", f"field:{n}", field(key, n)) for key in keys for n in some])
        fill_others(client)
        client.ask("CONFIG", "SET", "lunar.gate-hold-ms", str(HOLD_MS))
        faults, late = 0, client.figure("gate_timeouts")
        for key in keys:
            before = client.figure("main_cold_faults")
            reply = client.ask("HGETALL", f"h:{key}")
            faults += client.figure("main_cold_faults") - before
            fields = dict(zip(reply[::2], reply[1::2]))
            wanted = {b"field:%d" % n: field(key, n) for n in range(4000)}
            assert fields == wanted, "HGETALL gives something else"
        late = client.figure("gate_timeouts") - late
        print(f"{faults / len(keys):.1f} faults of the main thread a cold HGETALL, {late} of {len(keys)} passed cold")
        answered = late < len(keys) and faults / len(keys) < 20
        assert answered, "lookups are given up after gate-hold-ms, and all clients wait"

    with_server(directory, module, test, lun=f"sim:512m,latency_us={LATENCY_MS * 1000}", size="512mb")


def long(directory, module):
    def name(number):
        return f"a key whose name is longer than most names are:{number:06}"

    def test(server):
        client = server.connect()
        client.ask("CONFIG", "SET", "lunar.dram", "48mb")
        ask_all(client, [("SET", name(number), value(number, LONG_BYTES)) for number in range(LONG_KEYS)])

        def keys_of(turn):
            return [(turn * LONG + n) * 41 % LONG_KEYS for n in range(LONG)]

        def get(turn):
            got = client.ask("MGET", *map(name, keys_of(turn)))
            assert got == [value(number, LONG_BYTES) for number in keys_of(turn)], "MGET gives something else"

        def put(turn):
            assert client.ask("MSET", *[word for number in keys_of(turn)
                                        for word in (name(number), value(number, 100))]) == b"OK"

        def drop(turn):
            assert client.ask("DEL", *map(name, keys_of(turn))) == LONG

        for turn in range(20):
            get(turn)
        for first, what, run in ((20, "MGET", get), (40, "MSET", put), (60, "DEL", drop)):
            before, looks = client.figure("main_cold_faults"), client.figure("gate_commands")
            for turn in range(first, first + 10):
                run(turn)
            faults = (client.figure("main_cold_faults") - before) / 10 / LONG
            looks = (client.figure("gate_commands") - looks) / 10
            print(f"{what} of {LONG} cold keys: {faults:.3f} faults of the main thread a key, {looks:.0f} looks")
            assert faults < 0.1, f"{what}: {faults} faults of the main thread a key"

    with_server(directory, module, test, lun="sim:1g,latency_us=100", size="1gb", forks="no")


def arguments(directory, module):
    turns, each, there = 10, 200, 150   # commands, keys of one, keys that the server has of it when it becomes cold

    def test(server):
        client, slow = server.connect(), server.connect()
        fill_others(client, 48)
        fill = value(0, 40).hex()
        ask_all(client, [("SET", f"{fill}{number}", value(number, 100)) for number in range(turns * each)])
        faults = held = 0
        for turn in range(turns):
            numbers = [turn + n * turns for n in range(each)]
            command = words_of(("MGET", *[f"{fill}{number}" for number in numbers]))
            cut = command.index(fill.encode() + str(numbers[there]).encode())
            slow.socket.sendall(command[:cut])
            wait_until("the server has the first part", lambda: max(map(int, re.findall(
                rb"argv-mem=(\d+)", client.ask("CLIENT", "LIST")))) > there * len(fill), PATIENCE_S)
            sweep(client, 48)
            before, holds = client.figure("main_cold_faults"), client.figure("gate_held")
            slow.socket.sendall(command[cut:])
            assert slow.receive() == [value(number, 100) for number in numbers], "MGET gives something else"
            faults += client.figure("main_cold_faults") - before
            held += client.figure("gate_held") - holds
        print(f"MGET of {each} cold keys in two parts: {faults / turns:.1f} faults of the main thread, {held} holds")
        assert held >= turns, f"{held} of {turns} commands were held"
        assert faults / turns < each / 10, f"{faults / turns} faults of the main thread a command"

    with_server(directory, module, test, size="512mb", forks="no")


def transactions(directory, module):
    mib, each = 48, 100   # of data, GETs of a transaction
    keys = mib * 256

    def one(client, numbers, at_once):
        words = [("GET", f"other:{number}") for number in numbers]
        client.send([("MULTI",)])
        for first in range(0, len(words), len(words) if at_once else 1):
            client.send(words[first:first + (len(words) if at_once else 1)])
            if not at_once:
                if first == 0:
                    assert client.receive() == b"OK"
                assert client.receive() == b"QUEUED"
        client.send([("EXEC",)])
        for _ in range(len(words) + 1 if at_once else 0):
            assert client.receive() in (b"OK", b"QUEUED")
        assert client.receive() == [value(number, 4000) for number in numbers], "EXEC gives something else"

    def test(server):
        client = server.connect()
        fill_others(client, mib)
        ask_all(client, [("EXISTS", f"other:{number}") for number in range(200)])
        for at_once in (True, False):
            before, turns = client.figure("main_cold_faults"), 30
            for turn in range(turns):
                one(client, [(turn * each + n) * 7919 % keys for n in range(each)], at_once)
            faults = (client.figure("main_cold_faults") - before) / turns / each
            print(f"{each} GETs in a transaction, {'at once' if at_once else 'one by one'}: {faults:.3f} faults each")
            assert faults < 0.1, f"{faults:.3f} faults of the main thread for a GET in a transaction"
        before, start = client.figure("main_cold_faults"), time.monotonic()
        one(client, [n * 7919 % keys for n in range(keys)], True)
        faults = (client.figure("main_cold_faults") - before) / keys
        print(f"{keys} GETs in a transaction, {mib} MiB: {faults:.3f} faults each, {time.monotonic() - start:.1f} s")
        server.must_live("a transaction of three times the DRAM")
        peak = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{server.process.pid}/status").read())[1]) >> 10
        assert peak <= 16 + 128, f"its resident set peaked at {peak} MiB"
        assert faults <= 2, f"{faults:.2f} faults of the main thread for a GET of a page"

    with_server(directory, module, test, size="512mb")


if __name__ == "__main__":
    print(f"seed {SEED}")
    sys.exit(run_scenario("walks", globals(), sys.argv[2], sys.argv[1], *sys.argv[3:]))
