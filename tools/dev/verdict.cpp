// SPDX-License-Identifier: Apache-2.0
// See verdict.h.
#include "tools/dev/verdict.h"

#include <fmt/format.h>

namespace lunar::tools {

void check_result(DemoRecord& record) {
  const auto fail = [&](const std::string& why) { record.failures.push_back(why); };
  const Sample& last = record.last;
  if (record.mismatches > 0)
    fail(fmt::format("{} of {} values came back wrong", record.mismatches, record.values));
  if (record.digest.empty() || record.digest != record.dump_digest) {
    fail(fmt::format("digests differ: {} tiered, {} from the dump", record.digest,
                     record.dump_digest));
  }
  if (record.digest == std::string(40, '0')) fail("the digest is that of an empty database");
  if (record.oom_kills > 0)
    fail(fmt::format("{} processes were killed at the cgroup's limit", record.oom_kills));
  if (record.no_group.empty() && last.group_peak_bytes > record.dram_bytes + kGroupAboveCap) {
    fail(fmt::format("the cgroup peaked at {} MiB, more than cap + 128 MiB",
                     mib(last.group_peak_bytes)));
  }
  if (last.resident_peak_bytes > record.dram_bytes + kResidentAboveCap) {
    fail(fmt::format("the resident set peaked at {} MiB, more than cap + 64 MiB",
                     mib(last.resident_peak_bytes)));
  }
  if (!last.has_stats)
    fail("no live counters were found: the server was not tiered");
  else if (last.stats.evictions == 0)
    fail("nothing was evicted: the data never left DRAM");
}

std::string record_table(const DemoRecord& record) {
  const lunar_stats& stats = record.last.stats;
  std::string out = "\n";
  const auto row = [&](const std::string& name, const std::string& text) {
    out += fmt::format("  {:<24}{}\n", name, text);
  };
  row("values", fmt::format("{} x {} bytes = {} MiB, all read back, {} mismatches", record.values,
                            record.value_bytes, mib(record.data_bytes()), record.mismatches));
  for (const DemoPhase& phase : record.phases) {
    const double mib_per_s =
        phase.per_second * static_cast<double>(record.value_bytes) / static_cast<double>(kMiB);
    row(phase.name, phase.per_second > 0 ? fmt::format("{:.1f} s, {:.0f} op/s, {:.0f} MiB/s",
                                                       phase.seconds, phase.per_second, mib_per_s)
                                         : fmt::format("{:.1f} s", phase.seconds));
  }
  row("DRAM cap", fmt::format("{} MiB", mib(record.dram_bytes)));
  row("resident set, peak",
      fmt::format("{} MiB (allowed: {})", mib(record.last.resident_peak_bytes),
                  mib(record.dram_bytes + kResidentAboveCap)));
  row("memory cgroup, peak",
      !record.no_group.empty()
          ? "none: " + record.no_group
          : fmt::format("{} MiB of {}, no swap, {} kills (page cache fills what is free)",
                        mib(record.last.group_peak_bytes), mib(record.dram_bytes + kGroupAboveCap),
                        record.oom_kills));
  if (record.last.has_stats) {
    row("pages evicted", fmt::format("{} ({} clean)", stats.evictions, stats.evicted_clean));
    row("pages faulted",
        fmt::format("{} ({} from the LUN, {} second chances), {} read ahead", stats.faults,
                    stats.major_faults, stats.second_chances, stats.prefetched));
    row("LUN traffic", fmt::format("{} MiB written, {} MiB read", mib(stats.lun_written_bytes),
                                   mib(stats.lun_read_bytes)));
  }
  row("forks (saves)", record.forks);
  row("digest",
      record.digest +
          (record.digest == record.dump_digest ? " = dump" : " != dump " + record.dump_digest));
  row("run time", fmt::format("{:.0f} s", record.seconds));
  if (record.failures.empty()) {
    out += fmt::format(
        "PASS: {} MiB in a redis-server of {} MiB, every value right, dump and digest equal{}\n",
        mib(record.data_bytes()), mib(record.dram_bytes),
        record.no_group.empty() ? "" : " (only the resident set proves the cap)");
  }
  for (const std::string& failure : record.failures) out += fmt::format("FAIL: {}\n", failure);
  return out;
}

}  // namespace lunar::tools
