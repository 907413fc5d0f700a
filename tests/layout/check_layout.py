#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules of CONTRIBUTING.md about the source tree. `check_layout.py ROOT` prints one line
for each violation, and exits with 1 if there is any.

Includes. A part (a folder of runtime/ or adapters/, or tools/ or examples/) may include itself and
the parts that ALLOWED names for it: base <- sys <- config <- stats <- superpipe <- lun <- {cblk,
kv, pager} <- heap <- public C ABI. examples/ may include public headers only; nothing but tests/
includes adapters/ or tools/; tests/ may include everything. Two kinds of code may include more, on
purpose:
  - adapters/preload and adapters/redis put the runtime into an unmodified program, so they may
    include the pager and the heap. Both contain adapters/gate, which may include the pager.
  - tools/ asks the kernel the runtime's questions (`lunar doctor`), and administers and measures
    devices and stores, so it may include sys/, superpipe/, lun/ and kv/.
The folders of a part have an order of their own (ROOMS). Other parts may include only a few of the
pager's headers (FACE).

Tests. A test sets no time limit (an alarm, a timeout of a child process), because a test that it
ends is not examined: tests/support/watch.py has the limit.

Everything else. Only runtime/sys makes the system calls in OWNED_CALLS. A source begins with its
licence. Files, functions and lines have a greatest length. Headers end in .h. No two modules (a
header and its sources) have the same name. A file that a script names as "$root/PATH" exists. No
file names a directory of a developer's machine."""
import os
import re
import sys

from function_lengths import functions_of

LINES_MAX, LINES_WARN = 800, 400
FUNCTION_LINES_MAX = 70   # of C, C++ and Python
COLUMNS_MAX = 100   # as in .clang-format
SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE = (".c", ".cpp", ".h", ".hpp")
WRAPPED = (".py", ".sh", ".js", ".build", ".conf", ".supp")   # files that begin with #! also
HEADER = ".h"
# The public C++ headers; and the name under which IBM's programs include the block library.
OTHER_HEADERS = {os.path.join("runtime", "include", "lunar", name)
                 for name in ("lunar.hpp", "kv.hpp")}
SAME_NAME = {os.path.join("runtime", "include", "sys", "capiblock")}
TOP_FOLDERS = {"runtime", "adapters", "examples", "tests", "tools"}
SKIPPED_FOLDERS = re.compile(r"^(build.*|\.git|\.cache|__pycache__)$")

LOWER = {"base", "sys", "config"}
PUBLIC = {"public"}
ALLOWED = {
    "base": {"base"},
    "sys": {"base", "sys"},
    "config": LOWER,
    "stats": LOWER | PUBLIC | {"stats"},
    "superpipe": LOWER | {"superpipe", "stats"},
    "lun": LOWER | {"superpipe", "lun", "stats"},
    "cblk": LOWER | PUBLIC | {"superpipe", "lun", "stats", "cblk"},
    "kv": LOWER | PUBLIC | {"superpipe", "lun", "stats", "kv"},
    "pager": LOWER | PUBLIC | {"superpipe", "lun", "stats", "pager"},
    "heap": LOWER | PUBLIC | {"superpipe", "lun", "stats", "cblk", "kv", "pager", "heap"},
    "public": PUBLIC,
    "elf": {"base", "sys", "elf"},
    "gate": LOWER | PUBLIC | {"stats", "pager", "elf", "gate"},
    "preload": LOWER | PUBLIC | {"stats", "pager", "heap", "elf", "gate", "preload"},
    "redis": LOWER | PUBLIC | {"stats", "pager", "heap", "elf", "gate", "redis"},
    "tools": LOWER | PUBLIC | {"stats", "superpipe", "lun", "kv", "tools"},
    "examples": PUBLIC | {"examples"},
}
# Folders of a part, called rooms, on floors, from the lowest to the highest. A room may include
# itself and the rooms on lower floors. "." is the part's own folder. Any other name is a folder in
# it, or a module (a header and its sources) in the part's own folder.
ROOMS = {
    "superpipe": [{"."}, {"ring"}, {"file", "nvme", "pmem", "capi", "sim"}, {"registry"}],
    "lun": [{"raw_io"}, {"raid"}, {"volume"}, {"."}],
    "kv": [{"."}, {"ark"}],
    "pager": [{"account", "page"}, {"state"}, {"space", "table"}, {"evict"}, {"fault"},
              {"activation"}, {"fork"},
              {"."}],
    "tools": [{"support"}, {"subcommands"}, {"lun", "kv", "bench"}, {"bench/io"},
              {"bench/fault", "bench/kv", "bench/redis"}, {"bench/bench"},
              {"run", "dev"}, {"doctor"}, {"."}],
}
# The only headers of a part that other parts may include. (tests/ may include all.)
FACE = {"pager": {"pager/pager.h", "pager/page_view.h", "pager/account/account_find.h"}}
RUNTIME_FOLDERS = {"base", "sys", "config", "stats", "superpipe", "lun", "cblk", "kv", "pager",
                   "heap"}

