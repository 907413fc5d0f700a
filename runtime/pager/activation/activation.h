// SPDX-License-Identifier: Apache-2.0
// Activation: how a process gets from plain memory to tiered memory.
//
//   plain    regions are ordinary anonymous memory: no userfaultfd, no service thread, huge pages
//            as the kernel gives them. Committed memory is charged to the tree's account, as if all
//            of it were resident
//   active   the pager's threads run, regions are registered, every page has a state
//
// README.md says when a process becomes active, evict/README.md what happens to huge pages.
// Threading: as each function says. Nothing here is for the fault path.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "pager/state/state.h"

namespace lunar {

struct Activation {
  sys::Mutex lock;
  // since when an activation has been starting its threads; 0: none is
  std::atomic<uint64_t> making_threads_ns{0};
  std::atomic<bool> passed{false};   // something was committed meanwhile (CommitLock)
  std::atomic<bool> failed{false};   // an activation has failed, which was logged
  std::atomic<uint64_t> next_ns{0};  // no other attempt before this
  // Of plain memory, under the lock.
  int64_t plain_table_units = 0;  // table_promise.h; charged
  std::atomic<uint64_t> committed{0};
  // Forks between their check and their prepare handler, and the charge that there already is for
  // their children.
  int plain_forks = 0;
  int64_t plain_fork_pages = 0;
};
inline constinit Activation g_activation;  // the process'

// Opens in advance what activation may not get later, when the process has dropped rights, changed
// its root directory or installed a seccomp filter: /proc, pagemap, /dev/userfaultfd (or a
// userfaultfd), and a LUN file if the LUN is a directory. Best effort: the code that needs them
// later reports failures. Called at start, and in a forked child that is not active (`child`), for
// the child.
void standby_open(PagerState& state, bool child);
void keep_own_files();  // those of /proc/self: each process has its own
// Those descriptors that service threads need too.
void standby_descriptors(const PagerState& state, int* out, unsigned* count);

// The activation lock, for a change of what is committed. An activation that starts its threads
// waits for the dynamic linker's lock, and the thread that holds it may be the one that commits
// (dlopen allocates). So the lock is waited for no longer than kMakingThreadsNs: the change is then
// made as that of an active process, and activation finds its result.
class CommitLock {
 public:
  explicit CommitLock(PagerState& state);
  ~CommitLock();
  CommitLock(const CommitLock&) = delete;
  CommitLock& operator=(const CommitLock&) = delete;
  bool passed() const { return !locked_; }
  bool plain() const;  // locked, and the process is not active

 private:
  PagerState& state_;
  bool locked_ = false;
};

// The following functions apply while the process is not active. pre: the lock is held.
// Charges a commit. 0, or -EAGAIN: the process must become active first.
[[nodiscard]] int plain_commit(PagerState& state, Region& region, uint64_t first, uint64_t end);
void plain_uncommit(PagerState& state, Region& region, uint64_t first, uint64_t end);
// The program requests huge pages (MADV_HUGEPAGE, MADV_COLLAPSE) in the region. False: they cannot
// be charged.
[[nodiscard]] bool plain_allow_huge(PagerState& state, Region& region);
// The most that the tree may use before this process becomes active, in pages.
int64_t plain_limit(const PagerState& state);
// Before a fork: charges this process for a child as large as itself, and until the fork's prepare
// handler twice for what it commits. False: that cannot be charged.
bool plain_charge_fork(PagerState& state);
// If the fork did not happen: takes that charge back.
void plain_uncharge_fork(PagerState& state);
// In the prepare handler: makes the child's member, which takes over the charge; or -errno. A fork
// without that check is charged beyond the cap.
[[nodiscard]] int plain_reserve_child(PagerState& state, uint64_t* ticket);

// Before activating: reserves again the parts of regions that raw system calls have unmapped;
// otherwise the kernel would map the pager's own memory there.
void close_holes(PagerState& state);

// While activating: registers the region, and adopts the pages that are present. Returns their
// number, or -errno.
[[nodiscard]] int64_t adopt_present(PagerState& state, Region& region);

// Reports a failed activation: one log line per process, and no other attempt for a while.
void activation_failure(PagerState& state, const ErrorText& why);

uint32_t frame_count_for(int64_t cap);
unsigned window_pages_for(int64_t cap);  // of a handler
// Pages of DRAM that must remain for work when a process has become active, not counting frames,
// windows and tables (kWorkRoom); and before activation, including the least that these take
// (kFixedRoom).
constexpr int64_t kWorkRoom = 416;
constexpr int64_t kFixedRoom = kWorkRoom + 352;

// What a process that becomes active takes for itself, except its tables.
struct OwnNeed {
  uint32_t frames;
  unsigned handlers, window;  // of the first handler of each node; others may have half
  int64_t pages() const;
};
// first: the process is alone in its tree. `room`: the part of the cap that is not fixed. A forked
// child, or a process that is not alone, needs an eighth of what the first one needs.
OwnNeed own_need(const PagerState& state, bool first, int64_t room);

}  // namespace lunar
