// SPDX-License-Identifier: Apache-2.0
// The context over several lower contexts: see fan_out.h. The device's side of it: fan_device.cpp.
// Threading: the owner's; await() beside it. May not: allocate after create, take a lock.
#include "lun/fan_out.h"

#include <errno.h>

#include <new>

#include "base/arena.h"
#include "base/units.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr unsigned kDepthMax = 4096;
constexpr uint64_t kWatchFlag = uint64_t{1} << 63;
constexpr int64_t kTurnNs = 100'000;
constexpr uint64_t kShortNs = 50'000;         // the kernel was short of something: ask again
constexpr uint64_t kSpinFirstNs = 60'000, kSpinMaxNs = 200'000;
constexpr unsigned kSpinInFlightMax = 4;
constexpr unsigned kBatch = 32;
constexpr size_t kProbeBytes = 4096;

}  // namespace

int FanContext::create(FanDevice* device, const ContextOptions& options, FanContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const unsigned members = device->member_count(), depth = options.depth;
  const unsigned children = depth * members + 16 + members, blocks = 16 + (depth / 2 < 240 ? depth / 2 : 240);
  size_t bytes = round_up(sizeof(FanContext), 64);
  const auto place = [&bytes](size_t size) {
    const size_t at = bytes;
    bytes = round_up(bytes + size, 64);
    return at;
  };
  const size_t parents_at = place(depth * sizeof(FanParent)), children_at = place(children * sizeof(FanChild));
  const size_t free_parent_at = place(depth * sizeof(uint32_t)), free_child_at = place(children * sizeof(uint32_t));
  const size_t free_block_at = place(blocks * sizeof(uint16_t));
  const size_t done_at = place(depth * sizeof(Response)), blocks_at = place(blocks * kFanVectorMax * sizeof(iovec));
  bytes = round_up(bytes, kProbeBytes);
  const size_t probe_at = place(kProbeBytes);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) FanContext;
  context->mapping_bytes_ = bytes;
  context->device_ = device;
  context->members_ = members;
  context->depth_ = context->free_parents_ = depth;
  context->free_children_ = children;
  context->free_blocks_ = blocks;
  context->spin_ = options.spin;
  context->parents_ = reinterpret_cast<FanParent*>(memory + parents_at);
  context->children_ = reinterpret_cast<FanChild*>(memory + children_at);
  context->free_parent_ = reinterpret_cast<uint32_t*>(memory + free_parent_at);
  context->free_child_ = reinterpret_cast<uint32_t*>(memory + free_child_at);
  context->free_block_ = reinterpret_cast<uint16_t*>(memory + free_block_at);
  context->done_ = reinterpret_cast<Response*>(memory + done_at);
  context->blocks_ = reinterpret_cast<iovec*>(memory + blocks_at);
  context->probe_page_ = memory + probe_at;
  context->probe_part_ = {context->probe_page_, kProbeBytes};
  for (unsigned i = 0; i < depth; ++i) context->free_parent_[i] = depth - 1 - i;
  for (unsigned i = 0; i < children; ++i) context->free_child_[i] = children - 1 - i;
  for (unsigned i = 0; i < blocks; ++i) context->free_block_[i] = static_cast<uint16_t>(blocks - 1 - i);
  ContextOptions each = options;
  if (device->lock_count()) each.keep_fd = device->fd(device->lock_count() - 1);   // the first member's locks, until all have ended
  int status = 0;
  bool some = false;
  for (unsigned i = 0; i < members && status == 0; ++i) {
    Device* member = device->member(i);
    if (!member) continue;
    status = member->attach(each, &context->lower_[i]);
    if (status < 0) context->lower_[i] = nullptr;
    context->lower_device_[i] = member;
    if (!some) context->watcher_ = i;
    some = true;
  }
  if (status < 0) {
    for (unsigned i = 0; i < members; ++i) {
      if (context->lower_[i]) context->lower_device_[i]->detach(context->lower_[i]);
    }
    unmap_private(memory, bytes);
    return status;
  }
  *out = context;
  return 0;
}

