#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds check_layout.py small trees with one violation each, and one that is right: a checker that lets everything pass
must not look like a tree in order."""
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
from check_layout import COLUMNS_MAX, FUNCTION_LINES_MAX, LINES_MAX, check_tree  # noqa: E402

HEAD = "// SPDX-License-Identifier: Apache-2.0\n"
SCRIPT = "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"
HOME = "/ho" + "me/developer/lunar"

WRAPPED = ("runtime/pager/meson.build", "tests/process/slow_test.py", "tests/vm/machine.sh", "tests/programs/heap.js",
           "examples/redis/redis.conf", "tests/tsan.supp")


def c_function(head, lines, inside="  f();\n"):
    """A function of so many lines."""
    return head + " {\n" + inside * (lines - 2) + "}\n"


TOO_LONG = FUNCTION_LINES_MAX + 1
# One that is too long, in each form that heads have; and what is no function, or is short.
LONG_FUNCTIONS = [
    *[("runtime/pager/evict.cpp", c_function(head, TOO_LONG), "lines; at most") for head in (
        "int main(int argc, char** argv)", "Evictor::Evictor(int n) : n_(n), size_{1}", 'TEST_CASE("a } {")',
        "bool operator==(const A& a, const A& b)", "auto f(int n = 3) -> int", "static void g(\n    int x) noexcept",
        "template <class T>\nT h(T t)", "#if A\nint f(int);\n#endif\nint g()")],
    ("runtime/pager/evict.cpp", "namespace {\nstruct A {\n" + c_function("  int f() const", TOO_LONG)[:-2]
     + "  }\n};\n}\n", "f() has"),
    ("runtime/pager/evict.cpp", c_function("void f()", TOO_LONG, "  if (a) { b(); }\n"), "f() has"),
    ("runtime/pager/evict.cpp", c_function("void f()", FUNCTION_LINES_MAX), None),
    ("runtime/pager/evict.cpp", c_function("namespace lunar", 3 * TOO_LONG, "int f() { return 1; }\n"), None),
    ("runtime/pager/evict.cpp", c_function("struct alignas(64) A", TOO_LONG, "  int f(int n);\n"), None),
    ("runtime/pager/evict.cpp", c_function("const int kTable[] =", TOO_LONG, "  f(1),\n")[:-1] + ";\n", None),
]
FULL = "x" * (COLUMNS_MAX - 20)
TORN = [
    ("runtime/pager/evict.cpp", f"//   name   {FULL}\n//          page\n//          table of it\n", None),
    ("runtime/pager/evict.cpp", f"//   name   {FULL} yyyy\n//          page\n//          table of it\n",
     "has torn"),
    ("runtime/pager/evict.cpp", f"// {FULL} yyyyyyyyyyyyyyyy\n// page\n// table of it\n", "has torn"),
    ("runtime/pager/evict.cpp", f"// {FULL} yyyyyyyyyyyyyyyy\n// page.\n// table of it\n", None),
    ("runtime/pager/evict.cpp", f"// {FULL} yyyyyyyyyyyyyyyy\n// page\n//   table of it\n", None),
]
# The path of a file, what it holds after the licence line, and a word of the complaint (None: there must be none).
CASES = [
    ("runtime/pager/evict.cpp", '#include "lun/compose.h"\n#include "lunar/lunar.h"\n', None),
    ("runtime/sys/arena.cpp", '#include "sys/mem.h"\n', None),
    ("adapters/preload/shim.cpp", '#include "heap/heap.h"\nvoid* mmap(void* p) { return real_mmap(p); }\n', None),
    ("tools/stats.cpp", '#include "stats/counters.h"\n', None),
    ("runtime/pager/evict.cpp", "// madvise(p, n, MADV_DONTNEED) is not ours\nint n = sys::madvise(p);\n", None),
    ("runtime/pager/evict.cpp", 'log_error("mmap(%p) failed", p);\n', None),
    ("runtime/pager/evict.cpp", "rc = list[i]->open(i);\nint Evictor::open(int) {}\n[[nodiscard]] int poll();\n", None),
    ("adapters/preload/shim.cpp", "int open(const char* path);\nstd::vector<int> poll();\n", None),
    ("runtime/base/format.cpp", '#include "sys/mem.h"\n', "base may not include"),
    ("runtime/sys/mem.cpp", '#include "pager/pager.h"\n', "sys may not include"),
    ("runtime/lun/compose.cpp", '#include "pager/pager.h"\n', "lun may not include"),
    ("runtime/pager/evict.cpp", '#include "heap/heap.h"\n', "pager may not include"),
    ("runtime/pager/evict.cpp", '#include "kv/table.h"\n', "pager may not include"),
    ("runtime/include/lunar/lunar.h", '#include "pager/pager.h"\n', "public may not include"),
    ("runtime/heap/heap.cpp", '#include "tools/table.h"\n', "heap may not include"),
    ("tools/run/run.cpp", '#include "pager/pager.h"\n', "tools may not include"),
    ("examples/matrix.cpp", '#include "base/units.h"\n', "examples may not include"),
    ("tests/unit/test_run.cpp", '#include "tools/table.h"\n#include "pager/pager.h"\n', None),
    ("examples/matrix.cpp", '#include "tools/table.h"\n', "examples may not include"),
    ("adapters/redis/module.cpp", '#include "kv/store.h"\n', "redis may not include"),
    ("adapters/redis/module.cpp", '#include "gate/gate.h"\n', None),
    ("adapters/gate/gate.cpp", '#include "heap/heap.h"\n', "gate may not include"),
    ("runtime/pager/evict.cpp", '#include "gate/gate.h"\n', "pager may not include"),
    ("runtime/superpipe/registry.cpp", '#include "superpipe/sim/sim_device.h"\n', None),
    ("runtime/superpipe/sim/sim_device.cpp",
     '#include "superpipe/device.h"\n#include "superpipe/ring/delegate.h"\n', None),
    ("runtime/superpipe/device.cpp", '#include "superpipe/sim/sim_device.h"\n',
     "superpipe/. may not include superpipe/sim"),
    ("runtime/superpipe/nvme/nvme_device.cpp", '#include "superpipe/sim/sim_device.h"\n',
     "superpipe/nvme may not include superpipe/sim"),
    ("runtime/superpipe/sim/sim_device.cpp", '#include "superpipe/registry.h"\n',
     "superpipe/sim may not include superpipe/registry"),
    ("runtime/lun/raid/stripe_device.cpp", '#include "lun/volume/physical_lun.h"\n',
     "lun/raid may not include lun/volume"),
    ("runtime/lun/volume/physical_open.cpp", '#include "lun/raid/member_label.h"\n#include "lun/raw_io.h"\n', None),
    ("runtime/lun/volume/physical_open.cpp", '#include "lun/compose.h"\n', "lun/volume may not include lun/."),
    ("runtime/kv/store.cpp", '#include "kv/ark/ark_open.h"\n', "kv/. may not include kv/ark"),
    ("runtime/kv/ark/ark_open.cpp", '#include "kv/store.h"\n', None),
    ("tools/bench/io/io_bench.cpp", '#include "tools/bench/fault/page_sweep.h"\n',
     "tools/bench/io may not include tools/bench/fault"),
    ("tools/run/run.cpp", '#include "tools/help.h"\n', "tools/run may not include tools/."),
    ("tools/bench/redis/side.cpp", '#include "tools/bench/turn.h"\n', None),
    ("tools/bench/redis/side.cpp", '#include "tools/bench/fault/page_sweep.h"\n',
     "tools/bench/redis may not include tools/bench/fault"),
    ("tools/support/text.cpp", '#include "tools/run/run_flags.h"\n', "tools/support may not include tools/run"),
    ("tools/lun/create.cpp", '#include "tools/help.h"\n', "tools/lun may not include tools/."),
    ("adapters/gate/gate.cpp", '#include "pager/page_view.h"\n', None),
    ("adapters/gate/gate.cpp", '#include "pager/state.h"\n', "others see of pager only"),
    ("runtime/heap/heap.cpp", '#include "pager/evictor.h"\n', "others see of pager only"),
    ("tests/unit/pager/test_frames.cpp", '#include "pager/frames.h"\n', None),
    ("runtime/pager/table.cpp", "int x;\n", "has this name already"),
    ("tools/table.cpp", "int x;\n", None),
    ("tests/support/random.hpp", "int x;\n", "headers end in .h"),
    ("runtime/include/lunar/lunar.hpp", "int x;\n", None),
    ("runtime/pager/evict.cpp", "//" + "x" * (COLUMNS_MAX - 2) + "\n", None),
    ("runtime/pager/evict.cpp", "//" + "x" * (COLUMNS_MAX - 1) + "\n", "columns; at most"),
    *[(path, "#" + "x" * (COLUMNS_MAX - 1) + "\n", None) for path in WRAPPED],
    *[(path, "#" + "x" * COLUMNS_MAX + "\n", "columns; at most") for path in WRAPPED],
    ("tests/README.md", "x" * (2 * COLUMNS_MAX) + "\n", None),
    ("runtime/superpipe/attic/old.cpp", '#include "superpipe/device.h"\n', "is no room of superpipe"),
    ("runtime/pager/evict.cpp", "int f() { return madvise(p, n, 4); }\n", "calls madvise()"),
    ("runtime/pager/evict.cpp", "if (::ioctl(fd, 1, &x) != 0) return;\n", "calls ioctl()"),
    ("runtime/pager/evict.cpp", "(void)ioctl(fd, 1, &x);\n", "calls ioctl()"),
    ("runtime/pager/evict.cpp", "foo(1);\npoll(&p, 1, 0);\n", "calls poll()"),
    ("runtime/superpipe/file.cpp", "x = io_uring_submit(&ring);\n", "calls io_uring_submit()"),
    ("adapters/preload/shim.cpp", "  void* p =\n      mmap(nullptr, 1);\n", "calls mmap()"),
    ("runtime/pager/evictor.cpp", "void f() { pager_state().account.give(1); }\n", "which it is given"),
    ("runtime/pager/evict_write.cpp", "auto& state = pager_state();\n", "which it is given"),
    ("runtime/pager/evictor.cpp", "state_.account.give(1);  // not pager_state()\n", None),
    ("runtime/pager/fork.cpp", "auto& state = pager_state();\n", "which it is given"),
    ("runtime/pager/region.cpp", "int pager_touch(void* p) {\n  return find(pager_state(), p);\n}\n", None),
    ("runtime/pager/region.cpp",
     "int pager_touch(void* p) {}\nstatic int find(void* p) {\n  return pager_state().n;\n}\n", "which it is given"),
    ("runtime/pager/handler.cpp", "void Handler::park() {\n  pager_state().evictor->wake();\n}\n", "which it is given"),
    ("runtime/lun/list.cpp", "for (int x : {1, 2}) f(x);\n", "without <initializer_list>"),
    ("runtime/lun/list.cpp", "#include <initializer_list>\nfor (int x : {1, 2}) f(x);\nfor (;;) g({});\n", None),
    ("runtime/heap/heap.cpp", f'// built in {HOME}\n', "a developer's machine"),
    ("tests/fault/slow.cpp", "void f() { alarm(10); }\n", "a time limit of its own"),
    ("tests/fault/slow.cpp", "void g() { on_alarm(10); clock->alarm(3); }\n", None),
    ("tests/process/slow_test.py", "child.communicate(timeout=10)\n", "a time limit of its own"),
    ("tests/vm/machine.sh", '. "$root/tools/dev/root.sh"\n', "there is no tools/dev/root.sh"),
    ("tests/vm/machine.sh", '. "$root/tools/table.h" "${root}/build/x" "$root/tools/$name"\n', None),
    ("tools/wait.py", "child.communicate(timeout=10)\n", None),
    ("tools/long.cpp", "int x;\n" * LINES_MAX, "at most"),
    *LONG_FUNCTIONS,
    *TORN,
]
# The same of whole files, from the first line.
WHOLE_FILES = [
    ("tools/fresh", SCRIPT + "#" + "x" * (COLUMNS_MAX - 1) + "\n", None),
    ("tools/fresh", SCRIPT + "#" + "x" * COLUMNS_MAX + "\n", "columns; at most"),
    ("tools/wait.py", SCRIPT[10:] + "def f():\n" + "    g()\n" * FUNCTION_LINES_MAX, "f() has"),
    ("tools/wait.py", SCRIPT[10:] + "def f():\n" + "    g()\n" * (FUNCTION_LINES_MAX - 1), None),
    ("runtime/sys/log.cpp", "int no_licence;\n", "does not open with"),
    ("runtime/sys/log.cpp", HEAD[:-1] + " See log.h.\nint a;\n", "more than the licence"),
]
PRESENT = ["runtime/lun/compose.h", "runtime/include/lunar/lunar.h", "runtime/sys/mem.h", "runtime/sys/uring.h",
           "runtime/heap/heap.h", "runtime/stats/counters.h", "runtime/pager/pager.h", "runtime/base/units.h",
           "tools/table.h", "adapters/gate/gate.h", "tools/bench/turn.h", "tools/bench/fault/page_sweep.h",
           "tools/run/run_flags.h", "tools/help.h"]

ENTRIES = ("runtime/pager/pager.h", HEAD + "int pager_touch(void* p);\n")


def complaints(path, text):
    with tempfile.TemporaryDirectory() as root:
        for name, body in [*((p, HEAD) for p in PRESENT), ENTRIES, (path, text)]:
            full = os.path.join(root, name)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(body)
        return check_tree(root)[0]


def main():
    wrong = 0
    cases = [*((path, HEAD + body, expected) for path, body, expected in CASES), *WHOLE_FILES]
    for path, body, expected in cases:
        found = complaints(path, body)
        right = (not found) if expected is None else (len(found) == 1 and expected in found[0])
        if not right:
            wrong += 1
            print(f"{path}: {body[len(HEAD):][:60]!r}: expected {expected!r}, found {found}")
    print(f"{len(cases) - wrong} right, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
