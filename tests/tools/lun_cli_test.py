# SPDX-License-Identifier: Apache-2.0
"""`lunar lun` from outside, on files and a loop device. Every refusal is one line, exits as
documented and leaves the device byte by byte as it was; what is done shows in `list`, `info` and
`check`, and every --json is JSON. HOLDER (lun_holder.cpp) has a LUN open."""
import json
import os
import pty
import select
import shutil
import stat
import struct
import subprocess
import sys
import time

import pytest

from build_tree import BUILD, LUNAR
from subcommand import Subcommand, digest
from waiting import PATIENCE_S, wait_until

HOLDER = os.path.join(BUILD, "tests/tools/lun_holder")
MIB = 1 << 20


LUN = Subcommand("lun", text=True)
run, done, as_json = LUN.run, LUN.done, LUN.as_json


def refused(words, parts, devices=(), **options):
    LUN.refused(words, parts, *devices, **options)


def holder_of(path, name):
    """A process that has the LUN open; without a name, a scratch LUN of its own."""
    return subprocess.Popen([HOLDER, path, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)


def untouched(device, *words, code=0):
    """The output of the verb's --json; the verb must not change the device."""
    before = digest(device)
    out = done(*words, code=code)
    assert digest(device) == before
    return json.loads(out) if "--json" in words and out else {}


def at_terminal(answer, *words):
    """The exit code and the output of `lunar lun` on a terminal that answers the first
    question."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(LUNAR, [LUNAR, "lun", *words])
    shown, answered, end = b"", False, time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            got = os.read(terminal, 4096)
        except OSError:
            break
        if not got:
            break
        shown += got
        if not answered and b"[y/N]" in shown:
            os.write(terminal, answer.encode() + b"\n")
            answered = True
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return code, shown.decode(), answered


def blank(directory, name, mib):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, int(mib * MIB))
    return path


def formatted(directory, name, mib=16):
    path = blank(directory, name, mib)
    done("create", f"{path}#first", "--size", "4m", "--format")
    return path


def made_by(*command):
    """Runs mkfs and its like; False where there is none."""
    tool = shutil.which(command[0], path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if tool is None:
        return False
    subprocess.run([tool, *command[1:]], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return True


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def superblock(path):
    """The few fields of the format that are needed here (physical_format.h)."""
    with open(path, "rb") as file:
        head = file.read(4096)
    names = ["device_bytes", "extent_bytes", "extent_count", "image_bytes", "front_offset",
             "data_offset", "back_offset"]
    return dict(zip(names, struct.unpack_from("<7Q", head, 40)))


def images(path):
    """Offsets of the four copies of the metadata."""
    block = superblock(path)
    front, back, size = block["front_offset"], block["back_offset"], block["image_bytes"]
    return [front, front + size, back, back + size]


# ---- wrong use -----------------------------------------------------------------------------------

def test_too_little_space_is_a_refusal(directory):
    """Each verb exits with 2, because nothing was changed."""
    path = formatted(directory, "smaller.img")
    os.truncate(path, 8 * MIB)
    for verb, *words in (["list", path], ["info", path], ["check", path],
                         ["resize", f"{path}#first", "1m", "--yes"],
                         ["remove", f"{path}#first", "--yes"],
                         ["create", f"{path}#second", "--size", "1m"]):
        refused([verb, *words], [path, "give the device its size back"], [path])


def test_wrong_words(directory):
    path = formatted(directory, "words.img")
    refused(["crate"], ["crate", "did you mean create?"])
    refused(["--jsno"], ["--jsno"])
    refused(["lst", path], ["did you mean list?"], [path])
    refused(["list", path, "--jsom"], ["--jsom", "did you mean --json?"], [path])
    refused(["create", f"{path}#x", "--sze", "1m"], ["--sze", "did you mean --size?"], [path])
    refused(["create", f"{path}#x", "--size"], ["--size needs a value"], [path])
    refused(["create", f"{path}#x"], ["no size", "--size"], [path])
    refused(["create", path, "--size", "1m"], [path, "#NAME"], [path])
    refused(["create"], ["URI#NAME is required"])
    refused(["list", path, "--yes"], ["--yes"], [path])
    refused(["info", path, path], ["one word too many"], [path])
    refused(["info", "--", path, "-5g"], ["'-5g' is one word too many"], [path])
    refused(["check", f"{path}#first"], ["#first", "the device alone"], [path])
    for value in ("yes", "false", "0"):
        refused(["check", path, f"--repair={value}"], ["--repair takes no value"], [path])
    for name in (".hidden", "-dash", "a b", "x" * 32, "ä", ""):
        refused(["create", f"{path}#{name}", "--size", "1m"], ["not a name for a LUN"] if name
                else [], [path])
    for size in ("lots", "-5m", "0", "5q", "99999999999999t"):
        refused(["create", f"{path}#x", f"--size={size}"], ["--size"], [path])
        if size not in ("-5m",):
            refused(["resize", f"{path}#first", size], [], [path])
    # more than any LUN has: the line names what this one has
    refused(["resize", f"{path}#first", "-3145728t"], ["it has 4 MiB, so"], [path])
    refused(["remove", f"{path}#frist", "--yes"], ["'frist'", "did you mean 'first'?"], [path])
    refused(["resize", f"{path}#zzzzzzzz", "5m"], ["'zzzzzzzz'", "lunar lun list"], [path])
    refused(["create", f"{path}#first", "--size", "1m"], ["first"], [path])   # it is there already
    for verb in ("create", "list", "info", "resize", "remove", "check", "paths"):
        out = done(verb, "--help")
        assert "Usage: lunar lun " + verb in out and "--json" in out
    assert "Exit code" in done("--help"), "lunar lun --help: no exit codes"


def test_no_such_device(directory):
    refused(["list", directory + "/none"], [directory + "/none"])
    refused(["create", directory + "/none#x", "--size", "1m", "--format"], [directory + "/none"])
    assert not os.path.exists(directory + "/none"), "create made a file"
    refused(["create", "tape:/dev/st0#x", "--size", "1m", "--format"],
            ["tape", "file", "nvme", "pmem", "capi", "sim"])
    refused(["list", "tape:/dev/st0"], ["tape", "nvme"])
    refused(["info", "/dev/null"], ["/dev/null"])
    refused(["check", directory], [directory])


# ---- what must not be touched --------------------------------------------------------------------

def test_foreign(directory):
    """Each kind of thing that a device can hold is named, kept, and erased only under its own
    name."""
    kinds = []
    path = blank(directory, "ext4.img", 16)
    if made_by("mkfs.ext4", "-q", "-F", path):
        kinds.append((path, "ext4"))
    path = blank(directory, "swap.img", 16)
    if made_by("mkswap", path):
        kinds.append((path, "swap"))
    path = blank(directory, "dos.img", 16)
    # one partition
    patch(path, 446, struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\0\2\0", 2048, 16384))
    patch(path, 510, b"\x55\xaa")
    kinds.append((path, "dos"))
    path = blank(directory, "data.img", 16)
    patch(path, 0, b"dear diary\n" * 100)
    kinds.append((path, None))
    path = blank(directory, "late.img", 16)
    patch(path, 40000, b"foreign")
    kinds.append((path, None))
    path = blank(directory, "scratch.img", 16)
    patch(path, 0, b"LunarScratchLUN\0")
    kinds.append((path, "lunar-scratch"))
    for path, word in kinds:
        base = ["create", f"{path}#x", "--size", "1m"]
        refused(base, ["--erase="] + ([word] if word else []), [path])
        refused([*base, "--format"], ["--erase="], [path])
        refused([*base, "--format", "--yes"], ["--erase="], [path])
        refused([*base, "--erase=ntfs", "--yes"], ["ntfs", "--erase="], [path])
        named = run(*base).stderr.split("--erase=")[1].split()[0]
        assert word is None or named == word
        refused([*base, f"--erase={named}"], ["--yes"], [path])   # no terminal to ask at
        refused(["list", path], [], [path])
        refused(["check", path], [], [path])
        refused(["remove", f"{path}#x", "--yes"], [], [path])
        assert as_json("info", path).get("formatted") is False
    for path, word in kinds:
        named = run("create", f"{path}#x", "--size", "1m").stderr.split("--erase=")[1].split()[0]
        code, shown, answered = at_terminal("n", "create", f"{path}#x", "--size", "1m",
                                            f"--erase={named}")
        assert code == 2 and answered, f"{path}: a no at the terminal: {code} {shown}"
        out = as_json("create", f"{path}#x", "--size", "1m", f"--erase={named}", "--yes")
        assert out.get("formatted") is True and out["created"]["name"] == "x"
        done("check", path)


def test_unsuitable(directory):
    small = blank(directory, "small.img", 1)
    refused(["create", f"{small}#x", "--size", "64k", "--format"], [small], [small])
    empty = blank(directory, "blank.img", 64)
    refused(["create", f"{empty}#x", "--size", "1m"], ["blank", "--format"], [empty])
    refused(["create", f"{empty}#x", "--size", "1m", "--yes"], ["--format"], [empty])
    refused(["create", f"{empty}#x", "--size", "1m", "--erase=ext4", "--yes"],
            ["blank", "--format"], [empty])
    refused(["create", f"{empty}#x", "--size", "65m", "--format"], ["--size"], [empty])
    refused(["create", f"{empty}#x", "--size", "64m", "--format"], ["--size"], [empty])
    refused(["list", empty], [empty], [empty])
    refused(["check", empty, "--repair", "--yes"], [empty], [empty])
    # Another version of the format: both superblocks say so.
    path = formatted(directory, "version.img")
    end = os.path.getsize(path) - 4096
    for offset in (16, end + 16):
        patch(path, offset, struct.pack("<I", 99))
    refused(["list", path], [path, "version"], [path])
    refused(["create", f"{path}#x", "--size", "1m", "--format"], [path, "version"], [path])
    refused(["check", path, "--repair", "--yes"], [path, "version"], [path])


def test_no_rights(directory, nobody):
    path = formatted(directory, "rights.img")
    os.chmod(path, 0o600)
    for words in (["list", path], ["create", f"{path}#x", "--size", "1m"], ["check", path]):
        refused(words, [path, "permission"], [path], as_nobody=True)
    os.chmod(path, 0o644)   # may be read, not written
    refused(["create", f"{path}#x", "--size", "1m"], [path], [path], as_nobody=True)
    refused(["remove", f"{path}#first", "--yes"], [path], [path], as_nobody=True)


def make_node(path, kind, number):
    try:
        os.mknod(path, 0o600 | kind, number)
    except PermissionError as error:
        pytest.skip(f"device-nodes: {error}")


def test_no_rights_to_nvme(directory, nobody):
    node = os.path.join(directory, "ng0n1")
    make_node(node, stat.S_IFCHR, os.makedev(241, 0))
    for words in (["list", f"nvme:{node}"],
                  ["create", f"nvme:{node}#x", "--size", "1m", "--format"]):
        refused(words, [node, "setfacl"], as_nobody=True)


def test_in_use(directory):
    path = formatted(directory, "used.img")
    with holder_of(path, "first") as holder:
        assert holder.stdout.readline() == "open\n", "the holder did not open the LUN"
        refused(["remove", f"{path}#first", "--yes"], ["in use"], [path])
        refused(["resize", f"{path}#first", "-1m", "--yes"], [], [path])
        refused(["create", f"{path}#x", "--size", "1m", "--erase=lunar", "--yes"], ["in use"],
                [path])
        first = as_json("list", path)["devices"][0]["virtual_luns"][0]
        assert first["in_use"] is True, "list: in_use"
        done("create", f"{path}#second", "--size", "1m")   # others may go on
        done("remove", f"{path}#second", "--yes")
        holder.stdin.close()
        holder.wait()
    settled([path], {"first": False}, "after their owner's end")
    done("remove", f"{path}#first", "--yes")


def test_scratch(directory):
    """A scratch LUN shows while its owner lives, and is gone after kill -9."""
    path = formatted(directory, "owner.img")
    with holder_of(path, "") as holder:
        assert holder.stdout.readline() == "open\n", "the holder did not make a LUN"
        luns = as_json("list", path)["devices"][0]["virtual_luns"]
        own = [lun for lun in luns if lun["scratch"]]
        assert len(luns) == 2 and len(own) == 1 and own[0]["in_use"] and own[0]["name"] == "", (
            f"list with a scratch LUN: {luns}")
        assert "(scratch)" in done("list", path), "list: (scratch)"
        assert as_json("check", path)["verdict"] == "clean", "check with a scratch LUN"
        refused(["create", f"{path}#x", "--size", "1m", "--erase=lunar", "--yes"], ["in use"],
                [path])
        holder.kill()
    settled([path], {"first": False}, "after kill -9")
    assert as_json("check", path)["verdict"] == "clean", "check after kill -9"


# ---- what is done --------------------------------------------------------------------------------

def test_life(directory):
    path = blank(directory, "life.img", 64)
    out = as_json("create", f"{path}#one", "--size", "5m", "--format")
    assert out["formatted"] is True and out["created"]["size_bytes"] == 5 * MIB and out["luns"] == 1
    out = as_json("create", f"{path}#two", "--size", "1.5m")
    assert (out["formatted"] is False and out["created"]["size_bytes"] == 3 * MIB // 2
            and out["luns"] == 2)
    for name, words in {"shrink": ["resize", f"{path}#one", "-1m"],
                        "remove": ["remove", f"{path}#one"],
                        "repair": ["check", path, "--repair"]}.items():
        refused(words, ["--yes"], [path])
        code, shown, answered = at_terminal("", *words)
        assert code == 2 and answered, f"{name}: Enter at the terminal: {code} {shown}"
    out = as_json("resize", f"{path}#one", "+3m")
    assert out["before_bytes"] == 5 * MIB and out["size_bytes"] == 8 * MIB
    assert as_json("resize", f"{path}#one", "-2m", "--yes")["size_bytes"] == 6 * MIB, "resize -2m"
    assert as_json("resize", f"{path}#one", "4m", "--yes")["size_bytes"] == 4 * MIB, "resize 4m"
    refused(["resize", f"{path}#one", "64m"], [], [path])
    refused(["resize", f"{path}#one", "-4m", "--yes"], ["remove"], [path])
    refused(["create", f"{path}#three", "--size", "63m"], ["63 MiB"], [path])
    grown = as_json("resize", f"{path}#one", "max")
    assert grown["remaining_bytes"] == 0 and grown["size_bytes"] > 32 * MIB
    refused(["create", f"{path}#three", "--size", "max"], [], [path])
    device = as_json("list", path)["devices"][0]
    names = {lun["name"] for lun in device["virtual_luns"]}
    assert names == {"one", "two"} and device["free_bytes"] == 0
    table = done("list", path)
    assert all(word in table for word in ("one", "two", "2 LUNs on 1 device", "created"))
    info = as_json("info", path)
    assert info["formatted"] and info["raw"]["kind"] == "file" and info["uuid"] == device["uuid"], (
        f"info: {info}")
    assert as_json("info", f"{path}#two")["lun"]["size_bytes"] == 3 * MIB // 2, "info #two"
    for word in (path, "extents", "uuid", "discard", "window", "polled"):
        assert word in done("info", path)
    code, shown, answered = at_terminal("y", "remove", f"{path}#one")
    assert code == 0 and answered, f"remove at the terminal: {code} {shown}"
    assert as_json("remove", f"{path}#two", "--yes")["removed"] == "two", "remove --json"
    assert as_json("list", path)["devices"][0]["virtual_luns"] == [], "list of none"
    verdict = as_json("check", path)
    assert verdict["verdict"] == "clean" and verdict["extents_used"] == 0
    code, shown, answered = at_terminal("y", "create", f"{blank(directory, 'asked.img', 16)}#x",
                                        "--size", "1m")
    assert code == 0 and answered, f"create on a blank device at the terminal: {code} {shown}"


def test_damage(directory):
    """One damaged copy is repaired, two are not used."""
    path = formatted(directory, "damage.img")
    done("create", f"{path}#second", "--size", "1m")
    patch(path, images(path)[1] + 200, b"\xff" * 16)
    verdict = as_json("check", path, code=1)
    assert verdict.get("verdict") == "needs repair" and verdict["problems"] == 1
    assert as_json("check", path, "--repair", "--yes",
                   code=1)["verdict"] == "repaired", "repair of one damaged copy"
    assert as_json("check", path)["verdict"] == "clean", "check after the repair"
    names = {lun["name"] for lun in as_json("list", path)["devices"][0]["virtual_luns"]}
    assert names == {"first", "second"}
    for offset in images(path):
        patch(path, offset + 200, b"\xff" * 16)
    for words in (["list", path], ["check", path, "--repair", "--yes"],
                  ["create", f"{path}#x", "--size", "1m"]):
        refused(words, [path], [path], code=3)
    assert untouched(path, "check", path, "--json",
                     code=3)["verdict"] == "damaged", "check of a damaged device"
    as_json("create", f"{path}#new", "--size", "1m", "--erase=lunar", "--yes")   # said by name
    done("check", path)


def test_looks(directory):
    """list, info and check write nothing: not where a copy is damaged, and not where a killed
    owner's scratch LUN is left."""
    def luns():
        return untouched(path, "list", path, "--json")["devices"][0]["virtual_luns"]

    path = formatted(directory, "looks.img", 32)
    verbs = (["list", path], ["list", path, "--json"], ["info", path], ["info", path, "--json"],
             ["info", f"{path}#first"])
    with holder_of(path, "") as holder:
        assert holder.stdout.readline() == "open\n", "the holder did not make a LUN"
        holder.kill()
    wait_until("its ring outlives it", lambda: not any(lun["in_use"] for lun in luns()))
    for words in verbs:
        untouched(path, *words)
    told = untouched(path, "list", path, "--json")["devices"][0]
    assert [lun["name"] for lun in told["virtual_luns"]] == ["first"]
    assert [lun.get("type") for lun in told["virtual_luns"]] == ["named"]
    told = untouched(path, "check", path, "--json")
    assert told["verdict"] == "clean" and any("owners are gone" in line
                                              for line in told["findings"]), (
        f"check with a dead scratch LUN: {told}")
    extents = told["extents_used"]
    info = untouched(path, "info", path, "--json")
    assert told["extents_free"] * info["extent_bytes"] == info["free_bytes"]
    patch(path, images(path)[2] + 200, b"\xff" * 16)
    for words in verbs:
        untouched(path, *words)
    assert "damaged copy" in done("info", path), "info of a damaged copy"
    told = untouched(path, "check", path, "--json", code=1)
    assert told["verdict"] == "needs repair" and told["extents_used"] == extents
    assert as_json("check", path, "--repair", "--yes",
                   code=1)["verdict"] == "repaired", "repair of a damaged copy"
    told = as_json("check", path)
    assert told["extents_used"] == extents and not told["findings"], (
        f"the dead LUN was not freed: {told}")
    os.chmod(path, 0o400)
    patch(path, 40, b"\x01")   # the superblock
    for words in verbs:
        untouched(path, *words)
    untouched(path, "check", path, code=1)


def test_erased_head(directory):
    """The head is gone, the copy at the end is not: nothing formats over it unasked, and a repair
    brings it back."""
    path = formatted(directory, "head.img")
    patch(path, 0, bytes(4096))   # what follows is there: not blank, but nothing anybody knows
    refused(["create", f"{path}#x", "--size", "1m", "--format"], ["unknown data"], [path])
    assert as_json("check", path, "--repair", "--yes",
                   code=1)["verdict"] == "repaired", "repair of an erased block"
    done("check", path)
    patch(path, 0, bytes(65536))
    refused(["list", path], ["lunar lun check"], [path], code=3)
    refused(["create", f"{path}#x", "--size", "1m"], ["--format"], [path])
    refused(["create", f"{path}#x", "--size", "1m", "--format"], ["--erase=lunar", "check"], [path])
    refused(["check", path], [path], [path], code=3)
    assert as_json("check", path, "--repair", "--yes",
                   code=1)["verdict"] == "repaired", "repair of an erased head"
    luns = as_json("list", path)["devices"][0]["virtual_luns"]
    assert [lun["name"] for lun in luns] == ["first"], "the LUN came back"
    done("check", path)
    patch(path, 0, bytes(65536))
    done("create", f"{path}#x", "--size", "1m", "--erase=lunar", "--yes")
    luns = as_json("list", path)["devices"][0]["virtual_luns"]
    assert [lun["name"] for lun in luns] == ["x"], "erased by name"


def test_other_contents(directory):
    """Foreign content is named, and no check proposes to erase it."""
    store = os.path.join(directory, "users.kv")
    subprocess.run([LUNAR, "kv", "create", store, "--size", "4m"], stdout=subprocess.DEVNULL,
                   check=True)
    named = ["holds a key/value store of Lunar (`lunar kv info", store]
    for words in (["check", store], ["list", store], ["create", f"{store}#x", "--size", "1m"],
                  ["create", f"{store}#x", "--size", "1m", "--format"]):
        refused(words, named, [store])
    for words in (["check", store], ["list", store]):
        err = run(*words).stderr
        assert "wipefs" not in err and "truncate" not in err and "erase" not in err
    assert "a key/value store of Lunar (`lunar kv info" in done("info", store)
    assert as_json("info", store)["holds"] == "a key/value store of Lunar"
    patch(store, 0, bytes(4096))   # its first superblock: the other one tells
    refused(["check", store], named, [store])
    ran = subprocess.run([LUNAR, "run", "--dram", "16m", "--lun", store, "--", "/bin/true"],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ran.returncode == 125 and named[0] in ran.stderr
    letter = os.path.join(directory, "letter")
    with open(letter, "wb") as file:
        file.write(b"a letter to keep" * 500_000)
    refused(["check", letter], ["unknown data", "is the name right?"], [letter])


def test_at_once(directory):
    """Eight of them, of whom the first formats."""
    path = blank(directory, "many.img", 64)
    many = [subprocess.Popen([LUNAR, "lun", "create", f"{path}#lun{i}", "--size", "1m", "--format"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
            for i in range(8)]
    for child in many:
        _, err = child.communicate()
        assert child.returncode == 0
    names = {lun["name"] for lun in as_json("list", path)["devices"][0]["virtual_luns"]}
    assert names == {f"lun{i}" for i in range(8)}
    assert as_json("check", path)["verdict"] == "clean", "check after eight at once"


def test_composite(directory):
    paths = [blank(directory, f"part{i}.img", 32) for i in range(2)]
    uri = "stripe:" + ";".join(paths)
    refused(["create", f"{uri}#x", "--size", "1m"], ["--format"], paths)
    out = as_json("create", f"{uri}#x", "--size", "40m", "--format")
    assert out["formatted"] is True
    members = as_json("info", uri)["raw"]["members"]
    assert len(members) == 2 and all(m["status"] == "Enabled"
                                     for m in members), f"members: {members}"
    rows = as_json("paths", uri)["paths"]
    assert [row["connection"] for row in rows] == paths
    assert "Enabled" in done("paths", uri) and "connection" in done("paths", uri), "paths: table"
    assert len(as_json("paths", paths[0])["paths"]) == 1, "paths of a plain file"
    done("check", uri)
    # a member alone
    refused(["create", f"{paths[0]}#y", "--size", "1m", "--format", "--yes"], ["--erase="], paths)
    refused(["list", "stripe:" + ";".join(reversed(paths))], [], paths)
    foreign_part = blank(directory, "part.ext4", 32)
    patch(foreign_part, 0, b"foreign")
    fresh = blank(directory, "part2.img", 16)
    stripe = f"stripe:{fresh};{foreign_part}"
    refused(["create", f"{stripe}#x", "--size", "1m", "--format", "--yes"],
            [foreign_part, "--erase="], [fresh, foreign_part])


def test_two_nodes_of_a_device(directory, attach):
    """They are one device."""
    device, second = attach(blank(directory, "nodes.img", 64)), os.path.join(directory, "second")
    make_node(second, stat.S_IFBLK, os.stat(device).st_rdev)
    done("create", f"{device}#held", "--size", "1m", "--format")
    with holder_of(device, "held") as holder:
        assert holder.stdout.readline() == "open\n", "the holder did not open the LUN"
        refused(["remove", f"{second}#held", "--yes"], ["in use"], [device])
        refused(["create", f"{second}#x", "--size", "1m", "--erase=lunar", "--yes"], ["in use"],
                [device])
        holder.stdin.close()
        holder.wait()
    settled([device], {"held": False}, "after their owner's end")
    done("remove", f"{second}#held", "--yes")


def test_mounted(directory, attach):
    device, place = attach(blank(directory, "mounted.img", 16)), os.path.join(directory, "mnt")
    if not made_by("mkfs.ext4", "-q", "-F", device):
        pytest.skip("mkfs: there is no mkfs.ext4")
    refused(["create", f"{device}#x", "--size", "1m", "--format", "--yes"], ["ext4"], [device])
    os.mkdir(place)
    mounting = subprocess.run(["mount", "-o", "ro", device, place], stderr=subprocess.PIPE,
                              text=True, check=False)
    if mounting.returncode != 0:
        pytest.skip(f"mount: {mounting.stderr.strip()}")
    try:
        refused(["create", f"{device}#x", "--size", "1m", "--erase=ext4", "--yes"],
                ["mounted on " + place], [device])
        assert as_json("info", device)["holds"] == "ext4", "info of a mounted device"
    finally:
        subprocess.run(["umount", place], check=False)


def settled(devices, expected, what):
    """The LUNs, and which are in use, once the kernel has torn down the resources of dead
    owners."""
    def shown():
        luns = [lun for device in as_json("list", *devices)["devices"]
                for lun in device["virtual_luns"]]
        return {lun["name"]: lun["in_use"] for lun in luns}
    wait_until(f"{what}: not {expected}", lambda: shown() == expected)


# Given LUNAR and the devices: looks at them from inside, as a program that Lunar does not run.
HEAP = """
import json, os, subprocess, sys
lunar, devices = sys.argv[1], sys.argv[2:]
pages = [os.urandom(64) * 64 for _ in range(6 * 1024)]
sums = [hash(page) for page in pages]
own = ("LUNAR_", "LD_PRELOAD")
plain = {name: value for name, value in os.environ.items() if not name.startswith(own)}
seen = subprocess.run([lunar, "lun", "list", *devices, "--json"], env=plain,
                      stdout=subprocess.PIPE, check=True)
heap = devices[0] + "#heap"
busy = subprocess.run([lunar, "run", "--dram", "16m", "--lun", heap, "true"], env=plain,
                      stderr=subprocess.PIPE)
print(json.dumps({"whole": sums == [hash(page) for page in pages], "seen": json.loads(seen.stdout),
                  "code": busy.returncode, "line": busy.stderr.decode()}))
"""


def test_heap(directory):
    """`lunar run` on a named LUN of one device and a scratch LUN of another: a stripe, with a heap
    larger than the DRAM."""
    devices = [formatted(directory, "heap0.img", 128), formatted(directory, "heap1.img", 128)]
    done("create", f"{devices[0]}#heap", "--size", "80m")
    flags = ["--dram", "16m", "--size", "128m", "--lun", f"{devices[0]}#heap", "--lun", devices[1]]
    program = [sys.executable, "-c", HEAP, LUNAR, *devices]
    result = subprocess.run([LUNAR, "run", *flags, "--", *program], stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, check=False)
    if "userfaultfd" in result.stderr:
        pytest.skip("userfaultfd: nothing can be started")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["whole"] is True, "the heap came back changed"
    shown = {lun["name"]: lun["in_use"] for device in told["seen"]["devices"]
             for lun in device["virtual_luns"]}
    assert shown == {"first": False, "heap": True, "": True}
    assert told["code"] == 125 and "in use" in told["line"]
    settled(devices, {"first": False, "heap": False}, "after the run")
    for device in devices:
        assert as_json("check", device)["verdict"] == "clean"


def test_loop_device(directory, attach):
    backing = blank(directory, "loop.img", 64)
    device = attach(backing)
    refused(["create", f"{backing}#x", "--size", "1m", "--format"], ["in use", device], [backing])
    assert as_json("create", f"{device}#x", "--size", "2m", "--format")["formatted"] is True
    assert device in [found["device"] for found in as_json("list")["devices"]]
    assert as_json("info", device)["raw"]["kind"] == "block"
    parent = as_json("paths", device)["paths"][0]["parent"]
    assert parent == backing, "a loop device hangs on its file"
    done("check", device)
    if made_by("mkfs.ext4", "-q", "-F", device):
        refused(["create", f"{device}#x", "--size", "1m", "--format", "--yes"], ["ext4"], [device])
        refused(["create", f"{backing}#x", "--size", "1m", "--erase=ext4", "--yes"],
                ["in use", device], [backing])


def test_list_of_members(directory, attach):
    """The command that lists a stripe is quoted, because the shell splits at ;."""
    devices = [attach(blank(directory, f"member{i}.img", 16)) for i in range(2)]
    done("create", f"stripe:{';'.join(devices)}#x", "--size", "1m", "--format")
    assert "lunar lun list 'stripe:URI;URI'" in done("list")


def test_read_only_device(directory, attach):
    device = attach(formatted(directory, "readonly.img"), "-r")
    refused(["create", f"{device}#x", "--size", "1m"], [device], [device])
    refused(["remove", f"{device}#first", "--yes"], [device], [device])
