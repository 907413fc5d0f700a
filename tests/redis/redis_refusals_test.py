# SPDX-License-Identifier: Apache-2.0
"""The Redis module answers bad input, and stops at its limits, with one line that says what to fix,
and the server starts or refuses as Redis does. Its settings and commands."""
import ctypes
import os
import time

import pytest

from build_tree import BUILD, LUNAR
from redis_server import MIB, MODULE, Refused, out_of_memory, sets, value, wait_until

# Puts another malloc under the server; makes its kernel look old.
OTHER_MALLOC = os.path.join(BUILD, "tests/redis/libother-malloc.so")
OLD_KERNEL = os.path.join(BUILD, "tests/libold_kernel.so")
GOOD = "dram 16mb size 64mb lun HERE"   # HERE: a directory
SIZE = 3000


def load(servers, arguments, *words, **options):
    """With the module and just these arguments."""
    here = servers.made("server")
    return servers.plain("--loadmodule", MODULE, *arguments.replace("HERE", here).split(), *words,
                         name="server", **options)


@pytest.mark.parametrize("arguments, line", [
    ("dram 4xb", "loadmodule dram: '4xb' is not a size"),
    ("dam 4gb", "unknown option 'dam'; did you mean 'dram'?"), ("dram", "'dram' has no value"),
    ("gate-threads 99", "99 is out of range: 1 to 8"), ("forks perhaps", "neither yes nor no"),
    ("mmap no", "is not for this module"), ("dram 1mb lun HERE", "is too small; give at least"),
    ("dram 64mb size 32mb lun HERE", "smaller than the DRAM budget"),
    ("dram 16mb lun HERE/not-there/at-all", "not-there"),
    (f"{GOOD} --lunar.dram 12zb", "lunar.dram"),
    (f"{GOOD} --loadmodule {MODULE}", "the module is loaded already")])
def test_arguments(servers, arguments, line):
    must_refuse(servers, arguments, line)


def must_refuse(servers, arguments, line, **options):
    with pytest.raises(pytest.fail.Exception):
        load(servers, arguments, **options)
    with open(servers.place("server/log"), encoding="utf-8") as file:
        log = file.read()
    assert line in log
    assert log.count("# <lunar>") <= 1, "more lines than one"   # "# " is the level of warnings


def test_old_kernel(servers):
    must_refuse(servers, GOOD, "Linux 6.8 or newer", environment={"LD_PRELOAD": OLD_KERNEL})


def test_other_malloc(servers):
    preload = {"LD_PRELOAD": OTHER_MALLOC}
    try:
        servers.plain(environment=preload)
    except pytest.fail.Exception:
        print("this server does not run with another malloc at all (it calls jemalloc by name)")
        return
    must_refuse(servers, GOOD, "lunar run -- redis-server", environment=preload)


def test_settings(servers):
    server = load(servers, f"{GOOD} forks no gate-hold-ms 50", "--enable-module-command", "local",
                  "--lunar.dram", "24mb")
    client = server.client
    assert client.config("lunar.dram") == str(24 * MIB)
    assert client.config("lunar.gate-hold-ms") == "50"
    client.ask("CONFIG", "SET", "lunar.dram", "32mb")
    assert server.figure("dram_budget_bytes") == 32 * MIB
    assert "too small" in client.refused("CONFIG", "SET", "lunar.dram", "1mb")
    assert "immutable" in client.refused("CONFIG", "SET", "lunar.lun", "/tmp")
    assert client.refused("MODULE", "UNLOAD", "lunar")
    assert "restart the server without the module" in server.text()
    assert client.refused("MODULE", "LOAD", MODULE)
    ceiling = str(56 * MIB)
    assert client.config("maxmemory") == ceiling
    client.ask("CONFIG", "SET", "maxmemory", "1gb")
    wait_until("the ceiling", lambda: client.config("maxmemory") == ceiling, 5)
    client.ask("CONFIG", "SET", "maxmemory", "10mb")
    time.sleep(0.1)
    assert client.config("maxmemory") == str(10 * MIB), "a lower maxmemory was changed"


def fill_up(client, first):
    """How many keys there are at the first OOM."""
    for key in range(first, 100_000):
        reply = client.all_of(sets("key", [key], SIZE))[0]
        if isinstance(reply, Refused):
            assert out_of_memory(reply)
            return key
    return pytest.fail("it is never full")


