// SPDX-License-Identifier: Apache-2.0
// See resolver.h. Each page's hash is checked before the page is installed. A bad page is never
// replaced by zeros.
#include "pager/fault/resolver.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "base/test_switches.h"
#include "pager/evict/choose.h"
#include "pager/evict/evictor.h"
#include "pager/fault/cow_gate.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/zero_fill.h"
#include "pager/space/deferred_slots.h"
#include "pager/state/descriptors.h"
#include "pager/table/table_promise.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"

namespace lunar {
namespace {

constexpr uint8_t kReadRetries = 3;
// longest waits: on one of several rings, and on a ring that is too full to take a read
constexpr int64_t kPollNs = 20'000, kFullRingNs = 1'000'000;

}  // namespace

int Resolver::open(const ResolverOptions& options) {
  const unsigned pages = std::min(options.window_pages, ReadWindow::kPagesMax);
  // If the promised page tables leave too little DRAM for another window, the handlers read the
  // pages instead.
  constexpr int64_t kWindowRoom = kTableRoom / 2 + kReadRunMax;
  const int64_t not_fixed = state_.account.cap_pages() - state_.account.fixed_total();
  if (!options.required && not_fixed - pages < kWindowRoom) return -ENOMEM;
  if (options.required)
    state_.account.take_fixed(pages);
  else if (!state_.account.take_fixed_within(pages, kKeepFreePages))
    return -EAGAIN;
  if (ops_ == nullptr) ops_ = static_cast<ReadOp*>(arena_alloc(kOpsMax * sizeof(ReadOp)));
  if (!window_.map(pages, options.node) || ops_ == nullptr || zero_run() == nullptr) {
    window_.unmap();
    state_.account.give_fixed(pages);
    return -ENOMEM;
  }
  free_op_count_ = 0;
  for (unsigned i = 0; i < kOpsMax; ++i) free_ops_[free_op_count_++] = static_cast<uint16_t>(i);
  ops_in_flight_ = queued_count_ = failed_reads_ = 0;
  no_ring_ = false;
  for (Context*& context : contexts_) context = nullptr;
  return 0;
}

void Resolver::close() {
  while (ops_in_flight_ != 0) (void)progress(true, 1'000'000);
  detach();
  state_.account.give_fixed(window_.pages());
  window_.unmap();
}

// Each pointer is cleared first: a child that is forked meanwhile finds a valid context or none.
void Resolver::detach() {
  for (unsigned lun = 0; lun < kLunIds; ++lun) {
    Context* context = contexts_[lun];
    contexts_[lun] = nullptr;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (context != nullptr && state_.luns.devices[lun] != nullptr)
      state_.luns.devices[lun]->detach(context);
  }
}

Context* Resolver::context_for(unsigned lun) {
  if (contexts_[lun] == nullptr && state_.luns.devices[lun] != nullptr) {
    ContextOptions options;
    options.depth = kOpsMax;
    options.buffer = window_.at(0);
    options.buffer_bytes = window_.pages() * state_.page_size;
    options.spin = state_.options.spin;
    no_ring_ = state_.luns.devices[lun]->attach(options, &contexts_[lun]) < 0;
    if (no_ring_) contexts_[lun] = nullptr;
  }
  return contexts_[lun];
}

bool Resolver::attach_own() {
  watch_lun_ = state_.luns.ready.load(std::memory_order_acquire) || state_.fork.generation == 0
                   ? state_.luns.own
                   : state_.luns.parent;
  return context_for(watch_lun_) != nullptr;
}

int Resolver::watch(int fd, uint64_t tag) {
  watching_ = true;
  return contexts_[watch_lun_]->watch(fd, tag | (uint64_t{1} << 63));
}

// The page's content is still in a frame: copies it back.
FillResult Resolver::from_frame(Region& region, PageIndex page, PageWord seen,
                                const FillRequest& request) {
  LUNAR_DCHECK(seen.state() == PageState::kInFrame);
  Reservation room(state_.account);
  if (!room.take(1, request.keep_free)) return {Outcome::kNoRoom};
  if (!region.table.lock(page.value, seen)) return {Outcome::kChanged};
  FramePool& frames = state_.frames;
  uint32_t id = seen.index();
  void* address = region.address_of(page);
  uint16_t epoch = exclusive_epoch(state_);
  const sys::Section::Inside releasing(releases_);
  const bool guarded = fork_guards(state_);
  const InstallOutcome outcome = install(state_, address, frames.memory(id), 1, guarded).outcome;
  sys::test_delay(test_switches.installed_delay_us);
  const bool there = outcome == InstallOutcome::kThere;
  if (outcome != InstallOutcome::kDone && !there) {
    release_page(state_, region, page, seen,
                 outcome == InstallOutcome::kGone ? Wake::kAll : Wake::kWaiters);
    return {Outcome::kNoRoom};
  }
  room.keep(1);
  Slot slot = kNoSlot;
  unsigned lun = 0;
  (void)frames.release(id, &slot, &lun);
  count_resident(state_, region, page, 1);
  count_evicted(-1);
  counters().second_chances.add();
  // content that is there already may differ from the slot
  const PageWord next = resident_word(seen, there ? kNoSlot : slot, lun, kHeatSecondChance,
                                      there ? shared_epoch() : epoch);
  release_page(state_, region, page, next, there ? Wake::kAll : Wake::kWaiters);
  if (there) slot_release(state_, lun, slot);
  if (guarded) fork_guard_lift(state_, address, state_.page_size);
  return {Outcome::kResident, 1};
}

// Locks the pages behind `page` that are evicted to consecutive slots. Returns the length of the
// run.
unsigned Resolver::lock_run(Region& region, PageIndex page, PageWord first, unsigned run) {
  unsigned n = 1;
  for (; n < run; ++n) {
    const PageWord seen = region.table.peek(page.value + n);
    if (seen.state() != PageState::kEvicted || seen.lun() != first.lun() ||
        seen.index() != first.index() + n)
      break;
    if (!region.table.lock(page.value + n, seen)) break;
  }
  return n;
}

FillResult Resolver::start_read(Region& region, PageIndex page, PageWord seen,
                                const FillRequest& request) {
  LUNAR_DCHECK(seen.state() == PageState::kEvicted && request.run > 0);
  if (free_op_count_ == 0 || context_for(seen.lun()) == nullptr) return {Outcome::kNoRoom};
  auto run = static_cast<unsigned>(
      std::min<uint64_t>({request.run, kReadRunMax, region.pages - page.value}));
  int first = window_.take(run);
  while (first < 0 && run > 1) {
    run /= 2;
    first = window_.take(run);
  }
  if (first < 0) return {Outcome::kNoRoom};
  const auto window = static_cast<unsigned>(first);
  Reservation room(state_.account);
  if (run > 1 && !room.take(run, request.keep_free + state_.evictor->low_water() / 2)) {
    window_.give(window + 1, run - 1);
    run = 1;
  }
  if (room.pages() == 0 && !room.take(1, request.keep_free)) {
    window_.give(window, 1);
    return {Outcome::kNoRoom};
  }
  const unsigned locked =
      region.table.lock(page.value, seen) ? lock_run(region, page, seen, run) : 0;
  room.keep(locked);
  if (locked < run) window_.give(window + locked, run - locked);
  if (locked == 0) return {Outcome::kChanged};
  const unsigned index = free_ops_[--free_op_count_];
  ops_[index] = {&region,
                 page.value,
                 static_cast<uint16_t>(locked),
                 static_cast<uint16_t>(window),
                 static_cast<uint8_t>(seen.lun()),
                 static_cast<uint8_t>(request.heat),
                 request.fault,
                 0,
                 seen.slot(),
                 {window_.at(window), locked * state_.page_size}};
  ++ops_in_flight_;
  queued_[queued_count_++] = static_cast<uint16_t>(index);
  return {Outcome::kStarted, locked};
}

// Submits the queued reads, in one call for each LUN. Reads that a full ring does not take stay
// queued.
void Resolver::submit_queued() {
  unsigned at = 0;
  const auto drop_submitted = [&] {
    queued_count_ -= at;
    memmove(queued_, queued_ + at, queued_count_ * sizeof *queued_);
    at = 0;
  };
  constexpr unsigned kCommands = 16;  // the stack may be a signal handler's
  while (at < queued_count_) {
    Command commands[kCommands];
    unsigned n = 0;
    unsigned lun = ops_[queued_[at]].lun;
    for (; at + n < queued_count_ && n < kCommands && ops_[queued_[at + n]].lun == lun; ++n) {
      ReadOp& op = ops_[queued_[at + n]];
      commands[n] = {Op::kRead,      state_.luns.slots[lun].offset_of(op.slot), &op.iov, 1, 0,
                     queued_[at + n]};
    }
    const int rc = context_for(lun)->submit(commands, n);
    if (rc > 0) {
      at += static_cast<unsigned>(rc);
    } else if (rc == 0 || rc == -EAGAIN || rc == -EBUSY) {
      break;
    } else {
      const unsigned failed = queued_[at++];
      drop_submitted();  // first, because finish() may queue the read again
      finish(failed, rc);
    }
  }
  drop_submitted();
}

int Resolver::progress(bool wait, int64_t timeout_ns) {
  submit_queued();
  const auto has_work = [&](unsigned lun) {
    return contexts_[lun] != nullptr &&
           (contexts_[lun]->in_flight() != 0 || (watching_ && lun == watch_lun_) ||
            (queued_count_ != 0 && lun == ops_[queued_[0]].lun));
  };
  // Usually there is one ring to wait on; a forked child may read from several LUNs, and then polls
  // them in turn.
  unsigned active = 0;
  for (unsigned lun = 0; wait && lun < kLunIds; ++lun) active += has_work(lun);
  const int64_t most_ns = active > 1 ? kPollNs : queued_count_ != 0 ? kFullRingNs : INT64_MAX;
  if (most_ns != INT64_MAX && (timeout_ns < 0 || timeout_ns > most_ns)) timeout_ns = most_ns;
  int total = 0;
  for (unsigned lun = 0; lun < kLunIds; ++lun) {
    if (!has_work(lun)) continue;
    Response responses[32];
    const int n = wait && total == 0 ? contexts_[lun]->wait(responses, 32, timeout_ns)
                                     : contexts_[lun]->reap(responses, 32);
    if (n < 0) fatal_if_refused(n, "io_uring_enter");
    for (int i = 0; i < n; ++i) {
      if (responses[i].tag >> 63)
        watched_ |= uint64_t{1} << (responses[i].tag & 63);
      else
        finish(static_cast<unsigned>(responses[i].tag), responses[i].result);
    }
    if (n > 0) total += n;
  }
  submit_queued();  // reads that are repeated
  return total;
}

// ---- the end of a read: right pages are installed, wrong pages are read again, three times

void Resolver::release_op(unsigned op_index) {
  LUNAR_DCHECK(free_op_count_ < kOpsMax && ops_in_flight_ > 0);
  free_ops_[free_op_count_++] = static_cast<uint16_t>(op_index);
  --ops_in_flight_;
}

// Returns a bit for each page of the read whose content is not what was written.
uint64_t Resolver::bad_pages(const ReadOp& op, int64_t result) const {
  if (result != static_cast<int64_t>(op.count * state_.page_size))
    return op.count == 64 ? ~uint64_t{0} : (uint64_t{1} << op.count) - 1;
  uint64_t bad = 0;
  for (unsigned i = 0; i < op.count && !test_switches.no_hash_check; ++i)
    if (page_hash(window_.at(op.window + i)) != op.region->table.hash(op.first + i))
      bad |= uint64_t{1} << i;
  return bad;
}

// Installs each run of good pages.
void Resolver::install_good(ReadOp& op, uint64_t bad) {
  const sys::Section::Inside releasing(releases_);
  const uint64_t since = op.fault && bad == 0
                             ? g_fault.watched.take(op.region->address_of(PageIndex(op.first)),
                                                    op.count * state_.page_size)
                             : 0;
  for (unsigned i = 0, end; i < op.count; i = end + 1) {
    for (end = i; end < op.count && (bad >> end & 1) == 0; ++end) {}
    if (end != i) install_read(op, i, end - i);
  }
  g_fault.watched.ends(since, true);
}

void Resolver::finish(unsigned op_index, int64_t result) {
  ReadOp& op = ops_[op_index];
  if (result == -ECANCELED) {  // the kernel deferred it and had no thread for it (RLIMIT_NPROC)
    const Command again{Op::kRead, state_.luns.slots[op.lun].offset_of(op.slot), &op.iov, 1, 0, 0};
    result = state_.luns.devices[op.lun]->transfer(again);
  }
  const uint64_t bad = bad_pages(op, result);
  install_good(op, bad);
  if (op.retries == 0) {  // a repeated read was counted before
    counters().major_faults.add(op.fault ? 1 : 0);
    counters().prefetched.add(op.count - (op.fault ? 1u : 0u));
  }
  counters().read_bytes.add(op.count * state_.page_size);
  if (bad == 0) {
    window_.give(op.window, op.count);
    release_op(op_index);
    return;
  }
  finish_failed(op_index, bad,
                result < 0 ? static_cast<int>(result)
                : result == static_cast<int64_t>(op.count * state_.page_size) ? -EBADMSG
                                                                              : -EIO);
}

// This op reads the first bad page again, or poisons it. The other bad pages go back to kEvicted; a
// fault on one of them begins a read of its own.
void Resolver::finish_failed(unsigned op_index, uint64_t bad, int error) {
  ReadOp& op = ops_[op_index];
  LUNAR_DCHECK(bad != 0);
  unsigned first = static_cast<unsigned>(__builtin_ctzll(bad));
  counters().read_errors.add(static_cast<unsigned>(__builtin_popcountll(bad)));
  for (unsigned i = first + 1; i < op.count; ++i)
    if (bad >> i & 1) give_back(op, i, PageState::kEvicted);
  for (unsigned i = 0; i < op.count; ++i)
    if (i != first) window_.give(op.window + i, 1);
  op.first += first;
  op.window = static_cast<uint16_t>(op.window + first);
  op.slot = Slot(op.slot.value + first);
  op.count = 1;
  op.iov = {window_.at(op.window), state_.page_size};
  if (op.retries++ < kReadRetries) {
    queued_[queued_count_++] = static_cast<uint16_t>(op_index);
    return;
  }
  // If the program has closed the LUN while one of its own threads reads, the page is not lost:
  // range operations go on by faults.
  const bool lost = !sys::in_program_files() || descriptors_in_place(state_);
  if (lost) {
    LUNAR_LOG_LIMITED(log_error, 100,
                      "page %p cannot be read back: slot %u of %s: %s; it is poisoned (touching it "
                      "raises SIGBUS)",
                      static_cast<void*>(op.region->address_of(PageIndex(op.first))), op.slot.value,
                      state_.luns.devices[op.lun]->name(),
                      error == -EBADMSG ? "content does not match its hash" : errno_text(error));
    counters().poisoned.add();
  }
  ++failed_reads_;
  give_back(op, 0, lost ? PageState::kPoisoned : PageState::kEvicted);
  window_.give(op.window, 1);
  release_op(op_index);
}

// Releases a page that was not installed.
void Resolver::give_back(ReadOp& op, unsigned index, PageState next_state) {
  PageIndex page(op.first + index);
  void* address = op.region->address_of(page);
  state_.account.give(1);
  if (next_state != PageState::kEvicted) count_evicted(-1);
  // if that fails, a handler marks it at its next fault
  if (next_state == PageState::kPoisoned)
    (void)sys::uffd_poison(state_.uffd, address, state_.page_size);
  const PageWord busy = op.region->table.at(page.value).load(std::memory_order_relaxed);
  release_page(state_, *op.region, page, busy.with_state(next_state),
               op.fault || next_state == PageState::kPoisoned ? Wake::kAll : Wake::kWaiters);
}

void Resolver::install_read(ReadOp& op, unsigned from, unsigned count) {
  unsigned step = count;
  for (unsigned done = 0; done < count;) {
    unsigned at = from + done;
    step = std::min(step, count - done);
    void* address = op.region->address_of(PageIndex(op.first + at));
    uint16_t epoch = exclusive_epoch(state_);
    const bool guarded = fork_guards(state_);
    const InstallResult run = install(state_, address, window_.at(op.window + at), step, guarded);
    switch (run.outcome) {
      case InstallOutcome::kBorder:
        step = 1;
        break;
      case InstallOutcome::kDone:
        sys::test_delay(test_switches.installed_delay_us);
        for (unsigned i = 0; i < run.pages; ++i) unlock_installed(op, at + i, false, epoch);
        if (guarded) fork_guard_lift(state_, address, run.pages * state_.page_size);
        count_evicted(-static_cast<int64_t>(run.pages));
        done += run.pages;
        break;
      case InstallOutcome::kThere:
        unlock_installed(op, at, true, shared_epoch());
        count_evicted(-1);
        ++done;
        break;
      case InstallOutcome::kGone:
        give_back(op, at, PageState::kEvicted);
        ++done;
        break;
      case InstallOutcome::kRefused:  // the kernel has no memory for the others either
        for (; done < count; ++done) give_back(op, from + done, PageState::kEvicted);
        refused_ = true;
        break;
    }
  }
}

void Resolver::unlock_installed(ReadOp& op, unsigned index, bool already_there, uint16_t epoch) {
  PageIndex page(op.first + index);
  count_resident(state_, *op.region, page, 1);
  const PageWord busy = op.region->table.at(page.value).load(std::memory_order_relaxed);
  // content that is there already (inherited by a fork) may differ from the slot
  const Slot slot = already_there ? kNoSlot : busy.slot();
  unsigned heat = op.fault && index != 0 ? kHeatReadAhead : op.heat;
  if (heat == kHeatFault)
    heat = refault_heat(busy, state_.eviction_time.load(std::memory_order_relaxed), !op.fault);
  release_page(state_, *op.region, page, resident_word(busy, slot, op.lun, heat, epoch),
               already_there ? Wake::kAll : Wake::kWaiters);
  if (already_there) slot_release(state_, op.lun, busy.slot());
}

}  // namespace lunar
