// SPDX-License-Identifier: Apache-2.0
// What the block benches count with: CPU time, fio's answer and command line, stamps, which runs count, ratios.
#include "tests/catch.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tools/bench/io/block_stamps.h"
#include "tools/bench/io/cpu_time.h"
#include "tools/bench/io/fio_job.h"
#include "tools/bench/io/io_report.h"
#include "tools/support/json_reader.h"

using namespace lunar::tools;

namespace {

bool near(double a, double b) { return std::fabs(a - b) <= 1e-9 * std::fabs(b) + 1e-12; }

// Cut down from what fio 3.33 prints.
constexpr const char* kFio = R"(fio: a warning { on the same stream
{
  "fio version" : "fio-3.33",
  "jobs" : [ { "jobname" : "lunar-bench", "error" : 0,
    "read" : { "io_bytes" : 1228800, "iops" : 100.500000, "total_ios" : 300,
      "lat_ns" : { "min" : 9, "max" : 5000, "mean" : 1000.5,
        "percentile" : { "50.000000" : 900, "99.000000" : 3000, "99.900000" : 4000 } } },
    "write" : { "iops" : 49.500000, "total_ios" : 100,
      "lat_ns" : { "max" : 7000, "mean" : 2000.5,
        "percentile" : { "50.000000" : 1900, "99.000000" : 2500, "99.900000" : 6000 } } },
    "usr_cpu" : 1.2e1, "note" : "a \"quoted\"\u0020text", "flags" : [true, false, null, []] } ]
})";

std::string cut_before_brace(const char* text) { return strchr(strchr(text, '\n'), '{'); }

IoRun run_of(double rate, double other_user, double cpu = 1) {
  IoRun run;
  run.seconds = 2;
  run.ops = 2 * rate;
  run.ops_per_s = rate;
  run.other_user_cpu_s = other_user;
  run.machine_cpu_s = cpu;
  run.kiops_per_cpu = run.ops / 1e3 / cpu;
  run.kiops_per_cpu_kernel = 2 * run.kiops_per_cpu;
  run.mean_ns = 1e9 / rate;
  return run;
}

IoResult row(const char* system, const char* workload, unsigned threads, unsigned depth, double rate, double cpu = 1) {
  IoResult result = io_result(system, workload, {run_of(rate, 0, cpu)});
  result.threads = threads;
  result.depth = depth;
  return result;
}

}  // namespace

TEST_CASE("machine CPU: what was not idle, and the sampled columns next to it") {
  const auto before = parse_cpu_times("cpu  100 10 200 5000 300 5 15 7 0 0\ncpu0 1 1 1 1 1 1 1\n", 100);
  const auto after = parse_cpu_times("cpu  150 20 230 5200 340 6 19 17 0 0\n", 100);
  REQUIRE(before);
  REQUIRE(after);
  const CpuUse use = cpu_between(*before, *after, 2.0, 2);
  CHECK(near(use.total_s, 4.0 - 2.0 - 0.4 - 0.1));  // elapsed x CPUs - idle - iowait - steal
  CHECK(near(use.user_s, 0.5 + 0.1));
  CHECK(near(use.kernel_s, use.total_s - 0.6));
  CHECK(near(use.kernel_ticks_s, 0.3 + 0.01 + 0.04));
  CHECK(cpu_between(*before, *after, 0.1, 1).total_s == 0);  // clocks that disagree: never below zero
  CHECK(parse_cpu_times("cpu 1 2 3 4 5 6 7\n", 100));        // old kernels have no steal
  CHECK(!parse_cpu_times("cpu0 1 2 3 4 5 6 7 8\n", 100));
  CHECK(!parse_cpu_times("cpu 1 2 3", 100));
  CHECK(near(parse_process_user_seconds("7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 99 0 0", 100).value_or(-1), 2.5));
  CHECK(!parse_process_user_seconds("7 nothing", 100));
}

