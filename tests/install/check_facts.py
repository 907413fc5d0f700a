#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`check_facts.py ROOT LUNAR`: numbers that documents state are those of the code.

FACTS lists each number twice: where a document states it, and where the code has it. A pattern that no longer matches
is a failure, too: then document and code have moved apart, or this list is stale. Defaults of the Redis module's table
and names of the --stats table are compared with what the program prints; README's figures with those of MEASUREMENTS,
its number of tests with the build's, and commits that documents name must be there. (The options table:
check_readme.py.)"""
import json
import os
import re
import subprocess
import sys

ROOT, LUNAR = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
WORDS = {"a quarter": 4, "ten": 10, "half": 2}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
UNITS |= {"k" + unit: size for unit, size in UNITS.items()}   # in C++
problems = []

# (document, pattern with the number), (source, pattern with the number). (N is a number as people or C++ write it, a
# blank any white space: a document may be wrapped at any word.
FACTS = [
    (("README.md", r"budget is (a quarter) of the available memory"),
     ("runtime/pager/pager.cpp", r"options\.dram : available / (N)")),
    (("adapters/redis/README.md", r"\| `dram SIZE` .*default: (a quarter) of the memory"),
     ("runtime/pager/pager.cpp", r"options\.dram : available / (N)")),
    (("adapters/redis/README.md", r"\| `size SIZE` .*default: (N) times the budget"),
     ("runtime/pager/pager.cpp", r"state\.lun_bytes : state\.dram_bytes \* (N)")),
    (("runtime/LIMITS.md", r"come near their budget \((7/8) of it"),
     ("runtime/pager/activation.cpp", r"return cap - \(needed > cap / (8) \? needed : cap / 8\)")),
    (("adapters/redis/README.md", r"and held input to (N MiB)"),
     ("adapters/gate/connections.h", r"kHeldBytesMax = (N);\s+// of all others; half of it a user")),
    (("adapters/redis/README.md", r"limits reads under way to (a quarter) of the DRAM budget"),
     ("adapters/gate/gate_inside.h", r"kUserPart = (N)")),
    (("adapters/redis/README.md", r"default: 100\); (ten) times that where a command"),
     ("adapters/gate/gate_inside.h", r"kLookupHolds = (N);")),
    (("adapters/redis/README.md", r"limits `maxmemory` to (7/8) of the space for data"),
     ("adapters/redis/memory_limit.cpp", r"space\.capacity\) / (8) \* 7;")),
    (("examples/redis/README.md", r"under way \(or (N) requests\)"),
     ("adapters/gate/fetcher.h", r"kRequestsMax = (N),")),
    (("CHANGELOG.md", r"sequential ones (N) pages at once"),
     ("runtime/pager/resolver.h", r"kReadRunMax = (N);")),
    (("runtime/pager/README.md", r"`Region::patterns`, a byte for (N) pages"),
     ("runtime/pager/region.h", r"kPatternPages = (N);")),
    (("runtime/superpipe/README.md", r"(N KiB) and more go to delegate threads"),
     ("runtime/superpipe/pmem/pmem_device.h", r"kDelegateBytesMin = (N \* kKiB);")),
    (("runtime/superpipe/README.md", r"delegate threads \(at most (N),"),
     ("runtime/superpipe/pmem/pmem_device.cpp", r"kDelegatesMax = (N);")),
    (("runtime/LIMITS.md", r"was charged stays so for (N) s when"),
     ("runtime/pager/account.cpp", r"kAdoptWithinNs = (\d+)000000000;")),
    (("runtime/LIMITS.md", r"\n- Lunar needs Linux (\d\.\d+) or newer with userfaultfd"),
     ("runtime/sys/kernel.cpp", r"boot (\d\.\d+) or later")),
    (("tools/README.md", r"\n\| (N) \| Lunar could not start it"),
     ("tools/run/program.h", r"kExitOwnFailure = (N);")),
    (("tools/README.md", r"\n\| (N) \| the command was found but cannot"),
     ("tools/run/program.h", r"kExitNotExecutable = (N);")),
    (("tools/README.md", r"\n\| (N) \| the command was not found"),
     ("tools/run/program.h", r"kExitNotFound = (N);")),
    (("tools/man/lunar.1", r"\.It (N) Lunar cannot start the command"),
     ("tools/run/program.h", r"kExitOwnFailure = (N);")),
    (("tools/man/lunar.1", r"\.It (N) The command cannot be executed"),
     ("tools/run/program.h", r"kExitNotExecutable = (N);")),
    (("tools/man/lunar.1", r"\.It (N) The command was not found"),
     ("tools/run/program.h", r"kExitNotFound = (N);")),
]
# What the pair differs by on purpose: the document states half of the constant.
HALVES = {r"and held input to (N MiB)", r"under way \(or (N) requests\)"}


def text_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def stated(where):
    """What the pattern's group holds, or None when the pattern is not to be found."""
    path, pattern = where
    number = r"(\d[\d,']*(?:\s<<\s\d+)?"
    found = re.search(pattern.replace(" ", r"\s+").replace("(N", number), text_of(path))
    if not found:
        problems.append(f"{path}: nothing matches {pattern!r}: the document or the code has changed, this list has not")
    return found and " ".join(found[1].split())


