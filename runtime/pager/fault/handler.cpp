// SPDX-License-Identifier: Apache-2.0
// The fault handler threads. Fault path: no allocation, no host lock, no tiered memory, no unbounded wait.
#include "pager/fault/handler.h"

#include <errno.h>

#include "base/error.h"
#include "base/format.h"
#include "base/test_switches.h"
#include "pager/evict/evictor.h"
#include "pager/fault/cow_gate.h"
#include "pager/fault/map_events.h"
#include "pager/fault/zero_fill.h"
#include "pager/space/lun_space.h"
#include "pager/state/install.h"
#include "pager/state/program_end.h"
#include "pager/state/requests.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/numa.h"

namespace lunar {

constinit FaultState g_fault_state;

namespace {

constexpr unsigned kMessagesAtOnce = 16;
constexpr unsigned kHotLoad = 5;         // messages and reads in hand that make a round a hot one
constexpr unsigned kHotRounds = 16;      // hot rounds before helpers are called
constexpr unsigned kCalmRounds = 256;    // rounds with next to nothing before a helper rests
constexpr unsigned kNodeLookEvery = 32;  // faults of a thread between looks at its node
// parked faults are handed over; looked at anyway, as they may wait for something else
constexpr int64_t kParkedWaitNs = 5000000;
constexpr uint64_t kForkMaxNs = 50000000;      // a fork that takes longer waits for a thread that waits for us
constexpr uint64_t kForkStandsNs = 100000000;  // from then on it is believed to wait for a thread that waits for DRAM
constexpr unsigned kPassMax = 16;              // faults that may then pass the budget in kParkedWaitNs
constexpr uint64_t kStuckNs = 10000000000;     // nothing parked could be answered for so long: a word in the log
constexpr int64_t kPinnedMuch = 8;             // this part of the budget pinned is worth a word
constexpr uint64_t kTagMessages = 0, kTagBell = 1, kTagProgram = 2;

bool is_service_thread(const PagerState& state, int tid) {
  if (tid == 0) return false;
  if (tid == state.services.housekeeping_tid.load(std::memory_order_relaxed)) return true;
  for (unsigned i = 0; i < state.services.handler_count; ++i)
    if (tid == state.services.handler_tids[i].load(std::memory_order_relaxed)) return true;
  return false;
}

}  // namespace

int Handler::open(unsigned index, unsigned window_pages, int node) {
  index_ = index;
  node_ = node;
  helper_ = index >= static_cast<unsigned>(sys::numa_nodes());
  calm_rounds_ = kCalmRounds;
  hot_rounds_ = 0;
  if (const int rc = inbox_.open(); rc < 0) return rc;
  pagemap_ = -1;
  bell().descriptor.store(-1);
  bell().wants_room.store(false);
  watching_ = watching_bell_ = retrying_ = stuck_said_ = false;
  stuck_since_ = 0;
  round_.store(0);
  readings_.store(0);
  return resolver_.open({window_pages, true, sys::numa_nodes() > 1 ? node : -1});
}

int Handler::start() {
  char name[16];
  format_to(name, sizeof name, "lunar-fault%u", index_);
  pthread_t thread;
  return sys::thread_start({name, run_thread, this, false, false, &state_.services.housekeeping_word}, &thread);
}

void Handler::run_thread(void* self) { static_cast<Handler*>(self)->run(); }

void Handler::run() {
  state_.services.handler_tids[index_].store(sys::thread_id(), std::memory_order_relaxed);
  set_stall_reader([](void* self) { static_cast<Handler*>(self)->stalled(); }, this);
  if (!resolver_.attach_own()) fatal("handler: no command ring to the LUN");
  pagemap_ = sys::open_own_file(sys::OwnFile::kPagemap);
  const int eventfd = sys::make_eventfd();
  if (eventfd < 0) fatal("handler: no descriptor to be woken by (%s)", errno_name(eventfd));
  bell().descriptor.store(eventfd);  // with ring(): a message that was put before is seen below
  const bool nodes = sys::numa_nodes() > 1;
  if (nodes) (void)sys::set_affinity_node(node_);
  follower_.start(state_.options.follow && !helper_, nodes ? node_ : -1);
  if (index_ == 0 && resolver_.watch(program_end_descriptor(), kTagProgram) < 0)
    fatal("handler: cannot wait for the program's end");
  state_.services.handlers_running.fetch_add(1, std::memory_order_acq_rel);
  for (;;) {
    round_.fetch_add(1, std::memory_order_seq_cst);
    unsigned messages = answer_inbox();
    // While a watch is armed the queue was empty; its completion says when it is not.
    if (!watching_) messages += take_messages();
    unsigned load = messages + resolver_.in_flight() + inbox_.parked();
    helper_ ? rest_when_calm(load) : call_helpers(load);
    // Armed before the reads go out, so that one system call submits both.
    if (!watching_ && messages < kMessagesAtOnce) {
      if (resolver_.watch(state_.uffd, kTagMessages) < 0) fatal("handler: cannot wait for fault messages");
      watching_ = true;
    }
    if (!watching_bell_) {
      if (resolver_.watch(eventfd, kTagBell) < 0) fatal("handler: cannot wait for its inbox");
      watching_bell_ = true;
    }
    int done = resolver_.progress(false, 0);
    round_.fetch_add(1, std::memory_order_release);
    if (done == 0 && messages < kMessagesAtOnce && inbox_.count() == inbox_.parked()) {
      if (resolver_.in_flight() == 0 && inbox_.parked() == 0) follower_.nothing_came();
      if (inbox_.parked() != 0) {
        round_.fetch_add(1, std::memory_order_seq_cst);
        wait_for_room();
        round_.fetch_add(1, std::memory_order_release);
      }
      if (inbox_.count() == inbox_.parked()) (void)resolver_.progress(true, inbox_.parked() != 0 ? kParkedWaitNs : -1);
    }
    const uint64_t came = resolver_.take_watched();
    if (came >> kTagMessages & 1) watching_ = false;
    if (came >> kTagBell & 1) {
      watching_bell_ = false;
      sys::eventfd_clear(eventfd);
    }
    if (came >> kTagProgram & 1) housekeeping_wake(state_, kHousekeepingProgram);
  }
}

void Handler::call_helpers(unsigned load) {
  if (load < kHotLoad) {
    hot_rounds_ = hot_rounds_ > 0 ? hot_rounds_ - 1 : 0;
    return;
  }
  if (++hot_rounds_ < kHotRounds || state_.fault.helpers_resting.load(std::memory_order_relaxed) == 0) return;
  hot_rounds_ = 0;
  state_.fault.helpers_called.fetch_add(1, std::memory_order_acq_rel);
  sys::futex_wake(&state_.fault.helpers_called, 1, false);
}

// pre: nothing in hand and no watch for messages armed, so that nothing waits for this handler.
void Handler::rest_when_calm(unsigned load) {
  calm_rounds_ = load <= 1 ? calm_rounds_ + 1 : 0;
  if (calm_rounds_ < kCalmRounds || load != 0 || watching_) return;
  follower_.stop_following();
  uint32_t seen = state_.fault.helpers_called.load(std::memory_order_acquire);
  state_.fault.helpers_resting.fetch_add(1, std::memory_order_acq_rel);
  round_.fetch_add(1, std::memory_order_release);
  while (state_.fault.helpers_called.load(std::memory_order_acquire) == seen)
    (void)sys::futex_wait(&state_.fault.helpers_called, seen, -1, false);
  round_.fetch_add(1, std::memory_order_seq_cst);
  state_.fault.helpers_resting.fetch_sub(1, std::memory_order_acq_rel);
  calm_rounds_ = 0;
}

// Of a count that is odd meanwhile.
static void wait_for_end(const std::atomic<uint64_t>& count) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t seen = count.load(std::memory_order_acquire);
  while ((seen & 1) != 0 && count.load(std::memory_order_acquire) == seen) sys::sleep_ns(5000);
}

