# SPDX-License-Identifier: Apache-2.0
"""24 clients on a tiered server that saves, rewrites its append-only file, is given more and less
DRAM, lives on LUNs that fail, and is killed again and again. appendfsync is always: what was
acknowledged must be there after each restart, and every reply must be right. With them, keys that
expire, rounds of values of other sizes, and a user who may change nothing (redis_soak_clients).

A life of the server: start from the append-only file, BGSAVE now and then, CONFIG SET lunar.dram
five times a second between half (16 MiB at least) and twice the budget, one BGREWRITEAOF, kill -9,
but not before a save and a rewrite have come to their ends; two times of three while a child saves
or rewrites. The child lives on until the next server is up. Lives take turns:

  file     a file on the disk. A tiered replica comes late, is killed -9 at any moment, comes again
           and follows; then clients rest, and both have the same digest
  errors   reads and writes that fail, bits that flip on their way: tried again. Nothing may be seen
           of it, and the LUN stays as large as it is
  torn     writes that land in part or elsewhere: pages are lost. The server may end at any time,
           with a line that says so, or answer with an error; it may not give a wrong reply, or
           write one to its files

At the end a plain server loads the append-only file, and the last dump, and every key is read.
LUNAR_SEED= replays choices, not timing."""
import contextlib
import os
import random
import re
import shutil
import signal
import time
from collections import Counter, namedtuple

import pytest

from redis_server import GONE, MIB, SEED, Refused, wait_until
from redis_soak_clients import BYTES, LIMITED, Board, Limited, Owner, Strings

OWNERS = 24
CHILDREN_S_MAX = 180   # more than a life, on a loaded machine
LINK_S_MAX = 900       # the stream passes the master's limit, and the sync begins anew
LEAST_DRAM = 16 * MIB
APPEND = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "100",
          "--auto-aof-rewrite-min-size", "512mb")
# A page that four reads in a row fail is lost: one in 6e10 with these.
LIVES = {"file": None,
         "errors": "latency_us=40,read_error=1000,write_error=50,corrupt=1000",
         "torn": "latency_us=40,torn=3000,misdirect=3000"}
# A process gets half of a sim: LUN, a child of it what it may come to need: as much as the size of
# data and what slots need; on a file also what a replica has not received yet.
LUN_PER_CAP = {"file": 48, "errors": 24, "torn": 24}
SIM_PER_CAP = 50
# By signal 10, SIGUSR1, the server itself ends a child that is of no use any more: its last replica
# has gone.
BAD = r"cannot be read back|FATAL|crashed by signal|terminated by signal(?! 10\n)|BUG REPORT"

Plan = namedtuple("Plan", "seconds cap_mib values_mib save_every_s life_s pause_s")
SHORT = Plan(3, 16, 24, 3, 4, 0.4)
FULL = Plan(600, 32, 128, 20, 45, 0.01)


