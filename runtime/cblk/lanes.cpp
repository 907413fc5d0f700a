// SPDX-License-Identifier: Apache-2.0
// Lanes: see lanes.h.
// Threading: any. A taken lane belongs to its thread alone, a lost lane to the holder of the lock.
#include "cblk/lanes.h"

#include <errno.h>
#include <string.h>

#include <bit>

#include "cblk/chunk.h"
#include "sys/arena.h"

namespace lunar::cblk {
namespace {

constexpr uint64_t kBrokenNs = 50'000;  // between two polls of a broken ring
// The time between two tries to attach another lane after a refusal.
constexpr uint64_t kNoneNs = 20'000'000;
constexpr uint64_t kSpins = 1;  // the bit of the lane that spins

uint64_t bit_of(unsigned index) { return uint64_t{1} << index; }

}  // namespace

void Lanes::open(Device* device, BouncePool* bounces, Cache* cache, LateWrites* late) {
  late_ = late;
  device_ = device;
  bounces_ = bounces;
  cache_ = cache;
}

void Lanes::close() {
  for (unsigned i = 0; i < count_; ++i) device_->detach(lane_[i].context);
  count_ = 0;
  attached_.store(0, std::memory_order_relaxed);
  none_until_ns_.store(0, std::memory_order_relaxed);
  if (memory_) unmap_private(memory_, kMost * kBlockBytes);
  memory_ = nullptr;
}

// Takes the lowest free lane, whose memory is most likely cached. The lane that spins is for a
// thread that is alone, and for others only with `any`.
int Lanes::take_free(bool any) {
  // Sequentially consistent: if a thread that has counted itself as waiting finds none, the next
  // give() sees it.
  uint64_t free = free_.load(std::memory_order_seq_cst);
  for (;;) {
    const bool alone =
        static_cast<unsigned>(std::popcount(free)) == attached_.load(std::memory_order_relaxed);
    const uint64_t fit = any || alone ? free : free & ~kSpins;
    if (!fit) return -1;
    const int index = std::countr_zero(fit);
    if (free_.compare_exchange_weak(free, free & ~bit_of(static_cast<unsigned>(index)),
                                    std::memory_order_seq_cst))
      return index;
  }
}

// Attaches another lane. After a refusal, while there are other lanes to wait for, only one thread
// tries again every kNoneNs, because each try costs system calls under the lock.
int Lanes::attach_one() {
  const uint32_t attached = attached_.load(std::memory_order_relaxed);
  if (attached == kMost) return -EAGAIN;
  uint64_t none_until = none_until_ns_.load(std::memory_order_relaxed);
  if (attached && none_until) {
    const uint64_t now = sys::now_ns();
    if (now < none_until || !none_until_ns_.compare_exchange_strong(none_until, now + kNoneNs))
      return -EAGAIN;
  }
  sys::Locked guard(lock_);
  if (count_ == kMost) return -EAGAIN;
  if (!memory_) memory_ = static_cast<char*>(map_private(kMost * kBlockBytes, ForkPolicy::kWipe));
  if (!memory_) return -ENOMEM;
  lane_[count_].own = memory_ + count_ * kBlockBytes;
  ContextOptions options;
  options.buffer = lane_[count_].own;
  options.buffer_bytes = kBlockBytes;
  options.depth = 1;
  options.spin = bit_of(count_) == kSpins;
  options.shared = options.in_turns = options.delegate = true;
  const int status = device_->attach(options, &lane_[count_].context);
  if (status < 0) {  // no descriptor or no memory
    if (count_) none_until_ns_.store(sys::now_ns() + kNoneNs, std::memory_order_relaxed);
    return count_ ? -EAGAIN : status == -EAGAIN ? -ENOMEM : status;
  }
  none_until_ns_.store(0, std::memory_order_relaxed);
  attached_.store(count_ + 1, std::memory_order_relaxed);
  return static_cast<int>(count_++);
}

// Waits for a lane. Since all lanes may hang in the device, it also tries to attach another one
// every kNoneNs.
int Lanes::await_one(uint64_t deadline_ns) {
  int index = -1;
  while (index < 0) {
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t word = word_.load(std::memory_order_seq_cst);
    const bool some_late = sweep() != 0;  // the release of a late one causes no wake-up
    index = take_free(true);
    if (index < 0) index = attach_one();
    const uint64_t now = sys::now_ns();
    uint64_t left = now < deadline_ns ? deadline_ns - now : 0;
    if (left > kNoneNs && attached_.load(std::memory_order_relaxed) < kMost) left = kNoneNs;
    if (some_late && left > kLostRetryNs) left = kLostRetryNs;
    if (index < 0 && left) (void)sys::futex_wait(&word_, word, static_cast<int64_t>(left), false);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    if (index < 0 && !left) return -ETIMEDOUT;
  }
  return index;
}

void Lanes::give(unsigned index) {
  free_.fetch_or(bit_of(index), std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) == 0) return;
  word_.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake(&word_, 1, false);
}

