// SPDX-License-Identifier: Apache-2.0
// See bench_memory.h. Under swap, a batch of pages is prefetched by MADV_WILLNEED: by one
// process_madvise call if the kernel allows it for the caller itself, else by 64 madvise calls.
#include "tools/bench/fault/bench_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "lunar/lunar.h"

namespace lunar::tools {

namespace {

class SwapMemory final : public BenchMemory {
 public:
  SwapMemory() : pidfd_(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))) {}
  ~SwapMemory() override {
    if (pidfd_ >= 0) close(pidfd_);
  }
  char* create(uint64_t bytes) override {
    void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED)
      throw std::runtime_error(fmt::format("mmap of {} bytes: {}", bytes, strerror(errno)));
    return static_cast<char*>(got);
  }
  void destroy(char* address, uint64_t bytes) override { munmap(address, bytes); }
  void prefetch(char* const* pages, size_t count, size_t page_bytes) override {
    std::array<iovec, kPrefetchBatch> vector;
    for (size_t i = 0; i < count; ++i) vector[i] = {pages[i], page_bytes};
    if (pidfd_ >= 0 && syscall(SYS_process_madvise, pidfd_, vector.data(), count, MADV_WILLNEED,
                               0) == static_cast<long>(count * page_bytes)) {
      return;
    }
    for (size_t i = 0; i < count; ++i) madvise(pages[i], page_bytes, MADV_WILLNEED);
  }
  uint64_t major_faults() const override {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<uint64_t>(usage.ru_majflt);
  }

 private:
  int pidfd_;
};

class LunarMemory final : public BenchMemory {
 public:
  explicit LunarMemory(const BenchMemoryOptions& options) {
    lunar_config config{};
    config.struct_size = sizeof config;
    config.dram_bytes = options.dram_bytes;
    config.lun_bytes = options.lun_bytes;
    config.lun = options.lun.c_str();
    config.options = options.options.empty() ? nullptr : options.options.c_str();
    if (const int error = lunar_init(&config); error != 0) {
      const std::string why = lunar_error();
      throw std::runtime_error(why.empty() ? fmt::format("lunar_init: {}", strerror(-error)) : why);
    }
  }
  ~LunarMemory() override { (void)lunar_shutdown(); }
  char* create(uint64_t bytes) override {
    void* got = lunar_region_create(bytes);
    if (got == nullptr)
      throw std::runtime_error(fmt::format("lunar_region_create: {}", strerror(errno)));
    return static_cast<char*>(got);
  }
  void destroy(char* address, uint64_t bytes) override {
    if (const int error = lunar_region_destroy(address, bytes); error != 0) {
      throw std::runtime_error(fmt::format("lunar_region_destroy: {}", strerror(-error)));
    }
  }
  void prefetch(char* const* pages, size_t count, size_t page_bytes) override {
    std::array<lunar_range, kPrefetchBatch> ranges;
    for (size_t i = 0; i < count; ++i) ranges[i] = {pages[i], page_bytes};
    (void)lunar_prefetch(ranges.data(), count);  // the touch reports a page that could not be read
  }
  uint64_t major_faults() const override {
    lunar_stats stats{};
    stats.struct_size = sizeof stats;
    return lunar_get_stats(&stats) == 0 ? stats.major_faults : 0;
  }
};

}  // namespace

std::unique_ptr<BenchMemory> BenchMemory::make(const BenchMemoryOptions& options) {
  if (options.system == "swap") return std::make_unique<SwapMemory>();
  if (options.system == "lunar") return std::make_unique<LunarMemory>(options);
  throw std::runtime_error(fmt::format("no system named {}", options.system));
}

}  // namespace lunar::tools
