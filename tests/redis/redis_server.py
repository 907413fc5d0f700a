# SPDX-License-Identifier: Apache-2.0
"""Servers of the end-to-end tests, plain or tiered: started, asked and ended. A server that cannot start ends the test
with its log; without the right to userfaultfd the test is skipped.
"""
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/redis-cluster"))
from resp import Connection  # noqa: E402

SERVER = os.environ.get("LUNAR_REDIS_SERVER") or "/usr/bin/redis-server"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(what, true, patience_s, every_s=0.02):
    until = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < until, f"{what}: not in {patience_s} s"
        time.sleep(every_s)


def explain_start(text):
    """Ends the test: what the server that did not start has said."""
    if "userfaultfd" in text and os.geteuid() != 0:
        print("skip: userfaultfd: " + text.splitlines()[-1])
        sys.exit(77)
    sys.exit(f"the server did not start:\n{text[-3000:]}")


class Client(Connection):
    def __init__(self, port, patience_s=60):
        super().__init__(port, patience_s)

    def info(self, section):
        return dict(line.split(":", 1) for line in self.ask("INFO", section).decode().split("\r\n") if ":" in line)

    def figure(self, name):
        return int(self.info("lunar")["lunar_" + name])

    def config(self, name):
        return self.ask("CONFIG", "GET", name)[1].decode()


class Server:
    """`words` behind redis-server's own, `wrapper` in front, `config` a file of its own, `environment` beyond ours.
    `debug`: DEBUG is allowed, which Redis 6 does without an option. Its data and its log are in `directory`, which is
    made. Answers when it is made."""

    def __init__(self, directory, *words, program=SERVER, debug=True, wrapper=(), config=None, environment=(),
                 patience_s=120):
        os.makedirs(directory, exist_ok=True)
        self.directory, self.log, self.patience_s = directory, os.path.join(directory, "log"), patience_s
        self.port, self.environment = free_port(), {**os.environ, **dict(environment)}
        self.command = [*wrapper, program, *([config] if config else []), "--port", str(self.port),
                        "--bind", "127.0.0.1", "--dir", directory, "--save", "",
                        *(["--enable-debug-command", "yes"] if debug else []), *words]
        self.start()

    def start(self):
        """Again, on the same port, after end()."""
        started = time.monotonic()
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, env=self.environment)
        while True:
            if self.process.poll() is not None or time.monotonic() > started + self.patience_s:
                text = self.text()
                self.end()
                explain_start(text)
            try:
                self.client = Connection(self.port, self.patience_s)
                if self.client.ask("PING") == b"PONG":
                    break
            except (OSError, RuntimeError):
                pass
            time.sleep(0.02)   # it loads
        self.took = time.monotonic() - started

    def text(self):
        return open(self.log, errors="replace").read()

    def connect(self):
        return Client(self.port)

    def must_live(self, what):
        if self.process.poll() is not None:
            sys.exit(f"{what}: the server ended with {self.process.returncode}:\n{self.text()[-3000:]}")

    def info(self, section):
        lines = self.client.ask("INFO", section).decode().split("\r\n")
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def faults(self):
        """Of the main thread, since it started, for whatever page; those of memory that is new among them."""
        pid = self.process.pid
        text = open(f"/proc/{pid}/task/{pid}/stat").read().rpartition(")")[2].split()
        return int(text[7]) + int(text[9])

    def digest(self):
        return self.client.ask("DEBUG", "DIGEST")

    def pipeline(self, words):
        for at in range(0, len(words), 200):
            self.client.send(words[at:at + 200])
            for _ in words[at:at + 200]:
                reply = self.client.receive()
                assert not isinstance(reply, Exception), reply

    def end(self):
        """At once, with SIGKILL; a stopped one too."""
        self.process.kill()
        self.process.wait()


class Servers(contextlib.ExitStack):
    """Servers of one test. They are ended in reverse order when it is left; by an exception, each one's log is shown
    before that."""

    def __init__(self):
        super().__init__()
        self.started = []

    def add(self, server):
        self.started.append(server)
        self.callback(server.end)
        return server

    def __exit__(self, kind, *details):
        for server in self.started if kind and issubclass(kind, Exception) else ():
            print(f"{server.directory} (exit code: {server.process.poll()}):\n{server.text()[-3000:]}")
        return super().__exit__(kind, *details)


def scratch(name):
    """A new directory for a test, which `with` removes at its end."""
    return tempfile.TemporaryDirectory(prefix=f"lunar-{name}-", dir=os.environ.get("TMPDIR", "/var/tmp"),
                                       ignore_cleanup_errors=True)


def run_scenario(name, scenarios, scenario, *arguments):
    """Calls scenarios[scenario](directory, *arguments) in a new directory, which is removed. The exit code of the test
    `name`."""
    if not os.access(SERVER, os.X_OK):
        print(f"skip: redis-server: {SERVER} is not there")
        return 77
    start = time.monotonic()
    with scratch(name) as directory:
        scenarios[scenario.replace("-", "_")](directory, *map(os.path.abspath, arguments))
    print(f"{scenario} as it should be, in {time.monotonic() - start:.1f} s")
    return 0
