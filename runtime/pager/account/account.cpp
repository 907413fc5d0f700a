// SPDX-License-Identifier: Apache-2.0
// The shared account of a process tree. See account.h for the rules.
#include "pager/account/account.h"

#include <errno.h>
#include <sys/mman.h>
#include <time.h>

#include <initializer_list>
#include <iterator>

#include "base/format.h"
#include "pager/account/account_find.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar {
namespace {

// Whether no living thread holds it. (The owner's id in the futex word; the kernel clears it when the owner ends.)
bool no_owner(const pthread_mutex_t& mutex) {
  return (reinterpret_cast<const std::atomic<uint32_t>*>(&mutex.__data.__lock)->load(std::memory_order_acquire) &
          0x3fffffffu) == 0;
}

void make_robust_mutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

#ifdef __SANITIZE_THREAD__  // GCC 12's does not see that pthread_mutex_clocklock locks
constexpr clockid_t kLockClock = CLOCK_REALTIME;
int lock_until(pthread_mutex_t* mutex, const timespec& until) { return pthread_mutex_timedlock(mutex, &until); }
#else
constexpr clockid_t kLockClock = CLOCK_MONOTONIC;
int lock_until(pthread_mutex_t* mutex, const timespec& until) {
  return pthread_mutex_clocklock(mutex, kLockClock, &until);
}
#endif

constexpr uint64_t kAdoptWithinNs = 30000000000;
// From the end of the thread that holds a member's mutex. With a lock: for how long its process is expected to end.
// Without: after which its memory is taken to be free.
constexpr uint64_t kEndingNs = 2000000000, kFreedNs = 50000000;
constexpr uint64_t kSettleNs = 100000000;           // how long a short member waits for one that is ending
constexpr uint64_t kBatchMostNs = 5000000000;       // a batch of a member that runs takes far less
constexpr long kSoonNs = 20000000;                  // the lock is held for far less, except by a member that is stopped
constexpr uint64_t kMagic = 0x34544e43434e4c55ull;  // "ULNCCNT4"

}  // namespace

