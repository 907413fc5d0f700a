#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs device_conformance on what any host has: files with and without io_uring, pmem: on memory
and on a disk, sim:, mem:, stripes and paths of these, a virtual LUN, capi: over a stand-in for
IBM's library, and as root a loop device. `device_conformance_here.py PROGRAM FAKE_CBLK
FAKE_CBLK_WITH_OUR_MARKER`"""
import os
import shutil
import subprocess
import sys
import tempfile

DISK_BYTES = 64 << 20


def run(program, uri, *options):
    print(f"== {uri}", flush=True)
    return subprocess.run([program, uri, *options], check=False).returncode


def check_refusals(program, disk, fake, marked):
    """capi: without IBM's library, or with Lunar's own in its place: one line that says so."""
    for uri, words in ((f"capi:{disk},lib={marked}", "Lunar's own, not IBM's"),
                       (f"capi:{disk},lib={marked}x", "there is no library"),
                       (f"capi:{disk},lib={program}", "cannot be used"),
                       (f"capi:{disk},lib=fake.so", "not an absolute path"),
                       (f"capi:{disk},library={fake}", "known: lib"),
                       (f"capi:{disk}x,lib={fake}", "CAPI disks are /dev/sgN")):
        ended = subprocess.run([program, uri, "--keep"], capture_output=True, text=True,
                               check=False)
        told = [line for line in ended.stdout.splitlines() if line.startswith("cannot open: ")]
        if ended.returncode != 2 or len(told) != 1 or words not in told[0]:
            print(f"FAIL {uri}: no line with `{words}`, but "
                  f"{ended.returncode}:\n{ended.stdout}{ended.stderr}")
            return False
    return True


def loop_device(path):
    """A loop device on `path` with direct I/O, or None."""
    if os.geteuid() != 0 or not shutil.which("losetup"):
        return None
    attach = ["losetup", "--show", "--direct-io=on", "-f", path]
    made = subprocess.run(attach, capture_output=True, text=True, check=False)
    return made.stdout.strip() if made.returncode == 0 else None


def main():
    program, fake, marked = (os.path.abspath(path) for path in sys.argv[1:4])
    with tempfile.TemporaryDirectory(prefix="lunar-test-",
                                     dir=os.environ.get("LUNAR_TEST_DIR", "/var/tmp")) as folder:
        disk, below = os.path.join(folder, "disk"), os.path.join(folder, "loop")
        for path in (disk, below):   # a file behind a loop device is in use
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, DISK_BYTES)
        if not check_refusals(program, disk, fake, marked):
            return 1
        scratch = ["sim:64m,latency_us=5,cache=1m", disk, f"capi:{disk},lib={fake}"]
        memory = f"/dev/shm/lunar-test-conformance-{os.getpid()}"
        more = [os.path.join(folder, name) for name in ("one", "other")]
        for path in (memory, *more):
            with open(path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, DISK_BYTES)
        raw = ["mem:64m", f"stripe:{more[0]};{more[1]}", f"paths:{disk};{disk}",
               "stripe:sim:24m,latency_us=5;sim:24m", f"stripe:{more[0]};sim:64m,latency_us=150",
               f"pmem:{memory},delegate=on", f"pmem:{memory},delegate=off", f"pmem:{disk}",
               f"{disk}#named"]
        loop = loop_device(below)
        if loop:
            scratch.append(loop)
        else:
            print("skip: loop: no loop device can be made here")
        try:
            # scratch use first: it wants a disk that holds nothing
            runs = [(uri, "--scratch") for uri in scratch]
            runs += [(uri,) for uri in scratch + raw] + [(disk, "--no-ring")]
            for what in runs:
                if run(program, *what) != 0:
                    return 1
        finally:
            os.unlink(memory)
            if loop:
                subprocess.run(["losetup", "-d", loop], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
