# SPDX-License-Identifier: Apache-2.0
"""redis_info_test MODULE SCENARIO: what an operator sees.

  page        each line of INFO lunar stands in examples/redis/README.md, and each line that stands there is in INFO
  rates       the hit rate tells hot reads from cold ones; rates, holds and shares are what was done
  ungated     likewise without the gate
  top         LUNAR TOP names the prefixes that are asked for, and those that are cold
"""
import os
import random
import re
import sys
import threading
import time

from redis_server import run_scenario
from redis_space_test import Refused, SEED, value, with_server

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
KEYS, BYTES = 8000, 8000   # four times the budget
LATENCY_MS = 4


def fill(client):
    for first in range(0, KEYS, 200):
        client.send([("SET", f"k:{key}", value(key, BYTES)) for key in range(first, first + 200)])
        for _ in range(200):
            assert client.receive() == b"OK"


def read(client, keys, prefix="k:"):
    for key in keys:
        client.send([("GET", f"{prefix}{key}")])
        assert client.receive() is not None


def page(directory, module):
    told = open(os.path.join(ROOT, "examples/redis/README.md"), encoding="utf-8").read()
    on_page = set(re.findall(r"`(lunar_\w+)`", told))

    def test(server):
        client = server.connect()
        lines = set(client.info("lunar"))
        client.ask("CONFIG", "SET", "lunar.gate", "no")
        lines |= set(client.info("lunar"))
        assert not lines - on_page, f"not on the page: {sorted(lines - on_page)}"
        assert not on_page - lines, f"on the page only: {sorted(on_page - lines)}"
        stats = client.ask("LUNAR", "STATS")
        names = {"lunar_" + name.decode() for name in stats[::2]}
        assert names == set(client.info("lunar")), "LUNAR STATS and INFO lunar differ"
        print(f"{len(lines)} lines")

    with_server(directory, module, test)


class Readers:
    """Clients that read at the same time."""
    def __init__(self, server, count=8):
        self.clients = [server.connect() for _ in range(count)]

    def read(self, keys, meanwhile=None):
        threads = [threading.Thread(target=read, args=(client, keys[n::len(self.clients)]))
                   for n, client in enumerate(self.clients)]
        for thread in threads:
            thread.start()
        while meanwhile and any(thread.is_alive() for thread in threads):
            meanwhile()
        for thread in threads:
            thread.join()


def rates(directory, module):
    pick = random.Random(SEED)

    def test(server):
        client, readers = server.connect(), Readers(server)

        def figure(name):
            return float(client.info("lunar")["lunar_" + name])

        def uniform(count):
            return [pick.randrange(KEYS) for _ in range(count)]

        fill(client)
        share = figure("dram_share_percent")
        assert 5 < share < 60, f"{share}% of the values are in DRAM"
        readers.read(uniform(500))
        held = []
        readers.read(uniform(4000), lambda: held.append(int(figure("gate_held_now"))))
        cold, reads, p99 = figure("hit_rate_percent"), figure("gate_reads_per_second_10s"), figure("gate_hold_p99_ms")
        print(f"4,000 uniform reads: hit rate {cold:.1f}% (with the {KEYS} writes before), {reads:.0f} gate reads "
              f"a second, at most {max(held)} clients of 8 held, p99 {p99:.1f} ms")
        assert 30 < cold < 85, f"hit rate {cold}%"
        assert reads > 100, f"{reads} gate reads a second"
        assert max(held) >= 2, f"{max(held)} clients were held at once"
        assert LATENCY_MS * 0.8 <= p99 < 1000, f"p99 of holds {p99} ms"
        assert int(figure("gate_held_now")) == 0, "a client is held while none asks"
        readers.read([pick.randrange(50) for _ in range(15000)])
        warm = figure("hit_rate_percent")
        print(f"15,000 hot reads more: {warm:.1f}%")
        assert warm > cold + 5, f"hit rate {warm}% with hot reads, {cold}% before"

        client.ask("CONFIG", "SET", "lunar.gate", "no")
        before = figure("main_cold_faults"), figure("main_cold_fault_ms")
        readers.read(uniform(600))
        faults, waited = figure("main_cold_faults") - before[0], figure("main_cold_fault_ms") - before[1]
        time.sleep(1.3)
        rate = figure("main_cold_faults_per_second_10s"), figure("cold_faults_per_second_10s")
        print(f"without the gate: {faults:.0f} faults of the main thread, {waited:.0f} ms, "
              f"{rate[0]:.0f} a second ({rate[1]:.0f} of all threads)")
        assert faults >= 300 and waited >= faults * LATENCY_MS * 0.8, "faults of the main thread are not told"
        assert 0 < rate[0] <= rate[1] * 1.01 + 1, f"{rate} faults a second"

        figures = client.info("lunar")
        refused = int(figures["lunar_forks_refused_at_bytes"])
        reserve, lun = int(figures["lunar_lun_fork_reserve_bytes"]), int(figures["lunar_lun_size_bytes"])
        assert 0 < reserve == refused <= lun // 2, f"{reserve} are kept for forks, refused at {refused}"
        client.ask("CONFIG", "SET", "lunar.forks", "no")
        assert int(figure("lun_fork_reserve_bytes")) == 0, "space is kept for forks that there are not"

    with_server(directory, module, test, lun=f"sim:512m,latency_us={LATENCY_MS * 1000}", size="512mb")


