// SPDX-License-Identifier: Apache-2.0
// Account: the DRAM budget and the LUN space of a process tree, in memory shared by its processes.
//
// The pager takes every page of DRAM it uses (resident, frames, windows, tables, pipes) from the account before it uses
// it, and gives it back once it is free. A forked child is charged for what it inherits as if it were a copy. If there
// is room for that charge, copy-on-write needs nothing else. If not, the pages are write-protected in both processes
// (cow_gate.h) and counted as *shared*: charged twice, present once. `used - shared <= cap` holds at every moment in
// every process: a write that would copy such a page waits until unshare() has room for the copy.
// Giving back a page that may still be shared lowers `shared` along with `used`, so `used - shared` never falls below
// what is present.
//
// A member lives as long as its byte of the account's file is locked (README.md, "When a member ends"). Then another
// member *reaps* the dead one: it returns what that member had, and hands up its children. A child of a dead member
// reads what that member could read, so it becomes a child of the dead one's parent, at the dead one's fork epoch.
//
// Robust, process-shared mutexes tell sooner. `starter` may end before its process does (pthread_exit in main). They
// alone count for a member that could not make its lock (no /proc to open the file again, no free descriptor).
//
// Plain memory. A member that is not active cannot evict: all its committed memory is charged as if it were resident,
// and as `fixed`.
//
// Threading: take/give are a few atomic operations. sweep, join, adopt and carve take the account's lock, a robust
// mutex, whose holder may be killed, or exec, at any instruction. `reaping` tells the next holder which member was
// being reaped; reaping can be repeated from its start.
// Layout: shared only between processes of one build of the library (magic and size are checked).
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "base/units.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {

constexpr unsigned kMembersMax = 4096;
constexpr unsigned kCarvePieces = 256;
constexpr int64_t kKeepFreePages = 32;  // DRAM that only the evictors' own faults may take

enum MemberState : uint32_t {
  kMemberFree = 0,
  kMemberReserved = 1,  // for a child, or a process that is just joining
  kMemberActive = 2,    // `alive` is held by a service thread
  kMemberPlain = 3,     // `starter` is held by its first thread
  kMemberAdopted = 4,   // by the child, which holds `starter`: it is about to become active or plain
};

// A sum that all members change, and from which reaping subtracts exactly once although it may be repeated: the lowest
// bit flips in the same step, and so records whether the subtraction was made. Sequentially consistent: see
// Account::there.
class SharedSum {
 public:
  int64_t value() const { return raw_.load(std::memory_order_seq_cst) >> 1; }
  int64_t add(int64_t n) { return raw_.fetch_add(n * 2, std::memory_order_seq_cst) >> 1; }  // returns what it was
  uint32_t mark() const { return static_cast<uint32_t>(raw_.load(std::memory_order_relaxed) & 1); }
  // Does nothing if the mark is no longer `mark`. pre: the account's lock is held.
  void subtract_once(int64_t n, uint32_t mark) {
    int64_t seen = raw_.load(std::memory_order_relaxed);
    while ((seen & 1) == mark && !raw_.compare_exchange_weak(seen, (seen - n * 2) ^ 1, std::memory_order_seq_cst)) {}
  }

 private:
  std::atomic<int64_t> raw_;
};

// What one member has taken, and how many of its threads are between the two steps of a change (one of this count, one
// of the sum of all). A member killed there leaves the sum too high; reaping notices that and rebuilds the sum
// (Account::settle_sums). A change counter lets a thread that adds up all members check that no change began meanwhile.
class MemberPages {
 public:
  int64_t value() const { return value(raw()); }
  uint64_t raw() const { return raw_.load(std::memory_order_seq_cst); }
  static int64_t value(uint64_t raw) { return static_cast<int64_t>(raw << (64 - kValueBits)) >> (64 - kValueBits); }
  static bool in_hand(uint64_t raw) { return (upper(raw) & kInHandMax) != 0; }
  static uint64_t changes(uint64_t raw) { return upper(raw) >> kInHandBits; }
  void begin(int64_t n) { raw_.fetch_add(kBegin + static_cast<uint64_t>(n), std::memory_order_seq_cst); }
  void end(int64_t n) { raw_.fetch_add(static_cast<uint64_t>(n) - kOne, std::memory_order_seq_cst); }
  // for a change of another member's count
  void add(int64_t n) { raw_.fetch_add(static_cast<uint64_t>(n), std::memory_order_seq_cst); }
  void reset() { raw_.store(0); }

