// SPDX-License-Identifier: Apache-2.0
// The backends of `lunar bench lio`: one interface for "start this list of I/Os" and "wait until all of it is done", so
// that the bench treats all alike.
//
// Lunar's are lists of the block library: start() is cblk_listio without a wait list, finish() with one, run() both in
// one call. Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lunar::tools {

struct ListIo {
  uint64_t offset = 0;  // bytes into the device
  void* buffer = nullptr;
  size_t bytes = 0;
};

class LioBackend {
 public:
  virtual ~LioBackend() = default;
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

// cblk_listio on pmem:PATH,delegate=SETTING (a physical open: the device as it is). Throws std::runtime_error with the
// reason.
std::unique_ptr<LioBackend> make_lunar_backend(const char* system, const std::string& path, const std::string& delegate,
                                               unsigned depth);
// lio_listio of the C library on a descriptor of the same file, LIO_WAIT or LIO_NOWAIT.
std::unique_ptr<LioBackend> make_listio_backend(const std::string& path);

}  // namespace lunar::tools
