# SPDX-License-Identifier: Apache-2.0
"""The `lunar` command from outside: every refusal is one line, exits as documented and touches
nothing; what is started keeps its pid, arguments, exit code and signals."""
import os
import platform
import shlex
import shutil
import struct
import subprocess

import pytest

import seccomp
from build_tree import BUILD, LUNAR

STATIC, MALLOC_POINTER = (os.path.join(BUILD, "tests/tools", name)
                          for name in ("static_program", "malloc_pointer"))
OLD_KERNEL = os.path.join(BUILD, "tests/libold_kernel.so")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(*words, cwd=None, rights=(), before=None, **variables):
    """`lunar WORDS` in an environment of its own; with `pid`."""
    child = subprocess.Popen([LUNAR, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, cwd=cwd, preexec_fn=before,
                             env={"PATH": PATH, "HOME": "/nowhere", **variables}, **dict(rights))
    out, err = child.communicate()
    ended = subprocess.CompletedProcess(words, child.returncode, out, err)
    ended.pid = child.pid
    return ended


def run64(*words, **options):
    return run("run", "--dram", "64m", *words, **options)


def one_line(ended, code, *parts):
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1), ended
    for part in parts:
        assert part in ended.stderr


def refused(ended, *parts, code=125):
    """A refusal of `lunar run`."""
    one_line(ended, code, *parts)
    assert ended.stderr.startswith("lunar run: ")


@pytest.fixture
def able():
    """Without the right to userfaultfd `lunar run` refuses before it looks at the command."""
    ended = run64("true")
    if "userfaultfd" in ended.stderr:
        pytest.skip("userfaultfd: " + ended.stderr.strip())


# ---- refusals ------------------------------------------------------------------------------------

# Flags of `lunar run`, and parts of its line.
REFUSED = [
    ("--dram lots", "--dram", "'lots'", "256m"), ("--dram ''", "--dram"),
    ("--dram=-5m", "--dram", "'-5m'"), ("--dram 64q", "'64q'"),
    ("--dram 99999999999999t", "--dram", "too large"),
    ("--dram 4m", "--dram", "4 MiB", "minimum of 16 MiB"), ("--dram 0", "--dram", "minimum"),
    ("--dram 900t", "--dram", "900 TiB", "this machine"),
    ("--dram 64m --size 32m", "--size", "32 MiB", "64 MiB"),
    ("--dram 64m --size 900t", "--size", "/var/tmp", "900 TiB"),
    ("--dram 64m --size some", "--size", "'some'"),
    # unknown flags, with the nearest name, and values that are none
    ("--drma 64m", "--drma", "did you mean --dram?"),
    ("--stat-file=x", "did you mean --stats-file?"), ("--zzzzzzzzzz", "--zzzzzzzzzz", "--help"),
    ("-x", "-x"), ("--spin", "LUNAR_SPIN"), ("--dram", "--dram needs a value"),
    # only the runtime that tests link knows it
    ("--test-no-hash-check", "--test-no-hash-check", "--help"),
    ("--no-mmap=yes", "--no-mmap takes no value"), ("--mmap=perhaps", "--mmap", "'perhaps'"),
    ("--log loud", "--log", "error|warning|info"), ("--handlers two", "--handlers", "'two'"),
    ("--handlers 65", "--handlers: 65 is out of range: 0 to 64"),
    # LUNs that cannot serve
    ("--dram 64m --lun /var/tmp/no/such/place", "--lun", "does not exist", "fallocate"),
    ("--dram 64m --lun '/no/such\nplace\x1b[2J'", "--lun", "/no/such\\x0aplace\\x1b[2J"),
    ("--dram 64m --lun /dev/null", "--lun", "/dev/null", "neither"),
    ("--dram 64m --lun /proc", "--lun", "/proc"), ("--dram 64m --lun ''", "--lun", "empty"),
    ("--dram 64m --lun tape:x", "--lun", "'tape'", "sim:SIZE"),
    ("--dram 64m --lun sim:lots", "--lun", "'lots'"),
    ("--dram 64m --lun sim:32m", "--lun", "32 MiB", "64 MiB"),
    ("--dram 64m --lun sim:1g,foo=1", "--lun", "'foo=1'", "latency_us"),
    ("--dram 64m --lun /var/tmp --lun /no/such", "--lun", "/no/such"),
    ("--dram 64m --lun sim:1g --lun sim:16m", "--lun", "sim:1g sim:16m", "32 MiB", "64 MiB"),
    ("--dram 64m --lun /var/tmp --lun ''", "--lun", "empty"),
    ("--dram 64m --lun '/var/my tmp'", "--lun", "'/var/my tmp'", "blank", "ln -s"),
    ("--dram 64m --lun 'stripe:/var/tmp;/no/such'", "--lun", "/no/such"),
    ("--lun nvme:", "no device", "nvme:/dev/ngXnY"), ("--lun file:", "no path", "file:PATH"),
]


