# SPDX-License-Identifier: Apache-2.0
"""A real program twice, plain and under `lunar run` with less DRAM than it needs. What it reports
and its exit code must be equal, and the tiered run must have evicted.

A program is a function that takes a `run` (plain or tiered) and returns what is compared: text or a
dict of test outcomes."""
import concurrent.futures
import contextlib
import glob
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess

import pytest

import fastcgi
from build_tree import LUNAR
from waiting import wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"   # Debian's: the test suite is of its version
MIB = 1 << 20


class Run:
    """One side of a comparison. `start` gives a process whose output goes to files, from which the
    table of `lunar run --stats` is read."""

    def __init__(self, tiered, scratch, dram, size):
        self.tiered, self.scratch, self.dram, self.size = tiered, scratch, dram, size
        self.errors = os.path.join(scratch, "errors")
        open(self.errors, "w", encoding="utf-8").close()

    def words(self, command):
        if not self.tiered:
            return command
        flags = ["--dram", self.dram, "--size", self.size, "--lun", self.scratch, "--stats"]
        return [LUNAR, "run", *flags, "--", *command]

    def start(self, command, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", open(self.errors, "a", encoding="utf-8"))
        # The system's programs, not those of a virtual environment; everything of a run in its own
        # directory.
        environment = {**os.environ, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
                       "TMPDIR": self.scratch, "LC_ALL": "C.UTF-8", **options.pop("env", {})}
        return subprocess.Popen(self.words(command), text=True, errors="replace", env=environment,
                                start_new_session=True, **options)

    def output(self, command, **options):
        """Exit code and standard output."""
        child = self.start(command, **options)
        out = child.communicate()[0]
        return child.returncode, out

    def said(self):
        with open(self.errors, encoding="utf-8", errors="replace") as file:
            return file.read()

    def evictions(self):
        return sum(map(int, re.findall(r"lunar: stats: evictions (\d+)", self.said())))

    def complaints(self):
        lines = [line for line in self.said().splitlines() if line.startswith("lunar:")]
        return [line for line in lines if not line.startswith("lunar: stats:")]


def wait_for(run, server, name, answers):
    """Until it answers; it may not end before."""
    def told():
        if server.poll() is not None:
            pytest.fail(f"{name} does not answer: {run.said()[-6000:]}")
        return answers()
    wait_until(f"{name} answers", told, every_s=0.1)


def need(path, word):
    if not os.path.exists(path) and shutil.which(path) is None:
        pytest.skip(f"{word}: {path} is not installed")


# ---- CPython's own tests -------------------------------------------------------------------------

# A test, its description on a line of its own, lines of other output, and the outcome at the end of
# a line.
OUTCOME = re.compile(r"^(\w+) \(([\w.]+)\)(?:\n[^\n]*)? \.\.\. "
                     r"(?:[^\n]*\n(?:(?!\w+ \([\w.]+\))[^\n]*\n)*?)??"
                     r"[^\n]*?(ok|skipped|FAIL|ERROR|expected failure)\b", re.MULTILINE)


def python_tests(name):
    """Outcome by test. What depends on the time of day or on a random port has no place in it."""
    def program(run):
        where = f"/usr/lib/python3.{sys_minor()}/test/{name}"
        need(where if os.path.isdir(where) else where + ".py", "python3-testsuite")
        os.chmod(run.scratch, 0o1777)
        code, out = run.output([PYTHON, "-X", "faulthandler", f"{HERE}/python_tests.py", name],
                               cwd=run.scratch)
        verdicts = {}
        for test, where, verdict in OUTCOME.findall(out):
            verdicts[f"{where}:{test}"] = verdict
        if len(verdicts) < 5:
            pytest.fail(f"{name}: {len(verdicts)} tests seen, exit code {code}: {out[-3000:]} "
                             f"{run.said()[-1000:]}")
        verdicts["exit code"] = str(code)
        if code != 0:
            print(f"{'tiered' if run.tiered else 'plain'}: exit code {code}")
            wrong = [line for line in out.splitlines()
                     if re.match(r"(FAIL|ERROR|Traceback|\w*Error)", line)]
            print("\n".join(wrong)[-3000:])
        return verdicts
    return program


def sys_minor():
    print_minor = [PYTHON, "-c", "import sys; print(sys.version_info.minor)"]
    return subprocess.run(print_minor, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


# ---- stress-ng -----------------------------------------------------------------------------------

def stress(name, *words):
    """stress-ng checks its own memory: nothing it says may be a failure."""
    def program(run):
        need("stress-ng", "stress-ng")
        flags = ["--verify", "--timeout", "5", "--temp-path", run.scratch, "--oomable"]
        code, out = run.output(["stress-ng", f"--{name}", "2", *words, *flags],
                               stderr=subprocess.STDOUT)
        # --stats came on the same descriptor
        with open(run.errors, "a", encoding="utf-8") as errors:
            errors.write(out)
        wrong = re.compile(r"\bfail(ed)?\b|corrupt|mismatch|error:")
        failures = [line for line in out.splitlines() if wrong.search(line)
                    and "failed: 0" not in line]
        return f"exit code {code}\n" + "\n".join(failures)
    return program


# ---- servers -------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def postgres(run):
    """A cluster made and served by a root that became `postgres` (runuser): an index over 1.5
    million rows sorted in memory."""
    need("/usr/lib/postgresql", "postgresql")
    if os.geteuid() != 0:
        pytest.skip("root: becomes the user postgres")
    binaries = "/usr/lib/postgresql/" + max(os.listdir("/usr/lib/postgresql"), key=float) + "/bin"
    place = os.path.join(run.scratch, "pg")
    os.mkdir(place)
    shutil.chown(place, "postgres", "postgres")
    os.chmod(run.scratch, 0o1777)
    as_user = ["runuser", "-u", "postgres", "--"]
    code, out = run.output([*as_user, f"{binaries}/initdb", "-D", f"{place}/data", "--auth=trust",
                            "--no-sync"])
    if code != 0:
        return f"initdb: exit code {code}: {out} {run.said()}"
    port = free_port()
    settings = ["-c", "fsync=off", "-c", "max_parallel_maintenance_workers=0"]
    server = run.start([*as_user, f"{binaries}/postgres", "-D", f"{place}/data", "-p", str(port),
                        "-h", "127.0.0.1", "-k", place, *settings])
    psql = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-AtqX", "-v",
            "ON_ERROR_STOP=1"]

    def ask(text):
        return subprocess.run([*psql, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
    try:
        wait_for(run, server, "postgres", lambda: ask("select 1").returncode == 0)
        answers = []
        for text in ("create table t as select i, md5(i::text) as m from generate_series(1, "
                     "700000) i",
                     "set maintenance_work_mem = '512MB'; create index on t (m, i)",
                     "set work_mem = '256MB'; "
                     "select count(*), md5(string_agg(m, '' order by m)) from t where i % 3 = 0",
                     "set enable_seqscan = off; select md5(string_agg(i::text, ',')) from "
                     "(select i from t where m > 'f' order by m limit 50000) s"):
            answer = ask(text)
            answers.append(f"{answer.returncode} {answer.stdout}")
    finally:
        os.kill(session_member(server.pid, "postgres"), signal.SIGINT)
        server.wait()
    return "\n".join(answers) + f"\nexit code {server.returncode}"


def session_member(session, name):
    """The oldest process of that name in the session: a server behind runuser."""
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                head, _, tail = stat.read().rpartition(")")
        except OSError:
            continue
        if head.partition("(")[2] == name and tail.split()[3] == str(session):
            return pid
    return session


def memcached(run):
    """Items of a size each, set and read back by one connection; the server has left root for
    `nobody` before it grows."""
    need("memcached", "memcached")
    if os.geteuid() != 0:
        pytest.skip("root: memcached -u nobody")
    port = free_port()
    server = run.start(["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-U", "0",
                        "-m", "512", "-t", "2"])
    digest, found = hashlib.sha256(), 0
    try:
        def listens():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                return True
        wait_for(run, server, "memcached", listens)
        link = socket.create_connection(("127.0.0.1", port))
        stream = link.makefile("rwb")
        items = 30000

        def value(i):
            return hashlib.sha256(str(i).encode()).hexdigest().encode() * (40 + i % 31)
        for i in range(items):
            data = value(i)
            stream.write(b"set k%d 0 0 %d\r\n%s\r\n" % (i, len(data), data))
            if i % 100 == 99:
                stream.flush()
                for _ in range(100):
                    line = stream.readline()
                    if line != b"STORED\r\n":
                        pytest.fail(f"memcached: set: {line!r}; {run.said()[-2000:]}")
        for i in range(0, items, 3):
            i = i * 7919 % items
            stream.write(b"get k%d\r\n" % i)
            stream.flush()
            head = stream.readline()
            if head == b"END\r\n":
                continue
            data = stream.read(int(head.split()[3]) + 2)[:-2]
            stream.readline()
            if data != value(i):
                pytest.fail(f"memcached: item {i} is another one")
            found += 1
            digest.update(data)
        with open(f"/proc/{session_member(server.pid, 'memcached')}/status",
                  encoding="utf-8") as status:
            user = re.search(r"Uid:\s+(\d+)", status.read())[1]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    return f"{found} items {digest.hexdigest()} user {user} exit code {server.returncode}"


# ---- runtimes with heaps of their own ------------------------------------------------------------

def java(run):
    need("javac", "java")
    flags = ["-XX:+UseG1GC", "-Xms16m", "-Xmx320m", "-XX:TieredStopAtLevel=1"]
    code, out = run.output(["java", *flags, f"{HERE}/Heap.java"])
    return f"exit code {code}\n{out}"


def node(run):
    need("node", "node")
    code, out = run.output(["node", "--max-old-space-size=400", f"{HERE}/heap.js"])
    return f"exit code {code}\n{out}"


PHP_SAYS = "dom mysqli pdo_mysql xsl refused"


# Debian's PHP loads its extensions with RTLD_DEEPBIND.
def php(run):
    need("php", "php")
    code, out = run.output(["php", "-d", "memory_limit=-1", f"{HERE}/heap.php"])
    if not out.startswith(PHP_SAYS):
        pytest.fail(f"php: exit code {code}: {out}{run.said()}")
    return f"exit code {code}\n{out}"


def php_fpm(run):
    """Two workers that have left root. Each ends after two requests: one that is told to end kills
    itself by SIGTERM, which prints no `--stats`."""
    servers = glob.glob("/usr/sbin/php-fpm?*")
    need(servers[0] if servers else "php-fpm", "php")
    os.chmod(run.scratch, 0o1777)
    script, listens = shutil.copy(f"{HERE}/heap.php", run.scratch), f"{run.scratch}/socket"
    user = "user = nobody\ngroup = nogroup\n" if os.geteuid() == 0 else ""
    with open(f"{run.scratch}/fpm.conf", "w", encoding="utf-8") as file:
        file.write(f"[global]\ndaemonize = no\nerror_log = {run.scratch}/log\n[www]\n{user}listen "
                   f"= {listens}\n"
                   "pm = static\npm.max_children = 2\npm.max_requests = "
                   "2\nphp_admin_value[memory_limit] = -1\n")
    server = run.start([servers[0], "-F", "-y", f"{run.scratch}/fpm.conf"])
    try:
        wait_for(run, server, "php-fpm", lambda: os.path.exists(listens))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: fastcgi.request(listens, script), range(6)))
    finally:
        server.send_signal(signal.SIGQUIT)
        server.wait()
    if not all(answer.startswith(PHP_SAYS) for answer in answers):
        pytest.fail(f"php-fpm: {answers}")
    return f"exit code {server.returncode}\n{''.join(answers)}"


# ---- few descriptors, a debugger -----------------------------------------------------------------

GROW = f"{HERE}/grow.py"


def few_descriptors(run):
    code, out = run.output(["prlimit", "--nofile=64", PYTHON, GROW], cwd="/")
    return f"exit code {code}\n{out}"


def debugger(run):
    """gdb prints memory that was evicted, after it has had it fetched (runtime/LIMITS.md)."""
    need("gdb", "gdb")
    child = run.start([PYTHON, GROW, "wait"])
    try:
        line = child.stdout.readline().split()
        if not line or line[0] != "ready":
            pytest.fail(f"{line} {run.said()}")
        address, size = int(line[1], 0), int(line[2])
        commands = ["set pagination off", "set confirm off"]
        if run.tiered:
            commands.append(f"call (int)lunar_touch((void*){address}, (unsigned long){size})")
        commands.append(f"x/2s {address}")
        arguments = [word for command in commands for word in ("-ex", command)]
        seen = subprocess.run(["gdb", "-nx", "-batch", "-p", str(child.pid), *arguments],
                              stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False).stdout
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)
    return "\n".join(re.findall(r'"(marker[^"]*)"', seen)) or f"nothing: {seen[-2000:]}"


