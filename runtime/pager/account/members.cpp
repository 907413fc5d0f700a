// SPDX-License-Identifier: Apache-2.0
#include "pager/account/members.h"

#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "pager/account/account_find.h"
#include "sys/mem.h"

namespace lunar {
namespace {

// Whether no living thread holds the mutex. (The futex word has the owner's id; the kernel clears
// it when the owner ends.)
bool no_owner(const pthread_mutex_t& mutex) {
  return (reinterpret_cast<const std::atomic<uint32_t>*>(&mutex.__data.__lock)
              ->load(std::memory_order_acquire) &
          0x3fffffffu) == 0;
}

#ifdef __SANITIZE_THREAD__  // GCC 12's sanitizer does not know pthread_mutex_clocklock
constexpr clockid_t kLockClock = CLOCK_REALTIME;
int lock_until(pthread_mutex_t* mutex, const timespec& until) {
  return pthread_mutex_timedlock(mutex, &until);
}
#else
constexpr clockid_t kLockClock = CLOCK_MONOTONIC;
int lock_until(pthread_mutex_t* mutex, const timespec& until) {
  return pthread_mutex_clocklock(mutex, kLockClock, &until);
}
#endif

constexpr uint64_t kAdoptWithinNs = 30'000'000'000;
// Counted from the end of the thread that held a member's mutex. kEndingNs: how long a member with
// a lock counts as ending. kFreedNs: when the memory of a member without a lock counts as free.
constexpr uint64_t kEndingNs = 2'000'000'000, kFreedNs = 50'000'000;
// how long a member that is short of memory waits for ending ones
constexpr uint64_t kSettleNs = 100'000'000;
constexpr long kSoonNs = 20'000'000;  // only a stopped member holds the lock so long

}  // namespace

void make_robust_mutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

int Members::descriptor() const {
  // the program may have taken its number (account_make_way)
  for (const int fd : {fd_, account_number()})
    if (sys::is_file(fd, file_)) return fd;
  return -1;
}

// Unknown counts as locked. Another member may still have the descriptor and decide.
bool Members::is_locked(unsigned index) const {
  const int fd = descriptor();
  return fd < 0 || sys::range_locked(fd, index, 1) != 0;
}

// Makes the lock of a member that this process has reserved. It lasts as long as new_lock_ is
// mapped.
void Members::make_lock(unsigned index) {
  const int fd = descriptor(), own = fd < 0 ? fd : sys::open_again(fd);
  if (own < 0) return;
  void* page = nullptr;
  const bool made = sys::lock_range(own, sys::RangeLock::kExclusive, index, 1) == 0 &&
                    sys::map(nullptr, sys::page_bytes(), PROT_NONE, MAP_SHARED, own, 0, &page) == 0;
  sys::close_file(own);
  if (!made) return;
  new_lock_ = page;
  // Another thread may have closed `own` meanwhile, and opened a file of its own under that number.
  if (sys::range_locked(fd, index, 1) == 1) shared_->members[index].has_lock.store(1);
}

void Members::lock() { locked(pthread_mutex_lock(&shared_->lock)); }

bool Members::lock_soon() {
  timespec until{};
  clock_gettime(kLockClock, &until);
  until.tv_nsec += kSoonNs;
  if (until.tv_nsec >= 1'000'000'000) {
    until.tv_nsec -= 1'000'000'000;
    ++until.tv_sec;
  }
  const int rc = lock_until(&shared_->lock, until);
  if (rc != 0 && rc != EOWNERDEAD) return false;
  locked(rc);
  return true;
}

void Members::locked(int rc) {
  if (rc == EOWNERDEAD) pthread_mutex_consistent(&shared_->lock);
  const uint32_t reaping = shared_->reaping.load(std::memory_order_acquire),
                 dead = (reaping >> 2) - 1;
  if (reaping == 0) return;
  if (dead < kMembersMax)
    reap(dead);  // the reaper was killed
  else
    shared_->reaping.store(0);
}

void Members::unlock() { pthread_mutex_unlock(&shared_->lock); }

int Members::reserve(uint32_t weight, unsigned parent_plus_one, uint32_t fork_epoch,
                     uint64_t* ticket) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    lock();  // a sweep must not see a member that still has the state of its previous process
    for (unsigned i = 0; i < kMembersMax; ++i) {
      AccountMember& m = shared_->members[i];
      if (m.state.load() != 0) continue;
      make_robust_mutex(&m.alive);
      make_robust_mutex(&m.starter);
      const uint64_t now = sys::now_ns(), before = m.created_ns.load();
      *ticket = now > before ? now : before + 1;
      m.has_lock.store(0);
      m.created_ns.store(*ticket);
      m.pages.reset();
      for (auto* held : {&m.fixed, &m.tables, &m.promised_tables, &m.lun_bytes}) held->store(0);
      m.ownerless_ns.store(0);
      m.writing_elsewhere.store(0);
      m.batch.store(0);
      m.weight.store(weight);
      m.parent.store(parent_plus_one);
      m.fork_epoch.store(fork_epoch);
      m.inherits_from.store(parent_plus_one);
      m.state.store(kMemberReserved, std::memory_order_release);
      uint32_t high = shared_->member_high.load();
      if (high < i + 1) shared_->member_high.store(i + 1);
      unlock();
      return static_cast<int>(i);
    }
    unlock();
    sweep_settled();
  }
  return -EAGAIN;
}