@pytest.mark.parametrize("flags, parts", [(flags, parts) for flags, *parts in REFUSED])
def test_refused(flags, parts):
    refused(run("run", *shlex.split(flags), "--", "/bin/echo", "started"), *parts)


def test_no_command():
    for words in (["run"], ["run", "--dram", "64m", "--"]):
        refused(run(*words), "no command")


def test_settings(directory):
    """The variable or file that a bad value came from is named."""
    config, small = os.path.join(directory, "lunar.conf"), os.path.join(directory, "small.conf")
    with open(config, "w", encoding="ascii") as file:
        file.write("\ndarm = 1g\n")
    with open(small, "w", encoding="ascii") as file:
        file.write("dram = 4m\n")
    for name, value, *parts in (
            ("DRAM", "x", "LUNAR_DRAM", "'x'"), ("DRAM", "4m", "LUNAR_DRAM", "4 MiB"),
            ("CONFIG", config, config + ":2", "'darm'", "did you mean 'dram'"),
            ("CONFIG", directory + "/none", directory + "/none"),
            ("CONFIG", small, "config file, dram", "4 MiB")):
        refused(run("run", "--", "/bin/echo", "started", **{"LUNAR_" + name: value}), *parts)
    ended = run64("/bin/sh", "-c", "/bin/true; echo ran", LUNAR_DRMA="1g")
    if ended.returncode == 0:
        assert ended.stdout == "ran\n" and ended.stderr.count("\n") == 1
    assert "LUNAR_DRMA" in ended.stderr and "did you mean LUNAR_DRAM?" in ended.stderr


def test_devices_that_are_not_there():
    """The line names no file that could be made."""
    for device in ("nvme:/dev/no-such", "/dev/no-such", "pmem:/no/such",
                   "stripe:/dev/no-such;/var/tmp"):
        ended = run64("--lun", device, "--", "true")
        refused(ended, "--lun", "no", "such does not exist", "lunar doctor")
        assert "fallocate" not in ended.stderr
    for letter in ("/etc/passwd", "file:/etc/passwd"):
        ended = run64("--lun", letter, "--", "true")
        refused(ended, "--lun")
        assert "truncate" not in ended.stderr


def test_places(directory):
    """Refused, and as they were."""
    precious, inner = os.path.join(directory, "lun"), os.path.join(directory, "in ner")
    with open(precious, "w", encoding="ascii") as file:
        file.write("precious")
    refused(run64("--size", "800t", "--lun", precious, "true"), "--size", precious)
    with open(precious, encoding="ascii") as file:
        assert file.read() == "precious"
    os.mkdir(inner)
    blank = os.path.join(inner, "a")
    open(blank, "wb").close()
    for words in (["--lun", "file:a"], ["--lun", "a", "--lun", directory]):
        refused(run64(*words, "true", cwd=inner), "--lun", "blank")
    refused(run64("--lun", blank, "--lun", directory, "true"), "--lun", blank, "blank")
    refused(run64("--size", "800t", "--lun", blank, "true"), "--size", blank)   # alone it may
    if os.path.exists("/dev/shm"):
        refused(run64("--lun", "/dev/shm", "true"), "--lun", "/dev/shm", "tmpfs", "memory")


def test_rights(directory, nobody):
    closed = os.path.join(directory, "lun")
    open(closed, "wb").close()
    os.chmod(closed, 0o600)
    refused(run64("--lun", directory, "true", rights=nobody), "--lun", directory, "not writable",
            "permission denied")
    refused(run64("--lun", closed, "true", rights=nobody), "--lun", closed, "permission denied")


def test_no_userfaultfd(nobody):
    """`run` and `doctor` name sysctl, device node and command."""
    with open("/proc/sys/vm/unprivileged_userfaultfd", encoding="ascii") as file:
        open_to_all = file.read() != "0\n"
    node = subprocess.run(["/usr/bin/test", "-r", "/dev/userfaultfd"], check=False, **nobody)
    if open_to_all or node.returncode == 0:
        pytest.skip("memory: every user has the right here")
    command = "sudo sysctl -w vm.unprivileged_userfaultfd=1"
    refused(run64("true", rights=nobody), "vm.unprivileged_userfaultfd is 0", "/dev/userfaultfd",
            command)
    doctor = run("doctor", rights=nobody)
    assert doctor.returncode == 1 and command in doctor.stdout
    assert '"can_run":false' in run("doctor", "--json", rights=nobody).stdout


