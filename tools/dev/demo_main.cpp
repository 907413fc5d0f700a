// SPDX-License-Identifier: Apache-2.0
// lunar-demo: `lunar run` starts an unmodified redis-server, which holds four times its DRAM. The
// demo reads all values back and compares them; a plain server that loads a dump has the same
// digest. tools/demo builds and runs it.
//
//   load 1 GiB by pipelined SET -> read all back in random order -> DEBUG DIGEST -> BGSAVE -> load
//   the dump into another server
//
// The server runs in a memory cgroup of --dram + 128 MiB without swap (page cache and kernel memory
// included), and a thread watches its resident set. The demo ends with a table and PASS or FAIL,
// and removes everything that it made, however it ends.
// Threading: one thread, and that of Watch.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "sys/proc.h"
#include "tools/bench/page_content.h"
#include "tools/bench/random.h"
#include "tools/bench/setup_journal.h"
#include "tools/dev/verdict.h"
#include "tools/dev/watch.h"
#include "tools/support/cgroup.h"
#include "tools/support/clock.h"
#include "tools/support/flags.h"
#include "tools/support/host.h"
#include "tools/support/process.h"
#include "tools/support/redis_server.h"

namespace lunar::tools {

namespace {

constexpr size_t kPipelineDepth = 64;

struct DemoOptions {
  uint64_t dram_bytes = 256 * kMiB, data_bytes = 1024 * kMiB;
  size_t value_bytes = 4000;
  std::string lunar, redis_server, directory = "/var/tmp", lun;
  uint64_t seed = 20;
};

class Demo {
 public:
  explicit Demo(DemoOptions options)
      : options_(std::move(options)),
        content_(options_.seed, round_up(options_.value_bytes, sizeof(uint64_t))),
        value_(round_up(options_.value_bytes, sizeof(uint64_t)), '\0'),
        count_(options_.data_bytes / options_.value_bytes),
        terminal_(isatty(STDERR_FILENO) != 0) {
    record_.dram_bytes = options_.dram_bytes;
    record_.values = count_;
    record_.value_bytes = options_.value_bytes;
  }
  bool run();

 private:
  void work();
  void prepare();
  void start_server();
  void load();
  void read_back();
  void save();
  void load_dump();
  void say(const std::string& text) const;
  void progress(const std::string& phase, uint64_t done, double started, bool last);
  void finish_phase(const std::string& name, double started, uint64_t operations);
  std::vector<std::string> wrapper(const std::string& stats_file) const;
  static std::string key(uint64_t index) { return fmt::format("value:{:09}", index); }
  std::string_view value(uint64_t index) {  // valid until the next call
    content_.fill(index, value_.data());
    return {value_.data(), options_.value_bytes};
  }

