# SPDX-License-Identifier: Apache-2.0
"""The gate goes through whole values, at little cost (LUNAR_REDIS_SERVER: on another server)."""
import re

from redis_server import MIB, Figures, packed, sets, value, wait_until

LATENCY_MS, HOLD_MS = 40, 250
LONG_KEYS, LONG_BYTES, LONG = 100_000, 600, 700   # keys, of values, of a command


def fill_others(client, mib=20):
    client.pipeline(sets("other", range(mib * 256), 4000), 500)


def sweep(client, mib=20):
    """Everything else leaves DRAM."""
    client.pipeline([("GET", f"other:{n}") for n in range(mib * 256)], 500)


def test_hot(servers):
    """A large value whose memory is in DRAM is no cold one, and nothing is asked for; one look is
    short, whatever a command names."""
    client = servers.tiered().client
    fill_others(client)
    client.pipeline([("HSET", "h", f"f{n}", "v" * 20) for n in range(3000)])
    client.pipeline([("SADD", "s", f"m{n}") for n in range(1000)])
    wanted, figures = client.ask("HGETALL", "h"), Figures(client, "gate_seen", "gate_seen_cold",
                                                          "overlapped_reads")
    for _ in range(50):
        assert client.ask("HGETALL", "h") == wanted
    seen, cold, reads = figures.grown()
    assert seen == 50 and cold <= 5 and reads <= 50, "what is in DRAM is told to be cold"

    client.ask("SCARD", "s")
    figures = Figures(client, "gate_commands")
    client.pipeline([("MULTI",), ("DEL", *["s"] * 500)])
    client.ask("DISCARD")
    assert figures.grown()[0] >= 50, (
        "one look took it all, and no other client was served meanwhile")
    assert client.ask("DEL", *["s"] * 500) == 1


def test_behind_a_full_look(servers):
    """A cold command behind those that took all of one look is held as any other."""
    turns = 10
    client = servers.tiered(lun="sim:512m,latency_us=5000").client
    fill_others(client)
    fields = [word for n in range(1000) for word in (f"f{n}", "v")]
    figures = Figures(client, "gate_held", "gate_timeouts")
    for turn in range(turns):
        client.pipeline([("HSET", key, *fields) for key in ("h1", "h2")])
        assert client.pipeline([("DEL", "h1"), ("DEL", "h2"), ("GET", f"other:{turn}")]) == [1, 1,
            value(turn, 4000)]
    held, late = figures.grown()
    assert held >= turns and late == 0, "a cold key stopped all clients"


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
            longitude = n * 7919 % 340 - 170 + n / count
            latitude = n * 104729 % 160 - 80 + n / count
            places.append(("GEOADD", "places", str(longitude), str(latitude), f"place:{n}"))
        client.pipeline([("SADD", "large", long_member(n)) for n in some]
                        + [("ZADD", "scores", str(n), member(n)) for n in some] + places, 500)


def test_part(servers):
    """Where sets are compared, or places around one are looked for, only what the server reads is
    asked for, not a quarter of the DRAM."""
    client = servers.tiered().client
    fill_places(client, 40000)
    few = (5, 777, 1999)
    client.pipeline([("SADD", "small", long_member(n))
                     for n in few] + [("ZADD", "few", "1", member(n)) for n in few])
    fill_others(client)
    for words, count in (("SINTER small large", 3), ("SINTERCARD 2 large small", None),
                         ("SDIFF small large", 0),
                         ("ZINTER 2 scores few", 3), ("SINTER none large", 0),
                         ("SINTERSTORE to large small", None),
                         ("ZDIFF 2 few scores", 0),
                         ("GEOSEARCH places FROMLONLAT 10 10 BYRADIUS 50 km", None)):
        sweep(client)
        figures = Figures(client, "lun_read_bytes")
        reply = client.ask(*words.split())
        assert figures.grown()[0] < MIB, f"{words}: bytes read from the LUN"
        assert count is None or len(reply) == count, words


def test_types(servers):
    """Large values of each type, cold, are known to the gate and scanned."""
    server = servers.tiered()
    client = server.client
    client.pipeline([command for n in range(2000) for command in (
        ("HSET", "h", f"f{n}", f"value {n}"), ("SADD", "s", f"member {n}"),
        ("ZADD", "z", str(n), f"member {n}"),
        ("RPUSH", "l", f"{n} " + "e" * 200), ("XADD", "x", f"{n + 1}-1", "f", f"{n}"))], 500)
    fill_others(client)

    def scan(name, key):
        found, cursor = [], b"0"
        while not found or cursor != b"0":
            sweep(client, 1)
            cursor, some = client.ask(name, key, cursor.decode(), "COUNT", "100")
            found += some
        return found

    sweep(client)
    for name, key, step in (("SSCAN", "s", 1), ("ZSCAN", "z", 2), ("HSCAN", "h", 2)):
        assert len(set(scan(name, key)[::step])) == 2000
        sweep(client)
        assert client.ask(name, key, "0", "COUNT", "100000")[0] == b"0"   # all of it at once
    sweep(client)
    assert client.ask("LPOP", "l").startswith(b"0 ")
    assert len(client.ask("LRANGE", "l", "0", "-1")) == 1999
    assert client.ask("XLEN", "x") == len(client.ask("XRANGE", "x", "-", "+")) == 2000
    assert len(client.ask("ZRANGE", "z", "0", "-1")) == len(client.ask("SMEMBERS", "s")) == 2000
    for key in "hszlx":
        assert client.ask("DEL", key) == 1
    assert client.info("lunar")["lunar_gate"] == "watching"
    assert "looks no further" not in server.text()


