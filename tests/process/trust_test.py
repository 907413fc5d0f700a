#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which configuration a program trusts (runtime/config/trust.h). `trust_test.py TRUST_PROBE`.

A setuid program takes no LUNAR_*, CFLSH_* or ~/.config of its caller's; a config file counts only where no other user
may write it."""
import os
import shutil
import subprocess
import sys
import tempfile

OTHER = 65534   # the user `nobody`


def run(program, home, **variables):
    env = {"PATH": "/usr/bin:/bin", "HOME": home, **variables}
    ended = subprocess.run([program], env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended
    return dict(line.split(" ", 1) if " " in line else (line, "") for line in ended.stdout.splitlines()), ended.stderr


def main(probe):
    if os.geteuid() != 0:
        print("skip: root: files of other users are made")
        return 77
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        home = folder + "/home"
        os.makedirs(home + "/.config")
        config = home + "/.config/lunar.conf"
        with open(config, "w") as file:
            file.write("dram = 100m\n")
        os.chmod(config, 0o644)
        program = folder + "/probe"
        shutil.copy(probe, program)
        os.chmod(program, 0o755)
        orders = {"LUNAR_STATS_FILE": folder + "/stats", "LUNAR_LOG_FILE": folder + "/log",
                  "CFLSH_BLK_CACHE_SIZE": "64", "CFLSH_BLK_TRACE": folder + "/trace"}

        seen, _ = run(program, home, **orders)
        assert seen["dram"] == str(100 << 20) and seen["cache"] == "64", seen
        assert seen["stats_file"] == folder + "/stats", seen
        assert seen["trace"] == "1" and os.path.exists(folder + "/trace"), seen
        seen, _ = run(program, home, LUNAR_DRAM="200m")
        assert seen["dram"] == str(200 << 20), seen

        # Config files: those of others, and those that others may write.
        for break_trust, restore, says in (
                (lambda: os.chown(config, OTHER, OTHER), lambda: os.chown(config, 0, 0), "belongs to user 65534"),
                (lambda: os.chmod(config, 0o664), lambda: os.chmod(config, 0o644), "others may write"),
                (lambda: os.chmod(config, 0o646), lambda: os.chmod(config, 0o644), "others may write")):
            break_trust()
            seen, err = run(program, home)
            assert seen["loaded"] == "0" and seen["dram"] == "0", (says, seen)
            assert says in err and err.count("\n") == 1 and "ignored" in err, (says, err)
            seen, err = run(program, home, LUNAR_CONFIG=config)
            assert seen["loaded"] == "-1" and seen["dram"] == "0", (says, seen)
            restore()
        os.rename(config, config + ".kept")
        os.mkfifo(config, 0o644)
        os.chown(config, OTHER, OTHER)
        seen, err = run(program, home)   # it does not wait for a writer
        assert "belongs to user" in err and seen["dram"] == "0", (seen, err)
        os.unlink(config)
        os.rename(config + ".kept", config)

        # A setuid program, of another user than its caller.
        os.unlink(folder + "/trace")
        os.chmod(folder, 0o777)
        os.chown(program, OTHER, OTHER)
        os.chmod(program, 0o4755)
        seen, err = run(program, home, LUNAR_DRAM="200m", LUNAR_CONFIG=config, **orders)
        if seen["secure"] != "1":
            print("skip: setuid: this kernel or file system gives setuid programs no rights")
            return 77
        assert seen["loaded"] == "0" and seen["dram"] == "0", seen
        assert seen["log_file"] == "" and seen["stats_file"] == "", seen
        assert seen["cache"] == "0" and seen["trace"] == "0", seen
        assert sorted(os.listdir(folder)) == ["home", "probe"], os.listdir(folder)
        assert err == "", err
    print("trust: trusted variables and config files count, and no others")
    return 0


sys.exit(main(sys.argv[1]))
