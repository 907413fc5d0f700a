// SPDX-License-Identifier: Apache-2.0
// Private swap with the highest priority: on a file, on a file with zswap before it, or on a zram
// device; and files that are written whole before the clock starts, because a disk may answer reads
// of unwritten blocks without any work.
// Threading: one thread.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/bench/run_result.h"
#include "tools/bench/setup_journal.h"

namespace lunar::tools {

// Makes the file `path` of `bytes`, and writes all of it with incompressible data, past the page
// cache. Its first `zero_bytes` are zeros (a blank LUN file). `pause` is called from time to time,
// and may throw. After an exception there is no file. Throws std::runtime_error.
void write_whole_file(const std::string& path, uint64_t bytes, size_t zero_bytes, uint64_t seed,
                      const std::function<void()>& pause);

// The header page of a version 1 swap area (mkswap(8)).
std::string swap_header(uint64_t bytes, size_t page_bytes);

enum class SwapKind { kFile, kZswap, kZram };
// Turns off the swap on /dev/zramNUMBER and removes the device. False: it is still there.
bool remove_zram(const std::string& number);

class SwapFile {
 public:
  // Makes the file (written whole) or device and turns the swap on. kZram does not use `path`.
  // Throws std::runtime_error.
  SwapFile(SwapKind kind, const std::string& path, uint64_t bytes, SetupJournal& journal,
           const std::function<void()>& pause);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;
  // Calls `measure` with vm.page-cluster at 0 and at 3. Returns the better run, and keeps its
  // setting.
  RunResult at_better_page_cluster(const std::function<RunResult()>& measure, int* page_cluster);
  // DRAM that zswap or zram use now, outside of any cgroup's limit; 0 for a file.
  uint64_t memory_bytes() const;
  // "file", or the kind with its compression.
  std::string state() const;

 private:
  void make_file(uint64_t bytes, const std::function<void()>& pause);
  void make_zram(uint64_t bytes);
  void turn_on(uint64_t bytes);
  void undo();
  SwapKind kind_;
  std::string path_, zram_;  // zram_: the device's number
  SetupJournal& journal_;
  std::optional<Recorded> recorded_;
  std::optional<MachineSetting> cluster_, zswap_;
  bool on_ = false;
};

}  // namespace lunar::tools
