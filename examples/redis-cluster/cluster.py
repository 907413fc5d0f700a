#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Redis Cluster of six tiered nodes on this host: three masters, three replicas, each with the
Lunar module.

Fills the masters to a multiple of their DRAM, moves slots from one master to another and kills a
third with SIGKILL, both while a client writes. Then it waits for the failover, reads every key back
and prints the counters of each node. At the end, also after Ctrl-C, it ends the servers and removes
their directory. Needs redis-server, redis-cli and redis-py (python3-redis).

    cluster.py [--module PATH] [--dram MIB] [--times N] [--slots N] [--directory DIR]

Exit code 0: every key is right. 77: this host or user cannot run it.
"""
import argparse
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import redis

from cluster_client import LOST, Cluster, Connection

MASTERS = 3
VALUE_BYTES = 4000
PATIENCE_S = 60
# data of four times DRAM, a fork that may copy all of it, and the slots of a second master
LUN_TIMES_DRAM = 24
INSTALLED = "/usr/lib/x86_64-linux-gnu/redis/modules/liblunar-redis.so"


def die_with_parent():
    """Called in a child before exec: the kernel kills the child when this program ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def cli(*words):
    done = subprocess.run(["redis-cli", *map(str, words)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
    if done.returncode != 0 or "[ERR]" in done.stdout:
        raise RuntimeError(f"redis-cli {' '.join(map(str, words))}: {done.stdout.strip()[-600:]}")
    return done.stdout


def wait_until(what, holds):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} does not come within {PATIENCE_S} s")
        time.sleep(0.05)


class Node:
    """A redis-server, which is a child of this program."""

    def __init__(self, directory, name, options):
        self.name, self.directory, self.options = name, os.path.join(directory, name), options
        os.mkdir(self.directory)
        self.process = self.connection = None
        self.port = 0

    def log(self):
        with open(os.path.join(self.directory, "log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def start(self):
        # another program may take a port between our look and the server's bind
        for _ in range(5):
            self.port = free_port()
            self.process = subprocess.Popen(
                ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir",
                 self.directory, "--logfile", "log", "--save", "", "--cluster-enabled", "yes",
                 "--cluster-node-timeout", "2000",
                 "--repl-diskless-sync-delay", "0", "--loadmodule", *self.options],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent)
            while self.process.poll() is None:
                try:
                    self.connection = Connection(self.port, PATIENCE_S)
                    # it listens before it loads the module, and may refuse that
                    self.connection.ask("PING")
                    return
                except LOST:
                    time.sleep(0.02)
            if "already in use" not in self.log():
                break
        raise RuntimeError(f"{self.name} does not start:\n{self.log()[-1500:]}")

    def info(self, section):
        lines = self.connection.ask("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def role(self):
        return self.info("replication")["role"]

    def sees_all(self, up):
        info = dict(line.split(":", 1)
                    for line in self.connection.ask("CLUSTER", "INFO").decode().splitlines())
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) >= up

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()


def free_port():
    """A port that is free now, with a free cluster bus port (10000 more)."""
    while True:
        with socket.socket() as one, socket.socket() as bus:
            try:
                one.bind(("127.0.0.1", random.randrange(20000, 30000)))
                bus.bind(("127.0.0.1", one.getsockname()[1] + 10000))
                return one.getsockname()[1]
            except OSError:
                pass


class Values:
    """The expected values. The value of a key follows from the key and a version. A write is
    confirmed when its master and a replica have it. A failover may lose unconfirmed writes, so a
    key may have any version from the last confirmed to the last sent."""

    def __init__(self, count):
        self.sent = [1] * count
        self.confirmed = [0] * count

    @staticmethod
    def name(key):
        return b"key:%d" % key

    @staticmethod
    def value(key, version):
        head = b"%d %d " % (key, version)
        return head + random.Random(key << 32 | version).randbytes(VALUE_BYTES - len(head))

    def wrong(self, key, value):
        """None, or what is wrong with the value."""
        if not isinstance(value, bytes):
            return f"key:{key}: {value!r}"
        words = value[:40].split(b" ")
        version = int(words[1]) if len(words) > 2 and words[1].isdigit() else -1
        if not self.confirmed[key] <= version <= self.sent[key]:
            return f"key:{key} has version {version}, not {self.confirmed[key]} to {self.sent[key]}"
        return None if value == self.value(key, version) else f"key:{key} has the wrong bytes"


class Client:
    """Reads and writes batches of keys in the cluster."""

    def __init__(self, values, ports):
        self.values = values
        self.cluster = Cluster(ports, PATIENCE_S)
        # longest time for a replica to confirm a write; 0: no replica must confirm it
        self.replica_ms = 5000

    def store(self, keys):
        commands = [(b"SET", self.values.name(key), self.values.value(key, self.values.sent[key]))
                    for key in keys]
        replies = self.cluster.run(commands, self.replica_ms)
        for key, (reply, replicated) in zip(keys, replies):
            if reply != b"OK":
                raise RuntimeError(f"SET of key:{key}: {reply!r}")
            if replicated or self.replica_ms == 0:
                self.values.confirmed[key] = self.values.sent[key]

    def write(self, keys):
        """Writes a new version of each key."""
        for key in keys:
            self.values.sent[key] += 1
        self.store(keys)

    def read(self, keys):
        commands = [(b"GET", self.values.name(key)) for key in keys]
        replies = self.cluster.run(commands)
        return [bad for key, (reply, _) in zip(keys, replies)
                if (bad := self.values.wrong(key, reply))]


class Load(threading.Thread):
    """A client that writes and reads random batches while the cluster changes."""

    def __init__(self, values, ports):
        super().__init__(daemon=True)
        self.client = Client(values, ports)
        self.client.replica_ms = 200
        self.stop = threading.Event()
        self.operations, self.problems, self.pause_s = 0, [], 0.0

    def run(self):
        pick = random.Random(1)
        count = len(self.client.values.sent)
        try:
            while not self.stop.is_set():
                start = time.monotonic()
                self.client.write(pick.sample(range(count), 16))
                self.problems += self.client.read(pick.sample(range(count), 48))
                self.operations += 64
                self.pause_s = max(self.pause_s, time.monotonic() - start)
        except (RuntimeError, OSError, redis.RedisError) as error:
            self.problems.append(str(error))

    def finish(self):
        self.stop.set()
        self.join()
        if self.problems:
            raise RuntimeError("under load: " + "; ".join(self.problems[:5]))


def say(started, text):
    print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)


def create(nodes):
    for node in nodes:
        node.start()
    cli("--cluster", "create", *[f"127.0.0.1:{node.port}" for node in nodes], "--cluster-replicas",
        1, "--cluster-yes")
    wait_until("the cluster", lambda: all(node.sees_all(len(nodes)) for node in nodes))
    wait_until("the link of every replica", lambda: all(
        node.info("replication").get("master_link_status", "up") == "up" for node in nodes))


def batches(count, size=256):
    return (range(first, min(first + size, count)) for first in range(0, count, size))


def print_table(nodes):
    print(f"{'node':8} {'role':8} {'keys':>7} {'DRAM':>8} {'resident peak':>14} {'cold':>9} "
          f"{'evicted':>9} "
          f"{'overlapped reads':>17}")
    for node in nodes:
        if node.process.poll() is not None:
            print(f"{node.name:8} killed")
            continue
        info = node.info("lunar")
        names = "dram_budget_bytes", "resident_peak_bytes", "cold_bytes"
        budget, peak, cold = (int(info["lunar_" + name]) >> 20 for name in names)
        print(f"{node.name:8} {node.role():8} {node.connection.ask('DBSIZE'):7} {budget:4} MiB "
              f"{peak:10} MiB {cold:5} MiB {int(info['lunar_evicted_pages']) >> 8:5} MiB "
              f"{int(info['lunar_overlapped_reads']):17}")


def check_tiers(nodes):
    for node in nodes:
        info = node.info("lunar")
        budget, peak = int(info["lunar_dram_budget_bytes"]), int(info["lunar_resident_peak_bytes"])
        if peak > budget:
            raise RuntimeError(f"{node.name}: {peak} bytes were resident, above its budget")
        if int(info["lunar_evicted_pages"]) * 4096 < budget:
            raise RuntimeError(f"{node.name}: evicted less than its budget: is it tiered?")
        for name in ("read_errors", "write_errors", "poisoned_pages"):
            if info["lunar_" + name] != "0":
                raise RuntimeError(f"{node.name}: {name} is {info['lunar_' + name]}")


def fill(client, count, started):
    start = time.monotonic()
    for keys in batches(count):
        client.store(keys)
    late = client.values.confirmed.count(0)
    if late > 0:
        raise RuntimeError(f"{late} values did not reach a replica in time")
    took, stored = time.monotonic() - start, count * VALUE_BYTES
    say(started,
        f"stored {count} values, {stored >> 20} MiB: {stored / took / (1 << 20):.0f} MiB/s")


def move_slots(nodes, slots, load, started):
    source, target = (node.connection.ask("CLUSTER", "MYID").decode() for node in nodes[:2])
    before, start = load.operations, time.monotonic()
    cli("--cluster", "reshard", f"127.0.0.1:{nodes[0].port}", "--cluster-from", source,
        "--cluster-to", target,
        "--cluster-slots", slots, "--cluster-yes")
    took = time.monotonic() - start
    rate = (load.operations - before) / took
    say(started,
        f"moved {slots} slots from node-0 to node-1 in {took:.1f} s, while a client did "
        f"{rate:.0f} op/s")


def fail_over(nodes, load, started):
    victim = nodes[2]
    successor = next(node for node in nodes[MASTERS:]
                     if node.info("replication")["master_port"] == str(victim.port))
    load.pause_s = 0.0
    start = time.monotonic()
    victim.kill()
    rest = [node for node in nodes if node is not victim]
    wait_until("the failover", lambda: successor.role() == "master"
               and all(node.sees_all(len(nodes)) for node in rest))
    took = time.monotonic() - start
    load.client.replica_ms = 0   # its new master has none, and nothing more is killed
    before = load.operations
    wait_until("the client's next operation", lambda: load.operations > before + 64
               or load.problems)
    say(started, f"killed {victim.name}; {successor.name} took over in {took:.1f} s; "
                 f"the client's longest pause: {load.pause_s:.1f} s")
    return rest


def run(arguments, directory, nodes):
    started = time.monotonic()
    create(nodes)
    say(started, f"{len(nodes)} nodes, {arguments.dram} MiB of DRAM each")
    # What a master must hold, and slots are spread evenly.
    count = MASTERS * arguments.times * (arguments.dram << 20) // VALUE_BYTES
    values, ports = Values(count), [node.port for node in nodes]
    client = Client(values, ports)
    fill(client, count, started)
    load = Load(values, ports)
    load.start()
    move_slots(nodes, arguments.slots, load, started)
    alive = fail_over(nodes, load, started)
    load.finish()
    wrong = [bad for keys in batches(count) for bad in client.read(keys)]
    say(started,
        f"read {count} keys after {load.operations} operations meanwhile: {len(wrong)} wrong")
    print_table(nodes)
    for bad in wrong[:5]:
        print("wrong:", bad)
    check_tiers(alive)
    return 1 if wrong else 0


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--module", default=INSTALLED,
                        help=f"liblunar-redis.so (default: {INSTALLED})")
    parser.add_argument("--dram", type=int, default=64, metavar="MIB",
                        help="of each node (default: 64)")
    parser.add_argument("--times", type=int, default=4, metavar="N",
                        help="data of a master / its DRAM (default: 4)")
    parser.add_argument("--slots", type=int, default=1000, metavar="N",
                        help="how many to move (default: 1000)")
    parser.add_argument("--directory", default="/var/tmp", metavar="DIR",
                        help="for the LUNs, on a disk (default: /var/tmp)")
    return parser.parse_args()


def main():
    arguments = arguments_of()
    for program in ("redis-server", "redis-cli"):
        if shutil.which(program) is None:
            print("skip: redis-server: not installed")
            return 77
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    directory = tempfile.mkdtemp(prefix="lunar-cluster-", dir=arguments.directory)
    options = [os.path.abspath(arguments.module), "dram", f"{arguments.dram}mb", "lun", directory,
               "size", f"{arguments.dram * LUN_TIMES_DRAM}mb"]
    nodes = [Node(directory, f"node-{i}", options) for i in range(2 * MASTERS)]
    try:
        return run(arguments, directory, nodes)
    except (RuntimeError, OSError, redis.RedisError) as error:
        refused = "userfaultfd: not permitted" in str(error)
        print(f"{'skip: userfaultfd' if refused else 'FAIL'}: {error}")
        return 77 if refused else 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for node in nodes:
            node.kill()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
