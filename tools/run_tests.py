#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that meson knows, for tools/test (which builds first).

Order: layout and unit tests, then the tests that share the machine (as many at a time as there are
CPUs and one more, as most wait for a device half of the time; those with a high meson `priority`
first, as they take longest; at the same time, one after the other, those of suite `waits`, which
hardly use a CPU), then those that need it alone (is_parallel: false). One line a test.

The only time limit is the one here: a test that passes it is examined before it is killed (stacks
of all threads of all its processes, and the pager's page states where a debugger is at hand). A
limit of the test's own would kill unexamined.

Tests start with every signal at its default action and none blocked, however the runner itself was
started (`nohup`, `&`).

A test skips with exit code 77 and a first line `skip: CAPABILITY: reason`. Skipping is a failure
when this host has the capability (EXPECTED below), or when the word is unknown. A host without the
right to userfaultfd cannot test the pager: the run fails and its last line says so, unless
--without-userfaultfd accepts that.
"""
import argparse
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

WAITS = "waits"   # suite of tests that mostly wait, for time limits or locks: they hardly use a CPU
SUITES = ["layout", "unit", "process", "fault", "property", "examples", "e2e", "slow"]
FAST = {"layout", "unit"}
SANITIZED = {"unit", "fault", "property", "sanitizer"}
DEFAULT_LIMIT_S = 300
EXIT_SKIP = 77
INTERRUPT_GRACE_S = 5


# --- what this host can do ------------------------------------------------------------------------

def has_userfaultfd():
    """Full mode: faults taken inside the kernel are served too."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"aarch64": 282, "riscv64": 282, "ppc64le": 364, "ppc64": 364,
              "s390x": 355}.get(os.uname().machine, 323)
    fd = libc.syscall(number, os.O_CLOEXEC)
    if fd >= 0:
        os.close(fd)
        return True
    return os.access("/dev/userfaultfd", os.R_OK | os.W_OK)


def has_io_uring():
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(425, 2, ctypes.create_string_buffer(120))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def is_root():
    return os.geteuid() == 0


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
    """bwrap is there, and may make namespaces: in a chroot it may not."""
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


