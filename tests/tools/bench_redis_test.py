# SPDX-License-Identifier: Apache-2.0
"""`lunar bench redis` from outside, at tiny sizes. Its JSON keeps the contract, it refuses what it
cannot do, and nothing of it is left behind: not at the end, not after SIGINT, and after kill -9 not
once the next run has swept."""
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from build_tree import LUNAR

SYSTEMS = "lunar,run,swap"
TINY = {"--dram": "16m", "--data": "24m", "--seconds": "0.2", "--connections": "8"}
NUMBERS = ["threads", "depth", "ops_per_s", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "cpu_s",
           "machine_cpu_s", "generator_cpu_s", "must_read_bytes", "disk_read_bytes", "mismatches"]


@pytest.fixture(autouse=True)
def needs(as_root):
    if shutil.which("redis-server", path=os.environ.get("PATH", "") + ":/usr/bin") is None:
        pytest.skip("redis-server: not installed")


def start(words, directory):
    tiny = [word for flag, value in TINY.items() if flag not in words for word in (flag, value)]
    return subprocess.Popen([LUNAR, "bench", "redis", "--quick", *tiny, "--lun", directory, *words],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def finish(child):
    return child.communicate()


def traces(pid, directory):
    """What a run of process `pid` would have left."""
    found = [os.path.join(directory, name) for name in os.listdir(directory)
             if name.startswith("lunar-bench-")]
    with open("/proc/swaps", encoding="utf-8") as swaps:
        found += [line.split()[0] for line in swaps if f"lunar-bench-{pid}" in line]
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        if os.path.isdir(root):
            found += [os.path.join(root, name) for name in os.listdir(root)
                      if name.startswith(f"lunar-bench-{pid}-")]
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as line:
                if (name.isdigit() and int(name) != pid
                    and f"lunar-bench-{pid}-redis" in line.read()):
                    found.append(f"process {name}")
        except OSError:
            pass
    return found


def check_gone(pid, directory, what):
    left = traces(pid, directory)
    assert not left, f"{what} left behind: {', '.join(left)}"


def report_of(child):
    """And its standard error."""
    out, err = finish(child)
    if "another bench runs" in err:
        pytest.skip("memory: another bench runs on this machine")
    assert child.returncode == 0, err
    return json.loads(out)


def test_json(directory):
    child = start(["--json", "--systems", SYSTEMS, "--workloads",
                   "get,hotcold,save,expire,get-pipe-fits,hash-fits",
                   "--rate", "200"], directory)
    report = report_of(child)
    assert report["bench"] == "redis" and report["host"]["cpus"] > 0, "bench or host is missing"
    assert report["options"]["dram"] == "16m" and report["sizes"]["dram_bytes"] == 16 << 20
    assert report["failures"] == []
    rows = {(row["system"], row["workload"]): row for row in report["results"]}
    present = {system for system, _ in rows}
    for system in SYSTEMS.split(","):
        assert system in present or report["skipped"].get(system), (
            f"{system} is neither measured nor named in skipped")
        assert not (system in present
                    and system in report["skipped"]), f"{system} is both measured and skipped"
    for (system, workload), row in rows.items():
        for name in NUMBERS:
            assert isinstance(row.get(name),
                              (int, float)), f"{system} {workload}: {name} is no number"
        assert row["ops_per_s"] > 0 and row["mismatches"] == 0
        assert row["p50_ns"] <= row["p99_ns"] <= row["p999_ns"]
        assert row["depth"] == (16 if "pipe" in workload or "load" in workload else 1)
        assert workload != "save" or row["job_s"] > 0
        assert workload != "expire" or row["job_s"] > 0
        assert (system, workload) != ("lunar", "expire") or row["expired_ahead"] > 0, (
            "the server's own cycle has expired all keys: no work of the gate's was measured")
        assert workload != "hotcold" or row["cold_ops_per_s"] > 0
    for system in present:
        names = {workload for one, workload in rows if one == system}
        wanted = {"load", "get", "hotcold", "save", "load-expire", "expire", "load-fits",
                  "get-pipe-fits", "load-hash-fits", "hash-fits"}
        assert names == wanted
    for name, ours, baseline in (("swap", "lunar", "swap"), ("run", "lunar", "run"),
                                 ("run_over_swap", "run", "swap")):
        ratios = report["ratios"].get(name, {})
        assert bool(ratios) == (ours in present and baseline in present)
        if ratios:
            mine, other = rows[ours, "get"], rows[baseline, "get"]
            assert abs(ratios["get_t8_ops"] - mine["ops_per_s"] / other["ops_per_s"]) < 0.01
            assert "save_t8_time" in ratios and "hotcold_t8_p99" in ratios
    check_gone(child.pid, directory, "a finished run")


def test_workloads(directory):
    """The rows that prepare their servers, two shards a side, values of 100 bytes; what each row
    must have done."""
    rows = "evict,replica,collections,get"
    child = start(["--json", "--systems", "lunar", "--workloads", rows, "--shards", "2", "--dram",
                   "32m", "--data", "40m", "--value-size", "100", "--rate", "200"], directory)
    report = report_of(child)
    assert report["failures"] == [] and report["options"]["shards"] == "2"
    found = {row["workload"]: row for row in report["results"]}
    loads = {"load", "load-evict", "load-replica", "load-collections"}
    assert set(found) == loads | set(rows.split(","))
    assert all(row["ops_per_s"] > 0 and row["mismatches"] == 0
               for row in found.values()), f"{found}"
    assert found["replica"]["lag_s"] > 0, "no replica was waited for"
    assert found["collections"]["cold_ops_per_s"] > 0, "no client read whole hashes"
    check_gone(child.pid, directory, "a run of two shards")


def swap_state():
    devices = sorted(name for name in os.listdir("/sys/block") if name.startswith("zram"))
    with open("/sys/module/zswap/parameters/enabled", encoding="utf-8") as enabled:
        return devices, enabled.read()


@pytest.mark.parametrize("kind", ["zswap", "zram"])
def test_compressed(directory, kind):
    """Their state and what they hold are in the report, and the machine is as before. With little
    room beyond its data the kernel may end the server while it compresses: the bench must say so,
    and more room is tried."""
    if not os.path.isdir("/sys/class/zram-control") or not os.path.isdir("/sys/module/zswap"):
        pytest.skip("swap: zswap or zram is not in this kernel")
    before = swap_state()
    for allowance in ("16m", "24m", "32m"):
        child = start(["--json", "--systems", "swap", "--workloads", "get", "--compressible",
                       "--swap", kind, "--data", "48m", "--allowance", allowance], directory)
        out, err = finish(child)
        check_gone(child.pid, directory, kind)
        if "another bench runs" in err:
            pytest.skip("memory: another bench runs on this machine")
        report = json.loads(out)
        if "killed for passing its memory limit" not in report.get("skipped", {}).get("swap", ""):
            break
        assert "(--allowance)" in err
    assert child.returncode == 0 and report["failures"] == []
    assert report["skipped"].get("swap") is None
    assert report["notes"]["swap_state"].startswith(kind + ", ")
    assert 1 << 20 < report["memory_peak_bytes"].get(f"{kind}, outside of the limit", 0) < 48 << 20
    assert swap_state() == before


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
        assert "another bench runs" in said, "no runs"
        time.sleep(1)


def test_interrupted(directory):
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        child = begin_runs(["--workloads", "get", "--seconds", "30", "--systems", "run,swap"],
                           directory)
        if signal_number == signal.SIGINT:
            second = start(["--workloads", "get"], directory)
            _, err = finish(second)
            assert second.returncode == 1 and "another bench runs" in err
        child.send_signal(signal_number)
        _, err = finish(child)
        if signal_number == signal.SIGINT:
            assert child.returncode == 130
            check_gone(child.pid, directory, "SIGINT")
            continue
        assert bool(traces(child.pid,
                           directory)), "kill -9 left nothing: this test cannot tell a sweep"
        sweeper = start(["--workloads", "hot-fits", "--systems", "run"], directory)
        _, err = finish(sweeper)
        assert sweeper.returncode == 0
        assert "left by a killed run" in err, "the run after kill -9 does not say what it swept"
        check_gone(child.pid, directory, "kill -9 and a sweep")


def test_refusals(directory):
    for words, part in ((["--workloads", "put"], "put"), (["--dram", "1m"], "--dram"),
                        (["--value-size", "7"], "--value-size"), (["--plot", "x"], "--plot")):
        child = start(words, directory)
        out, err = finish(child)
        if "another bench runs" in err:
            pytest.skip("memory: another bench runs on this machine")
        assert child.returncode in (1, 2) and not out and part in err
