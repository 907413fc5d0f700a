// SPDX-License-Identifier: Apache-2.0
#include "pager/evict/write.h"

#include <errno.h>

#include <initializer_list>

#include "base/error.h"
#include "pager/space/lun_space.h"
#include "pager/state/install.h"
#include "pager/state/requests.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"

namespace lunar {
namespace {

constexpr unsigned kSlotsTried = 3;

}  // namespace

void Writer::forget_parents() {
  Device* device = state_.luns.devices[state_.luns.parent];
  if (context_ != nullptr && device != nullptr) device->detach(context_);
  context_ = nullptr;
}

void Writer::free_buffers() {
  unmap_private(ops_, kWriteOps * sizeof(WriteOp));
  for (uint32_t* ids : {failed_, retrying_}) unmap_private(ids, frames_.count() * sizeof(uint32_t));
  ops_ = nullptr;  // open() may fail before it makes others
  failed_ = retrying_ = nullptr;
}

int Writer::open(uint32_t frame_count) {
  ops_ = static_cast<WriteOp*>(map_private(kWriteOps * sizeof(WriteOp), ForkPolicy::kInherit));
  failed_ =
      static_cast<uint32_t*>(map_private(frame_count * sizeof(uint32_t), ForkPolicy::kInherit));
  retrying_ =
      static_cast<uint32_t*>(map_private(frame_count * sizeof(uint32_t), ForkPolicy::kInherit));
  if (ops_ == nullptr || failed_ == nullptr || retrying_ == nullptr) return -ENOMEM;
  free_op_count_ = 0;
  for (unsigned i = 0; i < kWriteOps; ++i) free_ops_[free_op_count_++] = i;
  failed_count_ = dirty_count_ = 0;
  context_ = nullptr;
  return 0;
}

bool Writer::make_room(unsigned frames_needed) {
  while (frames_.free_count() < frames_needed) {
    if (frames_.reclaim_oldest()) continue;
    if (failed_count_ != 0) rewrite_failed();
    if (context_ == nullptr || context_->in_flight() == 0) {
      sys::yield_cpu();
      if (frames_.reclaim_oldest()) continue;
      return false;
    }
    (void)reap(true);
  }
  return true;
}

void Writer::attach() {
  if (context_ != nullptr) return;
  int rc = lun_open_own(state_);
  ContextOptions options;
  options.depth = kWriteOps;
  options.spin = false;
  if (rc == 0) rc = state_.luns.devices[state_.luns.own]->attach(options, &context_);
  if (rc < 0) {
    context_ = nullptr;
    fatal("evictor: the LUN cannot be opened for writing (%s %s); cold pages have nowhere to go",
          errno_name(rc), errno_text(rc));
  }
}

void Writer::flush() {
  if (dirty_count_ == 0) return;
  attach();
  SlotAllocator& lun = state_.luns.slots[state_.luns.own];
  unsigned done = 0;
  while (done < dirty_count_) {
    SlotRun runs[16];
    unsigned n = lun.alloc(dirty_count_ - done, runs, 16);
    if (n == 0) break;
    for (unsigned i = 0; i < n; ++i) {
      submit_run(dirty_ + done, runs[i].count, runs[i]);
      done += runs[i].count;
    }
  }
  // Space was charged before the pages were touched, so a forked child or retired slots fill the
  // LUN. The pages stay in frames.
  for (; done < dirty_count_; ++done) {
    if (!lun_full_said_) log_warning("the LUN is full; pages stay in DRAM");
    lun_full_said_ = true;
    housekeeping_wake(state_, kHousekeepingSweep);  // children that held slots may have ended
    finish_frame(dirty_[done], false);
  }
  dirty_count_ = 0;
}

void Writer::submit_run(const uint32_t* ids, unsigned count, SlotRun run) {
  LUNAR_DCHECK(count > 0 && count <= kBatchPages && run.first != kNoSlot);
  while (free_op_count_ == 0) (void)reap(true);
  unsigned index = free_ops_[--free_op_count_];
  WriteOp& op = ops_[index];
  op.count = count;
  op.first = run.first;
  for (unsigned i = 0; i < count; ++i) {
    op.frame[i] = ids[i];
    op.iov[i] = {frames_.memory(ids[i]), state_.page_size};
    frames_.at(ids[i]).slot = Slot(run.first.value + i);
  }
  op.command = {};
  op.command.op = Op::kWrite;
  op.command.offset = state_.luns.slots[state_.luns.own].offset_of(run.first);
  op.command.iov = op.iov;
  op.command.iov_count = count;
  op.command.tag = index;
  for (;;) {
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): flush() has attached it
    int rc = context_->submit(&op.command, 1);
    if (rc == 1) return;
    if (rc < 0 && rc != -EAGAIN && rc != -EBUSY) {
      Response failed{index, rc};
      finish_write(failed);
      return;
    }
    (void)reap(true);
  }
}

bool Writer::reap(bool wait) {
  if (context_ == nullptr || context_->in_flight() == 0) return false;
  Response responses[32];
  int n = wait ? context_->wait(responses, 32, 2'000'000) : context_->reap(responses, 32);
  if (n < 0) fatal_if_refused(n, "io_uring_enter");
  for (int i = 0; i < n; ++i) finish_write(responses[i]);
  return n > 0;
}