void Handler::wait_for_round() const { wait_for_end(round_); }
void Handler::wait_for_reading() const { wait_for_end(readings_); }

int Handler::read_messages(sys::UffdMessage* messages, unsigned max) {
  readings_.fetch_add(1, std::memory_order_seq_cst);
  const int n = sys::uffd_read(state_.uffd, messages, max);
  for (int i = 0; i < n; ++i)
    if (messages[i].kind != sys::UffdMessage::Kind::kFault) judge_event(state_, messages[i]);
  readings_.fetch_add(1, std::memory_order_release);
  return n;
}

// In the middle of an answer: a copy fails as long as an event is unread. Faults, which the kernel hands out first, are
// kept for later.
void Handler::stalled() {
  sys::UffdMessage messages[kMessagesAtOnce];
  const int n = read_messages(messages, kMessagesAtOnce);
  for (int i = 0; i < n; ++i) {
    const sys::UffdMessage& message = messages[i];
    if (message.kind != sys::UffdMessage::Kind::kFault) continue;
    counters().faults.add();
    if (!hand_over(owner_of(message), message))  // it faults again
      (void)sys::uffd_wake(state_.uffd, reinterpret_cast<void*>(message.address), state_.page_size);
  }
  if (n <= 0) sys::yield_cpu();
}

