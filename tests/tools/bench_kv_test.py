#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench_kv_test.py LUNAR LYING_LIBRARY`: `lunar bench kv` from outside, at tiny sizes. Its JSON keeps the contract and
its figures agree with each other, every row of what it aims at is there, its plots are pictures, a wrong value is
noticed, and nothing of it is left behind: not at the end, not after SIGINT, and after kill -9 not once the next run has
swept."""
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

from checks import check, run_checks

LUNAR, LYING = sys.argv[1:3]
TINY = ["--quick", "--data", "64m", "--seconds", "0.1", "--rounds", "2", "--threads", "1,2", "--depths", "1,4",
        "--htc", "on"]
PAPER_ROWS = [f"{mix}_t{threads}_qd{depth}" for mix in ("get", "set") for threads in (1, 2) for depth in (1, 4)]
PAPER_ROWS += ["next_1", "next_1000"]
ROWS = {
    "memory": {"get_async", "get_sync", "get_paced", "set_async", "set_sync", "shard_get", "shard_set"},
    "load": {"load_flush"},
    "cold": {"uniform", "zipf", "uniform_1"},
    "overwrite": {f"{level}_{full}_t{threads}" for level in ("flush", "group") for full in (70, 80)
                  for threads in (1, 16)},
    "ycsb": set("abcdf"),
    "scan": {"next_memory", "next_many_memory", "next_file", "next_many_file", "all_file"},
    "growth": {"data_1x", "data_3x"},
    "index": {"load"},
    "paper": {f"{place}_{value}_htc_{row}"
              for place in ("memory", "file") for value in (24, 4096) for row in PAPER_ROWS},
}
COMPARED = {"load": ("rocksdb", "rocksdb-lz4", "lmdb"), "cold": ("rocksdb", "rocksdb-lz4", "lmdb", "raw", "fio"),
            "overwrite": ("rocksdb",), "ycsb": ("rocksdb", "rocksdb-lz4", "lmdb"), "growth": ("raw",)}
TARGETS = ["memory_get_ops", "memory_paced_ops", "memory_paced_cores", "shard_get", "shard_set", "sync_get", "sync_set",
           "cold_raw", "cold_fio", "cold_one_us", "cold_one_fio_us", "load_flush_rocksdb", "load_flush_lmdb",
           "next_many_memory", "next_many_file", "scan_sequential", "growth_ops", "growth_ios", "index_bytes"]
TARGETS += [f"cold_{draw}_{system}" for draw in ("uniform", "zipf") for system in ("rocksdb", "rocksdb-lz4", "lmdb")]
TARGETS += [f"overwrite_{workload}_{what}" for workload in ROWS["overwrite"] for what in ("ms", "wa")]
TARGETS += [f"ycsb_{mix}{what}_{system}"
            for mix in "abcdf" for what in ("", "_p99") for system in ("rocksdb", "rocksdb-lz4")]


def near(a, b):
    return abs(a - b) <= 1e-4 * max(abs(a), abs(b), 1)   # six digits of each are in the report


def start(directory, *words):
    return subprocess.Popen([LUNAR, "bench", "kv", "--lun", directory, *words], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(directory, *words):
    """(pid, exit code, standard output, standard error); waits while another bench has the machine."""
    while True:
        child = start(directory, *words)
        out, err = child.communicate()
        if "another bench runs" not in err:
            return child.pid, child.returncode, out, err
        time.sleep(1)


def traces(pid, directory):
    """What a run of process `pid` would have left."""
    found = [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith("lunar-bench-")]
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        if os.path.isdir(root):
            found += [os.path.join(root, name) for name in os.listdir(root) if name.startswith(f"lunar-bench-{pid}-")]
    return found


def check_gone(pid, directory, what):
    left = traces(pid, directory)
    check(not left, f"{what} left behind: {', '.join(left)}")


def report_of(directory, *words):
    """(exit code, report, standard error)"""
    pid, code, out, err = run(directory, "--json", *words)
    check_gone(pid, directory, "a finished run")
    try:
        return code, json.loads(out), err
    except ValueError:
        sys.exit(f"standard output is no JSON: {out[:500]}\n{err[-3000:]}")


def check_row(row):
    name = f"{row['experiment']} {row['workload']} {row['system']}"
    rounds = row["rounds_ops_per_s"]
    if not check(row["mismatches"] == 0 and row["ops_per_s"] > 0, f"{name}: {row}"):
        return
    expected = 1 if row["experiment"] == "paper" else 2
    check(len(rounds) == row["rounds"] == expected, f"{name}: {rounds} in {row['rounds']} rounds")
    ops_per_s, spread = row["ops_per_s"], row["spread"]
    check(near(ops_per_s, statistics.median(rounds)), f"{name}: {ops_per_s} is not the median of {rounds}")
    check(near(spread, (max(rounds) - min(rounds)) / ops_per_s), f"{name}: spread {spread} of {rounds}")
    check(row["p99_ns"] <= row["p999_ns"] <= row["max_ns"] * 1.01, f"{name}: percentiles out of order")
    place, durability = row["place"], row["durability"]
    check(place in ("memory", "file") and durability in ("none", "flush", "group"), f"{name}: {place}, {durability}")
    check((place == "memory") == (durability == "none"), f"{name}: durable at {durability} in {place}")
    written = row["amplification"]
    check((written >= 0) == (place == "file" and row["writes"] > 0 and row["experiment"] != "load"),
          f"{name}: write amplification {written} of {row['writes']} sets in {place}")
    if durability == "group":   # each set went to the disk, and its header with it
        check(written >= 1, f"{name}: write amplification {written}")
    if row["workload"] == "get_paced":
        check(max(rounds) <= 1.1 * 909e3, f"{name}: {rounds} gets a second, faster than its pace")
    if row["rounds"] == 1:   # medians of several rounds need not agree with each other
        check(near(row["ops_per_s"], row["ops"] / row["seconds"]), f"{name}: ops_per_s")
        check(near(row["cores"], row["cpu_s"] / row["seconds"]), f"{name}: cores")
        check(near(row["bytes_per_s"], row["ops_per_s"] * (row["value_bytes"] + 8)), f"{name}: bytes_per_s")
        check(near(row["ios_per_s"], row["ios"] / row["seconds"]), f"{name}: ios_per_s")
        check(row["place"] != "memory" or row["ios"] == 0, f"{name}: I/O in memory")
    if row["workload"] in ("c", "uniform", "zipf", "uniform_1"):
        check(row["writes"] == 0 and near(row["reads"], row["ops"]), f"{name}: reads {row['reads']} of {row['ops']}")


def check_ratios(report, rows):
    for experiment, systems in COMPARED.items():
        for workload in ROWS[experiment]:
            for system in systems:
                if system == "fio" and workload == "zipf":
                    continue
                key, target = f"{experiment}_{workload}_ops", f"{experiment}_{workload}_{system}"
                if system in report["skipped"]:
                    check(key not in report["ratios"].get(system, {}), f"a ratio to {system}, which was skipped")
                    continue
                ours, theirs = (rows[experiment, workload, name]["rounds_ops_per_s"] for name in ("lunar", system))
                quotients = [our / their for our, their in zip(ours, theirs)]
                ratio = report["ratios"][system].get(key, 0)
                check(near(ratio, statistics.median(quotients)),
                      f"{system}.{key}: {ratio} is not the median of {quotients}")
                for aim in report["targets"]:
                    if aim["name"] == target:
                        check(aim["measured"] and near(aim["figure"], ratio),
                              f"{target}: {aim} with a ratio of {ratio}")


def check_targets(report):
    names = [aim["name"] for aim in report["targets"]]
    check(sorted(names) == sorted(TARGETS), f"targets: {set(names) ^ set(TARGETS)}")
    for aim in report["targets"]:
        others = [system for system in report["skipped"] if aim["name"].endswith("_" + system)]
        paced = aim["name"] == "memory_paced_cores"   # of rounds that kept their pace: there may be none
        check(aim["measured"] or others or paced, f"{aim['name']} was not measured")
        if not aim["measured"]:
            continue
        goal = aim.get("at_least", aim.get("at_most"))
        met = aim["figure"] >= goal if "at_least" in aim else aim["figure"] <= goal
        check(aim["met"] == met and near(aim["share_of_target"], aim["figure"] / goal), f"{aim}")
        check(aim["least"] <= aim["figure"] <= aim["most"], f"{aim}")


def check_json(directory):
    plots = os.path.join(directory, "plots")
    drawn = ["--plot", plots] if shutil.which("gnuplot") else []
    code, report, err = report_of(directory, *TINY, *drawn)
    check(code == 0 and report["failures"] == [], f"exit code {code}: {report['failures']} {err[-2000:]}")
    check(report["bench"] == "kv" and report["host"]["cpus"] > 0, "bench or host is missing")
    options = report["options"]
    check(options["dram_bytes"] == 64 << 20 and options["threads"] == [1, 2], f"options: {options}")
    rows = {(row["experiment"], row["workload"], row["system"]): row for row in report["results"]}
    check(len(rows) == len(report["results"]), "two rows of one name")
    for system in ("lunar", "raw"):
        check(system not in report["skipped"], f"{system} was skipped: {report['skipped'].get(system)}")
    for experiment, workloads in ROWS.items():
        for system in ("lunar", *COMPARED.get(experiment, ())):
            there = {workload for one, workload, its in rows if (one, its) == (experiment, system)}
            wanted = set() if system in report["skipped"] else workloads - ({"zipf"} if system == "fio" else set())
            check(there == wanted or system == "raw" and there <= wanted,
                  f"{experiment} {system}: rows {sorted(there ^ wanted)}")
    for row in report["results"]:
        check_row(row)
    limit = report["options"]["dram_bytes"] + report["options"]["allowance_bytes"]
    for system, peak in report["memory_peak_bytes"].items():
        if system != "lunar":   # whose peak is also that of memory mode
            check(peak <= limit + (8 << 20), f"{system} took {peak} bytes of {limit}")
    check_ratios(report, rows)
    check_targets(report)
    if drawn:
        for stem in ("kv-memory", "kv-load", "kv-cold", "kv-cold-p99", "kv-overwrite", "kv-ycsb", "kv-scan",
                     *(f"kv-paper-{mix}{what}" for mix in ("get", "set") for what in ("", "-ios", "-cpus")),
                     "kv-paper-next"):
            with open(os.path.join(plots, stem + ".svg"), encoding="utf-8") as svg:
                check("<svg" in svg.read(), f"{stem}.svg is no SVG")
        shutil.rmtree(plots)


def check_short_runs(_):
    """A run lasts until an operation counts, however late its threads begin on a busy machine."""
    words = [LUNAR, "bench", "kv-child", "--system", "lunar", "--library", LYING, "--dram", "67108864",
             "--keys", "1000", "--keys-max", "1000", "--value-bytes", "24", "--memory", "67108864"]
    orders = [f"run get uniform {how} {seed}\n" for seed in range(10)
              for how in ("sync 1 1 0 0 0", "async 1 2 0 0 0", "async 1 2 0 0 1000")]
    child = subprocess.run(words, input="load 1\n" + "".join(orders), capture_output=True, text=True, check=False)
    results = [line for line in child.stdout.splitlines() if line.startswith("result ")][1:]
    check(len(results) == len(orders), f"short runs: exit code {child.returncode}: {child.stdout[-500:]}")
    for order, result in zip(orders, results):
        check(float(result.split(" ops=")[1].split()[0]) > 0, f"{order.strip()}: {result}")


def check_wrong_values(directory):
    """A library that changes a bit of some values: synchronous and asynchronous reads notice."""
    code, report, _ = report_of(directory, *TINY, "--experiments", "memory", "--library", LYING)
    check(code == 1 and any("did not find what was written" in failure for failure in report["failures"]),
          f"wrong values: exit code {code}: {report['failures']}")
    for row in report["results"]:
        if "get" in row["workload"]:
            check(0 < row["mismatches"] < row["ops"] / 8,
                  f"{row['workload']}: {row['mismatches']} mismatches in {row['ops']} reads")


def check_interrupted(directory):
    endless = [*TINY[:3], "--experiments", "ycsb", "--seconds", "600", "--systems"]
    for how, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        child = start(directory, *endless, "lunar")
        seen = any("ycsb c" in line for line in iter(child.stderr.readline, ""))
        check(seen or child.poll() is not None, "no runs before the signal")
        child.send_signal(how)
        _, err = child.communicate()
        check(child.returncode == code, f"{how.name}: exit code {child.returncode}: {err[-1000:]}")
        if how == signal.SIGKILL:
            check(bool(traces(child.pid, directory)), "kill -9 left nothing: this test cannot tell a sweep")
            _, _, _, err = run(directory, *TINY, "--experiments", "index")
            check("left by a killed run" in err, f"the run after kill -9 does not say what it swept: {err[-500:]}")
        check_gone(child.pid, directory, how.name)


def check_refusals(directory):
    for words, part in ((["--experiments", "put"], "put"), (["--dram", "1m"], "--dram"),
                        (["--systems", "oracle"], "oracle"), (["--library", "/nowhere.so"], "/nowhere.so"),
                        (["--values", "25"], "--values"), (["--durability", "x"], "x")):
        _, code, out, err = run(directory, *words)
        check(code == 2 and not out and part in err, f"{words}: {code}: {err}")


def main():
    if os.geteuid() != 0:
        print("skip: root: memory cgroups need it")
        return 77
    return run_checks(check_refusals, check_short_runs, check_json, check_wrong_values, check_interrupted)


sys.exit(main())
