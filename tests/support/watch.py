#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one test: `watch.py BUILD COMMAND...` as the wrapper of `meson test`, `watch.py BUILD --test
NAME` where there is no meson.

Time limit. The test's entry in meson has it (`timeout`), TEST_TIMEOUT_SCALE multiplies it, and only
this program enforces it. A test that exceeds its limit is examined, then killed: the stacks of all
threads of its processes are printed, and with gdb the pager's page states. meson would kill it at
once, so meson's own limit is off.

Signals and processes. A test begins with the default action of every signal and none blocked, also
under `nohup` or in the background. Processes that are left when the test has ended are killed, and
the test fails.

Skips. A test skips by exit code 77 and a line `skip: CAPABILITY: reason`. If only some of its cases
skip, each prints such a line, and the test passes. A skip is a failure if this host has the
capability (EXPECTED below), or if EXPECTED has no such word.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

DEFAULT_LIMIT_S = 300
EXIT_SKIP = 77
INTERRUPT_GRACE_S = 5   # in which a test removes its files and processes


# --- what this host can do ------------------------------------------------------------------------

def has_userfaultfd():
    """In full mode, which also serves faults that are taken inside the kernel."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"aarch64": 282, "riscv64": 282, "ppc64le": 364, "ppc64": 364,
              "s390x": 355}.get(os.uname().machine, 323)
    fd = libc.syscall(number, os.O_CLOEXEC)
    if fd >= 0:
        os.close(fd)
        return True
    return os.access("/dev/userfaultfd", os.R_OK | os.W_OK)


def has_io_uring():
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(425, 2, ctypes.create_string_buffer(120))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def is_root():
    return os.geteuid() == 0


def has_sys_resource():
    """May raise limits: root in many containers may not."""
    capabilities = re.search(r"^CapEff:\s*(\w+)", read_file("/proc/self/status"), re.MULTILINE)
    return capabilities is not None and int(capabilities[1], 16) >> 24 & 1 == 1


def has_memory_cgroup():
    if not is_root():
        return False
    if os.path.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        return os.access("/sys/fs/cgroup/memory", os.W_OK)
    try:
        with open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii") as controllers:
            return "memory" in controllers.read() and os.access("/sys/fs/cgroup", os.W_OK)
    except OSError:
        return False


def has_huge_pages():
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    return os.path.exists(path) and "[never]" not in read_file(path)


def kernel_at_least(major, minor):
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(version[1]), int(version[2])) >= (major, minor)


def has_bubblewrap():
    """bwrap is installed and may make namespaces, which it may not in a chroot."""
    if shutil.which("bwrap") is None:
        return False
    command = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid",
               "true"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                          check=False).returncode == 0


def zeroes_ranges():
    """Whether tests' files lie on ext4, xfs, btrfs or f2fs (runtime/superpipe/file/file_device.cpp:
    can_discard)."""
    directory = os.environ.get("LUNAR_TEST_DIR", "/var/tmp")
    named = subprocess.run(["stat", "-f", "-c", "%t", directory], stdout=subprocess.PIPE, text=True,
                           check=False)
    return named.stdout.strip() in ("ef53", "58465342", "9123683e", "f2f52010")


# The capability that a skip names -> whether this host has it, so that the skip is a failure. Where
# nothing tells, it is no failure.
EXPECTED = {
    "userfaultfd": has_userfaultfd,
    "io_uring": has_io_uring,
    "root": is_root,
    "sys-resource": has_sys_resource,
    "memory-cgroup": has_memory_cgroup,
    "tmpfs": lambda: os.path.ismount("/dev/shm"),
    "ptrace": lambda: False,         # refused in many containers
    "ksm": lambda: os.path.exists("/sys/kernel/mm/ksm/run"),
    "huge-pages": has_huge_pages,
    "guard-pages": lambda: kernel_at_least(6, 13),
    "seccomp": lambda: os.path.exists("/proc/sys/kernel/seccomp"),
    "pkeys": lambda: " ospke " in read_file("/proc/cpuinfo"),
    "memlock": is_root,
    "cpus": lambda: len(os.sched_getaffinity(0)) > 1,
    "descriptors": is_root,          # 5,000 connections and more
    "acl": lambda: False,            # a container's /dev may have none
    "setuid": lambda: False,         # a file system may be mounted nosuid
    "sysctl": lambda: False,         # a container's /proc/sys may be read-only
    "pid-namespace": lambda: False,  # a container may make none, and a chroot mount no /proc in one
    "swap": lambda: False,           # many containers refuse swapon, to root also
    "no-swap": lambda: False,        # another test, or the host, has swap on
    "fuse": lambda: False,           # a container has no /dev/fuse, or may not mount
    "mount": lambda: False,          # refused in many containers
    "mkfs": lambda: shutil.which("mkfs.ext4") is not None,
    "attributes": lambda: False,     # of files: a file system may have none
    "device-nodes": lambda: False,   # a container may make none
    "loop": lambda: is_root() and os.path.exists("/dev/loop-control"),
    "reachable": lambda: False,      # the build lies where other users cannot look, /root for one
    "memory": lambda: False,         # the machine is too small
    "disk-space": lambda: False,
    "zero-range": zeroes_ranges,
    "redis-server": lambda: True,    # tools/deps installs these
    "openssl": lambda: True,
    "sqlite3": lambda: True,
    "gcc": lambda: shutil.which("gcc") is not None,
    "perl": lambda: True,
    "python3": lambda: True,
    "bubblewrap": has_bubblewrap,
    "userfaultfd-device": lambda: os.path.exists("/dev/userfaultfd"),
    "groff": lambda: shutil.which("groff") is not None,
    "gdb": lambda: shutil.which("gdb") is not None,
    "python3-testsuite": lambda: True,   # tools/deps slow installs these
    "stress-ng": lambda: True,
    "postgresql": lambda: True,
    "memcached": lambda: True,
    "java": lambda: True,
    "node": lambda: True,
    "php": lambda: True,
    "clang-format": lambda: False,   # of one version
    "wheel": lambda: False,          # a package registry may be out of reach
}


# --- a stuck test ---------------------------------------------------------------------------------

def read_file(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        return f"({error.strerror})"


def processes_of_session(session):
    """The live processes of a test's session, and their descendants in other sessions."""
    parents, found = {}, set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        stat = read_file(f"/proc/{entry}/stat").rpartition(")")[2].split()
        if len(stat) > 3 and stat[0] != "Z":
            parents[int(entry)] = int(stat[1])
            if stat[3] == str(session):
                found.add(int(entry))
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return sorted(found)


def processes_to_describe(session):
    """The youngest first: its ancestors usually wait for it, and the end of a report may be cut
    off."""
    return reversed(processes_of_session(session))


def debugger_says(pid):
    """Stacks. The pager's states of its pages go to the process's standard error (pager_dump)."""
    command = ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", "set pagination off",
               "-ex", "set print frame-arguments none", "-ex", "thread apply all bt 24",
               "-ex", "set unwindonsignal on", "-ex", "call (void)'lunar::pager_dump(int)'(2)"]
    chatter = re.compile(r"\[(New LWP|Thread debugging|Inferior )|Using host "
                         r"libthread_db|\d+\t(in )?\S+|warning: |$")
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                timeout=60, check=False, text=True, errors="replace")
        return "\n".join(line for line in result.stdout.splitlines() if not chatter.match(line))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"gdb: {error}\n"


def kernel_stack(task):
    """One line, the innermost function first."""
    return " < ".join(re.sub(r"^\[<0>\] |\+0x.*$", "", line)
                      for line in read_file(task + "/stack").splitlines())


def describe_process(pid, out):
    command = read_file(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
    print(f"--- stuck: pid {pid}: {command}", file=out)
    try:
        tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return
    for task in tasks:
        base = f"/proc/{pid}/task/{task}"
        state = re.search(r"State:\s*(.*)", read_file(base + "/status"))
        print(f"thread {task} {read_file(base + '/comm').strip()}: {state[1] if state else '?'}, "
              f"wchan {read_file(base + '/wchan').strip()}, "
              f"syscall {read_file(base + '/syscall').strip()}; "
              f"kernel stack: {kernel_stack(base)}", file=out)
    if shutil.which("gdb"):
        print(debugger_says(pid), file=out)
    else:
        print("(no gdb here: user-space stacks and page states are not shown)", file=out)


def end_session(session):
    """Kills the processes that a test has left; returns their number."""
    left = processes_of_session(session)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return len(left)


# --- one test -------------------------------------------------------------------------------------

def tests_of(build):
    """What `meson introspect --tests` prints, from the build directory: a machine without meson can
    run tests."""
    with open(os.path.join(build, "meson-info", "intro-tests.json"), encoding="utf-8") as file:
        return json.load(file)


def slowness():
    """The number that multiplies time limits, for slow machines."""
    text = os.environ.get("TEST_TIMEOUT_SCALE", "1")
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        sys.exit(f"TEST_TIMEOUT_SCALE={text} is no whole number from 1 to 9999")
    return int(text)


def unexpected_skip(line):
    known = EXPECTED.get(line.removeprefix("skip: ").split(":")[0].strip())
    return known is None or known()


def verdict_of(status, skips, left):
    """The exit code, and the reason of a failure. `left`: how many processes were killed."""
    wrong = next(filter(unexpected_skip, skips), None)
    if status == EXIT_SKIP and not skips:
        return 1, "exit code 77, but no `skip:` line"
    if status in (0, EXIT_SKIP) and wrong:
        return 1, f"{wrong} (but this host has it, or the word is unknown)"
    if status < 0:
        return 1, f"signal {signal.Signals(-status).name}"
    if status == 0 and left:
        return 1, f"left {left} process(es) running"
    return status, ""


def pass_on(stream, skips):
    """Prints the test's lines as they come, and collects those of skips."""
    for line in stream:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        if line.startswith(b"skip: "):
            skips.append(line.decode(errors="replace").strip())


class Interrupted(Exception):
    """meson, or a user, ends the test."""


def interrupted(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted


def run(command, limit_s, **options):
    """Returns the exit code for meson."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    skips = []
    reader = threading.Thread(target=pass_on, args=(child.stdout, skips), daemon=True)
    reader.start()
    status, wrong = None, "interrupted"
    try:
        status = child.wait(limit_s)
        wait_for_end_of(child.pid, 2)   # its processes may be about to end
    except subprocess.TimeoutExpired:
        for pid in processes_to_describe(child.pid):
            describe_process(pid, sys.stdout)
            sys.stdout.flush()
        wrong = f"still running after {limit_s} s; killed"
    except Interrupted:
        with contextlib.suppress(OSError):
            child.send_signal(signal.SIGINT)
        wait_for_end_of(child.pid, INTERRUPT_GRACE_S)
    left = end_session(child.pid)
    child.wait()
    reader.join(2)   # a process outside of the session may hold the pipe open
    code = 1
    if status is not None:
        code, wrong = verdict_of(status, skips, left)
    if wrong:
        print(f"failed: {wrong}", flush=True)
    return code


def wait_for_end_of(session, grace_s):
    deadline = time.monotonic() + grace_s
    while processes_of_session(session) and time.monotonic() < deadline:
        time.sleep(0.05)


def default_signals():
    """Resets what a child inherits across exec: `nohup` and `&` ignore signals, and some shells
    block some."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def in_its_own_session(work):
    """Works in a child: meson kills the process that it has started half a second after it has sent
    SIGTERM, and ending a test may take longer."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, interrupted)
        sys.exit(work())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
    build, command = sys.argv[1], sys.argv[2:]
    by_name = command[0] == "--test"
    entry = next((test for test in tests_of(build)
                  if (test["name"] == command[1] if by_name else test["cmd"] == command)), None)
    if entry is None:
        sys.exit(f"no test of {build}: {' '.join(command)}")
    limit_s = (entry["timeout"] or DEFAULT_LIMIT_S) * slowness()
    default_signals()
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"   # losetup
    options = {"env": {**os.environ, **entry["env"]},
               "cwd": entry["workdir"] or build} if by_name else {}
    return in_its_own_session(lambda: run(entry["cmd"], limit_s, **options))


if __name__ == "__main__":
    sys.exit(main())
