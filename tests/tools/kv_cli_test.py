# SPDX-License-Identifier: Apache-2.0
"""`lunar kv` from outside, on files and a loop device. Every refusal is one line and exits as
documented; what reads leaves the place byte by byte as it was; streams bring any bytes back; every
damage that is made is named; a load that is killed loses nothing."""
import json
import os
import random
import signal
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from build_tree import LUNAR
from kv_command import (MIB, SEGMENT, as_json, done, loading_into, logged_store, make,
                        pairs_of, refused, run, some_pairs, stream_of, text_of)
from subcommand import digest

HEAD = 64 << 10


def test_create(directory):
    place = os.path.join(directory, "new.kv")
    made = as_json("create", place, "--size", "16m", "--segment", "64k", "--keys", "1000",
                   "--shards", "4")
    told = {"place": place, "place_bytes": 16 * MIB, "segment_bytes": SEGMENT, "segments": 254,
            "shards": 4}
    assert made == told
    assert os.stat(place).st_size == 16 * MIB and os.stat(place).st_mode & 0o077 == 0, (
        "the file that create makes")
    refused(["create", place], ["holds a key/value store", "--force"], place)
    done("set", place, "a", "1")
    done("create", place, "--force")
    assert as_json("info", place)["keys"] == 0, "--force left keys"
    foreign = os.path.join(directory, "foreign")
    with open(foreign, "wb") as file:
        file.write(b"a letter to keep" * 500_000)
    refused(["create", foreign], ["foreign", "--force"], foreign)
    done("create", foreign, "--force")
    assert as_json("check", foreign)["verdict"] == "clean", "a store over what was there"
    empty = os.path.join(directory, "empty")
    open(empty, "wb").close()
    done("create", empty, "--size", "8m")
    assert os.stat(empty).st_size == 8 * MIB, "an empty file gets its size"
    small = os.path.join(directory, "small")
    with open(small, "wb") as file:
        file.truncate(64 << 10)
    refused(["create", small], ["small"], small)
    refused(["create", small, "--force"], ["small"], small)
    for words, part in ((["--size", "1m"], "2m"), (["--size", "x"], "not a size"),
                        (["--segment", "3m"], "64k"), (["--shards", "0"], "--shards"),
                        (["--bogus"], "--bogus")):
        refused(["create", os.path.join(directory, "never"), *words], [part])
    never = os.path.join(directory, "never")
    little = ["--dram: 1 MiB", "too little for a store of", "; give "]
    refused(["create", never, "--size", "64m", "--dram", "1m"], little)
    least = run("create", never, "--size", "64m", "--dram",
                "1m").stderr.decode().split("; give ")[1].strip()
    told = run("create", never, "--size", "64m", environment={**os.environ, "LUNAR_KV_DRAM": "1m"})
    assert told.returncode == 2 and b"LUNAR_KV_DRAM: 1 MiB" in told.stderr
    enough = os.path.join(directory, "enough")
    done("create", enough, "--size", "64m", "--dram", least)
    done("set", enough, "a", "b", "--dram", least)
    refused(["get", enough, "a", "--dram", "1m"], little)
    assert not os.path.exists(os.path.join(directory, "never")), "a refused create leaves a file"
    hinted = os.path.join(directory, "hinted.kv")
    # A hint takes no more than there is.
    done("create", hinted, "--size", "64m", "--keys", "1000000000000", "--dram", "64m")
    done("set", hinted, "a", "b", "--dram", "64m")
    told = run("get", hinted, "a", "--dram",
               "9m").stderr.decode()   # the log would fit; its index began larger
    assert "--dram: 9 MiB of DRAM is too little" in told and "; give " in told, told
    done("get", hinted, "a", "--dram", told.split("; give ")[1].strip())
    refused(["create", never, "--size", "64m", "--keys", "-1"], ["--keys", "-1"])
    refused(["create", directory], ["is a directory"])
    link, target = os.path.join(directory, "link"), os.path.join(directory, "target")
    os.symlink(target, link)
    refused(["create", link], ["symbolic link that leads to nothing"])
    refused(["create", link, "--force"], ["symbolic link that leads to nothing"])
    told = run("info", link).stderr
    assert b"symbolic link to " in told and b"lunar kv create" not in told
    assert not os.path.exists(target) and os.path.islink(link), "a refused create changes nothing"
    done("create", target, "--size", "8m")
    done("set", link, "a", "b")


