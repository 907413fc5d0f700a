// SPDX-License-Identifier: Apache-2.0
// A context on IBM's library: a chunk, with its commands in flight. Each Command has one cblk
// command in progress at a time: its parts, and pieces of the size that the library accepts, follow
// one another.
// Threading: the thread that attached; or, attached as shared, one at a time, and await() at any
// time. May not: allocate after create (the library may).
#pragma once
#include "superpipe/capi/capi_device.h"
#include "superpipe/context_base.h"

namespace lunar {

class CapiContext final : public OwnedContext {
 public:
  // Takes ownership of `chunk` on success. 0 or -errno.
  [[nodiscard]] static int create(CapiDevice* device, int chunk, const ContextOptions& options,
                                  OwnedContext** out);

  [[nodiscard]] int submit(const Command* commands, unsigned n) override;
  [[nodiscard]] int reap(Response* out, unsigned max) override;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  [[nodiscard]] int watch(int fd, uint64_t tag) override { return watches_.add(fd, tag); }
  unsigned in_flight() const override { return in_flight_; }
  uint64_t usual_latency_ns() const override { return latency_.ns(); }
  [[nodiscard]] int await(int64_t timeout_ns) override;
  void release() override;

 private:
  struct InFlight {
    Command command;
    uint64_t start_ns;
    uint64_t done;   // bytes
    uint32_t part;   // of iov
    uint32_t piece;  // blocks in progress
    size_t skip;     // bytes of the part that are done
    int tag;         // the library's; kUnsent: to be sent again; kEnded: `result` is set
    int64_t result;
  };
  enum : int { kUnsent = -2, kEnded = -3 };
  CapiContext() = default;
  void send(InFlight* entry);
  void advance(InFlight* entry, int moved_blocks);
  void collect();

  CapiDevice* device_ = nullptr;
  InFlight* entries_ = nullptr;  // 0 .. in_flight_, in order of submission
  unsigned depth_ = 0, in_flight_ = 0;
  int chunk_ = CapiLibrary::kNull;
  WatchSet watches_;
  LatencyAverage latency_;
  size_t mapping_bytes_ = 0;
};

}  // namespace lunar
