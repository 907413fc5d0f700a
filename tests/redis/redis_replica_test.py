# SPDX-License-Identifier: Apache-2.0
"""redis_replica_test MODULE stream|chain|faults|over: a tiered replica follows a tiered master, both with a quarter of
the data in DRAM.

  stream   uniform SETRANGE and SET from several clients: the replica has all of it soon after the master, and its main
           thread seldom waited for the LUN itself; its own clients are answered meanwhile
  chain    the same with a replica of the replica, whose stream is the one that the first reads
  faults   the same with links killed on either side, commands larger than what is read ahead, transactions, other
           databases, and kill -9 of the replica and of the master: equal digests, and a partial resync where a plain
           server makes one
"""
import os
import random
import sys
import threading
import time

from redis_server import Server, Servers, scratch, wait_until as wait
from resp import Connection, Refused

PATIENCE_S = 120
STARTED = time.monotonic()
KEYS = {"stream": 60_000, "over": 24_000}.get(sys.argv[2] if len(sys.argv) > 2 else "", 40_000)
OPERATIONS = 40_000 if sys.argv[2:] == ["stream"] else 16_000
SIZE = 1000
FAULTS_MAX = 0.3       # of the replica's main thread, an operation
SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))
NOISE = random.Random(SEED).randbytes(4 << 20)


class Member(Server):
    """Of a master and its replica, both tiered unless LUNAR_PLAIN is set."""

    def __init__(self, directory, module):
        self.module = module
        tier = []
        if module:
            tier = ["--loadmodule", os.path.abspath(module), "dram", "16mb", "lun", directory, "size", "1gb"]
        super().__init__(directory, "--repl-diskless-sync-delay", "0", "--repl-backlog-size", "8mb",
                         "--client-output-buffer-limit", "replica 0 0 0", *tier, patience_s=PATIENCE_S)

    def cold_faults(self):
        return int(self.info("lunar")["lunar_cold_faults"]) if self.module else 0

    def main_faults(self):
        return int(self.info("lunar")["lunar_main_cold_faults"]) if self.module else 0


def wait_until(what, true):
    wait(what, true, PATIENCE_S)


def part(key, size):
    at = key * 7919 % (len(NOISE) - size)
    return NOISE[at:at + size]


def fill(master):
    for batch in range(0, KEYS, 200):
        keys = range(batch, min(batch + 200, KEYS))
        master.client.send([("SET", f"key:{key}", part(key, SIZE)) for key in keys])
        for _ in keys:
            assert master.client.receive() == b"OK"


def linked(replica):
    return replica.info("replication")["master_link_status"] == "up"


def caught_up(master, replica):
    """Both have the same offset, and the replica's own count of it is what its master was told."""
    def same():
        there, here = master.info("replication"), replica.info("replication")
        return here["master_link_status"] == "up" and here.get("slave_repl_offset") == there["master_repl_offset"]
    wait_until("the replica is behind", same)
    if master.info("replication")["role"] == "master":   # a replica refuses it
        assert master.client.ask("WAIT", "1", str(PATIENCE_S * 1000)) == 1