int Account::open(int fd, uint64_t cap_pages, uint64_t lun_cap_bytes) {
  void* memory = nullptr;
  if (fd < 0) {
    fd = sys::make_memory_file("lunar-account", sizeof(AccountShared));
    if (fd >= 0) sys::note_own_descriptor(fd = sys::move_high(fd), true);
  }
  fd_ = fd;
  file_ = sys::file_identity(fd);
  int rc = fd >= 0 ? sys::map(nullptr, sizeof(AccountShared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &memory)
                   : sys::map(nullptr, sizeof(AccountShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0,
                              &memory);
  if (rc < 0) return rc;
  shared_ = static_cast<AccountShared*>(memory);
  uint32_t fresh = 0;
  if (shared_->ready.compare_exchange_strong(fresh, 1)) {
    shared_->magic = kMagic;
    shared_->bytes = sizeof(AccountShared);
    make_robust_mutex(&shared_->lock);
    shared_->cap_pages.store(static_cast<int64_t>(cap_pages));
    shared_->lun_cap_bytes.store(static_cast<int64_t>(lun_cap_bytes));
    shared_->ready.store(2, std::memory_order_release);
  } else {
    for (int i = 0; shared_->ready.load(std::memory_order_acquire) != 2; ++i) {
      if (i > 10000) return -EIO;  // the process that made it died while setting it up
      sys::sleep_ns(100000);
    }
    if (shared_->magic != kMagic || shared_->bytes != sizeof(AccountShared)) return -EPROTO;
  }
  return 0;
}

int Account::descriptor() const {
  // the program may have wanted its number
  for (const int fd : {fd_, account_number()})
    if (sys::is_file(fd, file_)) return fd;
  return -1;
}

// Where nothing tells, it counts as locked: the next to look may have the descriptor.
bool Account::is_locked(unsigned index) const {
  const int fd = descriptor();
  return fd < 0 || sys::range_locked(fd, index, 1) != 0;
}

// The lock of a member that we have reserved, for as long as new_lock_ is mapped.
void Account::make_lock(unsigned index) {
  const int fd = descriptor(), own = fd < 0 ? fd : sys::open_again(fd);
  if (own < 0) return;
  void* page = nullptr;
  const bool made = sys::lock_range(own, sys::RangeLock::kExclusive, index, 1) == 0 &&
                    sys::map(nullptr, sys::page_bytes(), PROT_NONE, MAP_SHARED, own, 0, &page) == 0;
  sys::close_file(own);
  if (!made) return;
  new_lock_ = page;
  // Another thread may have closed `own` in the middle, and opened a file of its own.
  if (sys::range_locked(fd, index, 1) == 1) shared_->members[index].has_lock.store(1);
}

void Account::lock() { locked(pthread_mutex_lock(&shared_->lock)); }

bool Account::lock_soon() {
  timespec until{};
  clock_gettime(kLockClock, &until);
  until.tv_nsec += kSoonNs;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    ++until.tv_sec;
  }
  const int rc = lock_until(&shared_->lock, until);
  if (rc != 0 && rc != EOWNERDEAD) return false;
  locked(rc);
  return true;
}

void Account::locked(int rc) {
  if (rc == EOWNERDEAD) pthread_mutex_consistent(&shared_->lock);
  const uint32_t reaping = shared_->reaping.load(std::memory_order_acquire), dead = (reaping >> 2) - 1;
  if (reaping == 0) return;
  if (dead < kMembersMax)
    reap(dead);  // it was killed meanwhile
  else
    shared_->reaping.store(0);
}

void Account::unlock() { pthread_mutex_unlock(&shared_->lock); }

int Account::reserve(uint32_t weight, unsigned parent_plus_one, uint32_t fork_epoch, uint64_t* ticket) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    lock();  // a sweep may not see a member that still shows its previous process
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

int Account::join() {
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

int Account::reserve_child(uint32_t fork_epoch, uint64_t* ticket) {
  const int index = reserve(kForkedWeight, member_ + 1, fork_epoch, ticket);
  if (index >= 0) make_lock(static_cast<unsigned>(index));
  return index;
}

void Account::fork_returned() {
  if (new_lock_ != nullptr) (void)sys::unmap(new_lock_, sys::page_bytes());
  new_lock_ = nullptr;
}

// It is that of this process, until the end.
void Account::keep_lock() {
  if (new_lock_ != nullptr) (void)sys::advise(new_lock_, sys::page_bytes(), MADV_DONTFORK);
  new_lock_ = nullptr;
}

// pre: the account's lock is held.
static bool waits_for_child(const AccountMember& m, uint64_t ticket) {
  return m.state.load() == kMemberReserved && m.created_ns.load() == ticket;
}

int Account::adopt(unsigned index, uint64_t ticket) {
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

void Account::become_plain() { me().state.store(kMemberPlain, std::memory_order_release); }

void Account::lock_alive() {
  pthread_mutex_lock(&me().alive);
  me().state.store(kMemberActive, std::memory_order_release);
}

bool Account::take_plain(int64_t pages, int64_t limit) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    me().pages.begin(0);
    shared_->used_pages.add(pages);
    if (there() + unused_promises() <= limit) {
      me().pages.end(pages);
      me().fixed.fetch_add(pages, std::memory_order_relaxed);
      return true;
    }
    shared_->used_pages.add(-pages);
    me().pages.end(0);
    if (attempt == 0) sweep_settled();
  }
  return false;
}

int Account::reserve_plain_child(int64_t pages, int64_t prepaid, uint64_t* ticket) {
  const int index = reserve(kWeight, 0, 0, ticket);
  if (index < 0) {
    give_plain(prepaid);
    return index;
  }
  make_lock(static_cast<unsigned>(index));
  if (prepaid > pages) give_plain(prepaid - pages);
  const int64_t moved = prepaid < pages ? prepaid : pages;
  hand_to_child(static_cast<unsigned>(index), moved, 0);
  if (pages == moved) return index;
  AccountMember& child = shared_->members[index];
  charge(child, pages - moved);
  child.fixed.fetch_add(pages - moved, std::memory_order_acq_rel);
  return index;
}

// What is present, at most. A thread that takes or unshares counts first and then looks: of two at once, one sees the
// other. Both counts are of one moment, or a fork's pages, or what was given back, would seem absent.
int64_t Account::there() const {
  for (;;) {
    int64_t shared = shared_->shared_pages.load(std::memory_order_seq_cst);
    int64_t used = shared_->used_pages.value();
    if (shared_->shared_pages.load(std::memory_order_seq_cst) == shared) return used - shared;
    sys::cpu_relax();
  }
}

// By `pages`, but not below 0. Returns by how many.
int64_t Account::lower_shared(int64_t pages) {
  int64_t now = shared_->shared_pages.load(std::memory_order_seq_cst), by;
  do {
    by = now < pages ? now : pages;
    if (by <= 0) return 0;
  } while (!shared_->shared_pages.compare_exchange_weak(now, now - by, std::memory_order_seq_cst));
  return by;
}

bool Account::take(int64_t pages, int64_t keep_free) {
  me().pages.begin(0);
  shared_->used_pages.add(pages);
  const bool fit = fits(keep_free);
  if (!fit) shared_->used_pages.add(-pages);
  me().pages.end(fit ? pages : 0);
  return fit;
}

void Account::take_always(int64_t pages) {
  me().pages.begin(0);
  shared_->used_pages.add(pages);
  me().pages.end(pages);
}

// Charges another member.
void Account::charge(AccountMember& member, int64_t pages) {
  me().pages.begin(0);
  shared_->used_pages.add(pages);
  member.pages.add(pages);
  me().pages.end(0);
}

bool Account::take_for_child(unsigned index, int64_t pages, int64_t keep_free, bool can_share) {
  // Charged to the child from now on: by the time it could do that itself it may have outlived us.
  charge(shared_->members[index], pages);
  if (fits(keep_free)) return true;
  if (can_share) shared_->shared_pages.fetch_add(pages, std::memory_order_seq_cst);
  return false;
}

bool Account::unshare(int64_t pages, int64_t keep_free) {
  int64_t by = lower_shared(pages);
  if (fits(keep_free)) return true;
  shared_->shared_pages.fetch_add(by, std::memory_order_seq_cst);
  return false;
}

void Account::unshare_always(int64_t pages) { (void)lower_shared(pages); }

void Account::take_fixed(int64_t pages) {
  const int64_t had = pages < reserved_ ? pages : reserved_;
  reserved_ -= had;
  pages -= had;
  take_always(pages);
  me().fixed.fetch_add(pages, std::memory_order_relaxed);
}

bool Account::take_fixed_within(int64_t pages, int64_t keep_free) {
  if (!take(pages, keep_free)) return false;
  me().fixed.fetch_add(pages, std::memory_order_relaxed);
  return true;
}

bool Account::promise_tables(int64_t pages, int64_t room) {
  me().promised_tables.fetch_add(pages, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // of two at once, one sees the other
  if (room == INT64_MIN || cap_pages() - fixed_total() >= room) return true;
  me().promised_tables.fetch_sub(pages, std::memory_order_seq_cst);
  return false;
}

bool Account::take_tables(int64_t pages, int64_t keep_free) {
  if (!take_fixed_within(pages, keep_free)) return false;
  me().tables.fetch_add(pages, std::memory_order_relaxed);
  return true;
}

void Account::take_tables_always(int64_t pages) {
  take_fixed(pages);
  me().tables.fetch_add(pages, std::memory_order_relaxed);
}

void Account::give_tables(int64_t pages) {
  me().tables.fetch_sub(pages, std::memory_order_relaxed);
  give_fixed(pages);
}

// Each asks with its own part counted: of two at once, one sees the other. A refused caller looks again, as both may
// have been refused.
bool Account::reserve_fixed(int64_t pages, int64_t room) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    take_always(pages);
    me().fixed.fetch_add(pages, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (cap_pages() - fixed_total() >= room) return true;
    give_fixed(pages);
    if (attempt == 0)
      sweep_settled();
    else
      sys::sleep_ns(static_cast<uint64_t>(attempt * 100000 + static_cast<int>(member_ % 8) * 20000));
  }
  return false;
}

void Account::end_reserved() {
  const int64_t left = reserved_;
  reserved_ = 0;
  if (left != 0) give_fixed(left);
}

void Account::hand_to_child(unsigned index, int64_t fixed_pages, int64_t lun_bytes, int64_t promised_tables) {
  AccountMember& child = shared_->members[index];
  child.promised_tables.fetch_add(promised_tables, std::memory_order_acq_rel);
  me().promised_tables.fetch_sub(promised_tables, std::memory_order_acq_rel);
  // Ours first: killed in between, the sums are too high for a while, not too low.
  me().pages.begin(-fixed_pages);
  me().fixed.fetch_sub(fixed_pages, std::memory_order_acq_rel);
  me().lun_bytes.fetch_sub(lun_bytes, std::memory_order_acq_rel);
  child.pages.add(fixed_pages);
  child.fixed.fetch_add(fixed_pages, std::memory_order_acq_rel);
  child.lun_bytes.fetch_add(lun_bytes, std::memory_order_acq_rel);
  me().pages.end(0);
}

void Account::release_child(unsigned index, uint64_t ticket) {
  lock();
  AccountMember& m = shared_->members[index];
  if (waits_for_child(m, ticket) && pthread_mutex_trylock(&m.alive) == 0) reap(index);
  unlock();
}

void Account::give_fixed(int64_t pages) {
  me().fixed.fetch_sub(pages, std::memory_order_relaxed);
  give(pages);
}

void Account::give(int64_t pages) {
  if (pages == 0) return;
  // Our own part first: killed in between, the sum is too high for a while, not too low.
  me().pages.begin(-pages);
  shared_->used_pages.add(-pages);
  me().pages.end(0);
  if (shared_->room_wanted.load(std::memory_order_seq_cst) != 0 && shared_->room_wanted.exchange(0) != 0)
    raise_pressure();
}

void Account::give_maybe_shared(int64_t pages) {
  (void)lower_shared(pages);
  give(pages);
}

int64_t Account::fixed_total() const {
  const uint32_t high = members_used();
  int64_t total = 0;
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (m.state.load(std::memory_order_relaxed) != 0) total += m.fixed.load(std::memory_order_relaxed);
  }
  return total + unused_promises();
}

