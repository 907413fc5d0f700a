// SPDX-License-Identifier: Apache-2.0
// A context for hosts that refuse io_uring (call_context.h), for callers that must not use helper
// threads (the fault path): submit carries out each command by preadv / pwritev; the response waits
// in a ring until it is reaped. wait() never waits for I/O; it polls the watched descriptors.
// Threading: the thread that attached. May not: allocate after create.
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "superpipe/device_files.h"

namespace lunar {

class SyncContext final : public OwnedContext {
 public:
  [[nodiscard]] static int create(const JoinedFiles& files, const ContextOptions& options,
                                  OwnedContext** out);
  // The same over any device, by its transfer(). 0 or -errno.
  [[nodiscard]] static int create(Device* device, const ContextOptions& options,
                                  OwnedContext** out);

  [[nodiscard]] int submit(const Command* commands, unsigned n) override;
  [[nodiscard]] int reap(Response* out, unsigned max) override;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  [[nodiscard]] int watch(int fd, uint64_t tag) override { return watches_.add(fd, tag); }
  unsigned in_flight() const override { return count_; }
  uint64_t usual_latency_ns() const override { return latency_.ns(); }
  [[nodiscard]] int await(int64_t) override { return 0; }  // nothing is ever in progress
  void wakeups(Wakeups* out) override {
    watches_.wakeups(out);
    if (count_) out->look_at(0);
  }
  void release() override;

 private:
  SyncContext() = default;

  JoinedFiles files_;
  Device* device_ = nullptr;  // instead of files_
  WatchSet watches_;
  LatencyAverage latency_;
  Response* done_ = nullptr;  // ring of depth_: first_ .. first_ + count_
  unsigned depth_ = 0;
  unsigned first_ = 0;
  unsigned count_ = 0;
  size_t mapping_bytes_ = 0;
};

// Carries out `command` on `fd`, whose device lies at `place`, by blocking system calls. Returns
// bytes moved (0 for kDiscard and kFlush) or -errno. Any thread.
[[nodiscard]] int64_t transfer_on(int fd, const JoinedFiles::Place& place, const Command& command);

// The same on the file that the command names.
[[nodiscard]] inline int64_t transfer_on(const JoinedFiles& files, const Command& command) {
  return transfer_on(files.files[command.file]->file(), files.place[command.file], command);
}

// Polls the watched descriptors (waiting up to timeout_ns) and makes responses of the ready ones:
// 0..max, or -errno.
[[nodiscard]] int serve_watches(WatchSet* watches, Response* out, unsigned max, int64_t timeout_ns);

}  // namespace lunar