class Writer(threading.Thread):
    """Uniform writes, a pipeline at a time, on a connection of its own; kept up through a master that goes away."""

    def __init__(self, port, number, operations, kinds, batch=64):
        super().__init__()
        self.port, self.random = port, random.Random(SEED * 100 + number)
        self.left, self.kinds, self.batch = operations, kinds, batch
        self.failure, self.stop = None, False

    def word(self):
        key, kind = self.random.randrange(KEYS), self.random.choice(self.kinds)
        if kind == "SETRANGE":
            at = str(self.random.randrange(SIZE - 40))
            return ("SETRANGE", f"key:{key}", at, part(self.random.randrange(1 << 20), 32))
        if kind == "SET":
            return ("SET", f"key:{key}", part(self.random.randrange(1 << 20), SIZE))
        if kind == "HSET":
            return ("HSET", f"hash:{key % 200}", f"field:{key % 300}", part(key, 100))
        if kind == "BIG":
            return ("SET", f"big:{key % 4}", part(key, self.random.choice([70_000, 300_000, 1_300_000])))
        if kind == "MSET":
            return ("MSET", *(w for i in range(40) for w in (f"key:{(key + i * 977) % KEYS}", part(key + i, 200))))
        if kind == "DEL":
            return ("DEL", f"key:{key}")
        return ("APPEND", f"list:{key % 999}", part(key, 20))

    def run(self):
        try:
            client = Connection(self.port, PATIENCE_S)
            while self.left > 0 and not self.stop:
                words = [self.word() for _ in range(min(self.batch, self.left))]
                if "BIG" in self.kinds and self.random.randrange(4) == 0:
                    words = [("SELECT", "3"), ("MULTI",), *words, ("EXEC",), ("SELECT", "0")]
                client.send(words)
                for _ in words:
                    reply = client.receive()
                    if isinstance(reply, Refused):
                        raise RuntimeError(str(reply))
                self.left -= self.batch
            client.close()
        except Exception as failure:   # looked at by the main thread
            self.failure = failure


