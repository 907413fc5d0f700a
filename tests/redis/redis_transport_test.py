# SPDX-License-Identifier: Apache-2.0
"""redis_transport_test MODULE SCENARIO [HELPER]: what the gate does for clients that come another way, and what the
module does when it is loaded or unloaded in another order.

  unix        cold reads over a unix socket are held like those over TCP, which run at the same time; each reply is
              checked
  modules     MODULE UNLOAD, MODULE LOAD after loads that failed at each stage: one line that says why, and a server
              that lives
  threads     a thread of the server's own that reads (io-threads) opens the gate, whenever it begins to; HELPER:
              killer_module
  scans       a module's thread scans the keys while clients read: tables can be moved to another size afterwards;
              HELPER: killer_module
  collections lists, hashes, sets, sorted sets and streams of this server are laid out as the gate has them
  config      CONFIG GET lunar.*, then CONFIG SET of what it said: only what the server itself calls immutable is
              refused
"""
import os
import random
import socket
import sys
import time

from redis_server import Client, Server, Servers, run_scenario
from redis_space_test import MIB, PATIENCE_S, SEED, Refused, value, with_server

# Redis 7.0 has to be told; Redis 8 and Valkey know no such option any more, or do so anyway.
DO_READS = ["--io-threads-do-reads", "yes"]
KEYS, BYTES = 16000, 4000   # four times the budget
SCAN_MS, MOVE_S = 3000, 10


class UnixClient(Client):
    def __init__(self, path):   # pylint: disable=super-init-not-called
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self.input = self.socket.makefile("rb", 1 << 16)


def fill(client):
    for first in range(0, KEYS, 200):
        client.send([("SET", f"k:{key}", value(key, BYTES)) for key in range(first, first + 200)])
        for _ in range(200):
            assert client.receive() == b"OK"


