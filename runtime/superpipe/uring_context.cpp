// SPDX-License-Identifier: Apache-2.0
// The io_uring context: see uring_context.h.
//
// Waiting: a thread that spins takes its completion 20 us earlier than one that must be woken, so a wait may spin for
// 1.5x the usual read latency (200 us at most). It does not when that cannot pay:
//   many in flight    the device is the limit; to sleep lets completions gather, and costs half the CPU
//   a slow device     the next completion is not near
//   a CPU others want the spinner is preempted when its completion comes (seen as a gap in its clock): sleep for a while
//   as many spinners as CPUs
// May not: allocate after create, take a lock.
#include "superpipe/uring_context.h"

#include <errno.h>

#include <new>

#include "base/arena.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kWatchFlag = uint64_t{1} << 63;
constexpr unsigned kDepthMax = 4096;
constexpr uint64_t kSpinFirstNs = 60'000;         // before the device is known
constexpr uint64_t kSpinMaxNs = 200'000;
constexpr unsigned kSpinInFlightMax = 4;
constexpr uint64_t kPreemptedNs = 300'000;        // a gap no interrupt makes
constexpr unsigned kSpinSkipMin = 8, kSpinSkipMax = 512;
constexpr size_t kWindowMaxBytes = kGiB;          // io_uring's limit for one registered buffer
constexpr unsigned kSampleVectorMax = 16;         // longer reads say little about a page's latency

std::atomic<int> spinners{0};

}  // namespace

int UringContext::create(int fd, uint64_t data_offset, const ContextOptions& options, OwnedContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const size_t head = round_up(sizeof(UringContext), 64);
  const size_t bytes = head + options.depth * (sizeof(Flight) + sizeof(uint16_t));
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) UringContext;
  context->mapping_bytes_ = bytes;
  context->depth_ = options.depth;
  context->data_offset_ = data_offset;
  context->spin_ = options.spin;
  context->cpus_ = sys::cpu_count();
  context->flights_ = reinterpret_cast<Flight*>(memory + head);
  context->free_ = reinterpret_cast<uint16_t*>(memory + head + options.depth * sizeof(Flight));
  for (unsigned i = 0; i < options.depth; ++i) context->free_[i] = static_cast<uint16_t>(options.depth - 1 - i);

  // The completion ring is twice as large: commands and watches together never overflow it.
  unsigned entries = 8;
  while (entries < options.depth) entries *= 2;
  int status = context->ring_.init(entries, options.sqpoll, options.shared);
  if (status == 0) {
    status = context->ring_.register_files(&fd, 1);
    if (status < 0) context->ring_.destroy();
  }
  if (status < 0) {
    unmap_private(memory, bytes);
    return status;
  }
  if (options.buffer && options.buffer_bytes) {
    const iovec window = {options.buffer,
                          options.buffer_bytes < kWindowMaxBytes ? options.buffer_bytes : kWindowMaxBytes};
    if (context->ring_.register_buffers(&window, 1) == 0) {   // where RLIMIT_MEMLOCK says no, pages are pinned per I/O
      context->window_ = static_cast<const char*>(window.iov_base);
      context->window_bytes_ = window.iov_len;
    }
  }
  *out = context;
  return 0;
}

void UringContext::release() {
  drain();
  ring_.destroy();
  unmap_private(this, mapping_bytes_);
}

bool UringContext::in_window(const iovec& part) const {
  const auto offset = reinterpret_cast<uintptr_t>(part.iov_base) - reinterpret_cast<uintptr_t>(window_);
  return window_ && offset < window_bytes_ && part.iov_len <= window_bytes_ - offset;
}

