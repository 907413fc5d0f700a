// SPDX-License-Identifier: Apache-2.0
// The contestants of `lunar bench lio`: one interface for "start this list of I/Os" and "wait until all of it is done", so
// that the bench treats all alike.
//
// This is the seam for the block library: LunarList drives a superpipe context; when cblk_listio is to be measured, it is
// the one class to replace (start() = cblk_listio with no wait list, finish() = cblk_listio with a wait list).
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lunar::tools {

struct ListIo {
  uint64_t offset = 0;         // bytes into the medium
  void* buffer = nullptr;
  size_t bytes = 0;
};

class LioSide {
 public:
  virtual ~LioSide() = default;
  virtual const char* system() const = 0;
  // Starts the list; what it says stays valid until finish(). Throws std::runtime_error.
  virtual void start(const std::vector<ListIo>& list, bool write) = 0;
  // Returns when all of it is done; throws std::runtime_error when one I/O failed or was short.
  virtual void finish() = 0;
  // Both in one, as a caller that wants to wait would write it.
  virtual void run(const std::vector<ListIo>& list, bool write) {
    start(list, write);
    finish();
  }
};

// Lunar on pmem:PATH,delegate=SETTING (raw: the medium as it is). Throws std::runtime_error with the reason.
std::unique_ptr<LioSide> make_lunar_side(const char* system, const std::string& path, const std::string& delegate, unsigned depth);
// lio_listio of the C library on a descriptor of the same file, LIO_WAIT or LIO_NOWAIT.
std::unique_ptr<LioSide> make_listio_side(const std::string& path);

}   // namespace lunar::tools
