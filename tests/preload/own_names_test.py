# SPDX-License-Identifier: Apache-2.0
"""The preload library calls none of the functions that it exports, but its own behind them: the
program may have overwritten those with a jump (UCX, Open MPI), or have functions of its own by
these names. Looks at the machine code (objdump)."""
import os
import re
import subprocess

from build_tree import BUILD, ROOT

PRELOAD = os.path.join(BUILD, "adapters/preload/liblunar-preload.so")
MAP = os.path.join(ROOT, "adapters/preload/preload.map")
# Calls that are meant to come through the library: jemalloc's (jemalloc_family.cpp says why); for
# memory, of the C++ runtime that is linked in; and of libc's static part of pthread_atfork.
MEANT = re.compile(r"[sdrx]+allocx|malloc|realloc|free|_Zd[al]P.*|__register_atfork")


def exported():
    with open(MAP, encoding="utf-8") as file:
        names = re.search(r"global:(.*?)local:", file.read(), re.DOTALL)[1]
    return {name for name in re.findall(r"\w+(?=;)", names) if not MEANT.fullmatch(name)}


def test_calls():
    names, inside, bad, functions = exported(), "", set(), 0
    code = subprocess.run(["objdump", "-d", "--no-show-raw-insn", PRELOAD], capture_output=True,
                          text=True, check=True)
    for line in code.stdout.splitlines():
        begins = re.match(r"[0-9a-f]+ <(.+)>:$", line)
        if begins:
            inside, functions = begins[1], functions + 1
            continue
        # <name+0x12> is a jump within a function
        for name in re.findall(r"<(\w+)(?:@[^>]*)?>", line):
            if name in names and not inside.startswith(name + "@"):
                bad.add(f"{inside} uses {name}")
    assert not bad
    assert functions >= 500 and len(names) >= 50, "nothing is proven"
