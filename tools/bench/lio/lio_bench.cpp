// SPDX-License-Identifier: Apache-2.0
// `lunar bench lio`: lists of I/Os on memory-mapped media (the article's vPMEM: 256 of 32 KiB), handed to delegate
// threads.
//
//   lunar        pmem: with delegates: one call starts the list; a waiting thread helps
//   sync         the same interface without delegates: the caller copies one after the other
//   lio_listio   the C library's lists (threads of its own, a system call an I/O) on the same file
//
// Two questions: how soon is a list done that is waited for, and how soon does the call return for one that is not. The
// backends take turns (A B C A B C), medians over the runs are quoted. The I/Os lie scattered over a file larger than
// the caches, the same places for every backend; every backend has touched the whole file before the clock starts (a
// first touch is a page fault, which is not what is asked here). After each list the clock stops and its data is
// checked: what was read is what stands there, what was written is read back by system calls.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "superpipe/device.h"
#include "superpipe/registry.h"
#include "superpipe/signature.h"
#include "tools/bench/histogram.h"
#include "tools/bench/lio/lio_backend.h"
#include "tools/bench/lio/lio_bench.h"
#include "tools/bench/lio/lio_report.h"
#include "tools/bench/page_content.h"
#include "tools/bench/progress.h"
#include "tools/bench/report_parts.h"
#include "tools/bench/setup_journal.h"
#include "tools/bench/size_option.h"
#include "tools/support/clock.h"
#include "tools/support/flags.h"
#include "tools/support/process.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {

constexpr uint64_t kMiBytes = 1 << 20;
constexpr uint64_t kFileBytes = 1024 * kMiBytes, kQuickFileBytes = 256 * kMiBytes;
constexpr size_t kCheckStride = 64;  // words: one in 512 bytes is compared

struct Tally {
  std::vector<LioRun> runs;
  Histogram done, returned;
};

class LioBench {
 public:
  explicit LioBench(LioOptions options) { report_.options = std::move(options); }
  ~LioBench();
  LioBench(const LioBench&) = delete;
  LioBench& operator=(const LioBench&) = delete;
  LioReport run();  // once

 private:
  const LioOptions& options() const { return report_.options; }
  void make_backing_file();
  void take_given_device();
  void fill(LioBackend& backend);
  void warm(LioBackend& backend);
  void open_backends();
  void next_list();
  void make_write_data();
  void check(const LioBackend& backend, bool write);
  LioRun measure_run(LioBackend& backend, bool write, bool wait, Tally* tally);
  void run_workload(bool write, bool wait);

  LioReport report_;
  std::unique_ptr<SetupJournal> journal_;
  std::string line_;                // of the file that we made
  int fd_ = -1;                     // for checks of what was written; -1: none of the kind
  uint64_t base_ = 0, blocks_ = 0;  // of the part that is used, in I/Os
  std::unique_ptr<PageContent> content_;
  std::vector<std::unique_ptr<LioBackend>> backends_;
  char* memory_ = nullptr;
  std::vector<ListIo> list_;
  std::vector<uint64_t> order_;  // a permutation of the blocks
  size_t next_ = 0;
  Progress progress_;
};

LioBench::~LioBench() {
  backends_.clear();
  if (fd_ >= 0) close(fd_);
  free(memory_);
  if (line_.empty()) return;
  unlink(line_.c_str() + strlen("file "));
  try {
    journal_->forget(line_);
  } catch (const std::exception&) {  // the next run finds nothing to remove
  }
}

void LioBench::make_backing_file() {
  journal_ = std::make_unique<SetupJournal>();
  for (const std::string& swept : journal_->sweep()) fmt::print(stderr, "lunar: bench: {}\n", swept);
  uint64_t& bytes = report_.options.file_bytes;
  const uint64_t list_bytes = options().ios * options().io_bytes;
  if (!options().pmem.empty()) return take_given_device();
  struct statvfs space{};
  if (statvfs("/dev/shm", &space) != 0 || access("/dev/shm", W_OK) != 0)
    throw std::runtime_error("no place in /dev/shm: give a file on a memory or DAX file system by --pmem PATH");
  const uint64_t room = std::min<uint64_t>(space.f_bavail * space.f_frsize, machine_memory("MemAvailable")) / 4 * 3;
  if (bytes == 0) bytes = std::min(options().quick ? kQuickFileBytes : kFileBytes, room);
  if (bytes > room)
    throw std::runtime_error(
        fmt::format("/dev/shm has room for {} MiB, not {}: use a smaller --file", room / kMiBytes, bytes / kMiBytes));
  if (bytes < 2 * list_bytes)
    throw std::runtime_error(
        fmt::format("{} MiB of /dev/shm hold no two lists: give a file by --pmem PATH", bytes / kMiBytes));
  report_.device = fmt::format("/dev/shm/lunar-bench-{}.pmem", getpid());
  line_ = "file " + report_.device;
  journal_->record(line_);
  fd_ = open(report_.device.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0)
    throw std::runtime_error(fmt::format("{} cannot be made: {}", report_.device, strerror(errno)));
}

