# SPDX-License-Identifier: Apache-2.0
"""A server saves in the background while its clients read cold keys.

Parent and child share one budget. What counts is how much the child reads, a key: it goes through
the keys in the order of their hashes, so it has to keep what describes them in DRAM (entries, keys
and objects, a tenth of the data here), or reads several pages for each key. Bytes are counted, not
time, as machines that run tests are busy.
"""
import time

from redis_clients import KEYS, cold_readers, fill
from redis_server import wait_until

PAGES_MAX = 1.7        # that the child reads, a key: 1.0 without clients


def read_bytes(pid):
    """The bytes that a process has read from disks; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/io", encoding="utf-8") as counters:
            return int(counters.read().split("\nread_bytes:")[1].split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def test_child_reads_each_page_about_once(servers):
    server = servers.tiered(dram="24mb", size="400mb")
    fill(server)
    with cold_readers(server, 1):
        server.client.ask("BGSAVE")
        wait_until("a saving child", server.children)
        (child,), read = server.children(), 0
        while child in server.children():
            read = max(read, read_bytes(child))
            time.sleep(0.01)
        wait_until("the end of the save",
                   lambda: server.info("persistence")["rdb_bgsave_in_progress"] == "0")
        assert server.info("persistence")["rdb_last_bgsave_status"] == "ok"
    assert read / KEYS / 4096 <= PAGES_MAX, "pages that the child read, a key"