TEST_CASE("JSON: values are found by their path, and no JSON is refused") {
  const auto json = JsonValue::parse(cut_before_brace(kFio));
  REQUIRE(json);
  CHECK(json->find({"fio version"})->text == "fio-3.33");
  const JsonValue& job = json->find({"jobs"})->items.at(0);
  CHECK(job.number_at({"usr_cpu"}) == 12);
  CHECK(job.find({"note"})->text == "a \"quoted\" text");
  CHECK(job.find({"flags"})->items.size() == 4);
  CHECK(job.find({"flags"})->items[0].number == 1);
  CHECK(job.number_at({"read", "none"}, -3) == -3);
  CHECK(job.number_at({"note"}, -3) == -3);
  for (const char* bad :
       {"", "{", "{\"a\"}", "{\"a\":1", "[1,,2]", "tru", "\"open", "{\"a\":1 \"b\":2}", "\"\\u12", "{}{}", "1 x"})
    CHECK(!JsonValue::parse(bad));
  CHECK(!JsonValue::parse(std::string(1000, '[')));
  std::string_view rest;
  CHECK(JsonValue::parse("{\"a\":1,\"a\":\"b\"} \n x", &rest)->find({"a"})->text == "b");
  CHECK(rest == "x");
  CHECK(JsonValue::parse("\"a\\u0000\\u00e9\\u20ac\\ud83d\\ude00\"")->text == std::string("a\0", 2) + "é€😀");
  for (const char* half : {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"", "\"\\u12g4\""})
    CHECK(!JsonValue::parse(half));
}

TEST_CASE("fio: its JSON becomes a run") {
  IoRun run;
  REQUIRE(parse_fio(cut_before_brace(kFio), &run));
  CHECK(run.ops == 400);
  CHECK(run.reads == 300);
  CHECK(near(run.ops_per_s, 150));
  CHECK(near(run.seconds, 400.0 / 150));
  CHECK(near(run.mean_ns, (300 * 1000.5 + 100 * 2000.5) / 400));
  CHECK(run.p50_ns == 1900);
  CHECK(run.p99_ns == 3000);
  CHECK(run.p999_ns == 6000);
  CHECK(run.max_ns == 7000);
  std::string failed = cut_before_brace(kFio);
  failed.replace(failed.find("\"error\" : 0"), 11, "\"error\" : 5");
  CHECK(!parse_fio(failed, &run));
  CHECK(!parse_fio("fio: no such option", &run));
  CHECK(!parse_fio("{\"jobs\":[]}", &run));
}

TEST_CASE("fio: its command does our work, in our batches") {
  IoOrder order;
  order.depth = 128;
  order.batch = batch_of(128);
  order.read_percent = 70;
  order.seconds = 2;
  const std::string text = command_text(fio_command("/usr/bin/fio", {"/d/f", "", 1048576, 4 << 20, 4096}, order));
  for (const char* part :
       {"--filename=/d/f ", "--offset=1048576 ", "--size=4194304 ", "--bs=4096 ", "--direct=1 ", "--iodepth=128 ",
        "--ioengine=io_uring ", "--registerfiles=1 ", "--fixedbufs=1 ", "--iodepth_batch_submit=32 ",
        "--iodepth_batch_complete_min=32 ", "--rw=randrw ", "--rwmixread=70 ", "--runtime=2000ms "}) {
    INFO(part);
    CHECK(text.find(part) != std::string::npos);
  }
  order.depth = order.batch = 1;
  order.read_percent = 100;
  const std::string one = command_text(fio_command("fio", {"f", "", 0, 4096, 4096}, order));
  CHECK(one.find("batch") == std::string::npos);
  CHECK(one.find("--rw=randread ") != std::string::npos);
  CHECK(one.find("rwmixread") == std::string::npos);
  CHECK(batch_of(1) == 1);
  CHECK(batch_of(16) == 4);
  CHECK(batch_of(1024) == 32);
}

TEST_CASE("stamps: the last version passes, everything else does not") {
  BlockStamps stamps(1, 8, 4096);
  Random random(1);
  std::vector<uint64_t> block(512), old;
  const uint64_t unit = stamps.claim(random);
  CHECK(!stamps.check(unit, block.data()));
  stamps.stamp(unit, block.data());
  CHECK(stamps.check(unit, block.data()));
  for (uint64_t other = 0; other < 8; ++other) CHECK(stamps.check(other, block.data()) == (other == unit));
  old = block;
  stamps.stamp(unit, block.data());
  CHECK(stamps.check(unit, block.data()));
  CHECK(!stamps.check(unit, old.data()));
  for (const size_t at : {size_t{0}, size_t{256}, size_t{511}}) {  // torn
    std::vector<uint64_t> torn = block;
    torn[at] = old[at];
    CHECK(!stamps.check(unit, torn.data()));
  }
  for (int i = 0; i < 7; ++i) CHECK(stamps.claim(random) != unit);  // all others are free, this one is not
  stamps.release(unit);
  CHECK(stamps.claim(random) == unit);
  CHECK(stamps.check(unit, block.data()));
}