# Calls that only runtime/sys makes. Qualified names (sys::map), members and definitions of
# interposed functions do not count as calls.
OWNED_CALLS = """syscall ioctl userfaultfd mmap mmap64 munmap mremap madvise process_madvise
mprotect mincore mlock mlock2 mlockall munlock msync fallocate fallocate64 posix_fallocate vmsplice
splice tee pipe pipe2 memfd_create pread preadv pread64 pwrite pwritev pwrite64 open open64 openat
close_range ftruncate eventfd poll ppoll epoll_create1 epoll_ctl epoll_wait unshare clone
pthread_create sched_setaffinity sched_getaffinity sched_setscheduler pthread_setaffinity_np prctl
signalfd mbind set_mempolicy move_pages numa_available numa_alloc_onnode pidfd_open
statfs fstatfs""".split()
OWNED = re.compile(r"(?<!\w)(?P<call>" + "|".join(OWNED_CALLS) + r"|io_uring_\w+)\s*\(")
KEYWORDS = {"return", "else", "do", "case", "throw", "and", "or", "not", "co_return"}
# In pieces, so that this file contains no such path.
MACHINE_PATH = re.compile(r"(?<![\w./$}])/(?:" + "|".join(["work" + "/", "home" + r"/\w",
                                                           "root" + "/", "Users" + "/"])
                          + ")")


def source_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not SKIPPED_FOLDERS.match(f))
        for name in sorted(n for n in names if n != ".git"):   # a file in a worktree
            yield os.path.relpath(os.path.join(folder, name), root)


def part_of(path):
    """The part (a key of ALLOWED) that a file belongs to; None for tests and the top level, which
    may include everything."""
    pieces = path.split(os.sep)
    if pieces[0] == "runtime" and len(pieces) > 2:
        return "public" if pieces[1] == "include" else pieces[1]
    if pieces[0] == "adapters" and len(pieces) > 2:
        return pieces[1]
    return pieces[0] if pieces[0] in ("tools", "examples") else None


def room_of(part, path):
    """(floor, room) of a file of `part`; None where no room of ROOMS has the file."""
    above = 1 if part in ("tools", "examples") else 2   # tools/..., runtime/PART/...
    pieces = os.path.splitext(path)[0].split(os.sep)[above:]
    # The module, then its folder and those above.
    names = ["/".join(pieces[:count]) for count in range(len(pieces), 0, -1)]
    for room in names + (["."] if len(pieces) == 1 else []):
        for floor, rooms in enumerate(ROOMS.get(part, [])):
            if room in rooms:
                return floor, room
    return None