def read(client, pick, count, pipeline):
    for _ in range(count // pipeline):
        keys = [pick.randrange(KEYS) for _ in range(pipeline)]
        client.send([("GET", f"k:{key}") for key in keys])
        for key in keys:
            reply = client.receive()
            assert reply == value(key, BYTES), f"GET k:{key} gives {str(reply)[:60]}"


def sent_and_closed(client, path, key, mark):
    gone = UnixClient(path)
    gone.send([("SET", "hot", "x"), ("SETRANGE", key, "0", mark)])
    gone.close()
    until = time.monotonic() + 2
    while client.ask("GETRANGE", key, "0", "7") != mark.encode():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def unix(directory, module):
    path = os.path.join(directory, "socket")

    def test(server):
        one = UnixClient(path)
        fill(one)
        pick = random.Random(SEED)
        read(one, pick, 500, 1)
        before = one.figure("gate_commands"), one.figure("gate_held")
        state = one.info("lunar")["lunar_gate"]
        assert state == "watching", f"the gate is {state}"
        read(one, pick, 500, 1)
        looked, held = one.figure("gate_commands") - before[0], one.figure("gate_held") - before[1]
        print(f"of 500 cold reads over a unix socket {looked} were looked up, {held} held")
        assert looked >= 500, f"{looked} of 500 commands over a unix socket were looked up"
        assert held >= 250, f"{held} of 500 cold commands over a unix socket were held"
        both = [one, server.connect()]
        for turn in range(40):   # pipelines of both, one hangs up now and then
            read(both[turn % 2], pick, 50, 25)
            if turn % 10 == 9:
                half = UnixClient(path)
                half.send([("GET", f"k:{pick.randrange(KEYS)}")] * 20)
                half.close()
        for gate in ("no", "yes"):   # the server reads both commands at once, and its reply finds no reader
            server.connect().ask("CONFIG", "SET", "lunar.gate", gate)
            for _ in range(200):   # the gate begins to watch
                one.ask("EXISTS", "k:1")
            lost = sum(not sent_and_closed(one, path, f"k:{pick.randrange(KEYS)}", f"{gate:>3}{n:05}")
                       for n in range(20))
            print(f"gate {gate}: of 20 commands whose client had gone {lost} did not run")
            assert lost == 0, f"gate {gate}: {lost} of 20 commands were lost, as their client had gone"
        server.must_live("reads over a unix socket")

    with_server(directory, module, test, "--unixsocket", path, size="512mb")


def refusal(client, *command):
    """The error that a command gets, or an empty text."""
    client.send([command])
    reply = client.receive()
    return str(reply) if isinstance(reply, Refused) else ""


def config(directory, module):
    def test(server):
        client = server.connect()
        fill(client)
        got = client.ask("CONFIG", "GET", "*")
        settings = {name.decode(): text for name, text in zip(got[::2], got[1::2])}
        ours = {name: text for name, text in settings.items() if name.startswith("lunar.")}
        assert len(ours) >= 7, f"only {sorted(ours)}"
        of_server = refusal(client, "CONFIG", "SET", "databases", settings["databases"])
        assert "immutable" in of_server, f"the server's own immutable setting: '{of_server}'"
        mutable = {}
        for name, text in ours.items():
            error = refusal(client, "CONFIG", "SET", name, text)
            assert error == "" or error == of_server.replace("databases", name), f"CONFIG SET {name} {text}: {error}"
            if error == "":
                mutable[name] = text
        wanted = {"lunar.dram", "lunar.forks", "lunar.gate", "lunar.gate-hold-ms"}
        assert wanted <= set(mutable), f"only {sorted(mutable)} can be set"
        # As tools do it: all that can be set, at once. What the server refuses of its own goes first.
        for name, text in settings.items():
            if name not in ours and refusal(client, "CONFIG", "SET", name, text) == "":
                mutable[name] = text
        error = refusal(client, "CONFIG", "SET", *[word for pair in mutable.items() for word in pair])
        assert error == "", f"{len(mutable)} settings at once: {error}"
        again = client.ask("CONFIG", "GET", "lunar.*")
        before = {name.encode(): text for name, text in ours.items()}
        assert dict(zip(again[::2], again[1::2])) == before, "a setting is another one now"
        print(f"{len(mutable)} of {len(settings)} settings can be set to what they are, "
              f"{len([name for name in mutable if name in ours])} of {len(ours)} of ours")
        read(client, random.Random(SEED), 100, 10)
        server.must_live("CONFIG SET of all that CONFIG GET said")

    with_server(directory, module, test, size="512mb")
    with_server(directory, module, test, size="512mb", forks="no")


def threads(directory, module, helper):
    """Only a thread of the server's own that reads for it opens the gate; other threads that read do not."""
    def test(server):
        client = server.connect()
        fill(client)
        pick = random.Random(SEED)
        read(client, pick, 300, 1)
        for name, state in (("worker", "watching"), ("io_thd_7", "bypassed")):
            at_start = client.info("lunar")["lunar_gate"]
            if at_start != "watching":
                raise AssertionError(f"the gate is {at_start}")
            assert client.ask("KILLER.READ", name) == b"OK", "nothing was read"
            read(client, pick, 100, 10)
            figures = client.info("lunar")
            gate = figures["lunar_gate"]
            assert gate == state, f"after a thread named {name} has read the gate is {gate}"
            if state == "bypassed":
                assert "io-threads" in figures["lunar_gate_reason"], figures["lunar_gate_reason"]
                assert server.text().count("input gate stays open") == 1, "not one line in the log"
        read(client, pick, 300, 10)
        server.must_live("reads by threads")

    def on_from_the_start(server):
        fill(server.connect())
        clients = [server.connect() for _ in range(24)]
        for _ in range(60):
            for one in clients:
                one.send([("GET", "k:1")] * 4)
            for one in clients:
                for _ in range(4):
                    assert one.receive() == value(1, BYTES)
        figures = server.connect().info("lunar")
        assert figures["lunar_gate"] == "bypassed", figures["lunar_gate"]
        assert "io-threads" in figures["lunar_gate_reason"], figures["lunar_gate_reason"]

    with_server(directory, module, test, "--loadmodule", helper, size="512mb")
    with_server(directory, module, on_from_the_start, "--io-threads", "3", *DO_READS, size="512mb")


def scans(directory, module, helper):
    """RM_Scan pauses the move of a table by a counter that the gate uses too. Both have to have the server's lock."""
    def test(server):
        client, readers = server.connect(), [server.connect() for _ in range(4)]
        fill(client)
        client.ask("SELECT", "1")
        small = [f"small:{key}" for key in range(4096)]   # a table of as many slots; most of it is empty then
        client.send([("SET", key, "x") for key in small])
        for _ in small:
            assert client.receive() == b"OK"
        client.ask("DEL", *small[800:])
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
        client.send([("SET", key, "x") for key in small + ["one more", "and one"]])   # the table is doubled
        for _ in range(len(small) + 2):
            assert client.receive() == b"OK"
        until = time.monotonic() + MOVE_S
        while b"rehashing target" in client.ask("DEBUG", "HTSTATS", "1"):
            assert time.monotonic() < until, f"after {rounds} rounds the table is not moved any more"
            client.ask("EXISTS", "small:1")
            time.sleep(0.1)
        print(f"{rounds} rounds of reads while a thread scanned, and the table was moved")

    with_server(directory, module, test, "--loadmodule", helper, "--enable-debug-command", "yes", size="512mb")


class PlainServer(Server):
    """A server that is to load the module later."""
    def __init__(self, directory):
        super().__init__(directory, "--enable-module-command", "yes")


FIGURES = ("lunar_dram_budget_bytes", "lunar_lun_size_bytes", "lunar_maxmemory_ceiling_bytes",
           "lunar_forks_refused_at_bytes")


def modules(directory, module):
    lun = os.path.join(directory, "lun")
    with open(lun, "wb") as out:
        out.truncate(700 * MIB)
    good = ("dram", "24mb", "lun", directory, "size", "256mb"), ("dram", "16mb", "lun", lun, "forks", "no")
    bad = [   # arguments, and what the line says; the later the stage, the more there is to take back
        (("dram", "4xb"), "is not a size"),
        (("dram", "16mb", "lun", os.path.join(directory, "not", "there")), "there is no such file"),
        (("dram", "16mb", "lun", "/dev/null"), "neither a directory"),
        (("dram", "64mb", "size", "32mb", "lun", directory), "smaller than the DRAM budget"),
        (("dram", "16mb", "lun", lun, "handlers", "64"), "give more (--dram)"),
        (("dram", "16mb", "lun", directory, "handlers", "64"), "give more (--dram)"),
        (("dram", "16mb", "lun", "sim:160m", "handlers", "64"), "give more (--dram)"),
    ]

    def load(client, arguments):
        return refusal(client, "MODULE", "LOAD", module, *arguments)

    def figures(client):
        told = client.info("lunar")
        return {name: int(told[name]) for name in FIGURES}

    expected = []
    for arguments in good:
        with Servers() as servers:
            server = servers.add(PlainServer(directory))
            client = server.connect()
            assert load(client, arguments) == "", server.text()[-2000:]
            expected.append(figures(client))

    for number, arguments in enumerate(good):
        for order in range(0, len(bad), 2 + 2 * number):
            with Servers() as servers:
                server = servers.add(PlainServer(directory))
                client = server.connect()
                for failing, text in bad[order:] + bad[:order]:
                    seen = len(server.text())
                    assert load(client, failing) != "", f"{failing} loads"
                    server.must_live(f"MODULE LOAD {failing}")
                    added = server.text()[seen:]
                    assert text in added, f"MODULE LOAD {failing} says {added}"
                assert client.ask("CONFIG", "GET", "lunar.*") == [], "settings are left of a load that failed"
                unknown = refusal(client, "LUNAR", "STATS").lower()
                assert "unknown command" in unknown, "a command is left of a load that failed"
                assert load(client, arguments) == "", f"{arguments} after loads that failed:\n{server.text()[-2000:]}"
                got = figures(client)
                assert got == expected[number], (
                    f"{arguments} after loads that failed: {got} instead of {expected[number]}")
                if order == 0:
                    loaded_twice(server, client, module, arguments)


def loaded_twice(server, client, module, arguments):
    seen = len(server.text())
    assert refusal(client, "MODULE", "LOAD", module, *arguments) != "", "it loads twice"
    assert refusal(client, "MODULE", "LOAD", module) != "", "it loads twice"
    seen = len(server.text())
    assert refusal(client, "MODULE", "UNLOAD", "lunar") != "", "it is unloaded"
    assert "restart the server without the module" in server.text()[seen:], f"MODULE UNLOAD says {server.text()[seen:]}"
    keys = list(range(6000))   # 24 MB
    for first in range(0, len(keys), 200):
        client.send([("SET", f"k:{key}", value(key, BYTES)) for key in keys[first:first + 200]])
        for _ in range(200):
            assert client.receive() == b"OK"
    for key in keys:
        assert client.ask("GET", f"k:{key}") == value(key, BYTES), f"k:{key} is not right"
    assert int(client.info("lunar")["lunar_evicted_pages"]) > 0, "nothing was evicted"
    assert refusal(client, "MODULE", "UNLOAD", "lunar") != "", "it is unloaded"
    server.must_live("MODULE UNLOAD")


def collections(directory, module):
    def test(server):
        client = server.connect()
        fill(client)
        for i in range(60):
            client.send([("RPUSH", f"l{i}", *[value(i + n, 300) for n in range(100)]),
                         ("RPUSH", f"large{i}", value(i, 8000), value(i, 8000)),
                         ("HSET", f"h{i}", *[word for n in range(600) for word in (f"f{n}", value(n, 20))]),
                         ("SADD", f"s{i}", *[value(i + n, 20) for n in range(600)]),
                         ("ZADD", f"z{i}", *[word for n in range(200) for word in (n, value(i + n, 50))]),
                         *[("XADD", f"x{i}", "*", "a", value(n, 100)) for n in range(150)],
                         ("XTRIM", f"x{i}", "MAXLEN", i % 3 * 70)])
            for _ in range(156):
                reply = client.receive()
                assert not isinstance(reply, Refused), reply
            read(client, random.Random(SEED + i), 60, 20)
        before = client.figure("gate_held")
        for i in range(60):
            for words in (("LINDEX", f"l{i}", 0), ("LINDEX", f"large{i}", 1), ("HGET", f"h{i}", "f1"),
                          ("SISMEMBER", f"s{i}", "x"), ("ZSCORE", f"z{i}", "x"), ("XLEN", f"x{i}")):
                client.ask(*words)
        held = client.figure("gate_held") - before
        assert held > 60, f"{held} of 360 commands were held"
        text = server.text()
        assert "looks no further" not in text and "stays open" not in text, text[-1000:]

    with_server(directory, module, test, "--list-compress-depth", "1", size="512mb")
    with_server(directory, module, test, size="512mb")


if __name__ == "__main__":
    print(f"seed {SEED}")
    sys.exit(run_scenario("transport", globals(), sys.argv[2], sys.argv[1], *sys.argv[3:]))