 private:
  static constexpr unsigned kValueBits = 36, kInHandBits = 12;  // 256 TiB of small pages; 16 bits of changes
  static constexpr uint64_t kOne = uint64_t{1} << kValueBits, kBegin = kOne + (kOne << kInHandBits),
                            kInHandMax = (uint64_t{1} << kInHandBits) - 1;
  static uint64_t upper(uint64_t raw) { return (raw + (kOne >> 1)) >> kValueBits; }  // a value below 0 borrows from it
  std::atomic<uint64_t> raw_;
};

// A forked child needs DRAM to make progress: a Redis child that saves has to keep what describes the keys. With an
// eighth of its busy parent's share it read those pages again for each key (30 s in place of 5).
constexpr uint32_t kWeight = 8, kForkedWeight = 4;

struct AccountMember {
  pthread_mutex_t alive;                 // robust, shared; held by a service thread of the member
  pthread_mutex_t starter;               // robust, shared; held by the member's first thread
  std::atomic<uint32_t> state;           // MemberState
  std::atomic<uint32_t> has_lock;        // byte `index` of the file is locked while its memory is there
  MemberPages pages;                     // DRAM taken; also marked as changing while lun_bytes changes
  std::atomic<int64_t> fixed;            // of these, what eviction cannot free: frames, windows, tables
  std::atomic<int64_t> tables;           // of `fixed`: page tables
  std::atomic<int64_t> promised_tables;  // what these may become (table_promise.h)
  std::atomic<int64_t> lun_bytes;        // LUN space promised
  std::atomic<uint32_t> weight;          // of its share of the budget: kForkedWeight or kWeight
  std::atomic<uint32_t> parent;          // member index + 1; 0: none
  std::atomic<uint32_t> fork_epoch;      // the parent's fork epoch that made it
  // member index + 1 of the living member that owns the pieces it inherited; 0: none
  std::atomic<uint32_t> inherits_from;
  std::atomic<uint64_t> created_ns;
  std::atomic<uint64_t> ownerless_ns;       // when its mutex was first seen without an owner; 0: it has one
  std::atomic<uint32_t> writing_elsewhere;  // its threads that are writing into other processes (process_vm_writev)
  std::atomic<uint32_t> batch;              // odd: an eviction batch is in progress
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
  // 1: some member has faults that wait for DRAM; the next member to give back clears it and raises the pressure
  std::atomic<uint32_t> room_wanted;
  std::atomic<uint32_t> member_high;  // members ever used
  std::atomic<uint32_t> unsettled;    // 1: a member died in the middle of a change, the sums may be too high
  pthread_mutex_t lock;               // robust, shared
  std::atomic<uint16_t> carve_owner[kCarvePieces];  // shared device: member index + 1 by piece
  AccountMember members[kMembersMax];
  std::atomic<int64_t> shared_pages;  // charged to several members, present once
  std::atomic<bool> said;             // a line of which one for the tree is enough
};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint16_t>::is_always_lock_free);

class Account {
 public:
  // fd >= 0: the tree's memfd (made by `lunar run`); -1: a private account, in a file made here. The first member sets
  // the caps.
  [[nodiscard]] int open(int fd, uint64_t cap_pages, uint64_t lun_cap_bytes);
  // Its descriptor in the calling thread's table, or -1.
  int descriptor() const;
  // Becomes a member. The calling thread holds `starter` until the process' housekeeping thread holds `alive`.
  [[nodiscard]] int join();
  // Before a fork: makes a member for the future child, which adopts it. Index or -errno. *ticket: the child needs it
  // to adopt the member. Afterwards the parent calls fork_returned(): from then on the member lives and dies with the
  // child (at once, if there is none).
  [[nodiscard]] int reserve_child(uint32_t fork_epoch, uint64_t* ticket);
  void fork_returned();
  // -ESRCH: the member was reaped: it has no lock, and the child was stopped for 30 s.
  [[nodiscard]] int adopt(unsigned index, uint64_t ticket);
  void become_plain();  // by the first thread of a member that is not active, which holds `starter`
  void lock_alive();    // by a service thread that lives as long as the process

