// SPDX-License-Identifier: Apache-2.0
// The context whose commands are calls: see delegate_context.h.
//
// Wake-ups are never lost: a thread that adds to the stack looks for sleepers afterwards; a thread
// about to sleep registers, reads event_, then looks at the stack. All of these are sequentially
// consistent.
// May not: allocate after create, take a lock (but the pool's, for instructions), use a descriptor
// (but those watched).
#include "superpipe/ring/delegate_context.h"

#include <errno.h>

#include <algorithm>
#include <bit>

#include "superpipe/ring/sync_context.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kSpinNs = 20'000;  // a copy that another thread began is usually done by then
constexpr uint64_t kClaimBytes = 256 * kKiB;  // taken by one thread at once, if the list is long
constexpr uint32_t kClaimMax = 8;             // the most commands taken at once
// The time between looks at the stack while descriptors are watched.
constexpr int64_t kWatchPollNs = 100'000;
constexpr unsigned kSampleVectorMax = 16;  // longer reads say little about a page's latency

}  // namespace

size_t DelegateContext::mapping_bytes(size_t head, unsigned depth) {
  return head + depth * (sizeof(Slot) + sizeof(uint16_t)) +
         std::bit_ceil(depth) * sizeof(std::atomic<uint16_t>);
}

void DelegateContext::start(char* memory, size_t head, DelegatePool* pool,
                            const ContextOptions& options) {
  LUNAR_CHECK(habits_.claim_max <= kClaimMax, "delegates: claim");
  pool_ = pool;
  depth_ = options.depth;
  mask_ = std::bit_ceil(options.depth) - 1;
  shared_ = options.shared;
  spin_ = options.spin;
  mapping_bytes_ = mapping_bytes(head, options.depth);
  slots_ = reinterpret_cast<Slot*>(memory + head);
  free_ = reinterpret_cast<uint16_t*>(slots_ + options.depth);
  cells_ = reinterpret_cast<std::atomic<uint16_t>*>(free_ + options.depth);
  for (unsigned i = 0; i < options.depth; ++i)
    free_[i] = static_cast<uint16_t>(options.depth - 1 - i);
}

void DelegateContext::release() {
  // In a forked child, work that the parent's delegates had begun is lost, so the child does not
  // wait for it.
  if (epoch_ == 0 || epoch_ == pool_->epoch()) {
    drain();
    if (epoch_) pool_->leave(this);
  }
  unmap_private(this, mapping_bytes_);
}

void DelegateContext::perform(Slot* slot, bool foreign) {
  const bool sample = slot->command.op == Op::kRead && slot->command.iov_count <= kSampleVectorMax;
  const uint64_t start = sample ? sys::now_ns() : 0;
  slot->result = carry_out(slot->command, foreign);
  slot->took_ns = sample && slot->result > 0 ? sys::now_ns() - start : 0;
}

uint32_t DelegateContext::take_slot(const Command& command) {
  const uint32_t used = in_flight_.load(std::memory_order_relaxed);
  const uint32_t index = free_[depth_ - used - 1];
  slots_[index].command = command;
  in_flight_.store(used + 1, std::memory_order_relaxed);
  return index;
}

int DelegateContext::submit(const Command* commands, unsigned n) {
  const unsigned room = depth_ - in_flight();
  if (n > room) n = room;
  if (n == 0) return room ? 0 : -EAGAIN;
  uint64_t bytes = 0;
  for (unsigned i = 0; i < n; ++i) bytes += command_bytes(commands[i]);
  if (delegates(bytes)) {
    uint64_t tail = tail_.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < n; ++i) {
      cells_[tail & mask_].store(static_cast<uint16_t>(take_slot(commands[i])),
                                 std::memory_order_relaxed);
      ++tail;
    }
    const uint64_t each = bytes / n, most = habits_.claim_max;
    claim_max_.store(each * most <= kClaimBytes ? static_cast<uint32_t>(most)
                     : each >= kClaimBytes      ? 1
                                                : static_cast<uint32_t>(kClaimBytes / each),
                     std::memory_order_relaxed);
    tail_.store(tail, std::memory_order_release);
    epoch_ = pool_->epoch();
    pool_->offer(this);
    if (habits_.helps && sleepers_.load()) wake_sleepers();
    return static_cast<int>(n);
  }
  for (unsigned i = 0; i < n; ++i) {
    const uint32_t index = take_slot(commands[i]);
    perform(&slots_[index], false);
    append_ready(index);
  }
  if (shared_) {
    ready_count_.fetch_add(0);  // orders the stores before the look for sleepers
    wake_sleepers();
  }
  return static_cast<int>(n);
}

// Takes neighbouring commands together. Their buffers usually are neighbours, and two CPUs that
// alternately copy into neighbouring buffers slow each other down (427 us against 327 for 256 x 32
// KiB). Towards the end of the list the shares get small.
bool DelegateContext::run_some(bool foreign) {
  uint64_t head = head_.load(std::memory_order_acquire), take;
  uint16_t mine[kClaimMax];
  do {
    const uint64_t tail = tail_.load(std::memory_order_acquire);
    if (head >= tail) return false;
    const uint64_t share = (tail - head) / 8, most = claim_max_.load(std::memory_order_relaxed);
    take = std::clamp<uint64_t>(share, 1, most);
    for (uint64_t i = 0; i < take; ++i)
      mine[i] = cells_[(head + i) & mask_].load(std::memory_order_relaxed);
  } while (!head_.compare_exchange_weak(head, head + take, std::memory_order_acq_rel,
                                        std::memory_order_acquire));
  for (uint64_t i = 0; i < take; ++i) {
    perform(&slots_[mine[i]], foreign);
    finish(mine[i]);
  }
  return true;
}

