#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ownership_test.py LUNAR PROBE FAKE_CBLK [BLOCK_DEVICE NAME...]`: the one rule of who owns a
device (runtime/superpipe/ownership.h), from outside. One process has a device in one way, another
comes in each of the others: it shares by the rule below, or is refused by one line that names the
device and says how to fix it, and changes no byte. Over files and, as root, loop devices; and over
two names of one of either. PROBE is owner_probe.cpp, FAKE_CBLK stands in for IBM's library. With a
BLOCK_DEVICE, which is overwritten: over it and its further NAMEs alone (nvme:/dev/ng0n1), not over
files."""
import concurrent.futures
import fcntl
import os
import shlex
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import zlib

LUNAR, PROBE, FAKE = map(os.path.abspath, sys.argv[1:4])
# of names: only chunks of the block library that are open by the second one
SHORT = "--short" in sys.argv
NAMES = [name for name in sys.argv[4:] if name != "--short"]
SLOWNESS = float(os.environ.get("TEST_TIMEOUT_SCALE", "1"))
DISK_BYTES = 192 << 20   # sparse; two heaps of `lunar run`, and a named LUN
HEAD_BYTES = 4 << 20
PAGE = 4096
SWAP_PAGES = 10   # as few as mkswap takes: the header, and what the kernel may write at any time
AT_ONCE = 6
# A program of `lunar run` has its LUN from when it grows.
GROWS = ("import sys\nheap = bytearray(b'x') * (40 << 20)\n"
         "print('open', flush=True)\nsys.stdin.read()")
F_OFD_SETLK = 37
FIRST_OWNER = (1 << 62) + 64   # runtime/lun/volume/lun_locks.h: of the first virtual LUN
BLKZEROOUT, BLKFLSBUF = 0x127f, 0x1261
problems = []


# The use that an owner makes of a device. "whole": with others of the kind; "alone": with no other;
# "parts": virtual LUNs, with others; "system": claimed, as mkfs claims a block device while it
# works.
USE = {"physical": "whole", "group": "whole", "reserve": "alone", "bench": "alone",
       "virtual": "parts",
       "named": "parts", "run": "parts", "mounted": "system", "swap": "system", "claimed": "system"}
# Uses that may share it; all others are refused. `info` only reads; a named LUN has one owner
# alone.
SHARES = {"whole": {"physical", "group", "readonly", "info"}, "alone": {"info"},
          "parts": {"virtual", "run", "create", "info"}, "system": {"info", "readonly"}}
SECONDS = ["physical", "readonly", "reserve", "group", "virtual", "named", "run", "bench", "create",
           "info", "mkfs", "swapon"]
FIXES = ("give ", "end ", "wait", "--format", "virtual LUN", "force it", "umount", "swapoff",
         "install")


def check(held, what):
    if not held:
        problems.append(what)
        print(f"FAIL {what}", flush=True)
    return held


def tool(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def system(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)


def head_of(path, first=None):
    """A checksum of the bytes that only an owner may change, without the kernel's swap pages."""
    path = NAMES[0] if path in NAMES else path
    with open(path, "rb") as file:
        if path in NAMES:
            # what passthrough commands wrote is not in the page cache
            fcntl.ioctl(file, BLKFLSBUF)
        head = file.read(HEAD_BYTES)
    if first == "swap":
        head = head[:PAGE] + head[SWAP_PAGES * PAGE:]
    return zlib.crc32(head)


class Holder:
    """A process that has `path` open in one way."""

    def __init__(self, use, path, wait=True):
        words = [PROBE, use, path]
        if use == "run":
            words = [LUNAR, "run", "--dram", "32m", "--lun", path, "--", sys.executable, "-S", "-c",
                     GROWS]
        self.use = use
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        if wait:
            self.listen()

    def listen(self):
        self.said = self.process.stdout.readline().strip()
        self.open = self.said == "open"

    def end(self):
        """Its last line, and its lines of errors."""
        out, errors = self.process.communicate()
        lines = [line for line in errors.splitlines() if "LUN" in line or "lunar run" in line]
        if not self.open and self.said.startswith("refused: LUN"):
            lines.append(self.said)
        return out.strip(), lines

    def kill(self):
        self.process.kill()
        self.process.communicate()


