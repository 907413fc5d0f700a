// SPDX-License-Identifier: Apache-2.0
// See fio_job.h.
#include "tools/bench/io/fio_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "tools/support/clock.h"
#include "tools/support/process.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {

constexpr double kStartSeconds = 0.3;  // fio is running by then
constexpr double kEndSeconds = 0.05;
constexpr double kWindowSecondsMin = 0.2;  // /proc/stat counts hundredths of a second

struct Reading {
  double at = 0, machine_cpu = 0;
};

// Reads until the writer closes. Calls `tick` several times per second.
template <class Tick>
std::string read_all(int fd, double seconds_max, const Tick& tick) {
  std::string text;
  char chunk[4096];
  for (const double end = now_seconds() + seconds_max;;) {
    check_interrupted();
    tick();
    if (now_seconds() > end)
      throw std::runtime_error(fmt::format("fio: no answer within {:.0f} s", seconds_max));
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, 20) <= 0) continue;
    const ssize_t got = read(fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace

std::vector<std::string> fio_command(const std::string& fio, const FioTarget& target,
                                     const IoOrder& order) {
  std::vector<std::string> words{fio,
                                 "--name=lunar-bench",
                                 "--filename=" + target.path,
                                 fmt::format("--offset={}", target.offset),
                                 fmt::format("--size={}", target.bytes),
                                 fmt::format("--bs={}", target.unit_bytes),
                                 "--direct=1",
                                 "--thread",
                                 "--norandommap",
                                 "--randrepeat=0",
                                 "--allow_file_create=0",
                                 "--time_based",
                                 fmt::format("--runtime={:.0f}ms", order.seconds * 1e3),
                                 fmt::format("--ramp_time={:.0f}ms", order.warm_seconds * 1e3),
                                 fmt::format("--rwmixread={}", order.read_percent),
                                 order.read_percent == 100 ? "--rw=randread"
                                 : order.read_percent == 0 ? "--rw=randwrite"
                                                           : "--rw=randrw",
                                 "--lat_percentiles=1",
                                 "--clat_percentiles=0",
                                 "--percentile_list=50:99:99.9",
                                 "--output-format=json"};
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (order.system == "legacy") {
    add({"--ioengine=psync", fmt::format("--numjobs={}", order.depth), "--group_reporting"});
    return words;
  }
  add({order.system == "libaio" ? "--ioengine=libaio" : "--ioengine=io_uring",
       fmt::format("--iodepth={}", order.depth)});
  if (order.system != "libaio") add({"--registerfiles=1", "--fixedbufs=1"});
  if (order.batch > 1)
    for (const char* name : {"submit", "complete_min", "complete_max"})
      add({fmt::format("--iodepth_batch_{}={}", name, order.batch)});
  return words;
}

bool parse_fio(std::string_view text, RunResult* run) try {
  const size_t brace = text.find('{');  // there may be warnings before and after the object
  if (brace == std::string_view::npos) return false;
  nlohmann::json report;
  std::istringstream(std::string(text.substr(brace))) >> report;
  const nlohmann::json& jobs = report.at("jobs");
  if (jobs.size() != 1) return false;
  const nlohmann::json& job = jobs.at(0);
  const auto number = [&job](const std::string& path) {
    return job.value(nlohmann::json::json_pointer(path), 0.0);
  };
  if (number("/error") != 0) return false;
  run->reads = number("/read/total_ios");
  run->writes = number("/write/total_ios");
  run->ops = run->reads + run->writes;
  run->ops_per_s = number("/read/iops") + number("/write/iops");
  if (run->ops <= 0 || run->ops_per_s <= 0) return false;
  run->seconds = run->ops / run->ops_per_s;
  // The mean over both directions is exact. Of the percentiles the worse one counts, because fio
  // does not merge them.
  run->mean_ns =
      (number("/read/lat_ns/mean") * run->reads + number("/write/lat_ns/mean") * run->writes) /
      run->ops;
  run->max_ns = std::max(number("/read/lat_ns/max"), number("/write/lat_ns/max"));
  const auto percentile = [&](const std::string& name) {
    return std::max(run->reads > 0 ? number("/read/lat_ns/percentile/" + name) : 0,
                    run->writes > 0 ? number("/write/lat_ns/percentile/" + name) : 0);
  };
  run->p50_ns = percentile("50.000000");
  run->p99_ns = percentile("99.000000");
  run->p999_ns = percentile("99.900000");
  return true;
} catch (const nlohmann::json::exception&) { return false; }

void put_cpu_figures(RunResult* run) {
  run->cpu_us_per_op = run->ops > 0 ? run->machine_cpu_s * 1e6 / run->ops : 0;
  run->kiops_per_cpu = run->machine_cpu_s > 0 ? run->ops / 1e3 / run->machine_cpu_s : kNone;
}

RunResult measure_fio_run(const std::string& fio, const FioTarget& target, const IoOrder& order) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0)
    throw std::runtime_error(fmt::format("pipe: {}", strerror(errno)));
  const auto disk_before = read_disk(target.disk_stat);
  StartOptions start;
  start.standard_output = out[1];
  std::string text;
  Reading first, last;
  RunResult run;
  const double began = now_seconds();
  try {
    Process child(fio_command(fio, target, order), start);
    close(std::exchange(out[1], -1));
    const double from = began + order.warm_seconds + kStartSeconds,
                 to = began + order.warm_seconds + order.seconds - kEndSeconds;
    text = read_all(out[0], order.seconds + order.warm_seconds + 60, [&] {
      const double now = now_seconds();
      if (now >= from && now <= to)
        (first.at == 0 ? first : last) = Reading{now, machine_cpu_seconds()};
      run.cpu_s = std::max(run.cpu_s, process_cpu_seconds(child.pid()));
    });
    if (!child.wait(10)) throw std::runtime_error("fio did not end");
    if (const std::string how = child.how_it_ended(); how != "exit code 0")
      throw std::runtime_error("fio ended with " + how);
  } catch (...) {
    for (const int fd : out)
      if (fd >= 0) close(fd);
    throw;
  }
  close(out[0]);
  if (!parse_fio(text, &run))
    throw std::runtime_error("fio's output is not understood: " + text.substr(0, 200));
  const double window = last.at - first.at;
  if (first.at > 0 && window >= kWindowSecondsMin)
    run.machine_cpu_s = std::max(0.0, last.machine_cpu - first.machine_cpu) * run.seconds / window;
  if (const auto disk_after = read_disk(target.disk_stat); disk_before && disk_after) {
    run.disk_read_bytes = static_cast<double>(disk_after->read - disk_before->read);
    run.disk_written_bytes = static_cast<double>(disk_after->written - disk_before->written);
    run.must_read_bytes = run.reads * static_cast<double>(target.unit_bytes);
    run.must_write_bytes = run.writes * static_cast<double>(target.unit_bytes);
  }
  put_cpu_figures(&run);
  return run;
}

}  // namespace lunar::tools
