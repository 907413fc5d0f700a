# SPDX-License-Identifier: Apache-2.0
"""redis_append_test MODULE LUNAR module|run: an append-only file loads at about the pace of a plain server.

A plain server writes the file (a dump, or commands, first; then SETRANGE, SET, hashes, several databases over all of
it); a tiered one, a quarter of whose data fits in DRAM, loads it. Its main thread seldom faults, the gate's fetchers
read ahead of its commands, and the data is the same.
"""
import os
import random
import sys
import time

from redis_server import Server, Servers, scratch

PATIENCE_S = 120
KEYS, SIZE, WRITES = 56_000, 1000, 50_000
FAULTS_MAX = 0.4       # of the main thread, a write over a key that is there
COLD_MAX = 0.02        # of these, those that wait for the LUN
AHEAD_MIN = 0.5        # reads that the fetchers were asked for, a write: of four keys three are cold
SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))
RANDOM = random.Random(SEED)
NOISE = RANDOM.randbytes(1 << 20)


def noise(size):
    at = RANDOM.randrange(len(NOISE) - size)
    return NOISE[at:at + size]


def appending(directory, words=(), wrapper=()):
    return Server(directory, "--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0",
                  "--aof-timestamp-enabled", "yes", *words, wrapper=wrapper, patience_s=PATIENCE_S)


def rewriting(server):
    persistence = server.info("persistence")
    return "1" in (persistence["aof_rewrite_in_progress"], persistence["aof_rewrite_scheduled"])


def random_hash():
    return f"hash:{RANDOM.randrange(500)}"


def make(directory, dump):
    """An append-only file with its data, and their digest."""
    server = appending(directory)
    server.pipeline([("SET", f"key:{key}", noise(SIZE)) for key in range(KEYS)])
    if dump:
        server.client.ask("BGREWRITEAOF")
        while rewriting(server):
            time.sleep(0.1)
    words = [("SELECT", "2")]
    for i in range(500):
        words.append(("HSET", f"hash:{i}", *(part for j in range(20) for part in (f"field:{j}", noise(100)))))
    words.append(("SELECT", "0"))
    for i in range(WRITES):
        key = f"key:{RANDOM.randrange(KEYS)}"
        if i % 4:
            words.append(("SETRANGE", key, str(RANDOM.randrange(SIZE - 20)), noise(16)))
        else:
            words.append(("SET", key, noise(SIZE)))
        if i % 5000 == 0:
            words += [("SELECT", "2"), ("HSET", random_hash(), "field:3", noise(50)),
                      ("MULTI",), ("DEL", random_hash()), ("EXEC",),
                      ("SELECT", "0"), ("SET", f"large:{i}", noise(900_000))]
    server.pipeline(words)
    digest = server.client.ask("DEBUG", "DIGEST")
    server.client.send([("SHUTDOWN", "NOSAVE")])
    server.process.wait(PATIENCE_S)
    return digest


def compare(servers, root, module, lunar, how):
    failures = []
    further, wrapper = (), ()
    if how == "module":
        further = ("--loadmodule", os.path.abspath(module), "dram", "16mb", "lun", root, "size", "500mb")
    elif how == "run":
        wrapper = (lunar, "run", "--dram=16m", "--size=500m", f"--lun={root}", "--")
    for name in ("commands", "dump"):
        here = os.path.join(root, name)
        digest = make(here, name == "dump")
        plain = servers.add(appending(here))
        plain.end()
        tiered = servers.add(appending(here, further, wrapper))
        faults = tiered.faults() / WRITES
        cold, ahead = 0, AHEAD_MIN
        if how == "module":
            info = tiered.info("lunar")
            cold, ahead = (int(info["lunar_" + name]) / WRITES for name in ("main_cold_faults", "overlapped_reads"))
        now = tiered.digest()
        tiered.end()
        ratio = tiered.took / plain.took
        print(f"{name:9} plain {plain.took:.2f} s, tiered {tiered.took:.2f} s ({ratio:.2f}x); "
              f"a later write: {faults:.3f} faults"
              + (f", {cold:.4f} of them cold, {ahead:.2f} reads ahead" if how == "module" else ""), flush=True)
        assert now == digest, f"{name}: the digests differ"
        if faults > FAULTS_MAX or cold > COLD_MAX:
            failures.append(f"{name}: {faults:.3f} faults a later write, {cold:.4f} of them cold")
        if ahead < AHEAD_MIN:
            failures.append(f"{name}: {ahead:.2f} reads ahead a later write: commands wait for their window")
    assert not failures, failures


def main(module, lunar, how):
    print(f"seed {SEED}")
    with scratch("append") as root, Servers() as servers:
        compare(servers, root, module, lunar, how)


if __name__ == "__main__":
    main(*sys.argv[1:])
