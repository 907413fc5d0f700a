# SPDX-License-Identifier: Apache-2.0
"""One added key makes the server double a cold hash table: faults of the server until all entries
have moved.

2^17 keys fill a table of that size (Valkey: 7 * 2^14 but one, 7 a bucket: its cron doubles a full
one); the next two make the server move it to one of twice the size, a bucket a command and as many
as it can in a millisecond a cron tick: each entry and each key is read. MEMORY STATS tells when it
is done. FLUSHDB, SWAPDB and a save in the midst of it must leave the keys as they are; the server's
setting activerehashing must read as a client has set it, all the time."""
import os
import signal
import time

from redis_server import MIB, PATIENCE_S, Figures, sets, value, wait_until

SIZE = 200
# 900 (Valkey) to 3,200 without our help: each page of entries and keys
FAULTS_MAX = 400
COOLERS = 24       # of 1 MiB


class Scene:
    def __init__(self, server):
        self.server, self.client = server, server.client
        valkey = "valkey_version" in server.info("server")
        self.keys = (7 << 14) - 1 if valkey else 1 << 17

    def fill(self, keys):
        self.client.pipeline(sets("key", range(keys), SIZE), 512)

    def moves(self, database):
        """Redis 7.0: entries and objects of 40 bytes, a table of 2^17 slots and one of twice the
        size; then only the latter."""
        words = self.client.ask("MEMORY", "STATS")
        stats = dict(zip(words[::2], words[1::2]))
        moving = stats.get(b"overhead.db.hashtable.rehashing")   # of all databases
        if moving is not None:
            return moving >= MIB
        words = stats.get(b"db.%d" % database, [])
        size = dict(zip(words[::2], words[1::2])).get(b"overhead.hashtable.main", 0)
        return size >= self.keys * (40 + 3 * 8 - 2)

    def cool(self):
        """Everything of the keys goes to the LUN: large values of another database take its
        place."""
        self.client.ask("SELECT", "3")
        for n in range(COOLERS):
            if not self.client.ask("EXISTS", f"cooler:{n}"):
                self.client.ask("SETRANGE", f"cooler:{n}", MIB - 1, "x")
        for _ in range(6):
            for n in range(COOLERS):
                self.client.ask("BITCOUNT", f"cooler:{n}")
        self.client.ask("SELECT", "0")

    def double(self):
        self.cool()
        self.client.ask("MSET", "one more", "x", "and one", "x")

    def wait_for_rehash(self, database, setting):
        assert self.moves(database), "no rehash runs"
        figures, until = Figures(self.client, "main_cold_faults"), time.monotonic() + PATIENCE_S
        while self.moves(database):
            assert time.monotonic() < until, "the rehash does not end"
            assert self.client.config("activerehashing") == setting
            for _ in range(40):
                self.client.ask("PING")
                time.sleep(0.002)
        faults = figures.grown()[0]
        print(f"{faults} faults of the main thread")
        assert faults <= FAULTS_MAX

    def check(self):
        keys = range(0, self.keys, 16)
        assert self.client.pipeline([("GET", f"key:{key}") for key in keys]) == [value(key, SIZE)
            for key in keys]
        assert self.client.ask("DBSIZE") == self.keys + 2


def end_save(server):
    """The child that saves has some seconds, then it is ended as the server itself would: on a busy
    machine it takes a minute."""
    began = time.monotonic()

    def ended():
        if time.monotonic() > began + 2:
            for child in server.children():
                os.kill(child, signal.SIGUSR1)
        return server.info("persistence")["rdb_bgsave_in_progress"] == "0"
    wait_until("the end of a save", ended, every_s=0.1)


def test_rehash(servers):
    server = servers.tiered("--databases", "4", size="384mb")
    scene = Scene(server)
    scene.fill(scene.keys)
    assert server.figure("evicted_pages") * 4096 > 16 * MIB, "the keys fit into DRAM"
    scene.double()
    scene.wait_for_rehash(0, "yes")
    scene.check()


def test_changes_meanwhile(servers):
    """A table is emptied twice while it is being doubled, and filled again. Then its database gets
    another number in the midst, and a child saves: the server does not rehash meanwhile."""
    server = servers.tiered("--databases", "4", size="384mb")
    scene, ask = Scene(server), server.client.ask
    scene.fill(scene.keys // 4 + 512)   # a smaller table is being doubled
    ask("FLUSHDB", "SYNC")
    scene.fill(scene.keys // 4 + 512)
    for _ in range(6):
        ask("FLUSHALL", "ASYNC")        # each makes new tables of all databases
    scene.fill(scene.keys)
    scene.double()
    time.sleep(0.05)
    ask("CONFIG", "SET", "activerehashing", "no")
    ask("SWAPDB", "0", "1")
    ask("BGSAVE")
    end_save(server)
    ask("SELECT", "1")
    if scene.moves(1):
        scene.wait_for_rehash(1, "no")
    scene.check()
