# SPDX-License-Identifier: Apache-2.0
"""A program runs twice with the same input, plain and under `lunar run --dram CAP`. Both outputs
must be the same, byte for byte.

An untiered run does not pass. The plain run must need four times the cap; the tiered one must say,
in the table of --stats, that it evicted at least twice its budget and stayed under it, and its
resident set (its own word, and the kernel's by wait4) may peak at no more than the cap + 64 MiB. Of
a tree of processes (gcc and its cc1) the one that evicted most is looked at."""
import os
import re
import subprocess

import pytest

from build_tree import BUILD, LUNAR

WORKLOADS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workloads")
MIB = 1 << 20
OVERHEAD = 64 * MIB   # what the resident set may have above the cap
# name: size, cap in MiB
SHORT = {"python-dict": (320_000, 32), "python-matrix": (2_600, 64), "sqlite": (400_000, 32),
         "gcc": (4_200, 64), "map": (2_800_000, 32), "tbb-sort": (17_500_000, 32)}
FULL = {"python-dict": (2_600_000, 256), "python-matrix": (5_700, 256), "sqlite": (3_200_000, 256),
        "sort": (4_800_000, 256), "perl": (6_000_000, 256), "gcc": (17_000, 256),
        "map": (10_000_000, 112), "tbb-sort": (140_000_000, 256)}


def mixed(i):
    return i * 2654435761


def lines(size):
    """In ascending windows, shuffled inside each, so that neighbours stay near."""
    for first in range(0, size, 1024):
        for j in range(1024):
            i = first + (j * 389 + 77) % 1024
            yield f"{i:09} {f'{mixed(i):x}' * 14}\n"


def c_file(size):
    """One table and many functions."""
    yield ("struct record { const char *name; unsigned a, b; double c; };\n"
           "static const struct record table[] = {\n")
    for i in range(size * 8):
        yield (f'  {{"record {i} of the table, {mixed(i):x}", {i}u, '
               f"0x{mixed(i) & 0xffffffff:x}u, {i}.5}},\n")
    yield "};\n"
    for i in range(size):
        yield (f"static unsigned f{i}(unsigned x, const unsigned *p) {{\n"
               f"  unsigned s = x ^ {mixed(i) & 0xffffffff}u;\n"
               f"  for (unsigned i = 0; i < (x & {i % 61 + 3}); ++i)\n"
               f"    s = s * 31 + p[(s + i) & 15] + table[(s ^ {i}) % {size * 8}].a;\n"
               f"  switch (s & 3) {{ case 0: return s + {i}; case 1: return s * 7 ^ x;\n"
               "  case 2: return p[s & 7]; default: return s - 1; }\n}\n")
    yield "unsigned all(unsigned x, const unsigned *p) {\n  unsigned s = x;\n"
    for i in range(size):
        yield f"  s += f{i}(s, p);\n"
    yield "  return s;\n}\n"


def sql(size):
    yield f"CREATE TABLE size(n);\nINSERT INTO size VALUES({size});\n.read {WORKLOADS}/index.sql\n"


def written(directory, name, pieces):
    path = os.path.join(directory, name)
    with open(path, "w", encoding="ascii") as file:
        file.writelines(pieces)
    return path


def command(name, size, directory):
    """Its words, and its standard input."""
    if name in ("map", "tbb-sort"):
        return [os.path.join(BUILD, "tests/e2e/workload-" + name), str(size)], os.devnull
    kind, _, part = name.partition("-")
    program = {"python": "python3", "sqlite": "sqlite3"}.get(kind, kind)
    if not os.access("/usr/bin/" + program, os.X_OK):
        pytest.skip(f"{program}: it is not in /usr/bin")
    given, words = os.devnull, []
    if kind == "python":
        words = ["-S", "-E", f"{WORKLOADS}/{part}.py", str(size)]
    elif kind == "sqlite":
        given = written(directory, "input.sql", sql(size))
        words = ["-batch", "-init", os.devnull, ":memory:"]
    elif kind == "sort":
        words = ["-S", "2G", "--parallel=2", written(directory, "lines", lines(size))]
    elif kind == "perl":
        words = [f"{WORKLOADS}/records.pl", str(size)]
    else:
        words = ["-O0", "-S", "-o", "-", written(directory, "large.c", c_file(size))]
    return ["/usr/bin/" + program, *words], given


