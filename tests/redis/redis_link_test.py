# SPDX-License-Identifier: Apache-2.0
"""redis_link_test MODULE: a tiered replica of a master that this program plays, which sends only what is written here.

A real master's PING wakes a replica that has forgotten something. This one is silent: what it has sent must be
executed all the same, exactly once, and a plain server that follows the same stream has the same data and the same
offset.
"""
import os
import random
import socket
import sys
import threading
import time

from redis_server import Server, Servers, scratch, wait_until
from resp import words_of

PATIENCE_S = 60
KEYS, SIZE = 20_000, 1000
LATE = ("--repl-timeout", "600")
MASTER_ID = "a" * 40
SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))
RANDOM = random.Random(SEED)
NOISE = RANDOM.randbytes(1 << 20)


def noise(size):
    at = RANDOM.randrange(len(NOISE) - size)
    return NOISE[at:at + size]


def words(*arguments):
    return words_of(arguments)


def offset(replica):
    return int(replica.info("replication")["master_repl_offset"])


class Master:
    """Of one replica: the dump, then `stream`, from where the replica says it is."""

    def __init__(self, replica, dump):
        self.replica, self.dump, self.stream, self.asked = replica, dump, b"", []
        self.listener = socket.create_server(("127.0.0.1", 0))
        replica.client.ask("REPLICAOF", "127.0.0.1", str(self.listener.getsockname()[1]))
        self.accept()
        wait_until("the link", lambda: replica.info("replication")["master_link_status"] == "up", PATIENCE_S)

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
        if len(self.asked) == 1 or word[1] != MASTER_ID.encode():
            assert len(self.asked) == 1, "a full resync"
            self.link.sendall(b"+FULLRESYNC %s 0\r\n$%d\r\n%s" % (MASTER_ID.encode(), len(self.dump), self.dump))
        else:
            self.link.sendall(b"+CONTINUE %s\r\n" % MASTER_ID.encode())
        threading.Thread(target=self.drain, args=(self.link,), daemon=True).start()

    @staticmethod
    def drain(link):
        try:
            while link.recv(65536):
                pass
        except OSError:
            pass

    def send(self, data):
        """Like a master's output buffer: what a link that ends has not taken is there for the next one."""
        self.stream += data
        self.push(data)

    def push(self, data):
        try:
            self.link.sendall(data)
        except OSError:
            pass

    def resumed(self):
        self.accept()
        self.push(self.stream[self.asked[-1] - 1:])

    def caught_up(self, what):
        wait_until(f"{what}: {offset(self.replica)} of {len(self.stream)}",
                   lambda: offset(self.replica) == len(self.stream), PATIENCE_S)


def small_write(i):
    if i % 50 == 0:
        return words("SELECT", i // 50 % 3)
    return words("SETRANGE", f"key:{RANDOM.randrange(KEYS)}", RANDOM.randrange(SIZE - 20), noise(8))


def writes(count):
    """Small commands, most on cold keys: a window has fewer than what one read of the server takes."""
    return b"".join(small_write(i) for i in range(count))


def begun(master, data):
    """A thread that sends, when the replica has executed some of it."""
    before = offset(master.replica)
    sender = threading.Thread(target=master.send, args=(data,))
    sender.start()
    wait_until("a first command", lambda: offset(master.replica) > before, PATIENCE_S)
    return sender


def both(masters, what, *parts):
    for data in parts:
        for master in masters:
            master.send(data)
        for master in masters:
            master.caught_up(what)
    digests = [master.replica.digest() for master in masters]
    assert digests[0] == digests[1], f"{what}: the digests differ"
    print(f"{what}: equal at {len(masters[0].stream)}", flush=True)


def follow(servers, root, module):
    plain = servers.add(Server(os.path.join(root, "plain"), *LATE, patience_s=PATIENCE_S))
    for batch in range(0, KEYS, 200):
        keys = range(batch, batch + 200)
        plain.client.send([("SET", f"key:{key}", noise(SIZE)) for key in keys])
        for _ in keys:
            assert plain.client.receive() == b"OK"
    assert plain.client.ask("SAVE") == b"OK"
    with open(os.path.join(root, "plain", "dump.rdb"), "rb") as file:
        dump = file.read()
    here = os.path.join(root, "tiered")
    tiered = servers.add(Server(here, *LATE, "--loadmodule", os.path.abspath(module), "dram", "16mb", "lun", here,
                                "size", "400mb", patience_s=PATIENCE_S))
    masters = [Master(plain, dump), Master(tiered, dump)]
    both(masters, "bursts with silence behind", *(writes(count) for count in (1_000, 2_500, 2_500)))
    middle = writes(500) + words("SET", "large", noise(1 << 19) * 10) + writes(500)
    both(masters, "a large value in between", middle)

    # The link ends while there is more than the server was given: what it was not given is asked for again.
    for i in range(2):
        data = writes(4_000)
        for master in masters:
            sender = begun(master, data)
            if i == 0:
                master.replica.client.ask("CLIENT", "KILL", "TYPE", "master")
            else:
                master.link.shutdown(socket.SHUT_RDWR)
            sender.join()
            master.resumed()
        print("asked from", masters[1].asked[-1], "of", len(masters[1].stream))
    both(masters, "links that ended", b"")

    # Not one byte of the old master after REPLICAOF NO ONE, and all before its offset.
    appends = (words("APPEND", f"key:{RANDOM.randrange(KEYS)}", noise(9)) for _ in range(4_000))
    data = words("SELECT", 0) + b"".join(appends)
    before = len(masters[1].stream)
    sender = begun(masters[1], data)
    tiered.client.send([("REPLICAOF", "NO", "ONE"), ("INFO", "replication"), ("DEBUG", "DIGEST")])
    assert tiered.client.receive() == b"OK"
    at = int(tiered.client.receive().decode().split("master_repl_offset:")[1].split()[0]) - before
    digest = tiered.client.receive()
    sender.join()
    time.sleep(0.5)
    assert tiered.digest() == digest, "executed behind REPLICAOF NO ONE"
    masters[0].send(data[:at])
    masters[0].caught_up("the same part")
    assert plain.digest() == digest, f"not what comes before {at} of {len(data)}"
    print(f"switched at {at} of {len(data)}")


def main(module):
    print(f"seed {SEED}")
    with scratch("link") as root, Servers() as servers:
        follow(servers, root, module)


if __name__ == "__main__":
    main(*sys.argv[1:])