def value(text):
    """A number as documents or sources write it: "16 MiB", "32 << 20", "512 * kKiB", "2,048", "7/8" by its denominator,
    "ten"."""
    if text in WORDS:
        return WORDS[text]
    if re.fullmatch(r"\d+\.\d+", text):
        return text
    number, _, unit = text.replace(",", "").replace("'", "").replace(" * ", " ").rpartition(" ")
    if unit in UNITS:
        return int(number) * UNITS[unit]
    text = text.replace(",", "").replace("'", "")
    if "<<" in text:
        left, right = text.split("<<")
        return int(left) << int(right)
    return int(text.split("/")[-1])


def check_facts():
    for document, source in FACTS:
        told, real = stated(document), stated(source)
        if told is None or real is None:
            continue
        told_value = value(told) * 2 if document[1] in HALVES else value(told)
        if told_value != value(real):
            problems.append(f"{document[0]} states {told!r} ({document[1]}), {source[0]} has {real!r}")


def output_of(*words):
    """What a program prints."""
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True).stdout


def check_redis_defaults():
    """Arguments of the module are options of Lunar by another spelling."""
    options = {}
    for line in output_of(LUNAR, "help", "options", "--markdown").splitlines():
        cells = [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 6:
            options[cells[2]] = cells[4]
    page = "adapters/redis/README.md"
    row = re.compile(r"^\| `([a-z-]+) [^|]*(?:\\\|[^|]*)*\|[^|]*\| .*?\(default: ([^);]+)\)", re.M)
    rows = row.findall(text_of(page))
    for name, default in rows:
        known = options.get(name.replace("-", "_"))
        if known is None:
            problems.append(f"{page}: the Redis module's argument {name} is no option of `lunar help options`")
        elif known and known != default.strip("`"):
            problems.append(f"{page}: {name} is said to default to {default}, `lunar help options` says {known}")
    if len(rows) < 6:
        problems.append(f"{page}: only {len(rows)} rows with defaults were found in the Redis module's table")


def check_stats_keys():
    """Every key that tools/README.md explains is printed by some part of the program."""
    section = text_of("tools/README.md").split("## Reading `--stats`")[1].split("\n## ")[0]
    keys = {key for cell in re.findall(r"^\| (`[^|]+) \|", section, re.M) for key in re.findall(r"`(\w+)`", cell)}
    paths = "adapters/preload/exit_stats.cpp", "runtime/stats/counters.h", "runtime/stats/counters.def"
    sources = "".join(text_of(path) for path in paths if os.path.exists(os.path.join(ROOT, path)))
    for key in sorted(keys):
        if not re.search(rf"\b{key}\b", sources):
            problems.append(f"tools/README.md explains the key {key} of --stats, which is not printed")
    if len(keys) < 15:
        problems.append(f"tools/README.md: only {len(keys)} keys of --stats were found")


def check_version():
    version = re.search(r"version: '([\d.]+)'", text_of("meson.build"))[1]
    said = output_of(LUNAR, "--version")
    if version not in said:
        problems.append(f"`lunar --version` says {said.strip()!r}, meson.build {version}")


def check_kernel_matrix():
    """What the tests have shown on Debian's kernels: LIMITS has the table that the recorded runs make."""
    made = output_of(sys.executable, "-B", os.path.join(ROOT, "tests/vm/kernel_matrix"), "rows")
    if made not in text_of("runtime/LIMITS.md"):
        problems.append("runtime/LIMITS.md: its table of kernels is not what `tests/vm/kernel_matrix rows` prints")


def check_measurements():
    """MEASUREMENTS has the tables of the reports that are kept."""
    made = output_of(sys.executable, "-B", os.path.join(ROOT, "tools/dev/measurements"), "tables")
    if "<!-- made by tools/dev/measurements -->\n" + made + "<!-- end -->\n" not in text_of("runtime/MEASUREMENTS.md"):
        problems.append("runtime/MEASUREMENTS.md: not what the reports say; tools/dev/measurements update")


# A row of README's figures, the page's section with its source, and the rows there: their ratios, in this order.
FIGURES = [
    ("Redis GET, uniform; zipfian", "## Redis", ("GET, uniform", "GET, zipfian 0.99")),
    ("Redis GET with 10% SET; SET", "## Redis", ("GET and 10% SET", "SET of keys that are there")),
    ("Redis GET of a hot set that stays in DRAM", "## Redis", ("GET of a hot set that stays in DRAM",)),
    ("Redis with data that fits, against plain Redis", "## Redis", ("data that fits (",)),
    ("sequential reads; first fill (1 thread)", "## By hand", ("sequential", "first fill")),
]


def cells_of(text, label, page):
    """The other cells of the table row that begins with the label."""
    row = re.search(rf"^\| {re.escape(label)}[^|]*\|(.*)\|$", text, re.M)
    if not row:
        problems.append(f"{page}: no row {label!r}")
    return [cell.strip() for cell in row[1].split("|")] if row else []


def check_figures():
    """README quotes MEASUREMENTS; where that has several columns, the first ones."""
    readme, measured = text_of("README.md"), text_of("runtime/MEASUREMENTS.md")
    for label, heading, sources in FIGURES:
        section = measured.split("\n" + heading + "\n")[1].split("\n## ")[0]
        rows = [cells_of(section, source, "runtime/MEASUREMENTS.md") for source in sources]
        for column, cell in enumerate(cells_of(readme, label, "README.md")):
            stated_here = re.findall(r"\d+\.\d+x", cell)
            known = [re.findall(r"\d+\.\d+x", row[column])[:1] for row in rows if column < len(row)]
            if stated_here and [[one] for one in stated_here] != known:
                problems.append(f"README.md: {label!r} has {stated_here}, runtime/MEASUREMENTS.md {known}")


def check_prefix():
    """The module is where documents and examples say, once what tools/demo has built is installed."""
    prefix = re.search(r"'prefix=([^']*)'", text_of("meson.build"))
    for page in ("README.md", "adapters/redis/README.md", "examples/redis/redis.conf", "examples/redis/replication.sh",
                 "examples/redis-cluster/cluster.py"):
        told = re.findall(r"(/[\w/]+)/lib/x86_64-linux-gnu/redis/modules/", text_of(page))
        if not told or set(told) != {prefix and prefix[1]}:
            problems.append(f"{page}: the Redis module is below {told}; meson.build's prefix is {prefix and prefix[1]}")


def check_tests():
    """README shows how many tests there are: a tenth more or fewer is near enough."""
    build = os.path.dirname(os.path.dirname(LUNAR))
    with open(os.path.join(build, "meson-info", "intro-tests.json"), encoding="utf-8") as file:
        there = sum(not any("slow" in suite for suite in test["suite"]) for test in json.load(file))
    shown = re.search(r"^(\d+) passed, 0 failed", text_of("README.md"), re.M)
    if not shown or abs(int(shown[1]) - there) > there / 10:
        problems.append(f"README.md shows {shown and shown[1]} tests, the build has {there}")


def check_commits():
    """Commits that documents name can be looked up; without the repository there is nothing to ask."""
    def git(*words, **how):
        return subprocess.run(["git", "-C", ROOT, "-c", "safe.directory=*", *words], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, **how)
    if not os.path.exists(os.path.join(ROOT, ".git")):
        return
    if git("rev-parse", "--is-shallow-repository").stdout != "false\n":
        return
    pages = git("ls-files", "*.md", ".git-blame-ignore-revs").stdout.split()
    named = {(page, name) for page in pages for name in re.findall(r"\b(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7,40}\b",
                                                                   text_of(page))}
    history = git("rev-list", "HEAD").stdout.split()   # not what a rebase has left in this repository alone
    for page, name in sorted(named):
        if not any(commit.startswith(name) for commit in history):
            problems.append(f"{page} names the commit {name}, which is not in the history")


for part in (check_facts, check_redis_defaults, check_stats_keys, check_version, check_kernel_matrix,
             check_measurements, check_figures, check_prefix, check_tests, check_commits):
    part()
print("\n".join(problems) or
      f"{len(FACTS)} numbers, {len(FIGURES)} rows of figures, the Redis module's defaults and the keys of --stats are "
      "as documented")
sys.exit(1 if problems else 0)