// What tables may come to take, and do not take yet.
int64_t Account::unused_promises() const {
  const uint32_t high = members_used();
  int64_t total = 0;
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (m.state.load(std::memory_order_relaxed) == 0) continue;
    const int64_t unused = m.promised_tables.load(std::memory_order_relaxed) - m.tables.load(std::memory_order_relaxed);
    if (unused > 0) total += unused;
  }
  return total;
}

bool Account::others_active() const {
  const uint32_t high = members_used();
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (i != member_ && m.state.load(std::memory_order_relaxed) != 0 && m.fixed.load(std::memory_order_relaxed) > 0)
      return true;
  }
  return false;
}

bool Account::above_share() const {
  const uint32_t high = members_used();
  int64_t total = 0, weights = 0;
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (m.state.load(std::memory_order_relaxed) == 0) continue;
    int64_t pages = m.pages.value() - m.fixed.load(std::memory_order_relaxed);
    if (pages <= 0) continue;
    total += pages;
    weights += m.weight.load(std::memory_order_relaxed);
  }
  if (weights == 0) return true;
  // own / weight >= total / weights
  int64_t own = own_pages() - me().fixed.load(std::memory_order_relaxed);
  return own > 0 && own * weights >= total * static_cast<int64_t>(me().weight.load(std::memory_order_relaxed));
}