void DelegateContext::finish(uint32_t index) {
  uint32_t top = done_top_.load(std::memory_order_relaxed);
  do slots_[index].next = top;
  while (!done_top_.compare_exchange_weak(top, index + 1, std::memory_order_seq_cst,
                                          std::memory_order_relaxed));
  wake_sleepers();
}

void DelegateContext::wake_sleepers() {
  if (sleepers_.load() == 0) return;
  event_.fetch_add(1);
  sys::futex_wake(&event_, INT32_MAX, false);
}

void DelegateContext::append_ready(uint32_t index) {
  slots_[index].next = kNone;
  if (ready_last_ == kNone)
    ready_first_ = index;
  else
    slots_[ready_last_].next = index;
  ready_last_ = index;
  ready_count_.store(ready_count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// Takes the stack of finished slots, and appends them to the ready list, oldest first.
void DelegateContext::collect() {
  if (done_top_.load(std::memory_order_relaxed) == 0) return;
  uint32_t top = done_top_.exchange(0, std::memory_order_acquire), oldest = 0;
  while (top) {
    Slot& slot = slots_[top - 1];
    const uint32_t below = slot.next;
    slot.next = oldest;
    oldest = top;
    top = below;
  }
  while (oldest) {
    const uint32_t index = oldest - 1;
    oldest = slots_[index].next;
    append_ready(index);
  }
}

unsigned DelegateContext::deliver(Response* out, unsigned max) {
  collect();
  unsigned taken = 0;
  uint32_t used = in_flight_.load(std::memory_order_relaxed);
  while (taken < max && ready_first_ != kNone) {
    const uint32_t index = ready_first_;
    const Slot& slot = slots_[index];
    out[taken++] = {slot.command.tag, slot.result};
    if (slot.took_ns) latency_.add(slot.took_ns);
    ready_first_ = slot.next;
    free_[depth_ - used] = static_cast<uint16_t>(index);
    --used;
  }
  if (taken == 0) return 0;
  if (ready_first_ == kNone) ready_last_ = kNone;
  ready_count_.store(ready_count_.load(std::memory_order_relaxed) - taken,
                     std::memory_order_relaxed);
  if (shared_) {
    in_flight_.store(used);
    if (used == 0) wake_sleepers();  // no later completion would wake them
  } else {
    in_flight_.store(used, std::memory_order_relaxed);
  }
  return taken;
}

int DelegateContext::reap(Response* out, unsigned max) {
  unsigned taken = deliver(out, max);
  if (taken < max && watches_.used) {
    const int n = serve_watches(&watches_, out + taken, max - taken, 0);
    if (n > 0) taken += static_cast<unsigned>(n);
  }
  return static_cast<int>(taken);
}

bool DelegateContext::may_reap() const { return done_top_.load() != 0 || ready_count_.load() != 0; }

// Spins. True: a response arrived meanwhile.
bool DelegateContext::spin() const {
  if (!spin_) return false;
  const uint64_t end = sys::now_ns() + kSpinNs;
  do {
    for (int i = 0; i < 16; ++i) {
      if (may_reap()) return true;
      sys::cpu_relax();
    }
  } while (sys::now_ns() < end);
  return false;
}

int DelegateContext::sleep(int64_t timeout_ns) {
  sleepers_.fetch_add(1);
  const uint32_t event = event_.load();
  int status = 0;
  if (!may_reap() && !(habits_.helps && has_work()) && in_flight_.load() != 0)
    status = sys::futex_wait(&event_, event, timeout_ns, false);
  sleepers_.fetch_sub(1);
  return status == -EAGAIN ? 0 : status;
}

int DelegateContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  if (max == 0) return 0;
  uint64_t start = 0;
  bool spun = false;
  for (;;) {
    const int taken = reap(out, max);
    if (taken != 0 || timeout_ns == 0) return taken;
    if (in_flight() == 0 && watches_.used == 0) return 0;
    if (habits_.helps && run_some(false)) continue;
    // All remaining slots were begun by other threads.
    int64_t left = timeout_ns;
    if (timeout_ns > 0) {
      const uint64_t now = sys::now_ns();
      if (start == 0) start = now;
      left = timeout_ns - static_cast<int64_t>(now - start);
      if (left <= 0) return 0;
    }
    if (in_flight() == 0) return serve_watches(&watches_, out, max, left);
    if (!spun && (timeout_ns < 0 || static_cast<uint64_t>(left) > kSpinNs)) {
      spun = true;
      if (spin()) continue;
    }
    if (watches_.used) {
      const int n = serve_watches(&watches_, out, max,
                                  left >= 0 ? std::min(left, kWatchPollNs) : kWatchPollNs);
      if (n != 0) return n;
    } else if (sleep(left) == -EINTR) {
      return -EINTR;
    }
  }
}

int DelegateContext::await(int64_t timeout_ns) {
  if (may_reap() || in_flight_.load() == 0 || (habits_.helps && run_some(false))) return 0;
  if (timeout_ns == 0) return -ETIME;
  if (timeout_ns < 0 || static_cast<uint64_t>(timeout_ns) > kSpinNs) {
    if (spin()) return 0;
  }
  const int status = sleep(timeout_ns);
  return status == -ETIMEDOUT ? -ETIME : status;
}

void DelegateContext::wakeups(Wakeups* out) {
  watches_.wakeups(out);
  if (may_reap() || (habits_.helps && run_some(false)))
    out->look_at(0);
  else if (in_flight_.load())
    out->look_at(sys::now_ns() + habits_.look_ns);  // other threads carry out its commands
}

}  // namespace lunar