class Ended:
    """A run: its files, how it ended, and the largest resident set of its processes."""

    def __init__(self, words, given, directory, side):
        self.output, errors = (os.path.join(directory, f"{side}.{part}") for part in ("out", "err"))
        # The same hashes in both runs; nothing of ours in the plain one.
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("LUNAR_") and name != "LD_PRELOAD"}
        environment |= {"PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0",
                        "LC_ALL": "C", "TMPDIR": directory}
        with open(given, "rb") as stdin, open(self.output, "wb") as out, open(errors, "wb") as err:
            child = subprocess.Popen(words, stdin=stdin, stdout=out, stderr=err, env=environment)
            _, status, usage = os.wait4(child.pid, 0)
        self.code = child.returncode = os.waitstatus_to_exitcode(status)
        self.rss = usage.ru_maxrss * 1024
        with open(errors, encoding="utf-8", errors="replace") as file:
            self.said = file.read()


def take_tables(said):
    """The tables of `--stats`, and what else was said."""
    tables, rest = [], ""
    for line in said.splitlines(keepends=True):
        if not (found := re.match(r"lunar: stats: (\S+) (\S+)", line)):
            rest += line
            continue
        if found[1] == "program":   # the first line of each
            tables.append({})
        tables[-1][found[1]] = found[2]
    return tables, rest


def check_memory(table, plain, tiered, cap):
    figures = {key: int(value) for key, value in table.items() if value.isdigit()}
    assert figures.get("armed") == 1, "an untiered run"
    assert figures["cap_bytes"] == cap
    assert plain.rss >= 4 * cap, "the plain run hardly needs more than the cap"
    assert figures["evictions_bytes"] >= 2 * cap
    assert 0 < figures["peak_resident_bytes"] <= cap
    assert 0 < figures["peak_rss_bytes"] <= cap + OVERHEAD
    assert tiered.rss <= cap + OVERHEAD
    assert figures["read_errors"] == figures["write_errors"] == figures["poisoned"] == 0


def compare(name, size, cap_mib, directory, lunar=True):
    cap = cap_mib * MIB
    words, given = command(name, size, directory)
    plain = Ended(words, given, directory, "plain")
    assert plain.code == 0, plain.said
    under = [LUNAR, "run", f"--dram={cap}", "--lun=" + directory, "--stats", "--"] if lunar else []
    tiered = Ended([*under, *words], given, directory, "tiered")
    if tiered.code == 125 and "userfaultfd" in tiered.said:
        pytest.skip("userfaultfd: " + tiered.said.splitlines()[0])
    tables, said = take_tables(tiered.said)
    assert tiered.code == 0, said
    same = subprocess.run(["cmp", plain.output, tiered.output], stdout=subprocess.PIPE, text=True,
                          check=False)
    assert same.returncode == 0, same.stdout
    assert os.path.getsize(plain.output) >= 40, "nothing is proven"
    assert said == plain.said
    table = max(tables, key=lambda one: int(one.get("evictions", 0)), default={})
    print(f"needed {plain.rss / MIB:.0f} MiB, peak {tiered.rss / MIB:.0f}; {table}")
    check_memory(table, plain, tiered, cap)


@pytest.mark.parametrize("name", SHORT)
def test_equal(name, directory):
    compare(name, *SHORT[name], directory)


@pytest.mark.parametrize("name", FULL)
def test_full(name, directory):
    compare(name, *FULL[name], directory)


def test_untiered_fails(directory):
    with pytest.raises(AssertionError, match="an untiered run"):
        compare("map", 700_000, 8, directory, lunar=False)
