#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench_lio_test.py LUNAR`: `lunar bench lio` from outside, at tiny sizes. Its JSON keeps the contract, a device that
holds data is not touched, and nothing is left behind: not at the end, not after SIGINT, and after kill -9 not once the
next run has swept."""
import json
import os
import signal
import subprocess
import sys
import time

from checks import check, problems

LUNAR = sys.argv[1]
SMALL = ["--ios", "16", "--io", "16k", "--file", "2m"]
TINY = [*SMALL, "--rounds", "3", "--lists", "2"]
SYSTEMS = ("lunar", "sync", "lio_listio")
WORKLOADS = ("read_wait", "read_nowait", "write_wait", "write_nowait")
NUMBERS = ("threads", "ops_per_s", "mean_ns", "p50_ns", "p99_ns", "return_ns", "cpu_us_per_list", "spread")


def start(*words):
    return subprocess.Popen([LUNAR, "bench", "lio", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(child):
    return child.communicate()


def left_by(pid):
    return [name for name in os.listdir("/dev/shm") if name == f"lunar-bench-{pid}.pmem"]


def run(*words):
    """(exit code, standard output, standard error); waits while another bench has the machine."""
    while True:
        child = start(*words)
        out, err = finish(child)
        if "another bench runs" not in err:
            check(not left_by(child.pid), f"{words}: left {left_by(child.pid)} behind")
            return child.returncode, out, err
        time.sleep(1)


def check_json():
    code, out, err = run("--json", "--delegate", "on", *TINY)
    check(code == 0, f"exit code {code}: {err[-2000:]}")
    try:
        report = json.loads(out)
    except ValueError:
        problems.append(f"standard output is no JSON: {out[:500]}")
        return
    check(report["bench"] == "lio" and report["host"]["cpus"] > 0, "bench or host is missing")
    options = report["options"]
    check(options["ios"] == 16 and options["io_bytes"] == 16 << 10, "options do not hold what was asked for")
    check(report["failures"] == [] and report["skipped"] == {}, f"{report['failures']} {report['skipped']}")
    rows = {(row["system"], row["workload"]): row for row in report["results"]}
    check(set(rows) == {(system, workload) for system in SYSTEMS for workload in WORKLOADS}, f"rows: {sorted(rows)}")
    for key, row in rows.items():
        for name in NUMBERS:
            check(isinstance(row.get(name), (int, float)), f"{key}: {name} is no number")
        check(row["return_ns"] <= row["mean_ns"] and row["ops_per_s"] > 0, f"{key}: {row}")
    for baseline in SYSTEMS[1:]:
        for name in ("lio_wait_ops", "lio_wait_mean", "lio_nowait_return", "lio_write_wait_ops",
                     "lio_write_nowait_return"):
            check(report["ratios"].get(baseline, {}).get(name, 0) > 0, f"{baseline}.{name} is missing")


def check_given_device():
    path = f"/dev/shm/lunar-test-lio-{os.getpid()}"
    try:
        with open(path, "wb") as file:
            file.write(b"foreign data")
            file.truncate(4 << 20)
        code, _, err = run("--pmem", path, *TINY)
        check(code == 1 and "not Lunar's" in err and err.count("\n") <= 2, f"data on the device: {code} {err}")
        with open(path, "rb") as file:
            check(file.read(12) == b"foreign data" and os.stat(path).st_blocks <= 8, "foreign data was touched")
        with open(path, "wb") as file:
            file.truncate(4 << 20)
        code, out, err = run("--pmem", path, "--systems", "lunar,sync", *TINY)
        check(code == 0 and "sync.lio_wait_ops" in out and "skipped: lio_listio" in out,
              f"given device: {code} {out} {err}")
        with open(path, "wb") as file:
            file.truncate(0)
        code, _, err = run("--pmem", path, *TINY)
        check(code == 1 and "give it a size" in err, f"empty device: {code} {err}")
    finally:
        os.unlink(path)


def check_interrupts():
    endless = [*SMALL, "--rounds", "10000", "--lists", "1000"]
    for how, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        child = start(*endless)
        end = time.monotonic() + 20
        while not left_by(child.pid) and child.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.3)
        child.send_signal(how)
        _, err = finish(child)
        if "another bench runs" in err:
            return
        check(child.returncode == code, f"{how.name}: exit code {child.returncode}: {err}")
        if how == signal.SIGKILL:
            check(left_by(child.pid), "killed too early to leave something: the test tests nothing")
            run(*TINY)
        check(not left_by(child.pid), f"{how.name} left {left_by(child.pid)} behind")


def check_usage():
    for words in (("--io", "5000"), ("--ios", "0"), ("--file", "1m"), ("--systems", "swap"), ("--delegate", "maybe")):
        check(start(*words).wait() == 2, f"{words} was taken")


check_json()
check_given_device()
check_interrupts()
check_usage()
for problem in problems:
    print(problem)
sys.exit(1 if problems else 0)