def test_pairs(directory):
    place = make(directory, "pairs.kv")
    done("set", place, "plain", "a value")
    assert done("get", place, "plain") == b"a value", "get"
    done("set", place, "empty", "")
    assert done("get", place, "empty") == b"", "an empty value"
    done("set", place, "00ff", "fe01", "--hex")
    assert done("get", place, "00FF", "--hex") == b"\xfe\x01", "hexadecimal"
    done("set", place, "from stdin", given=bytes(range(256)))
    assert done("get", place, "from stdin") == bytes(range(256)), "a value from standard input"
    big = os.path.join(directory, "big")
    with open(big, "wb") as file:
        file.write(os.urandom(300_000))
    told = as_json("set", place, "from file", "--file", big)
    assert told == {"key": "from file", "value_bytes": 300_000}, "set --json"
    with open(big, "rb") as file:
        assert done("get", place, "from file") == file.read(), "a value from a file"
    done("set", place, "--", "-dash", "-1")
    assert done("get", place, "--", "-dash") == b"-1", "a key that begins with -"
    done("set", place, "", "of no key")
    assert done("get", place, "") == b"of no key", "an empty key"
    told = as_json("get", place, "00ff", "--hex")
    assert told == {"key_base64": "AP8=", "value_base64": "/gE="}, "get --json of bytes"
    assert as_json("get", place, "plain") == {"key": "plain",
                                              "value": "a value"}, "get --json of text"
    refused(["get", place, "nothing"], ["no key 'nothing'"], place, code=1)
    refused(["get", place, "0", "--hex"], ["hexadecimal"], place)
    refused(["get", place], ["KEY"], place)
    refused(["set", place, "k", "v", "--file", big], ["--file"], place)
    refused(["set", place, "k", "--file", big + ".none"], ["big.none", "No such file"], place)
    before = {line for line in done("scan", place, "--hex").splitlines()}
    assert b"00ff" in before and len(before) == 7
    found = done("scan", place, "--prefix", "from ", "--values", "--limit", "1")
    assert found.startswith(b"from ") and found.count(b"\n") == 1, "scan --prefix --limit --values"
    assert b"\\x00\\xff\n" in done("scan", place), "scan shows what is no text"
    done("set", place, "a\\\tb\u00e9")
    assert done("scan", place, "--prefix",
                "a") == "a\\\\\\x09b\u00e9\n".encode(), "scan shows what can be read"
    done("del", place, "a\\\tb\u00e9")
    assert len(done("scan", place, "--prefix", "from").splitlines()) == 2, "scan --prefix"
    assert done("scan", place, "--prefix", "00", "--hex") == b"00ff\n", "scan --prefix --hex"
    lines = [json.loads(line) for line in done("scan", place, "--json").splitlines()]
    assert {"key": "from file", "value_bytes": 300_000} in lines and {"key": "", "value_bytes": 9
                                                                      } in lines
    assert done("scan", place, "--limit", "0") == b"", "scan --limit 0"
    assert as_json("del", place, "plain", "from file") == {"deleted": 2, "absent": 0}, "del --json"
    result = run("del", place, "empty", "plain")
    assert result.returncode == 1 and b"'plain'" in result.stderr
    assert len(done("scan", place).splitlines()) == 4, "del"
    for words in (["dump"], ["dump", "--json"], ["scan"], ["info"], ["info", "--json"], ["check"],
                  ["check", "--json"], ["compact"], ["compact", "--json"],
                  ["set", "a", "b", "--json"], ["del", "a", "--json"], ["get", "a"],
                  ["get", "a", "--json"]):
        words[1:1] = [place]
        if words[0] == "get":
            done("set", place, "a", "b" * 6000)   # more than a buffer of standard output
        with open("/dev/full", "wb") as full:
            result = subprocess.run([LUNAR, "kv", *words], stdout=full, stderr=subprocess.PIPE,
                                    check=False)
        assert result.returncode == 4 and result.stderr.count(b"standard output: ") == 1


