// SPDX-License-Identifier: Apache-2.0
// Activation: the change of a process from plain memory to tiered memory.
//
//   plain    regions are ordinary anonymous memory: no userfaultfd, no service thread, huge pages
//            as the kernel gives them. Committed memory is charged to the tree's account, as if all
//            of it were resident
//   active   the pager's threads run, regions are registered, every page has a state
//
// README.md says when a process becomes active, evict/README.md what happens to huge pages.
// Threading: as each function says. None is for the fault path.
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
  // The following describe plain memory, and change under the lock.
  int64_t plain_table_units = 0;       // promise of its tables, which is charged (table_promise.h)
  std::atomic<uint64_t> committed{0};  // bytes for which LUN space is promised
  // forks between their check and their prepare handler, and the charge for their children so far
  int plain_forks = 0;
  int64_t plain_fork_pages = 0;
};
inline constinit Activation g_activation;  // the process'

// Opens files in advance that activation may not get later, when the process has dropped rights,
// changed its root directory or installed a seccomp filter: /proc, pagemap, /dev/userfaultfd (or a
// userfaultfd), and a LUN file if the LUN option is a directory. Best effort: the code that needs a
// file later reports the failure. Called at the start, and in a forked child that is not active
// (`child`).
void standby_open(PagerState& state, bool child);
void keep_own_files();  // opens the files of /proc/self, which are a process' own
// Adds the descriptors of these that service threads need as well.
void standby_descriptors(const PagerState& state, int* out, unsigned* count);

// Calls plain() in a process that is not active, whose activation cannot begin meanwhile; otherwise
// active(). Returns the result.
template <class Plain, class Active>
auto plain_or_active(const PagerState& state, Plain plain, Active active) {
  if (!state.is_active()) {
    const sys::Locked<sys::Mutex> lock(g_activation.lock);
    if (!state.is_active()) return plain();
  }
  return active();
}

// The activation lock, for a commit or its reverse. An activation that starts its threads waits for
// the dynamic linker's lock, and the thread that holds that lock may be the one that commits
// (dlopen allocates). So a commit waits no longer than kMakingThreadsNs: then it *passes*, and is
// made as in an active process. Activation finds the result.
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

// The following functions apply while the process is not active. pre: the activation lock is held.
// Charges a commit. 0, or -EAGAIN: the process must become active first.
[[nodiscard]] int plain_commit(PagerState& state, Region& region, uint64_t first, uint64_t end);
void plain_uncommit(PagerState& state, Region& region, uint64_t first, uint64_t end);
// The program requests huge pages (MADV_HUGEPAGE, MADV_COLLAPSE) in the region. False: they cannot
// be charged.
[[nodiscard]] bool plain_allow_huge(PagerState& state, Region& region);
// The most that the tree may use before this process becomes active, in pages.
int64_t plain_limit(const PagerState& state);
// Before a fork: charges this process for a child as large as itself. Until the fork's prepare
// handler, commits are charged twice. False: there is no room for the charge.
bool plain_charge_fork(PagerState& state);
// Takes that charge back if the fork did not happen.
void plain_uncharge_fork(PagerState& state);
// In the prepare handler: makes the child's member, which takes over the charge. Index or -errno. A
// fork without plain_charge_fork is charged beyond the cap.
[[nodiscard]] int plain_reserve_child(PagerState& state, uint64_t* ticket);

// Before activation: reserves the parts of regions again that raw calls have unmapped;
// otherwise the kernel could map the pager's own memory there.
void close_holes(PagerState& state);

// During activation: registers the region, and makes the words of present pages kResident. Returns
// their number, or -errno.
[[nodiscard]] int64_t adopt_present(PagerState& state, Region& region);

// Reports a failed activation: one log line per process, and no other attempt for a while.
void activation_failure(PagerState& state, const ErrorText& why);

uint32_t frame_count_for(int64_t cap);
unsigned window_pages_for(int64_t cap);  // of a handler
// Pages of the cap that must not be fixed: kWorkRoom when frames, windows and tables of the new
// process are counted, kFixedRoom before, with the least that these take.
constexpr int64_t kWorkRoom = 416;
constexpr int64_t kFixedRoom = kWorkRoom + 352;

// The DRAM that a process takes for itself when it becomes active, except its tables.
struct OwnNeed {
  uint32_t frames;
  unsigned handlers, window;  // of the first handler of each node; others may have half
  int64_t pages() const;
};
// first: the process is the first active one of its tree. room: the part of the cap that is not
// fixed. Any other process, and a forked child, gets an eighth of what the first one gets.
OwnNeed own_need(const PagerState& state, bool first, int64_t room);
bool is_first_active(const PagerState& state);

}  // namespace lunar
