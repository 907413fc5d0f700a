// SPDX-License-Identifier: Apache-2.0
// One interface for Lunar's two kinds of block I/O, a superpipe context and the calls of the block
// library, so that the same loop drives both.
// Threading: only the thread that made an engine may use it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "tools/bench/io/bench_backing.h"

namespace lunar::tools {

struct IoOp {
  bool write = false;
  unsigned slot = 0;    // of the buffer; returned in IoDone
  uint64_t offset = 0;  // on the device
};
struct IoDone {
  unsigned slot = 0;
  int64_t result = 0;  // bytes, or -errno
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;
  // Starts n operations (never more in flight than slots) and waits until `least` are done. Returns
  // the number of results in `out` (up to the number of slots), or -errno.
  virtual int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) = 0;
};

// "lunar" (`buffers` registered as the window), or "cblk" (cblk_read and cblk_write with one slot,
// else cblk_aread, cblk_awrite and cblk_aresult). The buffer of slot i is buffers.data() + i *
// kBlockBytes. `buffers` must outlive the engine. Throws std::runtime_error.
std::unique_ptr<IoEngine> make_engine(const std::string& system, const BenchBacking& backing,
                                      const NoiseBuffer& buffers, unsigned slots);

}  // namespace lunar::tools