void Account::raise_pressure() {
  shared_->pressure.fetch_add(1, std::memory_order_acq_rel);
  if (shared_->sleepers.load(std::memory_order_acquire) != 0) sys::futex_wake(&shared_->pressure, INT32_MAX, true);
}

void Account::wait_pressure(uint32_t seen, int64_t timeout_ns) {
  shared_->sleepers.fetch_add(1, std::memory_order_acq_rel);
  (void)sys::futex_wait(&shared_->pressure, seen, timeout_ns, true);
  shared_->sleepers.fetch_sub(1, std::memory_order_acq_rel);
}

namespace {

// False: the batch in progress goes on at `until`. A member killed inside a batch has no pages left.
bool batch_ends(const AccountMember& m, uint64_t until) {
  const uint32_t seen = m.batch.load(std::memory_order_acquire);
  while ((seen & 1) != 0 && m.batch.load(std::memory_order_acquire) == seen && m.state.load() == kMemberActive) {
    if (sys::now_ns() >= until) return false;
    sys::sleep_ns(20000);
  }
  return true;
}

}  // namespace

// Nothing in a batch waits for a thread of the program, so the caller may be a signal handler on any of them.
void Account::wait_for_own_batch() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  (void)batch_ends(me(), UINT64_MAX);
}

bool Account::write_elsewhere_begin() {
  me().writing_elsewhere.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // with someone_writes_elsewhere: one of the two sees the other
  const uint32_t high = members_used();
  const uint64_t until = sys::now_ns() + kBatchMostNs;
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (batch_ends(m, until)) continue;
    sweep_settled();  // it may have been killed
    if (batch_ends(m, 0)) continue;
    write_elsewhere_end();
    return false;
  }
  return true;
}

