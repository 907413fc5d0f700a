# SPDX-License-Identifier: Apache-2.0
"""`lunar kv`, as its tests call it: what it answers, how it refuses, pairs and streams of them."""
import base64
import ctypes
import json
import os
import random
import subprocess

from build_tree import BUILD, LUNAR
from subcommand import Subcommand

LIBARKDB = os.path.join(BUILD, "runtime/kv/ark/libarkdb-0.so")
MIB = 1 << 20
SEGMENT = 64 << 10


KV = Subcommand("kv", text=False)
run, done, as_json = KV.run, KV.done, KV.as_json


def loading_into(place):
    """A load that reads what is written to its standard input."""
    return subprocess.Popen([LUNAR, "kv", "load", place], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def refused(words, parts, place=None, **options):
    """The place is what it was."""
    KV.refused(words, parts, *[place] * (place is not None), **options)


def text_of(pair, name):
    return (base64.b64decode(pair[name + "_base64"])
            if name + "_base64" in pair else pair[name].encode())


def pairs_of(place):
    """All pairs of a store, from the lines of its dump."""
    lines = done("dump", place, "--json").splitlines()
    return {text_of(pair, "key"): text_of(pair, "value") for pair in map(json.loads, lines)}


def base64_of(data):
    return base64.b64encode(data).decode()


def stream_of(pairs):
    """Lines in the format of tools/kv/stream.h, without the checksum, which only a dump has."""
    lines = ({"key_base64": base64_of(key), "value_base64": base64_of(value)} for key,
             value in pairs.items())
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def some_pairs(count, large=0):
    chance = random.Random(7)
    pairs = {b"key %d" % number: chance.randbytes(chance.randrange(200)) for number in range(count)}
    pairs.update({b"": b"no key", b"empty": b"", bytes(range(256)): bytes(range(255, -1, -1))})
    pairs["gr\u00fc\u00df \U0001f600".encode()] = b"text\n\t\"\\"
    for number in range(large):
        pairs[b"large %d" % number] = chance.randbytes(100_000 + number)
    return pairs


def make(directory, name, size="16m", pairs=None):
    place = os.path.join(directory, name)
    done("create", place, "--size", size, "--segment", "64k")
    if pairs is not None:
        done("load", place, given=stream_of(pairs))
    return place


def write_durably(place, pairs):
    """Ends the process."""
    os.environ["LUNAR_KV_DURABILITY"], os.environ["LUNAR_KV_DRAM"] = "each", "24m"
    library = ctypes.CDLL(LIBARKDB)
    ark, length = ctypes.c_void_p(), ctypes.c_int64()
    if library.ark_create(place.encode(), ctypes.byref(ark), ctypes.c_uint64(2)) != 0:
        os._exit(1)
    for key, value in pairs.items():
        sizes = ctypes.c_uint64(len(key)), ctypes.c_uint64(len(value))
        if library.ark_set(ark, sizes[0], key, sizes[1], value, ctypes.byref(length)) != 0:
            os._exit(1)
    os._exit(0)


def logged_store(directory, name, pairs):
    """A store in whose log they are: a process sets them, each durable, and is gone before it
    closes the store."""
    place = os.path.join(directory, name)
    with open(place, "wb") as file:
        file.truncate(64 * MIB)
    child = os.fork()
    if child == 0:
        write_durably(place, pairs)
    assert os.waitpid(child, 0)[1] == 0, "a process that sets"
    return place