MODULES = "subprocess", "mmap", "signal", "faulthandler", "threading", "socket"
# name: (program, DRAM, LUN)
PROGRAMS = {
    **{f"python-{name}": (python_tests(f"test_{name}"), "48m", "2g") for name in MODULES},
    # Trees of processes, each with the 96 MiB: 48m are 42 GiB of page faults, the result the same
    # after 12 minutes and more. Forked ones are a hundred at a time, which each needs 5 MiB for
    # itself.
    "python-multiprocessing_spawn": (python_tests("test_multiprocessing_spawn"), "128m", "4g"),
    "python-multiprocessing_fork": (python_tests("test_multiprocessing_fork"), "768m", "24g"),
    "stress-vm": (stress("vm", "--vm-bytes", "96m"), "32m", "2g"),
    "stress-vm-rw": (stress("vm-rw", "--vm-rw-bytes", "32m"), "32m", "2g"),
    "stress-mmap": (stress("mmap", "--mmap-bytes", "64m"), "32m", "2g"),
    "stress-mremap": (stress("mremap", "--mremap-bytes", "32m"), "32m", "2g"),
    "stress-madvise": (stress("madvise"), "32m", "2g"),
    "stress-mlock": (stress("mlock"), "32m", "2g"),
    "stress-fork": (stress("fork"), "32m", "2g"),
    "stress-vfork": (stress("vfork"), "32m", "2g"),
    "stress-clone": (stress("clone"), "32m", "2g"),
    "stress-stack": (stress("stack"), "32m", "2g"),
    "stress-brk": (stress("brk"), "32m", "2g"),
    "stress-aio": (stress("aio"), "32m", "2g"),
    "postgresql": (postgres, "64m", "4g"),
    "memcached": (memcached, "32m", "2g"),
    "java": (java, "64m", "2g"),
    "node": (node, "48m", "2g"),
    "php": (php, "48m", "2g"),
    "php-fpm": (php_fpm, "64m", "2g"),
    "few-descriptors": (few_descriptors, "24m", "1g"),
    "gdb": (debugger, "24m", "1g"),
}
# Memory of these does not grow past any budget, or is not anonymous memory that Lunar tiers: the
# result is compared, evictions are not asked for.
NO_EVICTIONS = {"stress-vfork", "stress-fork", "stress-clone", "stress-stack", "stress-brk",
                "stress-aio", "stress-mlock", "stress-madvise", "stress-mremap", "stress-vm-rw"}