def test_streams(directory):
    pairs = some_pairs(5000, large=5)
    place = make(directory, "streams.kv", pairs=pairs)
    assert pairs_of(place) == pairs, "lines bring back what was loaded"
    dump = done("dump", place)
    assert dump.startswith(b"LunarKV dump 1\r\n"), "the head of a dump"
    contents = sum(17 + len(key) + len(value) for key, value in pairs.items())
    assert len(dump) == 16 + contents + 17, "the size of a dump"
    other = make(directory, "other.kv")
    loaded = as_json("load", other, given=dump)
    pair_bytes = sum(len(key) + len(value) for key, value in pairs.items())
    assert loaded["pairs"] == len(pairs) and loaded["bytes"] == pair_bytes
    assert pairs_of(other) == pairs, "a dump brings back what was dumped"
    assert as_json("check", other)["verdict"] == "clean", "check after load"
    path = os.path.join(directory, "stream")
    with open(path, "wb") as file:
        file.write(dump)
    done("load", other, path)
    assert pairs_of(other) == pairs, "the same stream again"
    nothing = make(directory, "nothing.kv")
    empty = done("dump", nothing)
    told = done("load", nothing, given=empty)
    assert told != b"" and as_json("info", nothing)["keys"] == 0, "the dump of an empty store"
    # Not a whole stream: nothing of it is kept here, as it is shorter than what the place has free.
    begun, flipped = dump[:16], bytes([dump[100] ^ 1])
    for code, what, stream in (
            (4, "is cut off", dump[:-1]), (4, "is cut off", dump[:1000]),
            (4, "checksum", dump[:100] + flipped + dump[101:]), (4, "goes on", dump + b"x"),
            (2, "not of this version", b"LunarKV dump 9\r\n" + dump[16:]), (2, "is empty", b""),
            (2, "is empty up to line 1", b"\xef\xbb\xbf"),
            (2, "is empty up to line 2", b"\xef\xbb\xbf\n \n"),
            (2, "100 GiB", begun + b"P" + struct.pack("<QQ", 1 << 62, 1)),
            (2, "is cut off", begun + b"P" + struct.pack("<QQ", 1 << 36, 1)),
            (2, "is damaged", begun + b"Q"), (2, "line 1 is not a JSON", b"hello\n"),
            (4, "line 2 has no value", b'{"key":"a","value":"b"}\n{"key":"a"}\n'),
            (2, "line 1 has no key", b'{"value":5}\n'),
            (2, "line 1 has a number as its value", b'{"key":"a","value":5}\n'),
            (2, "line 1 has null as its key", b'{"key":null,"value":"b"}\n'),
            (2, "line 1 has an array as its key_base64", b'{"key_base64":[],"value":"b"}\n'),
            (2, "line 1 has a key_base64 that is not", b'{"key_base64":"A","value":""}\n'),
            (2, "is UTF-16", '{"key":"a","value":"b"}\n'.encode("utf-16")),
            (2, "line 1 is not a JSON", b'{"key":"a","value":"b"}{"key":"c","value":"d"}\n'),
            (2, "line 1 is not a JSON", b'{"key":"a","value":"b"},\n'),
            (2, "line 1 is not a JSON", b'{"key":"\\ud800","value":""}\n')):
        changed = "pairs of the stream may be in it" if code == 4 else "nothing was changed"
        refused(["load", nothing], [what, "standard input", nothing, changed], code=code,
                given=stream)
        assert as_json("info", nothing)["keys"] == 0
    refused(["load", nothing, path + ".none"], ["stream.none", "No such file"], nothing)
    done("load", nothing,
         given=b'\n{"value":"v\\u00e9\\n\\ud83d\\ude00","other":[1],"key":"k\\u0000"}\n')
    assert pairs_of(nothing) == {b"k\0": "v\u00e9\n\U0001f600".encode()}
    done("load", nothing, given=b'\xef\xbb\xbf{"key":"marked","value":"1"}\n')
    assert done("get", nothing, "marked") == b"1", "a byte order mark in front of the first line"
    done("del", nothing, "marked")
    done("del", nothing, "k2", code=1)
    done("load", nothing, given=b'{"key":"first","value":[1],"key":"k2","value":"last"}\n')
    assert pairs_of(nothing).get(b"k2") == b"last"
    tight = make(directory, "tight.kv", size="2m")
    done("load", tight, given=stream_of({b"old": b"1"}))
    too_much = stream_of({b"n%d" % n: os.urandom(500) for n in range(5000)})
    refused(["load", tight], ["full", "pair"], code=4, given=too_much)
    assert pairs_of(tight).get(b"old") == b"1" and as_json("check", tight)["verdict"] == "clean", (
        "a load that was too much")