  // Memory of a member that is not active. take_plain: false if the tree's use would exceed `limit` pages, even after
  // dead members were swept. reserve_plain_child: makes a member for a child with `pages`, of which `prepaid` is
  // charged to this member so far. Index or -errno.
  bool take_plain(int64_t pages, int64_t limit);
  void give_plain(int64_t pages) { give_fixed(pages); }
  int64_t plain_pages() const { return me().fixed.load(std::memory_order_relaxed); }
  [[nodiscard]] int reserve_plain_child(int64_t pages, int64_t prepaid, uint64_t* ticket);
  // Activation: plain memory can be evicted from now on (and back, if activation failed).
  void plain_to_evictable(int64_t pages) { me().fixed.fetch_sub(pages, std::memory_order_relaxed); }
  unsigned member() const { return member_; }

  // DRAM. take: false if it would leave fewer than `keep_free` pages.
  bool take(int64_t pages, int64_t keep_free);
  void take_always(int64_t pages);  // may exceed the cap: for pages that exist already
  // Before a fork: charges the child for what it inherits. True: all of it can be copied at any time. False: it counts
  // as shared.
  bool take_for_child(unsigned index, int64_t pages, int64_t keep_free, bool can_share);
  // Called before shared pages are copied. False: there is no room for that now.
  bool unshare(int64_t pages, int64_t keep_free);
  void unshare_always(int64_t pages);
  int64_t shared_pages() const { return shared_->shared_pages.load(std::memory_order_relaxed); }
  void take_fixed(int64_t pages);  // frames, windows, tables: always
  // The same, if the cap allows it.
  [[nodiscard]] bool take_fixed_within(int64_t pages, int64_t keep_free);
  // Reserves fixed pages ahead of their use, if `room` pages of the cap remain that are not fixed, even when several
  // members ask at once. take_fixed takes from the amount set with use_reserved until that is used up. May sleep.
  [[nodiscard]] bool reserve_fixed(int64_t pages, int64_t room);
  void use_reserved(int64_t pages) { reserved_ = pages; }
  int64_t reserved() const { return reserved_; }
  void end_reserved();  // returns the rest
  // Page tables. promise: false if `room` pages of the cap would not remain beside what eviction cannot free. take: as
  // take_fixed_within.
  [[nodiscard]] bool promise_tables(int64_t pages, int64_t room);
  [[nodiscard]] bool take_tables(int64_t pages, int64_t keep_free);
  void take_tables_always(int64_t pages);
  void give_tables(int64_t pages);
  // Transfers fixed pages, LUN space and promised tables of this member to the child.
  void hand_to_child(unsigned index, int64_t fixed_pages, int64_t lun_bytes, int64_t promised_tables = 0);
  // The fork failed: no child will adopt it.
  void release_child(unsigned index, uint64_t ticket);
  void give_fixed(int64_t pages);
  void give(int64_t pages);
  void give_maybe_shared(int64_t pages);  // another process may still share them
  int64_t free_pages() const { return shared_->cap_pages.load(std::memory_order_relaxed) - there(); }
  int64_t cap_pages() const { return shared_->cap_pages.load(std::memory_order_relaxed); }
  // The sum over all members of what eviction cannot free (frames, windows, tables as promised).
  int64_t fixed_total() const;
  bool others_active() const;  // some other member has such fixed pages
  // Whether the housekeeping thread holds this member's mutex, so that its end, also by exec, will be noticed.
  bool alive_locked() const { return me().state.load(std::memory_order_acquire) == kMemberActive; }
  int64_t own_fixed() const { return me().fixed.load(std::memory_order_relaxed); }
  int64_t own_pages() const { return me().pages.value(); }
  void set_cap(int64_t pages) { shared_->cap_pages.store(pages); }
  void set_lun_cap(int64_t bytes) { shared_->lun_cap_bytes.store(bytes); }
  // Whether this member is at or above its weighted share of the evictable pages: it evicts when DRAM runs low.
  bool above_share() const;
  bool says_once() { return !shared_->said.exchange(true); }
  void raise_pressure();                                  // wakes sleeping evictors of all members
  void wait_pressure(uint32_t seen, int64_t timeout_ns);  // -1: no limit
  void want_room() { shared_->room_wanted.store(1, std::memory_order_seq_cst); }  // the next give() wakes evictors
  uint32_t pressure() const { return shared_->pressure.load(std::memory_order_acquire); }

