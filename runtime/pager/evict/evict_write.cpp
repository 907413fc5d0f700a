// SPDX-License-Identifier: Apache-2.0
// The second half of an eviction: sorts captured pages into zero, clean and dirty ones, writes the dirty ones to slots
// in runs, and takes frames back.
// Threading: the evictor's thread only. No allocation.
//
// A write that failed is repeated to the same slots, each by itself. Where that fails too while other writes succeed,
// it is the slot's fault, and the slot is retired; where none succeeds, the device fails, and the slot is as good as
// any. Three slots are tried, then the page goes back to DRAM. The page's word never becomes kEvicted before its write
// has succeeded: frames become reusable only as kClean.
#include <errno.h>

#include "base/error.h"
#include "pager/evict/evictor.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "sys/fatal.h"
#include "sys/log.h"

namespace lunar {
namespace {

constexpr unsigned kSlotsTried = 3;

}  // namespace

// Frames for the next batch: oldest clean ones first, else wait for writes. False: none available (all writes fail).
bool Evictor::make_room(unsigned frames_needed) {
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

// Every victim of the batch: not dropped -> resident again; dropped -> zero, clean or to be written.
void Evictor::settle() {
  dirty_count_ = 0;
  int64_t dropped = 0, maybe_shared = 0, in_frames = 0;
  for (unsigned i = 0; i < victim_count_; ++i) {
    Victim& victim = victims_[i];
    if (victim.dropped) {
      victim.region->note_resident(victim.page, -1);
      ++dropped;
      maybe_shared += victim.maybe_shared;
      continue;
    }
    frames_.put_free(victim.frame);
    keep(victim, victim.stuck ? kHeatHot : 0);  // locked, pinned: left alone for a while
  }
  counters().evictions.add(static_cast<uint64_t>(dropped));
  // For the whole batch: handlers write to these two at each fault.
  counters().resident.fetch_sub(dropped, std::memory_order_relaxed);
  count_evicted(dropped);
  int64_t tick = state_.account.own_pages() / kTicksPerBudget;
  if (tick < 1) tick = 1;
  for (since_tick_ += dropped; since_tick_ >= tick; since_tick_ -= tick)
    state_.eviction_time.fetch_add(1, std::memory_order_relaxed);
  state_.account.give_maybe_shared(maybe_shared);
  state_.account.give(dropped - maybe_shared);
  hand_over_room(state_, false);
  for (unsigned i = 0; i < victim_count_; ++i)
    if (victims_[i].region != nullptr) in_frames += decide(victims_[i]);
  for (unsigned i = 0; i < victim_count_; ++i)  // pages of zeros are empty now
    if (victims_[i].region != nullptr && victims_[i].frame == UINT32_MAX)
      table_retire(state_, *victims_[i].region, victims_[i].page.value, victims_[i].page.value + 1);
  if (in_frames != dropped) count_evicted(in_frames - dropped);
  write_out();
}

// Whether the content is now only in its frame.
bool Evictor::decide(Victim& victim) {
  AtomicPageWord& word = victim.region->table.at(victim.page.value);
  const char* content = frames_.memory(victim.frame);
  PageWord was = victim.word;
  if (!victim.guard && word.load(std::memory_order_acquire).waiter() && install_for_waiter(victim, was)) return false;
  if (page_is_zero(content)) {
    if (was.has_slot()) slot_release(state_, was.lun(), was.slot());
    uncharge_touched(state_, *victim.region, was);
    frames_.put_free(victim.frame);
    victim.frame = UINT32_MAX;
    counters().evicted_zero.add();
    PageWord next = was.with_state(victim.guard ? PageState::kGuard : PageState::kEmpty)
                        .with_slot(kNoSlot)
                        .with_heat(0)
                        .with_charged(false);
    release_page(state_, *victim.region, victim.page, next);
    return false;
  }
  uint64_t hash = page_hash(content);
  Frame& frame = frames_.at(victim.frame);
  frame.word.store(&word, std::memory_order_release);
  frame.address.store(victim.region->address_of(victim.page), std::memory_order_release);
  frame.slots_tried = 0;
  frame.slot_failed = false;
  PageWord next = was.with_state(PageState::kInFrame)
                      .with_index(victim.frame)
                      .with_epoch(state_.eviction_time.load(std::memory_order_relaxed));
  if (was.has_slot() && victim.region->table.hash(victim.page.value) == hash) {
    frame.slot = was.slot();
    frame.lun = static_cast<uint8_t>(was.lun());
    frame.state.store(FrameState::kClean, std::memory_order_release);
    frames_.queue_clean(victim.frame);
    counters().evicted_clean.add();
  } else {
    if (was.has_slot()) slot_release(state_, was.lun(), was.slot());
    victim.region->table.hash(victim.page.value) = hash;
    frame.slot = kNoSlot;
    frame.lun = static_cast<uint8_t>(state_.own_lun);
    frame.state.store(FrameState::kWriting, std::memory_order_release);
    dirty_[dirty_count_++] = victim.frame;
  }
  release_page(state_, *victim.region, victim.page, next);
  return true;
}

// A thread faulted on the page while it was being taken: give it back at once.
bool Evictor::install_for_waiter(Victim& victim, PageWord was) {
  if (!state_.account.take(1, 0)) return false;
  void* address = victim.region->address_of(victim.page);
  uint16_t epoch = exclusive_epoch(state_);
  if (install(state_, address, frames_.memory(victim.frame), 1).outcome != Installed::kDone) {
    state_.account.give(1);
    return false;
  }
  count_resident(state_, *victim.region, victim.page, 1);
  counters().second_chances.add();
  frames_.put_free(victim.frame);
  release_page(state_, *victim.region, victim.page,
               resident_word(was, was.slot(), was.lun(), kHeatSecondChance, epoch));
  return true;
}

bool Evictor::attach_context() {
  if (context_ != nullptr) return true;
  int rc = lun_open_own(state_);
  ContextOptions options;
  options.depth = kWriteOps;
  options.spin = false;
  if (rc == 0) rc = state_.devices[state_.own_lun]->attach(options, &context_);
  if (rc < 0) {
    context_ = nullptr;
    fatal("evictor: the LUN cannot be opened for writing (%s %s); cold pages have nowhere to go", errno_name(rc),
          errno_text(rc));
  }
  return true;
}

void Evictor::write_out() {
  if (dirty_count_ == 0) return;
  if (!attach_context()) return;
  SlotAllocator& lun = state_.luns[state_.own_lun];
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
  // Space was charged before the pages were touched, so this is a forked child or retired slots: keep them in frames.
  for (; done < dirty_count_; ++done) {
    if (!lun_full_said_) log_warning("the LUN is full; pages stay in DRAM");
    lun_full_said_ = true;
    housekeeping_wake(state_, kHousekeepingSweep);  // children that held slots may be gone
    finish_frame(dirty_[done], false);
  }
  dirty_count_ = 0;
}

void Evictor::submit_run(const uint32_t* ids, unsigned count, SlotRun run) {
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
  op.command.offset = state_.luns[state_.own_lun].offset_of(run.first);
  op.command.iov = op.iov;
  op.command.iov_count = count;
  op.command.tag = index;
  for (;;) {
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): attached; a write can only have failed on it
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

bool Evictor::reap(bool wait) {
  if (context_ == nullptr || context_->in_flight() == 0) return false;
  Response responses[32];
  int n = wait ? context_->wait(responses, 32, 2000000) : context_->reap(responses, 32);
  if (n < 0) fatal_if_refused(n, "io_uring_enter");
  for (int i = 0; i < n; ++i) finish_write(responses[i]);
  return n > 0;
}

void Evictor::finish_write(const Response& response) {
  WriteOp& op = ops_[response.tag];
  int64_t result = response.result;
  // The kernel deferred it and had no thread for it (RLIMIT_NPROC counts io_uring's workers): the slots are fine.
  if (result == -ECANCELED) result = state_.devices[state_.own_lun]->transfer(op.command);
  bool ok = result == static_cast<int64_t>(op.count * state_.page_size);
  if (ok) {
    counters().written_bytes.add(op.count * state_.page_size);
    ++writes_done_;
  } else {
    counters().write_errors.add();
    LUNAR_LOG_LIMITED(log_warning, 10, "write of %u pages at slot %u of %s failed (%s); trying again", op.count,
                      op.first.value, state_.devices[state_.own_lun]->name(),
                      result < 0 ? errno_name(static_cast<int>(result)) : "short write");
  }
  unsigned count = op.count;
  uint32_t ids[kBatchPages];
  for (unsigned i = 0; i < count; ++i) ids[i] = op.frame[i];
  free_ops_[free_op_count_++] = static_cast<uint32_t>(response.tag);
  for (unsigned i = 0; i < count; ++i) finish_frame(ids[i], ok);
}

// A write to the frame's slot has failed. After the first failure the frame keeps the slot for another attempt; after
// the second it gives it up: the slot is retired if other writes have succeeded meanwhile, else released.
void Evictor::note_write_failure(Frame& frame) {
  if (frame.slot == kNoSlot) return;
  if (!frame.slot_failed) {
    frame.slot_failed = true;
    frame.writes_then = writes_done_;
    return;
  }
  SlotAllocator& lun = state_.luns[state_.own_lun];
  if (frame.writes_then != writes_done_)
    lun.retire(frame.slot);
  else
    lun.release(frame.slot);
  frame.slot = kNoSlot;
  frame.slot_failed = false;
}

void Evictor::finish_frame(uint32_t id, bool ok) {
  Frame& frame = frames_.at(id);
  if (!ok) note_write_failure(frame);
  if (ok) {
    FrameState writing = FrameState::kWriting;
    if (frame.state.compare_exchange_strong(writing, FrameState::kClean, std::memory_order_acq_rel)) {
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
void Evictor::drop_frame(uint32_t id) {
  Frame& frame = frames_.at(id);
  if (frame.slot != kNoSlot) state_.luns[state_.own_lun].release(frame.slot);
  frame.slot = kNoSlot;
  frames_.put_free(id);
}

// Frames whose write failed: once more, to the same slot or another one, then back to DRAM. `must`: also beyond the
// budget.
void Evictor::rewrite_failed(bool must) {
  unsigned n = failed_count_;
  uint32_t* ids = failed_;
  failed_ = retrying_;
  retrying_ = ids;
  failed_count_ = 0;
  for (unsigned i = 0; i < n; ++i) {
    Frame& frame = frames_.at(ids[i]);
    if (frame.state.load(std::memory_order_acquire) == FrameState::kAbandoned) {
      drop_frame(ids[i]);
      continue;
    }
    SlotRun run{frame.slot, 1};
    if (!must && (frame.slot != kNoSlot ||
                  (++frame.slots_tried < kSlotsTried && state_.luns[state_.own_lun].alloc(1, &run, 1) == 1))) {
      submit_run(&ids[i], 1, run);
      continue;
    }
    AtomicPageWord& word = *frame.word.load(std::memory_order_acquire);
    PageWord seen = word.load(std::memory_order_acquire);
    bool taken = seen.state() == PageState::kInFrame && seen.index() == ids[i] && (must || state_.account.take(1, 0));
    if (taken && must) state_.account.take_always(1);
    if (!taken || !page_lock(word, seen)) {
      if (taken) state_.account.give(1);
      failed_[failed_count_++] = ids[i];  // busy, or no DRAM to go back to: it stays in its frame for now
      frame.slots_tried = kSlotsTried - 2;
      continue;
    }
    Region* region = state_.regions.find(frame.address.load(std::memory_order_acquire));  // it stays: the page is ours
    LUNAR_CHECK(region != nullptr, "a frame's page is in no region");
    const PageIndex page = region->page_of(frame.address.load(std::memory_order_relaxed));
    uint16_t epoch = exclusive_epoch(state_);
    if (install(state_, region->address_of(page), frames_.memory(ids[i]), 1).outcome != Installed::kDone) {
      state_.account.give(1);
      release_page(state_, *region, page, seen);
      failed_[failed_count_++] = ids[i];
      continue;
    }
    count_resident(state_, *region, page, 1);
    count_evicted(-1);
    release_page(state_, *region, page, resident_word(seen, kNoSlot, state_.own_lun, kHeatHot, epoch));
    drop_frame(ids[i]);
  }
}

// Waits for all writes (fork, pause, evict_range). `for_fork`: also until no page is in a frame only, as a child has
// none of our frames. Pages without a slot after some rounds go back to DRAM, even beyond the budget: at most as many
// as there are frames.
void Evictor::drain(bool for_fork) {
  constexpr int kTries = 16;
  for (int rounds = 0; rounds < 100000; ++rounds) {
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
