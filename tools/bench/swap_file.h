// SPDX-License-Identifier: Apache-2.0
// Swap of one's own, first in line while it lives: on a file, on a file with zswap before it, or on
// a zram device; and files whose every block was written before a clock starts (a disk that never
// stored a block may answer for it without any work).
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "tools/bench/run_result.h"
#include "tools/bench/setup_journal.h"

namespace lunar::tools {

// Makes `path` of `bytes`, reserved and written whole with incompressible data past the page cache;
// its first `zero_bytes` are zeros (what a LUN file that may be taken looks like). Throws
// std::runtime_error; removes the file then. `pause` is called now and then (to stop early by
// throwing).
void write_whole_file(const std::string& path, uint64_t bytes, size_t zero_bytes, uint64_t seed,
                      const std::function<void()>& pause);

// The header page of a version 1 swap area (mkswap(8)), to be written at the start of it.
std::string swap_header(uint64_t bytes, size_t page_bytes);

enum class SwapKind { kFile, kZswap, kZram };
// Turns /dev/zramNUMBER's swap off and removes the device. False: it stays.
bool remove_zram(const std::string& number);

class SwapFile {
 public:
  // Makes it (kZram: `path` is not used), a file written whole, and turns it on. Throws
  // std::runtime_error.
  SwapFile(SwapKind kind, const std::string& path, uint64_t bytes, SetupJournal& journal,
           const std::function<void()>& pause);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;
  // `measure` with vm.page-cluster at 0 and at 3, of which the better one stays: its run.
  RunResult at_better_page_cluster(const std::function<RunResult()>& measure, int* page_cluster);
  // What zswap or zram hold in DRAM now, outside of any cgroup's limit; 0 for a file.
  uint64_t memory_bytes() const;
  // "file"; or the kind and how it compresses.
  std::string state() const;

 private:
  void make_file(uint64_t bytes, const std::function<void()>& pause);
  void make_zram(uint64_t bytes);
  void turn_on(uint64_t bytes);
  void undo();
  SwapKind kind_;
  std::string path_, zram_;  // its number
  SetupJournal& journal_;
  std::optional<Recorded> recorded_;
  std::optional<MachineSetting> cluster_, zswap_;
  bool on_ = false;
};

}  // namespace lunar::tools
