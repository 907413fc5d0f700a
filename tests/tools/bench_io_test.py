#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench_io_test.py LUNAR [--all]`: `lunar bench superpipe` and `lunar bench window` from outside, at tiny sizes. Their
JSON keeps the contract, what they cannot do is named or refused, foreign data is left alone, and nothing of theirs is
left behind."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from checks import check, problems, run_checks

LUNAR = sys.argv[1]
FULL = "--all" in sys.argv
TINY = ["--size", "16m", "--seconds", "SECONDS", "--rounds", "1", "--json"]
NUMBERS = ["threads", "depth", "unit_bytes", "ops_per_s", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "cpu_s",
           "machine_cpu_s", "kernel_cpu_s", "kiops_per_cpu", "kiops_per_cpu_kernel", "must_read_bytes",
           "disk_read_bytes", "mismatches", "spread", "noisy_rounds"]
FOREIGN = b"foreign data" * 2_500_000


def bench(name, words, seconds="0.1"):
    """(exit code, report or None, standard error)"""
    words = [seconds if word == "SECONDS" else word for word in words]
    done = subprocess.run([LUNAR, "bench", name, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    if "another bench runs" in done.stderr:   # another program's: the machine has one at a time
        time.sleep(1)
        return bench(name, words, seconds)
    try:
        return done.returncode, json.loads(done.stdout), done.stderr
    except ValueError:
        return done.returncode, None, done.stderr


def check_report(name, code, report, err, directory):
    check(code == 0 and report is not None, f"{name}: exit code {code}: {err[-2000:]}")
    if not report:
        return {}
    check(report["bench"] == name and report["host"]["cpus"] > 0, f"{name}: bench or host is missing")
    check(report["options"]["size_bytes"] == 16 << 20, f"{name}: options do not hold what was asked for")
    check(report["failures"] == [], f"{name}: {report['failures']}")
    for row in report["results"]:
        what = f"{name}: {row['system']} {row['workload']} qd{row['depth']}"
        for number in NUMBERS:
            check(isinstance(row.get(number), (int, float)), f"{what}: {number} is no number")
        check(row["ops_per_s"] > 0 and row["mismatches"] == 0, f"{what}: {row}")
        check(row["p50_ns"] <= row["p99_ns"] <= row["p999_ns"], f"{what}: percentiles out of order")
        if row["system"] not in ("fio", "buffered") and row["disk_read_bytes"] >= 0:
            moved = row["must_read_bytes"] + row["must_write_bytes"]
            check(moved > 0 or row["ops"] < 512, f"{what}: nothing had to be moved")
    check(os.listdir(directory) == [], f"{name} left behind: {os.listdir(directory)}")
    return {(row["system"], row["workload"], row["depth"]): row for row in report["results"]}


def measured(name, words, directory, wanted, lengths):
    """(report, rows) with the ratios `wanted` of each system. CPU is what the machine was not idle: nothing is left of
    it in a short run when a hypervisor took the CPU away, or the clock did not tick. Then a longer one."""
    for seconds in lengths:
        code, report, err = bench(name, words, seconds=seconds)
        rows = check_report(name, code, report, err, directory)
        if not rows:
            return report, rows
        missing = [f"{system}: no {key}" for system, keys in wanted.items()
                   for key in keys if key not in report["ratios"].get(system, {})]
        if not missing:
            break
    if any(row["kiops_per_cpu"] <= 0 for row in rows.values()):   # nothing is made up where the hypervisor shows no CPU
        missing = [what for what in missing if "cpu" not in what]
    problems.extend(f"{name}: {what} in runs of {seconds} s" for what in missing)
    return report, rows


def check_superpipe(directory):
    """All workloads. fio starts slowly, so that its runs take most of the time: it has a run of its own, of reads; with
    --all it is in this one."""
    others = {"legacy": 1, "buffered": 1, "libaio": 32, "cblk": 32, "raw": 1, **({"fio": 32} if FULL else {})}
    words = [*TINY, "--depths", "1,32", "--threads", "4", "--systems", ",".join(["lunar", *others]), "--lun", directory]
    parts = ("kiops_per_cpu", "kiops_per_cpu_kernel", "ops", "mean", "cpu")
    wanted = {"legacy": [f"read_t4_{part}" for part in parts], "libaio": [f"write_qd32_{part}" for part in parts]}
    report, rows = measured("superpipe", words, directory, wanted, ("0.6", "1") if FULL else ("0.05", "0.2", "0.5"))
    if not rows:
        return
    skipped, ratios = report["skipped"], report["ratios"]
    for workload in ("read", "mixed", "write"):
        for depth in (1, 32):
            check(("lunar", workload, depth) in rows, f"lunar {workload} at depth {depth} is missing")
        for system, depth in others.items():
            there = (system, workload, depth) in rows
            check(there != (system in skipped), f"{system} {workload}: neither or both of measured and skipped")
    ours, theirs = rows["lunar", "read", 32], rows["legacy", "read", 1]
    if "read_t4_kiops_per_cpu" in ratios["legacy"]:
        quotient = ours["kiops_per_cpu"] / theirs["kiops_per_cpu"]
        check(abs(ratios["legacy"]["read_t4_kiops_per_cpu"] - quotient) < 0.01, "ratio is not the quotient")
    check(("cblk", "read", 1) in rows and "read_qd32_ops" in ratios.get("cblk", {}),
          f"cblk: {sorted(rows)}, {ratios.keys()}")
    check("read_qd1_mean" in ratios["raw"], f"raw: {ratios['raw']}")
    check_cblk_read(report, "pread, O_DIRECT")
    check(("fio" in skipped) == ("fio" not in others or shutil.which("fio") is None), f"fio: {skipped}")


def check_fio(directory):
    words = ["--depths", "1,32", "--workloads", "read", "--systems", "lunar,fio", "--lun", directory]
    code, report, err = bench("superpipe", [*TINY, *words], seconds="0.5")
    if not check_report("superpipe", code, report, err, directory):
        return
    if shutil.which("fio") is None:
        check("apt-get install fio" in report["skipped"]["fio"], f"without fio: {report['skipped']}")
        return
    ratios = report["ratios"]["fio"]
    check("read_qd1_mean" in ratios and "read_qd32_ops" in ratios, f"fio: {sorted(ratios)}")
    check(any("--iodepth=32 " in line and "--registerfiles=1" in line for line in report["options"]["fio_commands"]),
          f"fio's command is not told: {report['options']['fio_commands']}")


def check_cblk_read(report, compared):
    cost = report.get("cblk_read", {})
    check(cost.get("beside") == compared and cost["reads"] > 0 and cost["raw_p50_ns"] > 0, f"cblk_read: {cost}")
    check(cost["over_least_ns"] <= cost["over_p50_ns"] <= cost["over_most_ns"], f"cblk_read: {cost}")
    ratio, over_ns = report["ratios"]["raw"]["cblk_read_us_over"], cost["over_p50_ns"]
    check(abs(ratio - over_ns / 1e3) < 1e-3 * (1 + abs(over_ns)), "cblk_read_us_over is something else")


def check_mapped(_):
    directory = tempfile.mkdtemp(prefix="lunar-test-", dir="/dev/shm")
    path = os.path.join(directory, "device")
    try:
        with open(path, "wb") as file:
            file.truncate(24 << 20)
        words = ["--depths", "1,4", "--workloads", "read,write", "--lun", "pmem:" + path]
        code, report, err = bench("superpipe", [*TINY, *words])
        check(code == 0 and report and report["failures"] == [], f"pmem: {code}: {err}")
        if report and not problems:
            systems = {row["system"] for row in report["results"]}
            check(systems == {"lunar", "cblk"} and "raw" in report["skipped"], "pmem: systems")
            check_cblk_read(report, "a copy from the mapped device")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def check_window(directory):
    keys = ("window_ops", "window_mean", "window_cpu", "read4k_qd8_ops", "read64k_qd8_ops", "read64k_qd1_mean")
    words = [*TINY, "--depths", "1,8", "--workloads", "read", "--lun", directory]
    measured("window", words, directory, {"perio": keys}, ("0.1", "0.3", "1"))


def check_refusals(directory):
    for words, part in ((["--workloads", "put"], "put"), (["--size", "1m"], "--size"), (["--depths", "0"], "--depths"),
                        (["--lun", directory + "/none"], "there is no such file"),
                        (["--lun", "disk:x"], "known: file")):
        for name in ("superpipe", "window"):
            code, report, err = bench(name, words)
            check(code in (1, 2) and report is None and part in err, f"{name} {words}: {code}: {err}")
    mine = os.path.join(directory, "mine")
    with open(mine, "wb") as file:
        file.write(FOREIGN)
    before = os.stat(mine)
    code, _, err = bench("superpipe", [*TINY, "--lun", mine])
    with open(mine, "rb") as file:
        check(code == 1 and "not Lunar's" in err and file.read() == FOREIGN, f"foreign data: {code}: {err}")
    check(os.stat(mine).st_mtime_ns == before.st_mtime_ns, "a foreign file was written to")
    os.unlink(mine)
    # A device that only Lunar reaches: the others are named, and the rest is measured.
    words = ["--depths", "4", "--systems", "lunar", "--workloads", "read", "--lun", "sim:24m"]
    code, report, err = bench("superpipe", [*TINY, *words])
    check(code == 0 and report and "disk_bytes" in report["skipped"] and "legacy" in report["skipped"],
          f"sim: {code}: {err}")


def check_interrupted(directory):
    child = subprocess.Popen([LUNAR, "bench", "superpipe", "--size", "16m", "--seconds", "30", "--lun", directory],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if line.startswith("["):
            break
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate()   # all runs of that length would take longer than this test may
    check(child.returncode == 130 and "interrupted" in err, f"SIGINT: {child.returncode}: {err}")
    check(os.listdir(directory) == [], f"SIGINT left behind: {os.listdir(directory)}")


def main():
    return run_checks(check_refusals, check_superpipe, check_fio, check_mapped, check_window, check_interrupted)


sys.exit(main())