class Soak:
    def __init__(self, servers, plan):
        self.servers, self.plan, self.cap = servers, plan, plan.cap_mib * MIB
        self.board, self.pick, self.totals = Board(), random.Random(SEED), Counter()
        keys, board, pause_s = plan.values_mib * MIB // BYTES, self.board, plan.pause_s
        self.owners = [Owner(board, n, keys // OWNERS, pause_s) for n in range(OWNERS)]
        self.strings = [Strings(board, "due", keys // 5, pause_s / 10, int(plan.life_s * 250)),
                        Strings(board, "size", keys // 5, pause_s / 10)]
        self.limited = Limited(board, keys, pause_s)
        self.guests, self.orphans = [*self.owners, *self.strings, self.limited], []

    def go(self):
        for guest in self.guests:
            guest.start()
        lives, began = 0, None
        while not self.board.stop.is_set() and (
                lives < len(LIVES) or not began
                or time.monotonic() < began + self.plan.seconds):
            self.live(list(LIVES)[lives % len(LIVES)], lives)
            lives += 1
            if not began and self.filled():
                began = time.monotonic()
        self.board.stop.set()
        for guest in self.guests:
            guest.join()
        self.end_orphans()
        assert not self.board.failures
        self.last_look()
        self.totals["lives"] = lives

    def filled(self):
        return all(owner.filled >= owner.keys for owner in self.owners)

    def start(self, kind, number, name="soak", forks="yes"):
        faults, words = LIVES[kind], ()
        if name == "soak":
            words = (*APPEND, *LIMITED)
        lun = None
        if faults and name == "soak":
            lun = f"sim:{SIM_PER_CAP * self.cap},seed={number + 1},{faults}"
        return self.servers.tiered(*words, name=name, dram=str(self.cap), lun=lun, forks=forks,
                                   size=str(LUN_PER_CAP[kind] * self.cap))

    def live(self, kind, number):
        lossy, ended, log = kind == "torn", False, self.servers.place("soak/log")
        before = os.path.getsize(log) if os.path.exists(log) else 0
        server = None
        try:
            server = self.start(kind, number)
            print(f"life {number}: {kind}, loaded in {server.took:.1f} s", flush=True)
            self.end_orphans()
            self.room = self.lun_room(server, self.cap)
            self.board.lossy, self.board.server = lossy, server
            self.attend(server, kind)
            self.orphans = children_of(server)
            self.totals["kills"] += 1
            self.totals["kills with a child"] += bool(self.orphans)
        except (*GONE, Refused, pytest.fail.Exception) as error:
            ended = True
            if not lossy:
                self.board.fail(f"life {number} ({kind}): {error}")
        self.board.server = None
        if server:
            server.end()
        with open(log, encoding="utf-8", errors="replace") as file:
            file.seek(before)
            self.check_log(kind, file.read(), ended)

    def check_log(self, kind, log, ended):
        """A server that loses pages has said so before it ended; others have nothing to say."""
        if self.board.failures:
            print("".join(line + "\n" for line in log.splitlines()
                          if "LUN" in line or "maxmemory" in line)[-2000:])
        if kind == "torn":
            lost = "cannot be read back" in log
            self.totals["ends by a lost page"] += ended and lost
            if ended and not lost:
                self.board.fail(f"{kind}: it ended, and its log names no page:\n{log[-2000:]}")
        elif found := re.search(BAD, log):
            self.board.fail(f"{kind}: {log[max(0, found.start() - 300):][:2000]}")

    def attend(self, server, kind):
        client, began = server.client, time.monotonic()
        saved = asked = rewritten = False
        next_save = began

        def schedule(*words):
            reply = client.all_of([words])[0]
            assert not isinstance(reply, Refused) or "already in progress" in str(reply), reply
            return not isinstance(reply, Refused)

        def goes_on():   # a save and a rewrite are to end
            limit = self.plan.life_s if rewritten else max(self.plan.life_s, CHILDREN_S_MAX)
            return time.monotonic() < began + limit and not self.board.stop.is_set()
        while goes_on():
            time.sleep(0.2)
            self.change_budget(client)
            persistence = client.info("persistence")
            saved = saved or persistence["rdb_last_bgsave_time_sec"] != "-1"
            if saved and not asked:
                asked = schedule("BGREWRITEAOF")
            rewritten = rewritten or (asked and persistence["aof_last_rewrite_time_sec"] != "-1")
            if time.monotonic() >= next_save and (asked or not saved) and self.filled():
                next_save = max(next_save + self.plan.save_every_s, time.monotonic())
                schedule("BGSAVE", "SCHEDULE")
            if kind != "torn":
                for name in ("rdb_last_bgsave_status", "aof_last_bgrewrite_status",
                             "aof_last_write_status"):
                    if persistence[name] != "ok":
                        self.board.fail(f"{name} is {persistence[name]}")
        if kind == "file":
            self.follow_with_replica(server)
        self.look_at_figures(server, kind)
        if dice := self.pick.randrange(3):
            schedule(*("BGSAVE", "SCHEDULE") if dice == 1 else ("BGREWRITEAOF",))
            time.sleep(self.pick.random() * 0.3)

    def follow_with_replica(self, master):
        """The first is killed while it copies its master, or follows it; the second must come to be
        like its master."""
        first = self.start("file", 0, "replica", "no")
        first.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
        self.board.stop.wait(self.plan.life_s / 4 * self.pick.random())
        first.end()
        second = self.start("file", 0, "replica", "no")
        second.client.ask("REPLICAOF", "127.0.0.1", str(master.port))
        wait_until("the link", second.linked, LINK_S_MAX)
        self.board.stop.wait(self.plan.life_s / 8)
        self.board.paused = True   # no client begins anything, and all have their replies
        try:
            wait_until("the end of the clients' work",
                       lambda: not any(guest.busy for guest in self.guests))
            wait_until("the end of the keys that expire",
                       lambda: "expires=0," in master.info("keyspace")["db0"])
            second.has_all_of(master)
        finally:
            self.board.paused = False
        second.end()
        self.totals["replicas compared"] += 1

    def change_budget(self, client):
        least = max(self.cap // 2, LEAST_DRAM)
        wanted = self.pick.randrange(least, 2 * self.cap) // 4096 * 4096
        client.ask("CONFIG", "SET", "lunar.dram", wanted)
        assert client.figure("dram_budget_bytes") == wanted

    @staticmethod
    def lun_room(server, wanted):
        """As far as the server can have it. The figure is a sum of several, and for a moment too
        small as a child begins or ends."""
        room = 0
        with contextlib.suppress(AssertionError):
            def enough():
                nonlocal room
                room = max(room, 2 * server.figure("forks_refused_at_bytes"))
                return room >= wanted
            wait_until("room", enough, 1, 0.05)
        return room

    def look_at_figures(self, server, kind):
        lunar, persistence = server.info("lunar"), server.info("persistence")
        figures = {name: int(lunar["lunar_" + name]) for name in (
            "evicted_pages", "read_errors", "write_errors", "poisoned_pages",
            "resident_peak_bytes", "gate_expired", "gate_refused")}
        self.totals += Counter(figures)
        self.totals += Counter({name: int(persistence[name])
                                for name in ("rdb_saves", "aof_rewrites")})
        errors = figures["read_errors"], figures["write_errors"]
        wrong = []
        if figures["evicted_pages"] * 4096 < self.cap:
            wrong.append("fewer pages evicted than the budget has")
        if figures["resident_peak_bytes"] > 2 * self.cap:
            wrong.append("tiered pages peaked above the budget")
        if kind == "errors" and min(errors) == 0:
            wrong.append("no errors came")
        if kind == "file" and max(errors) > 0:
            wrong.append("errors")
        if kind != "torn" and figures["poisoned_pages"]:
            wrong.append("pages are lost")
        # Data cannot use the space that failed writes take: in the end writes are refused.
        wanted = self.room - self.room // 64
        if kind != "torn" and self.lun_room(server, wanted) < wanted:
            wrong.append(f"of {self.room} bytes of LUN some are gone")
        if wrong:
            self.board.fail(f"{kind}: {wrong}: {figures}")

    def end_orphans(self):
        for child in self.orphans:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)
        self.orphans = []

    def last_look(self):
        """Without the module: the files alone tell."""
        self.board.lossy = False
        self.board.server = self.servers.plain(*APPEND, name="soak")
        for guest in (*self.owners, *self.strings):
            guest.verify_all()
        assert not self.board.failures
        dump = os.path.join(self.servers.place("soak"), "dump.rdb")
        shutil.copy(dump, os.path.join(self.servers.made("dump"), "dump.rdb"))
        digest = self.servers.plain(name="dump").digest()
        assert len(digest) == 40 and digest != b"0" * 40, "the last dump"

    def report(self):
        totals = self.totals
        for name in ("writes", "reads_done", "in_doubt"):
            totals[name] = sum(getattr(owner, name) for owner in self.owners)
        totals["expired"], totals["rounds"] = self.strings[0].expired, self.strings[1].rounds
        totals["turned down"] = self.limited.turned_down
        print(dict(totals))
        for name, least in (
                ("lives", len(LIVES)), ("kills", 2), ("rdb_saves", 2), ("aof_rewrites", 1),
                ("replicas compared", 1), ("expired", 1), ("rounds", 2), ("turned down", 1),
                ("gate_expired", 1), ("gate_refused", 1), ("in_doubt", 1),
                ("writes", len(self.owners) * self.owners[0].keys),
                ("reads_done", len(self.owners) * self.owners[0].keys)):
            assert totals[name] >= least, f"{name}: too few to show anything"


def children_of(server):
    """Their descriptors: their numbers may be given to others when they have ended."""
    children = []
    for child in server.children():
        with contextlib.suppress(ProcessLookupError):
            children.append(os.pidfd_open(child))
    return children


@pytest.mark.parametrize("plan", [SHORT, pytest.param(FULL, marks=pytest.mark.slow)],
                         ids=["short", "full"])
def test_soak(servers, plan):
    soak = Soak(servers, plan)
    try:
        soak.go()
    finally:
        soak.board.stop.set()
        soak.end_orphans()
    soak.report()
