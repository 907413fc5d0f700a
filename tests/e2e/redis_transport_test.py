# SPDX-License-Identifier: Apache-2.0
"""redis_transport_test MODULE SCENARIO [HELPER]: what the gate does for clients that come another way, and what the module does when it is loaded
or unloaded in another order.

  unix        cold reads over a unix socket are held like those over TCP, beside which they run; each reply is checked
  modules     MODULE UNLOAD, MODULE LOAD after loads that failed at each stage: one line that says why, and a server that lives
  threads     a thread of the server's own that reads (io-threads) opens the gate, whenever it begins to; HELPER: killer_module
  config      CONFIG GET lunar.*, then CONFIG SET of what it said: only what the server itself calls immutable is refused
"""
import os
import random
import shutil
import socket
import sys
import tempfile
import time

from redis_space_test import MIB, PATIENCE_S, SEED, SERVER, Client, Refused, Server, value, with_server

# Redis 7.0 has to be told; Redis 8 and Valkey know no such option any more, or do so anyway.
DO_READS = ["--io-threads-do-reads", "yes"]
KEYS, BYTES = 16000, 4000   # four times the budget


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
        both = [one, server.client()]
        for turn in range(40):   # pipelines of both, one hangs up now and then
            read(both[turn % 2], pick, 50, 25)
            if turn % 10 == 9:
                half = UnixClient(path)
                half.send([("GET", f"k:{pick.randrange(KEYS)}")] * 20)
                half.close()
        server.must_live("reads over a unix socket")

    with_server(directory, module, test, "--unixsocket", path, size="512mb")


def refusal(client, *command):
    """The error that a command gets, or an empty text."""
    client.send([command])
    reply = client.receive()
    return str(reply) if isinstance(reply, Refused) else ""


def config(directory, module):
    def test(server):
        client = server.client()
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
        assert {"lunar.dram", "lunar.forks", "lunar.gate", "lunar.gate-hold-ms"} <= set(mutable), f"only {sorted(mutable)} can be set"
        # As tools do it: all that can be set, at once. What the server refuses of its own goes first.
        for name, text in settings.items():
            if name not in ours and refusal(client, "CONFIG", "SET", name, text) == "":
                mutable[name] = text
        error = refusal(client, "CONFIG", "SET", *[word for pair in mutable.items() for word in pair])
        assert error == "", f"{len(mutable)} settings at once: {error}"
        again = client.ask("CONFIG", "GET", "lunar.*")
        assert dict(zip(again[::2], again[1::2])) == {name.encode(): text for name, text in ours.items()}, "a setting is another one now"
        print(f"{len(mutable)} of {len(settings)} settings can be set to what they are, {len([n for n in mutable if n in ours])} of {len(ours)} of ours")
        read(client, random.Random(SEED), 100, 10)
        server.must_live("CONFIG SET of all that CONFIG GET said")

    with_server(directory, module, test, size="512mb")
    with_server(directory, module, test, size="512mb", forks="no")


def threads(directory, module, helper):
    """Only a thread of the server's own that reads for it opens the gate; other threads that read do not."""
    def test(server):
        client = server.client()
        fill(client)
        pick = random.Random(SEED)
        read(client, pick, 300, 1)
        for name, state in (("worker", "watching"), ("io_thd_7", "open")):
            at_start = client.info("lunar")["lunar_gate"]
            if at_start != "watching":
                raise AssertionError(f"the gate is {at_start}")
            assert client.ask("KILLER.READ", name) == b"OK", "nothing was read"
            read(client, pick, 100, 10)
            figures = client.info("lunar")
            assert figures["lunar_gate"] == state, f"after a thread named {name} has read the gate is {figures['lunar_gate']}"
            if state == "open":
                assert "io-threads" in figures["lunar_gate_reason"], figures["lunar_gate_reason"]
                assert server.text().count("input gate stays open") == 1, "not one line in the log"
        read(client, pick, 300, 10)
        server.must_live("reads by threads")

    def on_from_the_start(server):
        fill(server.client())
        clients = [server.client() for _ in range(24)]
        for _ in range(60):
            for one in clients:
                one.send([("GET", "k:1")] * 4)
            for one in clients:
                for _ in range(4):
                    assert one.receive() == value(1, BYTES)
        figures = server.client().info("lunar")
        assert figures["lunar_gate"] == "open" and "io-threads" in figures["lunar_gate_reason"], figures["lunar_gate"]

    with_server(directory, module, test, "--loadmodule", helper, size="512mb")
    with_server(directory, module, on_from_the_start, "--io-threads", "3", *DO_READS, size="512mb")


def main(module, scenario, *further):
    if not os.access(SERVER, os.X_OK):
        print(f"skip: redis-server: {SERVER} is not there")
        return 77
    print(f"seed {SEED}")
    directory = tempfile.mkdtemp(prefix="lunar-transport-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    start = time.monotonic()
    try:
        globals()[scenario.replace("-", "_")](directory, os.path.abspath(module), *map(os.path.abspath, further))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{scenario} as it should be, in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
