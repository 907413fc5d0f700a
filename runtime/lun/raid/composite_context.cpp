// SPDX-License-Identifier: Apache-2.0
// The context over several lower contexts: see composite_context.h. The device is in
// composite_device.cpp.
// Threading: the owner's; await() concurrently. May not: allocate after create, take a lock.
#include "lun/raid/composite_context.h"

#include <errno.h>

#include <algorithm>
#include <new>

#include "base/units.h"
#include "superpipe/device_files.h"
#include "superpipe/wakeups.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr unsigned kDepthMax = 4096;
constexpr uint64_t kWatchFlag = uint64_t{1} << 63;
constexpr uint64_t kShortNs = 50'000;  // the pause if the kernel lacked a resource
constexpr uint64_t kSpinFirstNs = 60'000, kSpinMaxNs = 200'000;
constexpr unsigned kSpinInFlightMax = 4;
constexpr size_t kProbeBytes = 4096;

// Hands out neighbouring parts of one memory; without a memory it only counts.
class Parts {
 public:
  Parts(char* memory, size_t used) : memory_(memory), bytes_(round_up(used, kAlign)) {}
  template <class T>
  T* take(size_t count, size_t align = kAlign) {
    const size_t at = round_up(bytes_, align);
    bytes_ = round_up(at + count * sizeof(T), kAlign);
    return memory_ ? reinterpret_cast<T*>(memory_ + at) : nullptr;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlign = 64;
  char* memory_;
  size_t bytes_;
};

}  // namespace

size_t CompositeTables::lay_out(char* memory, unsigned depth, unsigned members) {
  depth_ = free_parents_ = depth;
  free_children_ = depth * members + 16 + members;
  free_blocks_ = 16 + std::min(depth / 2, 240u);
  Parts parts(memory, sizeof(CompositeContext));
  parents_ = parts.take<CompositeParent>(depth);
  children_ = parts.take<CompositeChild>(free_children_);
  free_parent_ = parts.take<uint32_t>(depth);
  free_child_ = parts.take<uint32_t>(free_children_);
  free_block_ = parts.take<uint16_t>(free_blocks_);
  done_ = parts.take<Response>(depth);
  blocks_ = parts.take<iovec>(free_blocks_ * kCompositeVectorMax);
  probe_page_ = parts.take<char>(kProbeBytes, kProbeBytes);
  if (!memory) return parts.bytes();
  for (unsigned i = 0; i < depth; ++i) free_parent_[i] = depth - 1 - i;
  for (unsigned i = 0; i < free_children_; ++i) free_child_[i] = free_children_ - 1 - i;
  for (unsigned i = 0; i < free_blocks_; ++i)
    free_block_[i] = static_cast<uint16_t>(free_blocks_ - 1 - i);
  return parts.bytes();
}

int CompositeContext::create(CompositeDevice* device, const ContextOptions& options,
                             CompositeContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const size_t bytes = CompositeTables().lay_out(nullptr, options.depth, device->member_count());
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) CompositeContext;
  context->lay_out(memory, options.depth, device->member_count());
  context->mapping_bytes_ = bytes;
  context->device_ = device;
  context->spin_ = options.spin;
  context->probe_part_ = {context->probe_page_, kProbeBytes};
  const int status = context->attach_lowers(options);
  if (status < 0) {
    context->detach_lowers();
    unmap_private(memory, bytes);
    return status;
  }
  *out = context;
  return 0;
}

// Attaches one ring for all members on files, and a context for each other member. A wait on
// several contexts uses poll(), which a ring with deferred task work does not wake, so they are
// then attached as shared.
int CompositeContext::attach_lowers(const ContextOptions& options) {
  ContextOptions each = options;
  // Keeps the first member's locks until the I/O of all members has ended.
  if (device_->lock_count()) each.keep_fd = device_->fd(device_->lock_count() - 1);
  JoinedFiles files;
  Device* first = nullptr;
  unsigned others = 0;
  for (unsigned i = 0; i < device_->member_count(); ++i) {
    Device* member = device_->member(i);
    if (!member) continue;
    if (!member->join(&files)) {
      ++others;
      continue;
    }
    way_[i] = {0, static_cast<uint8_t>(files.count - 1)};
    if (!first) first = member;
  }
  if (others + (first != nullptr) > 1 && !each.shared) each.shared = each.in_turns = true;
  if (first) {
    ContextOptions of_all = each;
    of_all.depth = std::min(options.depth * files.count, kDepthMax);
    Context* ring = nullptr;
    if (const int status = first->attach_joined(files, of_all, &ring); status < 0) return status;
    lower_[lowers_++] = {ring, first, kNone, kNone};
  }
  for (unsigned i = 0; i < device_->member_count(); ++i) {
    Device* member = device_->member(i);
    if (!member || (first && way_[i].lower == 0)) continue;
    Context* context = nullptr;
    if (const int status = member->attach(each, &context); status < 0) return status;
    way_[i] = {static_cast<uint8_t>(lowers_), 0};
    lower_[lowers_++] = {context, member, kNone, kNone};
  }
  return 0;
}

