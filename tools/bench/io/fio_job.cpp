// SPDX-License-Identifier: Apache-2.0
// See fio_job.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/io/fio_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "tools/bench/io/cpu_time.h"
#include "tools/bench/io/io_worker.h"
#include "tools/support/process.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {

constexpr double kStartSeconds = 0.3;  // until fio is surely under way
constexpr double kEndSeconds = 0.05;
constexpr double kWindowSecondsMin = 0.2;  // /proc/stat counts hundredths

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Reading {
  double at = 0, user = 0;
  CpuTimes machine;
};
Reading read_now(int pid) { return {now_s(), process_user_seconds(pid), read_cpu_times()}; }

// All that comes until the writer ends; `tick` is called several times a second.
template <class Tick>
std::string read_all(int fd, double seconds_max, const Tick& tick) {
  std::string text;
  char chunk[4096];
  for (const double end = now_s() + seconds_max;;) {
    check_interrupted();
    tick();
    if (now_s() > end) throw std::runtime_error(fmt::format("fio: no answer within {:.0f} s", seconds_max));
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, 20) <= 0) continue;
    const ssize_t got = read(fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace

IoRun measure_fio_run(const std::string& fio, const FioTarget& target, const IoOrder& order) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error(fmt::format("pipe: {}", strerror(errno)));
  const auto disk_before = read_disk(target.disk_stat);
  StartOptions start;
  start.standard_output = out[1];
  std::string text;
  Reading first, last;
  double cpu_before_end = 0;
  const double began = now_s();
  try {
    Process child(fio_command(fio, target, order), start);
    close(std::exchange(out[1], -1));
    const double from = began + order.warm_seconds + kStartSeconds,
                 to = began + order.warm_seconds + order.seconds - kEndSeconds;
    text = read_all(out[0], order.seconds + order.warm_seconds + 60, [&] {
      const double now = now_s();
      if (now >= from && now <= to) (first.at == 0 ? first : last) = read_now(child.pid());
      cpu_before_end = std::max(cpu_before_end, process_cpu_seconds(child.pid()));
    });
    if (!child.wait(10)) throw std::runtime_error("fio did not end");
    close(std::exchange(out[0], -1));
    if (const std::string how = child.how_it_ended(); how != "exit code 0")
      throw std::runtime_error("fio ended with " + how);
  } catch (...) {
    for (const int fd : out) {
      if (fd >= 0) close(fd);
    }
    throw;
  }
  IoRun run;
  if (!parse_fio(text, &run)) throw std::runtime_error("fio's output is not understood: " + text.substr(0, 200));
  run.cpu_s = cpu_before_end;
  const double window = last.at - first.at;
  if (first.at > 0 && window >= kWindowSecondsMin) {
    const CpuUse use = cpu_between(first.machine, last.machine, window, sysconf(_SC_NPROCESSORS_ONLN));
    const double scale = run.seconds / window;
    run.machine_cpu_s = use.total_s * scale;
    run.kernel_cpu_s = use.kernel_s * scale;
    run.kernel_ticks_cpu_s = use.kernel_ticks_s * scale;
    run.other_user_cpu_s = std::max(0.0, use.user_s - (last.user - first.user)) * scale;
  }
  if (const auto disk_after = read_disk(target.disk_stat); disk_before && disk_after) {
    run.disk_read_bytes = static_cast<double>(disk_after->read - disk_before->read);
    run.disk_written_bytes = static_cast<double>(disk_after->written - disk_before->written);
    run.must_read_bytes = run.reads * static_cast<double>(target.unit_bytes);
    run.must_write_bytes = run.writes * static_cast<double>(target.unit_bytes);
  }
  const double rate = run.ops_per_s;
  finish_io_run(&run);
  run.ops_per_s = rate;
  return run;
}

}  // namespace lunar::tools