def test_hostile_lines(directory):
    place = make(directory, "hostile.kv")
    for what, line in (
            ("line 1 is not a JSON", b'{"key":"a","value":"b"}\0{"key":"c"}\n'),
            ("line 1 is not a JSON", b'{"key":"a","value":"b","other":1e999}\n'),
            ("line 1 is not a JSON", b'[' * 1000000),
            ("line 1 is not a JSON", b'{"a":' * 1000000),
            ("line 1 has true or false as its value", b'{"key":"a","value":true}\n'),
            ("line 1 has an object as its value", b'{"key":"a","value":{}}\n'),
            ("line 1 is not UTF-8", b'{"key":"a","value":"\xff"}\n')):
        refused(["load", place], [what, "standard input", "nothing was changed"], place, given=line)
        assert as_json("info", place)["keys"] == 0
    deep = b'{"key":"deep","value":"1","other":' + b'[' * 1000000 + b']' * 1000000 + b'}\n'
    done("load", place, given=deep)
    assert done("get", place, "deep") == b"1", "members that are no pair are left alone"


def test_blank_places(directory):
    """A load makes a store of a blank place. Foreign content is named, and no command is proposed
    for it."""
    pairs = some_pairs(100)
    dump = done("dump", make(directory, "source.kv", pairs=pairs))
    blank, empty = os.path.join(directory, "blank"), os.path.join(directory, "emptied")
    with open(blank, "wb") as file:
        file.truncate(16 * MIB)
    open(empty, "wb").close()
    refused(["load", blank], ["nothing was changed"], blank, given=b"no stream")
    # A refusal leaves an empty file empty, and names the least size of a place that is too small.
    refused(["load", empty, "--dram", "1m"], ["too little"], empty, given=dump)
    refused(["create", empty, "--size", "64m", "--dram", "1m"], ["too little"], empty)
    os.environ["LUNAR_KV_SIZE"] = "33k"
    refused(["load", empty], ["too small for a store", "at least"], empty, given=dump)
    del os.environ["LUNAR_KV_SIZE"]
    small = os.path.join(directory, "small")
    for size in (4096, 65536, 1_000_000, 1_500_000, 2 * MIB - 4096):
        with open(small, "wb") as file:
            file.truncate(size)
        refused(["load", small], ["too small for a store", "at least"], small, given=dump)
        refused(["create", small], ["too small for a store", "give 2 MiB at least"], small)
    with open(small, "wb") as file:
        file.truncate(2 * MIB)
    done("create", small)
    done("set", small, "a", "b" * 1000)
    for size in (1, 100, 511, 512, 4095):   # zeros are blank, however few
        with open(small, "wb") as file:
            file.truncate(size)
        refused(["get", small, "a"], ["holds no key/value store"], small)
        refused(["load", small], ["too small for a store", "at least"], small, given=dump)
        with open(small, "ab") as file:
            file.write(b"a")
        refused(["get", small, "a"], ["holds unknown data", "is the name right?"], small)
    # A stream that breaks off behind its first pair leaves a store where nothing was.
    broken = os.path.join(directory, "broken")
    for size in (0, 16 * MIB):
        with open(broken, "wb") as file:
            file.truncate(size)
        told = run("load", broken, given=dump[:-1]).stderr
        assert b"it was blank and is a store now" in told and b"held before" not in told
        assert as_json("check", broken)["verdict"] == "clean", "a broken load leaves a store"
        told = run("load", broken, given=dump[:-1]).stderr
        assert b"its earlier pairs are kept" in told
    for place in (blank, empty):
        done("load", place, given=dump)
        assert pairs_of(place) == pairs and as_json("check", place)["verdict"] == "clean"
    assert os.stat(empty).st_size == 1 << 30, "an empty file gets the size that create gives"
    letter = os.path.join(directory, "letter")
    with open(letter, "wb") as file:
        file.write(b"a letter to keep" * 100_000)
    note = os.path.join(directory, "note")
    with open(note, "wb") as file:
        file.write(b"short")
    refused(["get", note, "a"], ["holds unknown data", "is the name right?"], note)
    for words in (["info", letter], ["get", letter, "a"], ["set", letter, "a", "b"],
                  ["load", letter]):
        refused(words, ["holds unknown data", "is the name right?"], letter, given=dump)
        assert b"create" not in run(*words, given=dump).stderr


