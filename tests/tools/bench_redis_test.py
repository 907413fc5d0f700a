#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`bench_redis_test.py LUNAR`: `lunar bench redis` from outside, at tiny sizes. Its JSON keeps the contract, its plots
are pictures, it refuses what it cannot do, and nothing of it is left behind: not at the end, not after SIGINT, and
after kill -9 not once the next run has swept."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from checks import check, problems, run_checks

LUNAR = sys.argv[1]
SYSTEMS = "lunar,run,swap"
TINY = {"--dram": "16m", "--data": "24m", "--seconds": "0.2", "--connections": "8"}
NUMBERS = ["threads", "pipeline", "ops_per_s", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "cpu_s", "machine_cpu_s",
           "generator_cpu_s", "must_read_bytes", "disk_read_bytes", "mismatches"]
def start(words, directory):
    tiny = [word for flag, value in TINY.items() if flag not in words for word in (flag, value)]
    return subprocess.Popen([LUNAR, "bench", "redis", "--quick", *tiny, "--lun", directory, *words],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(child):
    return child.communicate()


def traces(pid, directory):
    """What a run of process `pid` would have left."""
    found = [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith("lunar-bench-")]
    with open("/proc/swaps", encoding="utf-8") as swaps:
        found += [line.split()[0] for line in swaps if f"lunar-bench-{pid}" in line]
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        if os.path.isdir(root):
            found += [os.path.join(root, name) for name in os.listdir(root) if name.startswith(f"lunar-bench-{pid}-")]
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                if name.isdigit() and int(name) != pid and f"lunar-bench-{pid}-redis" in line.read():
                    found.append(f"process {name}")
        except OSError:
            pass
    return found


def check_gone(pid, directory, what):
    left = traces(pid, directory)
    check(not left, f"{what} left behind: {', '.join(left)}")


def usable_host(err):
    """False (and a skip line) when another bench holds the machine."""
    if "another bench runs" in err:
        print("skip: memory: another bench runs on this machine")
        return False
    return True


def check_json(directory):
    plots = os.path.join(directory, "plots")
    child = start(["--json", "--systems", SYSTEMS, "--workloads", "get,hotcold,save,expire,get-pipe-fits,hash-fits",
                   "--rate", "200", *(["--plot", plots] if shutil.which("gnuplot") else [])], directory)
    out, err = finish(child)
    if not usable_host(err):
        return 77
    check(child.returncode == 0, f"exit code {child.returncode}: {err[-3000:]}")
    try:
        report = json.loads(out)
    except ValueError:
        problems.append(f"standard output is no JSON: {out[:500]}")
        return None
    check(report["bench"] == "redis" and report["host"]["cpus"] > 0, "bench or host is missing")
    check(report["options"]["dram_bytes"] == 16 << 20, "options do not hold what was asked for")
    check(report["failures"] == [], f"failures: {report['failures']}")
    rows = {(row["system"], row["workload"]): row for row in report["results"]}
    present = {system for system, _ in rows}
    for system in SYSTEMS.split(","):
        check(system in present or report["skipped"].get(system), f"{system} is neither measured nor named in skipped")
        check(not (system in present and system in report["skipped"]), f"{system} is both measured and skipped")
    for (system, workload), row in rows.items():
        for name in NUMBERS:
            check(isinstance(row.get(name), (int, float)), f"{system} {workload}: {name} is no number")
        check(row["ops_per_s"] > 0 and row["mismatches"] == 0, f"{system} {workload}: {row}")
        check(row["p50_ns"] <= row["p99_ns"] <= row["p999_ns"], f"{system} {workload}: percentiles out of order")
        check(row["pipeline"] == (16 if "pipe" in workload or "load" in workload else 1), f"{workload}: pipeline")
        check(workload != "save" or row["job_s"] > 0, f"{system}: no BGSAVE time")
        check(workload != "expire" or row["job_s"] > 0, f"{system}: nothing expired")
        check((system, workload) != ("lunar", "expire") or row["expired_ahead"] > 0,
              "the server's own cycle has expired all keys: no work of the gate's was measured")
        check(workload != "hotcold" or row["cold_ops_per_s"] > 0, f"{system}: no client read cold keys")
    for system in present:
        names = {workload for one, workload in rows if one == system}
        wanted = {"load", "get", "hotcold", "save", "load-expire", "expire", "load-fits", "get-pipe-fits",
                  "load-hash-fits", "hash-fits"}
        check(names == wanted, f"{system}: rows for {sorted(names)}")
    for name, ours, baseline in (("swap", "lunar", "swap"), ("run", "lunar", "run"), ("run_over_swap", "run", "swap")):
        ratios = report["ratios"].get(name, {})
        check(bool(ratios) == (ours in present and baseline in present), f"ratios of {name}: {ratios}")
        if ratios:
            mine, other = rows[ours, "get"], rows[baseline, "get"]
            check(abs(ratios["get_t8_ops"] - mine["ops_per_s"] / other["ops_per_s"]) < 0.01, f"{name}: get_t8_ops")
            check("save_t8_time" in ratios and "hotcold_t8_p99" in ratios, f"{name}: ratios missing: {sorted(ratios)}")
    if os.path.isdir(plots):
        for stem in ("redis-throughput", "redis-p99"):
            with open(os.path.join(plots, stem + ".png"), "rb") as png:
                check(png.read(8) == b"\x89PNG\r\n\x1a\n", f"{stem}.png is no PNG")
            with open(os.path.join(plots, stem + ".svg"), encoding="utf-8") as svg:
                check("<svg" in svg.read(), f"{stem}.svg is no SVG")
        shutil.rmtree(plots)
    check_gone(child.pid, directory, "a finished run")
    return None


def check_workloads(directory):
    """The rows that prepare their servers, two shards a side, values of 100 bytes; what each row must have done."""
    rows = "evict,replica,collections,get"
    child = start(["--json", "--systems", "lunar", "--workloads", rows, "--shards", "2", "--dram", "32m",
                   "--data", "40m", "--value-size", "100", "--rate", "200"], directory)
    out, err = finish(child)
    if "another bench runs" in err:
        return
    check(child.returncode == 0, f"exit code {child.returncode}: {err[-3000:]}")
    report = json.loads(out or "{}")
    check(report.get("failures") == [] and report["options"]["shards"] == 2, f"failures: {report.get('failures')}")
    found = {row["workload"]: row for row in report["results"]}
    loads = {"load", "load-evict", "load-replica", "load-collections"}
    check(set(found) == loads | set(rows.split(",")), f"rows for {sorted(found)}")
    check(all(row["ops_per_s"] > 0 and row["mismatches"] == 0 for row in found.values()), f"{found}")
    check(found["replica"]["lag_s"] > 0, "no replica was waited for")
    check(found["collections"]["cold_ops_per_s"] > 0, "no client read whole hashes")
    check_gone(child.pid, directory, "a run of two shards")


def check_compressed(directory):
    """zswap and zram: their state and what they hold are in the report, and the machine is as before."""
    def state():
        devices = sorted(name for name in os.listdir("/sys/block") if name.startswith("zram"))
        with open("/sys/module/zswap/parameters/enabled", encoding="utf-8") as enabled:
            return devices, enabled.read()
    if not os.path.isdir("/sys/class/zram-control") or not os.path.isdir("/sys/module/zswap"):
        print("zswap or zram is not in this kernel: not tried")
        return
    before = state()
    for kind in ("zswap", "zram"):
        report = compressed_report(kind, directory)
        if report is None:
            return
        check(report["skipped"].get("swap") is None, f"{kind}: {report['skipped']}")
        check(report["swap_state"].startswith(kind + ", "), f"{kind}: {report['swap_state']}")
        held = report["memory_peak_bytes"].get(f"{kind}, outside of the limit", 0)
        check(1 << 20 < held < 48 << 20, f"{kind} holds {held} bytes")
        check(state() == before, f"{kind}: was {before}, is {state()}")


def compressed_report(kind, directory):
    """The report of a run on swap compressed by `kind`; None while another bench has the machine. With little room
    beyond its data the kernel may end the server while it compresses: the bench must say so, and more room is tried."""
    for allowance in ("16m", "24m", "32m"):
        child = start(["--json", "--systems", "swap", "--workloads", "get", "--compressible", "--swap", kind,
                       "--data", "48m", "--allowance", allowance], directory)
        out, err = finish(child)
        check_gone(child.pid, directory, kind)
        if "another bench runs" in err:
            return None
        report = json.loads(out or "{}")
        if "killed for passing its memory limit" in report.get("skipped", {}).get("swap", ""):
            check("(--allowance)" in err, f"{kind}: a killed server without what to do: {err[-2000:]}")
            continue
        break
    check(child.returncode == 0 and report["failures"] == [], f"{kind}: {child.returncode}: {err[-2000:]}")
    return report


def begin_runs(words, directory):
    """A bench that makes runs by now; waits while another bench has the machine."""
    while True:
        child = start(words, directory)
        said = ""
        for line in iter(child.stderr.readline, ""):
            if line.startswith("["):
                return child
            said += line
        finish(child)
        if "another bench runs" not in said:
            problems.append(f"{words}: no runs: {said[-1000:]}")
            return child
        time.sleep(1)


def check_interrupted(directory):
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        child = begin_runs(["--workloads", "get", "--seconds", "30", "--systems", "run,swap"], directory)
        if signal_number == signal.SIGINT:
            second = start(["--workloads", "get"], directory)
            _, err = finish(second)
            check(second.returncode == 1 and "another bench runs" in err, f"two benches at once: {err}")
        child.send_signal(signal_number)
        _, err = finish(child)
        if signal_number == signal.SIGINT:
            check(child.returncode == 130, f"SIGINT: exit code {child.returncode}: {err[-1000:]}")
            check_gone(child.pid, directory, "SIGINT")
            continue
        check(bool(traces(child.pid, directory)), "kill -9 left nothing: this test cannot tell a sweep")
        sweeper = start(["--workloads", "hot-fits", "--systems", "run"], directory)
        _, err = finish(sweeper)
        check(sweeper.returncode == 0, f"the run after kill -9: {err[-1000:]}")
        check("left by a killed run" in err, "the run after kill -9 does not say what it swept")
        check_gone(child.pid, directory, "kill -9 and a sweep")


def check_refusals(directory):
    plot = "gnuplot" if not shutil.which("gnuplot") else "/dev/null"
    for words, part in ((["--workloads", "put"], "put"), (["--dram", "1m"], "--dram"),
                        (["--value-size", "7"], "--value-size"), (["--plot", "/dev/null"], plot)):
        child = start(words, directory)
        out, err = finish(child)
        check(child.returncode in (1, 2) and not out and part in err, f"{words}: {child.returncode}: {err}")


def main():
    if shutil.which("redis-server", path=os.environ.get("PATH", "") + ":/usr/bin") is None:
        print("skip: redis-server: not installed")
        return 77
    if os.geteuid() != 0:
        print("skip: root: swap and memory cgroups need it")
        return 77
    return run_checks(check_refusals, check_json, check_workloads, check_compressed, check_interrupted)


sys.exit(main())
