# SPDX-License-Identifier: Apache-2.0
"""A forked child of a tiered server writes or sends the data of the moment of the fork, although
every key changes meanwhile; and a fork leaves nothing behind. Under the module and under `lunar
run`, with values of all types, more than the DRAM.

How. One connection writes, in one pipeline: DEBUG DIGEST, the command that forks, and the writes
that change every key. The fork is within its command, so the digest is that of the fork. Every key
must have changed before the child is done: redis' own rdb-key-save-delay makes the child slow, and
after a third of the keys the child stops (SIGSTOP) until the rest has changed. A plain server says
what the digests must be.
"""
import os
import shutil
import signal
import time

import pytest

from memory_cgroup import Cgroup
from redis_server import MIB, NOISE, wait_until

BYTES = 3000                  # of content, about, at every key
BATCH = 200
TRIES_MAX, FORKS_BEFORE = 3, 3   # arenas, pools and tables are made at the first forks
PATIENCE_S = 900              # a save of 1 GiB with its writer, on a loaded machine
GROUP_ABOVE_CAP = 128 * MIB   # what a memory cgroup may have above the budget
SMALL, SHORT, FULL = (16, 24), (16, 64), (256, 1024)   # DRAM and values in MiB
RDB = "rdb_bgsave_in_progress", "rdb_last_bgsave_status"
AOF = "aof_rewrite_in_progress", "aof_last_bgrewrite_status"


def make(key, version):
    """One command that makes the value of `key`: every 25th collection is too long for redis'
    compact encodings."""
    kind, parts = key % 5, 300 if key // 5 % 25 == 0 else 20
    size = BYTES // parts
    at = (key * 7919 + version * 104_729) % (len(NOISE) - 2 * BYTES)
    if kind == 0:
        return "SET", f"key:{key}", NOISE[at:at + BYTES]
    words = [("", "HSET", "RPUSH", "SADD", "ZADD")[kind], f"key:{key}"]
    for part in range(parts):
        if kind in (1, 4):
            words.append(f"field {part}" if kind == 1 else str(part * version % 97))
        words.append(b"%d:" % part + NOISE[at + part * size:at + (part + 1) * size])
    return words


class Writer:
    """A server whose keys are all of one version, but those that a pass has not reached yet."""

    def __init__(self, server, keys):
        self.server, self.client, self.keys, self.version = server, server.client, keys, 1
        self.client.socket.settimeout(PATIENCE_S)
        began = time.monotonic()
        server.pipeline([make(key, 1) for key in range(keys)])
        self.fill_s = time.monotonic() - began

    def change(self, keys):
        return self.client.pipeline([words for key in keys
                                     for words in (("DEL", f"key:{key}"), make(key, self.version))],
                                    2 * BATCH)

    def change_all(self):
        """The server's child is at work during the first third, and goes on afterwards. False: the
        child was done before."""
        third = self.keys // 3
        self.change(range(third))
        children = self.server.children()
        for child in children:
            os.kill(child, signal.SIGSTOP)
        self.change(range(third, self.keys))
        for child in children:
            os.kill(child, signal.SIGCONT)
        return children != []

    def slow_child(self, attempt=0):
        """It must outlive the first third of the changes, which takes a little longer than the
        fill. Its own work takes some time besides."""
        seconds = 2 * self.fill_s * 2 ** attempt
        self.client.ask("CONFIG", "SET", "rdb-key-save-delay", int(seconds * 1e6 / self.keys))

    def fork_and_change(self, command, running):
        """The digest at the fork that `command` makes. All keys have changed while its child was at
        work."""
        for attempt in range(TRIES_MAX):
            self.slow_child(attempt)
            self.version += 1
            first = [("DEL", "key:0"), make(0, self.version)]   # at once behind the fork
            self.client.send([("DEBUG", "DIGEST"), (command,), *first])
            at_fork = [self.client.receive() for _ in range(4)][0]
            changed = self.change_all()
            self.wait_for(running)
            if changed:
                return at_fork
        pytest.fail(f"{command}: its child is always done before every key has changed")

    def wait_for(self, child):
        running, status = child
        wait_until(running, lambda: self.server.info("persistence")[running] == "0", PATIENCE_S)
        assert self.server.info("persistence")[status] == "ok"


class Twin:
    """A plain server, which tells the digest of the data set at a version."""

    def __init__(self, servers, keys):
        self.client, self.keys = servers.plain(name="twin").client, keys

    def digest(self, version):
        self.client.ask("FLUSHALL")
        self.client.pipeline([make(key, version) for key in range(self.keys)])
        return self.client.ask("DEBUG", "DIGEST")


def tiered(servers, how, cap, *words, name="tiered", wrapper=(), per_cap=24):
    """The LUN has room for the data set and what a child of it is promised at fork."""
    start = {"module": servers.tiered, "run": servers.run}[how]
    unit = "mb" if how == "module" else "m"
    options = {"wrapper": wrapper} if how == "module" else {"flags": ("--stats",)}
    return start(*words, name=name, dram=f"{cap}{unit}", size=f"{per_cap * cap}{unit}", **options)