bool Account::someone_writes_elsewhere() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t high = members_used();
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (m.writing_elsewhere.load(std::memory_order_acquire) != 0 &&
        m.state.load(std::memory_order_acquire) != kMemberFree)
      return true;
  }
  return false;
}

int Account::lun_take(int64_t bytes) {
  me().pages.begin(0);
  int64_t before = shared_->lun_used_bytes.add(bytes);
  const bool fit = before + bytes <= shared_->lun_cap_bytes.load(std::memory_order_relaxed);
  if (fit)
    me().lun_bytes.fetch_add(bytes, std::memory_order_relaxed);
  else
    shared_->lun_used_bytes.add(-bytes);
  me().pages.end(0);
  return fit ? 0 : -ENOMEM;
}

void Account::lun_give(int64_t bytes) {
  me().pages.begin(0);
  me().lun_bytes.fetch_sub(bytes, std::memory_order_release);
  shared_->lun_used_bytes.add(-bytes);
  me().pages.end(0);
}

// pre: the account's lock is held. Dead: its memory is gone. (The kernel releases mutexes before it frees memory, in a
// process that ends and in one that execs another program.)
Account::Life Account::life_of(unsigned index) {
  AccountMember& m = shared_->members[index];
  const uint32_t state = m.state.load(std::memory_order_acquire);
  const bool has_mutex = state != kMemberReserved, has_lock = m.has_lock.load() != 0;
  const uint64_t now = sys::now_ns();
  const bool owned = has_mutex && !no_owner(state == kMemberActive ? m.alive : m.starter);
  // Not of an active one that has an owner: service threads end with the process. But libc does not know the id of the
  // first thread of a child that a system call made, nor the kernel that it holds the mutex.
  if (has_lock && !(owned && state == kMemberActive) && !is_locked(index)) return Life::kDead;
  if (owned) {
    m.ownerless_ns.store(0);
    return Life::kAlive;
  }
  if (!has_mutex) return !has_lock && now - m.created_ns.load() > kAdoptWithinNs ? Life::kDead : Life::kAlive;
  if (m.ownerless_ns.load() == 0) m.ownerless_ns.store(now);
  const uint64_t since = now - m.ownerless_ns.load();
  if (!has_lock) return since < kFreedNs ? Life::kEnding : Life::kDead;
  return since < kEndingNs ? Life::kEnding : Life::kAlive;  // alive: only its first thread has ended
}