def test_slow_device(servers):
    """A lookup that takes longer than gate-hold-ms goes on, and its command finds its pages."""
    client = servers.tiered(lun=f"sim:512m,latency_us={LATENCY_MS * 1000}").client

    def field(key, n):
        return value(key * 5000 + n, 100)

    keys = range(3)
    client.pipeline([("HSET", f"h:{key}", f"field:{n}", field(key, n)) for n in range(4000)
                     for key in keys], 300)
    fill_others(client)
    client.ask("CONFIG", "SET", "lunar.gate-hold-ms", str(HOLD_MS))
    faults, late = 0, Figures(client, "gate_timeouts")
    for key in keys:
        figures = Figures(client, "main_cold_faults")
        reply = client.ask("HGETALL", f"h:{key}")
        faults += figures.grown()[0]
        assert dict(zip(reply[::2], reply[1::2])) == {b"field:%d" % n: field(key, n)
                                                      for n in range(4000)}
    assert late.grown()[0] < len(keys) and faults / len(keys) < 20, (
        "lookups are given up, and all clients wait")


def test_long_commands(servers):
    """Commands have more keys than a read or 512 arguments hold."""
    client = servers.tiered(lun="sim:1g,latency_us=100", size="1gb", forks="no").client

    def name(number):
        return f"a key whose name is longer than most names are:{number:06}"

    def keys_of(turn):
        return [(turn * LONG + n) * 41 % LONG_KEYS for n in range(LONG)]

    def get(turn):
        assert client.ask("MGET", *map(name, keys_of(turn))) == [value(n, LONG_BYTES)
            for n in keys_of(turn)]

    def put(turn):
        client.ask("MSET",
                   *[word for number in keys_of(turn)
                     for word in (name(number), value(number, 100))])

    def drop(turn):
        assert client.ask("DEL", *map(name, keys_of(turn))) == LONG

    client.ask("CONFIG", "SET", "lunar.dram", "48mb")
    client.pipeline([("SET", name(number), value(number, LONG_BYTES))
                     for number in range(LONG_KEYS)], 500)
    for turn in range(20):
        get(turn)
    for first, run in ((20, get), (40, put), (60, drop)):
        figures = Figures(client, "main_cold_faults")
        for turn in range(first, first + 10):
            run(turn)
        assert figures.grown()[0] / 10 / LONG < 0.1, (
            f"{run.__name__}: faults of the main thread a key")


def test_command_in_two_parts(servers):
    """Commands of which the server has a part, whose memory leaves DRAM before the rest comes."""
    # commands, keys of one, keys that the server has of it when it becomes cold
    turns, each, there = 10, 200, 150
    server = servers.tiered(forks="no")
    client, slow = server.client, server.connect()
    fill_others(client, 48)
    name = value(0, 40).hex()
    client.pipeline([("SET", f"{name}{number}", value(number, 100))
                     for number in range(turns * each)])
    faults = held = 0
    for turn in range(turns):
        numbers = [turn + n * turns for n in range(each)]
        command = packed("MGET", *[f"{name}{number}" for number in numbers])
        cut = command.index(name.encode() + str(numbers[there]).encode())
        slow.socket.sendall(command[:cut])
        wait_until("the server has the first part", lambda: max(map(int, re.findall(
            rb"argv-mem=(\d+)", client.ask("CLIENT", "LIST")))) > there * len(name))
        sweep(client, 48)
        figures = Figures(client, "main_cold_faults", "gate_held")
        slow.socket.sendall(command[cut:])
        assert slow.receive() == [value(number, 100) for number in numbers]
        more = figures.grown()
        faults, held = faults + more[0], held + more[1]
    assert held >= turns
    assert faults / turns < each / 10, "faults of the main thread a command"


def test_transactions(servers):
    mib, each, turns = 48, 100, 30   # of data, GETs of a transaction, transactions
    keys = mib * 256
    server = servers.tiered()
    client = server.client

    def one(numbers, at_once):
        words = [("MULTI",), *(("GET", f"other:{number}") for number in numbers), ("EXEC",)]
        assert client.pipeline(words, len(words) if at_once else 1)[-1] == [value(number, 4000)
            for number in numbers]

    fill_others(client, mib)
    client.pipeline([("EXISTS", f"other:{number}") for number in range(200)], 500)
    for at_once in (True, False):
        figures = Figures(client, "main_cold_faults")
        for turn in range(turns):
            one([(turn * each + n) * 7919 % keys for n in range(each)], at_once)
        assert figures.grown()[0] / turns / each < 0.1, "faults of the main thread for a GET"
    figures = Figures(client, "main_cold_faults")
    one([n * 7919 % keys for n in range(keys)], True)   # three times the DRAM
    server.must_live("a transaction of three times the DRAM")
    server.peak_within(16 + 128)
    assert figures.grown()[0] / keys <= 2, "faults of the main thread for a GET of a page"