def test_old_kernel(able):
    """Before 6.8 they name the version, and the command that brings a newer kernel."""
    parts = "Linux 6.8 or newer", "sudo apt install linux-image-6.12-amd64"
    refused(run64("true", LD_PRELOAD=OLD_KERNEL), *parts)
    doctor = run("doctor", LD_PRELOAD=OLD_KERNEL)
    assert doctor.returncode == 1 and all(part in doctor.stdout for part in parts)


# ---- programs ------------------------------------------------------------------------------------

def test_not_started(directory, able):
    """Not found is 127, not executable 126."""
    def written(name, content, mode=0o755):
        path = os.path.join(directory, name)
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, mode)
        return path
    for command, code, *parts in (
            ("no-such-command", 127, "no-such-command", "not found"),
            ("./no-such-command", 127, "no such file"), ("", 127, "empty"),
            (directory, 126, directory, "directory"),
            (written("plain", b"x", 0o644), 126, "plain", "chmod +x"),
            (written("data", b"\1\2\0\3"), 126, "data", "format"),
            (written("s1", b"#!/no/such/shell\n"), 127, "s1", "/no/such/shell"),
            (written("s2", b"#!/usr/bin/env no-such-tongue\n"), 127, "s2", "no-such-tongue"),
            (written("s3", b"#!\n"), 126, "s3", "#!"), (STATIC, 125, STATIC, "statically linked"),
            (written("s4", f"#!{STATIC}\n".encode()), 125, "s4", "statically linked")):
        refused(run64("--", command), *parts, code=code)
    options = written("s5", b"#!/usr/bin/env -S -u NAME -C / /bin/echo words\n")
    assert run64(options).stdout == f"words {options}\n"
    # A text without #! is a shell script, as it is to every shell.
    assert run64(written("text", b"echo $1\n"), "there").stdout == "there\n"


def test_setuid(directory, as_root, able):
    program = shutil.copy("/bin/true", os.path.join(directory, "suid"))
    os.chown(program, 65534, 65534)
    os.chmod(program, 0o4755)
    refused(run64("--", program), program, "setuid")


def test_kept(able):
    """Pid, arguments, exit code and signals."""
    ended = run64("--", "/bin/sh", "-c", 'echo $$ "$0" "$@"; exit 7', "a b", "--dram", "*")
    assert (ended.returncode, ended.stderr) == (7, "")
    assert ended.stdout == f"{ended.pid} a b --dram *\n"
    assert run64("/bin/sh", "-c", "kill -TERM $$").returncode == -15


def test_allocator_in_front(able):
    def ended(preload, program):
        return run64("--", "/bin/sh", "-c", f"LD_PRELOAD={preload} exec {program}")
    for program in ("/bin/true", MALLOC_POINTER):
        in_front = ended("libjemalloc.so.2:$LD_PRELOAD", program)
        assert in_front.returncode == 125 and "put Lunar's first" in in_front.stderr
        behind = ended("$LD_PRELOAD:libjemalloc.so.2", program)
        assert (behind.returncode, behind.stderr) == (0, "")


def test_environment(directory, able):
    """The command gets its options as variables, the library in front, and the account."""
    script = ("echo $LUNAR_DRAM $LUNAR_LUN $LUNAR_MMAP $LUNAR_STATS_FILE $LD_PRELOAD "
              "$LUNAR_ACCOUNT; stat -L -c %s /proc/self/fd/${LUNAR_ACCOUNT%%:*}")
    words = ["--lun", "file:lun", "--no-mmap", "--stats-file", "live", "--", "/bin/sh", "-c",
             script]
    assert run64(*words, cwd=directory).returncode == 125   # file:lun is not there
    for name in ("lun", "a", "b"):
        open(os.path.join(directory, name), "wb").close()
    ended = run64(*words, cwd=directory)
    assert ended.returncode == 0, ended
    dram, lun, maps, stats, preload, account, account_bytes = ended.stdout.split()
    assert (dram, lun, maps) == (str(64 << 20), f"file:{directory}/lun", "no")
    assert stats == directory + "/live" and "/liblunar-preload.so" in preload
    descriptor, _, _ = account.split(":")   # and device, inode
    assert int(descriptor) >= 700 and int(account_bytes) == 4 << 20
    with open(stats, "rb") as file:   # of live counters, as lunar.h has it
        live = file.read()
    magic, stats_bytes, pid, sequence = struct.unpack_from("<8sIIQ", live)
    assert magic == b"LUNARST1" and pid > 0 and sequence % 2 == 0
    assert len(live) == 64 + stats_bytes and stats_bytes > 0
    several = run64("--lun", "a", "--lun=file:b", "--", "/bin/sh", "-c", 'echo "$LUNAR_LUN"',
                    cwd=directory)
    assert several.stdout == f"{directory}/a file:{directory}/b\n"