TEST_CASE("the rounds that count are the least disturbed of all backends, whatever was measured") {
  using Rounds = std::vector<size_t>;
  const std::vector<IoRun> one{run_of(900, 0.5), run_of(300, 0.1), run_of(100, 0), run_of(800, 0.3)};
  CHECK(quietest_rounds({one}, 2) == Rounds{1, 2});
  CHECK(quietest_rounds({one, {run_of(1, 0), run_of(1, 0), run_of(1, 0.9), run_of(1, 0)}}, 2) == Rounds{1, 3});
  CHECK(quietest_rounds({one, {run_of(1, 0.2)}}, 3) == Rounds{1, 2, 3});  // a backend that was lost
  CHECK(quietest_rounds({{run_of(1, 0)}}, 3) == Rounds{0});
  CHECK(noisy_run(run_of(1, 0.13), 2));  // 2 s of 2 CPUs: 3 % are 0.12 s
  CHECK(!noisy_run(run_of(1, 0.11), 2));
}

TEST_CASE("block benches: ratios have the contract's keys") {
  IoReport report;
  report.options.bench = "superpipe";
  report.results = {row("lunar", "read", 1, 1, 20000),        row("fio", "read", 1, 1, 16000),
                    row("lunar", "read", 1, 128, 90000, 0.5), row("legacy", "read", 16, 1, 60000, 2),
                    row("fio", "read", 1, 128, 100000),       row("libaio", "read", 1, 128, 90000),
                    row("nospin", "read", 1, 1, 12800),       row("cblk", "read", 1, 128, 80000)};
  auto ratios = io_ratios(report);
  CHECK(near(ratios["fio"]["read_qd1_nospin_mean"], 1.25));  // both asleep
  CHECK(ratios["fio"].count("read_qd128_nospin_mean") == 0);
  CHECK(near(ratios["fio"]["read_qd128_cblk_ops"], 0.8));
  CHECK(ratios["fio"].count("read_qd1_cblk_ops") == 0);
  CHECK(near(ratios["legacy"]["read_t16_fio_ops"], 100000.0 / 60000));
  CHECK(near(ratios["legacy"]["read_t16_kiops_per_cpu"], 6));  // 90000 / 0.5 by 60000 / 2
  CHECK(near(ratios["legacy"]["read_t16_kiops_per_cpu_kernel"], 6));
  CHECK(near(ratios["legacy"]["read_t16_ops"], 1.5));
  CHECK(near(ratios["fio"]["read_qd128_ops"], 0.9));
  CHECK(near(ratios["fio"]["read_qd1_mean"], 0.8));
  CHECK(near(ratios["libaio"]["read_qd128_ops"], 1));
  CHECK(ratios["legacy"].count("read_t16_p99") == 0);  // nothing measured, nothing claimed
  CHECK(ratios.count("raw") == 0);
  report.cblk.raw = "pread";
  report.cblk.over_p50_ns = 1500;
  report.cblk.over_mean_ns = -200;
  CHECK(near(io_ratios(report)["raw"]["cblk_read_us_over"], 1.5));
  CHECK(near(io_ratios(report)["raw"]["cblk_read_us_over_mean"], -0.2));
  const std::string json = report_json(report);
  const auto parsed = JsonValue::parse(json);
  REQUIRE(parsed);
  CHECK(parsed->find({"cblk_read", "beside"})->text == "pread");
  CHECK(parsed->find({"bench"})->text == "superpipe");
  CHECK(parsed->find({"results"})->items.size() == 8);
  CHECK(std::fabs(parsed->number_at({"ratios", "legacy", "read_t16_kiops_per_cpu"}) - 6) < 1e-4);
  CHECK(report_table(report).find("lunar/legacy") != std::string::npos);
  CHECK(report_table(report).find("lunar spins here and fio sleeps: see nospin") != std::string::npos);
}

TEST_CASE("the window bench: its names stand for 4 KiB reads, deep and shallow") {
  IoReport report;
  report.options.bench = "window";
  report.options.depths = {1, 32};
  report.results = {row("lunar", "read4k", 1, 1, 22000),  row("perio", "read4k", 1, 1, 20000),
                    row("lunar", "read4k", 1, 32, 90000), row("perio", "read4k", 1, 32, 60000),
                    row("lunar", "read64k", 1, 32, 10),   row("perio", "read64k", 1, 32, 20)};
  auto ratios = io_ratios(report)["perio"];
  CHECK(near(ratios["window_ops"], 1.5));
  CHECK(near(ratios["window_mean"], 20.0 / 22));
  CHECK(near(ratios["read64k_qd32_ops"], 0.5));
}