def strip_comments(text):
    """Blanks comments and the contents of strings, and keeps line breaks."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)

    def blank(match):
        body = match.group(0)
        return '""' if body[0] == '"' else "0" if body[0] == "'" else "\n" * body.count("\n") or " "
    return pattern.sub(blank, text)


def target_of(root, path, name, quoted):
    """(part, name relative to runtime/, path) that an include names; (None, name, None) for a
    system header."""
    same_folder = os.path.normpath(os.path.join(os.path.dirname(path), name))
    for candidate in (same_folder, os.path.join("runtime", name),
                      os.path.join("runtime", "include", name),
                      os.path.join("adapters", name), name):
        if os.path.isfile(os.path.join(root, candidate)):
            inside = candidate.startswith("runtime")
            relative = os.path.relpath(candidate, "runtime") if inside else candidate
            return part_of(candidate), relative, candidate
    # not there: classified by its name (<sys/mman.h> is the system's, "sys/..." is ours)
    first = name.split("/")[0]
    if quoted and first in RUNTIME_FOLDERS:
        return first, name, os.path.join("runtime", name)
    return None, name, None


def check_rooms(part, path, target, where):
    if part not in ROOMS:
        return
    here, there = room_of(part, path), room_of(part, target)
    if here is None:
        yield where + f"{os.path.dirname(path)} is no room of {part}: give it a floor in ROOMS"
    elif there is not None and here != there and there[0] >= here[0]:
        yield where + f"{part}/{here[1]} may not include {part}/{there[1]}: {target}"


def check_includes(root, path, text):
    part = part_of(path)
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if not match:
            continue
        target, name, there = target_of(root, path, match[2], match[1] == '"')
        where = f"{path}:{number}: "
        if part is not None and (there or "").startswith("tests" + os.sep):
            yield where + f"{part} may not include {name}: only tests may"
        if part is None or target is None:
            continue
        if target == part:
            yield from check_rooms(part, path, there, where)
            continue
        if target not in ALLOWED.get(part, set()):
            yield where + f"{part} may not include {name}"
        elif name not in FACE.get(target, {name}):
            face = ", ".join(sorted(FACE[target]))
            yield where + f"{part} may not include {name}: others see of {target} only {face}"


def is_call(before):
    """Whether a name between this text and `(` is a call of the C library's function: not of a
    member, not of a name in a class or namespace, and no declaration (it has a type before it)."""
    tail = before.rstrip()
    if tail.endswith((".", "->")) or re.search(r"\w::$", tail):
        return False
    typed = re.search(r"([A-Za-z_]\w*)[\s>]*[\s*&]*$", before)
    return not typed or typed[1] in KEYWORDS or before.endswith("::")


def check_calls(path, text):
    if not path.startswith(("runtime" + os.sep, "adapters" + os.sep)) or part_of(path) in ("sys",
        "public"):
        return
    # This file calls the library's own functions of those names.
    if path == os.path.join("adapters", "preload", "syscall.cpp"):
        return
    stripped = strip_comments(text)
    for match in OWNED.finditer(stripped):
        if is_call(stripped[max(0, match.start() - 200):match.start()]):
            line = stripped.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: calls {match['call']}(): only runtime/sys makes this system call"


# Only entry points of the pager, which these headers declare, fetch its state; they pass it on.
INTERFACE = ("pager.h", "fault/keep.h", "fork/fork.h")
PAGER = os.path.join("runtime", "pager", "")
STATE = os.path.join(PAGER, "state", "state")  # declares and defines pager_state()
FUNCTION = re.compile(r"^(?:[\w:<>*&]+ )*[*&]?(?:\w+::)*~?(?P<name>\w+)\(")


def check_state(root, path, text):
    if not path.startswith(PAGER):
        return
    entries = set()
    for name in INTERFACE:
        with open(os.path.join(root, PAGER, name), encoding="utf-8") as header:
            entries |= set(re.findall(r"\b(\w+)\(", strip_comments(header.read())))
    if path.startswith(STATE):
        entries.add("pager_state")
    function = ""
    for number, line in enumerate(strip_comments(text).splitlines(), 1):
        if match := FUNCTION.match(line):
            function = match["name"]
        if re.search(r"\bpager_state\s*\(", line) and function not in entries:
            yield f"{path}:{number}: fetches the pager's state, which it is given"


def columns_max(path, script):
    """The greatest length of a line of the file; None: there is none."""
    return COLUMNS_MAX if script or path.endswith(SOURCE + WRAPPED) else None


def check_page(path, text):
    """Lines of prose. Rows of tables, code and commands may be longer."""
    prose = True
    for number, line in enumerate(text.splitlines(), 1):
        prose ^= line.startswith("```")
        if prose and len(re.sub(r"`[^`]{60,}`", "", line)) > COLUMNS_MAX and line[0] != "|":
            yield f"{path}:{number}: {len(line)} columns; at most {COLUMNS_MAX}"


def check_form(path, text):
    lines = text.splitlines()
    script = text.startswith("#!")
    if path.endswith(SOURCE) or script:
        first = lines[1 if script and len(lines) > 1 else 0] if lines else ""
        if SPDX not in first:
            yield f"{path}:1: does not open with `{SPDX}`"
        elif not first.rstrip(" */").endswith(SPDX):
            yield f"{path}:1: more than the licence stands in its line"
        if len(lines) > LINES_MAX:
            yield f"{path}: {len(lines)} lines; at most {LINES_MAX}"
        if os.path.splitext(path)[1] in (".hpp", ".hh", ".hxx", ".H") and path not in OTHER_HEADERS:
            yield f"{path}: headers end in {HEADER}"
    columns = columns_max(path, script)
    for number, line in enumerate(lines, 1):
        directive = path.endswith(".conf") and not line.startswith("#")   # one line by their syntax
        if columns and len(line) > columns and not directive:
            yield f"{path}:{number}: {len(line)} columns; at most {columns}"
        match = MACHINE_PATH.search(line)
        if match:
            yield f"{path}:{number}: names a directory of a developer's machine: {match[0]}"


def check_functions(path, text):
    code = strip_comments(text) if path.endswith(SOURCE) else text
    for line, name, lines in functions_of(path, code):
        if lines > FUNCTION_LINES_MAX:
            yield f"{path}:{line}: {name}() has {lines} lines; at most {FUNCTION_LINES_MAX}"


OWN_LIMIT = {".cpp": re.compile(r"(?<![\w.>])alarm\s*\("), ".py": re.compile(r"[(,]\s*timeout=")}


def check_limits(path, text):
    pattern = OWN_LIMIT.get(os.path.splitext(path)[1])
    if pattern and path.startswith("tests" + os.sep) and not path.startswith(os.path.join("tests",
        "layout")):
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield (f"{path}:{number}: a time limit of its own: tests/support/watch.py has one, "
                       "and shows where a test hangs")


# A file of this tree in a script.
ROOTED = re.compile(r"\$\{?root\}?/((?:" + "|".join(sorted(TOP_FOLDERS)) + r")/[\w./-]*\w)")


def check_script(root, path, text):
    """The files that it names exist. Some scripts run seldom, so that nothing else would tell."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in ROOTED.findall(line):
            if not os.path.exists(os.path.join(root, name)):
                yield f"{path}:{number}: there is no {name}"


