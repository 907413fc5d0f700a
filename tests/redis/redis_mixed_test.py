# SPDX-License-Identifier: Apache-2.0
"""Clients that use the server in every way at once, on cold data: a tiered server with a replica,
against a plain one with a replica.

Each worker has keys of its own and a script that depends on the seed alone, so that its replies
must be the same from both servers. What other clients can interrupt at any place is checked by what
it leaves instead.

  pipelines     thousands of commands at once, cut anywhere, with MULTI, RESET, SELECT and scripts
                among them
  half-closed   the client sends its end behind a pipeline: all of it is run, in order
  killed        CLIENT KILL, or a reset of the connection, in the middle of a pipeline: a part of it
                has run, in order
  watched       WATCH, GET, MULTI, SET, EXEC on counters that all workers share: none is counted
                twice or lost
  blocked       BLPOP with commands behind it, until another client pushes, or unblocks it
  busy          commands while a script runs that does not end, and while clients are paused

Meanwhile another client kills the replica's link, saves, asks for digests, and sets the module's
settings. In the end the replicas have what their masters have, and both masters have the same.
LUNAR_SEED= replays.
"""
import contextlib
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redis_server import SEED, Refused, packed, wait_until

WORKERS, KEYS, COUNTERS = 6, 3000, 40
SIZE = 1500
HELD_MIN = 10       # the seed decides: 110 to 1027 in 25 of them


