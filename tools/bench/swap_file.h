// SPDX-License-Identifier: Apache-2.0
// Swap on a file of one's own, first in line while it lives; and files whose every block was written before a clock
// starts (a disk that never stored a block may answer for it without any work).
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "tools/bench/setup_journal.h"

namespace lunar::tools {

inline constexpr const char* kPageClusterPath = "/proc/sys/vm/page-cluster";

// Makes `path` of `bytes`, reserved and written whole with incompressible data past the page cache; its first
// `zero_bytes` are zeros (what a LUN file that may be taken looks like). Throws std::runtime_error; removes the file
// then. `pause` is called now and then (to stop early by throwing).
void write_whole_file(const std::string& path, uint64_t bytes, size_t zero_bytes, uint64_t seed,
                      const std::function<void()>& pause);

// The header page of a version 1 swap area (mkswap(8)), to be written at the start of it.
std::string swap_header(uint64_t bytes, size_t page_bytes);

class SwapFile {
 public:
  // Makes it, writes it whole, turns it on. Throws std::runtime_error.
  SwapFile(const std::string& path, uint64_t bytes, SetupJournal& journal, const std::function<void()>& pause);
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;
  void set_page_cluster(int value);

 private:
  void undo();
  std::string path_;
  SetupJournal& journal_;
  std::string saved_cluster_, cluster_line_;
  bool on_ = false;
};

}  // namespace lunar::tools
