# SPDX-License-Identifier: Apache-2.0
"""redis_tls_test MODULE: the input gate under TLS. Clients of a tiered server's TLS port keep a model of their keys,
send pipelines longer than a TLS record, cut commands in two, and hang up in the middle; each reply is checked. Cold
commands must have been held, also those behind which the session has more to give (SSL_pending).
"""
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

from redis_server import Server, Servers, free_port, run_scenario

KEYS = 900             # a client
CLIENTS = 8
VALUE = 8 << 10        # 8 x 900 x 8 KiB: 3.5 times the budget
SECONDS = 6
SEED = int(os.environ.get("LUNAR_SEED") or random.SystemRandom().randrange(1 << 30))


def command(*words):
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Replies:
    def __init__(self, stream):
        self.stream, self.data = stream, b""

    def more(self):
        got = self.stream.recv(1 << 16)
        if not got:
            raise RuntimeError("the server hung up")
        self.data += got

    def line(self):
        while b"\r\n" not in self.data:
            self.more()
        line, self.data = self.data.split(b"\r\n", 1)
        return line

    def one(self):
        line = self.line()
        if line[:1] == b"-":
            raise RuntimeError(f"the server answers {line!r}")
        if line[:1] != b"$":
            return line
        size = int(line[1:])
        if size < 0:
            return None
        while len(self.data) < size + 2:
            self.more()
        value, self.data = self.data[:size], self.data[size + 2:]
        return value


class Client(threading.Thread):
    def __init__(self, number, port, seed):
        super().__init__()
        self.number, self.port, self.random = number, port, random.Random(seed * 100 + number)
        self.model = {}
        self.failure = None
        self.sent = 0

    def connect(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.stream = context.wrap_socket(socket.create_connection(("127.0.0.1", self.port)))
        self.replies = Replies(self.stream)

    def key(self):
        return f"{self.number}:{self.random.randrange(KEYS)}"

    def value(self):
        return self.random.randbytes(VALUE // 2).hex().encode()

    def fill(self):
        for i in range(0, KEYS, 20):
            for k in range(i, i + 20):
                self.model[f"{self.number}:{k}"] = self.value()
            self.stream.sendall(b"".join(command("SET", f"{self.number}:{k}", self.model[f"{self.number}:{k}"])
                                         for k in range(i, i + 20)))
            for _ in range(20):
                assert self.replies.one() == b"+OK"

    def round(self):
        out, wanted = [], []
        for _ in range(self.random.choice([1, 1, 3, 10, 60])):
            key = self.key()
            kind = self.random.randrange(10)
            if kind < 6:
                out.append(command("GET", key))
                wanted.append(self.model[key])
            elif kind < 9:
                self.model[key] = self.value()
                out.append(command("SET", key, self.model[key]))
                wanted.append(b"+OK")
            else:
                at = self.random.randrange(VALUE - 16)
                out.append(command("SETRANGE", key, at, b"<%d>" % self.number))
                text = self.model[key]
                self.model[key] = text[:at] + b"<%d>" % self.number + text[at + 3:]
                wanted.append(b":%d" % VALUE)
        data = b"".join(out)
        cut = self.random.randrange(len(data)) if self.random.randrange(4) == 0 else len(data)
        self.stream.sendall(data[:cut])
        if cut < len(data):
            time.sleep(0.002)
            self.stream.sendall(data[cut:])
        for number, value in enumerate(wanted):
            got = self.replies.one()
            if got != value:
                raise RuntimeError(f"{out[number][:60]!r}: {str(got)[:80]} instead of {value[:80]!r}")
        self.sent += len(wanted)

    def hang_up(self):   # in the middle of cold reads; nothing of it is waited for
        self.stream.sendall(b"".join(command("GET", self.key()) for _ in range(50)) + b"*2\r\n$3\r\nGE")
        self.stream.close()
        self.connect()

    def run(self):
        try:
            self.connect()
            self.fill()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                self.round()
                if self.random.randrange(30) == 0:
                    self.hang_up()
            self.stream.close()
        except Exception as error:   # pylint: disable=broad-except
            self.failure = f"client {self.number}: {error!r}"


def served(directory, tls_port, module):
    """A server with a certificate of its own."""
    key, certificate = (os.path.join(directory, name) for name in ("key.pem", "certificate.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
                   check=True, stderr=subprocess.DEVNULL)
    return Server(directory, "--tls-port", str(tls_port), "--tls-cert-file", certificate, "--tls-key-file", key,
                  "--tls-ca-cert-file", certificate, "--tls-auth-clients", "no",
                  "--loadmodule", module, "dram", "16mb", "lun", directory, "size", "512mb")


def tls(directory, module):
    tls_port = free_port()
    with Servers() as servers:
        server = servers.add(served(directory, tls_port, module))
        clients = [Client(number, tls_port, SEED) for number in range(CLIENTS)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        failures = [one.failure for one in clients if one.failure]
        assert not failures, failures
        told = server.info("lunar")
        print(f"{sum(one.sent for one in clients)} replies, {told['lunar_gate_held']} commands held, "
              f"{told['lunar_gate_timeouts']} late, gate {told['lunar_gate']}")
        assert told["lunar_gate"] == "watching", "the gate does not watch"
        assert int(told["lunar_gate_held"]) >= 100, "hardly a command was held"


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("skip: openssl: it is not installed")
        sys.exit(77)
    print(f"seed {SEED}")
    sys.exit(run_scenario("tls", globals(), "tls", *sys.argv[1:]))
