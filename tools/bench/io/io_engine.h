// SPDX-License-Identifier: Apache-2.0
// Lunar's two ways to do block I/O behind one face, so that the same loop drives both: a superpipe
// context, and the calls of the block library.
// Threading: an engine is used by the thread that made it. May not be used by runtime/ (it
// allocates).
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "tools/bench/io/bench_backing.h"

namespace lunar::tools {

struct IoOp {
  bool write = false;
  unsigned slot = 0;    // of the buffer; comes back
  uint64_t offset = 0;  // on the device
};
struct IoDone {
  unsigned slot = 0;
  int64_t result = 0;  // bytes, or -errno
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;
  // Starts n operations (never more in flight than slots) and waits until `least` are done; returns
  // how many of them stand in `out` (up to the number of slots), or -errno.
  virtual int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) = 0;
};

// "lunar" (`buffers` registered as the window), or "cblk" (cblk_read and cblk_write where there is
// one slot, else cblk_aread, cblk_awrite and cblk_aresult). Slot i's buffer is buffers.data() + i *
// kBlockBytes; the engine may use them until it is gone. Throws std::runtime_error.
std::unique_ptr<IoEngine> make_engine(const std::string& system, const BenchBacking& backing,
                                      const NoiseBuffer& buffers, unsigned slots);

}  // namespace lunar::tools
