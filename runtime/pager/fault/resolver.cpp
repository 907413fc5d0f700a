// SPDX-License-Identifier: Apache-2.0
// Resolver: starting reads, frames, zero pages. Finishing (verify, install, retry, poison) is in resolve_finish.cpp.
#include "pager/fault/resolver.h"

#include <errno.h>
#include <string.h>

#include "base/test_switches.h"
#include "pager/evict/evictor.h"
#include "pager/fault/cow_gate.h"
#include "pager/space/lun_space.h"
#include "pager/state/requests.h"
#include "pager/table/leaf_pool.h"
#include "pager/table/table_promise.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/numa.h"

namespace lunar {
namespace {

constexpr unsigned kZeroPages = 128;
constexpr int64_t kPollNs = 20000;        // how long one of several rings is waited on
constexpr int64_t kFullRingNs = 1000000;  // and one that does not take what is queued

// Whether charging has failed for a while, in which the housekeeping thread has given back what dead members held.
class OutSince {
 public:
  bool for_a_while() {
    constexpr uint64_t kTryNs = 200000000;
    const uint64_t now = sys::now_ns();
    if (now - last_.exchange(now) > kTryNs) since_.store(now);  // the first one, or the last was a while ago
    return now - since_.load() > kTryNs;
  }

 private:
  std::atomic<uint64_t> since_{0}, last_{0};
};
constinit OutSince g_space_out, g_tables_out;

}  // namespace

// DRAM for pages that are to become resident. What is not kept is given back.
class Reservation {
 public:
  explicit Reservation(Account& account) : account_(account) {}
  ~Reservation() { shrink(0); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  // False: the budget would have fewer than `keep_free` pages free then. Pre: it holds none.
  [[nodiscard]] bool take(unsigned pages, int64_t keep_free) {
    if (!account_.take(pages, keep_free)) return false;
    pages_ = pages;
    return true;
  }
  unsigned pages() const { return pages_; }
  void shrink(unsigned to) {
    if (pages_ > to) account_.give(pages_ - to);
    pages_ = to;
  }
  void keep(unsigned pages) { pages_ -= pages; }  // so many are resident now, or a read's

 private:
  Account& account_;
  unsigned pages_ = 0;
};

const char* zero_run() {
  static char* const zeros = static_cast<char*>(map_private(kZeroPages * sys::page_bytes(), ForkPolicy::kInherit));
  return zeros;
}

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

void Resolver::wait_for_release() const {
  const uint64_t seen = releases_.load(std::memory_order_seq_cst);
  while ((seen & 1) != 0 && releases_.load(std::memory_order_acquire) == seen) sys::sleep_ns(5000);
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
  const ReleasingScope releasing(releases_);
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

// While a quarter of the budget is free: as much as is in use just before the page, so that memory which grows upwards
// is filled in doubling runs whichever thread touches it, however many places grow at once. Where there are holes, by
// density: memory touched here and there, a page each, is filled as the kernel would.
unsigned Resolver::fill_run(const Region& region, PageIndex page, unsigned asked) const {
  const Account& account = state_.account;
  if (region.on_touch || account.free_pages() < account.cap_pages() / 4) return asked;
  const uint64_t first = page.value < kZeroPages ? 0 : page.value - kZeroPages;
  unsigned used = 0, before = 0;
  for (uint64_t at = page.value; at > first; --at) {
    if (region.table.peek(at - 1).state() == PageState::kEmpty) continue;
    ++used;
    if (before == page.value - at) ++before;
  }
  unsigned run = before == 0 ? 1 : before * 2;
  if (used > before && used >= kZeroPages / 2) run = used / 2 > run ? used / 2 : run;
  return run > asked ? run : asked;
}

// Locks empty pages from `page` on, at most `run`, and charges their space where touching is what charges it.
unsigned Resolver::lock_empty(Region& region, PageIndex page, const Demand& demand, unsigned run) {
  const bool on_touch = region.on_touch;
  for (unsigned locked = 0; locked < run; ++locked) {
    const uint64_t at = page.value + locked;
    if (const int rc = table_reach(state_, region, at, at + 1, demand.keep_free); rc < 0) {
      if (rc == -ENOMEM && locked == 0 && g_tables_out.for_a_while())
        fatal(
            "the page tables take all that they may of the DRAM budget: there is no room for that of page %p%s; give "
            "a larger --dram",
            static_cast<void*>(region.address_of(page)),
            on_touch ? ", of a map without reservation (MAP_NORESERVE)" : ", which was not committed");
      return locked;
    }
    const PageWord seen = region.table.peek(at);
    if (seen.state() != PageState::kEmpty) return locked;
    if (int rc = on_touch ? space_charge(state_, 1, false) : 0; rc < 0) {
      // members may have died; more is reserved
      housekeeping_wake(state_, rc == -ENOMEM ? kHousekeepingSweep : kHousekeepingGrow);
      if ((rc == -ENOMEM || state_.luns.growth_refused.load()) && locked == 0 && g_space_out.for_a_while())
        fatal("LUN space is used up: none is left for page %p of a map without reservation (MAP_NORESERVE); %s",
              static_cast<void*>(region.address_of(page)), space_remedy(state_, space_bound(state_, state_.page_size)));
      return locked;
    }
    if (region.table.lock(at, seen)) continue;
    if (on_touch) space_uncharge(state_, 1);
    return locked;
  }
  return run;
}

// A locked page becomes empty again.
void Resolver::leave_empty(Region& region, PageIndex page, Wake wake) {
  if (region.on_touch) space_uncharge(state_, 1);
  const PageWord busy = region.table.at(page.value).load(std::memory_order_relaxed);
  release_page(state_, region, page, busy.with_state(PageState::kEmpty), wake);
}

// A locked page has been filled; `epoch` as of before. The copy has woken those that met it missing, but one may have
// met it write-protected since (a fork goes on).
void Resolver::settle_filled(Region& region, PageIndex page, uint16_t epoch, Wake wake) {
  const bool on_touch = region.on_touch;
  count_resident(state_, region, page, 1);
  if (on_touch) region.committed_pages.fetch_add(1, std::memory_order_relaxed);
  const PageWord busy = region.table.at(page.value).load(std::memory_order_relaxed);
  release_page(state_, region, page,
               resident_word(busy, kNoSlot, state_.luns.own, kHeatFault, epoch).with_charged(on_touch), wake);
}

// Fills locked pages with zeros and releases them. Returns how many; the others are empty again.
unsigned Resolver::fill_locked(Region& region, PageIndex page, unsigned locked, Reservation& room) {
  if (test_switches.reach_delay_us != 0) sys::sleep_ns(test_switches.reach_delay_us * 1000);
  for (unsigned done = 0; done < locked;) {
    const PageIndex at(page.value + done);
    const uint16_t epoch = exclusive_epoch(state_);
    const Install run = install(state_, region.address_of(at), zero_run(), locked - done);
    if (run.outcome == Installed::kRefused || run.outcome == Installed::kBorder) {
      const unsigned kept = run.outcome == Installed::kBorder ? done + 1 : done;  // only the first page is asked for
      for (; locked > kept; --locked) leave_empty(region, PageIndex(page.value + locked - 1), Wake::kWaiters);
      continue;
    }
    if (test_switches.release_delay_us != 0) sys::sleep_ns(test_switches.release_delay_us * 1000);
    const bool there = run.outcome == Installed::kThere;
    const unsigned filled = run.outcome == Installed::kDone ? run.pages : 1;
    if (run.outcome == Installed::kGone) {
      leave_empty(region, at, Wake::kAll);
    } else {
      for (unsigned i = 0; i < filled; ++i)
        settle_filled(region, PageIndex(at.value + i), there ? shared_epoch() : epoch,
                      there ? Wake::kAll : Wake::kWaiters);
      room.keep(filled);
    }
    done += filled;
  }
  counters().zero_fills.add(locked);
  return locked;
}

Begun Resolver::zero_fill(Region& region, PageIndex page, const Demand& demand) {
  unsigned run = demand.fault ? fill_run(region, page, demand.run) : 1;
  if (run > kZeroPages) run = kZeroPages;
  if (run > region.pages - page.value) run = static_cast<unsigned>(region.pages - page.value);
  bool foreign = false;
  char* at = region.address_of(page);
  run = static_cast<unsigned>(static_cast<size_t>(state_.foreign.run(at, at + run * state_.page_size, &foreign) - at) >>
                              state_.page_shift);
  Reservation room(state_.account);
  while (run > 1 && !room.take(run, demand.keep_free + state_.evictor->low_water() / 2)) run /= 2;
  const bool no_room = run <= 1 && !room.take(run = 1, demand.keep_free);
  const unsigned locked = no_room ? 0 : lock_empty(region, page, demand, run);
  room.shrink(locked);
  const unsigned filled = locked == 0 ? 0 : fill_locked(region, page, locked, room);
  if (filled != 0) return {Outcome::kResident, filled};
  const PageWord now = region.table.peek(page.value);
  return {now.state() == PageState::kEmpty ? Outcome::kNoRoom : Outcome::kChanged};
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
