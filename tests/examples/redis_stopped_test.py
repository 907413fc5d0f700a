# SPDX-License-Identifier: Apache-2.0
"""The Redis examples under Ctrl-C, SIGTERM, and with a module that is not there: the right exit
code, and neither servers nor files are left."""
import os
import signal
import subprocess
import sys

import pytest

from build_tree import BUILD, MODULE, ROOT
from waiting import wait_until

CLIENT = os.path.join(BUILD, "examples/redis/example-redis-client")


def cluster(directory, module=MODULE):
    return [sys.executable, "-B", os.path.join(ROOT, "examples/redis-cluster/cluster.py"),
            "--module", module, "--dram", "16", "--directory", directory]


def replication(_, module=MODULE):
    return [os.path.join(ROOT, "examples/redis/replication.sh"), module, CLIENT, "16"]


def servers(directory):
    found = []
    for name in os.listdir("/proc"):
        try:
            program = os.path.basename(os.readlink(f"/proc/{name}/exe")) if name.isdigit() else ""
            if (program.startswith("redis-")
                and os.readlink(f"/proc/{name}/cwd").startswith(directory)):
                found.append(int(name))
        except OSError:
            pass
    return found


def gone(directory):
    # the last thread of a killed server
    wait_until("a server is left", lambda: servers(directory) == [])
    assert os.listdir(directory) == []


def start(command, directory):
    # A session of its own: the signal goes to all of it, as a terminal's Ctrl-C does.
    return subprocess.Popen(command, env={**os.environ, "TMPDIR": directory},
                            start_new_session=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("stop, number", [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)],
                         ids=["ctrl-c", "SIGTERM"])
@pytest.mark.parametrize("example", [cluster, replication])
def test_stopped(directory, example, stop, number):
    child = start(example(directory), directory)
    output = child.stdout.readline()   # the servers run
    if output.startswith("skip:"):
        child.wait()
        pytest.skip(output.removeprefix("skip:").strip())
    assert servers(directory), "no servers to stop"
    stop(child.pid, number)
    output += child.communicate()[0]
    assert child.returncode == 128 + number, output
    gone(directory)


@pytest.mark.parametrize("example", [cluster, replication])
def test_no_such_module(directory, example):
    child = start(example(directory, "/no-such-module"), directory)
    output, _ = child.communicate()
    assert child.returncode == 1 and "no-such-module" in output
    gone(directory)
