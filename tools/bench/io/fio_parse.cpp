// SPDX-License-Identifier: Apache-2.0
// fio's job files and its output: see fio_job.h, which runs it.
// Threading: free functions. May not be used by runtime/ (it allocates).
#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/io/fio_job.h"
#include "tools/support/json_reader.h"

namespace lunar::tools {

std::vector<std::string> fio_command(const std::string& fio, const FioTarget& target, const IoOrder& order) {
  std::vector<std::string> words{fio,
                                 "--name=lunar-bench",
                                 "--filename=" + target.path,
                                 fmt::format("--offset={}", target.offset),
                                 fmt::format("--size={}", target.bytes),
                                 fmt::format("--bs={}", target.unit_bytes),
                                 "--direct=1",
                                 "--ioengine=io_uring",
                                 "--registerfiles=1",
                                 "--fixedbufs=1",
                                 "--thread",
                                 fmt::format("--iodepth={}", order.depth)};
  if (order.batch > 1) {
    for (const char* name : {"submit", "complete_min", "complete_max"}) {
      words.push_back(fmt::format("--iodepth_batch_{}={}", name, order.batch));
    }
  }
  words.push_back(order.read_percent == 100 ? "--rw=randread"
                  : order.read_percent == 0 ? "--rw=randwrite"
                                            : "--rw=randrw");
  if (order.read_percent % 100 != 0) words.push_back(fmt::format("--rwmixread={}", order.read_percent));
  const std::vector<std::string> rest{"--norandommap",
                                      "--randrepeat=0",
                                      "--allow_file_create=0",
                                      "--time_based",
                                      fmt::format("--runtime={:.0f}ms", order.seconds * 1e3),
                                      fmt::format("--ramp_time={:.0f}ms", order.warm_seconds * 1e3),
                                      "--lat_percentiles=1",
                                      "--clat_percentiles=0",
                                      "--percentile_list=50:99:99.9",
                                      "--output-format=json"};
  words.insert(words.end(), rest.begin(), rest.end());
  return words;
}

std::string command_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool parse_fio(std::string_view text, IoRun* run) {
  const size_t brace = text.find('{');  // warnings may stand before it, and behind it
  if (brace == std::string_view::npos) return false;
  std::string_view rest;
  const auto json = JsonValue::parse(text.substr(brace), &rest);
  const JsonValue* jobs = json ? json->find({"jobs"}) : nullptr;
  if (!jobs || jobs->items.size() != 1 || jobs->items[0].number_at({"error"}) != 0) return false;
  const JsonValue& job = jobs->items[0];
  run->reads = job.number_at({"read", "total_ios"});
  run->writes = job.number_at({"write", "total_ios"});
  run->ops = run->reads + run->writes;
  run->ops_per_s = job.number_at({"read", "iops"}) + job.number_at({"write", "iops"});
  if (run->ops <= 0 || run->ops_per_s <= 0) return false;
  run->seconds = run->ops / run->ops_per_s;
  // Of the two directions together: the mean is exact; percentiles are the worse of the two, as fio does not merge
  // them.
  const auto both = [&](std::initializer_list<std::string_view> read, std::initializer_list<std::string_view> write) {
    return std::max(run->reads > 0 ? job.number_at(read) : 0, run->writes > 0 ? job.number_at(write) : 0);
  };
  run->mean_ns = (job.number_at({"read", "lat_ns", "mean"}) * run->reads +
                  job.number_at({"write", "lat_ns", "mean"}) * run->writes) /
                 run->ops;
  run->max_ns = both({"read", "lat_ns", "max"}, {"write", "lat_ns", "max"});
  run->p50_ns = both({"read", "lat_ns", "percentile", "50.000000"}, {"write", "lat_ns", "percentile", "50.000000"});
  run->p99_ns = both({"read", "lat_ns", "percentile", "99.000000"}, {"write", "lat_ns", "percentile", "99.000000"});
  run->p999_ns = both({"read", "lat_ns", "percentile", "99.900000"}, {"write", "lat_ns", "percentile", "99.900000"});
  return true;
}

}  // namespace lunar::tools