// The children of a dead member read what it could read: its parent, if there is one, keeps that for them now. The
// epoch first: it counts for the new parent only.
void Account::hand_up_children(unsigned index) {
  const AccountMember& dead = shared_->members[index];
  const uint32_t high = members_used();
  for (unsigned i = 0; i < high; ++i) {
    AccountMember& one = shared_->members[i];
    if (i == index || one.state.load(std::memory_order_acquire) == 0 || one.parent.load() != index + 1) continue;
    one.fork_epoch.store(dead.fork_epoch.load());
    one.parent.store(dead.parent.load());
  }
}

// pre: the account's lock is held. The reaper may be killed at any line; the next holder of the lock does all of it
// again.
void Account::reap(unsigned index) {
  AccountMember& m = shared_->members[index];
  uint32_t reaping = shared_->reaping.load();
  if (reaping == 0) {
    reaping = (index + 1) << 2 | shared_->used_pages.mark() << 1 | shared_->lun_used_bytes.mark();
    shared_->reaping.store(reaping, std::memory_order_release);
  } else {
    (void)pthread_mutex_trylock(&m.alive);  // the killed reaper held it
  }
  if (MemberPages::in_hand(m.pages.raw())) shared_->unsettled.store(1, std::memory_order_release);
  (void)lower_shared(m.pages.value() - m.fixed.load());  // its relatives may share what it had
  shared_->used_pages.subtract_once(m.pages.value(), reaping >> 1 & 1);
  shared_->lun_used_bytes.subtract_once(m.lun_bytes.load(), reaping & 1);
  // Its descendants still read what it had written: one of them, the successor, takes its pieces over for all. It is
  // unlinked last.
  uint32_t successor = 0;
  const uint32_t high = members_used();
  for (unsigned i = 0; i < high; ++i) {
    AccountMember& one = shared_->members[i];
    if (i == index || one.state.load(std::memory_order_acquire) == 0 || one.inherits_from.load() != index + 1) continue;
    if (successor == 0)
      successor = i + 1;
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

// pre: the account's lock is held. Members were killed in the middle of a change: the sums exceed what the living hold.
// Adds the members up while no change is in hand and none begins; else the next sweep does, which comes soon while DRAM
// is short.
void Account::settle_sums() {
  if (shared_->unsettled.load(std::memory_order_acquire) == 0) return;
  struct Total {
    int64_t pages = 0, lun_bytes = 0;
    uint64_t changes = 0;
    bool in_hand = false;
  };
  const auto add_up = [this] {
    Total total;
    const uint32_t high = members_used();
    for (unsigned i = 0; i < high; ++i) {
      const AccountMember& m = shared_->members[i];
      if (m.state.load(std::memory_order_acquire) == kMemberFree) continue;
      const uint64_t raw = m.pages.raw();
      total.changes += MemberPages::changes(raw);
      total.in_hand |= MemberPages::in_hand(raw);
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
    if (before.in_hand || after.in_hand || before.changes != after.changes || before.pages != after.pages) continue;
    if (pages > 0) shared_->used_pages.add(-pages);
    if (bytes > 0) shared_->lun_used_bytes.add(-bytes);
    shared_->unsettled.store(0, std::memory_order_release);
    return;
  }
}

bool Account::sweep(uint32_t* oldest_child) {
  if (!lock_soon()) return false;
  *oldest_child = 0;
  bool settled = true;
  const uint32_t high = members_used();
  for (unsigned i = 0; i < high; ++i) {
    AccountMember& m = shared_->members[i];
    if (i == member_ || m.state.load(std::memory_order_acquire) == kMemberFree) continue;
    const Life life = life_of(i);
    if (life == Life::kEnding) settled = false;
    // Not if its housekeeping thread has just come to hold it.
    else if (life == Life::kDead && pthread_mutex_trylock(&m.alive) != EBUSY)
      reap(i);
  }
  settle_sums();
  // When all are reaped: they hand children up.
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (m.state.load(std::memory_order_acquire) == 0 || m.parent.load() != member_ + 1) continue;
    uint32_t epoch = m.fork_epoch.load();
    if (*oldest_child == 0 || epoch < *oldest_child) *oldest_child = epoch;
  }
  unlock();
  return settled;
}

void Account::sweep_settled() {
  uint32_t ignored = 0;
  const uint64_t end = sys::now_ns() + kSettleNs;
  while (!sweep(&ignored) && sys::now_ns() < end) sys::sleep_ns(1000000);
}

bool Account::child_lives(uint32_t fork_epoch) const {
  const uint32_t high = members_used();
  for (unsigned i = 0; i < high; ++i) {
    const AccountMember& m = shared_->members[i];
    if (m.state.load(std::memory_order_acquire) != 0 && m.parent.load() == member_ + 1 &&
        m.fork_epoch.load() == fork_epoch)
      return true;
  }
  return false;
}

// A robust mutex is a futex: the owner's thread id, and what the kernel sets when it ends. The kernel wakes us only
// when the word says that a thread waits, as the slow path of pthread_mutex_lock would write.
unsigned Account::child_words(sys::FutexWait* out, unsigned max, bool* unsure) {
  constexpr uint32_t kWaiters = 0x80000000u, kOwnerDied = 0x40000000u, kOwner = 0x3fffffffu;  // linux/futex.h
  unsigned n = 0;
  *unsure = false;
  const uint32_t high = members_used();
  for (unsigned i = 0; i < high; ++i) {
    AccountMember& m = shared_->members[i];
    const uint32_t now = m.state.load(std::memory_order_acquire);
    if (now == 0 || i == member_ || m.parent.load() != member_ + 1) continue;
    auto* word = reinterpret_cast<std::atomic<uint32_t>*>(&m.alive.__data.__lock);
    uint32_t seen = word->load(std::memory_order_acquire);
    while ((seen & kOwner) != 0 && (seen & (kWaiters | kOwnerDied)) == 0 &&
           !word->compare_exchange_weak(seen, seen | kWaiters)) {}
    if (now != kMemberActive || n == max || (seen & kOwnerDied) != 0 || (seen & kOwner) == 0)
      *unsure = true;
    else
      out[n++] = {word, seen | kWaiters};
  }
  return n;
}

int Account::carve(unsigned pieces) {
  lock();
  int found = -ENOSPC;
  for (unsigned first = 0, run = 0, i = 0; i < kCarvePieces; ++i) {
    run = shared_->carve_owner[i].load() == 0 ? run + 1 : 0;
    if (run == 1) first = i;
    if (run == pieces) {
      for (unsigned k = first; k <= i; ++k) shared_->carve_owner[k].store(static_cast<uint16_t>(member_ + 1));
      found = static_cast<int>(first);
      break;
    }
  }
  unlock();
  return found;
}

void Account::uncarve(int first, unsigned pieces) {
  lock();
  for (unsigned i = 0; i < pieces; ++i) shared_->carve_owner[static_cast<unsigned>(first) + i].store(0);
  unlock();
}

void Account::dump(int fd) const {
  char line[160];
  size_t n = format_to(
      line, sizeof line, "account: cap %ld pages, used %ld, shared %ld, own %ld, lun %ld of %ld bytes\n", cap_pages(),
      shared_->used_pages.value(), shared_pages(), own_pages(), shared_->lun_used_bytes.value(), lun_cap());
  (void)sys::write_to_program(fd, line, n);
}

}  // namespace lunar
