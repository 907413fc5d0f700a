// SPDX-License-Identifier: Apache-2.0
// VirtualContext: a context of a virtual LUN over one context of its base device.
//
//   command ──► one run on the base: passed on, with the caller's own iovecs
//          └──► several runs: split at the boundaries, piece after piece as the base accepts them;
//               the iovec slices are in a *split*
//
// Each command has an in-flight entry. All its pieces carry the entry's number as their tag; the
// response is the sum of their bytes, or the first error. Entries and splits are created with the
// context; if all splits are in use, a command is not accepted.
// Threading: as Context. May not allocate after create.
#pragma once
#include <atomic>

#include "lun/volume/extent_map.h"
#include "lun/volume/virtual_lun.h"
#include "superpipe/context_base.h"

namespace lunar {

class VirtualContext final : public OwnedContext {
 public:
  [[nodiscard]] static int create(Device* base, ExtentMap* map, const ContextOptions& options,
                                  VirtualContext** out);
  [[nodiscard]] int submit(const Command* commands, unsigned n) override;
  [[nodiscard]] int reap(Response* out, unsigned max) override;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  [[nodiscard]] int watch(int fd, uint64_t tag) override;
  unsigned in_flight() const override { return in_flight_; }
  uint64_t usual_latency_ns() const override { return base_->usual_latency_ns(); }
  [[nodiscard]] int await(int64_t timeout_ns) override;
  void wakeups(Wakeups* out) override;
  void release() override;
  void settle_all() { drain(); }
  const sys::PhaseCount& phase_count() const { return phase_count_; }
  VirtualContext* next = nullptr;  // of the LUN's list, under its lock

 private:
  static constexpr unsigned kSplitsMax = 32, kBatch = 64;
  static constexpr uint16_t kNone = UINT16_MAX;
  struct InFlight {
    uint64_t tag, offset, length;  // on the virtual LUN
    int64_t result;                // bytes so far; < 0: the first error
    const iovec* iov;
    uint32_t iov_count, pieces;  // pieces: in flight on the base
    uint16_t split;              // kNone: none
    Op op;
    uint8_t phase;
    bool finished;  // no more pieces follow
    bool fua;
  };
  // The progress of a command that is split. The slices of one piece at a time are passed on, and
  // must live until it is done.
  struct Split {
    uint64_t done;  // bytes passed on
    uint32_t iov_at;
    uint64_t iov_done;  // of that iovec
    uint16_t entry;
    iovec* slices;  // room for all pieces
    uint32_t used;
  };
  VirtualContext() = default;
  enum class Start : uint8_t { kWhole, kSplit, kFull, kOutside, kNothing };  // kNothing: zero bytes
  Start start(const Command& command, uint64_t length, Command* out);
  int examine(const Command& command, uint64_t* length) const;
  void answer(const Command& command, int64_t result);
  void make_ready(uint16_t index);
  uint16_t open_entry(const Command& command, uint64_t length, unsigned phase);
  void close_entry(uint16_t index);
  bool next_piece(Split& split, Command* out);
  void pump();
  bool pump_split(unsigned index);
  unsigned settle(const Response* from, unsigned n, Response* out);
  unsigned take_ready(Response* out, unsigned max);
  void finish(uint16_t index, Response* out);

  Device* device_ = nullptr;
  Context* base_ = nullptr;
  ExtentMap* map_ = nullptr;
  sys::PhaseCount phase_count_;
  InFlight* entries_ = nullptr;
  // A stack; a ring of commands that were answered without the base.
  uint16_t *free_entries_ = nullptr, *ready_ = nullptr;
  Split* splits_ = nullptr;
  uint64_t free_splits_ = 0, pumping_ = 0;  // one bit each; pumping_: splits with pieces left
  unsigned depth_ = 0, in_flight_ = 0, ready_first_ = 0;
  std::atomic<unsigned> ready_count_{0};
  std::atomic<bool> stalled_{false};  // pumping_ is not empty: for await
  struct Watch {
    uint64_t tag = 0;
    int fd = -1;
    bool armed = false;
  } watches_[WatchSet::kMax];
  unsigned watching_ = 0;
  size_t mapping_bytes_ = 0;
};

}  // namespace lunar
