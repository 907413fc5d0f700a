# SPDX-License-Identifier: Apache-2.0
"""Programs that the preload library cannot serve."""
import ctypes.util
import os
import shutil
import struct
import subprocess
import sys

import pytest

from build_tree import BUILD, LUNAR

OTHER_LIBC, STATIC, SANITIZED = (os.path.join(BUILD, "tests/tools", name)
                                 for name in ("other_libc", "static_program", "sanitized_program"))
LOADER = "/lib64/ld-linux-x86-64.so.2"
STARTS = {   # what a Python program does to become, or start, sys.argv[1]
    "execv": "os.execv(name, [name])",
    "execve": "os.execve(name, [name], os.environ)",
    "execvp": "os.environ['PATH'] = '/nowhere:' + os.path.dirname(name); "
              "os.execvp(os.path.basename(name), ['x'])",
    "fexecve": "os.execve(os.open(name, os.O_RDONLY), [name], os.environ)",
    "posix_spawn": "end(os.posix_spawn(name, [name], os.environ))",
    "posix_spawnp": "os.environ['PATH'] = os.path.dirname(name); "
                    "end(os.posix_spawnp(os.path.basename(name), ['x'], "
                    "os.environ))",
    "subprocess": "sys.exit(subprocess.call([name]))",
    "system": "sys.exit(os.waitstatus_to_exitcode(os.system(name)))",
    "syscall": "words = (ctypes.c_char_p * 2)(name.encode(), None)\n"
               "libc = ctypes.CDLL(None)\n"
               "libc.syscall(59, words[0], words, ctypes.c_void_p.in_dll(libc, 'environ'))",
}
BEGIN = ("import ctypes, os, subprocess, sys\nname = sys.argv[1]\n"
         "def end(pid): sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n")


def lunar(*command, flags=(), before=(), **variables):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("LUNAR_", "LD_"))}
    ended = subprocess.run([*before, LUNAR, "run", "--dram", "32m", *flags, "--", *command],
                           capture_output=True,
                           text=True, check=False, env={**environment, **variables})
    if "userfaultfd" in ended.stderr and os.geteuid() != 0:
        pytest.skip("userfaultfd: " + ended.stderr.splitlines()[0])
    return ended


def written(directory, name, content):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, 0o755)
    return path


def other_machine(directory):
    """A 32-bit program that ends by 9, without a libc."""
    code = b"\xb8\x01\x00\x00\x00\xbb\x09\x00\x00\x00\xcd\x80"
    base, head = 0x8048000, 52 + 32
    elf = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    elf += struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + head, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    part = struct.pack("<IIIIIIII", 1, 0, base, base, head + len(code), head + len(code), 5, 4096)
    return written(directory, "other_machine", elf + part + code)


def test_refused(directory):
    """`lunar run` refuses each of them in one line, also behind a #! line or glibc's loader."""
    script = written(directory, "script", f"#!{OTHER_LIBC}\n".encode())
    for words, says in (([OTHER_LIBC], "another C library"), ([script], "another C library"),
                        ([STATIC], "statically"), ([SANITIZED], "AddressSanitizer"),
                        ([other_machine(directory)], "another architecture"),
                        ([LOADER, OTHER_LIBC], "another C library"),
                        ([LOADER, "--argv0", "x", "--inhibit-cache", STATIC], "statically")):
        ended = lunar(*words)
        assert (ended.returncode, ended.stdout) == (125, "")
        assert says in ended.stderr and ended.stderr.count("\n") == 1


def test_library_with_sanitizer():
    """Only a library of the program has a sanitizer. The refusal names the program, also a
    child's."""
    user = os.path.join(BUILD, "tests/tools/library_user")
    for words in ([user], ["/bin/sh", "-c", f"{user}; exit $?"]):
        ended = lunar(*words)
        assert ended.returncode == 125 and ended.stdout == "", ended
        assert f"{user}, or a library of it, is built with AddressSanitizer" in ended.stderr
        assert ended.stderr.count("\n") == 1


def refused_under(before, says):
    ended = lunar("true", before=before)
    assert ended.returncode == 125 and says in ended.stderr and ended.stderr.count("\n") == 1, ended


def test_limit_on_data():
    refused_under(["prlimit", f"--data={1 << 34}"], "ulimit -d unlimited")


def test_counted_commits(directory, as_root):
    """With the setting covered for this process alone."""
    strict = written(directory, "strict", b"2\n")
    cover = (f"mount --make-rprivate / && mount --bind {strict} /proc/sys/vm/overcommit_memory && "
             'exec "$@"')
    refused_under(["unshare", "-m", "sh", "-c", cover, "sh"], "sysctl vm.overcommit_memory=0")


def child(how, name, says, keeps, code=9):
    """Started by a program that is served it runs without the library and without a word on
    standard error; with `--log info` one line says so. keeps: the library's name may stay in its
    environment."""
    ended = lunar(sys.executable, "-c", BEGIN + STARTS[how], name, flags=["--log", "info"])
    if name.endswith("other_machine") and (
            ended.returncode == 126 or "Exec format error" in ended.stderr):
        return   # this kernel does not run programs of another architecture
    lines = [line for line in ended.stderr.splitlines() if "runs without Lunar" in line]
    assert ended.returncode == code and len(lines) == 1 and says in lines[0], ended
    assert keeps or ended.stdout.strip() in ("LD_PRELOAD=", "")
    ended = lunar(sys.executable, "-c", BEGIN + STARTS[how], name)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.parametrize("how", STARTS)
def test_child_by(how):
    child(how, OTHER_LIBC, os.path.basename(OTHER_LIBC) + " uses another C library", False)


def test_children(directory):
    child("execve", SANITIZED, "sanitizer", False)
    child("execve", STATIC, "statically linked", True, 0)
    child("execve", other_machine(directory), "another architecture", False)
    child("subprocess", written(directory, "script", f"#! {OTHER_LIBC} -x\n".encode()),
          "another C library", False)
    other = ctypes.util.find_library("z") or "libc.so.6"   # other libraries stay
    assert lunar("/bin/sh", "-c", OTHER_LIBC, LD_PRELOAD=other).stdout == f"LD_PRELOAD={other}\n"


def test_setuid_child(directory, as_root):
    suid = shutil.copy(STATIC, os.path.join(directory, "suid"))
    os.chown(suid, 65534, 65534)
    os.chmod(suid, 0o4755)
    child("execve", suid, "gains rights", True, 0)


def test_loader():
    """`lunar run -- ld.so PROGRAM` serves the program."""
    program = ("import ctypes; print(ctypes.CDLL(None).lunar_is_tiered is not None, "
               "bytearray(50 << 20).count(0))")
    for words in ([LOADER], [LOADER, "--argv0", "python3"]):
        ended = lunar(*words, os.path.realpath(sys.executable), "-c", program, flags=["--stats"],
                      PYTHONMALLOC="malloc")
        assert (ended.returncode, ended.stdout) == (0, f"True {50 << 20}\n"), ended.stderr
        assert "stats: armed 1" in ended.stderr
    ended = lunar(LOADER, "--version")
    assert (ended.returncode, ended.stderr) == (0, "")
