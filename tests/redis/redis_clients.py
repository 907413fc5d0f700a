# SPDX-License-Identifier: Apache-2.0
"""Clients that ask for cold keys at a steady rate."""
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from redis_server import SEED

KEYS, SIZE = 64_000, 1000
BATCH, RATE = 20, 2000   # requests of a client


def fill(server):
    body = random.Random(SEED).randbytes(SIZE)
    server.pipeline([("SET", f"key:{key}", b"%d:" % key + body) for key in range(KEYS)])


def ask_for_cold_keys(server, stop):
    chance, client, due = random.Random(SEED), server.connect(), time.monotonic()
    while not stop.is_set():
        keys = [chance.randrange(KEYS) for _ in range(BATCH)]
        for key, reply in zip(keys, client.pipeline([("GET", f"key:{key}") for key in keys])):
            assert reply.startswith(b"%d:" % key), f"a wrong value of key:{key}"
        due = max(due + BATCH / RATE, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))


@contextlib.contextmanager
def cold_readers(server, count):
    """They read meanwhile; each value is checked."""
    stop = threading.Event()
    with ThreadPoolExecutor(count) as pool:
        readers = [pool.submit(ask_for_cold_keys, server, stop) for _ in range(count)]
        try:
            yield
        finally:
            stop.set()
        for reader in readers:
            reader.result()
