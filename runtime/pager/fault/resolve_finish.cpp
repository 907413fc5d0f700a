// SPDX-License-Identifier: Apache-2.0
// Finishing a read: verifies every page's hash, installs right pages in runs, reads wrong ones again (three times), and
// poisons those that stay wrong. Never zeros, never silence.
// Threading: the resolver's thread.
#include <errno.h>

#include "base/test_switches.h"
#include "pager/evict/choose.h"
#include "pager/fault/cow_gate.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/resolver.h"
#include "pager/space/lun_space.h"
#include "pager/state/descriptors.h"
#include "sys/log.h"

namespace lunar {
namespace {

constexpr uint8_t kReadRetries = 3;

}  // namespace

void Resolver::release_op(unsigned op_index) {
  free_ops_[free_op_count_++] = static_cast<uint16_t>(op_index);
  --ops_in_flight_;
}

void Resolver::finish(unsigned op_index, int64_t result) {
  ReadOp& op = ops_[op_index];
  uint64_t bad = 0;
  if (result == -ECANCELED) {  // deferred by the kernel, which then had no thread for it (RLIMIT_NPROC)
    const Command again{Op::kRead, state_.luns.slots[op.lun].offset_of(op.slot), &op.iov, 1, 0, 0};
    result = state_.luns.devices[op.lun]->transfer(again);
  }
  if (result != static_cast<int64_t>(op.count * state_.page_size)) {
    bad = op.count == 64 ? ~uint64_t{0} : (uint64_t{1} << op.count) - 1;
  } else if (!test_switches.no_hash_check) {
    for (unsigned i = 0; i < op.count; ++i)
      if (page_hash(window_ + (op.window + i) * state_.page_size) != op.region->table.hash(op.first + i))
        bad |= uint64_t{1} << i;
  }
  const sys::Section::Inside releasing(releases_);
  const uint64_t since = op.fault && bad == 0 ? g_fault.watched.take(op.region->address_of(PageIndex(op.first)),
                                                                     op.count * state_.page_size)
                                              : 0;
  for (unsigned i = 0; i < op.count;) {
    if (bad >> i & 1) {
      ++i;
      continue;
    }
    unsigned n = 1;
    while (i + n < op.count && !(bad >> (i + n) & 1)) ++n;
    install_read(op, i, n);
    i += n;
  }
  g_fault.watched.ends(since, true);
  (op.fault ? counters().major_faults : counters().prefetched).add(op.fault ? 1 : op.count);
  if (op.fault && op.count > 1) counters().prefetched.add(op.count - 1u);
  counters().read_bytes.add(op.count * state_.page_size);
  if (bad == 0) {
    window_give(op.window, op.count);
    release_op(op_index);
    return;
  }
  finish_failed(op_index, bad,
                result < 0                                                    ? static_cast<int>(result)
                : result == static_cast<int64_t>(op.count * state_.page_size) ? -EBADMSG
                                                                              : -EIO);
}

// The first bad page is read again by this op (or poisoned); the others go back to kEvicted, so that a fault on one of
// them makes it the first of its own read.
void Resolver::finish_failed(unsigned op_index, uint64_t bad, int error) {
  ReadOp& op = ops_[op_index];
  unsigned first = static_cast<unsigned>(__builtin_ctzll(bad));
  counters().read_errors.add(static_cast<unsigned>(__builtin_popcountll(bad)));
  for (unsigned i = first + 1; i < op.count; ++i)
    if (bad >> i & 1) give_back(op, i, PageState::kEvicted);
  for (unsigned i = 0; i < op.count; ++i)
    if (i != first) window_give(op.window + i, 1);
  op.first += first;
  op.window = static_cast<uint16_t>(op.window + first);
  op.slot = Slot(op.slot.value + first);
  op.count = 1;
  op.iov = {window_ + op.window * state_.page_size, state_.page_size};
  if (op.retries++ < kReadRetries) {
    queued_[queued_count_++] = static_cast<uint16_t>(op_index);
    return;
  }
  // The program has closed them under one of its threads: that says nothing about the page (range operations go on by
  // faults).
  if (sys::in_program_files() && !descriptors_in_place(state_)) {
    ++failed_reads_;
    give_back(op, 0, PageState::kEvicted);
    window_give(op.window, 1);
    release_op(op_index);
    return;
  }
  LUNAR_LOG_LIMITED(
      log_error, 100, "page %p cannot be read back: slot %u of %s: %s; it is poisoned (touching it raises SIGBUS)",
      static_cast<void*>(op.region->address_of(PageIndex(op.first))), op.slot.value,
      state_.luns.devices[op.lun]->name(), error == -EBADMSG ? "content does not match its hash" : errno_text(error));
  counters().poisoned.add();
  ++failed_reads_;
  give_back(op, 0, PageState::kPoisoned);
  window_give(op.window, 1);
  release_op(op_index);
}

// Releases a page that was not installed.
void Resolver::give_back(ReadOp& op, unsigned index, PageState next_state) {
  PageIndex page(op.first + index);
  void* address = op.region->address_of(page);
  state_.account.give(1);
  if (next_state != PageState::kEvicted) count_evicted(-1);
  // refused: at its next fault, by a handler
  if (next_state == PageState::kPoisoned) (void)sys::uffd_poison(state_.uffd, address, state_.page_size);
  const PageWord busy = op.region->table.at(page.value).load(std::memory_order_relaxed);
  release_page(state_, *op.region, page, busy.with_state(next_state),
               op.fault || next_state == PageState::kPoisoned ? Wake::kAll : Wake::kWaiters);
}

void Resolver::install_read(ReadOp& op, unsigned from, unsigned count) {
  unsigned step = count;
  for (unsigned done = 0; done < count;) {
    unsigned at = from + done;
    if (step > count - done) step = count - done;
    void* address = op.region->address_of(PageIndex(op.first + at));
    uint16_t epoch = exclusive_epoch(state_);
    const bool guarded = fork_guards(state_);
    const Install run = install(state_, address, window_ + (op.window + at) * state_.page_size, step, guarded);
    switch (run.outcome) {
      case Installed::kBorder:
        step = 1;
        break;
      case Installed::kDone:
        if (test_switches.installed_delay_us != 0) sys::sleep_ns(test_switches.installed_delay_us * 1000);
        for (unsigned i = 0; i < run.pages; ++i) unlock_installed(op, at + i, false, epoch);
        if (guarded) fork_guard_lift(state_, address, run.pages * state_.page_size);
        count_evicted(-static_cast<int64_t>(run.pages));
        done += run.pages;
        break;
      case Installed::kThere:
        unlock_installed(op, at, true, shared_epoch());
        count_evicted(-1);
        ++done;
        break;
      case Installed::kGone:
      case Installed::kRefused:
        if (run.error == -ENOMEM) {
          wait_out_stall();
          break;
        }
        give_back(op, at, PageState::kEvicted);
        ++done;
        break;
    }
  }
}

void Resolver::unlock_installed(ReadOp& op, unsigned index, bool already_there, uint16_t epoch) {
  PageIndex page(op.first + index);
  count_resident(state_, *op.region, page, 1);
  const PageWord busy = op.region->table.at(page.value).load(std::memory_order_relaxed);
  // where other content is already (inherited by fork), the slot is no copy of it
  const Slot slot = already_there ? kNoSlot : busy.slot();
  unsigned heat = op.fault && index != 0 ? kHeatReadAhead : op.heat;
  if (heat == kHeatFault) heat = refault_heat(busy, state_.eviction_time.load(std::memory_order_relaxed), !op.fault);
  release_page(state_, *op.region, page, resident_word(busy, slot, op.lun, heat, epoch),
               already_there ? Wake::kAll : Wake::kWaiters);
  if (already_there) slot_release(state_, op.lun, busy.slot());
}

}  // namespace lunar
