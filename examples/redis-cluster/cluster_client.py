# SPDX-License-Identifier: Apache-2.0
"""A client for cluster.py, beyond redis-py: many commands to a cluster are in flight, and a WAIT
follows each batch on its connection. One thread per object."""
import time

import redis
from redis.cluster import ClusterParser
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MasterDownError, MovedError, TryAgainError

LOST = (OSError, redis.ConnectionError, redis.TimeoutError)   # of the server, or of the connection


class Connection(redis.Connection):
    def __init__(self, port, patience_s):
        super().__init__(host="127.0.0.1", port=port, socket_timeout=patience_s,
                         parser_class=ClusterParser)
        self.connect()

    def receive(self):
        """Returns a reply. Error replies are also returned, not raised."""
        try:
            return self.read_response()
        except redis.ResponseError as refused:
            return refused

    def ask(self, *command):
        self.send_command(*command)
        return self.read_response()


class Cluster:
    """Runs batches of commands with one key each at the nodes that have their slots. Follows MOVED
    and ASK, and tries again while a slot moves or its master is replaced."""

    def __init__(self, ports, patience_s):
        self.ports, self.patience_s = list(ports), patience_s
        self.connections, self.owner = {}, {}

    def connection(self, port):
        if port not in self.connections:
            self.connections[port] = Connection(port, self.patience_s)
        return self.connections[port]

    def drop(self, port):
        if port in self.connections:
            self.connections.pop(port).disconnect()

    def learn(self):
        """Asks the first node that answers for the owners of the slots."""
        for port in self.ports:
            try:
                ranges = self.connection(port).ask("CLUSTER", "SLOTS")
            except (*LOST, redis.ResponseError):
                self.drop(port)
                continue
            self.owner = {slot: int(master[1]) for first, last, master, *_ in ranges
                          for slot in range(first, last + 1)}
            return
        raise redis.ConnectionError("no node of the cluster answers")

    def run(self, commands, replica_ms=0):
        """Returns [(reply, True if a replica had it within `replica_ms`)], in the order of
        `commands`. The key is a command's second word."""
        results = [None] * len(commands)
        # By index: the port (None: of the slot's owner), and True if ASKING comes first.
        left = {index: (None, False) for index in range(len(commands))}
        end = time.monotonic() + self.patience_s
        while left:
            if time.monotonic() > end:
                raise RuntimeError(f"{len(left)} commands found no server within "
                                   f"{self.patience_s} s")
            if not self.owner:
                self.learn()
            left = self.round(commands, left, replica_ms, results)
        return results

    def round(self, commands, left, replica_ms, results):
        by_port = {}
        for index, (port, asking) in left.items():
            port = port or self.owner.get(key_slot(commands[index][1]), self.ports[0])
            by_port.setdefault(port, []).append((index, asking))
        again = {}
        for port, items in by_port.items():
            try:
                again.update(self.one_node(port, commands, items, replica_ms, results))
            except LOST:   # it died: what was sent may have been done or not
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
        output += [(b"WAIT", 1, replica_ms)] * (replica_ms > 0)
        connection.send_packed_command(connection.pack_commands(output))
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
        """None if `reply` is final, else the next place for the command."""
        if isinstance(reply, AskError) and not isinstance(reply, MovedError):
            return (reply.port, True)
        if isinstance(reply, MovedError):
            self.owner[reply.slot_id] = reply.port
            return (None, False)
        if isinstance(reply, (TryAgainError, ClusterDownError, MasterDownError)):
            self.owner = {} if isinstance(reply, ClusterDownError) else self.owner
            time.sleep(0.05)
            return (None, False)
        return None