void FanContext::release() {
  drain();
  for (unsigned i = 0; i < members_; ++i) {
    if (lower_[i]) lower_device_[i]->detach(lower_[i]);
  }
  unmap_private(this, mapping_bytes_);
}

// ---- children ----

FanChild* FanContext::add(FanParent* parent, unsigned member, const Command& command, uint64_t bytes) {
  LUNAR_CHECK(free_children_ != 0, "fan-out: children");
  const uint32_t index = free_child_[--free_children_];
  FanChild& child = children_[index];
  child.command = command;
  child.command.tag = index;
  child.bytes = bytes;
  child.parent = static_cast<uint32_t>(parent - parents_);
  child.member = static_cast<uint16_t>(member);
  child.block = 0;
  ++parent->left;
  enqueue(index);
  return &child;
}

void FanContext::append(FanChild* child, void* base, size_t bytes) {
  Command& command = child->command;
  auto* entries = const_cast<iovec*>(command.iov);
  if (command.iov_count == 0) {
    command.iov = entries = child->inline_;
  } else if (command.iov_count == FanChild::kInline && child->block == 0) {
    LUNAR_CHECK(free_blocks_ != 0, "fan-out: vectors");
    const uint16_t block = free_block_[--free_blocks_];
    child->block = static_cast<uint16_t>(block + 1);
    command.iov = entries = blocks_ + size_t{block} * kFanVectorMax;
    for (uint32_t i = 0; i < FanChild::kInline; ++i) entries[i] = child->inline_[i];
  }
  entries[command.iov_count++] = {base, bytes};
  child->bytes += bytes;
}

void FanContext::resend(FanChild* child, unsigned member) {
  child->member = static_cast<uint16_t>(member);
  enqueue(static_cast<uint32_t>(child - children_));
}

void FanContext::probe(unsigned member) {
  if ((probing_ >> member & 1) || !lower_[member] || free_children_ == 0) return;
  probing_ |= 1u << member;
  const uint32_t index = free_child_[--free_children_];
  FanChild& child = children_[index];
  child.command = {};
  child.command.iov = &probe_part_;   // several may write to it at once: nobody looks at what it holds
  child.command.iov_count = 1;
  child.command.tag = index;
  child.parent = kNone;
  child.member = static_cast<uint16_t>(member);
  child.block = 0;
  enqueue(index);
}

void FanContext::enqueue(uint32_t index) {
  Queue& queue = queue_[children_[index].member];
  children_[index].next = kNone;
  if (queue.first == kNone) queue.first = index;
  else children_[queue.last].next = index;
  queue.last = index;
}

void FanContext::end_child(uint32_t index, int64_t result) {
  FanChild& child = children_[index];
  if (child.parent == kNone) {
    probing_ &= ~(1u << child.member);
    free_child_[free_children_++] = index;
    device_->probed(child.member, result);
    return;
  }
  FanParent& parent = parents_[child.parent];
  if (device_->child_done(this, &parent, &child, result)) return;   // sent again
  if (child.block) free_block_[free_blocks_++] = static_cast<uint16_t>(child.block - 1);
  free_child_[free_children_++] = index;
  if (--parent.left == 0) end_parent(child.parent);
}

void FanContext::end_parent(uint32_t index) {
  FanParent& parent = parents_[index];
  device_->finish(this, &parent);
  done_[(done_first_ + done_count_++) % depth_] = {parent.command.tag, parent.result};
  free_parent_[free_parents_++] = index;
}

// Hands a member what waits for it. True when something ended at once, which may have made new children.
bool FanContext::flush_member(unsigned member) {
  Queue& queue = queue_[member];
  Context* lower = lower_[member];
  while (queue.first != kNone) {
    int64_t failure = -ENXIO;
    if (lower) {
      Command batch[kBatch];
      unsigned n = 0;
      for (uint32_t i = queue.first; i != kNone && n < kBatch; i = children_[i].next) batch[n++] = children_[i].command;
      const int taken = lower->submit(batch, n);
      for (int i = 0; i < taken; ++i) queue.first = children_[queue.first].next;
      if (taken > 0) continue;
      if (taken == 0 || taken == -EAGAIN || taken == -EBUSY || taken == -EINTR) return false;   // full; later
      failure = taken;
    }
    const uint32_t index = queue.first;
    queue.first = children_[index].next;
    end_child(index, failure);
    if (!lower) continue;
    return true;
  }
  return false;
}

