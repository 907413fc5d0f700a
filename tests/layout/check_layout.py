#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the tree keeps its shape. `check_layout.py ROOT`: one line a violation, exit 1 when
there is any.

Arrows: base <- sys <- config <- stats <- superpipe <- lun <- {cblk, kv, pager} <- heap <- public C
ABI. adapters/, examples/ and tools/ include public headers, tools also base/, config/ and stats/.
Nothing includes adapters/ or tools/ except tests/, which may include what they test. Inside a part,
rooms (ROOMS) have floors; other parts see only the pager's FACE. Two exceptions, on purpose:
  - adapters/preload and adapters/redis embed the runtime: they put it into an unmodified program,
    so they may include what heap/ may. Both carry adapters/gate, which sees the pager and below.
  - tools/ may ask the same questions of the kernel that the runtime asks (`lunar doctor`), so they
    may include sys/; and they administer and measure devices and stores (`lunar lun`, `lunar kv`,
    `lunar bench superpipe`), so superpipe/, lun/ and kv/ too.
Tests set themselves no time limit (an alarm, a timeout of a child process): tests/support/watch.py
has one for each, and shows where the test hangs. Also: only runtime/sys makes the system calls it
owns; every source opens with its licence; no file, function or line is too long; headers end in .h;
no two modules (a header and its sources) have one name; a script's "$root/PATH" is there; nothing
names a developer's own directories."""
import os
import re
import sys

from function_lengths import functions_of

LINES_MAX, LINES_WARN = 800, 400
FUNCTION_LINES_MAX = 70   # of C, C++ and Python
COLUMNS_MAX = 100   # as .clang-format has it: of C, C++, scripts, build files and settings
SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE = (".c", ".cpp", ".h", ".hpp")
WRAPPED = (".py", ".sh", ".js", ".build", ".conf", ".supp")   # and what begins with #!
HEADER = ".h"
# The public C++ headers; and the name that IBM's programs include the block library's by.
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
# Rooms of a part, a row a floor from the lowest up: a room may include itself and those on lower
# floors. "." is the part's own folder, another name a folder in it, or a module (its header and
# sources) of the part's own folder that stands on a floor of its own.
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
# The headers that other parts may include. (tests/ may include all.)
FACE = {"pager": {"pager/pager.h", "pager/page_view.h", "pager/account/account_find.h"}}
RUNTIME_FOLDERS = {"base", "sys", "config", "stats", "superpipe", "lun", "cblk", "kv", "pager",
                   "heap"}

# Calls whose only home is runtime/sys. Qualified names (sys::map), members and definitions of
# interposed functions are not calls of these.
OWNED_CALLS = """syscall ioctl userfaultfd mmap mmap64 munmap mremap madvise process_madvise
mprotect mincore mlock mlock2 mlockall munlock msync fallocate fallocate64 posix_fallocate vmsplice
splice tee pipe pipe2 memfd_create pread preadv pread64 pwrite pwritev pwrite64 open open64 openat
close_range ftruncate eventfd poll ppoll epoll_create1 epoll_ctl epoll_wait unshare clone
pthread_create sched_setaffinity sched_getaffinity sched_setscheduler pthread_setaffinity_np prctl
signalfd mbind set_mempolicy move_pages numa_available numa_alloc_onnode pidfd_open
statfs fstatfs""".split()
OWNED = re.compile(r"(?<!\w)(?P<call>" + "|".join(OWNED_CALLS) + r"|io_uring_\w+)\s*\(")
KEYWORDS = {"return", "else", "do", "case", "throw", "and", "or", "not", "co_return"}
# Written in pieces, so that this file does not name them itself.
MACHINE_PATH = re.compile(r"(?<![\w./$}])/(?:" + "|".join(["work" + "/", "home" + r"/\w",
                                                           "root" + "/", "Users" + "/"])
                          + ")")


def source_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not SKIPPED_FOLDERS.match(f))
        for name in sorted(n for n in names if n != ".git"):   # a file in a worktree
            yield os.path.relpath(os.path.join(folder, name), root)


def part_of(path):
    """The part (a key of ALLOWED) that a file belongs to, or None when no arrow leaves it (tests,
    top level)."""
    pieces = path.split(os.sep)
    if pieces[0] == "runtime" and len(pieces) > 2:
        return "public" if pieces[1] == "include" else pieces[1]
    if pieces[0] == "adapters" and len(pieces) > 2:
        return pieces[1]
    return pieces[0] if pieces[0] in ("tools", "examples") else None


def room_of(part, path):
    """(floor, room) of a file of a part that has rooms; None where the part has none, or not this
    one."""
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
    """Comments and string contents blanked, line breaks kept."""
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
    """Whether a name after this text, with `(` behind it, is called as the C library's: not a
    member, not a name of some class or namespace, not a declaration (which has a type before
    it)."""
    tail = before.rstrip()
    if tail.endswith((".", "->")) or re.search(r"\w::$", tail):
        return False
    typed = re.search(r"([A-Za-z_]\w*)[\s>]*[\s*&]*$", before)
    return not typed or typed[1] in KEYWORDS or before.endswith("::")


def check_calls(path, text):
    if not path.startswith(("runtime" + os.sep, "adapters" + os.sep)) or part_of(path) in ("sys",
        "public"):
        return
    # calls this library's own functions of those names
    if path == os.path.join("adapters", "preload", "syscall.cpp"):
        return
    stripped = strip_comments(text)
    for match in OWNED.finditer(stripped):
        if is_call(stripped[max(0, match.start() - 200):match.start()]):
            line = stripped.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: calls {match['call']}(): only runtime/sys makes this system call"


# Functions of the pager are given its state. Entry points, which are what these declare, fetch it.
INTERFACE = ("pager.h", "fault/keep.h", "fork/fork.h")
PAGER = os.path.join("runtime", "pager", "")
STATE = os.path.join(PAGER, "state", "state")  # declares and defines what is fetched
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
    """How long lines of a file may be; None: as long as they like."""
    return COLUMNS_MAX if script or path.endswith(SOURCE + WRAPPED) else None


def check_page(path, text):
    """Prose: rows of tables, code and commands are as long as they have to be."""
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


# Limits of a test's own, which would end it unexamined.
OWN_LIMIT = {".cpp": re.compile(r"(?<![\w.>])alarm\s*\("), ".py": re.compile(r"[(,]\s*timeout=")}


def check_limits(path, text):
    pattern = OWN_LIMIT.get(os.path.splitext(path)[1])
    if pattern and path.startswith("tests" + os.sep) and not path.startswith(os.path.join("tests",
        "layout")):
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                yield (f"{path}:{number}: a time limit of its own: tests/support/watch.py has one, "
                       f"and shows where a test "
                       "hangs")


# In a script, a file of this tree by its path from the root.
ROOTED = re.compile(r"\$\{?root\}?/((?:" + "|".join(sorted(TOP_FOLDERS)) + r")/[\w./-]*\w)")


def check_script(root, path, text):
    """Scripts that only slow or rare runs use name what is there."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in ROOTED.findall(line):
            if not os.path.exists(os.path.join(root, name)):
                yield f"{path}:{number}: there is no {name}"


def check_names(paths):
    """Modules of one name: an include, a line of a build or a stack would not say which."""
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
