#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_install.py BUILD`: what `meson install` puts where. Installs BUILD into a directory of its own (DESTDIR); then
every file a package needs is there, a program builds against the headers and pkg-config file alone, and the installed
`lunar run` finds its own library, not the one in the build directory."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

WANTED = [
    r"bin/lunar",
    r"lib(?:64)?/(?:.*/)?liblunar\.so\.0",
    r"lib(?:64)?/(?:.*/)?liblunar\.so",
    r"lib(?:64)?/(?:.*/)?liblunar-preload\.so",
    r"lib(?:64)?/(?:.*/)?redis/modules/liblunar-redis\.so",
    r"lib(?:64)?/(?:.*/)?pkgconfig/lunar\.pc",
    r"include/lunar/lunar\.h",
    r"include/lunar/lunar\.hpp",
    r"lib(?:64)?/(?:.*/)?libcflsh_block-0\.so",
    r"lib(?:64)?/(?:.*/)?libcflsh_block\.so",
    r"lib(?:64)?/(?:.*/)?pkgconfig/libcflsh_block\.pc",
    r"include/capiblock\.h",
    r"include/sys/capiblock\.h",
]
PROGRAM = "#include <lunar/lunar.h>\nint main(void) { return 0; }\n"
CBLK_PROGRAM = """#include <sys/capiblock.h>
#include <capiblock.h>
#include <fcntl.h>
int main(void) {
  chunk_id_t id = cblk_open("sim:1m", 0, O_RDWR, 0, 0);
  return id == NULL_CHUNK_ID || cblk_close(id, 0) != 0;
}
"""


def run(command, **options):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, **options)


def check_files(prefix):
    present = [os.path.relpath(os.path.join(folder, name), prefix)
               for folder, _, names in os.walk(prefix) for name in names]
    missing = [wanted for wanted in WANTED if not any(re.fullmatch(wanted, path) for path in present)]
    loose = [path for path in present if not re.match(r"(bin|lib|lib64|include|share|libexec)/", path)]
    return [f"not installed: {m}" for m in missing] + [f"installed in an odd place: {p}" for p in loose]


def find(prefix, name):
    for folder, _, names in os.walk(prefix):
        if name in names:
            return os.path.join(folder, name)
    return None


def check_compiles(destination, prefix):
    """An out-of-tree user: the pkg-config file's words, shifted to where DESTDIR put things."""
    config = find(prefix, "lunar.pc")
    if config is None:
        return []
    flags = run(["pkg-config", "--cflags", "--libs", "lunar"],
                env={**os.environ, "PKG_CONFIG_PATH": os.path.dirname(config), "PKG_CONFIG_SYSROOT_DIR": destination})
    if flags.returncode != 0:
        return ["pkg-config: " + flags.stdout.strip()]
    source = os.path.join(destination, "user.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    built = run(["gcc", "-Wall", "-Werror", source, "-o", os.path.join(destination, "user"), *flags.stdout.split()])
    return [] if built.returncode == 0 else ["a program does not build against it: " + built.stdout.strip()]


def check_cblk(destination, prefix):
    """libcflsh_block: a program in C builds with -lcflsh_block alone and runs; what the header declares is what the library exports,
    and has a man page."""
    library, header = find(prefix, "libcflsh_block-0.so"), os.path.join(prefix, "include/capiblock.h")
    if library is None or not os.path.exists(header):
        return []
    folder, source, program = os.path.dirname(library), os.path.join(destination, "cblk.c"), os.path.join(destination, "cblk")
    with open(source, "w", encoding="utf-8") as file:
        file.write(CBLK_PROGRAM)
    problems = []
    for compiler in (["gcc", "-std=c99"], ["g++", "-x", "c++"]):
        built = run([*compiler, "-Wall", "-Wextra", "-Werror", "-I" + os.path.join(prefix, "include"), source, "-o", program,
                     "-L" + folder, "-lcflsh_block"])
        ran = built if built.returncode else run([program], env={**os.environ, "LD_LIBRARY_PATH": folder})
        if ran.returncode != 0:
            problems.append(f"a cblk program with {compiler[0]}: exit code {ran.returncode}: {ran.stdout.strip()}")
    soname = run(["readelf", "-d", library]).stdout
    if "soname: [libcflsh_block-0.so]" not in soname:
        problems.append("libcflsh_block-0.so has another soname")
    with open(header, encoding="utf-8") as file:
        declared = set(re.findall(r"^\w[\w ]* (cblk_\w+)\(", file.read(), re.M))
    exported = set(re.findall(r" [TRD] (\w+)", run(["nm", "-D", "--defined-only", library]).stdout))
    problems += [f"declared, not exported: {name}" for name in sorted(declared - exported)]
    problems += [f"exported, not declared: {name}" for name in sorted(exported - declared - {"lunar_cblk_marker"})]
    pages = {name: find(os.path.join(prefix, "share"), name + ".3") for name in declared}
    for name, page in sorted(pages.items()):
        text = ""
        if page is not None:
            with open(page, encoding="utf-8") as file:
                text = file.read()
            to = re.match(r"\.so man3/(\S+)$", text.strip())
            target = find(os.path.join(prefix, "share"), to[1]) if to else None
            if target is not None:
                with open(target, encoding="utf-8") as file:
                    text = file.read()
        if not re.search(rf"^\.Nm {name}\b", text, re.M) or not re.search(rf"^\.F[no] {name}\b", text, re.M):
            problems.append(f"no man page tells of {name}")
    return problems


def check_run(prefix):
    """The command under `lunar run` must have the installed library loaded, whatever else lies around."""
    lunar, preload = os.path.join(prefix, "bin/lunar"), find(prefix, "liblunar-preload.so")
    if not os.path.exists(lunar) or preload is None:
        return []
    result = run([lunar, "run", "--dram", "64m", "--", "cat", "/proc/self/maps"])
    if result.returncode == 125 and "userfaultfd" in result.stdout:
        print("skip: userfaultfd: `lunar run` has no right to use it here")
        return []
    if result.returncode != 0:
        return [f"lunar run: exit code {result.returncode}: {result.stdout.strip()[-300:]}"]
    loaded = {os.path.realpath(p) for p in re.findall(r"(/\S*liblunar-preload\.so\S*)", result.stdout)}
    wanted = os.path.realpath(preload)
    return [] if loaded == {wanted} else [f"lunar run loaded {sorted(loaded) or 'nothing'}, not {wanted}"]


def main():
    build = sys.argv[1]
    destination = tempfile.mkdtemp(prefix="lunar-install-", dir="/var/tmp")
    try:
        installed = run(["meson", "install", "-C", build, "--no-rebuild", "--quiet"],
                        env={**os.environ, "DESTDIR": destination})
        if installed.returncode != 0:
            print("meson install failed:", installed.stdout)
            return 1
        command = find(destination, "lunar") or os.path.join(destination, "usr/local/bin/lunar")
        prefix = os.path.dirname(os.path.dirname(command))
        problems = check_files(prefix) + check_compiles(destination, prefix) + check_cblk(destination, prefix) + check_run(prefix)
        print("\n".join(problems) or "installed as it should be")
        return 1 if problems else 0
    finally:
        shutil.rmtree(destination, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
