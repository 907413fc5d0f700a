# SPDX-License-Identifier: Apache-2.0
"""Which clients the input gate reads from the LUN for, and what hostile clients can make it do.
Counts only, no times."""
import resource
import signal
import time

import pytest
from redis.exceptions import NoPermissionError

from redis_server import MIB, Figures, Refused, Wire, packed

KEYS, SIZE, READS, BATCH = 16_000, 3000, 2000, 50
CROWD, ONE_BYTE, TURNS, SPLIT = 1500, 2100, 250, 300
NAMES = ("gate_held", "overlapped_reads", "lun_read_bytes", "gate_overflows", "gate_turns")


def name(key):
    return f"{'secret' if key % 2 else 'public'}:{key}"


def content(key):
    return bytes([ord("a") + key % 26]) * SIZE


class Scene:
    def __init__(self, servers):
        self.server = servers.tiered(lun="sim:1g,latency_us=200", size="1gb", forks="no")
        self.admin, self.next = self.server.client, 0   # the former stays allowed to do all
        for user, rights in (("all", "~* +@all"), ("reader", "~public:* +get"),
                             ("nothing", "~* -@all"), ("streamer", "~public:* +xreadgroup")):
            self.admin.ask("ACL", "SETUSER", user, "on", ">pw", *rights.split())
        self.admin.pipeline([("SET", name(key), content(key)) for key in range(KEYS)])

    def figures(self):
        return Figures(self.admin, *NAMES)

    def enter(self, user):
        client = self.server.connect()
        assert client.ask("AUTH", user, "pw") == b"OK"
        return client

    def cold(self, step=2 * 97):
        """A key that has not been read for long."""
        self.next = (self.next + step) % KEYS
        return self.next

    def read(self, client, secret=0):
        """Replies, and the keys that they are of."""
        keys = [self.cold() // 2 * 2 + secret for _ in range(READS)]
        return client.all_of([("GET", name(key)) for key in keys], BATCH), keys

    def must_be_served(self, client, figures):
        replies, keys = self.read(client)
        assert replies == list(map(content, keys))
        held, _, _, passed_cold, _ = figures.grown()
        assert held >= READS / BATCH / 2 and passed_cold == 0, "the gate does not serve it"

    def must_be_nothing(self, figures):
        held, asked_for, read_bytes, _, _ = figures.grown()
        assert held == 0 and asked_for == 0 and read_bytes < MIB


def allowed(scene):
    """A user that may do all, and one that may read some keys: their cold reads are held."""
    for user in "all", "reader":
        scene.must_be_served(scene.enter(user), scene.figures())


def refused(scene):
    """A user without the command, one without the keys, and a client that has not said who it is:
    nothing is held, asked for or read."""
    for user in "nothing", "reader":
        client, figures = scene.enter(user), scene.figures()
        replies, _ = scene.read(client, secret=1)
        scene.must_be_nothing(figures)
        assert all(isinstance(reply, NoPermissionError) for reply in replies)
    scene.admin.ask("CONFIG", "SET", "requirepass", "pw")
    wire, figures, replies = Wire(scene.server.port), scene.figures(), []
    for _ in range(READS // BATCH):
        wire.send(b"".join(packed("GET", name(scene.cold() | 1)) for _ in range(BATCH)))
        replies.append(b"")
        while replies[-1].count(b"\n") < BATCH:
            replies[-1] += wire.until(b"\r\n")
    scene.must_be_nothing(figures)
    assert b"".join(replies).count(b"-NOAUTH") == READS


def split(scene):
    """Commands of which the server has the first part before the rest comes: held like whole
    ones."""
    client, figures = scene.enter("all"), scene.figures()
    for n in range(SPLIT):
        keys = [scene.cold(), scene.next + 1][:1 + n % 2]
        commands = [packed("GET", name(key)) for key in keys]
        cut = 1 + n % (len(commands[0]) - 1)
        client.socket.sendall(commands[0][:cut])
        time.sleep(0.001)
        client.socket.sendall(commands[0][cut:] + b"".join(commands[1:]))
        assert [client.receive() for _ in keys] == list(map(content, keys))
    assert figures.grown()[0] >= SPLIT / 2


def elsewhere(scene):
    """Keys that a command names where the server does not look for keys. A group may have any name,
    "STREAMS" too: what follows it is no key to the server."""
    client, figures = scene.enter("streamer"), None
    for n in range(300):
        if n == 1:
            figures = scene.figures()   # public:0 itself may be cold once
        assert client.refused("XREADGROUP", "GROUP", "STREAMS", name(scene.cold() // 2 * 2 + 1),
                              "STREAMS", "public:0", ">")
    scene.must_be_nothing(figures)


def crowd(scene):
    """1,500 clients of one user that want a cold key each: the server reads what all of them have
    sent in one turn of its loop. None is passed cold."""
    clients, figures = [scene.enter("all") for _ in range(CROWD)], scene.figures()
    scene.server.process.send_signal(signal.SIGSTOP)
    keys = [scene.cold(97) for _ in clients]
    for n, (client, key) in enumerate(zip(clients, keys)):
        # every third is too long for the smallest buffer
        client.send([("GET", name(key))] + ([] if n % 3 else [("ECHO", b"e" * 600)]))
    scene.server.process.send_signal(signal.SIGCONT)
    for n, (client, key) in enumerate(zip(clients, keys)):
        assert client.receive() == content(key)
        assert n % 3 or client.receive() == b"e" * 600
        client.close()
    held, _, _, passed_cold, _ = figures.grown()
    assert passed_cold == 0 and held >= CROWD / 2


def one_byte(scene):
    """2,100 connections that each sent the start of a command: the others' cold reads are held as
    before."""
    clients = [scene.enter("all") for _ in range(ONE_BYTE)]
    for n, client in enumerate(clients):
        client.socket.sendall(b"ECHO a\r\n*" if n % 2 else b"*")
    scene.must_be_served(scene.enter("all"), scene.figures())
    for n, client in enumerate(clients):   # wrong arity: an error each, none is lost
        client.socket.sendall(b"1\r\n$4\r\nECHO\r\n")
        assert n % 2 == 0 or client.receive() == b"a"
        assert isinstance(client.receive(), Refused)
        client.close()


def turns(scene):
    """Clients of one user that want nearly twenty times what one may have under way: they wait for
    their turn, none is passed cold, another user is held as before, and INFO tells."""
    clients, other = [scene.enter("all") for _ in range(TURNS)], scene.enter("reader")
    figures = scene.figures()
    keys = [[scene.cold(97) for _ in range(50)] for _ in clients]
    for client, some in zip(clients, keys):
        client.send([("MGET", *map(name, some))])
    replies, wanted = scene.read(other)
    assert replies == list(map(content, wanted))
    for client, some in zip(clients, keys):
        assert client.receive() == list(map(content, some))
        client.close()
    held, _, _, passed_cold, waited = figures.grown()
    assert waited >= TURNS / 4 and passed_cold == 0
    assert held >= TURNS + READS / BATCH / 2


def unfinished(scene):
    """Half a command behind a whole one: the server's protocol error comes, and a slow sender is
    not idle. A client that has not authenticated may send no large arguments: said as soon as one
    is announced."""
    wire = Wire(scene.server.port)
    wire.send(b"PING\r\n*1\r\n$20000\r\n")
    assert b"-ERR Protocol error" in wire.until(b"bulk length\r\n")
    scene.admin.ask("CONFIG", "SET", "timeout", "1")
    slow, command = scene.enter("all"), packed("ECHO", "0123456789abcdef")
    slow.socket.sendall(packed("ECHO", "whole") + command[:12])
    assert slow.receive() == b"whole"
    for at in range(12, len(command), 2):
        slow.socket.sendall(command[at:at + 2])
        time.sleep(0.25)
    assert slow.receive() == b"0123456789abcdef", "a slow sender was taken for idle"


def test_users(servers, request):
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < ONE_BYTE + 100:
        pytest.skip(f"descriptors: no more than {most}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (before, most)))
    scene = Scene(servers)
    for part in allowed, split, elsewhere, refused, crowd, one_byte, turns, unfinished:
        print(f"{part.__name__}: before, {dict(zip(NAMES, scene.figures().before))}", flush=True)
        part(scene)
