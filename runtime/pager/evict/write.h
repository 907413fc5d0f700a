// SPDX-License-Identifier: Apache-2.0
// Writes frames to the LUN, in runs of slots (README.md, "Write"). If some writes fail while others
// succeed, their slots are bad; if none succeeds, the device fails, and no slot is. Threading: the
// evictor's thread. No allocation after open().
#pragma once
#include <cstdint>

#include "pager/account/slot_allocator.h"
#include "pager/evict/batch.h"
#include "pager/page/frames.h"
#include "superpipe/device.h"
#include "sys/fatal.h"

namespace lunar {

class Writer {
 public:
  Writer(PagerState& state, FramePool& frames) : state_(state), frames_(frames) {}
  void forget_parents();                         // in a forked child, before open()
  void free_buffers();                           // before the frames are opened again
  [[nodiscard]] int open(uint32_t frame_count);  // 0 or -ENOMEM

  // Frees frames for the next batch: the oldest clean ones, else waits for writes. False: there are
  // not enough (all writes fail).
  bool make_room(unsigned frames_needed);
  void add(uint32_t frame_id) {  // at most a batch before flush()
    LUNAR_DCHECK(dirty_count_ < kBatchPages);
    dirty_[dirty_count_++] = frame_id;
  }
  void flush();          // submits what was added
  bool reap(bool wait);  // handles finished writes. Returns whether there were any
  // Writes the frames whose write failed once more, to the same slot or another one; after that the
  // pages go back to DRAM. `must`: they go back at once, even beyond the budget.
  void rewrite_failed(bool must = false);
  bool has_failed() const { return failed_count_ != 0; }
  unsigned in_flight() const { return context_ != nullptr ? context_->in_flight() : 0; }
  // Waits for all writes (pause, evict_range). `for_fork`: also until no page is only in a frame,
  // because a child has none of our frames. Pages without a slot after some rounds go back to DRAM,
  // even beyond the budget: at most as many as there are frames.
  void drain(bool for_fork);

 private:
  struct WriteOp {
    Command command;
    iovec iov[kBatchPages];
    uint32_t frame[kBatchPages];
    Slot first{};
    uint32_t count = 0;
  };
  static constexpr unsigned kWriteOps = 128;

  void attach();
  void submit_run(const uint32_t* frame_ids, unsigned count, SlotRun run);
  void finish_write(const Response& response);
  void finish_frame(uint32_t id, bool ok);
  void note_failure(Frame& frame);
  void drop_frame(uint32_t id);
  void rewrite(uint32_t id, bool must);
  bool back_to_dram(uint32_t id, bool must);

  PagerState& state_;
  FramePool& frames_;
  Context* context_ = nullptr;
  uint32_t dirty_[kBatchPages];
  unsigned dirty_count_ = 0;
  // frames whose write failed; with room for all frames, because all may be in flight
  uint32_t* failed_ = nullptr;
  uint32_t* retrying_ = nullptr;
  unsigned failed_count_ = 0;
  uint32_t writes_done_ = 0;  // writes that succeeded
  WriteOp* ops_ = nullptr;
  uint32_t free_ops_[kWriteOps];
  unsigned free_op_count_ = 0;
  bool lun_full_said_ = false;
};

}  // namespace lunar
