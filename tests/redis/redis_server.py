# SPDX-License-Identifier: Apache-2.0
"""Servers of the end-to-end tests, plain or tiered, and their clients. A server that cannot start
fails the test with its log; without the right to userfaultfd the test is skipped.
"""
import contextlib
import os
import random
import re
import socket
import subprocess
import time

import pytest
import redis

from build_tree import BUILD, LUNAR, MODULE
from waiting import PATIENCE_S, wait_until

SERVER = os.environ.get("LUNAR_REDIS_SERVER") or "/usr/bin/redis-server"
# A module whose threads do what threads of other modules and of the server may do.
HELPER = ("--loadmodule", os.path.join(BUILD, "tests/redis/libkiller-module.so"))
MIB = 1 << 20
SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))
NOISE = random.Random(SEED).randbytes(4 * MIB)
Refused = redis.ResponseError
GONE = (OSError, redis.ConnectionError, redis.TimeoutError)   # the server has ended the connection


def value(key, size):
    """The bytes that a key holds: they follow from the key and the seed."""
    at = key * 7919 % (len(NOISE) - 8192)
    return NOISE[at:at + size]


def sets(prefix, keys, size):
    return [("SET", f"{prefix}:{key}", value(key, size)) for key in keys]


def packed(*words):
    """A command as it goes over the wire."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text)
                                             for text in texts)


def out_of_memory(reply):
    return isinstance(reply, Refused) and "command not allowed when used memory" in str(reply)


class Wire:
    """A connection that speaks bytes."""

    def __init__(self, port, patience_s=PATIENCE_S):
        self.socket = socket.create_connection(("127.0.0.1", port), patience_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.close = self.socket.close

    def send(self, data):
        self.socket.sendall(data)

    def until(self, end=None):
        """The bytes that come, up to and with `end`; None: until the server hangs up."""
        got = bytearray()
        while end is None or not got.endswith(end):
            data = self.socket.recv(1 << 18)
            if not data and end is None:
                break
            assert data, f"the server hung up after {bytes(got[-80:])!r}"
            got += data
        return bytes(got)


class Raw:
    """Over a connection of redis-py: replies as they come, many commands on their way at once. One
    thread each."""

    @property
    def socket(self):
        return self._sock

    def close(self):
        self.disconnect()

    def send(self, commands):
        self.send_packed_command(self.pack_commands(commands))

    def receive(self):
        """A reply; error replies are returned, not raised."""
        try:
            return self.read_response()
        except Refused as refused:
            return refused

    def ask(self, *command):
        self.send_command(*command)
        return self.read_response()

    def all_of(self, commands, batch=200):
        """The replies to `commands`, so many on their way at once."""
        replies = []
        for first in range(0, len(commands), batch):
            part = commands[first:first + batch]
            self.send(part)
            replies += [self.receive() for _ in part]
        return replies

    def pipeline(self, commands, batch=200):
        """The same, none of which may be refused."""
        replies = self.all_of(commands, batch)
        refused = [reply for reply in replies if isinstance(reply, Refused)]
        assert not refused, refused[0]
        return replies

    def refused(self, *command):
        """The text of an error reply; "closed" when the server ended the connection; "" when it did
        as asked."""
        try:
            self.send_command(*command)
            reply = self.receive()
        except GONE:
            return "closed"
        return str(reply) if isinstance(reply, Refused) else ""

    def info(self, section):
        return dict(line.split(":", 1) for line in self.ask("INFO", section).decode().split("\r\n")
                    if ":" in line)

    def figure(self, name):
        return int(self.info("lunar")["lunar_" + name])

    def config(self, name):
        return self.ask("CONFIG", "GET", name)[1].decode()


class Client(Raw, redis.Connection):
    def __init__(self, port):
        super().__init__(host="127.0.0.1", port=port, socket_timeout=PATIENCE_S)
        self.connect()


class UnixClient(Raw, redis.UnixDomainSocketConnection):
    def __init__(self, path):
        super().__init__(path=path, socket_timeout=PATIENCE_S)
        self.connect()


class TlsClient(Raw, redis.SSLConnection):
    def __init__(self, port):
        super().__init__(host="127.0.0.1", port=port, socket_timeout=PATIENCE_S,
                         ssl_cert_reqs="none")
        self.connect()


class Figures:
    """How much each of INFO lunar's has grown since."""

    def __init__(self, client, *names):
        self.client, self.names = client, names
        self.before = self.now()

    def now(self):
        info = self.client.info("lunar")
        return [int(info["lunar_" + name]) for name in self.names]

    def grown(self):
        return [now - before for now, before in zip(self.now(), self.before)]


