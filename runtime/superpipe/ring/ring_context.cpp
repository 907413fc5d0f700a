// SPDX-License-Identifier: Apache-2.0
// The io_uring contexts' common part: see ring_context.h.
//
// Waiting: a thread that spins takes its completion 20 us earlier than one that must be woken, so a
// wait may spin for 1.5x the usual read latency (200 us at most). It does not spin in these cases:
//   many in flight     the device is the limit; sleeping lets completions gather, and costs half
//                      the CPU
//   a slow device      the next completion is not near
//   a busy CPU         the spinner is preempted when its completion comes (a gap in its clock shows
//                      it), so the next waits sleep
//   as many spinners as CPUs
// Callers that value CPU above the latency of one completion call exchange: one system call then
// brings many. May not: allocate after start, take a lock.
#include "superpipe/ring/ring_context.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>

#include "superpipe/wakeups.h"
#include "sys/arena.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kWatchFlag = uint64_t{1} << 63;
constexpr uint64_t kSpinFirstNs = 60'000;  // before the device is known
constexpr uint64_t kSpinMaxNs = 200'000;
constexpr unsigned kSpinInFlightMax = 4;
constexpr uint64_t kPreemptedNs = 300'000;  // a gap longer than any interrupt
constexpr unsigned kSpinSkipMin = 8, kSpinSkipMax = 512;
// The longest sleep of await() while the kernel has not accepted all commands.
constexpr int64_t kUnsentNs = 100'000;
constexpr size_t kWindowMaxBytes = kGiB;   // io_uring's limit for one registered buffer
constexpr unsigned kSampleVectorMax = 16;  // longer reads say little about a page's latency
constexpr unsigned kRegisteredMax = 64;

std::atomic<int> spinners{0};

// Resets the count of spinners in forked children.
void count_spinners_anew_in_children() {
  static const int status =
      pthread_atfork(nullptr, nullptr, [] { spinners.store(0, std::memory_order_relaxed); });
  (void)status;  // if it failed, a child's threads may sleep instead of spinning
}

// The ring of a killed process lives on until its I/O has ended, and so do its registered files.
// Files with locks and the kernel's claims are registered, so that these are not released before.
int open_ring(sys::Uring* ring, const DeviceFiles* const* files, unsigned count, int keep_fd,
              const sys::UringSetup& setup) {
  int status = ring->init(setup);
  if (status < 0) return status;
  int fds[kRegisteredMax];
  unsigned registered = 0;
  for (unsigned i = 0; i < count; ++i) fds[registered++] = files[i]->file();
  for (unsigned i = 0; i < count; ++i) {
    for (unsigned j = 1; j < files[i]->count(); ++j) fds[registered++] = files[i]->fd(j);
  }
  if (keep_fd >= 0) fds[registered++] = keep_fd;
  status = ring->register_files(fds, registered);
  if (status < 0) ring->destroy();
  return status;
}

}  // namespace

// Probes again only if the limit has changed.
bool window_can_be_registered() {
  constexpr size_t kProbePage = 64 * kKiB;     // a page of any kernel
  static std::atomic<uint64_t> answer_for{0};  // the limit's hash and the answer; 0: not probed
  rlimit limit = {};
  (void)getrlimit(RLIMIT_MEMLOCK, &limit);
  const uint64_t key = (limit.rlim_cur * 0x9e3779b97f4a7c15 | 3) - 1;
  const uint64_t known = answer_for.load(std::memory_order_relaxed);
  if ((known | 1) == (key | 1)) return (known & 1) != 0;
  void* page = map_private(kProbePage, ForkPolicy::kDontFork);
  const bool can = page && sys::uring_probe_window(page, kProbePage) == 0;
  if (page) unmap_private(page, kProbePage);
  answer_for.store(key | (can ? 1 : 0), std::memory_order_relaxed);
  return can;
}

