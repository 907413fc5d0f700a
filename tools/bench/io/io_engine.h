// SPDX-License-Identifier: Apache-2.0
// The asynchronous backends of the block benches behind one face, so that all are driven by the same loop: a superpipe
// context, Linux AIO, the calls of the block library.
// Threading: an engine is used by the thread that made it. May not be used by runtime/ (it allocates).
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
  // Starts n operations (never more in flight than slots) and waits until `least` are done; returns how many of them
  // stand in `out` (up to the number of slots), or -errno.
  virtual int exchange(const IoOp* ops, unsigned n, IoDone* out, unsigned least) = 0;
};

// Slot i's buffer is buffers.data() + i * unit_bytes. The engine may use them until it is gone.
struct EngineSetup {
  const BenchBacking* backing = nullptr;
  const NoiseBuffer* buffers = nullptr;
  unsigned slots = 1;
  size_t unit_bytes = 4096;
};
// "lunar" (buffers registered as the window), "perio" (the same without a window), "libaio", "cblk" (cblk_read and
// cblk_write where there is one slot, else cblk_aread, cblk_awrite and cblk_aresult), "raid0" (the same of a RAID 0:
// the backing is a Raid0Group). Throws std::runtime_error.
std::unique_ptr<IoEngine> make_engine(const std::string& system, const EngineSetup& setup);

}  // namespace lunar::tools
