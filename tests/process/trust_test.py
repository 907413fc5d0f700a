# SPDX-License-Identifier: Apache-2.0
"""The configuration that a program trusts (runtime/config/trust.h).

A setuid program takes no LUNAR_*, CFLSH_* or ~/.config of its caller's; a config file counts only
where no other user may write it."""
import os
import shutil
import subprocess

import pytest

from build_tree import BUILD

OTHER = 65534   # the user `nobody`


def run(program, home, **variables):
    env = {"PATH": "/usr/bin:/bin", "HOME": home, **variables}
    ended = subprocess.run([program], env=env, capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) if " " in line else (line, "")
                for line in ended.stdout.splitlines()), ended.stderr


@pytest.fixture
def probe(directory, as_root):
    """The program, its home, the config file there, and variables that say where to write."""
    home, program = directory + "/home", directory + "/probe"
    os.makedirs(home + "/.config")
    config = home + "/.config/lunar.conf"
    with open(config, "w", encoding="ascii") as file:
        file.write("dram = 100m\n")
    os.chmod(config, 0o644)
    shutil.copy(os.path.join(BUILD, "tests/process/trust_probe"), program)
    os.chmod(program, 0o755)
    return program, home, config, {"LUNAR_STATS_FILE": directory + "/stats",
                                   "LUNAR_LOG_FILE": directory + "/log",
                                   "CFLSH_BLK_CACHE_SIZE": "64",
                                   "CFLSH_BLK_TRACE": directory + "/trace"}


def test_own(probe, directory):
    program, home, _, orders = probe
    seen, _ = run(program, home, **orders)
    assert seen["dram"] == str(100 << 20) and seen["cache"] == "64"
    assert seen["stats_file"] == directory + "/stats"
    assert seen["trace"] == "1" and os.path.exists(directory + "/trace")
    assert run(program, home, LUNAR_DRAM="200m")[0]["dram"] == str(200 << 20)


@pytest.mark.parametrize("change, says", [
    (lambda config: os.chown(config, OTHER, OTHER), "belongs to user 65534"),
    (lambda config: os.chmod(config, 0o664), "others may write"),
    (lambda config: os.chmod(config, 0o646), "others may write")], ids=["owner", "group", "others"])
def test_file_of_others(probe, change, says):
    """And those that others may write."""
    program, home, config, _ = probe
    change(config)
    seen, err = run(program, home)
    assert seen["loaded"] == "0" and seen["dram"] == "0"
    assert says in err and err.count("\n") == 1 and "ignored" in err
    seen, _ = run(program, home, LUNAR_CONFIG=config)
    assert seen["loaded"] == "-1" and seen["dram"] == "0"


def test_pipe_of_others(probe):
    program, home, config, _ = probe
    os.unlink(config)
    os.mkfifo(config, 0o644)
    os.chown(config, OTHER, OTHER)
    seen, err = run(program, home)   # it does not wait for a writer
    assert "belongs to user" in err and seen["dram"] == "0"


def test_setuid(probe, directory):
    """The program belongs to another user than its caller."""
    program, home, config, orders = probe
    os.chmod(directory, 0o777)
    os.chown(program, OTHER, OTHER)
    os.chmod(program, 0o4755)
    seen, err = run(program, home, LUNAR_DRAM="200m", LUNAR_CONFIG=config, **orders)
    if seen["secure"] != "1":
        pytest.skip("setuid: this kernel or file system gives setuid programs no rights")
    assert seen["loaded"] == "0" and seen["dram"] == "0"
    assert seen["log_file"] == "" and seen["stats_file"] == ""
    assert seen["cache"] == "0" and seen["trace"] == "0"
    assert sorted(os.listdir(directory)) == ["home", "probe"]
    assert err == ""