void CompositeContext::detach_lowers() {
  for (unsigned i = 0; i < lowers_; ++i) lower_[i].device->detach(lower_[i].context);
}

void CompositeContext::release() {
  drain();
  detach_lowers();
  unmap_private(this, mapping_bytes_);
}

// ---- children ----

CompositeChild* CompositeContext::add(CompositeParent* parent, unsigned member,
                                      const Command& command, uint64_t bytes) {
  LUNAR_CHECK(free_children_ != 0, "composite context: children");
  const uint32_t index = free_child_[--free_children_];
  CompositeChild& child = children_[index];
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

void CompositeContext::append(CompositeChild* child, void* base, size_t bytes) {
  Command& command = child->command;
  auto* entries = const_cast<iovec*>(command.iov);
  if (command.iov_count == 0) {
    command.iov = entries = child->inline_;
  } else if (command.iov_count == CompositeChild::kInline && child->block == 0) {
    LUNAR_CHECK(free_blocks_ != 0, "composite context: vectors");
    const uint16_t block = free_block_[--free_blocks_];
    child->block = static_cast<uint16_t>(block + 1);
    command.iov = entries = blocks_ + size_t{block} * kCompositeVectorMax;
    for (uint32_t i = 0; i < CompositeChild::kInline; ++i) entries[i] = child->inline_[i];
  }
  entries[command.iov_count++] = {base, bytes};
  child->bytes += bytes;
}

void CompositeContext::resend(CompositeChild* child, unsigned member) {
  child->member = static_cast<uint16_t>(member);
  enqueue(static_cast<uint32_t>(child - children_));
}

void CompositeContext::probe(unsigned member) {
  if ((probing_ >> member & 1) || way_[member].lower == kMissing || free_children_ == 0) return;
  probing_ |= 1u << member;
  const uint32_t index = free_child_[--free_children_];
  CompositeChild& child = children_[index];
  child.command = {};
  child.command.iov = &probe_part_;  // shared by all probes, because its content is never read
  child.command.iov_count = 1;
  child.command.tag = index;
  child.parent = kNone;
  child.member = static_cast<uint16_t>(member);
  child.block = 0;
  enqueue(index);
}

void CompositeContext::enqueue(uint32_t index) {
  CompositeChild& child = children_[index];
  const Way way = way_[child.member];
  // Devices send no command to a missing member.
  LUNAR_CHECK(way.lower != kMissing, "composite context: a missing member");
  child.command.file = way.file;
  child.next = kNone;
  Lower& lower = lower_[way.lower];
  if (lower.first == kNone)
    lower.first = index;
  else
    children_[lower.last].next = index;
  lower.last = index;
}

void CompositeContext::end_child(uint32_t index, int64_t result) {
  CompositeChild& child = children_[index];
  if (child.parent == kNone) {
    probing_ &= ~(1u << child.member);
    free_child_[free_children_++] = index;
    device_->probed(child.member, result);
    return;
  }
  CompositeParent& parent = parents_[child.parent];
  if (device_->child_done(this, &parent, &child, result)) return;  // it was sent again
  if (child.block) free_block_[free_blocks_++] = static_cast<uint16_t>(child.block - 1);
  free_child_[free_children_++] = index;
  if (--parent.left == 0) end_parent(child.parent);
}

void CompositeContext::end_parent(uint32_t index) {
  CompositeParent& parent = parents_[index];
  device_->finish(this, &parent);
  done_[(done_first_ + done_count_++) % depth_] = {parent.command.tag, parent.result};
  free_parent_[free_parents_++] = index;
}

// Copies the commands that wait for a lower context, up to a batch.
unsigned CompositeContext::next_batch(const Lower& lower, Command* batch) const {
  unsigned n = 0;
  for (uint32_t i = lower.first; i != kNone && n < kBatch; i = children_[i].next)
    batch[n++] = children_[i].command;
  return n;
}

void CompositeContext::handed_over(Lower* lower, unsigned n) {
  for (unsigned i = 0; i < n; ++i) lower->first = children_[lower->first].next;
}

// Submits the waiting commands. True: a command ended at once, which may have made new children.
bool CompositeContext::flush_lower(Lower* lower) {
  while (lower->first != kNone) {
    Command batch[kBatch];
    const int taken = lower->context->submit(batch, next_batch(*lower, batch));
    if (taken > 0) {
      handed_over(lower, static_cast<unsigned>(taken));
      continue;
    }
    if (taken == 0 || taken == -EAGAIN || taken == -EBUSY || taken == -EINTR)
      return false;  // full; later
    const uint32_t index = lower->first;
    handed_over(lower, 1);
    end_child(index, taken);
    return true;
  }
  return false;
}

void CompositeContext::flush() {
  bool waiting = false;
  for (bool again = true; again;) {
    again = waiting = false;
    for (unsigned i = 0; i < lowers_; ++i) {
      // A failed command may be sent again to a member that was flushed before.
      again |= flush_lower(&lower_[i]);
      waiting |= lower_[i].first != kNone;
    }
  }
  stalled_.store(waiting, std::memory_order_relaxed);
}

// ---- parents ----

// False: a pool is empty, and nothing was begun.
bool CompositeContext::begin(uint32_t index) {
  CompositeParent& parent = parents_[index];
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

unsigned CompositeContext::begin_all(const Command* commands, unsigned n) {
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
  return taken;
}

int CompositeContext::submit(const Command* commands, unsigned n) {
  const unsigned taken = begin_all(commands, n);
  flush();
  return taken || n == 0 ? static_cast<int>(taken) : -EAGAIN;
}

void CompositeContext::take(const Response* responses, int n) {
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

// Does everything that is possible without waiting.
void CompositeContext::pump() {
  for (unsigned i = 0; i < lowers_; ++i) {
    if (!works(i)) continue;
    Response responses[kBatch];
    int n;
    do {
      n = lower_[i].context->reap(responses, kBatch);
      take(responses, n);
    } while (n == static_cast<int>(kBatch));
  }
  flush();
}

int CompositeContext::give(Response* out, unsigned max) {
  unsigned taken = 0;
  for (; taken < max && watch_fired_; ++taken) {
    const auto watch = static_cast<unsigned>(__builtin_ctz(watch_fired_));
    out[taken] = {watches_.watches[watch].tag, watch_result_[watch]};
    watch_fired_ &= watch_fired_ - 1;
    watches_.fired(watch);
  }
  while (taken < max && done_count_) {
    out[taken++] = done_[done_first_];
    done_first_ = (done_first_ + 1) % depth_;
    --done_count_;
    --in_flight_;
  }
  return static_cast<int>(taken);
}

int CompositeContext::reap(Response* out, unsigned max) {
  pump();
  return give(out, max);
}

int CompositeContext::watch(int fd, uint64_t tag) {
  if (lowers_ == 0) return -ENXIO;
  const uint8_t before = watches_.used;
  const int status = watches_.add(fd, tag);
  if (status < 0 || watches_.used == before) return status;
  unsigned index = 0;
  while (watches_.watches[index].fd != fd ||
         watches_.watches[index].state == WatchSet::State::kFree)
    ++index;
  const int lower_status = lower_[0].context->watch(fd, kWatchFlag | index);
  if (lower_status < 0) watches_.fired(index);
  return lower_status;
}

// ---- waiting ----

// Polls all lower contexts in turn for about the usual latency. True: a command ended.
bool CompositeContext::spin(int64_t timeout_ns) {
  unsigned flying = 0;
  for (unsigned i = 0; i < lowers_; ++i) flying += lower_[i].context->in_flight();
  if (!spin_ || flying == 0 || flying > kSpinInFlightMax) return false;
  const uint64_t usual = usual_latency_ns();
  if (usual > kSpinMaxNs) return false;
  uint64_t limit = usual ? usual + usual / 2 : kSpinFirstNs;
  if (limit > kSpinMaxNs) limit = kSpinMaxNs;
  if (timeout_ns >= 0 && static_cast<uint64_t>(timeout_ns) < limit)
    limit = static_cast<uint64_t>(timeout_ns);
  const uint64_t end = sys::now_ns() + limit;
  do {
    pump();
    if (done_count_ || watch_fired_) return true;
    sys::cpu_relax();
  } while (sys::now_ns() < end);
  return false;
}

// Sleeps until one of several lower contexts has a response.
int CompositeContext::sleep(int64_t timeout_ns) {
  Wakeups any;
  for (unsigned i = 0; i < lowers_; ++i) {
    if (works(i)) lower_[i].context->wakeups(&any);
  }
  if (stalled_.load(std::memory_order_relaxed)) any.look_at(sys::now_ns() + kShortNs);
  const int status = any.sleep(timeout_ns);
  return status == -ETIME ? 0 : status;
}

int CompositeContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  if (max == 0) return 0;
  const sys::TimeLimit limit(timeout_ns);
  bool spun = false;
  for (;;) {
    pump();
    if (done_count_ || watch_fired_) return give(out, max);
    if ((in_flight_ == 0 && watches_.used == 0) || timeout_ns == 0) return 0;
    const int64_t left = limit.left();
    if (left == 0) return 0;
    Response responses[kBatch];
    int got = 0;
    if (lowers_ == 1 && works(0)) {
      got = lower_[0].context->wait(responses, kBatch, left);
    } else {
      if (!spun && spin(left)) continue;
      spun = true;
      got = sleep(left);
    }
    if (got < 0) return got;
    take(responses, got);
  }
}

int CompositeContext::exchange(const Command* commands, unsigned n, unsigned* taken, Response* out,
                               unsigned max, unsigned least, int64_t timeout_ns) {
  if (lowers_ != 1 || least == 0 || max == 0)
    return Context::exchange(commands, n, taken, out, max, least, timeout_ns);
  *taken = begin_all(commands, n);
  if (least > max) least = max;
  Lower& lower = lower_[0];
  const sys::TimeLimit limit(timeout_ns);
  unsigned got = 0;
  for (;;) {
    got += static_cast<unsigned>(give(out + got, max - got));
    if (got >= least || (in_flight_ == 0 && watches_.used == 0)) break;
    const int64_t left = limit.left();
    // Each command has at least one child, so this waits for at least as many child responses as
    // command responses are missing.
    Command batch[kBatch];
    Response responses[kBatch];
    unsigned waiting = next_batch(lower, batch), handed = 0;
    if (waiting == kBatch) {  // submits all commands but those that go with the wait
      flush();
      if (done_count_) continue;
      waiting = 0;
    }
    const int status =
        lower.context->exchange(batch, waiting, &handed, responses, kBatch, least - got, left);
    handed_over(&lower, handed);
    take(responses, std::max(status, 0));
    if (status < 0 && status != -EAGAIN) return got ? static_cast<int>(got) : status;
    if (left == 0 && handed == 0 && status <= 0) break;
  }
  flush();
  return static_cast<int>(got);
}

// A command that ends at its submission wakes no sleeper. So the sleep on a single lower context is
// also limited to kLookAgainNs.
int CompositeContext::await(int64_t timeout_ns) {
  if (lowers_ == 1 && !stalled_.load(std::memory_order_relaxed)) {
    const bool limited = timeout_ns >= 0 && timeout_ns < Wakeups::kLookAgainNs;
    const int status = lower_[0].context->await(limited ? timeout_ns : Wakeups::kLookAgainNs);
    return status == -ETIME && !limited ? 0 : status;
  }
  Wakeups any;
  wakeups(&any);
  return any.sleep(timeout_ns);
}

void CompositeContext::wakeups(Wakeups* out) {
  for (unsigned i = 0; i < lowers_; ++i) lower_[i].context->wakeups(out);
  if (stalled_.load(std::memory_order_relaxed)) out->look_at(sys::now_ns() + kShortNs);
}

uint64_t CompositeContext::usual_latency_ns() const {
  uint64_t out = 0;
  for (unsigned i = 0; i < lowers_; ++i) {
    const uint64_t one = lower_[i].context->usual_latency_ns();
    if (one > out) out = one;
  }
  return out;
}

}  // namespace lunar
