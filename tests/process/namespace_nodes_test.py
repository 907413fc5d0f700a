#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`namespace_nodes_test.py OWNERSHIP_TEST LUNAR PROBE FAKE_CBLK [--short]`: one NVMe namespace by
two block devices, as it is where the kernel's multipathing is off. In a mount namespace of its own,
two loop devices on one file take the names nvme7n1 and nvme8n1, with what sysfs says of a namespace
bound over theirs; OWNERSHIP_TEST then runs its matrix over both names. tests/vm/devices does the
same with real controllers and with character devices. Needs root and loop devices."""
import os
import shutil
import stat
import subprocess
import sys
import tempfile

SKIP = 77
DISK_BYTES = 192 << 20
NAMES = ("nvme7n1", "nvme8n1")
INSIDE = "--inside"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def own_dev(folder):
    """/dev with the nodes of the host's, and a /dev/shm of its own."""
    new = os.path.join(folder, "dev")
    os.makedirs(new)
    run("mount", "-t", "tmpfs", "tmpfs", new)
    for name in os.listdir("/dev"):
        status = os.lstat(f"/dev/{name}")
        if stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
            os.mknod(f"{new}/{name}", status.st_mode, status.st_rdev)
            os.chmod(f"{new}/{name}", stat.S_IMODE(status.st_mode))
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(f"/dev/{name}"), f"{new}/{name}")
    os.makedirs(f"{new}/shm")
    os.chmod(f"{new}/shm", 0o1777)
    run("mount", "--bind", new, "/dev")


def become_namespace(folder, loops):
    """Makes the nodes, and the files of sysfs that runtime/superpipe reads."""
    blocks = os.path.join(folder, "class")
    for name, loop in zip(NAMES, loops):
        rdev = os.stat(loop).st_rdev
        numbers = f"{os.major(rdev)}:{os.minor(rdev)}"
        os.mknod(f"/dev/{name}", 0o600 | stat.S_IFBLK, rdev)
        write(f"{folder}/{name}.uevent", f"DEVNAME={name}\nDEVTYPE=disk\n")
        run("mount", "--bind", f"{folder}/{name}.uevent", f"/sys/dev/block/{numbers}/uevent")
        write(f"{blocks}/{name}/dev", numbers + "\n")
        write(f"{blocks}/{name}/nsid", "1\n")
        write(f"{blocks}/{name}/device/subsysnqn", "nqn.2026-01.lunar:two-loops\n")
    run("mount", "--bind", blocks, "/sys/class/block")


def refuses_what_it_cannot_claim(folder, probe):
    """A node of the namespace that this user cannot open is not taken for one that is free."""
    nobody = 65534
    one, other = (f"/dev/{name}" for name in NAMES)
    os.chown(one, nobody, nobody)
    os.chmod(folder, 0o711)
    probe = shutil.copy(probe, os.path.join(folder, "probe"))
    ended = subprocess.run(["setpriv", f"--reuid={nobody}", f"--regid={nobody}", "--clear-groups",
                            probe, "bench", one],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    os.chown(one, 0, 0)
    for name in os.listdir("/dev/shm"):   # that user's lock file: root would replace it, and say so
        os.unlink(f"/dev/shm/{name}")
    said = f"refused: LUN {one}: the same namespace is {other}, "
    refused = said in ended.stdout and "(chgrp" in ended.stdout
    if not refused:
        print(f"FAIL without a right to {other}: {ended.stdout}{ended.stderr}")
    return refused


def inside(folder, loops, ownership_test, programs):
    own_dev(folder)
    become_namespace(folder, loops)
    refused = refuses_what_it_cannot_claim(folder, programs[1])
    nodes = [f"/dev/{name}" for name in NAMES]
    words = [*programs[:3], *nodes, *programs[3:]]
    matrix = subprocess.run([sys.executable, "-B", ownership_test, *words], check=False).returncode
    return matrix if refused else 1


def main():
    if sys.argv[1] == INSIDE:
        folder, one, other, *rest = sys.argv[2:]
        return inside(folder, (one, other), rest[0], rest[1:])
    if os.geteuid() != 0 or not shutil.which("losetup",
                                             path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        print("skip: loop: it takes root and losetup")
        return SKIP
    with tempfile.TemporaryDirectory(prefix="lunar-test-",
                                     dir=os.environ.get("LUNAR_TEST_DIR", "/var/tmp")) as folder:
        disk, loops = os.path.join(folder, "disk.img"), []
        with open(disk, "wb") as file:
            file.truncate(DISK_BYTES)
        try:
            for _ in NAMES:
                loops.append(run("losetup", "-f", "--show", disk))
            apart = ["unshare", "-m", "--propagation", "private", sys.executable, "-B", __file__,
                     INSIDE, folder]
            return subprocess.run([*apart, *loops, *sys.argv[1:]], check=False).returncode
        finally:
            for loop in loops:
                run("losetup", "-d", loop)


sys.exit(main())