void Writer::finish_write(const Response& response) {
  WriteOp& op = ops_[response.tag];
  int64_t result = response.result;
  // The kernel deferred the write and had no thread for it (RLIMIT_NPROC counts io_uring's
  // workers): the slots are not bad.
  if (result == -ECANCELED) result = state_.luns.devices[state_.luns.own]->transfer(op.command);
  bool ok = result == static_cast<int64_t>(op.count * state_.page_size);
  if (ok) {
    counters().written_bytes.add(op.count * state_.page_size);
    ++writes_done_;
  } else {
    counters().write_errors.add();
    LUNAR_LOG_LIMITED(log_warning, 10,
                      "write of %u pages at slot %u of %s failed (%s); trying again", op.count,
                      op.first.value, state_.luns.devices[state_.luns.own]->name(),
                      result < 0 ? errno_name(static_cast<int>(result)) : "short write");
  }
  unsigned count = op.count;
  uint32_t ids[kBatchPages];
  for (unsigned i = 0; i < count; ++i) ids[i] = op.frame[i];
  free_ops_[free_op_count_++] = static_cast<uint32_t>(response.tag);
  for (unsigned i = 0; i < count; ++i) finish_frame(ids[i], ok);
}

// A write to the frame's slot has failed. After the first failure the frame keeps the slot for
// another attempt. After the second it gives the slot up, which is retired if other writes have
// succeeded meanwhile, else released.
void Writer::note_failure(Frame& frame) {
  if (frame.slot == kNoSlot) return;
  if (!frame.slot_failed) {
    frame.slot_failed = true;
    frame.writes_then = writes_done_;
    return;
  }
  SlotAllocator& lun = state_.luns.slots[state_.luns.own];
  if (frame.writes_then != writes_done_)
    lun.retire(frame.slot);
  else
    lun.release(frame.slot);
  frame.slot = kNoSlot;
  frame.slot_failed = false;
}

void Writer::finish_frame(uint32_t id, bool ok) {
  Frame& frame = frames_.at(id);
  if (!ok) note_failure(frame);
  if (ok) {
    FrameState writing = FrameState::kWriting;
    if (frame.state.compare_exchange_strong(writing, FrameState::kClean,
                                            std::memory_order_acq_rel)) {
      frames_.queue_clean(id);
      return;
    }
  } else if (frame.state.load(std::memory_order_acquire) == FrameState::kWriting) {
    LUNAR_CHECK(failed_count_ < frames_.count(), "more failed writes than frames");
    failed_[failed_count_++] = id;
    return;
  }
  drop_frame(id);  // kAbandoned: the page left while its write was in flight
}

// Frees a frame whose content is no longer needed.
void Writer::drop_frame(uint32_t id) {
  Frame& frame = frames_.at(id);
  if (frame.slot != kNoSlot) state_.luns.slots[state_.luns.own].release(frame.slot);
  frame.slot = kNoSlot;
  frames_.put_free(id);
}

void Writer::rewrite_failed(bool must) {
  const unsigned n = failed_count_;
  uint32_t* ids = failed_;
  failed_ = retrying_;
  retrying_ = ids;
  failed_count_ = 0;
  for (unsigned i = 0; i < n; ++i) rewrite(ids[i], must);
}

void Writer::rewrite(uint32_t id, bool must) {
  Frame& frame = frames_.at(id);
  if (frame.state.load(std::memory_order_acquire) == FrameState::kAbandoned) {
    drop_frame(id);
    return;
  }
  SlotRun run{frame.slot, 1};
  if (!must &&
      (frame.slot != kNoSlot || (++frame.slots_tried < kSlotsTried &&
                                 state_.luns.slots[state_.luns.own].alloc(1, &run, 1) == 1))) {
    submit_run(&id, 1, run);
    return;
  }
  if (back_to_dram(id, must)) {
    drop_frame(id);
    return;
  }
  failed_[failed_count_++] = id;  // the page stays in its frame for now
}

// False: the page is busy, or there is no DRAM for it.
bool Writer::back_to_dram(uint32_t id, bool must) {
  Frame& frame = frames_.at(id);
  AtomicPageWord& word = *frame.word.load(std::memory_order_acquire);
  const PageWord seen = word.load(std::memory_order_acquire);
  bool taken = seen.state() == PageState::kInFrame && seen.index() == id &&
               (must || state_.account.take(1, 0));
  if (taken && must) state_.account.take_always(1);
  if (!taken || !page_lock(word, seen)) {
    if (taken) state_.account.give(1);
    frame.slots_tried = kSlotsTried - 2;
    return false;
  }
  char* address = static_cast<char*>(frame.address.load(std::memory_order_acquire));
  Region* region = state_.regions.find(address);  // it stays: this thread has locked the page
  LUNAR_CHECK(region != nullptr, "a frame's page is in no region");
  const PageIndex page = region->page_of(address);
  const uint16_t epoch = exclusive_epoch(state_);
  if (install(state_, address, frames_.memory(id), 1).outcome != InstallOutcome::kDone) {
    state_.account.give(1);
    release_page(state_, *region, page, seen);
    return false;
  }
  count_resident(state_, *region, page, 1);
  count_evicted(-1);
  release_page(state_, *region, page,
               resident_word(seen, kNoSlot, state_.luns.own, kHeatHot, epoch));
  return true;
}

void Writer::drain(bool for_fork) {
  constexpr int kTries = 16;
  for (int rounds = 0; rounds < 100'000; ++rounds) {
    if (failed_count_ != 0 && (rounds < kTries || for_fork)) rewrite_failed(rounds >= kTries);
    const bool in_flight = context_ != nullptr && context_->in_flight() != 0;
    if (!in_flight && (failed_count_ == 0 || !for_fork)) break;
    if (in_flight)
      (void)reap(true);
    else
      sys::yield_cpu();
  }
}

}  // namespace lunar
