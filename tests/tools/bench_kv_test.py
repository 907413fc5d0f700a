# SPDX-License-Identifier: Apache-2.0
"""`lunar bench kv` from outside, at tiny sizes. Its JSON keeps the contract, every row and target
is there, and a wrong value is noticed."""
import os
import subprocess

import pytest

from bench_command import report_of
from build_tree import BUILD, LUNAR

# memory cgroups
pytestmark = pytest.mark.usefixtures("as_root")
LYING = os.path.join(BUILD, "tests/tools/liblying_ark.so")
TINY = ["--quick", "--data", "64m", "--seconds", "0.1"]
ROWS = {
    "memory": {"get_async", "get_sync", "set_async", "set_sync"},
    "index": {"load"},
    "load": {"load_flush"},
    "cold": {"uniform", "zipf", "uniform_1"},
    "overwrite": {f"{level}_{full}_t{threads}" for level in ("flush", "group") for full in (70, 80)
                  for threads in (1, 16)},
    "ycsb": set("abcdf"),
}
COMPARED = {"load": ("rocksdb", "rocksdb-lz4", "lmdb"),
            "cold": ("rocksdb", "rocksdb-lz4", "lmdb", "fio"),
            "overwrite": ("rocksdb",), "ycsb": ("rocksdb", "rocksdb-lz4", "lmdb")}
TARGETS = ["memory_get_ops", "memory_sync_get", "memory_sync_set", "index_bytes", "cold_fio",
           "cold_one_fio", "load_flush_rocksdb", "load_flush_lmdb"]
TARGETS += [f"cold_{draw}_{system}" for draw in ("uniform", "zipf")
            for system in ("rocksdb", "rocksdb-lz4", "lmdb")]
TARGETS += [f"overwrite_{workload}_{what}" for workload in ROWS["overwrite"]
            for what in ("ms", "wa")]
TARGETS += [f"ycsb_{mix}{what}_{system}"
            for mix in "abcdf" for what in ("", "_p99") for system in ("rocksdb", "rocksdb-lz4")]


def check_row(row, rounds):
    name = f"{row['experiment']} {row['workload']} {row['system']}"
    assert row["mismatches"] == 0 and row["ops_per_s"] > 0, f"{name}: {row}"
    assert len(row["rounds_ops_per_s"]) == row["rounds"] == rounds, f"{name}: {row}"
    assert row["p99_ns"] <= row["p999_ns"] <= row["max_ns"] * 1.01, (
        f"{name}: percentiles out of order")
    place, durability = row["place"], row["durability"]
    assert place in ("memory", "file") and durability in ("none", "flush", "group"), (
        f"{name}: {place}, {durability}")
    assert (place == "memory") == (durability == "none"), (
        f"{name}: durable at {durability} in {place}")
    stored = row["system"] != "fio" and place == "file"
    assert (("amplification" in row) == (stored and row["writes"] > 0
            and row["experiment"] != "load")), (
        f"{name}: write amplification {row.get('amplification')} of {row['writes']} sets in "
          f"{place}")
    if durability == "group":   # each set went to the disk, and its header with it
        assert row["amplification"] >= 1, f"{name}: write amplification {row['amplification']}"
    assert ("space" in row) == (stored and row["writes"] > 0), (
        f"{name}: space {row.get('space')} in {place}")
    assert 0.1 < row.get("space", 1) < 30, f"{name}: {row.get('space')} bytes of disk a byte"
    assert ("index_bytes" in row) == (row["workload"] == "load"), (
        f"{name}: {row.get('index_bytes')} bytes a key")
    if row["workload"] in ("c", "uniform", "zipf", "uniform_1"):
        assert row["writes"] == 0 and row["reads"] > 0, f"{name}: {row}"


def check_ratios(report):
    for experiment, systems in COMPARED.items():
        for workload in ROWS[experiment]:
            for system in systems:
                if system != "fio" or workload != "zipf":
                    key = f"{experiment}_{workload}_ops"
                    there = key in report["ratios"].get(system, {})
                    assert there != (system in report["skipped"]), f"{system}: {key}"


