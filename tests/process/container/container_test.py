#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`container_test.py LUNAR WORKLOAD EXAMPLE STRESS FORK_TEST`: Lunar in a container. bubblewrap
makes one as engines do (namespaces, a /dev of its own, Docker's default capabilities), this script
puts their default system call filter on (`container_test.py --contained NAME,... COMMAND...`: but
for these names; `all` denies nothing). Without a flag Lunar refuses in one line and `lunar doctor`
names, for each lack, the flag of `docker run` that fixes it; with those flags it works."""
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../support"))
import seccomp

# System calls of Lunar that container engines deny by default: the facts of Docker's default
# profile (moby 25 and later; its own documentation lists them).
# process_madvise, pidfd_getfd and kcmp are allowed with --cap-add SYS_PTRACE; those of memory
# policies with SYS_NICE; namespaces and mounts with SYS_ADMIN; io_uring is denied since 25.0.
DENIED = {"userfaultfd": [323], "io_uring": [425, 426, 427], "process_madvise": [440],
          "pidfd_getfd": [438], "kcmp": [312], "mbind": [237], "set_mempolicy": [238],
          "get_mempolicy": [239], "set_mempolicy_home_node": [450], "move_pages": [279],
          "unshare": [272], "setns": [308], "mount": [165], "umount2": [166], "bpf": [321],
          "perf_event_open": [298], "keys": [248, 249, 250]}
CLONE, CLONE3, NEWEST_KNOWN = 56, 435, 461   # libc takes clone where clone3 is ENOSYS
NAMESPACES = 0x7e020000   # CLONE_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET


def contained(allow, *command):
    """Runs the command under that filter, which lasts for all its children."""
    allowed = allow.split(",")
    if "all" not in allowed:
        seccomp.install(
            *(seccomp.refused(number) for name, numbers in DENIED.items()
              if name not in allowed for number in numbers),
            seccomp.refused(CLONE3, errno.ENOSYS),
            [(seccomp.GREATER, 0, 1, NEWEST_KNOWN), seccomp.answer(errno.ENOSYS)],
            [(seccomp.EQUAL, 0, 3, CLONE), (seccomp.LOAD, 0, 0, seccomp.ARGUMENT[0]),
             (seccomp.ANY_BIT, 0, 1, NAMESPACES), seccomp.answer(errno.EPERM)])
    os.execvp(command[0], command)


if sys.argv[1] == "--contained":
    contained(*sys.argv[2:])
LUNAR, WORKLOAD, EXAMPLE, STRESS, FORK_TEST = map(os.path.abspath, sys.argv[1:6])
CONTAINED = [sys.executable, "-B", os.path.abspath(__file__), "--contained"]
SIZE = "400000"     # of WORKLOAD: about 60 MiB
DEVICE = "/dev/userfaultfd"
DEFAULT_CAPABILITIES = """CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP 
SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE""".split()
HOST_MEMLOCK = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
DEFAULT_MEMLOCK = 8 << 20 if HOST_MEMLOCK == resource.RLIM_INFINITY else min(8 << 20, HOST_MEMLOCK)
problems = []


def check(held, what):
    if not held:
        problems.append(what)
    return held


def skip(capability, reason):
    print(f"skip: {capability}: {reason}")
    sys.exit(77)


class Container:
    """The environment of `docker run FLAGS`, as far as Lunar sees it."""

    def __init__(self, place, device=False, allow="", capabilities=(), memlock=DEFAULT_MEMLOCK):
        self.line = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
                     "--ro-bind", "/proc/sys", "/proc/sys", "--tmpfs", "/dev/shm", "--tmpfs",
                     "/run", "--dir", "/run/.containerenv", "--bind", place, place, "--unshare-pid",
                     "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--cap-drop", "ALL"]
        for name in [*DEFAULT_CAPABILITIES, *capabilities]:
            self.line += ["--cap-add", "CAP_" + name]
        if device:
            self.line += ["--dev-bind", DEVICE, DEVICE]
        self.line += [*CONTAINED, allow]
        self.memlock = memlock
        self.place = place

    def run(self, *command):
        def limits():   # lower than the host's, or the same
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (self.memlock, self.memlock))
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("LUNAR_")}
        environment["LUNAR_LUN"] = self.place
        return subprocess.run([*self.line, *command], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False, preexec_fn=limits, env=environment)

    def doctor(self):
        """Exit code, and the checks by name."""
        result = self.run(LUNAR, "doctor", "--json")
        return result.returncode, {entry["name"]: entry
                                   for entry in json.loads(result.stdout)["checks"]}

    def tiered(self):
        flags = ["--dram", "16m", "--size", "96m", "--stats", "--lun", self.place]
        return self.run(LUNAR, "run", *flags, "--", WORKLOAD, SIZE)


def shows(result):
    return f"exit {result.returncode}, {result.stderr[-600:]!r}"


def stats(text):
    words = [line.split() for line in text.splitlines() if line.startswith("lunar: stats: ")]
    return {word[2]: int(word[3]) for word in words if word[3].isdigit()}


def runs_tiered(container, what, expected, said):
    """A program beyond its budget: the same output, by evictions, nothing lost; `said`: lines of
    Lunar's own."""
    result = container.tiered()
    check(result.returncode == 0 and result.stdout == expected,
          f"{what}: {shows(result)}, or other output")
    counted = stats(result.stderr)
    for name in ("evictions", "major_faults"):
        check(counted.get(name, 0) > 0, f"{what}: nothing was evicted: {result.stderr}")
    for name in ("read_errors", "write_errors", "poisoned"):
        check(counted.get(name) == 0, f"{what}: {result.stderr}")
    other = [line for line in result.stderr.splitlines() if not line.startswith("lunar: stats: ")]
    check(len(other) == len(said) and all(word in line for word, line in zip(said, other)),
          f"{what}: said {other}, not {said}")


def names_flag(checks, name, state, flag):
    entry = checks.get(name, {})
    check(entry.get("state") == state and flag in entry.get("remedy", "") and entry.get("lack"),
          f"doctor: {name} is not {state} with {flag}: {entry}")


def without_flags(place, outside):
    container = Container(place)
    for command in (["true"], [WORKLOAD, SIZE]):
        result = container.run(LUNAR, "run", "--", *command)
        in_one_line = (result.returncode == 125 and result.stdout == ""
                       and result.stderr.count("\n") == 1)
        check(in_one_line and "userfaultfd" in result.stderr
              and f"--device {DEVICE}" in result.stderr,
              f"run without flags: {shows(result)}")
    result = container.run(EXAMPLE)   # by the API
    check(result.returncode != 0 and f"docker run --device {DEVICE}" in result.stderr,
          f"API without flags: {shows(result)}")
    code, checks = container.doctor()
    check(code == 1, f"doctor without flags: exit {code}")
    names_flag(checks, "userfaultfd", "fail", f"`--device {DEVICE}`")
    names_flag(checks, "io_uring", "warning", "`--security-opt seccomp=unconfined`")
    names_flag(checks, "memlock limit", "warning", "`--ulimit memlock=-1`")
    if outside["process_madvise"]["state"] == "ok":
        names_flag(checks, "process_madvise", "warning", "`--cap-add SYS_PTRACE`")
    check(checks["container"]["value"] == "podman, a system call filter is on",
          f"doctor: {checks['container']}")
    for name in ("io_uring", "userfaultfd"):
        check("sysctl" not in checks[name]["remedy"],
              f"doctor: {name} is not the container's to fix: {checks[name]}")


def with_device(place, expected):
    """The least: one flag. I/O waits, one system call at a time."""
    container = Container(place, device=True)
    code, checks = container.doctor()
    check(code == 0 and checks["userfaultfd"]["state"] == "ok",
          f"doctor with the device: exit {code}, {checks['userfaultfd']}")
    names_flag(checks, "io_uring", "warning", "`--security-opt seccomp=unconfined`")
    runs_tiered(container, "with the device", expected, ["io_uring is not available"])
    result = container.run(STRESS, "--operations", "20000", "--faults", "5000", "--memory", "128")
    check(result.returncode == 0, f"stress with the device: {shows(result)}")
    for test in ("generations", "child-discards-and-allocates", "spawn-is-served"):
        result = container.run(FORK_TEST, test)
        check(result.returncode == 0, f"fork_test {test} with the device: {shows(result)}")


def with_all(place, expected):
    """With all that doctor proposes it has nothing left to say."""
    # The flag --ulimit memlock=-1, where this host can give that; else the other that doctor names.
    lifted = ({"memlock": HOST_MEMLOCK}
              if HOST_MEMLOCK == resource.RLIM_INFINITY else {"capabilities": ("IPC_LOCK",)})
    capabilities = ("SYS_PTRACE", "IPC_LOCK")
    profile = Container(place, device=True, allow="io_uring,process_madvise",
                        capabilities=capabilities)
    for what, container in (
            ("device, no filter, memlock", Container(place, device=True, allow="all", **lifted)),
            ("device, a profile with io_uring, SYS_PTRACE, IPC_LOCK", profile),
            ("no device, no filter, SYS_PTRACE, IPC_LOCK",
             Container(place, allow="all", capabilities=capabilities))):
        code, checks = container.doctor()
        left = [entry for name, entry in checks.items()
                if "remedy" in entry and name not in ("memory", "LUN", "NVMe passthrough")]
        check(code == 0 and not left, f"doctor with {what}: exit {code}, {left}")
        runs_tiered(container, what, expected, [])


def without_right(place):
    """No filter alone is not enough where the sysctl is 0: the system call wants a capability."""
    with open("/proc/sys/vm/unprivileged_userfaultfd", encoding="ascii") as file:
        if file.read().strip() != "0":
            return
    result = Container(place, allow="all").tiered()
    check(result.returncode == 125 and "seccomp=unconfined --cap-add SYS_PTRACE" in result.stderr,
          f"no filter alone: {shows(result)}")


def main():
    if os.geteuid() != 0:
        skip("root", "an engine's containers are made by root here")
    if not os.path.exists(DEVICE):
        skip("userfaultfd-device", f"there is no {DEVICE} (the kernel's CONFIG_USERFAULTFD)")
    trial = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid",
             "true"]
    able = shutil.which("bwrap") is not None
    if able:
        tried = subprocess.run(trial, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               check=False)
        able = tried.returncode == 0
    if not able:
        skip("bubblewrap", "bwrap is not installed, or may not make namespaces here")
    expected = subprocess.run([WORKLOAD, SIZE], stdout=subprocess.PIPE, text=True,
                              check=True).stdout
    outside = subprocess.run([LUNAR, "doctor", "--json"], stdout=subprocess.PIPE,
                             check=False).stdout
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="lunar-container-") as place:
        without_flags(place, {entry["name"]: entry for entry in json.loads(outside)["checks"]})
        with_device(place, expected)
        with_all(place, expected)
        without_right(place)
    for problem in problems:
        print("wrong:", problem)
    return 1 if problems else 0


sys.exit(main())