int RingContext::start(char* memory, size_t head, const DeviceFiles* const* files, unsigned count,
                       const ContextOptions& options, bool large) {
  static_assert((kLockFilesMax + NamespaceNodes::kMax) * kFilesMax + 1 <= kRegisteredMax);
  mapping_bytes_ = mapping_bytes(head, options.depth);
  depth_ = options.depth;
  spin_ = options.spin;
  if (spin_) count_spinners_anew_in_children();
  samples_ = !options.shared || options.in_turns;
  cpus_ = sys::cpu_count();
  entries_ = reinterpret_cast<InFlight*>(memory + head);
  free_ = reinterpret_cast<uint16_t*>(memory + head + options.depth * sizeof(InFlight));
  for (unsigned i = 0; i < options.depth; ++i)
    free_[i] = static_cast<uint16_t>(options.depth - 1 - i);

  // The completion ring is twice as large: commands and watches together never overflow it.
  sys::UringSetup setup;
  while (setup.entries < options.depth + (large ? WatchSet::kMax : 0)) setup.entries *= 2;
  setup.shared = options.shared;
  setup.in_turns = options.in_turns;
  setup.large = large;
  const int status = open_ring(&ring_, files, count, options.keep_fd, setup);
  if (status < 0) return status;
  if (options.buffer && options.buffer_bytes) {
    const iovec window = {options.buffer, options.buffer_bytes < kWindowMaxBytes
                                              ? options.buffer_bytes
                                              : kWindowMaxBytes};
    // If RLIMIT_MEMLOCK does not allow it, pages are pinned per I/O.
    if (ring_.register_buffers(&window, 1) == 0) {
      window_ = static_cast<const char*>(window.iov_base);
      window_bytes_ = window.iov_len;
    }
  }
  return 0;
}

void RingContext::release() {
  drain();
  ring_.destroy();
  unmap_private(this, mapping_bytes_);
}

// Queues as many commands as there is room for, without a system call.
unsigned RingContext::queue_all(const Command* commands, unsigned n) {
  arm_watches();
  unsigned taken = 0;
  uint64_t now = 0;
  for (; taken < n && in_flight_ < depth_; ++taken) {
    const Command& command = commands[taken];
    const uint32_t index = free_[depth_ - in_flight_ - 1];
    if (!queue(command, index) && (!flush() || !queue(command, index))) break;
    const bool sample =
        samples_ && command.op == Op::kRead && command.iov_count <= kSampleVectorMax;
    if (sample && now == 0) now = sys::now_ns();
    entries_[index] = {command.tag, sample ? now : 0};
    ++in_flight_;
  }
  return taken;
}

int RingContext::submit(const Command* commands, unsigned n) {
  const unsigned taken = queue_all(commands, n);
  // Commands that the kernel does not accept now (-EAGAIN, -EBUSY) stay queued; reap() and wait()
  // submit them again.
  (void)flush();
  note_unsent();
  return taken || n == 0 ? static_cast<int>(taken) : -EAGAIN;
}

void RingContext::arm_watches() {
  for (unsigned i = 0; watches_.wanted && i < WatchSet::kMax; ++i) {
    WatchSet::Watch& watch = watches_.watches[i];
    if (watch.state != WatchSet::State::kWanted) continue;
    if (!ring_.queue_poll_in(watch.fd, kWatchFlag | i)) return;
    watch.state = WatchSet::State::kArmed;
    --watches_.wanted;
  }
}

// Submits all queued commands to the kernel. False: the kernel accepted none.
bool RingContext::flush() {
  bool some = false;
  while (ring_.queued()) {
    if (ring_.submit() <= 0) break;
    some = true;
  }
  return some;
}

unsigned RingContext::take(Response* out, unsigned max, bool drive) {
  sys::Cqe done[64];
  unsigned taken = 0;
  uint64_t now = 0;
  bool goes_on = false;
  while (taken < max) {
    const unsigned room = std::min(max - taken, 64u);
    const unsigned n = ring_.reap(done, room, drive && taken == 0);
    for (unsigned i = 0; i < n; ++i) {
      const auto index = static_cast<uint32_t>(done[i].user);
      if (done[i].user & kWatchFlag) {
        out[taken++] = {watches_.watches[index].tag, done[i].result};
        watches_.fired(index);
        continue;
      }
      int64_t result;
      if (!finish(index, done[i].result, &result)) {
        goes_on = true;
        continue;
      }
      const InFlight& entry = entries_[index];
      out[taken++] = {entry.tag, result};
      if (entry.start_ns && result > 0) {
        if (now == 0) now = sys::now_ns();
        latency_.add(now - entry.start_ns);
      }
      free_[depth_ - in_flight_] = static_cast<uint16_t>(index);
      --in_flight_;
    }
    if (n < room) break;
  }
  if (goes_on) (void)ring_.submit();
  return taken;
}

int RingContext::reap(Response* out, unsigned max) {
  if (watches_.wanted) arm_watches();
  if (ring_.queued()) (void)flush();
  note_unsent();
  return static_cast<int>(take(out, max, true));
}