def test_readers_write_nothing(directory):
    place = make(directory, "readers.kv", pairs=some_pairs(2000, large=2))
    before = digest(place)
    for words in (["info"], ["check"], ["scan"], ["dump"], ["get", "empty"], ["info", "--json"],
                  ["dump", "--json"]):
        done(words[0], place, *words[1:])
        assert digest(place) == before
    info = as_json("info", place)
    segments = info["segments"]
    assert info["version"] == 2 and info["keys"] == 2006 and info["state_sequence"] == 3
    assert sum(segments.values()) == 254 and info["pieces"] == 50
    assert info["features"] == 0 and info["index_bytes"] > 0
    pair_bytes = sum(len(key) + len(value) for key, value in some_pairs(2000, large=2).items())
    assert info["pair_bytes"] == pair_bytes, "bytes of pairs"
    if os.geteuid() != 0:
        os.chmod(place, 0o400)
        assert as_json("info", place)["keys"] == 2006, "a place that may only be read"


def test_in_use(directory):
    place = make(directory, "used.kv", pairs={b"a": b"1"})
    with loading_into(place) as loading:
        loading.stdin.write(stream_of({b"%d" % number: b"x" * 200
                                       for number in range(40_000)})[:4 * MIB])
        loading.stdin.flush()   # more than pipe and buffers take: it is open by now
        with ThreadPoolExecutor() as pool:   # as each waits a second for the other to end
            list(pool.map(lambda words: refused([words[0], place, *words[1:]],
                                                ["in use", "used.kv"]),
                          (["info"], ["check"], ["scan"], ["dump"], ["compact"], ["get", "a"],
                           ["create", "--force"])))
        loading.kill()
        loading.communicate()
    assert pairs_of(place).get(b"a") == b"1", "what was there before a load that was killed"
    with subprocess.Popen([LUNAR, "kv", "dump", place],
                          stdout=subprocess.PIPE) as dumping:   # readers share
        assert as_json("info", place)["keys"] >= 1, "two readers"
        dumping.communicate()