# Programs that do not work, as runtime/LIMITS.md says in "Real programs", and the report of a
# tiered run. When one works, its line here and there goes.
NOT_SERVED = {
    # a clone(CLONE_VM) child makes the heap grow past the budget
    "stress-vm-rw": r"vm-rw: mmap failed, errno=12",
    # MREMAP_FIXED to a place outside the tier
    "stress-mremap": r"mremap: mremap failed, errno=12",
}
# It works if another process of the tree, which may start service threads, brings the tree over the
# limit first.
SOMETIMES_SERVED = {"stress-vm-rw"}
# The same of single tests, by their last name; the exit code tells of them too.
NOT_SERVED_TESTS = {
    "python-subprocess": {
        # List their descriptors, and find Lunar's.
        "test_close_fds_when_max_fd_is_lowered", "test_pass_fds_redirected",
    },
}


def compare(name, plain, tiered):
    if name in NOT_SERVED:
        known = re.search(NOT_SERVED[name], tiered) and not re.search(NOT_SERVED[name], plain)
        served = name in SOMETIMES_SERVED and tiered == plain
        return [] if known or served else [f"not the known failure: {tiered[-2000:]}"]
    if isinstance(plain, dict):
        known = NOT_SERVED_TESTS.get(name, set())
        differing = [test for test in sorted(plain.keys() | tiered.keys())
                     if plain.get(test) != tiered.get(test)]
        unknown = [test for test in differing
                   if test.rpartition(":")[2] not in known and not (known and test == "exit code")]
        return [f"{test}: plain {plain.get(test)}, tiered {tiered.get(test)}" for test in unknown]
    return [] if plain == tiered else [f"plain:  {plain[-2000:]}\ntiered: {tiered[-6000:]}"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, directory):
    program, dram, size = PROGRAMS[name]
    results = []
    for tiered in (False, True):
        scratch = os.path.join(directory, "tiered" if tiered else "plain")
        os.mkdir(scratch)
        run = Run(tiered, scratch, dram, size)
        results.append(program(run))
    for line in run.complaints()[:10]:
        print(f"said: {line}")
    assert compare(name, *results) == []
    assert run.evictions() > 0 or name in NO_EVICTIONS