def check_names(paths):
    """Two modules of one name cannot be told apart in an include, a build file or a stack."""
    modules, checked = {}, ("runtime", "adapters", "tools", "tests")
    for path in paths:
        module, suffix = os.path.splitext(path)
        if suffix in SOURCE and module not in SAME_NAME and path.split(os.sep)[0] in checked:
            other = modules.setdefault(os.path.basename(module), module)
            if other != module:
                yield f"{path}: {other} has this name already"


def check_tree(root):
    problems, warnings = [], []
    problems += check_names(source_files(root))
    for path in source_files(root):
        if path == "LICENSE":
            continue
        try:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                text = file.read()
        except (UnicodeDecodeError, OSError):
            continue
        problems += check_form(path, text)
        problems += check_limits(path, text)
        if path.endswith(".md"):
            problems += check_page(path, text)
        if text.startswith(("#!/bin/bash", "#!/bin/sh")) or path.endswith(".sh"):
            problems += check_script(root, path, text)
        if path.endswith(SOURCE + (".py",)) or text.startswith("#!/usr/bin/env python3"):
            problems += check_functions(path, text)
        if path.endswith(SOURCE + (".def",)):
            problems += check_includes(root, path, text)
            problems += check_calls(path, text)
            problems += check_state(root, path, text)
            lines = text.count("\n")
            if LINES_WARN < lines <= LINES_MAX:
                warnings.append(f"warning: {path}: {lines} lines; aim for {LINES_WARN}")
    return problems, warnings


def main():
    problems, warnings = check_tree(sys.argv[1] if len(sys.argv) > 1 else ".")
    print("\n".join([*warnings, *problems]) or "the tree keeps its shape")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