int Members::join() {
  uint64_t ticket;
  int index = reserve(kWeight, 0, 0, &ticket);
  if (index < 0) return index;
  member_ = static_cast<unsigned>(index);
  make_lock(member_);
  keep_lock();
  pthread_mutex_lock(&me().starter);
  become_plain();
  return 0;
}

int Members::reserve_child(uint32_t fork_epoch, uint64_t* ticket) {
  const int index = reserve(kForkedWeight, member_ + 1, fork_epoch, ticket);
  if (index >= 0) make_lock(static_cast<unsigned>(index));
  return index;
}

void Members::fork_returned() {
  if (new_lock_ != nullptr) (void)sys::unmap(new_lock_, sys::page_bytes());
  new_lock_ = nullptr;
}

// The lock is this process' own, until it ends.
void Members::keep_lock() {
  if (new_lock_ != nullptr) (void)sys::advise(new_lock_, sys::page_bytes(), MADV_DONTFORK);
  new_lock_ = nullptr;
}

// pre: the account's lock is held.
static bool waits_for_child(const AccountMember& m, uint64_t ticket) {
  return m.state.load() == kMemberReserved && m.created_ns.load() == ticket;
}

int Members::adopt(unsigned index, uint64_t ticket) {
  keep_lock();
  lock();
  AccountMember& m = shared_->members[index];
  const bool ours = waits_for_child(m, ticket);
  if (ours) {
    member_ = index;
    pthread_mutex_lock(&m.starter);
    m.state.store(kMemberAdopted, std::memory_order_release);
  }
  unlock();
  return ours ? 0 : -ESRCH;
}

void Members::become_plain() { me().state.store(kMemberPlain, std::memory_order_release); }

void Members::lock_alive() {
  pthread_mutex_lock(&me().alive);
  me().state.store(kMemberActive, std::memory_order_release);
}

// Lowers it by `pages`, but not below 0. Returns by how many.
int64_t Members::lower_shared(int64_t pages) {
  int64_t now = shared_->shared_pages.load(std::memory_order_seq_cst), by;
  do {
    by = std::min(now, pages);
    if (by <= 0) return 0;
  } while (!shared_->shared_pages.compare_exchange_weak(now, now - by, std::memory_order_seq_cst));
  return by;
}

void Members::release_child(unsigned index, uint64_t ticket) {
  lock();
  AccountMember& m = shared_->members[index];
  if (waits_for_child(m, ticket) && pthread_mutex_trylock(&m.alive) == 0) reap(index);
  unlock();
}