// A command that the kernel did not accept has no completion that would wake await(). So await()
// returns early, and its caller submits the command again.
int RingContext::await(int64_t timeout_ns) {
  if (!unsent_.load(std::memory_order_relaxed)) return ring_.await(timeout_ns);
  const int status = ring_.await(timeout_ns < 0 ? kUnsentNs : std::min(timeout_ns, kUnsentNs));
  return status == -ETIME && timeout_ns != 0 ? 0 : status;
}

void RingContext::wakeups(Wakeups* out) {
  out->readable(ring_.descriptor());
  if (unsent_.load(std::memory_order_relaxed)) out->look_at(sys::now_ns() + kUnsentNs);
}

unsigned RingContext::spin(Response* out, unsigned max, int64_t timeout_ns) {
  if (in_flight_ > kSpinInFlightMax) return 0;
  if (spin_skip_) {
    --spin_skip_;
    return 0;
  }
  const uint64_t usual = latency_.ns();
  if (usual / in_flight_ > kSpinMaxNs) return 0;
  uint64_t limit = usual ? usual + usual / 2 : kSpinFirstNs;
  if (limit > kSpinMaxNs) limit = kSpinMaxNs;
  if (timeout_ns >= 0 && static_cast<uint64_t>(timeout_ns) < limit)
    limit = static_cast<uint64_t>(timeout_ns);

  unsigned taken = 0;
  if (spinners.fetch_add(1, std::memory_order_relaxed) < cpus_) {
    uint64_t now = sys::now_ns();
    const uint64_t end = now + limit;
    bool preempted = false;
    do {
      for (int i = 0; i < 8 && !taken; ++i) {
        taken = take(out, max, true);
        if (!taken) sys::cpu_relax();
      }
      const uint64_t before = now;
      now = sys::now_ns();
      preempted |= now - before > kPreemptedNs;
    } while (!taken && now < end);
    if (preempted)
      spin_skip_ = spin_penalty_ = std::min(spin_penalty_ * 2, kSpinSkipMax);
    else
      spin_penalty_ = kSpinSkipMin;
  }
  spinners.fetch_sub(1, std::memory_order_relaxed);
  return taken;
}

int RingContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  if (max == 0) return 0;
  unsigned taken = take(out, max, true);
  if (taken) return static_cast<int>(taken);
  if (in_flight_ == 0 && watches_.used == 0) return 0;
  arm_watches();
  if (timeout_ns == 0) {
    (void)flush();
    return static_cast<int>(take(out, max, true));
  }
  const sys::TimeLimit limit(timeout_ns);
  if (spin_ && in_flight_) {
    (void)flush();
    taken = spin(out, max, timeout_ns);
    if (taken) return static_cast<int>(taken);
  }
  for (;;) {
    const int64_t left = limit.left();
    const int status = ring_.submit_and_wait(left);
    taken = take(out, max, true);
    if (taken) return static_cast<int>(taken);
    if (in_flight_ == 0 && watches_.used == 0) return 0;
    if (status == -ETIME || left == 0) return 0;
    // -EAGAIN, -EBUSY: the kernel lacks a resource for a moment. Any other error would repeat.
    if (status < 0 && status != -EAGAIN && status != -EBUSY) return status;
    if (status < 0) sys::yield_cpu();
  }
}

int RingContext::exchange(const Command* commands, unsigned n, unsigned* taken, Response* out,
                          unsigned max, unsigned least, int64_t timeout_ns) {
  *taken = queue_all(commands, n);
  least = std::min(least, max);
  if (least <= 1 || timeout_ns == 0) {  // wait() decides whether to spin for the first response
    // If no other command is in flight, wait() submits when it goes to sleep.
    const bool alone = !spin_ && *taken && in_flight_ == *taken && max;
    if (!alone) (void)flush();
    return max ? wait(out, max, timeout_ns) : 0;
  }
  const sys::TimeLimit limit(timeout_ns);
  unsigned got = take(out, max, false);
  while (got < least && (in_flight_ || watches_.used)) {
    const int64_t left = limit.left();
    const unsigned coming = in_flight_ ? in_flight_ : 1;
    const int status = ring_.submit_and_wait(left, std::min(least - got, coming));
    got += take(out + got, max - got, true);
    if (status == -ETIME || left == 0) break;
    if (status < 0 && status != -EAGAIN && status != -EBUSY)
      return got ? static_cast<int>(got) : status;
    if (status < 0) sys::yield_cpu();
  }
  if (ring_.queued()) (void)flush();
  return static_cast<int>(got);
}

}  // namespace lunar
