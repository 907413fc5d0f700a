# SPDX-License-Identifier: Apache-2.0
"""Places of stores that several processes want at the same time, or that the user may not use: each
process either does what it is told or says why not, in one line, and nothing is lost."""
import contextlib
import errno
import fcntl
import os
import resource
import struct
import subprocess
import time

import seccomp
from build_tree import LUNAR
from kv_command import (MIB, as_json, done, loading_into, logged_store, make, pairs_of,
                        refused, run, stream_of)
from subcommand import digest

PAIRS = {b"a": b"1", b"b": b"2"}


def started(*words, given=b""):
    child = subprocess.Popen([LUNAR, "kv", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    with contextlib.suppress(BrokenPipeError):   # it is refused before it reads
        child.stdin.write(given)
        child.stdin.close()
    return child


def ends(children):
    """(exit code, standard error) of each."""
    found = []
    for child in children:
        child.stdin = None
        _, err = child.communicate()
        found.append((child.returncode, err))
    return found


def one_line(code, err, parts, what):
    assert code == 2 and err.count(b"\n") == 1 and any(part in err for part in parts), (
        f"{what}: exit {code}: {err!r}")


def test_creators_at_one_time(directory):
    """One process makes the store, and no other takes the file away."""
    for number in range(8):
        place = os.path.join(directory, f"new{number}")
        found = ends([started("create", place, "--size", "8m", "--segment", "64k")
                      for _ in range(4)])
        assert [code for code, _ in found].count(0) == 1
        for code, err in found:
            if code != 0:
                one_line(code, err, [b"in use", b"holds a key/value store"], "four creators")
        assert as_json("check", place)["verdict"] == "clean", "what they made"
        assert os.stat(place).st_size == 8 * MIB, "what they made"


def test_loads_at_one_time(directory):
    """An empty file becomes one store, with the pairs of each load that was done."""
    for number in range(8):
        place = os.path.join(directory, f"empty{number}")
        open(place, "wb").close()
        os.environ["LUNAR_KV_SIZE"] = "8m"
        found = ends([started("load", place, given=stream_of({b"load %d" % i: b"x" * 1000}))
                      for i in range(4)])
        del os.environ["LUNAR_KV_SIZE"]
        wanted = {b"load %d" % i for i, (code, _) in enumerate(found) if code == 0}
        for code, err in found:
            if code != 0:
                one_line(code, err, [b"in use"], "four loads")
        assert wanted and set(pairs_of(place)) == wanted, (
            f"four loads: {found}: {sorted(pairs_of(place))}")


def test_a_refused_creator_next_to_another(directory):
    """The file that the refused one made, and takes away, is not the one in which the other's store
    lies."""
    place = os.path.join(directory, "refused")
    for _ in range(12):
        refused_one = started("create", place, "--size", "500g", "--dram", "2m")
        other = started("create", place, "--size", "8m", "--segment", "64k")
        (first_code, _), (code, err) = ends([refused_one, other])
        if first_code == 0:   # it came upon the other's file of 8 MiB, for which its DRAM is enough
            one_line(code, err, [b"holds a key/value store", b"in use"], "next to a creator")
        elif code != 0:
            one_line(code, err, [b"in use", b"was removed", b"too small"],
                     "next to a refused creator")
            continue
        assert as_json("check", place)["verdict"] == "clean", "the store next to a refused creator"
        os.unlink(place)


def lock_alone(file):
    """Locks the file as an open store does (superpipe/ownership.h): by the description, shared,
    as a whole."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK,
                struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))


def test_an_empty_file_in_use(directory):
    """A file that another process fills at this moment is not cut off."""
    for verb, given in (("create", b""), ("load", stream_of(PAIRS))):
        place = os.path.join(directory, f"filling-{verb}")
        with open(place, "w+b") as file:
            lock_alone(file)
            child = started(verb, place, given=given)
            time.sleep(0.3)
            file.write(b"mine" * (MIB // 4))
            file.flush()
            (code, err), = ends([child])
            one_line(code, err, [b"in use"], verb)
        with open(place, "rb") as file:
            assert file.read() == b"mine" * (MIB // 4)


def test_a_refused_creator_of_an_empty_file(directory):
    """The file is as empty as it was, whatever its file system counts as its blocks."""
    place = os.path.join(directory, "attributed")
    open(place, "wb").close()
    try:
        os.setxattr(place, "user.lunar-test", b"x" * 2000)   # in a block of its own
    except OSError as error:
        print(f"\nskip: attributes: {error}")
    refused(["create", place, "--size", "8m", "--dram", "1m"], ["is too little"], place)
    assert os.stat(place).st_size == 0, (
        "a refused creator left the size that it had given to the file")


def without_locks():
    """Refuses F_OFD_SETLK and F_OFD_GETLK, as a file system without locks does."""
    fcntl_number = 72
    seccomp.install([(seccomp.EQUAL, 0, 4, fcntl_number),
                     (seccomp.LOAD, 0, 0, seccomp.ARGUMENT[1]),
                     (seccomp.EQUAL, 1, 0, fcntl.F_OFD_SETLK),
                     (seccomp.EQUAL, 0, 1, fcntl.F_OFD_GETLK), seccomp.answer(errno.ENOLCK)])


def test_creators_where_nothing_can_be_locked(directory):
    """Refused, and as if nothing had been tried."""
    new, empty = os.path.join(directory, "unlocked"), os.path.join(directory, "unlocked-empty")
    open(empty, "wb").close()
    for place in (new, empty):
        result = subprocess.run([LUNAR, "kv", "create", place, "--size", "8m"], capture_output=True,
                                check=False, preexec_fn=without_locks)
        one_line(result.returncode, result.stderr, [b"lock"], "without locks")
    assert not os.path.exists(new), "a refused creator left an empty file"
    assert os.stat(empty).st_size == 0, "a refused creator changed an empty file"


def test_readers_of_a_damaged_store(directory):
    """Two salvages at the same time give the same; a writer is refused meanwhile, and a salvage
    while there is one."""
    pairs = {b"key %d" % number: os.urandom(30_000) for number in range(60)}
    place = logged_store(directory, "logged", pairs)
    with open(place, "r+b") as file:
        file.seek(file.read().index(pairs[b"key 50"][:500]) + 100)
        file.write(b"damaged!")
    before = digest(place)
    with subprocess.Popen([LUNAR, "kv", "dump", "--salvage", place], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, pipesize=4096, bufsize=0) as first:
        # more than its buffers take: it has the store open until this is read
        head = first.stdout.read(1)
        second = run("dump", "--salvage", place)
        refused(["set", place, "a", "b"], ["in use"], place)
        refused(["create", place, "--force"], ["in use"], place)
        out, err = first.communicate()
    assert (first.returncode, head + out, err) == (second.returncode, second.stdout,
                                                   second.stderr) and len(out) > MIB
    assert second.returncode == 3 and second.stderr.count(b"\n") == 1
    assert digest(place) == before, "salvage writes"
    place = make(directory, "sound", pairs=PAIRS)
    with loading_into(place) as loading:
        loading.stdin.write(stream_of({b"%d" % number: b"x" * 200
                                       for number in range(20_000)})[: 2 * MIB])
        loading.stdin.flush()   # more than pipe and buffers take: it is open by now
        refused(["dump", "--salvage", place], ["in use"])
        loading.kill()
        loading.communicate()
    assert pairs_of(place).items() >= PAIRS.items(), "what was there before a load that was killed"


def test_rights_of_users(directory, nobody):
    """A user without the right to read, to write, or to make a file."""
    stream = os.path.join(directory, "stream")
    with open(stream, "wb") as file:
        file.write(stream_of(PAIRS))
    os.chmod(stream, 0o600)
    place = make(directory, "rights", pairs=PAIRS)
    readers = (["info"], ["check"], ["scan"], ["dump"], ["dump", "--salvage"], ["get", "a"])
    writers = (["set", "a", "3"], ["del", "a"], ["load"], ["compact"], ["create", "--force"])
    for mode, verbs in ((0o600, readers + writers), (0o644, writers)):
        os.chmod(place, mode)
        for verb, *words in verbs:
            refused([verb, place, *words], [place, "permission"], place, given=stream_of(PAIRS),
                    as_nobody=True)
    for verb, *words in readers:
        result = run(verb, place, *words, as_nobody=True)
        assert result.returncode == 0 and result.stderr == b""
    os.chmod(place, 0o666)
    refused(["load", place, stream], [stream, "Permission denied"], place, as_nobody=True)
    refused(["set", place, "a", "--file", stream], [stream, "Permission denied"], place,
            as_nobody=True)
    empty = os.path.join(directory, "empty")
    open(empty, "wb").close()
    for mode in (0o600, 0o644):
        os.chmod(empty, mode)
        refused(["load", empty], [empty, "permission"], empty, given=stream_of(PAIRS),
                as_nobody=True)
    new = os.path.join(directory, "new")
    refused(["create", new, "--size", "8m"], [new, "ermission denied"], as_nobody=True)
    assert not os.path.exists(new), "a file in a directory that may not be written"
    os.chmod(directory, 0o700)
    refused(["create", new, "--size", "8m"], [new, "ermission"], as_nobody=True)
    refused(["info", place], [place, "permission"], place, as_nobody=True)
    assert pairs_of(place) == PAIRS, "the pairs after all that was refused"


def test_what_does_not_fit_into_memory(directory):
    """A value or a line that is larger than the memory there is: refused, and no stream seems to
    end before it."""
    place = make(directory, "limited", pairs=PAIRS)
    long = os.path.join(directory, "long")
    with open(long, "wb") as file:
        file.truncate(400 * MIB)
    behind = os.path.join(directory, "behind")
    with open(behind, "wb") as file:
        file.write(stream_of({b"c": b"3"}))
        file.truncate(400 * MIB)
    limits = (300 * MIB, 300 * MIB)
    for words, code in ((["set", place, "a", "--file", long], 4), (["load", place, long], 2),
                        (["load", place, behind], 4)):
        result = subprocess.run([LUNAR, "kv", *words, "--dram", "16m"], capture_output=True,
                                check=False,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limits))
        assert (result.returncode == code and result.stderr.count(b"\n") == 1
                and b"memory" in result.stderr)
    refused(["set", place, "a", "--file", directory], [directory, "directory"], place)
    assert pairs_of(place) == PAIRS, "the pairs after values that did not fit"


def test_a_device_that_cannot_be_written(directory, attach):
    place = make(directory, "read-only", pairs=PAIRS)
    device = attach(place, "-r")
    for verb, *words in (["info"], ["check"], ["scan"], ["dump"], ["dump", "--salvage"],
                         ["get", "a"]):
        done(verb, device, *words)
    for verb, *words in (["set", "a", "3"], ["del", "a"], ["load"], ["compact"],
                         ["create", "--force"]):
        refused([verb, device, *words], [device, "read-only"], place, given=stream_of(PAIRS))
    blank = os.path.join(directory, "blank")
    with open(blank, "wb") as file:
        file.truncate(8 * MIB)
    device = attach(blank, "-r")
    refused(["create", device], [device, "read-only"], blank)
    refused(["load", device], [device, "read-only"], blank, given=stream_of(PAIRS))