// Answers each message of the inbox once; those that it cannot answer are put back. Returns how many were new.
unsigned Handler::answer_inbox() {
  unsigned fresh = 0, parked = 0, answered = 0;
  Inbox::Entry entry;
  for (unsigned left = inbox_.count(); left != 0 && inbox_.take(&entry); --left) {
    retrying_ = entry.parked;
    const unsigned before = inbox_.parked();
    answer(entry.message);
    const bool done = inbox_.parked() == before;
    entry.parked ? ++parked : ++fresh;
    answered += entry.parked && done;
  }
  retrying_ = false;
  if (answered != 0 || parked == 0)
    stuck_since_ = 0;
  else
    note_stuck();
  return fresh;
}

// No parked message could be answered. The program stands still as long as that lasts: say so once.
void Handler::note_stuck() {
  if (++retries_ % 16 != 0 || stuck_said_) return;
  const uint64_t now = sys::now_ns();
  if (stuck_since_ == 0) stuck_since_ = now;
  if (now - stuck_since_ < kStuckNs) return;
  stuck_said_ = true;
  const int64_t cap = state_.account.cap_pages(), pinned = state_.pinned_pages.load();
  log_warning(
      "%u threads wait for DRAM since %u s: %lld of %lld pages of the budget are taken, %lld of them by tables and "
      "buffers, %lld by pins; give a larger --dram%s",
      inbox_.parked(), static_cast<unsigned>(kStuckNs / 1000000000),
      static_cast<long long>(cap - state_.account.free_pages()), static_cast<long long>(cap),
      static_cast<long long>(state_.account.fixed_total()), static_cast<long long>(pinned),
      pinned > cap / kPinnedMuch ? ", or pin less" : "");
}

unsigned Handler::take_messages() {
  sys::UffdMessage messages[kMessagesAtOnce];
  if (inbox_.count() > Inbox::kMax / 2) return 0;  // they wait in the kernel's queue
  const int n = read_messages(messages, kMessagesAtOnce);
  if (n < 0) fatal("handler: reading fault messages failed (%s): pages would stay missing", errno_name(n));
  for (int i = 0; i < n; ++i) {
    if (messages[i].kind != sys::UffdMessage::Kind::kFault) continue;
    Handler& owner = owner_of(messages[i]);
    if (&owner == this || !hand_over(owner, messages[i])) answer(messages[i]);
  }
  if (n > 0) {
    counters().faults.add(static_cast<unsigned>(n));
    follower_.messages_came(messages[0].thread_id, static_cast<unsigned>(n) + resolver_.in_flight());
  }
  return static_cast<unsigned>(n);
}