// Only a device that a scratch LUN may take is written to: blank, or Lunar's.
void LioBench::take_given_device() {
  report_.device = options().pmem;
  ErrorText why;
  Device* device = nullptr;
  if (device_open(fmt::format("pmem:{}", report_.device).c_str(), {}, &device, &why) < 0)
    throw std::runtime_error(why.text);
  const bool growable = device->growable();
  const uint64_t room = device->size_bytes();
  device_close(device);
  if (growable)
    throw std::runtime_error(
        fmt::format("{} is empty: give it a size (truncate -s 1g {})", report_.device, report_.device));
  base_ = kScratchDataOffset;
  uint64_t& bytes = report_.options.file_bytes;
  if (bytes == 0) bytes = std::min(room, options().quick ? kQuickFileBytes : kFileBytes);
  if (bytes > room || bytes < 2 * options().ios * options().io_bytes)
    throw std::runtime_error(
        fmt::format("{} has room for {} MiB; two lists and --file must fit", report_.device, room / kMiBytes));
  fd_ = open(report_.device.c_str(), O_RDWR | O_CLOEXEC);
  char byte;
  if (fd_ >= 0 && pread(fd_, &byte, 1, 0) != 1) {
    close(fd_);
    fd_ = -1;
    report_.skipped["written_data"] = "the device cannot be read by system calls: what was written is not read back";
  }
}

void LioBench::open_backends() {
  for (const std::string& system : options().systems) {
    try {
      if (system == "lunar")
        backends_.push_back(make_lunar_backend("lunar", report_.device, options().delegate, options().ios));
      if (system == "sync") backends_.push_back(make_lunar_backend("sync", report_.device, "off", options().ios));
      if (system == "lio_listio") backends_.push_back(make_listio_backend(report_.device));
    } catch (const std::runtime_error& error) {
      if (system != "lio_listio") throw;
      report_.skipped[system] = error.what();
    }
  }
  for (const char* system : {"lunar", "sync", "lio_listio"}) {
    if (std::find(options().systems.begin(), options().systems.end(), system) == options().systems.end())
      report_.skipped[system] = "not asked for (--systems)";
  }
}

// The whole file in order, by lists.
void LioBench::fill(LioBackend& backend) {
  for (uint64_t block = 0; block < blocks_;) {
    check_interrupted();
    std::vector<ListIo> part;
    for (size_t i = 0; i < list_.size() && block < blocks_; ++i, ++block) {
      content_->fill(block, list_[i].buffer);
      part.push_back({base_ + block * options().io_bytes, list_[i].buffer, options().io_bytes});
    }
    backend.run(part, true);
  }
}

// Page tables: each backend has its own mapping of the file. Twice the same bytes are written, so any order is right.
void LioBench::warm(LioBackend& backend) {
  for (uint64_t block = 0; block < blocks_;) {
    check_interrupted();
    std::vector<ListIo> part;
    for (size_t i = 0; i < list_.size() && block < blocks_; ++i, ++block)
      part.push_back({base_ + block * options().io_bytes, list_[i].buffer, options().io_bytes});
    backend.run(part, false);
    backend.run(part, true);
  }
}

void LioBench::next_list() {
  for (ListIo& io : list_) {
    io.offset = base_ + order_[next_] * options().io_bytes;
    next_ = (next_ + 1) % order_.size();
  }
}

// Every block is written with what belongs there but for one word, which changes from list to list.
void LioBench::make_write_data() {
  static uint64_t version = 0;
  for (const ListIo& io : list_) {
    content_->fill((io.offset - base_) / options().io_bytes, io.buffer);
    static_cast<uint64_t*>(io.buffer)[1] = ++version;
  }
}