def ungated(directory, module):
    """The hit rate of a server whose gate is open."""
    pick = random.Random(SEED)

    def test(server):
        client = server.connect()
        client.ask("CONFIG", "SET", "lunar.gate", "no")
        fill(client)
        read(client, [pick.randrange(KEYS) for _ in range(8000)])
        cold = float(client.info("lunar")["lunar_hit_rate_percent"])
        read(client, [pick.randrange(50) for _ in range(20000)])
        warm = float(client.info("lunar")["lunar_hit_rate_percent"])
        print(f"hit rate {cold:.1f}% after 8,000 uniform reads, {warm:.1f}% after 20,000 hot ones")
        assert 20 < cold < 85 and warm > cold + 5, "the hit rate does not tell cold from hot"

    with_server(directory, module, test, size="512mb")


def top(directory, module):
    pick = random.Random(SEED)

    def refusal(client, *command):
        client.send([command])
        reply = client.receive()
        return str(reply) if isinstance(reply, Refused) else ""

    def table(rows):
        found = {}
        for row in rows:
            row = dict(zip(row[::2], row[1::2]))
            samples, share, cold = row[b"samples"], row[b"share_percent"], row[b"cold_percent"]
            found[row[b"prefix"].decode()] = int(samples), float(share), float(cold)
        return found

    def test(server):
        client = server.connect()
        told = refusal(client, "LUNAR", "TOP")
        assert "begins with the first key" in told, "there is nothing to tell before there is a key"
        for key in range(50):
            client.ask("SET", f"hot:{key}", value(key, 1000))
            client.ask("SET", f"warm{key}", value(key, 1000))
        fill(client)
        for turn in range(4000):
            client.send([("GET", f"hot:{pick.randrange(50)}"), ("GET", f"hot:{pick.randrange(50)}"),
                         ("STRLEN", f"warm{pick.randrange(50)}"), ("GET", f"k:{pick.randrange(KEYS)}")])
            for _ in range(4):
                client.receive()
            if turn % 4 == 0:   # names without prefix come and go
                client.ask("EXISTS", "".join(pick.choices("abcdefghij", k=12)))
        reply = client.ask("LUNAR", "TOP", "COUNT", "3")
        reply = dict(zip(reply[::2], reply[1::2]))
        hot, cold = table(reply[b"hot"]), table(reply[b"cold"])
        print(f"{reply[b'samples']} samples, hot {hot}, cold {cold}")
        assert 0 < len(hot) <= 3 and 0 < len(cold) <= 3, "COUNT is not kept to"
        assert reply[b"samples"] > 1000, "few samples"
        assert list(cold)[0] == "k:" and cold["k:"][2] > 15, "the cold prefix is not told"
        assert hot["hot:"][2] < 20 and 15 < hot["hot:"][1] < 60, "the hot prefix is not told"
        assert "warm" in hot, "a prefix before digits is not told"
        whole = client.ask("LUNAR", "TOP")
        assert len(whole[3]) <= 10, "more than ten without COUNT"
        start = time.monotonic()
        for _ in range(200):
            client.ask("LUNAR", "TOP", "COUNT", "1000000")
        print(f"{(time.monotonic() - start) * 5:.2f} ms a call")
        for words in (("COUNT",), ("COUNT", "0"), ("COUNT", "-1"), ("COUNT", "x"), ("COUNT", ""), ("SIZE", "3"),
                      ("COUNT", "1", "2")):
            assert "syntax" in refusal(client, "LUNAR", "TOP", *words), f"LUNAR TOP {words} is taken"
        help_text = b"\n".join(client.ask("LUNAR", "HELP")).decode()
        names = {line.split()[0] for line in help_text.split("\n")[1:] if not line.startswith(" ")}
        docs = client.ask("COMMAND", "DOCS", "lunar")[1]
        subcommands = dict(zip(docs[::2], docs[1::2]))[b"subcommands"][::2]
        documented = {name.decode().split("|")[1].upper() for name in subcommands}
        assert names == documented, f"LUNAR HELP tells of {sorted(names)}"
        client.ask("ACL", "SETUSER", "reader", "on", ">x", "~*", "+@read", "-@dangerous", "+lunar|help")
        reader = server.connect()
        reader.ask("AUTH", "reader", "x")
        assert "NOPERM" in refusal(reader, "LUNAR", "TOP"), "a reader sees names of keys"
        reader.ask("LUNAR", "HELP")

    with_server(directory, module, test, size="512mb")


if __name__ == "__main__":
    print(f"seed {SEED}")
    sys.exit(run_scenario("info", globals(), sys.argv[2], sys.argv[1], *sys.argv[3:]))
