# SPDX-License-Identifier: Apache-2.0
"""The input gate under TLS. Clients of a tiered server's TLS port keep a model of their keys, send
pipelines longer than a TLS record, cut commands in two, and hang up in the middle; each reply is
checked. Cold commands must have been held, also those behind which the session has more to give
(SSL_pending).
"""
import os
import random
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from redis_server import SEED, TlsClient, free_port, packed

KEYS = 900             # a client
CLIENTS = 8
VALUE = 8 << 10        # 8 x 900 x 8 KiB: 3.5 times the budget
SECONDS = 4


class Client:
    def __init__(self, number, port):
        self.number, self.port, self.random = number, port, random.Random(SEED * 100 + number)
        self.model = {f"{number}:{k}": self.value() for k in range(KEYS)}

    def key(self):
        return f"{self.number}:{self.random.randrange(KEYS)}"

    def value(self):
        return self.random.randbytes(VALUE // 2).hex().encode()

    def command(self):
        """And what is replied to it."""
        key, kind = self.key(), self.random.randrange(10)
        if kind < 6:
            return ("GET", key), self.model[key]
        if kind < 9:
            self.model[key] = self.value()
            return ("SET", key, self.model[key]), b"OK"
        at, text = self.random.randrange(VALUE - 16), self.model[key]
        self.model[key] = text[:at] + b"<%d>" % self.number + text[at + 3:]
        return ("SETRANGE", key, at, b"<%d>" % self.number), VALUE

    def round(self):
        commands = [self.command() for _ in range(self.random.choice([1, 1, 3, 10, 60]))]
        data = b"".join(packed(*words) for words, _ in commands)
        cut = self.random.randrange(len(data)) if self.random.randrange(4) == 0 else len(data)
        self.client.socket.sendall(data[:cut])
        if cut < len(data):
            time.sleep(0.002)
            self.client.socket.sendall(data[cut:])
        for words, wanted in commands:
            got = self.client.receive()
            assert got == wanted, f"{words}: {str(got)[:80]} instead of {str(wanted)[:80]}"

    def hang_up(self):   # in the middle of cold reads; nothing of it is waited for
        self.client.socket.sendall(b"".join(packed("GET", self.key())
                                            for _ in range(50)) + b"*2\r\n$3\r\nGE")
        self.client.close()
        self.client = TlsClient(self.port)

    def work(self):
        self.client = TlsClient(self.port)
        self.client.pipeline([("SET", *pair) for pair in self.model.items()], 20)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self.round()
            if self.random.randrange(30) == 0:
                self.hang_up()
        self.client.close()


def test_gate_under_tls(servers, directory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl: it is not installed")
    key, certificate = (os.path.join(directory, name) for name in ("key.pem", "certificate.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
                   check=True, stderr=subprocess.DEVNULL)
    port = free_port()
    server = servers.tiered("--tls-port", str(port), "--tls-cert-file", certificate,
                            "--tls-key-file", key,
                            "--tls-ca-cert-file", certificate, "--tls-auth-clients", "no")
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(Client.work, [Client(number, port) for number in range(CLIENTS)]))
    assert server.info("lunar")["lunar_gate"] == "watching"
    assert server.figure("gate_held") >= 100, "hardly a command was held"