bool UringContext::queue(const Command& command, uint32_t index) {
  const uint64_t at = data_offset_ + command.offset.value;
  switch (command.op) {
    case Op::kRead:
    case Op::kWrite: {
      const bool read = command.op == Op::kRead;
      if (command.iov_count == 1) {
        void* buffer = command.iov->iov_base;
        const auto bytes = static_cast<unsigned>(command.iov->iov_len);
        const int window = in_window(*command.iov) ? 0 : -1;
        return read ? ring_.queue_read(0, true, buffer, bytes, at, window, index)
                    : ring_.queue_write(0, true, buffer, bytes, at, window, index);
      }
      return read ? ring_.queue_readv(0, true, command.iov, command.iov_count, at, index)
                  : ring_.queue_writev(0, true, command.iov, command.iov_count, at, index);
    }
    case Op::kDiscard: return ring_.queue_discard(0, true, at, command.length, index);
    case Op::kFlush: return ring_.queue_fsync(0, true, index);
  }
  return false;
}

// Queues what there is room for; the kernel does not know of it yet.
unsigned UringContext::queue_all(const Command* commands, unsigned n) {
  arm_watches();
  unsigned taken = 0;
  uint64_t now = 0;
  for (; taken < n && in_flight_ < depth_; ++taken) {
    const Command& command = commands[taken];
    const uint32_t index = free_[depth_ - in_flight_ - 1];
    if (!queue(command, index) && (!flush() || !queue(command, index))) break;
    const bool sample = command.op == Op::kRead && command.iov_count <= kSampleVectorMax;
    if (sample && now == 0) now = sys::now_ns();
    flights_[index] = {command.tag, sample ? now : 0};
    ++in_flight_;
  }
  return taken;
}

int UringContext::submit(const Command* commands, unsigned n) {
  const unsigned taken = queue_all(commands, n);
  // What the kernel does not take now (-EAGAIN, -EBUSY) stays queued; reap and wait hand it over again.
  (void)flush();
  return taken || n == 0 ? static_cast<int>(taken) : -EAGAIN;
}

void UringContext::arm_watches() {
  for (unsigned i = 0; watches_.wanted && i < WatchSet::kMax; ++i) {
    WatchSet::Watch& watch = watches_.watches[i];
    if (watch.state != WatchSet::State::kWanted) continue;
    if (!ring_.queue_poll_in(watch.fd, kWatchFlag | i)) return;
    watch.state = WatchSet::State::kArmed;
    --watches_.wanted;
  }
}

// Hands everything queued to the kernel. False when nothing could be taken.
bool UringContext::flush() {
  bool some = false;
  while (ring_.queued()) {
    if (ring_.submit() <= 0) break;
    some = true;
  }
  return some;
}

unsigned UringContext::take(Response* out, unsigned max, bool drive) {
  sys::Cqe done[64];
  unsigned taken = 0;
  uint64_t now = 0;
  while (taken < max) {
    const unsigned room = max - taken < 64 ? max - taken : 64;
    const unsigned n = ring_.reap(done, room, drive && taken == 0);
    for (unsigned i = 0; i < n; ++i) {
      const auto index = static_cast<uint32_t>(done[i].user);
      Response& response = out[taken++];
      response.result = done[i].result;
      if (done[i].user & kWatchFlag) {
        response.tag = watches_.watches[index].tag;
        watches_.fired(index);
        continue;
      }
      const Flight& flight = flights_[index];
      response.tag = flight.tag;
      if (flight.start_ns && done[i].result > 0) {
        if (now == 0) now = sys::now_ns();
        latency_.add(now - flight.start_ns);
      }
      free_[depth_ - in_flight_] = static_cast<uint16_t>(index);
      --in_flight_;
    }
    if (n < room) break;
  }
  return taken;
}

int UringContext::reap(Response* out, unsigned max) {
  if (watches_.wanted) arm_watches();
  if (ring_.queued()) (void)flush();
  return static_cast<int>(take(out, max, true));
}