def check(server, cap, factor):
    """It lived above its budget, within its cap, without an error."""
    server.peak_within(cap + 64)
    lunar = server.info("lunar")
    if not lunar:   # under `lunar run`: its own figures, when it ends
        server.client.refused("SHUTDOWN", "NOSAVE")
        server.process.wait(PATIENCE_S)
        lines = (line.split() for line in server.text().splitlines() if "lunar: stats: " in line)
        lunar = {{"evictions": "lunar_evicted_pages", "cap_bytes": "lunar_dram_budget_bytes",
                  "peak_resident_bytes": "lunar_resident_peak_bytes",
                  "poisoned": "lunar_poisoned_pages"}.get(words[2], "lunar_" + words[2]): words[3]
                 for words in lines}
    figures = {name: int(lunar["lunar_" + name]) for name in (
        "evicted_pages", "dram_budget_bytes", "resident_peak_bytes", "read_errors", "write_errors",
        "poisoned_pages")}
    assert figures["dram_budget_bytes"] == cap * MIB >= figures["resident_peak_bytes"]
    assert figures["evicted_pages"] * 4096 >= factor * cap * MIB
    assert figures["read_errors"] == figures["write_errors"] == figures["poisoned_pages"] == 0


def digest_of(servers, start, what, name, *words):
    """That of a server, started by `start`, which loads a copy of a file or directory."""
    place, target = servers.made(name), os.path.join(servers.place(name), os.path.basename(what))
    shutil.rmtree(target, ignore_errors=True)
    (shutil.copytree if os.path.isdir(what) else shutil.copy)(what, target)
    if name == "base":   # alone, without increments
        manifest = os.path.join(place, "appendonlydir/appendonly.aof.manifest")
        with open(manifest, encoding="utf-8") as file:
            kept = [line for line in file if "type b" in line]
        assert kept
        with open(manifest, "w", encoding="utf-8") as file:
            file.writelines(kept)
    server = start(*words, name=name)
    digest = server.digest()
    server.end()
    return digest


def save(servers, how, sizes, wrapper=()):
    cap, keys = sizes[0], sizes[1] * MIB // BYTES
    writer, twin = Writer(tiered(servers, how, cap, wrapper=wrapper), keys), Twin(servers, keys)
    at_fork, server = writer.fork_and_change("BGSAVE", RDB), writer.server
    assert at_fork == twin.digest(writer.version - 1)
    dump = os.path.join(server.directory, "dump.rdb")
    assert digest_of(servers, servers.plain, dump, "loaded") == at_fork
    assert digest_of(servers, lambda *words, name: tiered(servers, how, cap, *words, name=name),
                     dump, "again") == at_fork
    now = twin.digest(writer.version)
    assert now != at_fork and server.digest() == now
    check(server, cap, 3)