void FanContext::flush() {
  for (bool again = true; again;) {
    again = false;
    for (unsigned i = 0; i < members_; ++i) {
      if (queue_[i].first == kNone) continue;
      const bool missing = !lower_[i];
      if (flush_member(i) || missing) again = true;   // what failed may have gone to a member that was passed already
    }
  }
  note_busy();
}

void FanContext::note_busy() {
  uint32_t mask = 0;
  for (unsigned i = 0; i < members_; ++i) {
    if (lower_[i] && lower_[i]->in_flight()) mask |= 1u << i;
  }
  if (busy_mask_.load(std::memory_order_relaxed) != mask) busy_mask_.store(mask, std::memory_order_release);
}

// ---- parents ----

// False: a pool is short, nothing was begun.
bool FanContext::begin(uint32_t index) {
  FanParent& parent = parents_[index];
  const int status = device_->start(this, &parent);
  if (status == -EAGAIN) return false;
  if (status < 0) {
    parent.result = status;
    done_[(done_first_ + done_count_++) % depth_] = {parent.command.tag, status};
    free_parent_[free_parents_++] = index;
  } else if (parent.left == 0) {
    end_parent(index);
  }
  return true;
}

int FanContext::submit(const Command* commands, unsigned n) {
  unsigned taken = 0;
  for (; taken < n && in_flight_ < depth_; ++taken) {
    const uint32_t index = free_parent_[--free_parents_];
    parents_[index] = {};
    parents_[index].command = commands[taken];
    if (!begin(index)) {
      free_parent_[free_parents_++] = index;
      break;
    }
    ++in_flight_;
  }
  flush();
  return taken || n == 0 ? static_cast<int>(taken) : -EAGAIN;
}

void FanContext::take(const Response* responses, int n) {
  for (int i = 0; i < n; ++i) {
    if (responses[i].tag & kWatchFlag) {
      const auto watch = static_cast<unsigned>(responses[i].tag & ~kWatchFlag);
      watch_result_[watch] = responses[i].result;
      watch_fired_ |= 1u << watch;
    } else {
      end_child(static_cast<uint32_t>(responses[i].tag), responses[i].result);
    }
  }
}

// Everything that can be done without waiting.
void FanContext::pump() {
  for (unsigned i = 0; i < members_; ++i) {
    if (!lower_[i] || (lower_[i]->in_flight() == 0 && (i != watcher_ || watches_.used == 0))) continue;
    Response responses[kBatch];
    int n;
    do {
      n = lower_[i]->reap(responses, kBatch);
      take(responses, n);
    } while (n == static_cast<int>(kBatch));
  }
  flush();
}

int FanContext::give(Response* out, unsigned max) {
  unsigned taken = 0;
  for (; taken < max && watch_fired_; ++taken) {
    const auto watch = static_cast<unsigned>(__builtin_ctz(watch_fired_));
    out[taken] = {watches_.watches[watch].tag, watch_result_[watch]};
    watch_fired_ &= watch_fired_ - 1;
    watches_.fired(watch);
  }
  for (; taken < max && done_count_; ++taken, --done_count_, --in_flight_) {
    out[taken] = done_[done_first_];
    done_first_ = (done_first_ + 1) % depth_;
  }
  return static_cast<int>(taken);
}

int FanContext::reap(Response* out, unsigned max) {
  pump();
  return give(out, max);
}

int FanContext::watch(int fd, uint64_t tag) {
  Context* lower = lower_[watcher_];
  if (!lower) return -ENXIO;
  const uint8_t before = watches_.used;
  const int status = watches_.add(fd, tag);
  if (status < 0 || watches_.used == before) return status;
  unsigned index = 0;
  while (watches_.watches[index].fd != fd || watches_.watches[index].state == WatchSet::State::kFree) ++index;
  const int lower_status = lower->watch(fd, kWatchFlag | index);
  if (lower_status < 0) watches_.fired(index);
  return lower_status;
}

