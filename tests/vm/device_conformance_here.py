#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs device_conformance on what any host has: a file, sim:, and as root a loop device. `device_conformance_here.py PROGRAM`."""
import os
import shutil
import subprocess
import sys
import tempfile

DISK_BYTES = 64 << 20


def run(program, uri):
    print(f"== {uri}", flush=True)
    return subprocess.run([program, uri], timeout=50, check=False).returncode


def loop_device(path):
    """A loop device on `path` with direct I/O, or None."""
    if os.geteuid() != 0 or not shutil.which("losetup"):
        return None
    made = subprocess.run(["losetup", "--show", "--direct-io=on", "-f", path], capture_output=True, text=True, timeout=20, check=False)
    return made.stdout.strip() if made.returncode == 0 else None


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="lunar-test-", dir=os.environ.get("LUNAR_TEST_DIR", "/var/tmp")) as folder:
        disk = os.path.join(folder, "disk")
        with open(disk, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, DISK_BYTES)
        uris = ["sim:64m,latency_us=5", disk, f"file:{disk},iopoll=auto,sqpoll=auto"]
        loop = loop_device(disk)
        if loop:
            uris.append(loop)
        try:
            for uri in uris:
                if run(program, uri) != 0:
                    return 1
        finally:
            if loop:
                subprocess.run(["losetup", "-d", loop], timeout=20, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