int Handler::node_of(int thread_id) {
  ThreadNode& entry = thread_nodes_[static_cast<unsigned>(thread_id) % 64];
  if (entry.thread_id != thread_id || entry.left-- == 0) {
    int cpu = sys::cpu_of_thread(thread_id);
    entry = {thread_id, cpu < 0 ? node_ : sys::node_of_cpu(cpu), kNodeLookEvery};
  }
  return entry.node;
}

// The first handler of the faulting thread's node, which never rests; this one if that is its own node.
Handler& Handler::owner_of(const sys::UffdMessage& message) {
  const int nodes = sys::numa_nodes();
  const int node = nodes == 1 || message.thread_id == 0 ? node_ : node_of(message.thread_id);
  return node == node_ || node >= nodes ? *this : *state_.fault.handlers[node];
}

// False: its inbox is full.
bool Handler::hand_over(Handler& owner, const sys::UffdMessage& message) {
  if (!owner.inbox_.put(message, false)) return false;
  if (&owner == this) return true;
  counters().forwarded.add();
  if (const int eventfd = owner.bell().descriptor.load(); eventfd >= 0) sys::eventfd_signal(eventfd);
  return true;
}

void Handler::answer(const sys::UffdMessage& message) {
  const TableScope scope;
  void* address = reinterpret_cast<void*>(message.address);
  if (message.thread_id != 0 && message.thread_id == state_.services.evictor_tid.load(std::memory_order_relaxed)) {
    answer_evictor(message);
    return;
  }
  if (!retrying_) state_.fault.watched.begins(message.thread_id, message.address);
  if (is_service_thread(state_, message.thread_id)) {
    counters().service_faults.add();
    LUNAR_DCHECK(!"a thread of the pager touched tiered memory");
  }
  Region* region = state_.regions.find(address);
  if (region == nullptr || state_.foreign.overlaps(address, 1))
    answer_outside(message);
  else if (message.write_protected)
    answer_protected(*region, region->page_of(address), message);
  else
    answer_missing(*region, region->page_of(address), message);
}

// What to bring in with a page: what its range was advised, else what the thread's stream makes likely.
Ahead Handler::ahead_of(const Region& region, PageIndex page, int thread_id, bool first_touch) {
  switch (region.access_of(page)) {
    case Access::kNormal:
      return streams_.on_fault(thread_id, &region, page.value, first_touch);
    case Access::kRandom:
      break;
    case Access::kSequential:
      state_.evictor->leave_behind(region, page);
      return {1, kReadRunMax};
  }
  return {1, 1};
}

// A page that is not there: a row for each state of its word. A row that finds that the word has changed looks again.
void Handler::answer_missing(Region& region, PageIndex page, const sys::UffdMessage& message) {
  Demand demand{1, kHeatFault, true};
  Ahead ahead;
  bool looked = false, first_touch = false;
  const auto look_ahead = [&](bool first) {  // once a fault: to a stream, the same page again is its end
    if (looked) return;
    looked = true;
    first_touch = first;
    ahead = ahead_of(region, page, message.thread_id, first);
    if (ahead.stride == 1) demand.run = ahead.window;
  };
  Begun begun;
  while (begun.outcome == Outcome::kChanged) {
    const PageWord seen = region.table.peek(page.value);
    switch (seen.state()) {
      case PageState::kEmpty:
        look_ahead(true);
        begun = zero_fill(state_, region, page, demand);
        break;
      case PageState::kInFrame:
        look_ahead(false);
        begun = resolver_.from_frame(region, page, seen, demand);
        break;
      case PageState::kEvicted:
        look_ahead(false);
        begun = resolver_.start_read(region, page, seen, demand);
        break;
      case PageState::kBusy:
        look_ahead(false);
        begun = {set_waiter(region, page, seen) ? Outcome::kBusy : Outcome::kChanged};
        break;
      case PageState::kResident:
        return check_resident(region, page);
      case PageState::kGuard:
        if (region.table.lock(page.value, seen) && check_guard(region, page, seen)) return;
        break;
      case PageState::kPoisoned:
        return mark_lost(region, page, seen);
    }
    if (begun.outcome == Outcome::kNoRoom && demand.keep_free >= 0 && may_pass_budget(message)) {
      demand.run = 1;
      demand.keep_free = INT32_MIN;
      begun = {};
    }
  }
  if (begun.outcome == Outcome::kNoRoom) return park(message);
  if (begun.outcome == Outcome::kBusy) state_.fault.watched.is_in_other_hands();
  if (begun.outcome == Outcome::kResident)
    state_.fault.watched.ends(state_.fault.watched.take(region.address_of(page), state_.page_size), false);
  state_.evictor->wake_if_low();
  if (!first_touch && begun.outcome != Outcome::kBusy) read_ahead(region, page, ahead, begun.pages);
}

