# SPDX-License-Identifier: Apache-2.0
"""`lunar bench superpipe` from outside, at tiny sizes. Its JSON keeps the contract, what it cannot
do is named or refused, foreign data is left alone, and nothing of it is left behind."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from build_tree import LUNAR

TINY = ["--size", "16m", "--seconds", "SECONDS", "--rounds", "1", "--json"]
NUMBERS = ["threads", "depth", "ops_per_s", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "cpu_s",
           "machine_cpu_s", "must_read_bytes", "mismatches", "spread", "noisy_rounds"]
BY_FIO = {"legacy": 1, "libaio": 32, "fio": 32}   # the depths that all workloads have rows for
FOREIGN = b"foreign data" * 2_500_000


def bench(words, seconds="0.1"):
    """(exit code, report or None, standard error)"""
    words = [seconds if word == "SECONDS" else word for word in words]
    done = subprocess.run([LUNAR, "bench", "superpipe", *words], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    if "another bench runs" in done.stderr:   # another program's: the machine has one at a time
        time.sleep(1)
        return bench(words, seconds)
    try:
        return done.returncode, json.loads(done.stdout), done.stderr
    except ValueError:
        return done.returncode, None, done.stderr


def check_report(code, report, err, directory):
    assert code == 0 and report is not None, f"exit code {code}: {err[-2000:]}"
    assert report["bench"] == "superpipe" and report["host"]["cpus"] > 0, "bench or host is missing"
    assert report["options"]["size"] == "16m" and report["sizes"]["size_bytes"] == 16 << 20, (
        "options do not hold what was asked for")
    assert report["failures"] == [], f"{report['failures']}"
    for row in report["results"]:
        what = f"{row['system']} {row['workload']} qd{row['depth']}"
        for number in NUMBERS:
            assert isinstance(row.get(number), (int, float)), f"{what}: {number} is no number"
        assert row["ops_per_s"] > 0 and row["mismatches"] == 0, f"{what}: {row}"
        assert row["p50_ns"] <= row["p99_ns"] <= row["p999_ns"], f"{what}: percentiles out of order"
        if "disk_read_bytes" in row:
            moved = row["must_read_bytes"] + row["must_write_bytes"]
            assert moved > 0 or row["ops"] < 512, f"{what}: nothing had to be moved"
    assert os.listdir(directory) == [], f"left behind: {os.listdir(directory)}"
    return {(row["system"], row["workload"], row["depth"]): row for row in report["results"]}


def measured(words, directory, wanted, lengths):
    """(report, rows) with the ratios `wanted` of each system. CPU is what the machine was not idle:
    nothing is left of it in a short run when a hypervisor took the CPU away, or the clock did not
    tick. Then a longer one."""
    for seconds in lengths:
        code, report, err = bench(words, seconds=seconds)
        rows = check_report(code, report, err, directory)
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
    """What needs no fio, on all workloads."""
    words = [*TINY, "--depths", "1,32", "--systems", "lunar,cblk", "--lun", directory]
    code, report, err = bench(words)
    rows = check_report(code, report, err, directory)
    wanted = {("lunar", workload, depth) for workload in ("read", "mixed", "write")
              for depth in (1, 32)}
    wanted |= {("cblk", workload, 32)
               for workload in ("read", "mixed", "write")} | {("cblk", "read", 1)}
    assert set(rows) == wanted, f"rows: {sorted(set(rows) ^ wanted)}"
    assert report is None or all("--systems" in report["skipped"][name] for name in BY_FIO), (
        "skipped without a reason")


# fio starts slowly, so that its runs take most of the time.
@pytest.mark.parametrize("workloads", [("read",), pytest.param(("read", "mixed", "write"),
                                                               marks=pytest.mark.slow)])
def test_compared(directory, workloads):
    words = [*TINY, "--depths", "1,32", "--threads", "4", "--workloads", ",".join(workloads),
             "--lun", directory]
    if shutil.which("fio") is None:
        _, report, _ = bench(words)
        assert all("apt-get install fio" in report["skipped"][name] for name in BY_FIO)
        return
    parts = ("kiops_per_cpu", "ops", "mean", "cpu")
    wanted = {"legacy": [f"read_t4_{part}" for part in (*parts, "fio_ops", "cblk_ops")],
              "libaio": [f"{workload}_qd32_{part}" for workload in workloads for part in parts],
              "fio": ["read_qd1_mean", "read_qd1_cblk_mean", "read_qd32_ops", "read_qd32_cblk_ops"]}
    report, rows = measured(words, directory, wanted, ("0.6", "1"))
    for workload in workloads:
        for system, depth in {"lunar": 32, "cblk": 32, **BY_FIO}.items():
            assert (system, workload, depth) in rows, (
                f"{system} {workload} is missing: {report['skipped']}")
    ours, theirs = rows["lunar", "read", 32], rows["legacy", "read", 1]
    assert theirs["threads"] == 4, f"threads of legacy: {theirs['threads']}"
    quotient = ours["ops_per_s"] / theirs["ops_per_s"]
    assert abs(report["ratios"]["legacy"]["read_t4_ops"] / quotient - 1) < 0.01, (
        "ratio is not the quotient")
    for system, part in {"fio": "--registerfiles=1", "libaio": "--iodepth=32 ",
                         "legacy": "--numjobs=4"}.items():
        assert part in report["notes"].get(system, ""), (
            f"{system}'s command is not told: {report['notes']}")


def test_mapped():
    directory = tempfile.mkdtemp(prefix="lunar-test-", dir="/dev/shm")
    path = os.path.join(directory, "device")
    try:
        with open(path, "wb") as file:
            file.truncate(24 << 20)
        words = ["--depths", "1,4", "--workloads", "read,write", "--lun", "pmem:" + path]
        code, report, err = bench([*TINY, *words])
        assert code == 0 and report and report["failures"] == [], f"pmem: {code}: {err}"
        systems = {row["system"] for row in report["results"]}
        assert systems == {"lunar", "cblk"} and set(BY_FIO) <= set(report["skipped"]), (
                "pmem: systems")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_refusals(directory):
    for words, part in ((["--workloads", "put"], "put"), (["--size", "1m"], "--size"),
                        (["--depths", "0"], "--depths"),
                        (["--lun", directory + "/none"], "there is no such file"),
                        (["--lun", "disk:x"], "known: file")):
        code, report, err = bench(words)
        assert code in (1, 2) and report is None and part in err, f"{words}: {code}: {err}"
    mine = os.path.join(directory, "mine")
    with open(mine, "wb") as file:
        file.write(FOREIGN)
    before = os.stat(mine)
    code, _, err = bench([*TINY, "--lun", mine])
    with open(mine, "rb") as file:
        assert code == 1 and "not Lunar's" in err and file.read() == FOREIGN, (
            f"foreign data: {code}: {err}")
    assert os.stat(mine).st_mtime_ns == before.st_mtime_ns, "a foreign file was written to"
    os.unlink(mine)
    # A device that only Lunar reaches: the others are named, and the rest is measured.
    words = ["--depths", "4", "--systems", "lunar", "--workloads", "read", "--lun", "sim:24m"]
    code, report, err = bench([*TINY, *words])
    assert (code == 0 and report and "disk_bytes" in report["skipped"]
            and "legacy" in report["skipped"]), (
        f"sim: {code}: {err}")


def test_interrupted(directory):
    child = subprocess.Popen([LUNAR, "bench", "superpipe", "--size", "16m", "--seconds", "30",
                              "--lun", directory],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if line.startswith("["):
            break
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()   # all runs of that length would take longer than this test may
    assert child.returncode == 130 and "interrupted" in err, f"SIGINT: {child.returncode}: {err}"
    assert os.listdir(directory) == [], f"SIGINT left behind: {os.listdir(directory)}"