def test_killed_loads(directory):
    old = {b"old %d" % number: b"o" * 100 for number in range(2000)}
    place = make(directory, "killed.kv", size="8m", pairs=old)
    chance = random.Random(3)
    for round_number in range(12):
        new = {b"new %d" % number: b"%d" % round_number * 300 for number in range(9000)}
        stream = stream_of(new)
        # at other places: before, in, behind its saves
        cut = chance.randrange(len(stream) // 2, len(stream))
        with loading_into(place) as loading:
            try:
                loading.stdin.write(stream[:cut])
                loading.stdin.flush()
            except BrokenPipeError:
                pass
            loading.send_signal(signal.SIGKILL)
            loading.communicate()
        verdict = as_json("check", place)
        assert verdict["verdict"] == "clean"
        now = pairs_of(place)
        lost = any(now.get(key) != value for key, value in old.items())
        assert not lost, f"round {round_number}: what was there before is lost"
        values = {b"%d" % number * 300 for number in range(round_number + 1)}
        torn = [key for key, value in now.items() if key not in old and value not in values]
        assert not torn, f"round {round_number}: torn pairs: {torn[:3]}"


def flip(place, offset):
    with open(place, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


class DamagedStore:
    """A store of many pairs, which is damaged again and again."""
    def __init__(self, directory):
        self.pairs = some_pairs(3000, large=3)
        self.place = make(directory, "damaged.kv", pairs=self.pairs)
        with open(self.place, "rb") as file:
            self.image = file.read()
        # The segment of the saved state, from the root's count of keys.
        state = self.image.index(struct.pack("<Q", len(self.pairs)))
        self.state_segment = struct.unpack_from("<Q", self.image, state - 24)[0] - 1
        self.state = HEAD + self.state_segment * SEGMENT

    def sound(self, size=None):
        with open(self.place, "wb") as file:
            file.write(self.image[:size])

    def overwrite(self, *patches):
        """(offset, bytes), of the sound store."""
        self.sound()
        with open(self.place, "r+b") as file:
            for offset, data in patches:
                file.seek(offset)
                file.write(data)

    def turn(self, *offsets):
        """One bit at each offset of the sound store."""
        self.overwrite(*((offset, bytes([self.image[offset] ^ 1])) for offset in offsets))

    def check(self, code):
        """The output of check, which must not write."""
        before = digest(self.place)
        found = as_json("check", self.place, code=code)
        assert digest(self.place) == before, "check writes"
        return found

    def salvage(self, code):
        """The pairs that come out of it, and what is said."""
        before = digest(self.place)
        result = run("dump", "--salvage", "--json", self.place)
        assert result.returncode == code and digest(self.place) == before, "salvage writes"
        return {text_of(pair, "key"): text_of(pair, "value")
                for pair in map(json.loads, result.stdout.splitlines())}, result.stderr

    def refuses(self, verbs, *parts):
        for verb, *words in verbs:
            refused([verb, self.place, *words], parts, self.place, code=3,
                    given=b'{"key":"a","value":"b"}')

    def offset_of(self, key):
        """The offset of a record's key, which is padded and comes before the value."""
        return self.image.index(key + b"\0" * (-len(key) % 8) + self.pairs[key])


@pytest.fixture
def store(directory):
    return DamagedStore(directory)


def single_bytes(store):
    """(offset, exit code of check, what it names, the key that it names, pairs that are lost)."""
    for key in (b"key 7", b"key 1234", b"key 2999"):
        yield store.offset_of(key) + 8 + len(store.pairs[key]) // 2, 3, ["record"], key, 1
    key = store.offset_of(b"key 500")
    # The version of a record means nothing on the device.
    yield key - 14, 0, [], None, 0
    for offset in (key + 4, key - 8, key - 12):   # the key itself, and the lengths before it
        yield offset, 3, ["record"], None, 1
    pieces = ["piece of a large pair", "large pair"]
    yield store.image.index(store.pairs[b"large 1"][:1000]) + 500, 3, pieces, b"large 1", 1
    yield (store.image.index(store.pairs[b"large 2"][90_000:91_000]), 3, pieces, b"large 2", 1)
    # Copies that are not needed.
    for offset, what in ((20, "superblock"), (60 * 1024 + 20, "superblock"),
                         (4096 + 40, "root of the saved state"),
                         (16 * MIB - 65536 + 40, "root of the saved state")):
        yield offset, 1, [what], None, 0
    # A segment of the saved state begins with a link, whose checksum is of the rest.
    yield store.state + 100, 1, ["saved state"], None, 0


def test_damage_of_a_byte(store):
    """check names each, and its place; everything else is read as before."""
    verdicts = {0: "clean", 1: "damaged without loss", 3: "damaged"}
    for offset, code, what, key, lost in single_bytes(store):
        store.turn(offset)
        found = store.check(code)
        damages = found["damages"]
        named = [damage["key"] for damage in damages if "key" in damage]
        told = (found["verdict"], [damage["what"] for damage in damages], named,
                found["pairs_lost"], found["records"] + found["large_pairs"])
        assert told == (verdicts[code], what, [key.decode()] if key else [], lost,
                        len(store.pairs) - lost), f"a byte at {offset}"
        for one in damages[:1]:
            assert one["offset"] <= offset < one["offset"] + one["bytes"]
            assert one.get("segment") in (None, (one["offset"] - HEAD) // SEGMENT)


def test_damage_of_values(store):
    """The commands that read leave out the pair alone, and name it."""
    key = b"key 7"
    at = store.offset_of(key)
    store.turn(at + 8 + len(store.pairs[key]) // 2)
    one, = store.check(3)["damages"]
    assert one["offset"] == at - 24 and one["segment"] == (at - 24 - HEAD) // SEGMENT
    result = run("get", store.place, key.decode())
    assert result.returncode == 3 and b"check" in result.stderr and not result.stdout, (
        f"get of a damaged pair: {result}")
    result = run("dump", store.place, "--json")
    assert (result.returncode == 3 and len(result.stdout.splitlines()) == len(store.pairs) - 1
            and b"1 pair that" in result.stderr), "a dump leaves it out"
    assert key.decode() in done("check", store.place, code=3).decode(), "check names it"


def test_damage_of_the_saved_state(store):
    # One block of it is computed from the others; the next save ends that.
    store.turn(store.state + 100)
    found = store.check(1)
    assert found["damages"][0]["segment"] == store.state_segment
    assert pairs_of(store.place) == store.pairs, "the pairs of a state with a damaged block"
    done("compact", store.place)
    assert store.check(0)["verdict"] == "clean", "the next save"
    # Two are not.
    store.overwrite(*((store.state + block + 100, b"\xff" * 1000) for block in (0, 4096)))
    store.refuses((["info"], ["dump"], ["scan"], ["compact"]), "saved state is damaged",
                  f"segment {store.state_segment}", "kv dump --salvage")
    # Its index from the second block on is gone: what it named comes from the records alone.
    store.overwrite((store.state + 8192, bytes(8192)))
    pairs, told = store.salvage(3)
    assert b"may be older" in told
    assert len(pairs) == len(store.pairs), "all are there, some doubtful"
    found = store.check(3)
    assert found["pairs_doubtful"] > 0 and found["pairs_lost"] == 0


def test_damage_of_the_head(store):
    """Both superblocks, as `dd` with the wrong name leaves it: the store is found by its roots, and
    never made anew."""
    for bytes_gone, lossy in ((64 << 10, False), (128 << 10, True)):
        store.overwrite((0, bytes(bytes_gone)))
        store.refuses((["info"], ["dump"], ["get", "key 1"], ["set", "key 1", "a"], ["load"],
                       ["compact"]), "both superblocks are damaged", "kv dump --salvage")
        refused(["create", store.place], ["holds a key/value store", "--force"], store.place)
        found = store.check(3 if lossy else 1)
        assert [damage["what"] for damage in found["damages"][:2]] == ["superblock"] * 2
        pairs, _ = store.salvage(3 if lossy else 0)
        assert pairs.items() <= store.pairs.items()
        assert len(store.pairs) == len(pairs) + found["pairs_lost"]
    # Without roots also: one line, and nothing changed.
    store.overwrite((0, b"LunarKVstore\0\0\0\0" + bytes((128 << 10) - 16)),
                    (16 * MIB - 65536, bytes(65536)))
    refused(["dump", "--salvage", store.place], [], store.place)


def test_damage_of_roots(store):
    """Roots that are damaged in both copies: the other image is read, and nothing passes for
    certain."""
    front, back = 4096, 16 * MIB - 65536
    for root in (0, 4096):
        store.turn(front + root + 40, back + root + 40)
        store.refuses((["dump"],), "roots of its saved state are damaged")
        assert store.salvage(3)[1].count(b"\n") >= 1
    for root in (front, front + 4096, back, back + 4096):
        flip(store.place, root + 41)
    store.refuses((["dump", "--salvage"],), "roots of its saved state are damaged",
                  "earlier dump or a backup")
    # A save that was interrupted between its two copies is no damage.
    store.sound()
    before = store.image[back:back + 8192]
    done("set", store.place, "key 1", "a")
    done("set", store.place, "key 2", "b")
    with open(store.place, "r+b") as file:
        file.seek(back)
        now = file.read(8192)
        newest = (4096 if struct.unpack_from("<Q", now, 4096 + 32)
                  > struct.unpack_from("<Q", now, 32) else 0)
        file.seek(back + newest)
        file.write(before[newest:newest + 4096])
    assert store.check(0)["verdict"] == "clean", "a save that was interrupted"


def test_damage_of_dead_space(store):
    """A record that was replaced."""
    store.sound()
    done("set", store.place, "key 7", "another")
    flip(store.place, store.offset_of(b"key 7") + 9)
    found = store.check(1)
    assert found["damages"][0]["what"] == "space of dead records" and found["pairs_lost"] == 0
    assert pairs_of(store.place)[b"key 7"] == b"another", "what lives next to it"
    os.truncate(store.place, 8 * MIB)
    store.refuses((["info"],), "it was made on", "kv dump --salvage")


def test_a_part_of_a_copy(store):
    """The first bytes of a store: their pairs come out."""
    store.sound(12 * MIB)
    assert store.salvage(0)[0] == store.pairs
    used = max(store.image.index(value[:50]) for value in store.pairs.values() if len(value) > 50)
    store.sound(used // 2 // 4096 * 4096)
    pairs, told = store.salvage(3)
    assert b"left out" in told and pairs and pairs.items() <= store.pairs.items()


def test_salvage(directory):
    pairs = {b"key %d" % number: os.urandom(3000) for number in range(40)}
    place = logged_store(directory, "logged.kv", pairs)
    assert as_json("check", place)["verdict"] == "clean", "a log that is not damaged"
    with open(place, "rb") as file:
        flip(place, file.read().index(pairs[b"key 20"]) + 100)
    for verb in ("dump", "info", "scan", "compact"):
        refused([verb, place], ["its log is damaged", "lunar kv dump --salvage"], place, code=3)
    before = digest(place)
    result = run("dump", "--salvage", "--json", place)
    assert result.returncode == 3 and b"20 pairs" in result.stderr and b"check" in result.stderr
    found = {text_of(pair, "key"): text_of(pair, "value")
             for pair in map(json.loads, result.stdout.splitlines())}
    assert found == {key: pairs[key] for key in list(pairs)[:20]}, "what was before the damage"
    report = as_json("check", place, code=3)
    named = {damage["key"] for damage in report["damages"] if "key" in damage}
    assert named == {f"key {number}" for number in range(21, 40)}
    assert report["damages"][0]["what"] == "log of durable sets" and report["pairs_lost"] == 20
    assert digest(place) == before, "salvage writes"
    other = make(directory, "salvaged.kv", size="16m")
    done("load", other, given=run("dump", "--salvage", place).stdout)
    assert pairs_of(other) == found, "a dump that was salvaged can be loaded"


def test_compact(directory):
    pairs = {b"%d" % number: os.urandom(400) for number in range(12_000)}
    place = make(directory, "compact.kv", pairs=pairs)
    gone = [key for number, key in enumerate(pairs) if number % 3]
    for at in range(0, len(gone), 2000):
        done("del", place, *[key.decode() for key in gone[at:at + 2000]])
    for key in gone:
        del pairs[key]
    before = as_json("info", place)["segments"]
    told = as_json("compact", place)
    after = as_json("info", place)["segments"]
    gained = (after["free"] - before["free"]) * SEGMENT
    assert after["records"] < before["records"] / 2 and told["gained_bytes"] == gained
    assert told["moved_bytes"] > 0 and told["damaged_segments"] == 0
    assert pairs_of(place) == pairs and as_json("check", place)["verdict"] == "clean", (
        "compact lost something")
    again = as_json("compact", place)
    assert again["gained_bytes"] == 0


def test_grow(directory):
    pairs = {b"%d" % number: os.urandom(400) for number in range(6_000)}
    place = make(directory, "grow.kv", pairs=pairs)
    before = as_json("info", place)
    refused(["grow", place], ["has all of its place", "--size"], place)
    refused(["grow", place, "--size", "2m"], ["large already"], place)
    told = as_json("grow", place, "--size", "48m")
    assert os.stat(place).st_size == 48 * MIB and told["place_bytes"] > before["place_bytes"]
    assert pairs_of(place) == pairs, "grow lost something"
    assert as_json("check", place)["verdict"] == "clean"
    os.truncate(place, 64 * MIB)   # as a device that was made larger
    grown = as_json("grow", place)["place_bytes"]
    assert grown > told["place_bytes"], "grow by what the place has gained"
    done("set", place, "large", given=os.urandom(40 * MIB))
    assert as_json("check", place)["verdict"] == "clean", "after it"


def test_words(directory):
    place = os.path.join(directory, "absent")
    for verb in ("info", "check", "dump", "scan", "grow", "compact", "load"):
        refused([verb, place], ["absent", "lunar kv create"], given=b"x")
        assert b"Usage" in done(verb, "--help") or b"PLACE" in done(verb, "--help")
    with open(place, "wb") as file:
        file.truncate(4 * MIB)
    refused(["info", place], ["holds no key/value store", "lunar kv create"], place)
    refused(["info", place, "--dram", "lots"], ["--dram"], place)
    refused(["scan", place, "--limit", "x"], ["--limit: 'x' is not a number"], place)
    refused(["gte", place], ["did you mean get?"])
    refused(["info", ""], ["empty word"])
    help_text = done("--help").decode()
    for verb in ("create", "info", "check", "get", "set", "del", "scan", "load", "dump", "compact"):
        assert f"  {verb} " in help_text
    result = run("info", place, environment={**os.environ, "LUNAR_KV_DRAM": "much"})
    assert result.returncode == 2 and b"LUNAR_KV_DRAM" in result.stderr


def test_block_device(directory, attach):
    backing = os.path.join(directory, "backing")
    with open(backing, "wb") as file:
        file.truncate(16 * MIB)
    device, pairs = attach(backing), some_pairs(500)
    done("create", device)
    done("load", device, given=stream_of(pairs))
    assert pairs_of(device) == pairs and as_json("check", device)["verdict"] == "clean"
    refused(["create", device], ["holds a key/value store"])
