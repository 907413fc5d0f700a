#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_install.py BUILD`: what `meson install` puts where. Installs BUILD into a directory of its
own (DESTDIR); then every file a package needs is there, a program builds against the headers and
pkg-config file alone, and the installed `lunar run` finds its own library, not the one in the build
directory."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

LIBRARY = r"lib(?:64)?/(?:.*/)?"
WANTED = [
    *(LIBRARY + name for name in (
        r"liblunar\.so\.0", r"liblunar\.so", r"liblunar-preload\.so",
        r"redis/modules/liblunar-redis\.so", r"libcflsh_block-0\.so", r"libcflsh_block\.so",
        r"libarkdb-0\.so", r"libarkdb\.so", r"pkgconfig/lunar\.pc",
        r"pkgconfig/libcflsh_block\.pc", r"pkgconfig/libarkdb\.pc")),
    r"bin/lunar", r"bin/lunar-bench", r"include/lunar/lunar\.h", r"include/lunar/lunar\.hpp",
    r"include/capiblock\.h", r"include/sys/capiblock\.h", r"include/arkdb\.h",
    r"include/lunar/kv\.h", r"include/lunar/kv\.hpp", r"share/man/man1/lunar\.1",
    r"share/man/man3/lunar_pin\.3", r"share/man/man5/lunar\.conf\.5",
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
ARK_PROGRAM = """#include <arkdb.h>
#include <stddef.h>
int main(void) {
  ARK* ark = NULL;
  keye_t* key = NULL;
  char place[] = "mem:1m";
  return key != NULL || ark_create(place, &ark, ARK_KV_HTC) != 0 || ark_delete(ark) != 0;
}
"""
KV_PROGRAM = """#include <lunar/kv.hpp>
int main() {
  auto store = lunar::kv::Store::open({.place = "mem:32m"});
  if (!store || !store->set("key", "value") || store->get("key").value_or("") != "value") return 1;
  for (std::string_view key : store->keys()) {
    if (key != "key") return 1;
  }
  return store->close() ? 0 : 1;
}
"""
C, CPP, CPP20 = ["gcc", "-std=c99"], ["g++", "-x", "c++"], ["g++", "-x", "c++", "-std=c++20"]
# Libraries with IBM's names: headers, each with how its calls begin; what else is exported and
# needs no man page.
IBMS = {"cflsh_block": ({"capiblock.h": "cblk_"}, {"lunar_cblk_marker"}),
        "arkdb": ({"arkdb.h": "ark_", "lunar/kv.h": "lunar_kv_"}, set())}


def run(command, **options):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **options)


def check_files(prefix):
    present = [os.path.relpath(os.path.join(folder, name), prefix)
               for folder, _, names in os.walk(prefix) for name in names]
    missing = [wanted for wanted in WANTED
               if not any(re.fullmatch(wanted, path) for path in present)]
    loose = [path for path in present
             if not re.match(r"(bin|lib|lib64|include|share|libexec)/", path)]
    return [f"not installed: {m}" for m in missing] + [f"installed in an odd place: {p}"
                                                       for p in loose]


def find(prefix, name):
    for folder, _, names in os.walk(prefix):
        if name in names:
            return os.path.join(folder, name)
    return None


def check_program(directory, compiler, text, words, library=None):
    """The program builds with these words, and runs if a library is given."""
    source, program = os.path.join(directory, "program.c"), os.path.join(directory, "program")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    ran = run([*compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o", program,
               *words])
    if ran.returncode == 0 and library:
        ran = run([program], env={**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)})
    if ran.returncode == 0:
        return []
    return [f"a program with {' '.join([*compiler, *words])}: exit code {ran.returncode}: "
            f"{ran.stdout.strip()}"]


def check_config(directory, compiler, text, name, config, **variables):
    """check_program() with the words of pkg-config."""
    flags = run(["pkg-config", "--cflags", "--libs", name],
                env={**os.environ, "PKG_CONFIG_PATH": os.path.dirname(config), **variables})
    if flags.returncode != 0:
        return ["pkg-config: " + flags.stdout.strip()]
    return check_program(directory, compiler, text, flags.stdout.split())


def check_programs(build, destination, prefix):
    """Out-of-tree users: the installed pkg-config files, shifted to where DESTDIR put things; those
    that meson offers for the build directory; and -lNAME alone."""
    problems = []
    for name, text, compiler in (("lunar", PROGRAM, C), ("libarkdb", KV_PROGRAM, CPP20)):
        problems += check_config(destination, compiler, text, name, find(prefix, name + ".pc"),
                                 PKG_CONFIG_SYSROOT_DIR=destination)
    for name, text in (("lunar", PROGRAM), ("libcflsh_block", CBLK_PROGRAM),
                       ("libarkdb", ARK_PROGRAM)):
        problems += check_config(destination, C, text, name,
                                 os.path.join(build, "meson-uninstalled", name + ".pc"))
    for name, text, compilers in (("cflsh_block", CBLK_PROGRAM, [C, CPP]),
                                  ("arkdb", ARK_PROGRAM, [C, CPP]),
                                  ("arkdb", KV_PROGRAM, [CPP20])):
        library = find(prefix, f"lib{name}-0.so")
        words = ["-I" + os.path.join(prefix, "include"), "-L" + os.path.dirname(library),
                 "-l" + name]
        for compiler in compilers:
            problems += check_program(destination, compiler, text, words, library)
    return problems