unsigned UringContext::spin(Response* out, unsigned max, int64_t timeout_ns) {
  if (in_flight_ > kSpinInFlightMax) return 0;
  if (spin_skip_) {
    --spin_skip_;
    return 0;
  }
  const uint64_t usual = latency_.ns();
  if (usual / in_flight_ > kSpinMaxNs) return 0;
  uint64_t limit = usual ? usual + usual / 2 : kSpinFirstNs;
  if (limit > kSpinMaxNs) limit = kSpinMaxNs;
  if (timeout_ns >= 0 && static_cast<uint64_t>(timeout_ns) < limit) limit = static_cast<uint64_t>(timeout_ns);

  unsigned taken = 0;
  if (spinners.fetch_add(1, std::memory_order_relaxed) < cpus_) {
    uint64_t now = sys::now_ns(), before = now;
    const uint64_t end = now + limit;
    bool preempted = false;
    do {
      for (int i = 0; i < 8 && !taken; ++i) {
        taken = take(out, max, true);
        if (!taken) sys::cpu_relax();
      }
      before = now;
      now = sys::now_ns();
      preempted |= now - before > kPreemptedNs;
    } while (!taken && now < end);
    if (preempted) spin_skip_ = spin_penalty_ = spin_penalty_ * 2 < kSpinSkipMax ? spin_penalty_ * 2 : kSpinSkipMax;
    else spin_penalty_ = kSpinSkipMin;
  }
  spinners.fetch_sub(1, std::memory_order_relaxed);
  return taken;
}

int UringContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  if (max == 0) return 0;
  unsigned taken = take(out, max, true);
  if (taken) return static_cast<int>(taken);
  if (in_flight_ == 0 && watches_.used == 0) return 0;
  const uint64_t start = timeout_ns > 0 ? sys::now_ns() : 0;
  arm_watches();
  if (timeout_ns == 0) {
    (void)flush();
    return static_cast<int>(take(out, max, true));
  }
  if (spin_ && in_flight_) {
    (void)flush();
    taken = spin(out, max, timeout_ns);
    if (taken) return static_cast<int>(taken);
  }
  for (;;) {
    int64_t left = timeout_ns;
    if (timeout_ns > 0) {
      const auto passed = static_cast<int64_t>(sys::now_ns() - start);
      left = passed < timeout_ns ? timeout_ns - passed : 0;
    }
    const int status = ring_.submit_and_wait(left);
    taken = take(out, max, true);
    if (taken) return static_cast<int>(taken);
    if (status == -ETIME || left == 0) return 0;
    // -EAGAIN, -EBUSY: the kernel is short of something for a moment. Anything else would come back for ever.
    if (status < 0 && status != -EAGAIN && status != -EBUSY) return status;
    if (status < 0) sys::yield_cpu();
  }
}

int UringContext::exchange(const Command* commands, unsigned n, unsigned* taken, Response* out, unsigned max,
                           unsigned least, int64_t timeout_ns) {
  *taken = queue_all(commands, n);
  if (least > max) least = max;
  if (least <= 1 || timeout_ns == 0) {   // the first one counts: wait() knows when to spin for it
    (void)flush();
    return max ? wait(out, max, timeout_ns) : 0;
  }
  const uint64_t start = timeout_ns > 0 ? sys::now_ns() : 0;
  unsigned got = take(out, max, false);
  while (got < least && (in_flight_ || watches_.used)) {
    int64_t left = timeout_ns;
    if (timeout_ns > 0) {
      const auto passed = static_cast<int64_t>(sys::now_ns() - start);
      left = passed < timeout_ns ? timeout_ns - passed : 0;
    }
    const unsigned coming = in_flight_ ? in_flight_ : 1;
    const int status = ring_.submit_and_wait(left, least - got < coming ? least - got : coming);
    got += take(out + got, max - got, true);
    if (status == -ETIME || left == 0) break;
    if (status < 0 && status != -EAGAIN && status != -EBUSY) return got ? static_cast<int>(got) : status;
    if (status < 0) sys::yield_cpu();
  }
  if (ring_.queued()) (void)flush();
  return static_cast<int>(got);
}

}  // namespace lunar