def test_account_of_another_build(able):
    """The first byte of its magic number differs."""
    ended = run64("--", "/bin/sh", "-c",
                  "printf X | dd of=/proc/self/fd/${LUNAR_ACCOUNT%%:*} bs=1 conv=notrunc "
                  "status=none; exec dd if=/dev/zero of=/dev/null bs=80M count=1 status=none")
    assert ended.returncode != 0
    assert ("another build of Lunar made this tree's DRAM account; start the whole tree again"
            in ended.stderr)


def test_table(able):
    """Only the command's own process prints the table, not its small children."""
    ended = run64("--stats", "/bin/sh", "-c", "ls / >/dev/null; echo $LUNAR_ROOT $$; exit 0")
    assert ended.stdout == f"{ended.pid} {ended.pid}\n"
    assert f"lunar: stats: pid {ended.pid}\n" in ended.stderr
    assert ended.stderr.count("stats: program") == 1


# ---- the rest of the command ---------------------------------------------------------------------

@pytest.mark.parametrize("words", ["--help", "-h", "--version", "help", "help run", "run --help",
                                   "doctor --help", "help options"])
def test_help(words):
    ended = run(*words.split())
    assert (ended.returncode, ended.stderr) == (0, "") and ended.stdout


def test_help_says():
    text = run("run", "--help").stdout
    for part in ("--dram SIZE", "--lun PATH|DIR|URI", "--no-mmap", "125", "126", "127"):
        assert part in text
    assert "test" not in text   # switches for tests are not shown
    options = " ".join(run("help", "options").stdout.split())
    for part in ("key stats_file, flag --stats-file", "LUNAR_KV_DRAM", "LUNAR_RAID0_DEVICES",
                 "man 3 ark_create"):
        assert part in options
    assert "LUNAR_SEED" not in options   # nor are the tests' own
    page = run("help", "options", "--markdown").stdout
    assert "| `--stats-file` | `LUNAR_STATS_FILE` |" in page and "LUNAR_SPIN" in page
    assert "ACCOUNT" not in page


@pytest.mark.parametrize("words, parts", [
    ("rnu", "did you mean run?"), ("docter", "did you mean doctor?"),
    ("--versoin", "did you mean --version?"), ("doctor --jsno", "did you mean --json?"),
    ("help optoins", "did you mean options?"), ("help nosuch", "lunar --help"),
    ("bench falt", "did you mean fault?"), ("bench nosuch", "lunar bench --help"),
    ("frobnicate", "lunar --help"),
    ("bench fault --dram 1", "lunar bench fault|at least 16m"),
    ("bench fault --threads 0", "lunar bench fault|--threads"),
    ("bench fits --programs none", "lunar bench fits|none"),
    ("bench fits --rounds", "lunar bench fits|--rounds"),
    ("bench redis --frobnicate", "lunar bench redis|--frobnicate"),
    ("bench superpipe word", "lunar bench superpipe|word"),
    ("bench kv --rounds x", "lunar bench kv|--rounds"),
    ("bench redis --workloads put", "put"), ("bench redis --dram 1m", "--dram"),
    ("bench redis --value-size 7", "--value-size"), ("bench redis --plot x", "--plot"),
    ("bench kv --experiments put", "put"), ("bench kv --dram 1m", "--dram"),
    ("bench kv --systems oracle", "oracle"), ("bench kv --library /nowhere.so", "/nowhere.so"),
    ("bench kv --htc on", "--htc"), ("bench kv --durability x", "x"),
    ("bench superpipe --workloads put", "put"), ("bench superpipe --size 1m", "--size"),
    ("bench superpipe --depths 0", "--depths")])
def test_wrong_words(words, parts):
    one_line(run(*words.split()), 2, *parts.split("|"))


def test_no_words():
    assert run().returncode == 2