def page_of(prefix, file_name):
    """A man page's text, or that of the page it points to."""
    path, text = find(os.path.join(prefix, "share"), file_name), ""
    for _ in range(2):
        if path is None:
            return ""
        with open(path, encoding="utf-8") as file:
            text = file.read()
        to = re.match(r"\.so man3/(\S+)$", text.strip())
        if not to:
            return text
        path = find(os.path.join(prefix, "share"), to[1])
    return text


def calls_of(header, begin):
    with open(header, encoding="utf-8") as file:
        return set(re.findall(rf"^\w[\w ]*[ *]({begin}\w+)\(", file.read(), re.M))


def check_ibms(prefix, name):
    """A library with IBM's name: what its headers declare is what it exports, and has a man
    page."""
    headers, others = IBMS[name]
    library, problems = find(prefix, f"lib{name}-0.so"), []
    if f"soname: [lib{name}-0.so]" not in run(["readelf", "-d", library]).stdout:
        problems.append(f"lib{name}-0.so has another soname")
    declared = set().union(*(calls_of(os.path.join(prefix, "include", header), begin)
                             for header, begin in headers.items()))
    exported = set(re.findall(r" [TRD] (\w+)", run(["nm", "-D", "--defined-only", library]).stdout))
    problems += [f"declared, not exported: {one}" for one in sorted(declared - exported)]
    problems += [f"exported, not declared: {one}" for one in sorted(exported - declared - others)]
    if len(declared) < 20:
        problems.append(f"{name}: only {len(declared)} declarations were found")
    for one in sorted(declared):
        page = page_of(prefix, one + ".3")
        if not (re.search(rf"^\.Nm {one}\b", page, re.M)
                and re.search(rf"^\.F[no] {one}\b", page, re.M)):
            problems.append(f"no man page tells of {one}")
    return problems


def check_run(prefix):
    """The command under `lunar run` must have the installed library loaded, whatever else lies
    around."""
    lunar, preload = os.path.join(prefix, "bin/lunar"), find(prefix, "liblunar-preload.so")
    result = run([lunar, "run", "--dram", "64m", "--", "cat", "/proc/self/maps"])
    if result.returncode == 125 and "userfaultfd" in result.stdout:
        print("skip: userfaultfd: `lunar run` has no right to use it here")
        return []
    if result.returncode != 0:
        return [f"lunar run: exit code {result.returncode}: {result.stdout.strip()[-300:]}"]
    loaded = {os.path.realpath(p)
              for p in re.findall(r"(/\S*liblunar-preload\.so\S*)", result.stdout)}
    wanted = os.path.realpath(preload)
    return [] if loaded == {wanted} else [f"lunar run loaded {sorted(loaded) or 'nothing'}, not "
                                          f"{wanted}"]


def check_malloc(prefix):
    """`lunar` uses libc's malloc. Linked with jemalloc it would wait forever before main under
    libfaketime."""
    linked = run(["readelf", "-d", os.path.join(prefix, "bin/lunar")]).stdout
    return [] if "NEEDED" in linked and "jemalloc" not in linked else ["lunar is linked with "
                                                                       "jemalloc"]


def check_heads(prefix):
    """Man pages say whose they are, and since when."""
    problems = []
    for folder, _, names in os.walk(os.path.join(prefix, "share/man")):
        for name in names:
            if not re.search(r"^\.Dd \w+ \d+, \d{4}\n\.ds doc-volume-operating-system Lunar\n"
                                      r"\.Dt .*\n\.Os Lunar$", page_of(prefix, name), re.M):
                problems.append(f"{os.path.join(folder, name)}: not the head of a page of Lunar's")
    return problems


def main():
    build = os.path.abspath(sys.argv[1])
    destination = tempfile.mkdtemp(prefix="lunar-install-", dir="/var/tmp")
    try:
        installed = run(["meson", "install", "-C", build, "--no-rebuild", "--quiet"],
                        env={**os.environ, "DESTDIR": destination})
        if installed.returncode != 0:
            print("meson install failed:", installed.stdout)
            return 1
        command = find(destination, "lunar") or os.path.join(destination, "usr/local/bin/lunar")
        prefix = os.path.dirname(os.path.dirname(command))
        problems = check_files(prefix)   # without them, nothing else can be checked
        if not problems:
            problems = check_programs(build, destination, prefix) + check_run(prefix)
            problems += check_malloc(prefix) + check_heads(prefix)
            for name in IBMS:
                problems += check_ibms(prefix, name)
        print("\n".join(problems) or "installed as it should be")
        return 1 if problems else 0
    finally:
        shutil.rmtree(destination, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
