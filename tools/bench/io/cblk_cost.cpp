// SPDX-License-Identifier: Apache-2.0
// See cblk_cost.h. Only the call is inside the clocked time; each block is checked.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/io/cblk_cost.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tools/bench/io/cblk_chunk.h"
#include "tools/bench/report_parts.h"
#include "tools/support/clock.h"

namespace lunar::tools {

namespace {

constexpr unsigned kBurst = 8;  // reads of one backend before it is the other's turn
constexpr unsigned kWarm = 200, kRoundsMin = 5;

// The device without the library.
class RawReader {
 public:
  explicit RawReader(const BenchBacking& backing) : offset_(backing.path_offset()) {
    const std::string& path = backing.path();
    memory_kind_ = backing.in_memory();
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | (memory_kind_ ? 0 : O_DIRECT));
    if (fd_ < 0) throw std::runtime_error(fmt::format("{}: {}", path, strerror(errno)));
    if (!memory_kind_) return;
    bytes_ = backing.bytes();
    void* memory = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(offset_));
    if (memory == MAP_FAILED) {
      close(fd_);
      throw std::runtime_error(fmt::format("{}: {}", path, strerror(errno)));
    }
    memory_ = static_cast<const char*>(memory);
  }
  ~RawReader() {
    if (memory_) munmap(const_cast<char*>(memory_), bytes_);
    close(fd_);
  }
  RawReader(const RawReader&) = delete;
  RawReader& operator=(const RawReader&) = delete;

  const char* what() const { return memory_kind_ ? "a copy from the mapped device" : "pread, O_DIRECT"; }
  int64_t read(void* buffer, size_t bytes, uint64_t at) const {
    if (memory_) {
      memcpy(buffer, memory_ + at, bytes);
      return static_cast<int64_t>(bytes);
    }
    const ssize_t moved = pread(fd_, buffer, bytes, static_cast<off_t>(offset_ + at));
    return moved < 0 ? -errno : moved;
  }

 private:
  uint64_t offset_;
  bool memory_kind_ = false;
  int fd_ = -1;
  const char* memory_ = nullptr;
  size_t bytes_ = 0;
};

struct Backend {
  std::vector<double> ns;
  double middle() { return median(ns); }
  double mean() const {
    double sum = 0;
    for (const double one : ns) sum += one;
    return sum / static_cast<double>(ns.size());
  }
};

}  // namespace

CblkCost measure_cblk_cost(const BenchBacking& backing, const IoOptions& options, const std::function<void()>& pause) {
  const RawReader raw(backing);
  CblkChunk chunk(backing, 1);
  BlockStamps& stamps = backing.stamps();
  const size_t unit_bytes = stamps.unit_bytes();
  const NoiseBuffer buffer(unit_bytes, options.seed);
  Random random(options.seed);
  CblkCost cost;
  cost.raw = raw.what();
  const auto burst = [&](bool by_library, Backend* backend) {
    for (unsigned i = 0; i < kBurst; ++i) {
      const uint64_t unit = stamps.claim(random), at = unit * unit_bytes;
      const uint64_t start = now_ns();
      const int64_t moved =
          by_library ? chunk.transfer(false, buffer.data(), at, unit_bytes) : raw.read(buffer.data(), unit_bytes, at);
      const uint64_t end = now_ns();
      const bool right = moved == static_cast<int64_t>(unit_bytes) && stamps.check(unit, buffer.data());
      stamps.release(unit);
      if (!right) {
        throw std::runtime_error(
            fmt::format("{}: a read {}", by_library ? "cblk_read" : raw.what(),
                        moved < 0 ? strerror(static_cast<int>(-moved)) : "did not find what was written"));
      }
      if (backend) backend->ns.push_back(static_cast<double>(end - start));
    }
  };
  for (unsigned i = 0; i < kWarm; ++i) burst(i % 2 != 0, nullptr);
  std::vector<double> raw_p50, cblk_p50, over, over_mean;
  cost.rounds = std::max(options.rounds, kRoundsMin);
  for (unsigned round = 0; round < cost.rounds; ++round) {
    Backend backends[2];
    const uint64_t end = now_ns() + static_cast<uint64_t>(options.seconds * 1e9);
    for (unsigned burst_number = round; now_ns() < end || backends[0].ns.empty() || backends[1].ns.empty();
         ++burst_number) {
      if (burst_number % 256 == 0) pause();
      burst(burst_number % 2 != 0, &backends[burst_number % 2]);
    }
    raw_p50.push_back(backends[0].middle());
    cblk_p50.push_back(backends[1].middle());
    over.push_back(cblk_p50.back() - raw_p50.back());
    over_mean.push_back(backends[1].mean() - backends[0].mean());
    cost.reads += backends[1].ns.size();
  }
  cost.raw_p50_ns = median(raw_p50);
  cost.cblk_p50_ns = median(cblk_p50);
  cost.over_p50_ns = median(over);
  cost.over_mean_ns = median(over_mean);
  cost.over_least_ns = *std::min_element(over.begin(), over.end());
  cost.over_most_ns = *std::max_element(over.begin(), over.end());
  return cost;
}

}  // namespace lunar::tools
