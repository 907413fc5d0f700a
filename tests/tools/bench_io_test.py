# SPDX-License-Identifier: Apache-2.0
"""`lunar bench superpipe` from outside, at tiny sizes. Its JSON keeps the contract, what it cannot
do is named or refused, and foreign data is left alone."""
import os
import shutil
import tempfile

import pytest

from bench_command import report_of, run

TINY = ["--size", "16m", "--rounds", "1"]
NUMBERS = ["threads", "depth", "ops_per_s", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "cpu_s",
           "machine_cpu_s", "must_read_bytes", "mismatches", "spread"]
BY_FIO = {"legacy": 1, "libaio": 32, "fio": 32}   # the depths that all workloads have rows for
FOREIGN = b"foreign data" * 2_500_000


def bench(directory, *words, seconds="0.1"):
    report, _ = report_of("superpipe", directory, *TINY, "--seconds", seconds, *words)
    assert report["failures"] == []
    return report


def rows_of(report):
    assert report["options"]["size"] == "16m" and report["sizes"]["size_bytes"] == 16 << 20, (
        "options do not hold what was asked for")
    for row in report["results"]:
        what = f"{row['system']} {row['workload']} qd{row['depth']}"
        for number in NUMBERS:
            assert isinstance(row.get(number), (int, float)), f"{what}: {number} is no number"
        assert row["ops_per_s"] > 0 and row["mismatches"] == 0, f"{what}: {row}"
        assert row["p50_ns"] <= row["p99_ns"] <= row["p999_ns"], f"{what}: percentiles out of order"
        if "disk_read_bytes" in row:
            moved = row["must_read_bytes"] + row["must_write_bytes"]
            assert moved > 0 or row["ops"] < 512, f"{what}: nothing had to be moved"
    return {(row["system"], row["workload"], row["depth"]): row for row in report["results"]}


def measured(directory, words, wanted, lengths):
    """(report, rows) with the ratios `wanted` of each system. CPU is what the machine was not idle:
    nothing is left of it in a short run when a hypervisor took the CPU away, or the clock did not
    tick. Then a longer one."""
    for seconds in lengths:
        report = bench(directory, *words, seconds=seconds)
        rows = rows_of(report)
        missing = [f"{system}: no {key}" for system, keys in wanted.items()
                   for key in keys if key not in report["ratios"].get(system, {})]
        if not missing:
            break
    # nothing is made up where no CPU time is seen
    if any("kiops_per_cpu" not in row for row in rows.values()):
        missing = [what for what in missing if "cpu" not in what]
    assert not missing, f"in runs of {seconds} s: {missing}"
    return report, rows


def test_own(directory):
    """All workloads, without fio."""
    report = bench(directory, "--depths", "1,32", "--systems", "lunar,cblk")
    rows = rows_of(report)
    wanted = {("lunar", workload, depth) for workload in ("read", "mixed", "write")
              for depth in (1, 32)}
    wanted |= {("cblk", workload, 32)
               for workload in ("read", "mixed", "write")} | {("cblk", "read", 1)}
    assert set(rows) == wanted, f"rows: {sorted(set(rows) ^ wanted)}"
    assert all("--systems" in report["skipped"][name] for name in BY_FIO)


# fio starts slowly, so that its runs take most of the time.
@pytest.mark.parametrize("workloads", [("read",), pytest.param(("read", "mixed", "write"),
                                                               marks=pytest.mark.slow)])
def test_compared(directory, workloads):
    words = ["--depths", "1,32", "--threads", "4", "--workloads", ",".join(workloads)]
    if shutil.which("fio") is None:
        report = bench(directory, *words)
        assert all("apt-get install fio" in report["skipped"][name] for name in BY_FIO)
        return
    parts = ("kiops_per_cpu", "ops", "mean", "cpu")
    wanted = {"legacy": [f"read_t4_{part}" for part in (*parts, "fio_ops", "cblk_ops")],
              "libaio": [f"{workload}_qd32_{part}" for workload in workloads for part in parts],
              "fio": ["read_qd1_mean", "read_qd1_cblk_mean", "read_qd32_ops", "read_qd32_cblk_ops"]}
    report, rows = measured(directory, words, wanted, ("0.6", "1"))
    for workload in workloads:
        for system, depth in {"lunar": 32, "cblk": 32, **BY_FIO}.items():
            assert (system, workload, depth) in rows, (
                f"{system} {workload} is missing: {report['skipped']}")
    assert rows["legacy", "read", 1]["threads"] == 4
    for system, part in {"fio": "--registerfiles=1", "libaio": "--iodepth=32 ",
                         "legacy": "--numjobs=4"}.items():
        assert part in report["notes"].get(system, ""), (
            f"{system}'s command is not told: {report['notes']}")


@pytest.fixture
def memory_file():
    with tempfile.TemporaryDirectory(prefix="lunar-test-", dir="/dev/shm") as directory:
        path = os.path.join(directory, "device")
        with open(path, "wb") as file:
            file.truncate(24 << 20)
        yield path


# A device that only Lunar reaches: the others are named, and the rest is measured.
@pytest.mark.parametrize("kind, words, systems", [
    ("pmem", ["--depths", "1,4", "--workloads", "read,write"], {"lunar", "cblk"}),
    ("sim", ["--depths", "4", "--workloads", "read", "--systems", "lunar"], {"lunar"})])
def test_devices(kind, words, systems, directory, memory_file):
    lun = {"pmem": "pmem:" + memory_file, "sim": "sim:24m"}[kind]
    report = bench(directory, *words, "--lun", lun)
    assert {row["system"] for row in report["results"]} == systems
    assert set(BY_FIO) <= set(report["skipped"])
    assert kind != "sim" or "disk_bytes" in report["skipped"]


def test_foreign_data(directory):
    mine = os.path.join(directory, "mine")
    with open(mine, "wb") as file:
        file.write(FOREIGN)
    before = os.stat(mine)
    _, code, _, err = run("superpipe", mine, *TINY)
    with open(mine, "rb") as file:
        assert code == 1 and "not Lunar's" in err and file.read() == FOREIGN, (
            f"foreign data: {code}: {err}")
    assert os.stat(mine).st_mtime_ns == before.st_mtime_ns, "a foreign file was written to"
    for lun, part in ((directory + "/none", "there is no such file"), ("disk:x", "known: file")):
        _, code, out, err = run("superpipe", lun)
        assert code == 1 and not out and part in err
