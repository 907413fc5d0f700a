# SPDX-License-Identifier: Apache-2.0
"""As much of a Redis client as cluster.py needs: RESP2 over a socket, pipelines, and a cluster's redirections. One
thread an object."""
import binascii
import socket
import time

SLOTS = 16384


class Refused(Exception):
    """An error reply."""


def slot_of(key):
    """Keys here have no {tag}."""
    return binascii.crc_hqx(key, 0) % SLOTS


def words_of(command):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Connection:
    def __init__(self, port, patience_s):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=patience_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = self.socket.makefile("rb", 1 << 16)

    def close(self):
        self.input.close()
        self.socket.close()

    def send(self, commands):
        self.socket.sendall(b"".join(map(words_of, commands)))

    def receive(self):
        """A reply; error replies are returned as Refused, not raised."""
        line = self.input.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Refused(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if int(rest) < 0:
                return None
            body = self.input.read(int(rest) + 2)
            if len(body) != int(rest) + 2:
                raise ConnectionError("the server closed the connection")
            return body[:-2]
        if kind == b"*":
            return [self.receive() for _ in range(max(0, int(rest)))]
        raise ConnectionError(f"odd reply: {line!r}")

    def ask(self, *command):
        self.send([command])
        reply = self.receive()
        if isinstance(reply, Refused):
            raise RuntimeError(f"{command[0]}: {reply}")
        return reply


class Cluster:
    """Runs batches of commands, each of one key, at the nodes that have their slots; follows MOVED and ASK, and tries
    again while a slot is being moved or its master is being replaced."""

    def __init__(self, ports, patience_s):
        self.ports, self.patience_s = list(ports), patience_s
        self.connections, self.owner = {}, {}

    def connection(self, port):
        if port not in self.connections:
            self.connections[port] = Connection(port, self.patience_s)
        return self.connections[port]

    def drop(self, port):
        if port in self.connections:
            self.connections.pop(port).close()

    def learn(self):
        """Which node has which slot, by the word of any that answers."""
        for port in self.ports:
            try:
                ranges = self.connection(port).ask("CLUSTER", "SLOTS")
            except (OSError, RuntimeError):
                self.drop(port)
                continue
            self.owner = {slot: int(master[1]) for first, last, master, *_ in ranges for slot in range(first, last + 1)}
            return
        raise ConnectionError("no node of the cluster answers")

    def run(self, commands, replica_ms=0):
        """[(reply, whether a replica had it within `replica_ms`)], in the order of `commands`; the key is a command's
        second word."""
        results = [None] * len(commands)
        # By index: where to (None: the slot's owner), and whether after ASKING.
        left = {index: (None, False) for index in range(len(commands))}
        end = time.monotonic() + self.patience_s
        while left:
            if time.monotonic() > end:
                raise RuntimeError(f"{len(left)} commands found no server within {self.patience_s} s")
            if not self.owner:
                self.learn()
            left = self.round(commands, left, replica_ms, results)
        return results

    def round(self, commands, left, replica_ms, results):
        by_port = {}
        for index, (port, asking) in left.items():
            port = port or self.owner.get(slot_of(commands[index][1]), self.ports[0])
            by_port.setdefault(port, []).append((index, asking))
        again = {}
        for port, items in by_port.items():
            try:
                again.update(self.one_node(port, commands, items, replica_ms, results))
            except OSError:   # it died: what was sent may have been done or not
                self.drop(port)
                self.owner = {}
                again.update({index: (None, False) for index, _ in items if results[index] is None})
                time.sleep(0.05)
        return again

    def one_node(self, port, commands, items, replica_ms, results):
        connection = self.connection(port)
        output = []
        for index, asking in items:
            output += [(b"ASKING",)] * asking + [commands[index]]
        connection.send(output + [(b"WAIT", 1, replica_ms)] * (replica_ms > 0))
        replies = {}
        for index, asking in items:
            if asking:
                connection.receive()
            replies[index] = connection.receive()
        replicated = replica_ms > 0 and connection.receive() == 1
        again = {}
        for index, reply in replies.items():
            where = self.where_next(reply)
            if where is None:
                results[index] = (reply, replicated)
            else:
                again[index] = where
        return again

    def where_next(self, reply):
        """None when `reply` is final, else where the command goes next."""
        if not isinstance(reply, Refused):
            return None
        word, *rest = str(reply).split(" ")
        if word == "MOVED":
            self.owner[int(rest[0])] = int(rest[1].rsplit(":", 1)[1])
            return (None, False)
        if word == "ASK":
            return (int(rest[1].rsplit(":", 1)[1]), True)
        if word in ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN"):
            self.owner = {} if word == "CLUSTERDOWN" else self.owner
            time.sleep(0.05)
            return (None, False)
        return None