void Lanes::park(unsigned index, Bounce* bounce) {
  sys::Locked guard(lock_);
  Lane& lane = lane_[index];
  lane.bounce = *bounce;
  *bounce = {};
  if (lane.transfer.op != Op::kRead)
    late_->add(&lane.late, lane.transfer.block, lane.transfer.blocks);
  lost_ |= bit_of(index);
  lost_count_.fetch_add(1, std::memory_order_relaxed);
}

int Lanes::begin(const Transfer& transfer, Bounce* bounce, bool may_wait, bool submit,
                 Underway* out) {
  out->left_ns = transfer.left_ns;
  int taken_lane = take_free(false);
  if (taken_lane < 0) {
    taken_lane = attach_one();
    if (taken_lane == -EAGAIN && may_wait) taken_lane = await_one(transfer.deadline_ns);
    if (taken_lane == -EAGAIN) {
      taken_lane = take_free(true);
      if (taken_lane < 0) return -EAGAIN;
    }
    if (taken_lane < 0) return taken_lane;
    out->left_ns = 0;  // part of the time has passed
  }
  out->lane = static_cast<unsigned>(taken_lane);
  Lane& lane = lane_[out->lane];
  lane.transfer = transfer;
  lane.part = {transfer.buffer ? lane.own : bounce->memory, transfer.blocks * kBlockBytes};
  if (transfer.buffer && transfer.op == Op::kWrite) memcpy(lane.own, transfer.buffer, kBlockBytes);
  out->submitted = false;
  if (submit) {
    const ::lunar::Command command = command_of(lane);
    out->submitted = lane.context->submit(&command, 1) == 1;
    out->left_ns = 0;
  }
  return 0;
}

::lunar::Command Lanes::command_of(const Lane& lane) {
  const Transfer& of = lane.transfer;
  return command_for(of.op, of.block, of.parts ? of.parts : &lane.part,
                     of.parts ? of.part_count : 1, lane.part.iov_len);
}

int64_t Lanes::end(Underway* underway, Bounce* bounce, bool* lost) {
  const unsigned index = underway->lane;
  Lane& lane = lane_[index];
  const uint64_t deadline_ns = lane.transfer.deadline_ns;
  const ::lunar::Command command = command_of(lane);
  auto left = static_cast<int64_t>(underway->left_ns);
  if (left == 0) {
    const uint64_t now = sys::now_ns();
    left = now < deadline_ns ? static_cast<int64_t>(deadline_ns - now) : 0;
  }
  *lost = false;
  unsigned taken = underway->submitted ? 1 : 0;
  Response response;
  int got = 0;
  for (;;) {
    if (!taken)
      got = lane.context->exchange(&command, 1, &taken, &response, 1, 1, left);
    else
      got = lane.context->wait(&response, 1, left);
    if (got == 1) break;
    const uint64_t now = sys::now_ns();
    // The command was refused, so it never started.
    if (!taken && got < 0 && got != -EINTR && got != -EAGAIN && got != -EBUSY) {
      give(index);
      return got;
    }
    if (left == 0 || now >= deadline_ns) {
      *lost = taken != 0;  // if not taken, the kernel lacked a resource, and nothing was started
      if (*lost)
        park(index, bounce);
      else
        give(index);
      return -ETIMEDOUT;
    }
    left = static_cast<int64_t>(deadline_ns - now);
    if (got < 0 && got != -EINTR) sys::sleep_ns(kBrokenNs);
  }
  // The kernel had no thread for the command (RLIMIT_NPROC), so this thread carries it out.
  if (response.result == -ECANCELED) response.result = device_->transfer(command);
  const Transfer& transfer = lane.transfer;
  if (transfer.buffer && transfer.op == Op::kRead && response.result > 0) {
    memcpy(transfer.buffer, lane.own, static_cast<size_t>(response.result));
    if (transfer.stamps && response.result == static_cast<int64_t>(kBlockBytes))
      cache_->fill(transfer.block, 1, lane.own, transfer.stamps);
  }
  give(index);
  return response.result == -ETIMEDOUT ? -EIO : response.result;  // an ETIMEDOUT of the device
}

unsigned Lanes::sweep() {
  if (!some_lost()) return 0;
  sys::Locked guard(lock_);
  for (unsigned index = 0; index < count_; ++index) {
    Lane& lane = lane_[index];
    Response response;
    if (!(lost_ & bit_of(index)) || lane.context->reap(&response, 1) != 1) continue;
    late_->remove(&lane.late);
    if (lane.transfer.op != Op::kRead && cache_->active())
      cache_->end_write(lane.transfer.block, lane.transfer.blocks);
    bounces_->give(&lane.bounce);
    lost_ &= ~bit_of(index);
    lost_count_.fetch_sub(1, std::memory_order_relaxed);
    give(index);
  }
  return lost_count_.load(std::memory_order_relaxed);
}

void Lanes::forget_in_child() {
  lock_.reset_in_child();
  close();  // forgets the lanes, whose commands are the parent's
  free_.store(0, std::memory_order_relaxed);
  waiting_.store(0, std::memory_order_relaxed);
  lost_count_.store(0, std::memory_order_relaxed);
  lost_ = 0;
  for (Lane& lane : lane_) {
    lane.bounce = {};
    lane.late = {};
  }
}

}  // namespace lunar::cblk