def check_targets(report):
    names = [aim["name"] for aim in report["targets"]]
    assert sorted(names) == sorted(TARGETS), f"targets: {set(names) ^ set(TARGETS)}"
    for aim in report["targets"]:
        others = [system for system in report["skipped"] if aim["name"].endswith("_" + system)]
        assert aim["measured"] or others, f"{aim['name']} was not measured"
        if aim["measured"]:
            assert aim["least"] <= aim["figure"] <= aim["most"], f"{aim}"


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_json(directory, rounds):
    report, err = report_of("kv", directory, *TINY, "--rounds", str(rounds))
    assert report["failures"] == [], err[-2000:]
    options, sizes = report["options"], report["sizes"]
    assert options["data"] == "64m" and options["rounds"] == str(rounds), f"options: {options}"
    assert sizes["dram_bytes"] == sizes["data_bytes"] == 64 << 20 and sizes["rounds"] == rounds, (
        f"sizes: {sizes}")
    rows = {(row["experiment"], row["workload"], row["system"]): row for row in report["results"]}
    assert len(rows) == len(report["results"]), "two rows of one name"
    assert "lunar" not in report["skipped"], f"lunar was skipped: {report['skipped'].get('lunar')}"
    for experiment, workloads in ROWS.items():
        for system in ("lunar", *COMPARED.get(experiment, ())):
            there = {workload for one, workload, its in rows if (one, its) == (experiment, system)}
            wanted = set() if system in report["skipped"] else workloads - ({"zipf"}
                if system == "fio" else set())
            assert there == wanted, f"{experiment} {system}: rows {sorted(there ^ wanted)}"
    for row in report["results"]:
        check_row(row, rounds)
    limit = sizes["memory_limit_bytes"]
    for system, peak in report["memory_peak_bytes"].items():
        if system != "lunar":   # whose peak is also that of memory mode
            assert peak <= limit + (8 << 20), f"{system} took {peak} bytes of {limit}"
    check_ratios(report)
    check_targets(report)


def results_of(orders):
    """The results of a child that has a small store in memory, and wrong values."""
    words = [LUNAR, "bench", "kv-child", "--system", "lunar", "--library", LYING, "--dram",
             "67108864",
             "--keys", "1000", "--keys-max", "1000", "--value-bytes", "24", "--memory", "67108864"]
    child = subprocess.run(words, input="load 1\n" + "".join(orders), capture_output=True,
                           text=True, check=False)
    lines = [line for line in child.stdout.splitlines() if line.startswith("result ")][1:]
    assert len(lines) == len(orders), f"exit code {child.returncode}: {child.stdout[-500:]}"
    return [{name: float(value) for name, value in (word.split("=") for word in line.split()[1:])}
            for line in lines]


def test_short_runs():
    """A run lasts until an operation counts, however late its threads begin on a busy machine."""
    orders = [f"run get uniform {how} {seed}\n" for seed in range(10)
              for how in ("sync 1 1 0 0 0", "async 1 2 0 0 0", "async 1 2 0 0 1000")]
    for order, result in zip(orders, results_of(orders)):
        assert result["ops"] > 0, f"{order.strip()}: {result}"


@pytest.mark.parametrize("mode", ["sync 1 1", "async 1 2"])
def test_wrong_values_of_the_warm_up(mode):
    """They count, although its operations do not."""
    result, = results_of([f"run get uniform {mode} 0 0.5 1\n"])
    assert result["mismatches"] > result["ops"] / 8, result


def test_wrong_values(directory):
    """A library that changes a bit of some values: synchronous and asynchronous reads notice. Two
    rounds are told as two."""
    report, _ = report_of("kv", directory, *TINY, "--rounds", "2", "--experiments", "memory",
                          "--library", LYING, code=1)
    assert any("did not find what was written" in failure for failure in report["failures"])
    for row in report["results"]:
        assert len(row["rounds_ops_per_s"]) == row["rounds"] == 2, row
        if "get" in row["workload"]:
            assert 0 < row["mismatches"] < row["ops"] / 8, (
                f"{row['workload']}: {row['mismatches']} mismatches in {row['ops']} reads")