  // Members evict by UFFDIO_MOVE meanwhile (pager_write_elsewhere). begin waits for their batches in progress. False:
  // a member stands still inside of one (it was stopped); nothing was begun.
  [[nodiscard]] bool write_elsewhere_begin();
  void write_elsewhere_end() { me().writing_elsewhere.fetch_sub(1, std::memory_order_release); }
  bool someone_writes_elsewhere() const;  // inside a batch
  // An eviction batch of this member. wait_for_own_batch returns when no batch is in progress that began before the
  // call, however long that takes: what a device writes to a page that is dropped afterwards is lost.
  void batch_begin() {
    me().batch.fetch_add(1, std::memory_order_seq_cst);
    // pairs with the waiting threads: one of the two sees the other
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void wait_for_own_batch();
  void batch_end() { me().batch.fetch_add(1, std::memory_order_release); }

  // LUN space promised to this member.
  [[nodiscard]] int lun_take(int64_t bytes);
  void lun_give(int64_t bytes);
  int64_t lun_free() const { return shared_->lun_cap_bytes.load() - shared_->lun_used_bytes.value(); }
  int64_t lun_cap() const { return shared_->lun_cap_bytes.load(); }

  // Returns what dead members held. Sets *oldest_child to the lowest fork epoch of a live child of this member (0:
  // none). False: some member is ending, and its memory may still be there; or the account's lock could not be taken
  // for a while (its holder is stopped): then nothing was done, and *oldest_child is unchanged.
  bool sweep(uint32_t* oldest_child);
  // The same for a caller that is short of memory: also waits, for a while, for members that are ending.
  void sweep_settled();
  // Whether the child that was reserved at that fork epoch, or a descendant handed up in its place, is still alive (as
  // of the last sweep).
  bool child_lives(uint32_t fork_epoch) const;
  // The futex words of living children, for sys::futex_wait_any: each changes when the child ends. `unsure`: some child
  // cannot be waited for (it was just made, or there are more than `max`). Returns how many.
  unsigned child_words(sys::FutexWait* out, unsigned max, bool* unsure);
  // Takes `pieces` adjacent pieces of a device that the tree shares: first index or -ENOSPC.
  [[nodiscard]] int carve(unsigned pieces);
  void uncarve(int first, unsigned pieces);  // returns unused pieces that carve() took

  void dump(int fd) const;

 private:
  AccountMember& me() const { return shared_->members[member_]; }
  // Bounded, because processes with fewer rights than this one can write that word, too.
  uint32_t members_used() const {
    const uint32_t high = shared_->member_high.load(std::memory_order_acquire);
    return high < kMembersMax ? high : kMembersMax;
  }
  void lock();
  bool lock_soon();  // false: not free for a while, as its holder is stopped
  void locked(int rc);
  void unlock();
  int reserve(uint32_t weight, unsigned parent_plus_one, uint32_t fork_epoch, uint64_t* ticket);
  enum class Life { kAlive, kEnding, kDead };
  Life life_of(unsigned index);
  bool is_locked(unsigned index) const;
  void make_lock(unsigned index);
  void keep_lock();
  void reap(unsigned index);
  void hand_up_children(unsigned index);
  void settle_sums();
  void charge(AccountMember& member, int64_t pages);
  int64_t there() const;
  bool fits(int64_t keep_free) const { return free_pages() >= keep_free; }
  int64_t lower_shared(int64_t pages);
  int64_t unused_promises() const;

  AccountShared* shared_ = nullptr;
  unsigned member_ = 0;
  int64_t reserved_ = 0;  // of our fixed pages, not used yet
  int fd_ = -1;
  sys::FileIdentity file_;
  void* new_lock_ = nullptr;  // the mapping that keeps the lock just made
};

}  // namespace lunar
