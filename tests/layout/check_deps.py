#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_deps.py ROOT`: on a host without dpkg, tools/deps says nothing when everything is there, and names exactly
what is not."""
import os
import subprocess
import sys
import tempfile

DEPS = os.path.join(os.path.abspath(sys.argv[1]), "tools", "deps")
MANAGERS = ("dpkg", "apt", "sudo")


def deps(path, *words):
    done = subprocess.run(["/bin/sh", DEPS, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env={**os.environ, "PATH": path})
    return done.returncode, done.stdout, done.stderr


def programs_without_managers(directory):
    """Links to all programs of this host but the package managers."""
    for folder in os.environ["PATH"].split(":") + ["/usr/sbin", "/sbin"]:
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            link = os.path.join(directory, name)
            if not name.startswith(MANAGERS) and not os.path.lexists(link):
                os.symlink(os.path.join(folder, name), link)


def installed(names):
    """Whether dpkg, where this host has it, knows them all."""
    if not os.path.exists("/usr/bin/dpkg-query"):
        return False
    done = subprocess.run(["dpkg-query", "-W", *names], capture_output=True, check=False)
    return done.returncode == 0


def main():
    bad = []
    with tempfile.TemporaryDirectory() as directory:
        programs_without_managers(directory)
        names = deps(directory, "--list")[1].split()
        code, out, err = deps(directory)
        if installed(names) and (code, out, err) != (0, "", ""):
            bad.append(f"everything is installed, but without dpkg: exit {code}, {err}")
        lacking = set(err.rpartition(":")[2].split())
        for name, package in (("fio", "fio"), ("redis-cli", "redis-tools"), ("pkg-config", "libfmt-dev")):
            link = os.path.join(directory, name)
            if not os.path.lexists(link):
                continue
            target = os.readlink(link)
            os.unlink(link)
            code, _, err = deps(directory)
            os.symlink(target, link)
            named = set(err.rpartition(":")[2].split())
            right = code != 0 and package in named and named <= set(names)
            if name != "pkg-config":   # without which no library is found
                right = right and named == lacking | {package}
            if not right:
                bad.append(f"without {name}: exit {code}, {err}")
    print("\n".join(bad) or "tools/deps needs no dpkg to see what is there")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
