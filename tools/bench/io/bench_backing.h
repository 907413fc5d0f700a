// SPDX-License-Identifier: Apache-2.0
// The file or block device of all systems of `lunar bench superpipe`. Lunar opens it as a scratch
// LUN, so a device with data is refused; the others use its path. It is written whole with
// incompressible, stamped blocks.
// Threading: one thread opens, fills and verifies; device() and stamps() may be called from any.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "superpipe/device.h"
#include "tools/bench/io/block_stamps.h"
#include "tools/bench/setup_journal.h"

namespace lunar::tools {

class BenchBacking {
 public:
  // lun: a directory (where a file is made, and removed by the destructor), or a URI for
  // device_open. Throws std::runtime_error.
  BenchBacking(const std::string& lun, uint64_t bytes, uint64_t seed, SetupJournal& journal);
  ~BenchBacking();
  BenchBacking(const BenchBacking&) = delete;
  BenchBacking& operator=(const BenchBacking&) = delete;

  Device& device() const { return *device_; }
  BlockStamps& stamps() const { return *stamps_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& uri() const { return uri_; }
  // For systems other than Lunar: the path ("": there is none), and the offset of the data in it.
  const std::string& path() const { return path_; }
  uint64_t path_offset() const { return path_offset_; }
  bool in_memory() const { return in_memory_; }                // pmem: I/O is a copy
  const std::string& disk_stat() const { return disk_stat_; }  // "": not known
  // Writes all blocks. `pause` is called from time to time, and may throw.
  void fill(const std::function<void()>& pause);
  // Reads all blocks. Returns the number of those that are not as last written.
  uint64_t verify(const std::function<void()>& pause) const;

 private:
  void open();
  void find_path();
  int64_t move(Op op, uint64_t at, char* data, size_t bytes) const;  // bytes, or -errno
  std::string uri_, path_, disk_stat_;
  std::optional<RecordedFile> made_;
  bool in_memory_ = false;
  uint64_t bytes_, seed_, path_offset_ = 0;
  Device* device_ = nullptr;
  std::unique_ptr<BlockStamps> stamps_;
};

// Page-aligned memory for I/O, filled with noise.
class NoiseBuffer {
 public:
  NoiseBuffer(size_t bytes, uint64_t seed);
  ~NoiseBuffer();
  NoiseBuffer(const NoiseBuffer&) = delete;
  NoiseBuffer& operator=(const NoiseBuffer&) = delete;
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_;
};

}  // namespace lunar::tools