def test_control_characters():
    """Control characters of a wrong word do not reach the terminal."""
    word = "x\033[31m\a"
    for words in ([word], ["-" + word], ["help", word], ["help", "options", word], ["lun", word],
                  ["bench", word], ["doctor", word], ["run", "--" + word, "--", "true"]):
        ended = run(*words)
        assert ended.returncode != 0 and ended.stderr.count("\n") == 1
        assert "x\\x1b[31m\\x07" in ended.stderr and "\033" not in ended.stderr


def test_doctor():
    """Every subject is named, and the exit code is as the host deserves."""
    table, as_json = run("doctor"), run("doctor", "--json")
    assert table.stderr == "" and table.returncode == as_json.returncode
    assert (table.returncode == 0) == ('"can_run":true' in as_json.stdout)
    for subject in ("kernel", "userfaultfd", "io_uring", "process_madvise", "privileges",
                    "memlock limit", "pipe pages", "open files", "memory limits", "memory cgroup",
                    "overcommit", "huge pages", "swap", "NUMA", "LUN", "free block devices",
                    "registered window", "NVMe passthrough", "persistent memory",
                    "CAPI library", "preload library"):
        assert subject in table.stdout and f'"name":"{subject}"' in as_json.stdout
    # A LUN that cannot serve is a reason not to run, with a command that helps.
    bad = run("doctor", LUNAR_LUN="/dev/shm")
    assert bad.returncode == 1 and "export LUNAR_LUN=" in bad.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86_64: the numbers of the calls")
def test_doctor_of_refused_calls():
    """doctor names all refused calls, not only the first."""
    numbers = 278, 319, 290   # of vmsplice, memfd_create, eventfd2
    doctor = run("doctor", "--json",
                 before=lambda: seccomp.install(*map(seccomp.refused, numbers)))
    assert doctor.returncode == 1 and "vmsplice, memfd_create, eventfd2 (" in doctor.stdout


# ---- limits --------------------------------------------------------------------------------------

GROWS = "--", "/usr/bin/python3", "-c", "x = bytearray({} << 20)"


def growing(mib):
    return [word.format(mib) for word in GROWS]


def below(limit, *words):
    """Below a limit that the shell sets."""
    line = ["/bin/sh", "-c", f'ulimit -c 0; ulimit {limit}; exec "$@"', "sh", LUNAR, *words]
    return subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env={"PATH": PATH, "HOME": "/nowhere"})


def test_limits(able):
    """A limit on memory or descriptors is named, and nothing crashes."""
    for data in (4000, 8000, 10000, 11000, 25000, 33000):
        ended = below(f"-d {data}", "run", "--dram", "32m", "--", "/bin/echo", "started")
        assert (ended.returncode, ended.stdout) == (125, ""), data
        assert "ulimit -d" in ended.stderr and "ulimit -v" not in ended.stderr
    ended = below("-d 140000", "run", "--dram", "32m", *growing(100))
    assert ended.returncode > 0 and "ulimit -d" in ended.stderr
    ended = below("-n 11", "run", "--dram", "32m", *growing(100))
    # that of the program, where it begins with more
    assert "ulimit -n" in ended.stderr or "Too many open files" in ended.stderr
    assert "docker" not in ended.stderr
    doctor = below("-n 11", "doctor")
    assert doctor.returncode == 1 and "needed: open files" in doctor.stdout
    assert "ulimit -d unlimited" in below("-d 500000", "doctor").stdout


def test_full_lun(directory, able):
    """One line names --size, or the space that the LUN has for this process where --size is not the
    limit."""
    ended = run("run", "--dram", "32m", "--size", "64m", *growing(100))
    assert ended.returncode > 0 and "allocation refused" in ended.stderr
    assert ended.stderr.count("--size") == 1
    device = os.path.join(directory, "l.img")
    with open(device, "wb") as file:
        file.truncate(100 << 20)
    assert run("lun", "create", device + "#cold", "--size", "90m", "--format").returncode == 0
    for lun, mib, *parts in (
            (device + "#cold", 40, "this process may use",
             "the first one half, each child an eighth", "lunar lun resize"),
            # the LUN itself gives less than 8 times the budget
            ("sim:64m", 200, "free space there, or give another --lun")):
        ended = run("run", "--dram", "16m", "--lun", lun, *growing(mib))
        assert ended.returncode > 0 and ended.stderr.count("allocation refused") == 1
        assert all(part in ended.stderr for part in parts) and "--size" not in ended.stderr
