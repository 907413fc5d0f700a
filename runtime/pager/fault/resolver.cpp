// SPDX-License-Identifier: Apache-2.0
// Resolver: starting reads, frames. Finishing (verify, install, retry, poison) is in resolve_finish.cpp.
#include "pager/fault/resolver.h"

#include <errno.h>
#include <string.h>

#include "base/test_switches.h"
#include "pager/evict/evictor.h"
#include "pager/fault/cow_gate.h"
#include "pager/fault/zero_fill.h"
#include "pager/space/lun_space.h"
#include "pager/state/requests.h"
#include "pager/table/leaf_pool.h"
#include "pager/table/table_promise.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/numa.h"

namespace lunar {
namespace {

constexpr int64_t kPollNs = 20000;        // how long one of several rings is waited on
constexpr int64_t kFullRingNs = 1000000;  // and one that does not take what is queued

}  // namespace

int Resolver::open(const ResolverOptions& options) {
  window_pages_ = options.window_pages > 512 ? 512 : options.window_pages;
  // Windows of many threads may not fill what promised page tables leave: then handlers bring the pages in.
  constexpr int64_t kWindowRoom = kTableRoom / 2 + kReadRunMax;
  const int64_t beside = state_.account.cap_pages() - state_.account.fixed_total();
  if (!options.required && beside - window_pages_ < kWindowRoom) return -ENOMEM;
  if (options.required)
    state_.account.take_fixed(window_pages_);
  else if (!state_.account.take_fixed_within(window_pages_, kKeepFreePages))
    return -EAGAIN;
  window_ = static_cast<char*>(map_private(window_pages_ * state_.page_size, ForkPolicy::kDontFork));
  if (ops_ == nullptr) ops_ = static_cast<ReadOp*>(arena_alloc(kOpsMax * sizeof(ReadOp)));
  if (window_ == nullptr || ops_ == nullptr || zero_run() == nullptr) {
    unmap_private(window_, window_pages_ * state_.page_size);
    state_.account.give_fixed(window_pages_);
    return -ENOMEM;
  }
  if (options.node >= 0) sys::bind_to_node(window_, window_pages_ * state_.page_size, options.node);
  for (uint64_t& word : window_used_) word = ~uint64_t{0};
  for (unsigned i = 0; i < window_pages_; ++i) window_used_[i / 64] &= ~(uint64_t{1} << (i % 64));
  free_op_count_ = 0;
  for (unsigned i = 0; i < kOpsMax; ++i) free_ops_[free_op_count_++] = static_cast<uint16_t>(i);
  ops_in_flight_ = queued_count_ = failed_reads_ = 0;
  no_ring_ = false;
  for (Context*& context : contexts_) context = nullptr;
  return 0;
}

void Resolver::close() {
  while (ops_in_flight_ != 0) (void)progress(true, 1000000);
  detach();
  unmap_private(window_, window_pages_ * state_.page_size);
  state_.account.give_fixed(window_pages_);
}

// Each is forgotten first: a child that is forked meanwhile finds a context that is whole, or none.
void Resolver::detach() {
  for (unsigned lun = 0; lun < kLunIds; ++lun) {
    Context* context = contexts_[lun];
    contexts_[lun] = nullptr;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (context != nullptr && state_.luns.devices[lun] != nullptr) state_.luns.devices[lun]->detach(context);
  }
}

Context* Resolver::context_for(unsigned lun) {
  if (contexts_[lun] == nullptr && state_.luns.devices[lun] != nullptr) {
    ContextOptions options;
    options.depth = kOpsMax;
    options.buffer = window_;
    options.buffer_bytes = window_pages_ * state_.page_size;
    options.spin = state_.options.spin;
    options.sqpoll = state_.options.sqpoll;
    no_ring_ = state_.luns.devices[lun]->attach(options, &contexts_[lun]) < 0;
    if (no_ring_) contexts_[lun] = nullptr;
  }
  return contexts_[lun];
}

bool Resolver::attach_own() {
  watch_lun_ = state_.luns.ready.load(std::memory_order_acquire) || state_.fork.generation == 0 ? state_.luns.own
                                                                                                : state_.luns.parent;
  return context_for(watch_lun_) != nullptr;
}

int Resolver::watch(int fd, uint64_t tag) {
  watching_ = true;
  return contexts_[watch_lun_]->watch(fd, tag | (uint64_t{1} << 63));
}

// First index of `pages` adjacent free window pages within one word, or -1.
int Resolver::window_take(unsigned pages) {
  for (unsigned w = 0; w < (window_pages_ + 63) / 64; ++w) {
    uint64_t free = ~window_used_[w];
    uint64_t starts = free;
    for (unsigned have = 1; have < pages && starts != 0;) {
      unsigned step = have < pages - have ? have : pages - have;
      starts &= starts >> step;
      have += step;
    }
    if (starts == 0) continue;
    unsigned bit = static_cast<unsigned>(__builtin_ctzll(starts));
    uint64_t mask = (pages == 64 ? ~uint64_t{0} : (uint64_t{1} << pages) - 1) << bit;
    window_used_[w] |= mask;
    return static_cast<int>(w * 64 + bit);
  }
  return -1;
}

void Resolver::window_give(unsigned first, unsigned pages) {
  uint64_t mask = (pages == 64 ? ~uint64_t{0} : (uint64_t{1} << pages) - 1) << (first % 64);
  window_used_[first / 64] &= ~mask;
}

// The page's content is still in a frame: copy it back.
Begun Resolver::from_frame(Region& region, PageIndex page, PageWord seen, const Demand& demand) {
  Reservation room(state_.account);
  if (!room.take(1, demand.keep_free)) return {Outcome::kNoRoom};
  if (!region.table.lock(page.value, seen)) return {Outcome::kChanged};
  FramePool& frames = state_.frames;
  uint32_t id = seen.index();
  void* address = region.address_of(page);
  uint16_t epoch = exclusive_epoch(state_);
  const sys::Section::Inside releasing(releases_);
  const bool guarded = fork_guards(state_);
  const Installed outcome = install(state_, address, frames.memory(id), 1, guarded).outcome;
  if (test_switches.installed_delay_us != 0) sys::sleep_ns(test_switches.installed_delay_us * 1000);
  const bool there = outcome == Installed::kThere;
  if (outcome != Installed::kDone && !there) {
    release_page(state_, region, page, seen, outcome == Installed::kGone ? Wake::kAll : Wake::kWaiters);
    return {Outcome::kNoRoom};
  }
  room.keep(1);
  Slot slot = kNoSlot;
  unsigned lun = 0;
  (void)frames.release(id, &slot, &lun);
  count_resident(state_, region, page, 1);
  count_evicted(-1);
  counters().second_chances.add();
  // what is there already may differ from the slot
  const PageWord next =
      resident_word(seen, there ? kNoSlot : slot, lun, kHeatSecondChance, there ? shared_epoch() : epoch);
  release_page(state_, region, page, next, there ? Wake::kAll : Wake::kWaiters);
  if (there) slot_release(state_, lun, slot);
  if (guarded) fork_guard_lift(state_, address, state_.page_size);
  return {Outcome::kResident, 1};
}

// How many pages from `page` on are evicted to consecutive slots.
unsigned Resolver::lock_run(Region& region, PageIndex page, PageWord first, unsigned run) {
  unsigned n = 1;
  for (; n < run; ++n) {
    const PageWord seen = region.table.peek(page.value + n);
    if (seen.state() != PageState::kEvicted || seen.lun() != first.lun() || seen.index() != first.index() + n) break;
    if (!region.table.lock(page.value + n, seen)) break;
  }
  return n;
}

Begun Resolver::start_read(Region& region, PageIndex page, PageWord seen, const Demand& demand) {
  if (free_op_count_ == 0 || context_for(seen.lun()) == nullptr) return {Outcome::kNoRoom};
  unsigned run = demand.run < kReadRunMax ? demand.run : kReadRunMax;
  if (run > region.pages - page.value) run = static_cast<unsigned>(region.pages - page.value);
  int first = -1;
  while (run > 1 && (first = window_take(run)) < 0) run /= 2;
  if (first < 0 && (run = 1, first = window_take(1)) < 0) return {Outcome::kNoRoom};
  const auto window = static_cast<unsigned>(first);
  Reservation room(state_.account);
  if (run > 1 && !room.take(run, demand.keep_free + state_.evictor->low_water() / 2)) {
    window_give(window + 1, run - 1);
    run = 1;
  }
  if (room.pages() == 0 && !room.take(1, demand.keep_free)) {
    window_give(window, 1);
    return {Outcome::kNoRoom};
  }
  const unsigned locked = region.table.lock(page.value, seen) ? lock_run(region, page, seen, run) : 0;
  room.keep(locked);
  if (locked < run) window_give(window + locked, run - locked);
  if (locked == 0) return {Outcome::kChanged};
  const unsigned index = free_ops_[--free_op_count_];
  ops_[index] = {&region,
                 page.value,
                 static_cast<uint16_t>(locked),
                 static_cast<uint16_t>(window),
                 static_cast<uint8_t>(seen.lun()),
                 static_cast<uint8_t>(demand.heat),
                 demand.fault,
                 0,
                 seen.slot(),
                 {window_ + window * state_.page_size, locked * state_.page_size}};
  ++ops_in_flight_;
  queued_[queued_count_++] = static_cast<uint16_t>(index);
  return {Outcome::kStarted, locked};
}

// Submits everything begun since the last time, in one call a LUN. What a full ring does not take stays queued.
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
      commands[n] = {Op::kRead, state_.luns.slots[lun].offset_of(op.slot), &op.iov, 1, 0, queued_[at + n]};
    }
    const int rc = context_for(lun)->submit(commands, n);
    if (rc > 0) {
      at += static_cast<unsigned>(rc);
    } else if (rc == 0 || rc == -EAGAIN || rc == -EBUSY) {
      break;
    } else {
      const unsigned failed = queued_[at++];
      drop_submitted();  // first: finish() may queue it again
      finish(failed, rc);
    }
  }
  drop_submitted();
}

