// SPDX-License-Identifier: Apache-2.0
// The memory of a child of `lunar bench fault`: anonymous memory under kernel swap, or a region of
// liblunar.
// Threading: prefetch from any thread; the rest from the main thread with the others stopped.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lunar::tools {

enum class Workload { kUniform, kZipf, kSeq, kFill, kPrefetch };
inline constexpr std::array<std::string_view, 5> kWorkloadNames{"uniform", "zipf", "seq", "fill",
                                                                "prefetch"};
inline constexpr uint64_t kPrefetchBatch = 64;  // pages per batch of the prefetch workload

struct BenchMemoryOptions {
  std::string system;       // "swap" or "lunar"
  uint64_t dram_bytes = 0;  // Lunar's budget; only the cgroup limits swap
  uint64_t lun_bytes = 0;
  std::string lun;
  std::string options;  // more options of Lunar, "spin=no,follow=no"
};

class BenchMemory {
 public:
  virtual ~BenchMemory() = default;
  virtual char* create(uint64_t bytes) = 0;  // throws std::runtime_error
  virtual void destroy(char* address, uint64_t bytes) = 0;
  // Prefetches scattered pages.
  virtual void prefetch(char* const* pages, size_t count, size_t page_bytes) = 0;
  virtual uint64_t major_faults() const = 0;  // since start

  static std::unique_ptr<BenchMemory> make(const BenchMemoryOptions& options);
};

}  // namespace lunar::tools