def rewrite(servers, how, sizes, wrapper=()):
    """Base in RDB and in AOF format: the base alone loads as the data of the fork, base and
    increments as the data there is."""
    cap, before = sizes[0], None
    writer = Writer(tiered(servers, how, cap, "--appendonly", "yes",
                           "--auto-aof-rewrite-percentage", "0", wrapper=wrapper),
                    sizes[1] * MIB // BYTES)
    server, client = writer.server, writer.client
    appended = os.path.join(server.directory, "appendonlydir")
    for preamble in "yes", "no":
        client.ask("CONFIG", "SET", "aof-use-rdb-preamble", preamble)
        at_fork, now = writer.fork_and_change("BGREWRITEAOF", AOF), server.digest()
        assert now != at_fork and before in (None, at_fork)
        client.ask("CONFIG", "SET", "appendfsync", "always")
        client.ask("DEL", "no such key")   # what is buffered is written with the next write
        for name, wanted in ("base", at_fork), ("all", now):
            assert digest_of(servers, servers.plain, appended, name, "--appendonly",
                             "yes") == wanted, f"{name}, preamble {preamble}"
        client.ask("CONFIG", "SET", "appendfsync", "everysec")
        before = now
    assert digest_of(servers, lambda *words, name: tiered(servers, how, cap, *words, name=name),
                     appended, "again", "--appendonly", "yes") == before
    check(server, cap, 3)


def sync_once(servers, writer, cap, diskless):
    """Full sync of a tiered replica; it has the master's data once their offsets are equal."""
    master, client = writer.server, writer.client
    client.ask("CONFIG", "SET", "repl-diskless-sync", "yes" if diskless else "no")
    words = ("--repl-diskless-load", "swapdb") if diskless else ()
    replica = tiered(servers, "module", cap, *words, name=f"replica-{diskless}", per_cap=48)
    writer.slow_child(1)   # one try only
    at_fork = master.digest()
    replica.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
    wait_until("the fork of a full sync", lambda: master.info("persistence")[RDB[0]] == "1")
    writer.version += 1
    assert writer.change_all(), "the child was done before every key changed"
    writer.wait_for(RDB)
    wait_until("the link", replica.linked, PATIENCE_S)
    replica.has_all_of(master)
    assert master.digest() != at_fork
    if not diskless:
        dump = os.path.join(master.directory, "dump.rdb")
        assert digest_of(servers, servers.plain, dump, "sent") == at_fork
    check(replica, cap, 2)
    replica.end()


def sync(servers, how, sizes, wrapper=()):
    cap = sizes[0]
    # what a slow replica has not received yet, all keys twice, also takes LUN space
    writer = Writer(tiered(servers, how, cap, "--repl-ping-replica-period", "3600",
                           "--client-output-buffer-limit", "replica 0 0 0", "--repl-timeout", "900",
                           wrapper=wrapper, per_cap=48),
                    sizes[1] * MIB // BYTES)
    for diskless in False, True:
        sync_once(servers, writer, cap, diskless)
    assert writer.server.info("stats")["sync_full"] == "2"
    check(writer.server, cap, 3)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize("scenario, how, sizes", [
    (save, "module", SMALL), (rewrite, "run", SMALL), slow(save, "module", SHORT),
    slow(save, "run", SHORT), slow(rewrite, "run", SHORT),
    slow(rewrite, "module", SHORT), slow(sync, "module", SHORT), slow(save, "module", FULL),
    slow(rewrite, "module", FULL), slow(rewrite, "run", FULL), slow(sync, "module", FULL)])
def test_fork(servers, scenario, how, sizes):
    scenario(servers, how, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [save, rewrite, sync])
def test_dram(servers, scenario):
    """With the server in a swapless memory cgroup: the kernel ends one that passes its limit."""
    group = Cgroup()
    group.limit(SHORT[0] * MIB + GROUP_ABOVE_CAP)
    try:
        scenario(servers, "module", SHORT,
                 ("/bin/sh", "-c", f"echo $$ > {group.procs} && exec \"$@\"", "sh"))
    finally:
        group.end()


class Resources:
    """The pager has a descriptor table of its own: all threads' tables count, each once or as often
    as before. The kernel's own workers for io_uring (iou-wrk-...) come and go with the load."""

    def __init__(self, server):
        process = f"/proc/{server.process.pid}"
        self.slots = server.figure("lun_used_bytes") // 4096
        self.committed = server.figure("committed_bytes")
        self.rss = server.status("VmRSS") << 10
        self.threads = self.descriptors = 0
        for task in os.listdir(f"{process}/task"):
            with open(f"{process}/task/{task}/comm", encoding="utf-8") as file:
                if file.read().startswith("iou-wrk"):
                    continue
            self.threads += 1
            self.descriptors += len(os.listdir(f"{process}/task/{task}/fd"))
        with open(f"{process}/maps", encoding="utf-8") as file:
            self.mappings = len(file.readlines())
        print(vars(self))


@pytest.mark.slow
def test_what_forks_leave(servers, forks=100):
    """Slots, memory, descriptors, threads and mappings are where they were after 100 saves under
    writes."""
    cap, keys = 16, 32 * MIB // BYTES
    server = tiered(servers, "module", cap, "--activedefrag", "no")
    server.pipeline([make(key, 1) for key in range(keys)])

    def save_once(number):
        """Meanwhile the same strings are written anew, in as many bytes: the heap stays as large as
        it is."""
        server.client.ask("BGSAVE")
        server.pipeline([make((number * 100 + n) % (keys // 5) * 5, number) for n in range(100)])
        wait_until("the save", lambda: server.info("persistence")[RDB[0]] == "0", every_s=0.002)
        assert server.info("persistence")[RDB[1]] == "ok"

    def settled():   # what the last child held comes back within a few rounds of housekeeping
        server.digest()
        time.sleep(1.5)
        return Resources(server)
    for number in range(FORKS_BEFORE):
        save_once(number)
    before = settled()
    for number in range(FORKS_BEFORE, FORKS_BEFORE + forks):
        save_once(number)
    after = settled()
    assert server.figure("forks") == forks + FORKS_BEFORE
    # Which pages are resident, and with a slot, changes: by up to the budget. A leak of a hundredth
    # of it a fork would show.
    assert after.slots <= before.slots + cap * MIB // 4096 // 4
    assert server.figure("dram_used_bytes") <= cap * MIB and after.rss <= before.rss + 8 * MIB
    assert after.committed <= before.committed + 4 * MIB
    assert (after.descriptors, after.threads) == (before.descriptors, before.threads)
    assert after.mappings <= before.mappings + 8
    check(server, cap, 1)
    # Without data no slot is in use: none was lost on the way.
    server.client.ask("FLUSHALL")
    server.client.ask("MEMORY", "PURGE")
    time.sleep(1.5)
    last = Resources(server)
    assert last.slots <= last.committed // 4096