// ---- waiting ----

// The members to wait on.
unsigned FanContext::busy(unsigned* list) const {
  unsigned n = 0;
  for (unsigned i = 0; i < members_; ++i) {
    if (lower_[i] && (lower_[i]->in_flight() || (i == watcher_ && watches_.used))) list[n++] = i;
  }
  return n;
}

// Asks all in turn for about the usual latency. True when something ended.
bool FanContext::spin(const unsigned* list, unsigned n, int64_t timeout_ns) {
  unsigned flying = 0;
  for (unsigned i = 0; i < n; ++i) flying += lower_[list[i]]->in_flight();
  if (!spin_ || flying == 0 || flying > kSpinInFlightMax) return false;
  const uint64_t usual = usual_latency_ns();
  if (usual > kSpinMaxNs) return false;
  uint64_t limit = usual ? usual + usual / 2 : kSpinFirstNs;
  if (limit > kSpinMaxNs) limit = kSpinMaxNs;
  if (timeout_ns >= 0 && static_cast<uint64_t>(timeout_ns) < limit) limit = static_cast<uint64_t>(timeout_ns);
  const uint64_t end = sys::now_ns() + limit;
  do {
    pump();
    if (done_count_ || watch_fired_) return true;
    sys::cpu_relax();
  } while (sys::now_ns() < end);
  return false;
}

int FanContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  if (max == 0) return 0;
  const uint64_t start = timeout_ns > 0 ? sys::now_ns() : 0;
  bool spun = false;
  for (;;) {
    pump();
    if (done_count_ || watch_fired_) return give(out, max);
    if ((in_flight_ == 0 && watches_.used == 0) || timeout_ns == 0) return 0;
    int64_t left = -1;
    if (timeout_ns > 0) {
      left = timeout_ns - static_cast<int64_t>(sys::now_ns() - start);
      if (left <= 0) return 0;
    }
    unsigned list[kFanMembersMax];
    const unsigned n = busy(list);
    if (n == 0) {   // all wait for a kernel that is short of something
      sys::sleep_ns(left >= 0 && static_cast<uint64_t>(left) < kShortNs ? static_cast<uint64_t>(left) : kShortNs);
      continue;
    }
    if (n > 1 && !spun) {
      spun = true;
      if (spin(list, n, left)) continue;
    }
    int64_t turn = n == 1 ? -1 : kTurnNs;
    for (unsigned i = 0; i < members_; ++i) {
      if (queue_[i].first != kNone && (turn < 0 || turn > kTurnNs)) turn = kTurnNs;
    }
    if (left >= 0 && (turn < 0 || left < turn)) turn = left;
    Response responses[kBatch];
    const int got = lower_[list[turn_++ % n]]->wait(responses, kBatch, turn);
    if (got > 0) take(responses, got);
    else if (got == -EINTR) return -EINTR;
    else if (got < 0) return got;
  }
}

int FanContext::await(int64_t timeout_ns) {
  const uint32_t mask = busy_mask_.load(std::memory_order_acquire);
  const bool short_wait = timeout_ns >= 0 && timeout_ns < kTurnNs;
  const int64_t turn = short_wait ? timeout_ns : kTurnNs;
  if (mask == 0) {   // nothing, or the kernel was short of something
    if (turn == 0) return -ETIME;
    const auto most = static_cast<uint64_t>(turn);
    sys::sleep_ns(most < kShortNs ? most : kShortNs);
    return most <= kShortNs && short_wait ? -ETIME : 0;
  }
  unsigned member = await_turn_.fetch_add(1, std::memory_order_relaxed) % members_;
  while (!(mask >> member & 1)) member = (member + 1) % members_;
  const int status = lower_[member]->await(turn);
  return status == -ETIME && !short_wait ? 0 : status;
}

uint64_t FanContext::usual_latency_ns() const {
  uint64_t out = 0;
  for (unsigned i = 0; i < members_; ++i) {
    const uint64_t one = lower_[i] ? lower_[i]->usual_latency_ns() : 0;
    if (one > out) out = one;
  }
  return out;
}

}  // namespace lunar