void LioBench::check(const LioBackend& backend, bool write) {
  uint64_t wrong = 0;
  std::vector<uint64_t> seen(options().io_bytes / 8);
  for (const ListIo& io : list_) {
    const uint64_t block = (io.offset - base_) / options().io_bytes;
    const auto* words = static_cast<const uint64_t*>(io.buffer);
    if (!write) {
      bool right =
          words[0] == content_->stamp(block, 0) && words[seen.size() - 1] == content_->word(block, seen.size() - 1);
      for (size_t i = kCheckStride; i < seen.size(); i += kCheckStride)
        right = right && words[i] == content_->word(block, i);
      wrong += right ? 0 : 1;
    } else if (fd_ >= 0) {
      const auto bytes = static_cast<ssize_t>(io.bytes);
      if (pread(fd_, seen.data(), io.bytes, static_cast<off_t>(io.offset)) != bytes ||
          memcmp(seen.data(), words, io.bytes) != 0)
        ++wrong;
    }
  }
  if (wrong > 0)
    report_.failures.push_back(fmt::format("{} {}: {} of {} I/Os of a list moved wrong data", backend.system(),
                                           write ? "write" : "read", wrong, list_.size()));
}

LioRun LioBench::measure_run(LioBackend& backend, bool write, bool wait, Tally* tally) {
  LioRun run;
  for (unsigned i = 0; i < options().lists; ++i) {
    check_interrupted();
    next_list();
    if (write) {
      make_write_data();
    } else {  // a read that did not happen must show
      for (const ListIo& io : list_) memset(io.buffer, 0x5a, io.bytes);
    }
    const uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), start = clock_ns(CLOCK_MONOTONIC);
    uint64_t returned = 0;
    if (wait) {
      backend.run(list_, write);
    } else {
      backend.start(list_, write);
      returned = clock_ns(CLOCK_MONOTONIC);
      backend.finish();
    }
    const uint64_t end = clock_ns(CLOCK_MONOTONIC), cpu_end = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (wait) returned = end;
    run.mean_ns += static_cast<double>(end - start) / options().lists;
    run.return_ns += static_cast<double>(returned - start) / options().lists;
    run.cpu_us += static_cast<double>(cpu_end - cpu) / 1e3 / options().lists;
    tally->done.add(end - start);
    tally->returned.add(returned - start);
    check(backend, write);
  }
  run.ops_per_s = static_cast<double>(list_.size()) * 1e9 / run.mean_ns;
  return run;
}

void LioBench::run_workload(bool write, bool wait) {
  const std::string workload = fmt::format("{}_{}", write ? "write" : "read", wait ? "wait" : "nowait");
  progress_.say(fmt::format("{}: {} runs a backend", workload, options().rounds));
  std::vector<Tally> tallies(backends_.size());
  Tally unused;
  for (const auto& backend : backends_) (void)measure_run(*backend, write, wait, &unused);
  for (unsigned round = 0; round < options().rounds; ++round) {
    // The first backend finds what the last one left in the caches: the order rotates.
    for (size_t i = 0; i < backends_.size(); ++i) {
      const size_t who = (i + round) % backends_.size();
      tallies[who].runs.push_back(measure_run(*backends_[who], write, wait, &tallies[who]));
    }
  }
  for (size_t i = 0; i < backends_.size(); ++i) {
    const auto middle = [&](double LioRun::* member) {
      std::vector<double> values;
      for (const LioRun& one : tallies[i].runs) values.push_back(one.*member);
      return median(values);
    };
    LioResult result{backends_[i]->system(), workload};
    result.ops_per_s = middle(&LioRun::ops_per_s);
    result.mean_ns = middle(&LioRun::mean_ns);
    result.return_ns = middle(&LioRun::return_ns);
    result.cpu_us_per_list = middle(&LioRun::cpu_us);
    result.p50_ns = tallies[i].done.percentile(0.5);
    result.p99_ns = tallies[i].done.percentile(0.99);
    result.return_p99_ns = tallies[i].returned.percentile(0.99);
    result.spread = spread_of(tallies[i].runs, &LioRun::ops_per_s, result.ops_per_s);
    result.runs = tallies[i].runs;
    report_.results.push_back(result);
  }
}