def come(use, path):
    """Comes second: (whether it got in, its lines, what else it said)."""
    if use == "create":
        ended = system(LUNAR, "lun", "create", f"{path}#n{time.monotonic_ns()}", "--size", "2m",
                       "--format")
        return ended.returncode == 0, ended.stderr.splitlines(), ended.stdout
    if use == "info":
        ended = system(LUNAR, "lun", "info", path)
        return ended.returncode == 0, ended.stderr.splitlines(), ended.stdout
    if use == "mkfs":
        ended = system(tool("mkfs.ext4"), "-q", path)
        return ended.returncode == 0, ended.stderr.splitlines()[-1:], ended.stdout
    if use == "swapon":
        ended = system(tool("swapon"), path)
        if ended.returncode == 0:
            system(tool("swapoff"), path)
        return ended.returncode == 0, ended.stderr.splitlines()[-1:], ended.stdout
    holder = Holder(use, path)
    last, lines = holder.end()
    return holder.open, lines, f"{holder.said} {last}"


def prepared(first, path):
    """The device as `first` needs to find it; False where this host cannot."""
    if first == "named":
        return system(LUNAR, "lun", "create", f"{path}#owned", "--size", "8m",
                      "--format").returncode == 0
    if first == "mounted":
        return bool(tool("mkfs.ext4")) and system(tool("mkfs.ext4"), "-q", path).returncode == 0
    if first == "swap":
        if os.path.isfile(path):
            with open(path, "r+b") as file:
                # the kernel takes no file with holes
                os.posix_fallocate(file.fileno(), 0, DISK_BYTES)
        return bool(tool("mkswap")) and system(tool("mkswap"), path,
                                               str(SWAP_PAGES * PAGE // 1024)).returncode == 0
    return True


def exclusive(path):
    """Open by O_EXCL; the rings of one that had it and has ended may keep it a moment longer."""
    end = time.monotonic() + 10 * SLOWNESS
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class System:
    """Another program has it by the kernel: mounted, swap, or open with O_EXCL."""
    open = True

    def __init__(self, use, path, folder):
        self.path, self.place, self.claim = path, None, None
        if use == "claimed":
            self.claim = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
        elif use == "swap":
            self.open = system(tool("swapon"), path).returncode == 0
        else:
            self.place = os.path.join(folder, "mount")
            os.makedirs(self.place, exist_ok=True)
            # Only to read: what the kernel writes by itself would be taken for a refused one's.
            self.open = system(tool("mount"), "-o", "ro", path, self.place).returncode == 0

    def end(self):
        if self.claim is not None:
            os.close(self.claim)
            return "", []
        ended = system(tool("umount"), self.place) if self.place else system(tool("swapoff"),
            self.path)
        check(ended.returncode == 0, f"{self.path}: {ended.stderr}")
        return "", []


def swaps_to_files(folder):
    """Not every file system lets the kernel swap to its files."""
    path = new_file(folder, "swaps.img")
    if not prepared("swap", path) or system(tool("swapon"), path).returncode != 0:
        return False
    return check(system(tool("swapoff"), path).returncode == 0, f"swapoff {path}")


def expectations(first, block):
    """(second, shares) for all that may come."""
    for second in SECONDS:
        if second == "named" and first != "named":
            continue
        if second in ("mkfs", "swapon"):
            if not block or not tool("mkfs.ext4" if second == "mkfs" else "swapon"):
                continue   # Linux has no lock of a file that these ask for
            yield second, False
        else:
            yield second, second in SHARES[USE[first]]


def pair(folder, first, one, other, block, crossed=False):
    """`first` has it as `one`; all others come to it as `other`. crossed: a file, and the loop
    device on it: nothing is shared."""
    what = f"{first} has {os.path.basename(one)}, then {{}} of {os.path.basename(other)}"
    if not check(prepared(first, one), f"{first}: {one} cannot be prepared"):
        return
    holder = System(first, one, folder) if USE[first] == "system" else Holder(first, one)
    if not check(holder.open, f"{first} {one}: {getattr(holder, 'said', 'refused')}"):
        return
    for second, shares in expectations(first, block):
        if crossed:
            shares = second == "readonly"   # takes nothing, and asks no owner
        if second in ("mkfs", "swapon") and USE[first] == "system" or (crossed
            and second == "info"):
            continue   # the kernel's own rule; `info` opens for writing what carries the format
        before = head_of(one, first)
        began = time.monotonic()
        got, lines, said = come(second, other)
        taken = time.monotonic() - began
        name = what.format(second)
        if shares:
            check(got, f"{name}: refused: {lines} {said}")
            continue
        if not check(not got, f"{name}: got in ({said})"):
            continue
        check(taken < 10 * SLOWNESS, f"{name}: refused after {taken:.1f} s")
        if second in ("mkfs", "swapon"):
            continue   # not our words
        named = len(lines) == 1 and os.path.basename(other) in lines[0]
        check(named and any(fix in lines[0] for fix in FIXES),
              f"{name}: not one line that fixes it: {lines} {said}")
        if USE[first] != "parts":   # owners of parts change their metadata
            check(head_of(one, first) == before, f"{name}: refused, but changed bytes")
    last, _ = holder.end()
    check("lost" not in last, f"{first} of {one}: lost what it had written")


def new_file(folder, name):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.truncate(DISK_BYTES)
    return path


class Loops:
    """Loop devices on files; `further` are nodes of mknod."""

    def __init__(self):
        self.devices = []
        self.usable = os.geteuid() == 0 and tool("losetup") is not None

    def on(self, path, *options):
        made = system("losetup", "-f", "--show", *options, path)
        if made.returncode != 0:
            return None
        self.devices.append(made.stdout.strip())
        return self.devices[-1]

    def end(self):
        for device in reversed(self.devices):   # what lies on others first
            system("losetup", "-d", device)


def jobs_of_files(folder):
    for first in (first for first, use in USE.items() if use != "system"):
        path = new_file(folder, f"{first}.img")
        yield pair, (folder, first, path, path, False)
    yield in_turn, (folder, new_file(folder, "turn.img"))
    path = new_file(folder, "link.img")
    os.link(path, os.path.join(folder, "hard.img"))
    os.symlink(path, os.path.join(folder, "soft.img"))
    yield pair, (folder, "physical", path, os.path.join(folder, "hard.img"), False)
    path = new_file(folder, "link2.img")
    os.symlink(path, os.path.join(folder, "soft2.img"))
    yield pair, (folder, "run", os.path.join(folder, "soft2.img"), path, False)


def jobs_of_loops(folder, loops):
    for first in USE:
        part = os.path.join(folder, first)
        os.makedirs(part)
        device = loops.on(new_file(part, "disk.img"))
        if device is None:
            return
        yield pair, (part, first, device, device, True)
    for first in ("mounted", "swap"):   # a file: mounted by a loop device that mount makes
        if first == "swap" and not swaps_to_files(folder):
            print("no swap to files of this file system")
            continue
        part = os.path.join(folder, f"{first}-file")
        os.makedirs(part)
        path = new_file(part, "disk.img")
        yield pair, (part, first, path, path, False)
    yield in_turn, (folder, loops.on(new_file(folder, "turn-loop.img")))
    yield loops_of_loops, (folder, loops)
    yield partition_and_disk, (folder, loops)
    for first in ("physical", "virtual"):
        device = loops.on(new_file(folder, f"node-{first}.img"))
        node = os.path.join(folder, f"node-{first}")
        os.mknod(node, 0o600 | stat.S_IFBLK, os.stat(device).st_rdev)
        yield pair, (folder, first, device, node, True)
        path = new_file(folder, f"backing-{first}.img")
        yield pair, (folder, first, loops.on(path), path, False, True)
        path = new_file(folder, f"over-{first}.img")
        yield loop_over, (folder, first, path, loops)


def jobs_of_files_and_loops(folder, loops):
    for job in (no_devices, killed_owners_leave_nothing, killed_owner_that_ends_slowly,
                forced_is_seen, forced_has_a_lock, blank_stripes, twelve_at_once, capi):
        yield job, (folder,)
    yield from jobs_of_files(folder)
    if loops.usable:
        yield from jobs_of_loops(folder, loops)
    if not loops.devices:
        print("files alone: loop devices need root and losetup")


def is_block(name):
    return os.path.exists(name) and stat.S_ISBLK(os.stat(name).st_mode)


def jobs_of_names(folder):
    """On one device, one after the other: each use, by the block device and by another name, then
    each attempt to open it by each name."""
    block, *others = NAMES
    for first, use in () if SHORT else USE.items():
        yield blank_pair, (folder, first, block, block, True)
        if use != "system" and others:
            yield blank_pair, (folder, first, others[0], others[-1], is_block(others[-1]))
        if first in ("physical", "virtual", "mounted", "claimed"):
            for other in others:
                yield blank_pair, (folder, first, block, other, is_block(other))
    for first in ("physical", "virtual"):
        for other in others:
            yield blank_pair, (folder, first, other, block, True)


def blank_pair(folder, first, one, other, block):
    with os.fdopen(exclusive(NAMES[0]), "r+b") as device:
        fcntl.ioctl(device, BLKZEROOUT, struct.pack("QQ", 0, device.seek(0, os.SEEK_END)))
    pair(folder, first, one, other, block)


def loop_over(folder, first, path, loops):
    """A loop device is made on a file in use."""
    holder = Holder(first, path)
    device = loops.on(path)
    if check(holder.open and device is not None, f"{first} {path}: {holder.said}"):
        for second in ("physical", "virtual", "create", "run", "bench"):
            got, lines, said = come(second, device)
            check(not got and len(lines) == 1,
                  f"{first} has {path}, then {second} of the loop device on it: {lines} {said}")
    last, _ = holder.end()
    check("lost" not in last, f"{first} of {path}: lost what it had written")


def refused(second, path, what):
    got, lines, said = come(second, path)
    check(not got and len(lines) == 1, f"{what}: {second} of {path}: {lines} {said}")


def loops_of_loops(folder, loops):
    """One file behind several loop devices: each on the file, on one another, and after the file
    has lost its name."""
    for first in ("physical", "virtual"):
        path = new_file(folder, f"two-{first}.img")
        one, two = loops.on(path), loops.on(path)
        for device in (one, two):
            refused(first, device, "two loop devices on one file")
        system("losetup", "-d", two)
        over = loops.on(one)
        holder = Holder(first, over)
        check(holder.open, f"{first} of {over}, which is over {one}: {holder.said}")
        for device in (one, path):
            refused("physical", device, f"{over} is had, over {one}")
        holder.end()
        refused("physical", one, f"{over} is over it")
        system("losetup", "-d", over)
        holder = Holder(first, one)
        over = loops.on(one)
        check(holder.open, f"{first} of {one}: {holder.said}")
        for device in (over, path):
            refused("physical", device, f"{one} is had")
        holder.end()
        unnamed = new_file(folder, f"unnamed-{first}.img")
        holder = Holder(first, unnamed)
        device = loops.on(unnamed)
        os.unlink(unnamed)
        check(holder.open, f"{first} of {unnamed}: {holder.said}")
        for second in ("physical", "virtual", "bench"):
            refused(second, device, "its file is had, and has no name")
        holder.end()
        path = new_file(folder, f"kept-{first}.img")
        linked = os.path.join(folder, f"linked-{first}.img")
        os.link(path, linked)
        loops.on(path)
        os.unlink(path)   # the device's file has another name than it knows
        refused(first, linked, "a loop device is on it")
    halves = new_file(folder, "halves.img")
    parts = [loops.on(halves, "-o", str(at), "--sizelimit", str(DISK_BYTES // 2))
             for at in (0, DISK_BYTES // 2)]
    holders = [Holder("physical", device) for device in parts]
    said = [holder.said for holder in holders]
    check(all(holder.open for holder in holders), f"two loop devices on halves of a file: {said}")
    for holder in holders:
        holder.end()


def partition_and_disk(folder, loops):
    """The kernel keeps them apart as long as its claim has an owner; locks do beyond that."""
    disk = loops.on(new_file(folder, "table.img"), "-P")
    name = os.path.basename(disk or "")
    numbers = f"/sys/class/block/{name}p1/dev"
    area = ("2048", str(DISK_BYTES // 512 - 4096))   # start and length, in sectors
    if not disk or not tool("addpart") or system(tool("addpart"), disk, "1", *area).returncode != 0:
        print("no partitions of loop devices here")
        return
    part = os.path.join(folder, f"{name}p1")
    major, minor = open(numbers, encoding="ascii").read().split(":")
    os.mknod(part, 0o600 | stat.S_IFBLK, os.makedev(int(major), int(minor)))
    for first, second in ((disk, part), (part, disk)):
        claims, stays = Holder("physical", first), Holder("physical", first)
        check(claims.open and stays.open, f"physical of {first} twice: {claims.said}, {stays.said}")
        refused("physical", second, f"{first} is had")
        claims.end()
        refused("physical", second, f"{first} is had, without the kernel's claim")
        stays.end()
        got, lines, said = come("physical", second)
        check(got, f"physical of {second} alone: {lines} {said}")


def blank_stripes(folder):
    """Many processes that open blank members at one time come to one set of them."""
    for use in ("physical", "virtual"):
        for round_number in range(2):
            members = [new_file(folder, f"stripe-{use}-{round_number}-{n}.img") for n in range(3)]
            uri = "stripe:" + ";".join(members)
            holders = [Holder(use, uri, wait=False) for _ in range(8)]
            for holder in holders:
                holder.listen()
            said = [holder.said for holder in holders]
            check(all(holder.open for holder in holders),
                  f"{use}, 8 at once on a blank stripe: {said}")
            for holder in holders:
                holder.end()
            got, lines, said = come(use, uri)
            check(got, f"{use} of a stripe that 8 opened at once: {lines} {said}")


def forced_has_a_lock(folder):
    """Forced opens ignore others; but without a lock later opens would not see a forced one."""
    path = new_file(folder, "locked.img")
    with open(path, "r+b") as file:
        fcntl.fcntl(file.fileno(), F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        refused("forced", path, "another program has all of it locked")
    got, lines, said = come("forced", path)
    check(got, f"forced of {path}: {lines} {said}")


def killed_owners_leave_nothing(folder):
    path = new_file(folder, "killed.img")
    for use in ("reserve", "physical", "bench"):
        holder = Holder(use, path)
        check(holder.open, f"{use} after kill -9 of the last owner: {holder.said}")
        holder.kill()
        with open(path, "r+b") as file:
            file.truncate(0)
            file.truncate(DISK_BYTES)


class LockWithoutProcess:
    """A lock on bytes of `path` that no process has a descriptor of, as the rings of a killed owner
    have it until their last write has ended: its descriptor is on its way through a socket."""

    def __init__(self, path, kind, first, length):
        self.ends = socket.socketpair()
        with open(path, "r+b") as file:
            fcntl.fcntl(file.fileno(), F_OFD_SETLK,
                        struct.pack("hhqqi4x", kind, 0, first, length, 0))
            socket.send_fds(self.ends[0], [b"."], [file.fileno()])

    def end(self):
        for end in self.ends:
            end.close()


def killed_owner_that_ends_slowly(folder):
    """Its successor waits; where a live owner has the device, it is refused."""
    path = new_file(folder, "slow-end.img")
    check(prepared("named", path), f"{path}#owned")
    for use, kind, first, length in (("bench", fcntl.F_WRLCK, 0, 0),
                                     ("named", fcntl.F_RDLCK, FIRST_OWNER, 2)):
        on = new_file(folder, "slow-end-scratch.img") if use == "bench" else path
        lock = LockWithoutProcess(on, kind, first, length)
        holder = Holder(use, on, wait=False)
        time.sleep(3)
        came = holder.process.poll() is not None
        lock.end()
        holder.listen()
        check(holder.open and not came,
              f"{use} of {on} after a killed owner that took 3 s to end: {holder.said}")
        began = time.monotonic()
        refused(use, on, "a live owner has it")
        took = time.monotonic() - began
        check(took < 15 * SLOWNESS,
              f"{use} of {on}, which a live owner has: refused after {took:.1f} s")
        holder.end()


def forced_is_seen(folder):
    """A process that forced its way in is an owner for all later opens."""
    path = new_file(folder, "forced.img")
    reserve, forced = Holder("reserve", path), Holder("forced", path)
    check(reserve.open and forced.open, f"forced: {reserve.said}, {forced.said}")
    reserve.end()
    for second in ("create", "run", "virtual", "bench", "reserve"):
        got, lines, said = come(second, path)
        check(not got and len(lines) == 1, f"forced has it, then {second}: {lines} {said}")
    last, _ = forced.end()
    check("lost" not in last, "forced: lost what it had written")


def in_turn(folder, path):
    """A physical LUN after virtual LUNs takes the space of their ended owners. A named LUN refuses
    it, and the command in the refusal removes that LUN."""
    for use in ("virtual", "run"):
        holder = Holder(use, path)
        check(holder.open, f"{use} of {path}: {holder.said}")
        holder.kill()
        got, lines, said = come("physical", path)
        check(got and "kept" in said, f"physical of {path} after {use}: {lines} {said}")
    holder = Holder("virtual", path)
    holder.end()
    # A process that comes while another ends the format shares the device.
    holders = [Holder("physical", path, wait=False) for _ in range(AT_ONCE)]
    for one in holders:
        one.listen()
    said = [one.said for one in holders]
    check(all(one.open for one in holders),
          f"{AT_ONCE} physical at once of {path} after virtual: {said}")
    for one in holders:
        last, _ = one.end()
        check(last == "kept", f"physical at once of {path} after virtual: {last}")
    made = system(LUNAR, "lun", "create", f"{path}#keep", "--size", "8m", "--format")
    check(made.returncode == 0, f"{path}#keep: {made.stderr}")
    before = head_of(path)
    for use in ("physical", "reserve", "group"):
        got, lines, said = come(use, path)
        check(not got and len(lines) == 1 and "keep" in lines[0] and path in lines[0],
              f"{use} of {path}, which holds keep: {lines} {said}")
    check(head_of(path) == before, f"{path} holds keep, and was changed")
    got, lines, said = come("readonly", path)
    check(got and head_of(path) == before, f"readonly of {path}, which holds keep: {lines} {said}")
    _, lines, _ = come("physical", path)
    words = shlex.split(lines[0].split(": ")[-1]) if lines else []
    if check(words[:1] == ["lunar"], f"no line fixes it: {lines}"):
        removed = system(LUNAR, *words[1:], "--yes")
        check(removed.returncode == 0, f"{words}: {removed.stderr}")
    got, lines, said = come("physical", path)
    check(got and "kept" in said, f"physical of {path} after keep: {lines} {said}")


def twelve_at_once(folder):
    """An open of a blank device waits while another process formats it."""
    for round_number in range(4):
        path = new_file(folder, f"twelve-{round_number}.img")
        holders = [Holder("virtual", path, wait=False) for _ in range(12)]
        for holder in holders:
            holder.listen()
        said = [holder.said for holder in holders]
        check(all(holder.open for holder in holders), f"12 at once on a blank file: {said}")
        for holder in holders:
            holder.end()


def capi(folder):
    """The same rule behind IBM's library, which has no virtual LUNs."""
    path = new_file(folder, "capi.img")
    uri = f"capi:{path},lib={FAKE}"
    for first, others in (("physical",
                           {"physical": True, "readonly": True, "reserve": False, "bench": False,
                                        "virtual": False, "run": False}),
                          ("reserve",
                           {"physical": False, "readonly": False, "reserve": False,
                            "bench": False}),
                          ("bench", {"physical": False, "bench": False, "run": False})):
        holder = Holder(first, uri)
        check(holder.open, f"{first} of {uri}: {holder.said}")
        for second, shares in others.items():
            got, lines, said = come(second, uri)
            check(got == shares and (got or len(lines) == 1),
                  f"{first} has {uri}, then {second}: {lines} {said}")
        last, _ = holder.end()
        check("lost" not in last, f"{first} of {uri}: lost what it had written")
    got, lines, said = come("virtual", uri)
    check(not got and len(lines) == 1, f"virtual of {uri}: {lines} {said}")


def no_devices(folder):
    """A path that is no device is refused by one line, at once."""
    fifo, link, gone = (os.path.join(folder, name) for name in ("fifo", "dangling", "gone"))
    os.mkfifo(fifo)
    os.symlink(gone, link)
    for use in ("physical", "virtual", "bench", "run", "create", "info"):
        for path in (fifo, link, "/dev/null", folder):
            if path == folder and use in ("bench", "run"):
                continue   # a file is made in it
            began = time.monotonic()
            got, lines, said = come(use, path)
            check(not got and len(lines) == 1, f"{use} of {path}: {lines} {said}")
            check(time.monotonic() - began < 5 * SLOWNESS, f"{use} of {path}: not refused at once")


def main():
    loops = Loops()
    with tempfile.TemporaryDirectory(prefix="lunar-test-",
                                     dir=os.environ.get("LUNAR_TEST_DIR", "/var/tmp")) as folder:
        try:
            jobs = [*jobs_of_names(folder)] if NAMES else [*jobs_of_files_and_loops(folder, loops)]
            with concurrent.futures.ThreadPoolExecutor(1 if NAMES else AT_ONCE) as pool:
                for running in [pool.submit(job, *arguments) for job, arguments in jobs]:
                    running.result()
        finally:
            loops.end()
    print(f"{len(problems)} problems")
    return 1 if problems else 0


sys.exit(main())