int Resolver::progress(bool wait, int64_t timeout_ns) {
  submit_queued();
  const auto has_work = [&](unsigned lun) {
    return contexts_[lun] != nullptr && (contexts_[lun]->in_flight() != 0 || (watching_ && lun == watch_lun_) ||
                                         (queued_count_ != 0 && lun == ops_[queued_[0]].lun));
  };
  // Usually there is one ring to wait on; a forked child may read from several LUNs, and then polls them in turn.
  unsigned active = 0;
  for (unsigned lun = 0; wait && lun < kLunIds; ++lun) active += has_work(lun);
  const int64_t most_ns = active > 1 ? kPollNs : queued_count_ != 0 ? kFullRingNs : INT64_MAX;
  if (most_ns != INT64_MAX && (timeout_ns < 0 || timeout_ns > most_ns)) timeout_ns = most_ns;
  int total = 0;
  for (unsigned lun = 0; lun < kLunIds; ++lun) {
    if (!has_work(lun)) continue;
    Response responses[32];
    const int n =
        wait && total == 0 ? contexts_[lun]->wait(responses, 32, timeout_ns) : contexts_[lun]->reap(responses, 32);
    if (n < 0) fatal_if_refused(n, "io_uring_enter");
    for (int i = 0; i < n; ++i) {
      if (responses[i].tag >> 63)
        watched_ |= uint64_t{1} << (responses[i].tag & 63);
      else
        finish(static_cast<unsigned>(responses[i].tag), responses[i].result);
    }
    if (n > 0) total += n;
  }
  submit_queued();  // what is read again
  return total;
}

}  // namespace lunar