  DemoOptions options_;
  PageContent content_;
  std::string value_;
  uint64_t count_;
  bool terminal_;
  double last_line_ = 0, lap_ = 0;
  uint64_t lap_done_ = 0;
  DemoRecord record_;
  double started_ = now_seconds();
  // Destroyed from the last to the first.
  BenchLock lock_;
  SetupJournal journal_;
  std::optional<WorkDirectory> directory_;
  std::optional<RecordedCgroup> group_;
  std::unique_ptr<RedisServer> server_;
  std::unique_ptr<Watch> watch_;
};

void Demo::say(const std::string& text) const {
  fmt::print(stderr, "{}{}\n", terminal_ ? "\r\033[K" : "", text);
}

void Demo::progress(const std::string& phase, uint64_t done, double started, bool last) {
  const double now = now_seconds();
  if (!last && now - last_line_ < (terminal_ ? 0.25 : 5.0)) return;
  last_line_ = now;
  const Sample sample = watch_->now();
  const double mib_per_s = static_cast<double>((done - lap_done_) * options_.value_bytes) /
                           1048576 / std::max(1e-3, now - lap_);
  lap_ = now;
  lap_done_ = done;
  std::string line =
      fmt::format("{:<5}{:>5} of {} MiB, {:>3.0f} s, {:>4.0f} MiB/s | resident {} MiB, cap {} MiB",
                  phase, mib(done * options_.value_bytes), mib(count_ * options_.value_bytes),
                  now - started, mib_per_s, mib(sample.resident_bytes), mib(options_.dram_bytes));
  if (group_)
    line += fmt::format(" | cgroup {} of {} MiB", mib(sample.group_bytes),
                        mib(options_.dram_bytes + kGroupAboveCap));
  if (sample.has_stats) {
    line += fmt::format(" | pages evicted {}k, faulted {}k", sample.stats.evictions / 1000,
                        sample.stats.faults / 1000);
  }
  if (terminal_ && !last)
    fmt::print(stderr, "\r\033[K{}", line);
  else
    say(line);
  std::fflush(stderr);
}

void Demo::finish_phase(const std::string& name, double started, uint64_t operations) {
  const double seconds = now_seconds() - started;
  record_.phases.push_back(
      {name, seconds, operations > 0 ? static_cast<double>(operations) / seconds : 0});
}

std::vector<std::string> Demo::wrapper(const std::string& stats_file) const {
  // A child that saves may need as much of the LUN as its parent has, and fork reserves that. Three
  // times the data is enough for both, with the allocator's overhead.
  const uint64_t lun_bytes = std::max(8 * options_.dram_bytes, 3 * options_.data_bytes);
  std::vector<std::string> words{options_.lunar, "run",
                                 "--dram",       fmt::format("{}", options_.dram_bytes),
                                 "--size",       fmt::format("{}", lun_bytes),
                                 "--stats",      "--stats-file",
                                 stats_file};
  if (!options_.lun.empty()) words.insert(words.end(), {"--lun", options_.lun});
  words.push_back("--");
  return words;
}

std::string find_redis_server() {
  const std::string found = find_in_path("redis-server");
  if (found.empty())
    throw std::runtime_error("redis-server is not installed: apt-get install redis-server");
  return found;
}

void Demo::prepare() {
  if (options_.redis_server.empty()) options_.redis_server = find_redis_server();
  if (options_.lunar.empty()) {
    options_.lunar =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "lunar").string();
  }
  if (access(options_.lunar.c_str(), X_OK) != 0) {
    throw std::runtime_error(fmt::format(
        "{} is not there: build it (tools/build) or name it by --lunar", options_.lunar));
  }
  for (const std::string& swept : journal_.sweep()) say(swept);
  FileSystem system;
  if (probe_file_system(options_.directory, &system) == 0 && system.in_memory) {
    throw std::runtime_error(fmt::format(
        "{} is a memory file system: give a directory on a disk by --dir", options_.directory));
  }
  directory_.emplace(journal_, fmt::format("{}/lunar-bench-{}-demo", options_.directory, getpid()));
  const CgroupPlace place = find_cgroup_place();
  if (geteuid() != 0)
    record_.no_group = "not root (sudo)";
  else if (place.version == 0)
    record_.no_group = place.why_not;
  if (record_.no_group.empty()) {
    try {
      group_.emplace(journal_, place, "demo", options_.dram_bytes + kGroupAboveCap, false);
    } catch (const std::runtime_error& error) { record_.no_group = error.what(); }
  }
}

void Demo::start_server() {
  say(fmt::format("{} values of {} bytes ({} MiB) for {} under `lunar run --dram {}M --size {}M`",
                  count_, options_.value_bytes, mib(count_ * options_.value_bytes),
                  options_.redis_server, mib(options_.dram_bytes),
                  mib(std::max(8 * options_.dram_bytes, 3 * options_.data_bytes))));
  if (group_) {
    say(fmt::format("memory cgroup without swap: {} MiB, page cache and kernel memory included",
                    mib(options_.dram_bytes + kGroupAboveCap)));
  } else {
    say(fmt::format("no memory cgroup ({}): only the resident set proves the cap",
                    record_.no_group));
  }
  ServerSetup setup;
  setup.redis_server = options_.redis_server;
  setup.wrapper = wrapper(directory_->file("stats"));
  setup.directory = directory_->path();
  setup.name = "tiered";
  if (group_) setup.cgroup_procs = group_->group.procs_path();
  server_ = std::make_unique<RedisServer>(setup);
  watch_ = std::make_unique<Watch>(server_->pid(), directory_->file("stats"),
                                   group_ ? &group_->group : nullptr);
}

void Demo::load() {
  const double started = lap_ = now_seconds();
  lap_done_ = 0;
  for (uint64_t at = 0; at < count_;) {
    check_interrupted();
    const uint64_t end = std::min<uint64_t>(count_, at + kPipelineDepth);
    for (uint64_t i = at; i < end; ++i) server_->send({"SET", key(i), std::string(value(i))});
    for (; at < end; ++at) (void)server_->receive();
    progress("load", at, started, at == count_);
  }
  finish_phase("load", started, count_);
}

void Demo::read_back() {
  std::vector<uint32_t> order(count_);
  std::iota(order.begin(), order.end(), 0);
  Random random(options_.seed + 1);
  for (uint64_t i = count_; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  const double started = lap_ = now_seconds();
  lap_done_ = 0;
  for (uint64_t at = 0; at < count_;) {
    check_interrupted();
    const uint64_t end = std::min<uint64_t>(count_, at + kPipelineDepth);
    for (uint64_t i = at; i < end; ++i) server_->send({"GET", key(order[i])});
    for (; at < end; ++at) {
      const Reply reply = server_->receive();
      const bool same =
          reply->type == REDIS_REPLY_STRING &&
          std::string_view(reply->str, static_cast<size_t>(reply->len)) == value(order[at]);
      if (!same && record_.mismatches++ < 5) say(fmt::format("MISMATCH: {}", key(order[at])));
    }
    progress("read", at, started, at == count_);
  }
  finish_phase("read back", started, count_);
}

void Demo::save() {
  say("DEBUG DIGEST of the tiered server ...");
  double started = now_seconds();
  server_->set_patience(600);  // it reads every page once
  const Reply digest = server_->command({"DEBUG", "DIGEST"});
  record_.digest = std::string(digest->str, static_cast<size_t>(digest->len));
  finish_phase("digest", started, 0);
  started = now_seconds();
  const auto busy = [&] { return server_->info("persistence", "rdb_bgsave_in_progress") != "0"; };
  for (; busy(); usleep(100'000)) check_interrupted();  // the child of a save point
  say("BGSAVE ...");
  (void)server_->command({"BGSAVE"});
  for (; busy(); usleep(100'000)) check_interrupted();
  const std::string status = server_->info("persistence", "rdb_last_bgsave_status");
  if (status != "ok")
    record_.failures.push_back("BGSAVE ended with status '" + status + "'\n" + server_->log_tail());
  record_.forks = server_->info("stats", "total_forks");
  finish_phase("BGSAVE", started, 0);
  struct stat info{};
  if (stat(directory_->file("dump.rdb").c_str(), &info) == 0)
    record_.dump_bytes = static_cast<uint64_t>(info.st_size);
  record_.last = watch_->now();
  server_->shut_down();
  lunar_stats last{};
  if (read_stats_file(directory_->file("stats"), &last)) {
    record_.last.has_stats = true;
    record_.last.stats = last;
  }
  watch_.reset();
  server_.reset();
  if (group_) record_.oom_kills = group_->group.oom_kills();
}

void Demo::load_dump() {
  const bool roomy = sys::machine_memory_bytes("MemAvailable") >
                     options_.data_bytes + options_.data_bytes / 2 + 512 * kMiB;
  say(fmt::format("a second, {} server loads the dump of {} MiB ...",
                  roomy ? "plain" : "tiered (memory is short)", mib(record_.dump_bytes)));
  const double started = now_seconds();
  ServerSetup setup;
  setup.redis_server = options_.redis_server;
  if (!roomy) setup.wrapper = wrapper(directory_->file("stats2"));
  setup.directory = directory_->path();
  setup.name = "second";
  setup.saves = false;
  RedisServer second(setup);
  const Reply digest = second.command({"DEBUG", "DIGEST"});
  record_.dump_digest = std::string(digest->str, static_cast<size_t>(digest->len));
  second.shut_down();
  finish_phase("load the dump", started, 0);
}

void Demo::work() {
  prepare();
  start_server();
  try {
    load();
    read_back();
    save();
  } catch (const std::runtime_error& error) {
    if (!group_ || group_->group.oom_kills() == 0) throw;
    throw std::runtime_error(
        fmt::format("the server was killed for passing {} MiB, the limit of its memory cgroup\n{}",
                    mib(options_.dram_bytes + kGroupAboveCap), error.what()));
  }
  load_dump();
}

bool Demo::run() {
  work();
  check_result(record_);
  record_.seconds = now_seconds() - started_;
  fmt::print("{}", record_table(record_));
  return record_.failures.empty();
}

void parse(Flags& flags, DemoOptions& options, int argc, char** argv) {
  std::string dram = "256m", data;
  flags.add("--dram", dram, "DRAM cap of the server (default 256m)");
  flags.add("--data", data, "bytes of values (default 4 times --dram)");
  flags.add("--value-size", options.value_bytes, "bytes of each value (default 4000)")
      .range(1, 1 << 26);
  flags.add("--lunar", options.lunar, "the lunar command (default: next to this program)");
  flags.add("--redis-server", options.redis_server, "the server (default: the first in PATH)");
  flags.add("--dir", options.directory, "directory for the dump, on a disk (default /var/tmp)");
  flags.add("--lun", options.lun, "LUN of `lunar run` (default: its own choice)");
  flags.add("--seed", options.seed, "of values and order (default 20)");
  flags.parse(argc, argv);
  options.dram_bytes = size_option("--dram", dram);
  options.data_bytes = data.empty() ? 4 * options.dram_bytes : size_option("--data", data);
  if (options.dram_bytes == 0) throw FlagsError("--dram", "must not be 0");
  const uint64_t count = options.data_bytes / options.value_bytes;
  if (count == 0 || count > 999'999'999)
    throw FlagsError("--data", "from 1 to 999999999 values of --value-size");
}

int demo_main(int argc, char** argv) {
  Flags flags("an unmodified redis-server holds four times its DRAM; every value is checked",
              "lunar-demo");
  DemoOptions options;
  try {
    parse(flags, options, argc, argv);
  } catch (const FlagsError& error) { return flags.refuse(error); }
  catch_interrupts();
  try {
    return Demo(std::move(options)).run() ? 0 : 1;
  } catch (const Interrupted&) {
    fmt::print(stderr, "\nlunar-demo: interrupted; server, cgroup and files are removed\n");
    return 130;
  } catch (const std::exception& error) {
    if (interrupted()) {
      fmt::print(stderr, "\nlunar-demo: interrupted; server, cgroup and files are removed\n");
      return 130;
    }
    fmt::print(stderr, "\nlunar-demo: {}\nFAIL\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace lunar::tools

int main(int argc, char** argv) {
  try {
    return lunar::tools::demo_main(argc, argv);
  } catch (...) { return 1; }  // its output could not be written
}
