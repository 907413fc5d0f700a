#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`redis_stopped_test.py EXAMPLES MODULE CLIENT`: the Redis examples under Ctrl-C, SIGTERM, and with a module that is
not there: the right exit code, and neither servers nor files are left."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

EXAMPLES, MODULE, CLIENT = map(os.path.abspath, sys.argv[1:4])
problems = []


def cluster(directory, module=MODULE):
    return [sys.executable, "-B", os.path.join(EXAMPLES, "redis-cluster/cluster.py"), "--module", module,
            "--dram", "16", "--directory", directory]


def replication(module=MODULE):
    return [os.path.join(EXAMPLES, "redis/replication.sh"), module, CLIENT, "16"]


def servers(directory):
    found = []
    for name in os.listdir("/proc"):
        try:
            program = os.path.basename(os.readlink(f"/proc/{name}/exe")) if name.isdigit() else ""
            if program.startswith("redis-") and os.readlink(f"/proc/{name}/cwd").startswith(directory):
                found.append(int(name))
        except OSError:
            pass
    return found


def check_gone(directory, what):
    end = time.monotonic() + 5   # the last thread of a killed server
    while servers(directory) and time.monotonic() < end:
        time.sleep(0.05)
    left = os.listdir(directory) + [f"process {pid}" for pid in servers(directory)]
    if left:
        problems.append(f"{what}: left {', '.join(left)}")


def start(command, directory):
    # A session of its own: the signal goes to all of it, as a terminal's Ctrl-C does.
    return subprocess.Popen(command, env={**os.environ, "TMPDIR": directory}, start_new_session=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def stop(command, directory, to_all, number):
    what = f"{os.path.basename(command[-1] if command[0].endswith('.sh') else command[2])}, {number.name}"
    child = start(command, directory)
    output = child.stdout.readline()   # the servers run
    if child.poll() == 77 or output.startswith("skip:"):
        child.wait()
        print(output, end="")
        sys.exit(77)
    if not servers(directory):
        problems.append(f"{what}: no servers to stop: {output}")
    (os.killpg if to_all else os.kill)(child.pid, number)
    output += child.communicate()[0]
    if child.returncode != 128 + number:
        problems.append(f"{what}: exit code {child.returncode}: {output[-1500:]}")
    check_gone(directory, what)


def refuse(command, directory):
    child = start(command, directory)
    output, _ = child.communicate()
    if child.returncode != 1 or "no-such-module" not in output:
        problems.append(f"{command}: exit code {child.returncode}: {output[-1500:]}")
    check_gone(directory, "a module that is not there")


def main():
    # A shell that runs this in the background ignores it, and so would the examples.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = tempfile.mkdtemp(prefix="lunar-test-", dir="/var/tmp")
    try:
        for command in (cluster(directory), replication()):
            stop(command, directory, True, signal.SIGINT)
            stop(command, directory, False, signal.SIGTERM)
        refuse(cluster(directory, "/no-such-module"), directory)
        refuse(replication("/no-such-module"), directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(problems) or "stopped, and nothing was left")
    return 1 if problems else 0


sys.exit(main())
