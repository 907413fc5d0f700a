# SPDX-License-Identifier: Apache-2.0
"""redis_bgsave_test MODULE: a server saves in the background while its clients read cold keys.

Parent and child share one budget. What counts is how much the child reads, a key: it goes through the keys in the order
of their hashes, so it has to keep what describes them in DRAM (entries, keys and objects, a tenth of the data here), or
reads several pages for each key. Bytes are counted, not time, as machines that run tests are busy.
"""
import os
import random
import sys
import threading
import time

from redis_server import Connection, Server, Servers, scratch, wait_until

PATIENCE_S = 150
KEYS = 64_000
SIZE = 1000
PAGES_MAX = 1.7        # that the child reads, a key: 1.0 without clients
BATCH, RATE = 20, 2000   # requests of the clients
SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))


def fill(server):
    value = random.Random(SEED).randbytes(SIZE)
    for first in range(0, KEYS, 200):
        keys = range(first, min(first + 200, KEYS))
        server.client.send([("SET", f"key:{key}", b"%d:" % key + value) for key in keys])
        for _ in keys:
            assert server.client.receive() == b"OK"


def read_bytes(pid):
    """Of a process that may be gone: 0."""
    try:
        with open(f"/proc/{pid}/io") as counters:
            return int(counters.read().split("\nread_bytes:")[1].split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def ask_for_cold_keys(server, stop, problems):
    chance, client, due = random.Random(SEED), Connection(server.port, PATIENCE_S), time.monotonic()
    while not stop.is_set():
        keys = [chance.randrange(KEYS) for _ in range(BATCH)]
        client.send([("GET", f"key:{key}") for key in keys])
        problems += [key for key in keys if not client.receive().startswith(b"%d:" % key)]
        due = max(due + BATCH / RATE, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))


def child_of(server):
    pid = server.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        found = children.read().split()
    return int(found[0]) if found else None


def save(server):
    """Bytes that the child has read, as of the last look at it."""
    server.client.ask("BGSAVE")
    wait_until("a saving child", lambda: child_of(server) is not None, PATIENCE_S)
    child, read = child_of(server), 0
    start = time.monotonic()
    while child_of(server) == child and time.monotonic() - start < PATIENCE_S:
        read = max(read, read_bytes(child))
        time.sleep(0.01)
    wait_until("the end of the save", lambda: server.info("persistence")["rdb_bgsave_in_progress"] == "0", PATIENCE_S)
    assert server.info("persistence")["rdb_last_bgsave_status"] == "ok"
    print(f"BGSAVE: {time.monotonic() - start:.1f} s, {read / KEYS / 4096:.2f} pages a key")
    return read


def main(module):
    print(f"seed {SEED}")
    stop, problems = threading.Event(), []
    with scratch("bgsave") as root, Servers() as servers:
        server = servers.add(Server(root, "--loadmodule", os.path.abspath(module), "dram", "24mb", "lun", root,
                                    "size", "400mb", patience_s=PATIENCE_S))
        servers.callback(stop.set)
        clients = threading.Thread(target=ask_for_cold_keys, args=(server, stop, problems))
        fill(server)
        clients.start()
        read = save(server)
        stop.set()
        clients.join()
        assert not problems, f"wrong values of keys {problems[:5]}"
        assert read <= PAGES_MAX * 4096 * KEYS, f"the child read {read / KEYS / 4096:.2f} pages a key"


if __name__ == "__main__":
    main(*sys.argv[1:])
