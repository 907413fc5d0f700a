# SPDX-License-Identifier: Apache-2.0
"""redis_saving_test MODULE LUNAR module|run: a server that saves in the foreground (SAVE, DEBUG RELOAD, SHUTDOWN) is
read ahead of.

A quarter of the data fits in DRAM. What counts is how often the server itself waited for the LUN, a key: without
reading ahead it is once or more. Keys have an expiry or none, and the table of expiries is being rehashed when one of
the saves begins: what changes while the server saves is left alone. What was saved is compared with a plain server
that loads it.
"""
import os
import random
import shutil
import sys
import time

from redis_server import Server, Servers, scratch

PATIENCE_S = 100
KEYS = 52_000
SIZE = 1000
FAULTS_MAX = 0.08      # of the server's own, a key
SLEEPS_MAX = 120       # a plain server has 10 or so
SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))
NOISE = random.Random(SEED).randbytes(1 << 20)


def data_of(key):
    return NOISE[key * 7919 % (len(NOISE) - SIZE):][:SIZE]


def fill(server, first, count, expiry):
    options = ("EX", "100000") if expiry else ()
    for batch in range(first, first + count, 200):
        keys = range(batch, min(batch + 200, first + count))
        server.client.send([("SET", f"key:{key}", data_of(key), *options) for key in keys])
        for _ in keys:
            assert server.client.receive() == b"OK"


def others(server):
    """Values of the other kinds, large and small."""
    def noise(at, size):
        return NOISE[at:][:size]

    def name(number, at, size):
        return b"%d:" % number + noise(at, size).hex().encode()

    words = []
    for i in range(60):
        fields = ((f"field:{j}", noise(j * 97 + i, 90)) for j in range(200))
        scores = ((str(j * i), name(j, j * 53 + i, 60)) for j in range(200))
        words += [("RPUSH", f"list:{i}", *(noise(j * 311 + i, 120) for j in range(80))),
                  ("HSET", f"hash:{i}", *(part for pair in fields for part in pair)),
                  ("ZADD", f"zset:{i}", *(part for pair in scores for part in pair)),
                  ("SADD", f"set:{i}", *(name(j, j * 71 + i, 80) for j in range(150))),
                  ("XADD", f"stream:{i}", "1-1", "field", noise(i * 1009, 900))]
    for word in words:
        server.client.ask(*word)


def saved(server, what, *words):
    before, start = server.faults(), time.monotonic()
    answer = server.client.ask(*words)
    took, faults = time.monotonic() - start, server.faults() - before
    assert answer == b"OK", f"{what}: {answer!r}"
    print(f"{what:24} {took:6.2f} s, {faults / KEYS:6.3f} faults a key")
    return faults / KEYS, took


def resident(server):
    """Nothing is cold, nothing is read ahead: the server does not wait. (Sleeps are counted, as a busy machine changes
    the time.)"""
    for _ in range(30):
        server.client.send([("SET", f"small:{random.random()}", "value") for _ in range(1000)])
        assert {server.client.receive() for _ in range(1000)} == {b"OK"}
    assert server.info("lunar")["lunar_cold_bytes"] == "0", "something is cold already"
    status = f"/proc/{server.process.pid}/status"
    before = int(open(status).read().split("\nvoluntary_ctxt_switches:")[1].split()[0])
    assert server.client.ask("SAVE") == b"OK"
    sleeps = int(open(status).read().split("\nvoluntary_ctxt_switches:")[1].split()[0]) - before
    print(f"SAVE of what is resident: {sleeps} sleeps")
    server.client.ask("FLUSHALL")
    assert sleeps <= SLEEPS_MAX, f"{sleeps} sleeps in a save of what is resident"


def compare(servers, root, module, lunar, how):
    here, there = os.path.join(root, "tiered"), os.path.join(root, "plain")
    os.mkdir(here), os.mkdir(there)
    further, wrapper = (), ()
    if how == "module":
        further = ("--loadmodule", os.path.abspath(module), "dram", "16mb", "lun", here, "size", "400mb")
    elif how == "run":
        wrapper = (lunar, "run", "--dram=16m", "--size=400m", f"--lun={here}", "--")
    plain = servers.add(Server(there, patience_s=PATIENCE_S))
    fill(plain, 0, KEYS, False)
    _, plain_took = saved(plain, "plain SAVE", "SAVE")
    plain.end()
    os.unlink(os.path.join(there, "dump.rdb"))

    tiered = servers.add(Server(here, *further, wrapper=wrapper, patience_s=PATIENCE_S))
    if how == "module":
        resident(tiered)
    fill(tiered, 0, KEYS // 2, False)
    fill(tiered, KEYS // 2, KEYS // 2, True)
    others(tiered)
    results = [saved(tiered, "SAVE", "SAVE")]
    # 32,768 expiries and a few: the table is being rehashed as the save begins.
    fill(tiered, KEYS, 32_769 - KEYS // 2, True)
    results.append(saved(tiered, "SAVE while rehashing", "SAVE"))
    results.append(saved(tiered, "DEBUG RELOAD", "DEBUG", "RELOAD"))
    results.append(saved(tiered, "SAVE after it", "SAVE"))
    tiered.client.ask("SET", "last", "one")
    tiered.client.ask("SET", "last", "two")
    last = tiered.digest()
    start = time.monotonic()
    tiered.client.send([("SHUTDOWN", "SAVE")])
    tiered.process.wait(PATIENCE_S)
    print(f"{'SHUTDOWN SAVE':24} {time.monotonic() - start:6.2f} s")
    assert tiered.process.returncode == 0, f"SHUTDOWN: {tiered.process.returncode}"
    shutil.copy(os.path.join(here, "dump.rdb"), os.path.join(there, "dump.rdb"))
    plain = servers.add(Server(there, patience_s=PATIENCE_S))
    assert plain.digest() == last, "what was saved is not what there was"
    ratio = results[0][1] / plain_took
    print(f"plain {plain_took:.2f} s, ratio {ratio:.1f}")
    for faults, _ in (*results[:2], results[3]):
        assert faults <= FAULTS_MAX, f"{faults:.3f} faults of the server a key"


def main(module, lunar, how):
    random.seed(SEED)
    print(f"seed {SEED}")
    with scratch("saving") as root, Servers() as servers:
        compare(servers, root, module, lunar, how)


if __name__ == "__main__":
    main(*sys.argv[1:])