// A page that became a guard page when the thread had faulted already: the kernel's marker, over which nothing may be
// copied, answers. Or a raw call has taken the marker away, and the page is empty. pre: locked. True: the marker.
bool Handler::check_guard(Region& region, PageIndex page, PageWord was) {
  const void* address = region.address_of(page);
  sys::PageFacts facts{};
  const bool known = pagemap_ >= 0 && sys::page_facts(pagemap_, &address, 1, &facts) == 0;
  const bool marked = known && facts.present;
  release_page(state_, region, page, marked ? was : was.with_state(PageState::kEmpty),
               marked ? Wake::kAll : Wake::kWaiters);
  return marked;
}

// The rest of a window, of which `taken` pages have been begun: further runs of a sequence, or the next steps of a
// stride.
void Handler::read_ahead(Region& region, PageIndex page, const Ahead& ahead, unsigned taken) {
  const int64_t step = ahead.stride == 1 ? 0 : ahead.stride;
  for (unsigned covered = taken; covered < ahead.window;) {
    const uint64_t next = step == 0 ? page.value + covered : page.value + static_cast<uint64_t>(step) * covered;
    if (next >= region.pages) break;
    const PageWord there = region.table.peek(next);
    if (there.state() == PageState::kEmpty) break;
    Begun begun;
    if (there.state() == PageState::kEvicted)
      begun = resolver_.start_read(region, PageIndex(next), there,
                                   {step == 0 ? ahead.window - covered : 1, kHeatReadAhead});
    if (begun.outcome == Outcome::kNoRoom) break;
    covered += begun.pages != 0 ? begun.pages : 1;
  }
}

// Its region went away meanwhile, or is another map there: the message is late. Or a raw mremap has grown a map of a
// region in its place, which is no event: what it added is zeros.
void Handler::answer_outside(const sys::UffdMessage& message) {
  void* address = reinterpret_cast<void*>(message.address);
  const bool answered = message.write_protected ? protect_pages(state_, address, state_.page_size, false) == 0
                                                : install(state_, address, zero_run(), 1).outcome == Installed::kDone;
  if (!answered) (void)sys::uffd_wake(state_.uffd, address, state_.page_size);
}

// A write to a page that a fork has left shared. While a fork goes on, nothing is let through that would then be shared
// unprotected, but for the forking thread itself, and for a thread whose lock it may be waiting for.
void Handler::answer_protected(Region& region, PageIndex page, const sys::UffdMessage& message) {
  bool force = false;
  if (state_.fork.forking.load(std::memory_order_seq_cst)) {
    force = message.thread_id == state_.fork.thread_id.load(std::memory_order_relaxed) ||
            sys::now_ns() - state_.fork.since_ns.load() > kForkMaxNs;
    if (!force) {
      park(message);
      return;
    }
  }
  switch (gate_lift(state_, region, page, pagemap_, force)) {
    case Lift::kLifted:
      counters().copies_allowed.add();
      break;
    case Lift::kBusy:
      return;
    case Lift::kNoRoom:
      park(message);
      return;
    case Lift::kNotThere:
      (void)sys::uffd_wake(state_.uffd, region.address_of(page), state_.page_size);
      return;
  }
  state_.evictor->wake_if_low();
}