# Word of a skip -> whether this host has it, so that the test should have run.
EXPECTED = {
    "userfaultfd": has_userfaultfd,
    "io_uring": has_io_uring,
    "root": is_root,
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
    "swap": lambda: False,           # swapon is refused in many containers, to root also
    "no-swap": lambda: False,        # another test, or the host, has swap on
    "fuse": lambda: False,           # a container has no /dev/fuse, or may not mount
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
    """Every live process of the session that a test was started in, and what these have started in
    sessions of its own."""
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
    """The youngest first: its ancestors usually wait for it, and a report may be cut off."""
    return reversed(processes_of_session(session))


def debugger_says(pid):
    """Stacks, and the pager's own account of its pages (pager_dump prints to the test's standard
    error)."""
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
    """In one line, innermost first."""
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
    """Ends what a test left running; returns how many there were."""
    left = processes_of_session(session)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return len(left)


# --- one test -------------------------------------------------------------------------------------

class Test:
    def __init__(self, entry, directory, multiplier):
        self.name = entry["name"]
        self.command = entry["cmd"]
        self.environment = entry["env"]
        self.depends = entry["depends"]
        self.workdir = entry["workdir"] or directory
        self.suites = [s.split(":", 1)[1] for s in entry["suite"] if ":" in s]
        self.limit_s = (entry["timeout"] or DEFAULT_LIMIT_S) * multiplier
        self.priority = entry.get("priority", 0)
        self.alone = not entry["is_parallel"]
        self.log = os.path.join(directory, "test-logs", re.sub(r"[^\w.-]", "_", self.name) + ".log")
        self.verdict = ""
        self.reason = ""
        self.skipped = set()   # capabilities for want of which it, or some case of it, did not run
        self.seconds = 0.0
        self.session = None    # of its processes, while it runs

    def rank(self):
        suite = min((SUITES.index(s) for s in self.suites if s in SUITES), default=len(SUITES) - 1)
        return (0, suite, 0) if FAST & set(self.suites) else (2, suite, 0) if self.alone else (1,
            -self.priority, suite)

    def run(self, extra_environment):
        start = time.monotonic()
        with open(self.log, "w", encoding="utf-8") as log:
            try:
                child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                         stderr=subprocess.STDOUT,
                                         cwd=self.workdir, start_new_session=True,
                                         env={**os.environ, **extra_environment,
                                              **self.environment})
            except OSError as error:
                self.verdict, self.reason = "FAIL", f"cannot start: {error}"
                return
            self.session = child.pid
            try:
                status = child.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                status = None
                for pid in processes_to_describe(child.pid):
                    describe_process(pid, log)
                    log.flush()
            left = self.end_survivors(child.pid, 0 if status is None else 2)
            child.wait()
            self.session = None
        self.seconds = time.monotonic() - start
        self.check_result(status, left)

    @staticmethod
    def end_survivors(session, grace_s):
        """Processes that outlive the test and had to be ended; those already on their way out are
        given time."""
        deadline = time.monotonic() + grace_s
        while processes_of_session(session) and time.monotonic() < deadline:
            time.sleep(0.05)
        return end_session(session)

    def check_result(self, status, left):
        self.skipped = {capability_of(line) for line in skips_in(self.log)} if status in (0,
            EXIT_SKIP) else set()
        if status is None:
            self.verdict, self.reason = "FAIL", f"still running after {self.limit_s} s; killed"
        elif status == EXIT_SKIP:
            self.check_skip()
        elif status != 0:
            self.verdict = "FAIL"
            self.reason = (f"exit code {status}" if status > 0
                           else f"signal {signal.Signals(-status).name}")
        elif left:
            self.verdict, self.reason = "FAIL", f"left {left} process(es) running"
        else:
            self.verdict = "ok"
            for line in skips_in(self.log):   # some cases of it only
                self.reason = line
                if unexpected_skip(line):
                    self.verdict = "FAIL"
                    break

    def check_skip(self):
        skips = skips_in(self.log)
        self.verdict, self.reason = ("skip", skips[0]) if skips else ("FAIL",
            "exit code 77, but no `skip:` line")
        if skips and unexpected_skip(skips[0]):
            self.verdict = "FAIL"
            self.reason += " (but this host has it, or the word is unknown)"


def skips_in(log):
    return [line.strip() for line in read_file(log).splitlines() if line.startswith("skip: ")]


def capability_of(line):
    return line.removeprefix("skip: ").split(":")[0].strip()


def unexpected_skip(line):
    known = EXPECTED.get(capability_of(line))
    return known is None or known()


# --- all of them ----------------------------------------------------------------------------------