// pre: the account's lock is held. kDead: the member's memory is gone. (The kernel releases mutexes
// before it frees memory, in a process that ends and in one that execs.)
Members::Life Members::life_of(AccountMember& m) const {
  const uint32_t state = m.state.load(std::memory_order_acquire);
  const bool has_mutex = state != kMemberReserved, has_lock = m.has_lock.load() != 0;
  const uint64_t now = sys::now_ns();
  const bool owned = has_mutex && !no_owner(state == kMemberActive ? m.alive : m.starter);
  // An active member whose mutex has an owner is alive: service threads end with the process.
  // `starter` does not show that: in a child that a raw call made, libc does not know the
  // first thread's id, and the kernel does not know that the thread holds the mutex.
  if (has_lock && !(owned && state == kMemberActive) && !is_locked(index_of(m))) return Life::kDead;
  if (owned) {
    m.ownerless_ns.store(0);
    return Life::kAlive;
  }
  if (!has_mutex)
    return !has_lock && now - m.created_ns.load() > kAdoptWithinNs ? Life::kDead : Life::kAlive;
  if (m.ownerless_ns.load() == 0) m.ownerless_ns.store(now);
  const uint64_t since = now - m.ownerless_ns.load();
  if (!has_lock) return since < kFreedNs ? Life::kEnding : Life::kDead;
  // after that it is alive: only its first thread has ended
  return since < kEndingNs ? Life::kEnding : Life::kAlive;
}

// The children of a dead member read the slots that it could read. Its parent, if there is one,
// keeps these for them from now on. The epoch is stored before the parent, for whom alone it
// counts.
void Members::hand_up_children(unsigned index) {
  const AccountMember& dead = shared_->members[index];
  for (AccountMember& one : all()) {
    if (&one == &dead || !one.is_used() || one.parent.load() != index + 1) continue;
    one.fork_epoch.store(dead.fork_epoch.load());
    one.parent.store(dead.parent.load());
  }
}

// pre: the account's lock is held. The reaper may be killed at any line; the next holder of the
// lock does all of it again.
void Members::reap(unsigned index) {
  AccountMember& m = shared_->members[index];
  uint32_t reaping = shared_->reaping.load();
  if (reaping == 0) {
    reaping = (index + 1) << 2 | shared_->used_pages.mark() << 1 | shared_->lun_used_bytes.mark();
    shared_->reaping.store(reaping, std::memory_order_release);
  } else {
    (void)pthread_mutex_trylock(&m.alive);  // the killed reaper held it
  }
  if (MemberPages::in_progress(m.pages.raw()))
    shared_->unsettled.store(1, std::memory_order_release);
  (void)lower_shared(m.pages.value() - m.fixed.load());  // its relatives may share its pages
  shared_->used_pages.subtract_once(m.pages.value(), reaping >> 1 & 1);
  shared_->lun_used_bytes.subtract_once(m.lun_bytes.load(), reaping & 1);
  // Its descendants still read what it had written. One of them, the successor, takes its pieces
  // over for all, and is unlinked last.
  uint32_t successor = 0;
  for (AccountMember& one : all()) {
    if (&one == &m || !one.is_used() || one.inherits_from.load() != index + 1) continue;
    if (successor == 0)
      successor = index_of(one) + 1;
    else
      one.inherits_from.store(successor);
  }
  for (auto& owner : shared_->carve_owner) {
    uint16_t dead = static_cast<uint16_t>(index + 1);
    owner.compare_exchange_strong(dead, static_cast<uint16_t>(successor));
  }
  if (successor) shared_->members[successor - 1].inherits_from.store(m.inherits_from.load());
  hand_up_children(index);
  pthread_mutex_consistent(&m.alive);
  pthread_mutex_unlock(&m.alive);
  m.pages.reset();
  for (auto* held : {&m.fixed, &m.tables, &m.promised_tables, &m.lun_bytes}) held->store(0);
  m.parent.store(0);
  m.inherits_from.store(0);
  m.state.store(0, std::memory_order_release);
  shared_->reaping.store(0, std::memory_order_release);
}

