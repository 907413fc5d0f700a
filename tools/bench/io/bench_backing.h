// SPDX-License-Identifier: Apache-2.0
// What all backends of a block bench work on: one file or block device, opened by Lunar as a scratch LUN (which refuses
// what holds data), reachable by its path for the others, and written whole with incompressible blocks that carry their
// stamps.
// Threading: one thread opens, fills and verifies; device() and stamps() are for all.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "superpipe/device.h"
#include "tools/bench/io/block_stamps.h"
#include "tools/bench/setup_journal.h"

namespace lunar::tools {

// A file for one run, its space reserved (with what a scratch LUN takes for itself). The journal has it for a run that
// is killed.
class BenchFile {
 public:
  BenchFile(std::string path, uint64_t bytes, SetupJournal& journal);  // throws std::runtime_error
  ~BenchFile();
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  SetupJournal& journal_;
};

class BenchBacking {
 public:
  // lun: a directory (a file is made there, and goes with the BenchBacking), what device_open takes, or stripe:A;B.
  // Throws std::runtime_error.
  BenchBacking(const std::string& lun, uint64_t bytes, uint64_t seed, SetupJournal& journal);
  virtual ~BenchBacking();
  BenchBacking(const BenchBacking&) = delete;
  BenchBacking& operator=(const BenchBacking&) = delete;

  Device& device() const { return *device_; }
  BlockStamps& stamps() const { return *stamps_; }
  uint64_t bytes() const { return bytes_; }
  // For backends other than Lunar's device: the path, and where in it the data lies. "" where there is no such path.
  const std::string& path() const { return path_; }
  const std::string& uri() const { return uri_; }
  bool in_memory() const { return in_memory_; }  // pmem: what lies at the path is read and written by copies
  uint64_t path_offset() const { return path_offset_; }
  const std::string& disk_stat() const { return disk_stat_; }  // "": not known
  // Writes all of it (to the last whole unit), in units of `unit_bytes` from now on. `pause` may throw.
  void fill(size_t unit_bytes, const std::function<void()>& pause);
  // Reads all of it: units that do not hold what was last written.
  uint64_t verify(const std::function<void()>& pause) const;

 protected:
  // Of a derived class that moves the blocks itself: without a device.
  BenchBacking(uint64_t bytes, uint64_t seed, SetupJournal& journal, std::string disk_stat);
  // Moves a part, at most the greater of 1 MiB and a unit. Bytes, or -errno.
  virtual int64_t move(bool write, uint64_t at, char* data, size_t bytes) const;

 private:
  void find_path();
  std::unique_ptr<BenchFile> made_;
  std::string uri_, path_, disk_stat_;
  bool in_memory_ = false;
  uint64_t bytes_, seed_, path_offset_ = 0;
  SetupJournal& journal_;
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