class Server:
    """`words` behind redis-server's own, `wrapper` in front, `config` a file of its own,
    `environment` beyond ours. `debug`: DEBUG is allowed, which Redis 6 does without an option. Its
    data and its log are in `directory`, which is made. `first`: a command, while it still loads.
    Answers when it is made."""

    def __init__(self, directory, *words, program=SERVER, debug=True, wrapper=(), config=None,
                 environment=(), first=()):
        os.makedirs(directory, exist_ok=True)
        self.first = first
        self.directory, self.log = directory, os.path.join(directory, "log")
        self.port, self.environment = free_port(), {**os.environ, **dict(environment)}
        self.command = [*wrapper, program, *([config] if config else []), "--port", str(self.port),
                        "--bind", "127.0.0.1", "--dir", directory, "--save", "",
                        "--repl-diskless-sync-delay", "0",   # no second replica to wait for
                        *(["--enable-debug-command", "yes"] if debug else []), *words]
        self.start()

    def start(self):
        """Again, on the same port, after end()."""
        started = time.monotonic()
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out,
                                            env=self.environment)
        self.client = None
        while self.client is None:
            if self.process.poll() is not None or time.monotonic() > started + PATIENCE_S:
                self.end()
                self.explain()
            with contextlib.suppress(*GONE, Refused):   # it loads
                client = self.connect()
                if self.first:
                    client.ask(*self.first)
                if client.ask("PING") == b"PONG":
                    self.client = client
                    self.took = time.monotonic() - started
                    return
            time.sleep(0.02)

    def explain(self):
        """Ends the test that it did not start for."""
        text = self.text()
        if "userfaultfd" in text and os.geteuid() != 0:
            pytest.skip("userfaultfd: " + text.splitlines()[-1])
        pytest.fail(f"the server did not start:\n{text[-3000:]}")

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def connect(self):
        return Client(self.port)

    def must_live(self, what):
        assert self.process.poll() is None, (
            f"{what}: the server ended with {self.process.returncode}")

    def info(self, section):
        return self.client.info(section)

    def figure(self, name):
        return self.client.figure(name)

    def faults(self):
        """Page faults of the main thread since it started, also those of new memory."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[7]) + int(fields[9])

    def children(self):
        """The process ids of the children that save, rewrite or send."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            return list(map(int, file.read().split()))

    def status(self, name):
        """A number of its process: VmHWM, voluntary_ctxt_switches, ..."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(rf"^{name}:\s+(\d+)", file.read(), re.M)[1])

    def peak_within(self, mib):
        peak = self.status("VmHWM") >> 10
        assert peak <= mib, f"its resident set peaked at {peak} MiB"

    def digest(self):
        return self.client.ask("DEBUG", "DIGEST")

    def pipeline(self, commands, batch=200):
        return self.client.pipeline(commands, batch)

    def follow(self, master):
        self.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
        self.wait_link()

    def linked(self):
        return self.info("replication").get("master_link_status") == "up"

    def wait_link(self):
        wait_until("the link", self.linked)

    def catch_up(self, master):
        """Both have the same offset, and the replica's own count of it is what its master was
        told."""
        def same():
            there, here = master.info("replication"), self.info("replication")
            return self.linked() and here.get("slave_repl_offset") == there["master_repl_offset"]
        wait_until("the replica is behind", same)

    def has_all_of(self, master):
        self.catch_up(master)
        same_data(self, master)

    def end(self):
        """At once, with SIGKILL; a stopped one too."""
        self.process.kill()
        self.process.wait()


def same_data(*servers):
    """Their digests, which they make at the same time."""
    for server in servers:
        server.client.send([("DEBUG", "DIGEST")])
    digests = {server.client.receive() for server in servers}
    assert len(digests) == 1 and len(min(digests)) == 40, f"their data differs: {digests}"


class Servers(contextlib.ExitStack):
    """Servers of one test, each in a directory of its own below the test's. They are ended in
    reverse order."""

    def __init__(self, directory):
        super().__init__()
        if not os.access(SERVER, os.X_OK):
            pytest.skip(f"redis-server: {SERVER} is not there")
        self.directory, self.started = directory, []

    def place(self, name):
        return os.path.join(self.directory, name)

    def plain(self, *words, name="plain", **options):
        server = Server(self.place(name), *words, **options)
        self.started.append(server)
        self.callback(server.end)
        return server

    def tiered(self, *words, name="tiered", dram="16mb", lun=None, size="512mb", forks="yes",
               **options):
        """With the module."""
        return self.plain("--loadmodule", MODULE, "dram", dram, "lun", lun or self.made(name),
                          "size", size, "forks", forks, *words, name=name, **options)

    def run(self, *words, name="run", dram="16m", size="512m", flags=(), **options):
        """Under `lunar run`."""
        wrapper = (LUNAR, "run", f"--dram={dram}", f"--size={size}", f"--lun={self.made(name)}",
                   *flags, "--")
        return self.plain(*words, name=name, wrapper=wrapper, **options)

    def made(self, name):
        os.makedirs(self.place(name), exist_ok=True)
        return self.place(name)

    def show(self):
        for server in self.started:
            print(f"{server.directory} (exit code: "
                  f"{server.process.poll()}):\n{server.text()[-3000:]}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