// pre: the account's lock is held. If members were killed in the middle of a change, the sums
// exceed what living members hold. Adds the members up while no change is in progress; if that does
// not succeed, the next sweep does it, which comes soon while DRAM is short.
void Members::settle_sums() {
  if (shared_->unsettled.load(std::memory_order_acquire) == 0) return;
  struct Total {
    int64_t pages = 0, lun_bytes = 0;
    uint64_t changes = 0;
    bool in_progress = false;
  };
  const auto add_up = [this] {
    Total total;
    for (const AccountMember& m : all()) {
      if (!m.is_used()) continue;
      const uint64_t raw = m.pages.raw();
      total.changes += MemberPages::changes(raw);
      total.in_progress |= MemberPages::in_progress(raw);
      total.pages += MemberPages::value(raw);
      total.lun_bytes += m.lun_bytes.load(std::memory_order_seq_cst);
    }
    return total;
  };
  for (unsigned attempt = 0; attempt < 64; ++attempt) {
    const Total before = add_up();
    const int64_t pages = shared_->used_pages.value() - before.pages,
                  bytes = shared_->lun_used_bytes.value() - before.lun_bytes;
    const Total after = add_up();
    if (before.in_progress || after.in_progress || before.changes != after.changes ||
        before.pages != after.pages)
      continue;
    if (pages > 0) shared_->used_pages.add(-pages);
    if (bytes > 0) shared_->lun_used_bytes.add(-bytes);
    shared_->unsettled.store(0, std::memory_order_release);
    return;
  }
}

bool Members::sweep(uint32_t* oldest_child) {
  if (!lock_soon()) return false;
  *oldest_child = 0;
  bool settled = true;
  for (AccountMember& m : all()) {
    if (&m == &me() || !m.is_used()) continue;
    const Life life = life_of(m);
    if (life == Life::kEnding) settled = false;
    // EBUSY: its housekeeping thread has just locked it
    if (life == Life::kDead && pthread_mutex_trylock(&m.alive) != EBUSY) reap(index_of(m));
  }
  settle_sums();
  // After all were reaped, because that hands children up.
  for (const AccountMember& m : all()) {
    if (!is_child(m)) continue;
    const uint32_t epoch = m.fork_epoch.load();
    if (*oldest_child == 0 || epoch < *oldest_child) *oldest_child = epoch;
  }
  unlock();
  return settled;
}

void Members::sweep_settled() {
  uint32_t ignored = 0;
  const uint64_t end = sys::now_ns() + kSettleNs;
  while (!sweep(&ignored) && sys::now_ns() < end) sys::sleep_ns(1'000'000);
}

bool Members::child_lives(uint32_t fork_epoch) const {
  for (const AccountMember& m : all())
    if (is_child(m) && m.fork_epoch.load() == fork_epoch) return true;
  return false;
}

// A robust mutex is a futex: it has the owner's thread id, and a bit that the kernel sets when the
// owner ends. The kernel wakes a waiting thread only if the word says that there is one, which the
// slow path of pthread_mutex_lock would write.
unsigned Members::child_words(sys::FutexWait* out, unsigned max, bool* unsure) {
  // linux/futex.h
  constexpr uint32_t kWaiters = 0x80000000u, kOwnerDied = 0x40000000u, kOwner = 0x3fffffffu;
  unsigned n = 0;
  *unsure = false;
  for (AccountMember& m : all()) {
    if (!is_child(m)) continue;
    auto* word = reinterpret_cast<std::atomic<uint32_t>*>(&m.alive.__data.__lock);
    uint32_t seen = word->load(std::memory_order_acquire);
    while ((seen & kOwner) != 0 && (seen & (kWaiters | kOwnerDied)) == 0 &&
           !word->compare_exchange_weak(seen, seen | kWaiters)) {}
    if (m.state.load(std::memory_order_acquire) != kMemberActive || n == max ||
        (seen & kOwnerDied) != 0 || (seen & kOwner) == 0)
      *unsure = true;
    else
      out[n++] = {word, seen | kWaiters};
  }
  return n;
}

}  // namespace lunar