def write(master, operations, kinds, clients=8):
    writers = [Writer(master.port, i, operations // clients, kinds) for i in range(clients)]
    for writer in writers:
        writer.start()
    return writers


def joined(writers):
    for writer in writers:
        writer.join(PATIENCE_S)
        assert not writer.is_alive(), "a writer does not end"
        assert writer.failure is None, f"a writer: {writer.failure!r}"


def say(what):
    print(f"{time.monotonic() - STARTED:6.1f} s  {what}", flush=True)


def equal(master, replica, what):
    caught_up(master, replica)
    say(what + ": caught up")
    there, here = master.digest(), replica.digest()
    assert there == here, f"{what}: the digests differ\n{replica.text()[-2000:]}"
    say(what + ": equal")


def stream(master, *replicas):
    """Each replica follows the one before it; the last one is measured."""
    fill(master)
    say("filled")
    for above, replica in zip((master, *replicas), replicas):
        replica.client.ask("REPLICAOF", "127.0.0.1", str(above.port))
        wait_until("the link", lambda one=replica: linked(one))
        caught_up(above, replica)
    say("linked")
    results = []
    for kinds in (["SETRANGE"], ["SET"]):
        faults, cold, start = replica.faults(), replica.cold_faults(), time.monotonic()
        longest = 0
        writers = write(master, OPERATIONS, kinds)
        while any(writer.is_alive() for writer in writers):
            asked = time.monotonic()
            assert replica.client.ask("PING") == b"PONG"
            longest = max(longest, time.monotonic() - asked)
            time.sleep(0.01)
        joined(writers)
        there = time.monotonic() - start
        for above, below in zip((master, *replicas), replicas):
            caught_up(above, below)
        here = time.monotonic() - start
        faults, cold = (replica.faults() - faults) / OPERATIONS, (replica.cold_faults() - cold) / OPERATIONS
        print(f"{kinds[0]:9} master {OPERATIONS / there:7.0f} op/s, replica {OPERATIONS / here:7.0f} op/s; "
              f"{faults:.3f} faults of its main thread an operation, {cold:.3f} cold ones; "
              f"PING {longest * 1000:.1f} ms at the most")
        results.append((kinds[0], cold))
    for replica in replicas:
        equal(master, replica, "after the stream")
    lunar = replica.info("lunar")
    names = "gate_commands", "gate_held", "gate_rounds", "overlapped_reads", "gate_timeouts", "prefetched_pages"
    print({name: lunar["lunar_" + name] for name in names})
    for kind, cold in results:
        assert cold <= FAULTS_MAX, f"{kind}: {cold:.3f} cold faults an operation"


def faults(master, replica):
    fill(master)
    replica.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
    wait_until("the link", lambda: linked(replica))
    kinds = ["SETRANGE"] * 20 + ["SET"] * 10 + ["HSET", "MSET", "DEL", "APPEND", "APPEND"] * 2 + ["BIG"]
    partial = int(master.info("stats")["sync_partial_ok"])
    writers = write(master, 9_600, kinds)
    for i in range(6):
        time.sleep(0.4)
        if i % 2 == 0:
            replica.client.ask("CLIENT", "KILL", "TYPE", "master")
        else:
            master.client.ask("CLIENT", "KILL", "TYPE", "replica")
    joined(writers)
    say("written")
    wait_until("the link", lambda: linked(replica))
    equal(master, replica, "links killed")
    again = int(master.info("stats")["sync_partial_ok"]) - partial
    print(f"{again} partial resyncs")
    assert again >= 1, "no partial resync"

    writers = write(master, 6_400, kinds)
    time.sleep(0.5)
    replica.end()
    replica.start()
    replica.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
    joined(writers)
    say("written")
    wait_until("the link", lambda: linked(replica))
    equal(master, replica, "replica killed")

    master.client.ask("SAVE")
    writers = write(master, 6_400, kinds)
    time.sleep(0.5)
    master.end()
    for writer in writers:
        writer.join(PATIENCE_S)
    master.start()
    wait_until("the link", lambda: linked(replica))
    writers = write(master, 3_200, kinds)
    joined(writers)
    say("written")
    equal(master, replica, "master killed")
    replica.client.ask("REPLICAOF", "NO", "ONE")
    assert replica.client.ask("SET", "own", "one") == b"OK"


def reloaded(server, *options):
    before, start = server.digest(), time.monotonic()
    assert server.client.ask("DEBUG", "RELOAD", *options) == b"OK"
    took = time.monotonic() - start
    assert server.digest() == before, f"DEBUG RELOAD {options} changed the data"
    say(f"DEBUG RELOAD {' '.join(options)}: {took:.1f} s")


def over(master, replica):
    fill(master)
    master.pipeline([("HSET", f"hash:{key}", *(word for n in range(40) for word in (f"f{n}", part(key + n, 60))))
                     for key in range(300)])
    reloaded(master, "NOFLUSH", "MERGE")
    reloaded(master)
    for load in ("disabled", "swapdb"):
        if replica.client.ask("CONFIG", "SET", "repl-diskless-load", load) != b"OK":
            continue
        replica.pipeline([("SET", f"key:{key}", part(key + 1, SIZE)) for key in range(KEYS // 2, KEYS)])
        replica.pipeline([("SET", f"own:{key}", part(key, SIZE)) for key in range(KEYS // 2)])
        replica.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
        wait_until("the link", lambda: linked(replica))
        equal(master, replica, f"full sync over keys, repl-diskless-load {load}")
        replica.client.ask("REPLICAOF", "NO", "ONE")
    # Dumps of one server over the keys of the other.
    count = 4000
    keys = [f"key:{key * 7919 % KEYS}" for key in range(count)]
    master.client.send([("DUMP", key) for key in keys])
    dumps = [master.client.receive() for _ in keys]
    replica.pipeline([("SET", key, "x" * SIZE) for key in keys])
    replica.pipeline([("STRLEN", f"key:{key}") for key in range(KEYS)])   # all that was written has left DRAM
    if replica.module:
        replica.client.ask("CONFIG", "SET", "lunar.gate-hold-ms", "2000")   # of a busy machine
    before = replica.main_faults()
    replica.pipeline([("RESTORE", key, "0", dump, "REPLACE") for key, dump in zip(keys, dumps)])
    each = (replica.main_faults() - before) / count
    print(f"RESTORE with REPLACE over a cold key: {each:.3f} faults of the main thread")
    assert master.digest() == replica.digest(), "RESTORE gives other data"
    assert not replica.module or each <= 0.1, f"{each:.3f} faults for a RESTORE"


def main(module, scenario):
    print(f"seed {SEED}")
    with scratch("replica") as root, Servers() as servers:
        for name in ("master", "replica", *(["replica-of-it"] if scenario == "chain" else [])):
            servers.add(Member(os.path.join(root, name), "" if os.environ.get("LUNAR_PLAIN") else module))
        {"stream": stream, "chain": stream, "faults": faults, "over": over}[scenario](*servers.started)


if __name__ == "__main__":
    main(*sys.argv[1:])