// A lost page that is not marked yet: it was moved, or marking it was refused before.
void Handler::mark_lost(Region& region, PageIndex page, PageWord seen) {
  void* address = region.address_of(page);
  if (region.table.lock(page.value, seen)) {
    const int rc = sys::uffd_poison(state_.uffd, address, state_.page_size);
    // -EEXIST: it is marked, and this was a late message. -ENOENT: another map is there.
    if (rc < 0 && rc != -EEXIST && rc != -EAGAIN && rc != -ENOENT)
      fatal("page %p was lost to a read error, and cannot be made to say so (%s)", address, errno_name(rc));
    release_page(state_, region, page, seen);
  }
  (void)sys::uffd_wake(state_.uffd, address, state_.page_size);
}

// Nothing is evicted while a fork goes on, and the fork may wait for one of the faulting threads: for a lock, in a fork
// handler that runs after ours. The forking thread itself touches a few pages; the others may pass a few at a time, so
// that the thread in question gets on.
bool Handler::may_pass_budget(const sys::UffdMessage& message) {
  if (!state_.fork.forking.load(std::memory_order_seq_cst)) return false;
  if (message.thread_id != 0 && message.thread_id == state_.fork.thread_id.load(std::memory_order_relaxed)) return true;
  const uint64_t now = sys::now_ns();
  if (now - state_.fork.since_ns.load() < kForkStandsNs) return false;
  if (now - passed_since_ >= static_cast<uint64_t>(kParkedWaitNs)) passed_since_ = now, passed_ = 0;
  return passed_++ < kPassMax;
}

// The evictor itself met a missing page (the program discarded it by a raw system call): zeros, whatever the word says.
void Handler::answer_evictor(const sys::UffdMessage& message) {
  if (message.write_protected) state_.account.unshare_always(1);  // it is making the page exclusive
  answer_outside(message);
}

// A message for a page that is marked resident: late (another message of it was answered), or the program dropped the
// page by a raw system call; then it reads as zeros, as the kernel would have it. A copy of zeros tells the two apart,
// as it fails on a page that is there.
void Handler::check_resident(Region& region, PageIndex page) {
  counters().duplicates.add();
  void* address = region.address_of(page);
  const PageWord seen = region.table.peek(page.value);
  if (seen.state() == PageState::kResident && region.table.lock(page.value, seen)) {
    const bool dropped = install(state_, address, zero_run(), 1).outcome == Installed::kDone;
    if (dropped && test_switches.installed_delay_us != 0) sys::sleep_ns(test_switches.installed_delay_us * 1000);
    // It stays charged, and resident: with zeros, of which its slot is no copy.
    const Slot slot = dropped ? kNoSlot : seen.slot();
    // As not known to be exclusive: fork takes marks away that are too old, and skips a page in our hands.
    release_page(state_, region, page, seen.with_slot(slot).with_epoch(kEpochUnknown));
    if (dropped) slot_release(state_, seen.lun(), seen.slot());
  }
  (void)sys::uffd_wake(state_.uffd, address, state_.page_size);
}

void Handler::park(const sys::UffdMessage& message) {
  if (!retrying_) counters().budget_waits.add();
  if (!inbox_.put(message, true))  // it faults again
    (void)sys::uffd_wake(state_.uffd, reinterpret_cast<void*>(message.address), state_.page_size);
  evictor_wake(state_);
}

// Room given back from now on wakes us; one more try covers what was given back before.
void Handler::wait_for_room() {
  bell().wants_room.store(true, std::memory_order_seq_cst);
  state_.services.room_wanted.store(true, std::memory_order_seq_cst);
  state_.account.want_room();
  (void)answer_inbox();
}

void Handler::dump(int fd) const {
  char line[224];
  size_t n = format_to(line, sizeof line, "handler %u: %u reads in flight, %u messages in hand, %u of them parked, ",
                       index_, resolver_.in_flight(), inbox_.count(), inbox_.parked());
  n += follower_.describe(line + n, sizeof line - n);
  n += format_to(line + n, sizeof line - n, "\n");
  (void)sys::write_to_program(fd, line, n);
}

}  // namespace lunar
