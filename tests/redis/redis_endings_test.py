# SPDX-License-Identifier: Apache-2.0
"""Connections that end while the gate holds their commands, and the clients after them, against a
plain server: under the module, under `lunar run`, and under both.

  half-closed   every reply still comes, then the end
  gone          closed and reset in mid-hold
  killed        by CLIENT KILL, and by a thread of a module (KILLER.LATER): the next client has the
                descriptor, and gets its own replies
  blocked       cold reads and SUBSCRIBE behind a BLPOP
  deaf          thousands of large reads of a client that does not listen for a while

At the end DEBUG DIGEST is equal and no socket has leaked. LUNAR_SEED= replays.
"""
import contextlib
import os
import random
import re
import socket
import struct
import time

import pytest

from redis_server import (
    HELPER, MODULE, PATIENCE_S, SEED, Wire, packed, same_data, sets, value, wait_until)

KEYS, SIZE, DRAM_MIB = 24_000, 2000, 16
END = packed("PING", "<end>"), b"$5\r\n<end>\r\n"
RESET = struct.pack("ii", 1, 0)


class Pair:
    def __init__(self, plain, tiered):
        self.plain, self.tiered, self.pick = plain, tiered, random.Random(SEED)

    def reads(self, count, *words):
        """GETs of cold keys; with `words`, which follow the key, GETRANGEs."""
        verb = "GETRANGE" if words else "GET"
        return b"".join(packed(verb, f"key:{self.pick.randrange(KEYS)}", *words)
                        for _ in range(count))

    def same(self, what, talk):
        """`talk` must hear the same from both."""
        one, other = (talk(server) for server in (self.plain, self.tiered))
        assert one == other, (f"{what}: {len(one)} bytes and {len(other)}, "
                              f"{one[-100:]!r} and {other[-100:]!r}")

    def half_closed(self, number):
        # short replies: a server drops what is left of long ones
        data = self.reads(20, "0", "300") + (self.reads(1)[:20] if number % 2 else b"")

        def talk(server):
            wire = Wire(server.port)
            wire.send(data)
            wire.socket.shutdown(socket.SHUT_WR)
            return wire.until()
        self.same("half-closed", talk)

    def gone(self):
        wires = [Wire(self.tiered.port) for _ in range(6)]
        for number, wire in enumerate(wires):
            wire.send(self.reads(20))
            if number % 3:
                time.sleep(self.pick.random() * 0.0002)
            if number % 2:
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            wire.close()

    def killed(self, number):
        victim, killer = Wire(self.tiered.port), self.tiered.client
        victim.send(packed("CLIENT", "ID"))
        name = victim.until(b"\r\n")[1:-2].decode()
        victim.send(self.reads(20 if number % 5 else 400))
        if number % 5:
            assert killer.ask("KILLER.LATER", name) == b"OK"
        else:
            assert killer.ask("CLIENT", "KILL", "ID", name) == 1
        with contextlib.suppress(ConnectionError):
            victim.until()
        victim.close()
        data = packed("ECHO", f"successor {number}") + self.reads(5) + END[0]

        def talk(server):
            wire = Wire(server.port)
            wire.send(data)
            return wire.until(END[1])
        self.same(f"successor {number}", talk)

    def blocked(self, number):
        name, text = f"block:{number}", value(number, 50)
        behind = packed("BLPOP", name, "0") + self.reads(5) + packed("SUBSCRIBE", name)
        after = packed("UNSUBSCRIBE") + self.reads(3) + END[0]

        def talk(server):
            wire = Wire(server.port)
            wire.send(behind)
            time.sleep(0.002)
            server.client.ask("RPUSH", name, text)
            heard = wire.until(b":1\r\n")   # subscribed
            server.client.ask("PUBLISH", name, text)
            wire.send(after)
            return heard + wire.until(END[1])
        self.same("blocked", talk)

    def deaf(self):
        data = b"".join(packed("GET", f"large:{n % 20}") + (b"" if n % 10 else self.reads(1))
                        for n in range(1500)) + END[0]

        def talk(server):
            wire, at, idle = Wire(server.port), 0, 0
            server.pipeline([("SET", f"large:{n}", value(n, 8000) * 8) for n in range(20)])
            wire.socket.setblocking(False)
            while at < len(data) and idle < 20:   # until the server cannot send any more
                try:
                    at += wire.socket.send(data[at:])
                except BlockingIOError:
                    idle += 1
                    time.sleep(0.005)
            time.sleep(0.1)
            wire.socket.settimeout(PATIENCE_S)
            wire.send(data[at:])
            return wire.until(END[1])
        self.same("deaf", talk)


def sockets(server):
    """The number of its sockets. (Not of its descriptors: the pager opens a ring for a thread that
    reads from a LUN for the first time.)"""
    count, where = 0, f"/proc/{server.process.pid}/fd"
    for name in os.listdir(where):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(os.path.join(where, name)).startswith("socket:")
    return count


def work_of(server):
    """Holds and evicted pages: by INFO, or by the table that a server leaves when it ends."""
    if "lunar_gate_held" in server.info("lunar"):
        return server.figure("gate_held"), server.figure("evicted_pages")
    server.client.refused("SHUTDOWN", "NOSAVE")
    server.process.wait(60)
    return [int(re.search(rf"stats: {name} (\d+)", server.text())[1])
            for name in ("gate_held", "evictions")]


@pytest.mark.parametrize("how", ["module", "run", "both"])
def test_endings(servers, how):
    size = f"{40 * DRAM_MIB}mb"
    if how == "module":
        tiered = servers.tiered(*HELPER, dram=f"{DRAM_MIB}mb", size=size)
    else:
        tiered = servers.run(*HELPER, *(("--loadmodule", MODULE) if how == "both" else ()),
                             dram=f"{DRAM_MIB}m", size=size[:-1], flags=("--stats",))
    pair = Pair(servers.plain(), tiered)
    for server in servers.started:
        server.pipeline(sets("key", range(KEYS), SIZE))
    before = sockets(tiered)
    for number in range(12):
        pair.half_closed(number)
        pair.gone()
        pair.blocked(number)
    for number in range(40):
        pair.killed(number)
    pair.deaf()
    same_data(tiered, pair.plain)
    wait_until("a socket has leaked", lambda: sockets(tiered) <= before, 20)
    held, evicted = work_of(tiered)
    print(f"held {held}, evicted {evicted} pages")
    assert held >= 120, "the gate was hardly tested"
    assert evicted * 4096 > 2 * DRAM_MIB << 20
