# SPDX-License-Identifier: Apache-2.0
"""redis_transport_test MODULE SCENARIO: what the gate does for clients that come another way, and what the module does when it is loaded
or unloaded in another order.

  unix        cold reads over a unix socket are held like those over TCP, beside which they run; each reply is checked
  modules     MODULE UNLOAD, MODULE LOAD after loads that failed at each stage: one line that says why, and a server that lives
  config      CONFIG GET lunar.*, then CONFIG SET of what it said: only what the server itself calls immutable is refused
"""
import os
import random
import shutil
import socket
import sys
import tempfile
import time

from redis_space_test import MIB, PATIENCE_S, SEED, SERVER, Client, Refused, Server, value, with_server

KEYS, BYTES = 16000, 4000   # four times the budget


class UnixClient(Client):
    def __init__(self, path):   # pylint: disable=super-init-not-called
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self.input = self.socket.makefile("rb", 1 << 16)


def fill(client):
    for first in range(0, KEYS, 200):
        client.send([("SET", f"k:{key}", value(key, BYTES)) for key in range(first, first + 200)])
        for _ in range(200):
            assert client.receive() == b"OK"


def read(client, pick, count, pipeline):
    for _ in range(count // pipeline):
        keys = [pick.randrange(KEYS) for _ in range(pipeline)]
        client.send([("GET", f"k:{key}") for key in keys])
        for key in keys:
            reply = client.receive()
            assert reply == value(key, BYTES), f"GET k:{key} gives {str(reply)[:60]}"


def unix(directory, module):
    path = os.path.join(directory, "socket")

    def test(server):
        one = UnixClient(path)
        fill(one)
        pick = random.Random(SEED)
        read(one, pick, 500, 1)
        before = one.figure("gate_commands"), one.figure("gate_held")
        state = one.info("lunar")["lunar_gate"]
        assert state == "watching", f"the gate is {state}"
        read(one, pick, 500, 1)
        looked, held = one.figure("gate_commands") - before[0], one.figure("gate_held") - before[1]
        print(f"of 500 cold reads over a unix socket {looked} were looked up, {held} held")
        assert looked >= 500, f"{looked} of 500 commands over a unix socket were looked up"
        assert held >= 250, f"{held} of 500 cold commands over a unix socket were held"
        both = [one, server.client()]
        for turn in range(40):   # pipelines of both, one hangs up now and then
            read(both[turn % 2], pick, 50, 25)
            if turn % 10 == 9:
                half = UnixClient(path)
                half.send([("GET", f"k:{pick.randrange(KEYS)}")] * 20)
                half.close()
        server.must_live("reads over a unix socket")

    with_server(directory, module, test, "--unixsocket", path, size="512mb")


def main(module, scenario):
    if not os.access(SERVER, os.X_OK):
        print(f"skip: redis-server: {SERVER} is not there")
        return 77
    print(f"seed {SEED}")
    directory = tempfile.mkdtemp(prefix="lunar-transport-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    start = time.monotonic()
    try:
        globals()[scenario.replace("-", "_")](directory, os.path.abspath(module))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{scenario} as it should be, in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