LioReport LioBench::run() {
  make_backing_file();
  blocks_ = options().file_bytes / options().io_bytes;
  content_ = std::make_unique<PageContent>(options().seed, options().io_bytes);
  memory_ = static_cast<char*>(aligned_alloc(4096, options().ios * options().io_bytes));
  if (memory_ == nullptr) throw std::runtime_error("no memory for the buffers of a list");
  list_.resize(options().ios);
  for (size_t i = 0; i < list_.size(); ++i) list_[i] = {0, memory_ + i * options().io_bytes, options().io_bytes};
  order_.resize(blocks_);
  std::iota(order_.begin(), order_.end(), uint64_t{0});
  Random random(options().seed);
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
  open_backends();
  if (backends_.empty()) throw std::runtime_error("nothing to measure");
  progress_.say(fmt::format("filling {} MiB of {}", options().file_bytes / kMiBytes, report_.device));
  fill(*backends_.front());
  for (const auto& backend : backends_) warm(*backend);
  for (const bool write : {false, true}) {
    if (write) fill(*backends_.front());
    for (const bool wait : {true, false}) run_workload(write, wait);
  }
  progress_.clear();
  return std::move(report_);
}

void parse(CLI::App& app, LioOptions& options, int argc, char** argv) {
  std::string io, file;
  app.add_option("--ios", options.ios, "I/Os of a list (default 256)")->check(CLI::Range(1, 4096));
  app.add_option("--io", io, "bytes of one I/O (default 32k)");
  app.add_option("--file", file, "bytes of the device to use (default 1g; 256m with --quick)");
  app.add_option(
      "--pmem", options.pmem,
      "a blank file on a memory or DAX file system, or a device, that may be overwritten (default: a file made in "
      "/dev/shm)");
  app.add_option("--delegate", options.delegate, "delegate threads of Lunar's backend: auto, on, off (default auto)")
      ->check(CLI::IsMember(std::vector<std::string>{"auto", "on", "off"}));
  app.add_option("--systems", options.systems, "any of lunar,sync,lio_listio (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"lunar", "sync", "lio_listio"}));
  app.add_option("--lists", options.lists, "lists a run (default 4)")->check(CLI::Range(1, 10000));
  auto* rounds = app.add_option("--rounds", options.rounds, "runs of each backend; medians are quoted (default 25)")
                     ->check(CLI::Range(1, 10000));
  app.add_option("--seed", options.seed, "seed of data and places (default 1)");
  app.add_flag("--quick", options.quick, "a rough answer within a minute");
  app.add_flag("--json", options.json, "print one JSON object instead of the table");
  app.footer(
      "lunar: cblk_listio on pmem, with delegate threads; sync: the same without; lio_listio: that of the C library, "
      "on\n"
      "the same file.\n"
      "Ratios in the JSON are lunar's value divided by the other's: lio_wait_ops, lio_wait_mean, lio_wait_cpu (the "
      "call\n"
      "waits for its list), lio_nowait_return (time until a call that does not wait returns; sync does all its work "
      "in\n"
      "the call); lio_write_...: the same for writes.");
  app.parse(argc, argv);
  if (options.quick && rounds->count() == 0) options.rounds = 9;
  options.io_bytes = size_option("--io", io.empty() ? "32k" : io);
  options.file_bytes = file.empty() ? 0 : size_option("--file", file);
  if (options.io_bytes < 4096 || options.io_bytes > 16 * kMiBytes || options.io_bytes % 4096 != 0)
    throw CLI::ValidationError("--io", "4k to 16m, in steps of 4k");
  if (options.file_bytes != 0 && options.file_bytes < 2 * options.ios * options.io_bytes)
    throw CLI::ValidationError("--file", "two lists must fit");
}

}  // namespace

int lio_bench_main(int argc, char** argv) {
  CLI::App app{
      "lists of I/Os on memory-mapped media: handed to delegate threads, one after the other, and by lio_listio",
      "lunar bench lio"};
  LioOptions options;
  try {
    parse(app, options, argc, argv);
  } catch (const CLI::ParseError& error) { return refuse_flags(app, error); }
  catch_interrupts();
  try {
    const bool json = options.json;
    const BenchLock lock;
    LioReport report;
    {
      LioBench bench(std::move(options));
      report = bench.run();
    }
    fmt::print("{}{}", json ? lio_json(report) : lio_table(report), json ? "\n" : "");
    if (json) {
      for (const std::string& failure : report.failures) fmt::print(stderr, "lunar: bench lio: {}\n", failure);
    }
    return report.failures.empty() ? 0 : 1;
  } catch (const Interrupted&) {
    fmt::print(stderr, "lunar: bench lio: interrupted; what was set up is removed\n");
    return 130;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lunar: bench lio: {}\n", error.what());
    return 1;
  }
}

}  // namespace lunar::tools
