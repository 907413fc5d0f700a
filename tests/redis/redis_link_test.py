# SPDX-License-Identifier: Apache-2.0
"""A tiered replica of a master that this program plays, which sends only what is written here.

A real master's PING wakes a replica that has forgotten something. This one is silent: what it has
sent must be executed all the same, exactly once, and a plain server that follows the same stream
has the same data and the same offset.
"""
import contextlib
import os
import random
import socket
import threading
import time

from redis_server import NOISE, PATIENCE_S, SEED, packed, same_data, sets, wait_until

KEYS, SIZE = 20_000, 1000
LATE = ("--repl-timeout", "600")
MASTER_ID = b"a" * 40
RANDOM = random.Random(SEED)


def noise(size):
    at = RANDOM.randrange(len(NOISE) - size)
    return NOISE[at:at + size]


def offset(replica):
    return int(replica.info("replication")["master_repl_offset"])


class Master:
    """A master of one replica. It sends the dump, then `stream` from the replica's offset on."""

    def __init__(self, replica, dump):
        self.replica, self.dump, self.stream, self.asked = replica, dump, b"", []
        self.listener = socket.create_server(("127.0.0.1", 0))
        replica.client.ask("REPLICAOF", "127.0.0.1", str(self.listener.getsockname()[1]))
        self.accept()
        replica.wait_link()

    def accept(self):
        self.listener.settimeout(PATIENCE_S)
        self.link = self.listener.accept()[0]
        self.link.settimeout(PATIENCE_S)
        lines = self.link.makefile("rb")
        while True:
            count = lines.readline()
            assert count[:1] == b"*", f"the replica's handshake: {count!r}"
            word = []
            for _ in range(int(count[1:])):
                lines.readline()
                word.append(lines.readline().strip())
            if word[0] == b"PSYNC":
                break
            self.link.sendall(b"+PONG\r\n" if word[0] == b"PING" else b"+OK\r\n")
        self.asked.append(int(word[2]))
        if len(self.asked) == 1:
            self.link.sendall(b"+FULLRESYNC %s 0\r\n$%d\r\n%s" % (MASTER_ID, len(self.dump),
                self.dump))
        else:
            assert word[1] == MASTER_ID, "a full resync"
            self.link.sendall(b"+CONTINUE %s\r\n" % MASTER_ID)
        threading.Thread(target=self.drain, args=(self.link,), daemon=True).start()

    @staticmethod
    def drain(link):
        with contextlib.suppress(OSError):
            while link.recv(65536):
                pass

    def send(self, data):
        """Like a master's output buffer: what a link that ends has not taken is there for the next
        one."""
        self.stream += data
        self.push(data)

    def push(self, data):
        with contextlib.suppress(OSError):
            self.link.sendall(data)

    def resumed(self):
        self.accept()
        self.push(self.stream[self.asked[-1] - 1:])

    def caught_up(self):
        wait_until(f"offset {offset(self.replica)} of {len(self.stream)}",
                   lambda: offset(self.replica) == len(self.stream))


def small_write(i):
    if i % 50 == 0:
        return packed("SELECT", i // 50 % 3)
    return packed("SETRANGE", f"key:{RANDOM.randrange(KEYS)}", RANDOM.randrange(SIZE - 20),
                  noise(8))


def writes(count):
    """Small commands, most on cold keys: a window has fewer than what one read of the server
    takes."""
    return b"".join(small_write(i) for i in range(count))


def begun(master, data):
    """A thread that sends, when the replica has executed some of it."""
    before = offset(master.replica)
    sender = threading.Thread(target=master.send, args=(data,))
    sender.start()
    wait_until("a first command", lambda: offset(master.replica) > before)
    return sender


def both(masters, *parts):
    for data in parts:
        for master in masters:
            master.send(data)
        for master in masters:
            master.caught_up()
    same_data(*(master.replica for master in masters))


def test_silent_master(servers):
    plain = servers.plain(*LATE)
    plain.pipeline(sets("key", range(KEYS), SIZE))
    plain.client.ask("SAVE")
    with open(os.path.join(plain.directory, "dump.rdb"), "rb") as file:
        dump = file.read()
    tiered = servers.tiered(*LATE, size="400mb")
    masters = [Master(plain, dump), Master(tiered, dump)]
    # bursts with silence behind
    both(masters, *(writes(count) for count in (1_000, 2_500, 2_500)))
    both(masters, writes(500) + packed("SET", "large", noise(1 << 19) * 10) + writes(500))

    # The link ends while there is more than the server was given: what it was not given is asked
    # for again.
    for ends in (lambda master: master.replica.client.ask("CLIENT", "KILL", "TYPE", "master"),
                 lambda master: master.link.shutdown(socket.SHUT_RDWR)):
        data = writes(4_000)
        for master in masters:
            sender = begun(master, data)
            ends(master)
            sender.join()
            master.resumed()
    both(masters, b"")

    # Not one byte of the old master after REPLICAOF NO ONE, and all before its offset.
    appends = (packed("APPEND", f"key:{RANDOM.randrange(KEYS)}", noise(9)) for _ in range(4_000))
    data = packed("SELECT", 0) + b"".join(appends)
    before = len(masters[1].stream)
    sender = begun(masters[1], data)
    _, info, digest = tiered.pipeline([("REPLICAOF", "NO", "ONE"), ("INFO", "replication"),
                                       ("DEBUG", "DIGEST")])
    at = int(info.decode().split("master_repl_offset:")[1].split()[0]) - before
    sender.join()
    time.sleep(0.5)
    assert tiered.digest() == digest, "executed behind REPLICAOF NO ONE"
    masters[0].send(data[:at])
    masters[0].caught_up()
    assert plain.digest() == digest, f"not what comes before {at} of {len(data)}"
