// SPDX-License-Identifier: Apache-2.0
// The file or block device that all systems of `lunar bench superpipe` work on. Lunar opens it as a
// scratch LUN, which refuses what holds data; the others use its path. It is written whole with
// incompressible, stamped blocks. Threading: one thread opens, fills and verifies; device() and
// stamps() are for all.
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
  // lun: a directory (a file is made there, and removed with the BenchBacking), or what device_open
  // takes. Throws std::runtime_error.
  BenchBacking(const std::string& lun, uint64_t bytes, uint64_t seed, SetupJournal& journal);
  ~BenchBacking();
  BenchBacking(const BenchBacking&) = delete;
  BenchBacking& operator=(const BenchBacking&) = delete;

  Device& device() const { return *device_; }
  BlockStamps& stamps() const { return *stamps_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& uri() const { return uri_; }
  // For systems other than Lunar: the path, and where in it the data lies. "" where there is no
  // such path.
  const std::string& path() const { return path_; }
  uint64_t path_offset() const { return path_offset_; }
  bool in_memory() const { return in_memory_; }                // pmem: reads and writes are copies
  const std::string& disk_stat() const { return disk_stat_; }  // "": not known
  // Writes all of it. `pause` may throw.
  void fill(const std::function<void()>& pause);
  // Reads all of it; the number of blocks that do not hold what was last written.
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

// Page-aligned memory, filled with noise, that a bench's I/O goes through.
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
