// SPDX-License-Identifier: Apache-2.0
// The fault handler threads. Fault path: no allocation, no host lock, no tiered memory, no
// unbounded wait.
#include "pager/fault/handler.h"

#include "base/error.h"
#include "base/format.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/map_events.h"
#include "pager/state/program_end.h"
#include "pager/state/requests.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/numa.h"

namespace lunar {
namespace {

constexpr unsigned kMessagesAtOnce = 16;
constexpr unsigned kHotLoad = 5;         // the load (messages and reads) from which a round is hot
constexpr unsigned kHotRounds = 16;      // hot rounds before a helper is called
constexpr unsigned kCalmRounds = 256;    // rounds with a load of at most 1 before a helper rests
constexpr unsigned kNodeLookEvery = 32;  // faults of a thread between looks at its node
// Freed DRAM rings the bell. Parked faults, which may wait for other things, are also tried again
// after this time.
constexpr int64_t kParkedWaitNs = 5'000'000;
// no parked fault could be answered for so long: logged
constexpr uint64_t kStuckNs = 10'000'000'000;
constexpr int64_t kPinnedMuch = 8;  // the line names pins if more than 1/8 of the budget is pinned
constexpr uint64_t kTagMessages = 0, kTagBell = 1, kTagProgram = 2;

}  // namespace

int Handler::open(unsigned index, unsigned window_pages, int node) {
  index_ = index;
  node_ = node;
  helper_ = index >= static_cast<unsigned>(sys::numa_nodes());
  calm_rounds_ = kCalmRounds;
  hot_rounds_ = 0;
  if (const int rc = inbox_.open(); rc < 0) return rc;
  bell().descriptor.store(-1);
  bell().wants_room.store(false);
  watching_messages_ = watching_bell_ = stuck_said_ = false;
  stuck_since_ = 0;
  round_.reset_in_child();
  g_fault.readings[index].reset_in_child();
  return resolver_.open({window_pages, true, sys::numa_nodes() > 1 ? node : -1});
}

int Handler::start() {
  char name[16];
  format_to(name, sizeof name, "lunar-fault%u", index_);
  const auto run = [](void* self) { static_cast<Handler*>(self)->run(); };
  pthread_t thread;
  return sys::thread_start_beside_exec(
      {name, run, this, false, false, &state_.services.housekeeping_word}, &thread);
}

void Handler::run() {
  set_up();
  for (;;) {
    const Next next = do_round();
    if (next == Next::kRest) rest();
    if (next == Next::kWait) wait_for_more();
    see_what_came();
  }
}

void Handler::set_up() {
  state_.services.handler_tids[index_].store(sys::thread_id(), std::memory_order_relaxed);
  set_stall_reader([](void* self) { static_cast<Handler*>(self)->read_in_stall(); }, this);
  if (!resolver_.attach_own()) fatal("handler: no command ring to the LUN");
  answerer_.open();
  const int eventfd = sys::make_eventfd();
  if (eventfd < 0) fatal("handler: no descriptor to be woken by (%s)", errno_name(eventfd));
  // pairs with hand_over(): a message that was put before is read in the first round
  bell().descriptor.store(eventfd);
  const bool nodes = sys::numa_nodes() > 1;
  if (nodes) (void)sys::set_affinity_node(node_);
  follower_.start(state_.options.follow && !helper_, nodes ? node_ : -1);
  if (index_ == 0 && resolver_.watch(program_end_descriptor(), kTagProgram) < 0)
    fatal("handler: cannot wait for the program's end");
  state_.services.handlers_running.fetch_add(1, std::memory_order_acq_rel);
}

// Answers the inbox and new messages, and installs finished reads, without waiting.
Handler::Next Handler::do_round() {
  const sys::Section::Inside round(round_);
  unsigned messages = answer_inbox();
  // While a watch is armed the queue was empty; the watch fires when it is not.
  if (!watching_messages_) messages += take_messages();
  const unsigned load = messages + resolver_.in_flight() + inbox_.parked();
  if (!helper_) call_helpers(load);
  if (helper_ && may_rest(load)) return Next::kRest;
  arm_watches(messages);  // before the reads go out, so that one system call submits both
  const bool came = resolver_.progress(false, 0) != 0;
  return came || !must_wait() ? Next::kGoOn : Next::kWait;
}

void Handler::wait_for_more() {
  const bool parked = inbox_.parked() != 0;
  if (!parked && resolver_.in_flight() == 0) follower_.nothing_came();
  if (parked) {
    // DRAM given back from now on rings the bell; one more try covers what was given back before.
    const sys::Section::Inside round(round_);
    bell().wants_room.store(true, std::memory_order_seq_cst);
    state_.services.room_wanted.store(true, std::memory_order_seq_cst);
    state_.account.want_room();
    (void)answer_inbox();
  }
  if (must_wait()) (void)resolver_.progress(true, inbox_.parked() != 0 ? kParkedWaitNs : -1);
}

void Handler::see_what_came() {
  const uint64_t came = resolver_.take_watched();
  if (came >> kTagMessages & 1) watching_messages_ = false;
  if (came >> kTagBell & 1) {
    watching_bell_ = false;
    sys::eventfd_clear(bell().descriptor.load());
  }
  if (came >> kTagProgram & 1) housekeeping_wake(state_, kHousekeepingProgram);
}

void Handler::arm_watches(unsigned messages) {
  if (!watching_messages_ && messages < kMessagesAtOnce && reads_messages()) {
    if (resolver_.watch(state_.uffd, kTagMessages) < 0)
      fatal("handler: cannot wait for fault messages");
    watching_messages_ = true;
  }
  if (!watching_bell_) {
    if (resolver_.watch(bell().descriptor.load(), kTagBell) < 0)
      fatal("handler: cannot wait for its inbox");
    watching_bell_ = true;
  }
}

void Handler::call_helpers(unsigned load) {
  if (load < kHotLoad) {
    hot_rounds_ = hot_rounds_ > 0 ? hot_rounds_ - 1 : 0;
    return;
  }
  if (++hot_rounds_ < kHotRounds || g_fault.helpers_resting.load(std::memory_order_relaxed) == 0)
    return;
  hot_rounds_ = 0;
  g_fault.helpers_called.fetch_add(1, std::memory_order_acq_rel);
  sys::futex_wake(&g_fault.helpers_called, 1, false);
}

// Whether this helper may rest: it has no load and no armed watch for messages, so nothing waits
// for it.
bool Handler::may_rest(unsigned load) {
  calm_rounds_ = load <= 1 ? calm_rounds_ + 1 : 0;
  return calm_rounds_ >= kCalmRounds && load == 0 && !watching_messages_;
}

void Handler::rest() {
  follower_.stop_following();
  const uint32_t seen = g_fault.helpers_called.load(std::memory_order_acquire);
  g_fault.helpers_resting.fetch_add(1, std::memory_order_acq_rel);
  while (g_fault.helpers_called.load(std::memory_order_acquire) == seen)
    (void)sys::futex_wait(&g_fault.helpers_called, seen, -1, false);
  g_fault.helpers_resting.fetch_sub(1, std::memory_order_acq_rel);
  calm_rounds_ = 0;
}

// Answers each message of the inbox once, and puts back those that it cannot answer. Returns how
// many were new.
unsigned Handler::answer_inbox() {
  unsigned fresh = 0, parked = 0, answered = 0;
  Inbox::Entry entry;
  for (unsigned left = inbox_.count(); left != 0 && inbox_.take(&entry); --left) {
    const unsigned before = inbox_.parked();
    answer(entry.message, entry.parked);
    entry.parked ? ++parked : ++fresh;
    answered += entry.parked && inbox_.parked() == before;
  }
  if (answered != 0 || parked == 0) {
    stuck_since_ = 0;
    stuck_said_ = false;
  } else {
    note_stuck();
  }
  return fresh;
}

unsigned Handler::take_messages() {
  sys::UffdMessage messages[kMessagesAtOnce];
  if (!reads_messages()) return 0;
  const int n = read_faults(state_, index_, messages, kMessagesAtOnce);
  if (n < 0)
    fatal("handler: reading fault messages failed (%s): pages would stay missing", errno_name(n));
  for (int i = 0; i < n; ++i) {
    Handler& owner = owner_of(messages[i]);
    if (&owner == this || !hand_over(owner, messages[i])) answer(messages[i], false);
  }
  if (n > 0) {
    counters().faults.add(static_cast<unsigned>(n));
    follower_.messages_came(messages[0].thread_id,
                            static_cast<unsigned>(n) + resolver_.in_flight());
  }
  return static_cast<unsigned>(n);
}

// Parks the message if it cannot be answered now.
void Handler::answer(const sys::UffdMessage& message, bool again) {
  if (answerer_.answer(message, again)) return;
  if (!again) counters().budget_waits.add();
  if (!inbox_.put(message, true))  // the thread faults again
    (void)sys::uffd_wake(state_.uffd, reinterpret_cast<void*>(message.address), state_.page_size);
  evictor_wake(state_);
}

// Called in the middle of an answer: copies fail as long as an event is unread. The kernel hands
// out faults first, which are kept for later.
void Handler::read_in_stall() {
  sys::UffdMessage messages[kMessagesAtOnce];
  const int n = read_faults(state_, index_, messages, kMessagesAtOnce);
  for (int i = 0; i < n; ++i) {
    counters().faults.add();
    if (!hand_over(owner_of(messages[i]), messages[i]))  // the thread faults again
      (void)sys::uffd_wake(state_.uffd, reinterpret_cast<void*>(messages[i].address),
                           state_.page_size);
  }
  if (n <= 0) sys::yield_cpu();
}

// Returns the first handler of the faulting thread's node, which never rests; this handler if it
// serves that node.
Handler& Handler::owner_of(const sys::UffdMessage& message) {
  const int nodes = sys::numa_nodes();
  if (nodes == 1 || message.thread_id == 0) return *this;
  ThreadNode& thread = thread_nodes_[static_cast<unsigned>(message.thread_id) % 64];
  if (thread.thread_id != message.thread_id || thread.left-- == 0) {
    const int cpu = sys::cpu_of_thread(message.thread_id);
    thread = {message.thread_id, cpu < 0 ? node_ : sys::node_of_cpu(cpu), kNodeLookEvery};
  }
  return thread.node == node_ || thread.node >= nodes ? *this : *g_fault.handlers[thread.node];
}

// Puts the message into the owner's inbox. False: it is full.
bool Handler::hand_over(Handler& owner, const sys::UffdMessage& message) {
  if (!owner.inbox_.put(message, false)) return false;
  if (&owner == this) return true;
  if (const int eventfd = owner.bell().descriptor.load(); eventfd >= 0)
    sys::eventfd_signal(eventfd);
  return true;
}

// No parked message could be answered. Logs a line, once each time, when that has lasted long: the
// threads concerned stand still.
void Handler::note_stuck() {
  if (++vain_retries_ % 16 != 0 || stuck_said_) return;
  const uint64_t now = sys::now_ns();
  if (stuck_since_ == 0) stuck_since_ = now;
  if (now - stuck_since_ < kStuckNs) return;
  stuck_said_ = true;
  const int64_t cap = state_.account.cap_pages(), pinned = state_.pinned_pages.load();
  const unsigned writes = state_.frames.being_written();
  log_warning(
      "%u threads have waited for DRAM for %u s: %lld of %lld pages of the budget are taken, %lld "
      "of them by tables and buffers, %lld by pins, and %u wait for their write; %s%s",
      inbox_.parked(), static_cast<unsigned>((now - stuck_since_) / 1'000'000'000),
      static_cast<long long>(cap - state_.account.free_pages()), static_cast<long long>(cap),
      static_cast<long long>(state_.account.fixed_total()), static_cast<long long>(pinned), writes,
      writes > state_.frames.count() / 2 ? "the LUN is slow: look at its disk"
                                         : "give a larger --dram",
      pinned > cap / kPinnedMuch ? ", or pin less" : "");
}

void Handler::dump(int fd) const {
  char line[224];
  size_t n =
      format_to(line, sizeof line,
                "handler %u: %u reads in flight, %u messages in its inbox, %u of them parked, ",
                index_, resolver_.in_flight(), inbox_.count(), inbox_.parked());
  n += follower_.describe(line + n, sizeof line - n);
  n += format_to(line + n, sizeof line - n, "\n");
  (void)sys::write_to_program(fd, line, n);
}

}  // namespace lunar
