# SPDX-License-Identifier: Apache-2.0
"""`lunar bench redis` from outside, at tiny sizes: its JSON keeps the contract."""
import json
import os
import shutil

import pytest

from bench_command import check_gone, report_of, run

SYSTEMS = "lunar,run,swap"
TINY = {"--dram": "16m", "--data": "24m", "--seconds": "0.2", "--connections": "8"}
NUMBERS = ["threads", "depth", "ops_per_s", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "cpu_s",
           "machine_cpu_s", "generator_cpu_s", "must_read_bytes", "disk_read_bytes", "mismatches"]


@pytest.fixture(autouse=True)
def needs(as_root):
    if shutil.which("redis-server", path=os.environ.get("PATH", "") + ":/usr/bin") is None:
        pytest.skip("redis-server: not installed")


def tiny(*words):
    return ["--quick", *(word for flag, value in TINY.items() if flag not in words
                         for word in (flag, value)), *words]


def test_json(directory):
    report, _ = report_of("redis", directory, *tiny(
        "--systems", SYSTEMS, "--workloads", "get,hotcold,save,expire,get-pipe-fits,hash-fits",
        "--rate", "200"))
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
            assert {"get_t8_ops", "save_t8_time", "hotcold_t8_p99"} <= set(ratios)


def test_workloads(directory):
    """The rows that prepare their servers, two shards a side, values of 100 bytes; what each row
    must have done."""
    rows = "evict,replica,collections,get"
    report, _ = report_of("redis", directory, *tiny(
        "--systems", "lunar", "--workloads", rows, "--shards", "2", "--dram", "32m", "--data",
        "40m", "--value-size", "100", "--rate", "200"))
    assert report["failures"] == [] and report["options"]["shards"] == "2"
    found = {row["workload"]: row for row in report["results"]}
    loads = {"load", "load-evict", "load-replica", "load-collections"}
    assert set(found) == loads | set(rows.split(","))
    assert all(row["ops_per_s"] > 0 and row["mismatches"] == 0
               for row in found.values()), f"{found}"
    assert found["replica"]["lag_s"] > 0, "no replica was waited for"
    assert found["collections"]["cold_ops_per_s"] > 0, "no client read whole hashes"


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
        pid, code, out, err = run("redis", directory, *tiny(
            "--json", "--systems", "swap", "--workloads", "get", "--compressible", "--swap", kind,
            "--data", "48m", "--allowance", allowance))
        check_gone(pid, directory)
        report = json.loads(out)
        if "killed for passing its memory limit" not in report.get("skipped", {}).get("swap", ""):
            break
        assert "(--allowance)" in err
    assert code == 0 and report["failures"] == []
    assert report["skipped"].get("swap") is None
    assert report["notes"]["swap_state"].startswith(kind + ", ")
    assert 1 << 20 < report["memory_peak_bytes"].get(f"{kind}, outside of the limit", 0) < 48 << 20
    assert swap_state() == before
