// SPDX-License-Identifier: Apache-2.0
// Parts of the block bench: fio's answer and command line, stamps.
#include "tests/catch.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tools/bench/io/block_stamps.h"
#include "tools/bench/io/fio_job.h"

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

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{} ", fmt::join(words, " "));
}

}  // namespace

TEST_CASE("fio: its JSON becomes a run") {
  RunResult run;
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
  for (const char* bad :
       {"{\"jobs\":[]}", "{\"jobs\":[5]}", "{\"jobs\":{}}", "{\"jobs\":[{}]", "{}"})
    CHECK(!parse_fio(bad, &run));
  CHECK(parse_fio(cut_before_brace(kFio) + "\nfio: a warning } behind it\n", &run));
}

TEST_CASE("fio: its command does our work, in our batches") {
  const auto command = [](const char* system, unsigned depth, unsigned read_percent) {
    const IoOrder order{system, read_percent, depth, batch_of(depth), 2, 0.1, 1};
    return joined(fio_command("/usr/bin/fio", {"/d/f", "", 1048576, 4 << 20, 4096}, order));
  };
  const auto has = [](const std::string& text, const std::vector<const char*>& parts) {
    for (const char* part : parts) {
      INFO(part);
      CHECK(text.find(part) != std::string::npos);
    }
  };
  has(command("fio", 128, 70),
      {"--filename=/d/f ", "--offset=1048576 ", "--size=4194304 ", "--bs=4096 ", "--direct=1 ",
       "--iodepth=128 ", "--ioengine=io_uring ", "--registerfiles=1 ", "--fixedbufs=1 ",
       "--iodepth_batch_submit=32 ", "--iodepth_batch_complete_min=32 ", "--rw=randrw ",
       "--rwmixread=70 ", "--runtime=2000ms "});
  const std::string one = command("fio", 1, 100);
  CHECK(one.find("batch") == std::string::npos);
  has(one, {"--rw=randread ", "--iodepth=1 "});
  const std::string aio = command("libaio", 16, 0);
  has(aio, {"--ioengine=libaio ", "--iodepth=16 ", "--iodepth_batch_submit=4 ", "--rw=randwrite "});
  CHECK(aio.find("fixedbufs") == std::string::npos);
  const std::string threads = command("legacy", 16, 100);
  has(threads, {"--ioengine=psync ", "--numjobs=16 ", "--group_reporting "});
  CHECK(threads.find("iodepth") == std::string::npos);
  CHECK(batch_of(1) == 1);
  CHECK(batch_of(16) == 4);
  CHECK(batch_of(1024) == 32);
}

TEST_CASE("CPU of an operation, and operations of a CPU second") {
  RunResult run;
  run.ops = 180000;
  run.machine_cpu_s = 0.5;
  put_cpu_figures(&run);
  CHECK(near(run.kiops_per_cpu, 360));
  CHECK(near(run.cpu_us_per_op, 0.5e6 / 180000));
  run.machine_cpu_s = 0;  // no tick came
  put_cpu_figures(&run);
  CHECK(std::isnan(run.kiops_per_cpu));
}

TEST_CASE("stamps: the last version passes, everything else does not") {
  BlockStamps stamps(1, 8);
  Random random(1);
  std::vector<uint64_t> block(512), old;
  const uint64_t unit = stamps.claim(random);
  CHECK(!stamps.check(unit, block.data()));
  stamps.stamp(unit, block.data());
  CHECK(stamps.check(unit, block.data()));
  for (uint64_t other = 0; other < 8; ++other)
    CHECK(stamps.check(other, block.data()) == (other == unit));
  old = block;
  stamps.stamp(unit, block.data());
  CHECK(stamps.check(unit, block.data()));
  CHECK(!stamps.check(unit, old.data()));
  for (const size_t at : {size_t{0}, size_t{256}, size_t{511}}) {  // torn
    std::vector<uint64_t> torn = block;
    torn[at] = old[at];
    CHECK(!stamps.check(unit, torn.data()));
  }
  for (int i = 0; i < 7; ++i)
    CHECK(stamps.claim(random) != unit);  // all others are free, this one is not
  stamps.release(unit);
  CHECK(stamps.claim(random) == unit);
  CHECK(stamps.check(unit, block.data()));
}