class Runner:
    def __init__(self, tests, extra_environment):
        self.tests = tests
        self.extra_environment = extra_environment
        self.print_lock = threading.Lock()
        self.stop = False

    def report(self, test):
        with self.print_lock:
            suite = test.suites[0] if test.suites else "-"
            line = f"{test.verdict:4}  {test.seconds:7.1f} s  {suite:9} {test.name}"
            print(line + (f"  ({test.reason})" if test.reason else ""), flush=True)
            if test.verdict == "FAIL":
                lines = read_file(test.log).splitlines() if os.path.exists(test.log) else []
                shown = lines if test.seconds >= test.limit_s else lines[-80:]
                for text in shown[-2000:]:
                    print("      | " + text)
                print(f"      again: tools/test -k '^{re.escape(test.name)}$'; log: {test.log}",
                      flush=True)

    def run_one(self, test):
        if self.stop:
            return
        test.run(self.extra_environment)
        if self.stop:
            test.verdict = ""
        else:
            self.report(test)

    def interrupt(self):
        """Ends the tests that run: as Ctrl-C does, so that they take away what they have made, and
        then for good."""
        self.stop = True
        for test in self.tests:
            if (session := test.session) is not None:
                with contextlib.suppress(OSError):
                    os.kill(session, signal.SIGINT)
        deadline = time.monotonic() + INTERRUPT_GRACE_S
        while any(test.session for test in self.tests) and time.monotonic() < deadline:
            time.sleep(0.05)
        for test in self.tests:
            if (session := test.session) is not None:
                end_session(session)

    def workers(self, tests, count):
        """`count` threads that run the tests, each the next one that is left."""
        queue, queue_lock = iter(tests), threading.Lock()

        def work():
            while True:
                with queue_lock:
                    test = next(queue, None)
                if test is None:
                    return
                self.run_one(test)

        return [threading.Thread(target=work) for _ in range(count)]

    def run(self):
        """Neighbours in the list that may share the machine run side by side; the others alone. One
        more
        lane runs the tests that hardly use a CPU."""
        index = 0
        while index < len(self.tests) and not self.stop:
            group = [self.tests[index]]
            if not group[0].alone:
                while (index + len(group) < len(self.tests)
                       and not self.tests[index + len(group)].alone):
                    group.append(self.tests[index + len(group)])
            index += len(group)
            waiting = [test for test in group if WAITS in test.suites]
            busy = [test for test in group if WAITS not in test.suites]
            lanes = min((os.cpu_count() or 1) + 1, len(busy))
            threads = self.workers(busy, lanes) + self.workers(waiting, min(1, len(waiting)))
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.5)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/test", description="build Lunar and run its tests")
    parser.add_argument("directory", help=argparse.SUPPRESS)
    parser.add_argument("--fast", action="store_true", help="layout and unit tests only")
    parser.add_argument("--all", action="store_true", help="the slow suite too")
    parser.add_argument("--asan", action="store_true",
                        help="AddressSanitizer and UBSan, in build-asan/")
    parser.add_argument("--tsan", action="store_true", help="ThreadSanitizer, in build-tsan/")
    parser.add_argument("-k", metavar="PATTERN", default="",
                        help="only tests whose name or suite matches; slow ones with --all, or "
                             "where no other does")
    parser.add_argument("--list", action="store_true", help="list the tests, run none")
    # for tools/test: what to build
    parser.add_argument("--targets", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-build", action="store_true", help="use the build as it is")
    parser.add_argument("--without-userfaultfd", action="store_true",
                        help="pass where the pager cannot be tested")
    return parser.parse_args()


def select(tests, arguments):
    def wanted(test):
        if arguments.k:
            return any(re.search(arguments.k, text) for text in [test.name, *test.suites])
        if arguments.asan or arguments.tsan:
            unfit = {"no-sanitizer", "no-tsan"} if arguments.tsan else {"no-sanitizer"}
            return SANITIZED & set(test.suites) and not unfit & set(test.suites)
        if arguments.fast:
            return FAST & set(test.suites)
        return arguments.all or "slow" not in test.suites
    chosen = sorted(filter(wanted, tests), key=Test.rank)
    # slow ones only where nothing else is meant: they take up to hours
    if arguments.k and not arguments.all:
        chosen = [test for test in chosen if "slow" not in test.suites] or chosen
    return chosen


def become_root_if_needed():
    """Nearly every test of the pager wants userfaultfd's full mode, and some a memory cgroup: run
    them through sudo where this user has no such right and sudo is at hand. The build stays the
    user's."""
    if is_root() or has_userfaultfd() or not shutil.which("sudo"):
        return
    ask = [] if sys.stdin.isatty() else ["-n"]
    if subprocess.run(["sudo", *ask, "true"], stdin=None, check=False).returncode != 0:
        print("tools/test: no right to use userfaultfd, and sudo refused", file=sys.stderr)
        return
    kept = [f"{name}={value}" for name, value in os.environ.items()
            if name in ("PATH", "CI", "LANG", "LC_ALL", "TEST_TIMEOUT_SCALE")
            or name.startswith("LUNAR_")]
    os.execvp("sudo", ["sudo", *ask, "env", *kept, sys.executable, "-B", *sys.argv])


def sanitizer_environment(arguments):
    if arguments.asan:
        return {"UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
                "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"}
    if arguments.tsan:
        return {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"}
    return {}


def default_signals():
    """What a child inherits across exec: `nohup` and `&` leave signals ignored, and some shells
    leave some blocked. The runner goes on ignoring what it was told to, by handlers: those do not
    outlive an exec."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else lambda *_: None)


def summary(tests, arguments):
    """The last line, and the exit code that goes with it."""
    count = {verdict: sum(test.verdict == verdict for test in tests)
             for verdict in ("ok", "FAIL", "skip")}
    line = f"{count['ok']} passed, {count['FAIL']} failed, {count['skip']} skipped"
    untested = sum("userfaultfd" in test.skipped for test in tests)
    if untested:
        line += f"; THE PAGER WAS NOT TESTED: no right to userfaultfd ({untested} tests)"
        if not arguments.without_userfaultfd:
            line += "; run as root, or accept it with --without-userfaultfd"
    return line, 1 if count["FAIL"] or not tests or (untested
                                                     and not arguments.without_userfaultfd) else 0


def print_times(tests, seconds):
    slowest = sorted((test for test in tests if test.verdict), key=lambda test: -test.seconds)[:8]
    print(f"took {seconds:.0f} s; longest: " + ", ".join(f"{test.name} {test.seconds:.0f} s"
                                                         for test in slowest))


def introspect(what, directory):
    """What `meson introspect --WHAT` prints: read from the build directory, so that a machine
    without meson runs tests too."""
    with open(os.path.join(directory, "meson-info", f"intro-{what}.json"),
              encoding="utf-8") as file:
        return json.load(file)


def slowness():
    """How many times slower than usual this machine is (TEST_TIMEOUT_SCALE): time limits are
    multiplied by it."""
    text = os.environ.get("TEST_TIMEOUT_SCALE", "1")
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        sys.exit(f"tools/test: TEST_TIMEOUT_SCALE={text} is no whole number from 1 to 9999")
    return int(text)


def targets_of(tests, directory):
    """Ninja's names of what these tests run."""
    wanted = {identity for test in tests for identity in test.depends}
    return sorted(os.path.relpath(target["filename"][0], directory)
                  for target in introspect("targets", directory) if target["id"] in wanted)


def main():
    arguments = parse_arguments()
    # losetup, mkfs: not in a user's
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    directory = os.path.abspath(arguments.directory)
    multiplier = slowness() * (4 if arguments.asan or arguments.tsan else 1)
    tests = select([Test(entry, directory, multiplier) for entry in introspect("tests", directory)],
                   arguments)
    if arguments.targets:
        print("\n".join(targets_of(tests, directory)))
        return 0
    if arguments.list:
        for test in tests:
            sharing = "alone " if test.alone else "shared"
            print(f"{','.join(test.suites) or '-':10} {test.limit_s:5} s  {sharing}  {test.name}")
        return 0
    become_root_if_needed()
    os.makedirs(os.path.join(directory, "test-logs"), exist_ok=True)
    if os.environ.get("SUDO_UID", "").isdigit() and is_root():
        os.chown(os.path.join(directory, "test-logs"), int(os.environ["SUDO_UID"]), -1)
    runner = Runner(tests, sanitizer_environment(arguments))
    default_signals()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    start = time.monotonic()
    try:
        runner.run()
    except KeyboardInterrupt:
        runner.interrupt()
        print("interrupted", file=sys.stderr)
    print_times(tests, time.monotonic() - start)
    for test in tests:
        if test.verdict == "FAIL":
            print(f"failed: {test.name}: {test.reason}")
    line, status = summary(tests, arguments)
    print(line)
    return 1 if runner.stop else status


if __name__ == "__main__":
    sys.exit(main())