def text(pick, size):
    return pick.randbytes(size // 2 + 1).hex()[:size].encode()


def comparable(reply):
    if isinstance(reply, list):
        return [comparable(one) for one in reply]
    return str(reply) if isinstance(reply, Refused) else reply


class Worker:
    def __init__(self, server, number, rounds):
        self.server, self.number = server, number
        self.pick = random.Random(SEED * 1000 + number)
        self.rounds, self.replies, self.counted = rounds, [], 0
        self.client = self.server.connect()

    def key(self, kind="s"):
        return f"w{self.number}:{kind}:{self.pick.randrange(KEYS)}"

    def work(self):
        kinds = [self.pipeline, self.half_closed, self.killed, self.watched, self.blocked]
        for _ in range(self.rounds):
            self.pick.choice(kinds)()

    def command(self):
        pick, key = self.pick, self.key
        return pick.choice([
            ("GET", key()), ("GET", key()), ("GET", key()), ("MGET", key(), key(), key()),
            ("STRLEN", key()),
            ("SET", key(), text(pick, SIZE)), ("APPEND", key(), "tail"), ("DEL", key()),
            ("HGETALL", key("h")),
            ("HSET", key("h"), "f1", text(pick, 60)), ("LRANGE", key("l"), "0", "-1"),
            ("LPOP", key("l")), ("RPUSH", key("l"), text(pick, 200)), ("RENAME", key(), key()),
            ("COPY", key(), key(), "REPLACE"),
            ("EVAL", "return redis.call('GET', KEYS[1])", "1", key()), ("GETDEL", key()),
            ("TYPE", key("h")),
            ("EVAL", "redis.call('APPEND', KEYS[1], 'x') return redis.call('STRLEN', KEYS[2])", "2",
             key(), key()),
        ])

    def pipeline(self):
        pick, words = self.pick, []
        for _ in range(pick.choice([20, 200, 3000])):
            words.append(self.command())
            if pick.random() < 0.05:
                words += [("WATCH", self.key(), self.key()), ("MULTI",),
                          *(self.command() for _ in range(8)),
                          pick.choice([("EXEC",), ("EXEC",), ("DISCARD",), ("RESET",)])]
            if pick.random() < 0.01:
                words += [("SELECT", "1"), ("SET", self.key(), text(pick, SIZE)), ("SELECT", "0")]
        data = b"".join(packed(*some) for some in words)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(self.send_in_pieces, data, random.Random(pick.random()))
            for _ in words:
                self.note(self.client.receive())
            sent.result()

    def send_in_pieces(self, data, pick):
        while data:
            size = pick.choice([1, 100, 5000, 16384, 200000, len(data)])
            self.client.socket.sendall(data[:size])
            data = data[size:]

    def note(self, reply):
        self.replies.append(comparable(reply))

    def numbers(self, count):
        """Commands that push 0, 1, ... to a list, with reads of cold keys between them."""
        name, words = f"w{self.number}:numbers", []
        for n in range(count):
            words += [("RPUSH", name, str(n)),
                      self.pick.choice([("GET", self.key()), ("MGET", self.key(), self.key())])]
        return name, b"".join(packed(*some) for some in words)

    def pushed(self, name, count, what, all_of_it):
        got = [int(n) for n in self.client.ask("LRANGE", name, "0", "-1")]
        assert got == list(range(len(got))), what
        assert len(got) == count if all_of_it else len(got) <= count, what
        self.client.ask("DEL", name)

    def half_closed(self):
        count = self.pick.choice([3, 50, 1500])
        name, data = self.numbers(count)
        other = self.server.connect()
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(lambda: (other.socket.sendall(data),
                                        other.socket.shutdown(socket.SHUT_WR)))
            while other.socket.recv(1 << 16):
                pass
            sent.result()
        other.close()
        self.pushed(name, count, "half-closed", True)

    def killed(self):
        count = self.pick.choice([50, 1500])
        how, wait_s = self.pick.choice(["kill", "reset", "end"]), self.pick.random() * 0.03
        name, data = self.numbers(count)
        other = self.server.connect()
        number = other.ask("CLIENT", "ID")
        sender = threading.Thread(target=self.send_to_the_end, args=(other, data))
        sender.start()
        time.sleep(wait_s)
        if how == "kill":
            self.client.ask("CLIENT", "KILL", "ID", str(number))
        elif how == "reset":
            other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            other.socket.shutdown(socket.SHUT_RD)
        sender.join()
        other.close()
        wait_until("a client that has gone",
                   lambda: not self.client.ask("CLIENT", "LIST", "ID", str(number)))
        self.pushed(name, count, how, False)

    @staticmethod
    def send_to_the_end(connection, data):
        connection.socket.settimeout(2)   # nothing is read of the replies
        with contextlib.suppress(OSError):
            connection.socket.sendall(data)

    def watched(self):
        for _ in range(30):
            name = f"counter:{self.pick.randrange(COUNTERS)}"
            self.client.send([("WATCH", name), ("GET", name)])
            self.client.receive()
            value = self.client.receive()
            head, rest = value[:8], value[8:]
            self.client.send([("MULTI",), ("SET", name, b"%08d" % (int(head) + 1) + rest),
                              ("GET", self.key()), ("EXEC",)])
            if [self.client.receive() for _ in range(4)][3]:   # else EXEC was refused
                self.counted += 1

    def blocked(self):
        name, behind = f"w{self.number}:queue", [self.command() for _ in range(20)]
        pick = self.pick
        how, wait_s = pick.choice(["push", "unblock", "transaction"]), pick.random() * 0.02
        value = text(pick, 3000)
        other = self.server.connect()
        number = other.ask("CLIENT", "ID")
        other.send([("GET", self.key()), ("BLPOP", f"{name}:none", name, "0"), *behind])
        time.sleep(wait_s)
        if how == "unblock":
            wait_until("a client blocks",
                       lambda: self.client.ask("CLIENT", "UNBLOCK", str(number)) == 1)
        elif how == "push":
            self.client.ask("RPUSH", name, value)
        else:
            self.client.send([("MULTI",), ("RPUSH", name, value), ("GET", self.key()), ("EXEC",)])
            for _ in range(4):
                self.note(self.client.receive())
        for _ in range(2 + len(behind)):
            self.note(other.receive())
        other.close()


def meddle(server, tiered, stop):
    """Does what an operator may do at any time."""
    pick, client = random.Random(SEED), server.connect()
    # no CLIENT PAUSE: what a paused client has sent is lost when it ends
    words = [("CLIENT", "LIST"), ("INFO",), ("CLIENT", "KILL", "TYPE", "replica"),
             ("DEBUG", "DIGEST"), ("BGSAVE",), ("CONFIG", "GET", "*")]
    if tiered:
        words += [("CONFIG", "SET", "lunar.gate", "no"), ("CONFIG", "SET", "lunar.gate", "yes"),
                  ("CONFIG", "SET", "lunar.gate", "yes"),
                  ("CONFIG", "SET", "lunar.gate-hold-ms", "1"),
                  ("CONFIG", "SET", "lunar.gate-hold-ms", "100"),
                  ("CONFIG", "SET", "lunar.dram", "18mb"),
                  ("CONFIG", "SET", "lunar.dram", "24mb"), ("LUNAR", "STATS"), ("LUNAR", "TOP"),
                  ("LUNAR", "COLD", "w0:s:1"), ("LUNAR", "HOT", "w0:s:2")]
    while not stop.wait(pick.random() * 0.1):
        client.all_of([pick.choice(words)])
    if tiered:
        client.ask("CONFIG", "SET", "lunar.gate", "yes")


def fill(client):
    pick = random.Random(SEED)
    words = [("SET", f"counter:{n}", b"00000000" + text(pick, 6000)) for n in range(COUNTERS)]
    for w in range(WORKERS):
        for k in range(KEYS):
            words.append(("SET", f"w{w}:s:{k}", text(pick, SIZE)))
            if k % 4 == 0:
                words += [("HSET", f"w{w}:h:{k}", "f1", text(pick, 60), "f2", text(pick, 60)),
                          ("RPUSH", f"w{w}:l:{k}", text(pick, 700), text(pick, 700))]
    client.pipeline(words)


def busy(server):
    """Replies to a cold pipeline while a script runs, and after it was killed."""
    one, other = server.connect(), server.connect()
    server.client.ask("CONFIG", "SET", "lua-time-limit", "50")
    one.send([("EVAL", "while true do end", "0")])

    def says_busy():
        return other.refused("GET", "none").startswith("BUSY")
    wait_until("the script is busy", says_busy)
    cold = [[("GET", f"w{at}:s:{key}") for key in range(0, 2000, 100)] for at in (0, 1)]
    replies = [str(reply)[:4] for reply in other.all_of(cold[0] + [("RPUSH", "busy", "x")])]
    assert other.all_of([("SCRIPT", "KILL"), *cold[1]])[0] == b"OK"
    wait_until("the script ends", lambda: not says_busy())
    assert isinstance(one.receive(), Refused)
    for what in ("ALL", "WRITE"):
        server.client.ask("CLIENT", "PAUSE", "100", what)
        for at, client in enumerate((one, other)):
            client.send([("GET", f"w{at}:s:{key}")
                         for key in range(1, 2000, 50)] + [("INCR", f"paused:{at}")])
        replies += [client.receive() for client in (one, other) for _ in range(41)]
    return replies


def used(server, tiered, rounds):
    """Everything at once on one server. What the workers have got."""
    workers, stop = [Worker(server, n, rounds) for n in range(WORKERS)], threading.Event()
    with ThreadPoolExecutor(WORKERS + 1) as pool:
        meddler = pool.submit(meddle, server, tiered, stop)
        try:
            list(pool.map(Worker.work, workers))
        finally:
            stop.set()
        meddler.result()
    counted = sum(int(server.client.ask("GET", f"counter:{n}")[:8]) for n in range(COUNTERS))
    assert counted == sum(worker.counted
                          for worker in workers), f"{counted} counted of all that EXEC confirmed"
    for n in range(COUNTERS):   # their values depend on who came first
        server.client.ask("DEL", f"counter:{n}")
    return [worker.replies for worker in workers]


def difference(one, other):
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return "; ".join(f"[{n}] {difference(a, b)}" for n, (a, b) in enumerate(zip(one, other))
                         if a != b)
    one, other = str(one), str(other)
    return f"{one[:200]} and {other[:200]}, of {len(one)} and {len(other)} characters"


@pytest.mark.parametrize("rounds", [6, pytest.param(80, marks=pytest.mark.slow)])
def test_everything_at_once(servers, rounds):
    replies, digests = [], []
    for start in (servers.plain, servers.tiered):
        server, replica = (start("--repl-backlog-size", "32mb", name=start.__name__ + "-" + what)
                           for what in ("master", "replica"))
        fill(server.client)
        replica.follow(server)
        replies.append([*used(server, start == servers.tiered, rounds), busy(server)])
        replica.has_all_of(server)
        digests.append(server.digest())
    for number, (plain, tiered) in enumerate(zip(*replies)):
        for at, (a, b) in enumerate(zip(plain, tiered)):
            assert a == b, f"worker {number}, reply {at} of {len(plain)}: {difference(a, b)}"
        assert len(plain) == len(tiered)
    assert digests[0] == digests[1]
    lunar = server.info("lunar")   # of the tiered one
    assert lunar["lunar_gate"] == "watching" and int(lunar["lunar_gate_held"]) >= HELD_MIN, (
        "the gate took no part")