def test_full(servers):
    """A full LUN is an OOM reply to writes; reads go on, and a save that has no room is refused."""
    server = load(servers, GOOD)
    client, keys = server.client, fill_up(server.client, 0)
    assert keys * SIZE > 20 * MIB
    assert client.pipeline([("GET", f"key:{key}") for key in range(0, keys, 7)]) == [
        value(key, SIZE) for key in range(0, keys, 7)]
    client.ask("SAVE")
    client.ask("BGSAVE")   # the ceiling leaves room for it
    wait_until("the save", lambda: server.info("persistence")["rdb_bgsave_in_progress"] == "0")
    assert server.info("persistence")["rdb_last_bgsave_status"] == "ok"
    ceiling = int(client.config("maxmemory"))
    client.ask("CONFIG", "SET", "lunar.forks", "no")
    wait_until("more room", lambda: int(client.config("maxmemory")) > ceiling)
    fill_up(client, keys)
    assert isinstance(client.all_of([("BGSAVE",)])[0], Refused), "there is no room for a child"
    assert "fork refused" in server.text()
    client.ask("SAVE")
    client.ask("DEL", "key:0")
    assert client.ask("PING") == b"PONG"


def memory_of(client, key):
    words = client.ask("LUNAR", "MEMORY", key)
    return dict(zip(words[::2], words[1::2]))


def test_commands(servers):
    server = load(servers, "dram 16mb size 256mb lun HERE")
    client, ask = server.client, server.client.ask
    ask("SET", "large", b"x" * MIB)
    ask("RPUSH", "list", "a", "b")

    def resident():
        return memory_of(client, "large")[b"resident_page_bytes"]
    assert memory_of(client, "large")[b"tiered_bytes"] >= MIB
    assert ask("LUNAR", "COLD", "large", "missing") == 1
    assert resident() < 1 << 16
    assert ask("LUNAR", "PREFETCH", "large", "list") == 2
    assert resident() >= MIB
    assert ask("LUNAR", "HOT", "large") == ask("LUNAR", "PIN", "large") == 1
    ask("LUNAR", "COLD", "large")
    assert resident() >= MIB, "a pinned value went"
    assert server.figure("pinned_bytes") >= MIB
    client.pipeline([("SET", f"p:{n}", b"p" * MIB) for n in range(16)])
    errors = [client.refused("LUNAR", "PIN", f"p:{n}") for n in range(16)]
    assert "half of the DRAM budget" in next(filter(None, errors)), "pins without end"
    assert ask("LUNAR", "UNPIN") > 1
    assert server.figure("pinned_bytes") == 0
    assert ask("LUNAR", "MEMORY", "missing") is None
    assert "wrong number of arguments" in client.refused("LUNAR", "HOT")
    assert "nknown" in client.refused("LUNAR", "WARM", "x")
    assert len(ask("COMMAND", "DOCS", "lunar")) == 2
    assert ask("COMMAND", "GETKEYS", "LUNAR", "PIN", "a", "b") == [b"a", b"b"]
    assert len(ask("LUNAR", "STATS")) > 40
    ask("ACL", "SETUSER", "reader", "on", ">x", "~r:*", "+lunar|memory")
    for words, allowed in (("MEMORY r:1", True), ("MEMORY x", False), ("PIN r:1", False)):
        reply = ask("ACL", "DRYRUN", "reader", "LUNAR", *words.split())
        assert (reply == b"OK") == allowed, words


def test_under_lunar_run(servers):
    wrapper = (LUNAR, "run", "--dram=16m", "--size=64m", f"--lun={servers.made('server')}", "--")
    server = load(servers, "", wrapper=wrapper)
    lunar = server.info("lunar")
    assert "runs under `lunar run`" in server.text()
    assert (lunar["lunar_tier"], lunar["lunar_gate"]) == ("lunar-run", "starting")
    assert server.figure("dram_budget_bytes") == 16 * MIB
    server.client.ask("CONFIG", "SET", "lunar.gate", "no")
    assert server.info("lunar")["lunar_gate"] == "bypassed"
    server.client.ask("SET", "large", b"x" * MIB)
    assert memory_of(server.client, "large")[b"tiered_bytes"] >= MIB


def test_server_that_is_too_old():
    """A context that hands out nothing but a log."""
    lines, functions = [], {
        b"RedisModule_Log": ctypes.CFUNCTYPE(   # its format is "%s"
            None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p)(
                lambda _, level, form, line: lines.append(line)),
        b"RedisModule_SetModuleAttribs": ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)(lambda *_: None),
        b"RedisModule_IsModuleNameBusy": ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_char_p)(lambda _: 0)}

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
    def get_api(name, out):
        if name not in functions:
            return 1
        out[0] = ctypes.cast(functions[name], ctypes.c_void_p)
        return 0
    context = (ctypes.c_void_p * 1)(ctypes.cast(get_api, ctypes.c_void_p))
    assert ctypes.CDLL(MODULE).RedisModule_OnLoad(context, None, 0) == 1
    assert b"too old" in lines[-1]
