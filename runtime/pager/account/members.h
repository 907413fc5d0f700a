// SPDX-License-Identifier: Apache-2.0
// Members: the processes of a tree, in the memory that they share. README.md ("When a member ends")
// has the rules.
//
// A member lives as long as its byte of the account's file is locked. When it is dead, another
// member *reaps* it: it gives back the dead member's charges, and hands its children up to its
// parent, at the dead member's fork epoch. Robust mutexes show an end sooner: `alive`, or `starter`
// of a member that is not active, whose holder may end before its process does (pthread_exit in
// main). Only the mutexes count for a member that could not make its lock (no /proc to open the
// file again, no free descriptor).
//
// Threading: the account's lock is a robust mutex, whose holder may be killed, or exec, at any
// instruction. `reaping` tells the next holder which member was being reaped; reaping can be
// repeated from its start. Layout: shared only between processes of one build of the library (magic
// and size are checked).
#pragma once
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {

constexpr unsigned kMembersMax = 4096;
constexpr unsigned kCarvePieces = 256;

enum MemberState : uint32_t {
  kMemberFree = 0,
  kMemberReserved = 1,  // for a child, or a process that is just joining
  kMemberActive = 2,    // `alive` is held by a service thread
  kMemberPlain = 3,     // `starter` is held by its first thread
  kMemberAdopted = 4,   // by the child, which holds `starter` and will become active or plain
};

// A sum that all members change. Reaping subtracts from it exactly once, although reaping may be
// repeated: the lowest bit flips in the same step, and records that the subtraction was made.
// Sequentially consistent: see Account::present_at_most.
class SharedSum {
 public:
  int64_t value() const { return raw_.load(std::memory_order_seq_cst) >> 1; }
  int64_t add(int64_t n) {  // returns the sum before
    return raw_.fetch_add(n * 2, std::memory_order_seq_cst) >> 1;
  }
  uint32_t mark() const { return static_cast<uint32_t>(raw_.load(std::memory_order_relaxed) & 1); }
  // Does nothing if the mark is no longer `mark`. pre: the account's lock is held.
  void subtract_once(int64_t n, uint32_t mark) {
    int64_t seen = raw_.load(std::memory_order_relaxed);
    while ((seen & 1) == mark &&
           !raw_.compare_exchange_weak(seen, (seen - n * 2) ^ 1, std::memory_order_seq_cst)) {}
  }

 private:
  std::atomic<int64_t> raw_;
};

// The pages that one member has taken, and how many of its threads are between the two steps of a
// change (of this count, and of the sum of all members). A member killed there leaves the sum too
// high; reaping notices that, and the sum is rebuilt (Members::settle_sums). A counter of changes
// lets a thread that adds up all members check that no change began meanwhile.
class MemberPages {
 public:
  int64_t value() const { return value(raw()); }
  uint64_t raw() const { return raw_.load(std::memory_order_seq_cst); }
  static int64_t value(uint64_t raw) {
    return static_cast<int64_t>(raw << (64 - kValueBits)) >> (64 - kValueBits);
  }
  static bool in_progress(uint64_t raw) { return (upper(raw) & kInProgressMax) != 0; }
  static uint64_t changes(uint64_t raw) { return upper(raw) >> kInProgressBits; }
  void begin(int64_t n) {
    raw_.fetch_add(kBegin + static_cast<uint64_t>(n), std::memory_order_seq_cst);
  }
  void end(int64_t n) {
    raw_.fetch_add(static_cast<uint64_t>(n) - kOne, std::memory_order_seq_cst);
  }
  // For a change of another member's count.
  void add(int64_t n) { raw_.fetch_add(static_cast<uint64_t>(n), std::memory_order_seq_cst); }
  void reset() { raw_.store(0); }

 private:
  // 36 bits with a sign: 128 TiB of pages of 4 KiB; 16 bits count changes
  static constexpr unsigned kValueBits = 36, kInProgressBits = 12;
  static constexpr uint64_t kOne = uint64_t{1} << kValueBits,
                            kBegin = kOne + (kOne << kInProgressBits),
                            kInProgressMax = (uint64_t{1} << kInProgressBits) - 1;
  static uint64_t upper(uint64_t raw) {  // from which a value below 0 has borrowed
    return (raw + (kOne >> 1)) >> kValueBits;
  }
  std::atomic<uint64_t> raw_;
};

// A forked child needs DRAM to make progress: a Redis child that saves keeps reading what describes
// the keys. With an eighth of its busy parent's share it read those pages again for each key (30 s
// instead of 5).
constexpr uint32_t kWeight = 8, kForkedWeight = 4;

struct AccountMember {
  pthread_mutex_t alive;           // robust, shared; held by a service thread of the member
  pthread_mutex_t starter;         // robust, shared; held by the member's first thread
  std::atomic<uint32_t> state;     // MemberState
  std::atomic<uint32_t> has_lock;  // byte `index` of the file is locked while its memory exists
  MemberPages pages;               // DRAM taken; also marked as changing while lun_bytes changes
  std::atomic<int64_t> fixed;      // of `pages`, what eviction cannot free: frames, windows, tables
  std::atomic<int64_t> tables;     // of `fixed`, page tables
  std::atomic<int64_t> promised_tables;  // the most that tables may come to take (table_promise.h)
  std::atomic<int64_t> lun_bytes;        // LUN space promised
  std::atomic<uint32_t> weight;          // of its share of the budget: kForkedWeight or kWeight
  std::atomic<uint32_t> parent;          // member index + 1; 0: none
  std::atomic<uint32_t> fork_epoch;      // the parent's fork epoch that made it
  // member index + 1 of the living member that owns the pieces it inherited; 0: none
  std::atomic<uint32_t> inherits_from;
  std::atomic<uint64_t> created_ns;
  // when its mutex was first seen without an owner; 0: it has an owner
  std::atomic<uint64_t> ownerless_ns;
  // its threads that are writing into other processes (process_vm_writev)
  std::atomic<uint32_t> writing_elsewhere;
  std::atomic<uint32_t> batch;  // odd: an eviction batch is in progress

  bool is_used() const { return state.load(std::memory_order_acquire) != kMemberFree; }
};

struct AccountShared {
  uint64_t magic;
  uint32_t bytes;               // sizeof(AccountShared): the version
  std::atomic<uint32_t> ready;  // 0 fresh, 1 being set up, 2 ready
  std::atomic<int64_t> cap_pages;
  SharedSum used_pages;
  std::atomic<int64_t> lun_cap_bytes;
  SharedSum lun_used_bytes;
  std::atomic<uint32_t> pressure;  // futex: incremented when DRAM runs low
  std::atomic<uint32_t> sleepers;  // evictors that wait on it
  // (member index + 1) << 2 | marks of the two sums at the start of reaping; 0: none in progress
  std::atomic<uint32_t> reaping;
  // 1: some member has faults that wait for DRAM. The next member that gives DRAM back clears it
  // and raises the pressure
  std::atomic<uint32_t> room_wanted;
  std::atomic<uint32_t> member_high;  // members ever used
  // 1: a member died in the middle of a change, the sums may be too high
  std::atomic<uint32_t> unsettled;
  pthread_mutex_t lock;                             // robust, shared
  std::atomic<uint16_t> carve_owner[kCarvePieces];  // shared device: member index + 1 by piece
  AccountMember members[kMembersMax];
  std::atomic<int64_t> shared_pages;  // charged to several members, present once
  std::atomic<bool> said;             // the tree has logged its one line (Account::says_once)
};
static_assert(std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<uint16_t>::is_always_lock_free);

void make_robust_mutex(pthread_mutex_t* mutex);

class Members {
 public:
  // The account's descriptor in the calling thread's table, or -1.
  int descriptor() const;
  // Becomes a member. The calling thread holds `starter` until the process' housekeeping thread
  // holds `alive`.
  [[nodiscard]] int join();
  // Before a fork: makes a member for the future child, which adopts it by the *ticket. Index or
  // -errno. After the fork the parent calls fork_returned(): from then on the member lives as long
  // as the child; without a child it is dead.
  [[nodiscard]] int reserve_child(uint32_t fork_epoch, uint64_t* ticket);
  void fork_returned();
  // -ESRCH: the member was reaped, as it has no lock and the child was stopped for 30 s.
  [[nodiscard]] int adopt(unsigned index, uint64_t ticket);
  void become_plain();  // by the first thread of a member that is not active, which holds `starter`
  void lock_alive();    // by a service thread that lives as long as the process
  unsigned member() const { return member_; }
  // The fork failed: no child will adopt it.
  void release_child(unsigned index, uint64_t ticket);
  // Whether the housekeeping thread holds this member's mutex, so that its end, also by exec, will
  // be noticed.
  bool alive_locked() const { return me().state.load(std::memory_order_acquire) == kMemberActive; }

  // Reaps dead members. Sets *oldest_child to the lowest fork epoch of a live child of this member
  // (0: none). False: some member is ending, and its memory may still exist; or the account's lock
  // could not be taken for a while (its holder is stopped), then nothing was done, and
  // *oldest_child is unchanged.
  bool sweep(uint32_t* oldest_child);
  // The same for a caller that is short of memory: waits a while for members that are ending.
  void sweep_settled();
  // Whether the child that was reserved at that fork epoch, or a descendant handed up in its place,
  // is still alive (as of the last sweep).
  bool child_lives(uint32_t fork_epoch) const;
  // Fills `out` with the futex words of living children, for sys::futex_wait_any, and returns how
  // many. A word changes when its child ends. *unsure: some child cannot be waited for (it was just
  // made, or there are more than `max`).
  unsigned child_words(sys::FutexWait* out, unsigned max, bool* unsure);

 protected:
  AccountMember& me() const { return shared_->members[member_]; }
  // All members ever used. Bounded, because processes with fewer rights than this one can write
  // that word.
  std::span<AccountMember> all() const {
    const uint32_t high = shared_->member_high.load(std::memory_order_acquire);
    return {shared_->members, std::min(high, kMembersMax)};
  }
  unsigned index_of(const AccountMember& member) const {
    return static_cast<unsigned>(&member - shared_->members);
  }
  void lock();
  bool lock_soon();  // false: it was not free for a while, as its holder is stopped
  void locked(int rc);
  void unlock();
  int reserve(uint32_t weight, unsigned parent_plus_one, uint32_t fork_epoch, uint64_t* ticket);
  enum class Life { kAlive, kEnding, kDead };
  Life life_of(AccountMember& member) const;
  bool is_child(const AccountMember& m) const {
    return m.is_used() && m.parent.load() == member_ + 1;
  }
  bool is_locked(unsigned index) const;
  void make_lock(unsigned index);
  void keep_lock();
  void reap(unsigned index);
  void hand_up_children(unsigned index);
  void settle_sums();
  int64_t lower_shared(int64_t pages);

  AccountShared* shared_ = nullptr;
  unsigned member_ = 0;
  int fd_ = -1;
  sys::FileIdentity file_;
  void* new_lock_ = nullptr;  // the mapping that holds the newest lock
};

}  // namespace lunar
