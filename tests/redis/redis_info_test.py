# SPDX-License-Identifier: Apache-2.0
"""INFO lunar and LUNAR TOP tell an operator what was done."""
import os
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

from build_tree import ROOT
from redis_server import SEED, sets, value

KEYS, BYTES = 8000, 8000   # four times the budget
LATENCY_MS = 4


def fill(client):
    client.pipeline(sets("k", range(KEYS), BYTES))


def read(client, keys, batch=1):
    assert None not in client.pipeline([("GET", f"k:{key}") for key in keys], batch)


def test_page(servers):
    """Each line of INFO lunar stands in examples/redis/README.md, and each line that stands there
    is in INFO."""
    with open(os.path.join(ROOT, "examples/redis/README.md"), encoding="utf-8") as page:
        on_page = set(re.findall(r"`(lunar_\w+)`", page.read()))
    client = servers.tiered(size="96mb").client
    lines = set(client.info("lunar"))
    client.ask("CONFIG", "SET", "lunar.gate", "no")
    lines |= set(client.info("lunar"))
    assert lines == on_page
    assert {"lunar_" + name.decode()
            for name in client.ask("LUNAR", "STATS")[::2]} == set(client.info("lunar"))


def read_at_once(clients, keys, meanwhile=lambda: time.sleep(0.01), batch=1):
    with ThreadPoolExecutor(len(clients)) as pool:
        reads = [pool.submit(read, client, keys[n::len(clients)], batch)
                 for n, client in enumerate(clients)]
        while not all(one.done() for one in reads):
            meanwhile()
        for one in reads:
            one.result()


def test_rates(servers):
    """The hit rate tells hot reads from cold ones; rates, holds and shares are what was done."""
    pick = random.Random(SEED)
    server = servers.tiered(lun=f"sim:512m,latency_us={LATENCY_MS * 1000}")
    client, readers = server.client, [server.connect() for _ in range(8)]

    def figure(name):
        return float(client.info("lunar")["lunar_" + name])

    def uniform(count):
        return [pick.randrange(KEYS) for _ in range(count)]

    fill(client)
    assert 5 < figure("dram_share_percent") < 60
    read_at_once(readers, uniform(500))
    held = []
    read_at_once(readers, uniform(2500), lambda: held.append(int(figure("gate_held_now"))))
    cold = figure("hit_rate_percent")
    assert 30 < cold < 85
    assert figure("gate_reads_per_second_10s") > 100
    assert max(held) >= 2, "clients held at once"
    assert LATENCY_MS * 0.8 <= figure("gate_hold_p99_ms") < 1000
    assert figure("gate_held_now") == 0, "a client is held while none asks"
    read_at_once(readers, [pick.randrange(50) for _ in range(15000)], batch=50)
    assert figure("hit_rate_percent") > cold + 5

    client.ask("CONFIG", "SET", "lunar.gate", "no")
    before = figure("main_cold_faults"), figure("main_cold_fault_ms")
    read_at_once(readers, uniform(600))
    faults = figure("main_cold_faults") - before[0]
    waited = figure("main_cold_fault_ms") - before[1]
    time.sleep(1.3)
    of_main = figure("main_cold_faults_per_second_10s")
    of_all = figure("cold_faults_per_second_10s")
    told = faults >= 300 and waited >= faults * LATENCY_MS * 0.8
    assert told, "faults of the main thread are not told"
    assert 0 < of_main <= of_all * 1.01 + 1

    reserve, lun = figure("lun_fork_reserve_bytes"), figure("lun_size_bytes")
    assert 0 < reserve == figure("forks_refused_at_bytes") <= lun // 2
    client.ask("CONFIG", "SET", "lunar.forks", "no")
    assert figure("lun_fork_reserve_bytes") == 0, "space is kept although there are no forks"


def test_hit_rate_without_gate(servers):
    pick = random.Random(SEED)
    client = servers.tiered().client
    client.ask("CONFIG", "SET", "lunar.gate", "no")
    fill(client)
    read(client, [pick.randrange(KEYS) for _ in range(8000)], 50)
    cold = float(client.info("lunar")["lunar_hit_rate_percent"])
    read(client, [pick.randrange(50) for _ in range(20000)], 50)
    warm = float(client.info("lunar")["lunar_hit_rate_percent"])
    assert 20 < cold < 85 and warm > cold + 5, "the hit rate does not tell cold from hot"


def table(rows):
    """(samples, share, cold share) of each prefix."""
    found = {}
    for row in rows:
        row = dict(zip(row[::2], row[1::2]))
        found[row[b"prefix"].decode()] = (int(row[b"samples"]), float(row[b"share_percent"]),
                                          float(row[b"cold_percent"]))
    return found


def test_top(servers):
    """LUNAR TOP names the prefixes that are asked for, and those that are cold."""
    pick = random.Random(SEED)
    client = servers.tiered().client
    assert "begins with the first key" in client.refused("LUNAR", "TOP")
    client.pipeline([("SET", name + str(key), value(key, 1000)) for key in range(50)
                     for name in ("hot:", "warm")])
    fill(client)
    for _ in range(1000):
        # more often than k: with its SETs
        client.pipeline([words for _ in range(4) for words in (
            *(("GET", f"hot:{pick.randrange(50)}") for _ in range(4)),
            ("STRLEN", f"warm{pick.randrange(50)}"), ("GET", f"k:{pick.randrange(KEYS)}"))])
        # names without prefix come and go
        client.ask("EXISTS", "".join(pick.choices("abcdefghij", k=12)))
    reply = client.ask("LUNAR", "TOP", "COUNT", "3")
    reply = dict(zip(reply[::2], reply[1::2]))
    hot, cold = table(reply[b"hot"]), table(reply[b"cold"])
    assert 0 < len(hot) <= 3 and 0 < len(cold) <= 3, "COUNT is not kept to"
    assert reply[b"samples"] > 1000
    assert list(hot)[0] == "hot:" and list(cold)[0] == "k:" and cold["k:"][2] > 15
    assert hot["hot:"][2] < 20 and 15 < hot["hot:"][1] < 60
    assert "warm" in hot, "a prefix before digits is not told"
    assert len(client.ask("LUNAR", "TOP")[3]) <= 10, "more than ten without COUNT"
    assert len(client.ask("LUNAR", "TOP", "COUNT", "1000000")) == len(client.ask("LUNAR", "TOP"))
    for words in ("COUNT", "COUNT 0", "COUNT -1", "COUNT x", "SIZE 3", "COUNT 1 2"):
        assert "syntax" in client.refused("LUNAR", "TOP", *words.split())


def test_help_and_rights(servers):
    """LUNAR HELP tells of what COMMAND DOCS documents, and who may only read sees no names of
    keys."""
    server = servers.tiered(size="96mb")
    lines = b"\n".join(server.client.ask("LUNAR", "HELP")).decode().split("\n")[1:]
    docs = server.client.ask("COMMAND", "DOCS", "lunar")[1]
    subcommands = dict(zip(docs[::2], docs[1::2]))[b"subcommands"][::2]
    assert ({line.split()[0] for line in lines if not line.startswith(" ")}
            == {name.decode().split("|")[1].upper() for name in subcommands})
    server.client.ask("ACL", "SETUSER", "reader", "on", ">x", "~*", "+@read", "-@dangerous",
                      "+lunar|help")
    reader = server.connect()
    reader.ask("AUTH", "reader", "x")
    assert "permission" in reader.refused("LUNAR", "TOP")
    reader.ask("LUNAR", "HELP")
