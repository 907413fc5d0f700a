// SPDX-License-Identifier: Apache-2.0
// Account: the DRAM budget and the LUN space of a process tree, in memory shared by its processes.
//
// The pager takes every page of DRAM it uses (resident, frames, windows, tables, pipes) from the account before it uses
// it and gives it back once it is free. A forked child is charged for what it inherits as if it were a copy. With room
// for that, copy-on-write needs nothing else. Without, the pages are write-protected in both processes (cow_gate.h) and
// counted as *shared*: charged twice, present once. `used - shared <= cap` holds at every moment in every process: a
// write that would copy such a page waits until unshare() has room for the copy.
// Giving back a page that may still be shared lowers `shared` along with `used`: `used - shared` never falls below what
// is present.
//
// A robust, process-shared mutex that one of its threads holds proves that a member lives. When the process ends or
// execs, the kernel releases the mutex, and another member *reaps* the dead one: it returns what that had and hands its
// children up. A child of a dead member reads what that member could read, so it becomes a child of the dead one's
// parent, at the dead one's fork epoch. In an active member a service thread holds `alive`. Before activation there is
// none: the first thread holds `starter`, and may end before its process does (pthread_exit in main). And the kernel
// releases the mutex before it frees the memory. So /proc decides: a member is reaped once its memory is gone.
//
// Plain memory. A member that is not active cannot evict: all it has committed is charged as if it were resident, and
// as `fixed`.
//
// Threading: take/give are a few atomic operations. sweep, join, adopt and carve take the account's lock, a robust
// mutex: its holder may be killed, or exec, at any instruction. `reaping` tells the next holder which member was being
// reaped; reaping can be repeated from its start.
// Layout: shared between processes of one build of the library only (magic and size are checked).
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "sys/thread.h"

namespace lunar {

constexpr unsigned kMembersMax = 4096;
constexpr unsigned kCarvePieces = 256;

enum MemberState : uint32_t {
  kMemberFree = 0,
  kMemberJoining = 1,
  kMemberActive = 2,  // `alive` is held by a service thread
  kMemberPlain = 3,   // `starter` is held by its first thread
};

// A sum that all members change, and from which reaping subtracts exactly once although it may be repeated: the lowest
// bit flips in the same step, and so records whether the subtraction was made. Sequentially consistent: see
// Account::there.
class SharedSum {
 public:
  int64_t value() const { return raw_.load(std::memory_order_seq_cst) >> 1; }
  int64_t add(int64_t n) { return raw_.fetch_add(n * 2, std::memory_order_seq_cst) >> 1; }  // returns what it was
  uint32_t mark() const { return static_cast<uint32_t>(raw_.load(std::memory_order_relaxed) & 1); }
  // Nothing when the mark is not `mark` any more. pre: the account's lock is held.
  void subtract_once(int64_t n, uint32_t mark) {
    int64_t seen = raw_.load(std::memory_order_relaxed);
    while ((seen & 1) == mark && !raw_.compare_exchange_weak(seen, (seen - n * 2) ^ 1, std::memory_order_seq_cst)) {}
  }

 private:
  std::atomic<int64_t> raw_;
};

// What one member has taken, and how many of its threads are between the two steps of a change (this count, and the sum
// of all). A member killed there leaves the sum too high: reaping it sees that and rebuilds the sum
// (Account::settle_sums). A change counter shows a thread that adds up all members that no change began meanwhile.
class MemberPages {
 public:
  int64_t value() const { return value(raw()); }
  uint64_t raw() const { return raw_.load(std::memory_order_seq_cst); }
  static int64_t value(uint64_t raw) { return static_cast<int64_t>(raw << (64 - kValueBits)) >> (64 - kValueBits); }
  static bool in_hand(uint64_t raw) { return (upper(raw) & kInHandMax) != 0; }
  static uint64_t changes(uint64_t raw) { return upper(raw) >> kInHandBits; }
  void begin(int64_t n) { raw_.fetch_add(kBegin + static_cast<uint64_t>(n), std::memory_order_seq_cst); }
  void end(int64_t n) { raw_.fetch_add(static_cast<uint64_t>(n) - kOne, std::memory_order_seq_cst); }
  // in a change of another member's
  void add(int64_t n) { raw_.fetch_add(static_cast<uint64_t>(n), std::memory_order_seq_cst); }
  void reset() { raw_.store(0); }

 private:
  static constexpr unsigned kValueBits = 36, kInHandBits = 12;  // 256 TiB of small pages; 16 bits of changes
  static constexpr uint64_t kOne = uint64_t{1} << kValueBits, kBegin = kOne + (kOne << kInHandBits),
                            kInHandMax = (uint64_t{1} << kInHandBits) - 1;
  static uint64_t upper(uint64_t raw) { return (raw + (kOne >> 1)) >> kValueBits; }  // a value below 0 borrows from it
  std::atomic<uint64_t> raw_;
};

// A forked child needs DRAM to get done: a Redis child that saves has to keep what describes the keys, and with an eighth
// of its busy parent's share it read every page of that again for each key (30 s in place of 5).
constexpr uint32_t kWeight = 8, kForkedWeight = 4;

struct AccountMember {
  pthread_mutex_t alive;        // robust, shared; held by a service thread of the member
  pthread_mutex_t starter;      // robust, shared; held by the member's first thread
  std::atomic<uint32_t> state;  // MemberState
  // below 0: of a child that its parent has named, and that has not adopted this yet
  std::atomic<int32_t> pid;
  MemberPages pages;                 // DRAM taken; in hand while lun_bytes changes, too
  std::atomic<int64_t> fixed;        // of these what eviction cannot give back: frames, windows, tables
  std::atomic<int64_t> lun_bytes;    // LUN space promised
  std::atomic<uint32_t> weight;      // of its share of the budget: kForkedWeight or kWeight
  std::atomic<uint32_t> parent;      // member index + 1; 0: none
  std::atomic<uint32_t> fork_epoch;  // the parent's fork epoch that made it
  // member index + 1 of the living one that has the pieces it inherited; 0: none
  std::atomic<uint32_t> inherits_from;
  std::atomic<uint64_t> created_ns;
  std::atomic<uint64_t> replaced_ns;        // when it was first seen that another program is in its place; 0: not yet
  std::atomic<uint32_t> writing_elsewhere;  // threads of it that are writing into other processes (process_vm_writev)
  std::atomic<uint32_t> batch;              // odd: it has an eviction batch under way
};

struct AccountShared {
  uint64_t magic;
  uint32_t bytes;               // sizeof(AccountShared): the version
  std::atomic<uint32_t> ready;  // 0 fresh, 1 being set up, 2 ready
  std::atomic<int64_t> cap_pages;
  SharedSum used_pages;
  std::atomic<int64_t> lun_cap_bytes;
  SharedSum lun_used_bytes;
  std::atomic<uint32_t> pressure;  // futex: bumped when DRAM runs low
  std::atomic<uint32_t> sleepers;  // evictors that wait on it
  // (member index + 1) << 2 | marks of the two sums at its start; 0: none under way
  std::atomic<uint32_t> reaping;
  // 1: some member has faults that wait for DRAM; the next to give back clears it and raises the pressure
  std::atomic<uint32_t> room_wanted;
  std::atomic<uint32_t> member_high;  // members ever used
  std::atomic<uint32_t> unsettled;    // 1: a member died in the middle of a change, the sums may be too high
  pthread_mutex_t lock;               // robust, shared
  std::atomic<uint16_t> carve_owner[kCarvePieces];  // shared device: member index + 1 by piece
  AccountMember members[kMembersMax];
  std::atomic<int64_t> shared_pages;  // charged to several members and there once
};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint16_t>::is_always_lock_free);

class Account {
 public:
  // fd >= 0: the tree's memfd (made by `lunar run`); -1: an account of our own. First one in sets the caps.
  [[nodiscard]] int open(int fd, uint64_t cap_pages, uint64_t lun_cap_bytes);
  // Becomes a member. The calling thread proves its life until the process' housekeeping thread can (lock_alive).
  [[nodiscard]] int join();
  // Before a fork: a member for the child to come, index or -errno; the child adopts it. A fork that failed leaves one
  // without a child; it is reaped after 30 s. *ticket: what the child shows for it.
  [[nodiscard]] int reserve_child(uint32_t fork_epoch, uint64_t* ticket);
  // The fork has returned in the parent: a child that is killed before it adopts its member is seen to be gone.
  void name_child(unsigned index, uint64_t ticket, int pid);
  // -ESRCH: it was reaped (the child has stood still for so long).
  [[nodiscard]] int adopt(unsigned index, uint64_t ticket);
  void lock_starter();  // by the first thread of a member that is not active
  void lock_alive();    // by a service thread that lives as long as the process

  // Memory of a member that is not active. take_plain: false when the tree's use would pass `limit` pages, even after a
  // sweep of the dead. reserve_plain_child: a member for a child with `pages`, of which `prepaid` is charged to this
  // member so far. Index or -errno.
  bool take_plain(int64_t pages, int64_t limit);
  void give_plain(int64_t pages) { give_fixed(pages); }
  int64_t plain_pages() const { return me().fixed.load(std::memory_order_relaxed); }
  [[nodiscard]] int reserve_plain_child(int64_t pages, int64_t prepaid, uint64_t* ticket);
  // Activation: what is plain can be evicted from now on (and back, when it failed).
  void plain_to_evictable(int64_t pages) { me().fixed.fetch_sub(pages, std::memory_order_relaxed); }
  unsigned member() const { return member_; }

  // DRAM. take: false when it would leave fewer than `keep_free` pages.
  bool take(int64_t pages, int64_t keep_free);
  void take_always(int64_t pages);  // may pass the cap: for pages that exist already
  // Before a fork: charges the child for what it inherits. True: all of it can be copied at any time. False: it counts
  // as shared.
  bool take_for_child(unsigned index, int64_t pages, int64_t keep_free, bool can_share);
  // Before shared pages are copied. False: no room for that now.
  bool unshare(int64_t pages, int64_t keep_free);
  void unshare_always(int64_t pages);
  int64_t shared_pages() const { return shared_->shared_pages.load(std::memory_order_relaxed); }
  void take_fixed(int64_t pages);  // frames, windows, tables: always
  // The same where the cap allows it.
  [[nodiscard]] bool take_fixed_within(int64_t pages, int64_t keep_free);
  // Reserves fixed pages ahead of their use, if `room` pages of the cap stay that are not fixed, also when several
  // members ask at once. take_fixed takes from the amount set with use_reserved until it is used up. May sleep.
  [[nodiscard]] bool reserve_fixed(int64_t pages, int64_t room);
  void use_reserved(int64_t pages) { reserved_ = pages; }
  int64_t reserved() const { return reserved_; }
  void end_reserved();  // gives the rest back
  // Transfers fixed pages and LUN space of ours to the child.
  void hand_to_child(unsigned index, int64_t fixed_pages, int64_t lun_bytes);
  // The fork failed: no child will adopt it.
  void release_child(unsigned index, uint64_t ticket);
  void give_fixed(int64_t pages);
  void give(int64_t pages);
  void give_maybe_shared(int64_t pages);  // a relative may still have them
  int64_t free_pages() const { return shared_->cap_pages.load(std::memory_order_relaxed) - there(); }
  int64_t cap_pages() const { return shared_->cap_pages.load(std::memory_order_relaxed); }
  // The sum over all members of what eviction cannot give back (frames, windows, tables).
  int64_t fixed_total() const;
  bool others_active() const;  // some other member has such fixed pages
  // The housekeeping thread holds this member's mutex: its end, also by exec, will be seen.
  bool alive_locked() const { return me().state.load(std::memory_order_acquire) == 2; }
  int64_t own_fixed() const { return me().fixed.load(std::memory_order_relaxed); }
  int64_t own_pages() const { return me().pages.value(); }
  void set_cap(int64_t pages) { shared_->cap_pages.store(pages); }
  void set_lun_cap(int64_t bytes) { shared_->lun_cap_bytes.store(bytes); }
  // Whether this member is at or above its weighted share of the evictable pages: it evicts when DRAM runs low.
  bool above_share() const;
  void raise_pressure();                                  // wakes sleeping evictors of all members
  void wait_pressure(uint32_t seen, int64_t timeout_ns);  // -1: without end
  void want_room() { shared_->room_wanted.store(1, std::memory_order_seq_cst); }  // the next give() wakes evictors
  uint32_t pressure() const { return shared_->pressure.load(std::memory_order_acquire); }

  // The kernel pins pages of the target while process_vm_writev goes on: members evict by UFFDIO_MOVE meanwhile. begin
  // waits for their batches under way (bounded).
  void write_elsewhere_begin();
  void write_elsewhere_end() { me().writing_elsewhere.fetch_sub(1, std::memory_order_release); }
  bool someone_writes_elsewhere() const;  // inside a batch
  // An eviction batch of this member; wait_for_own_batch returns when none is under way that began before the call
  // (bounded).
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

  // Gives back what dead members held. Sets *oldest_child to the lowest fork epoch of a live child of ours (0: none).
  // False: some member is ending, and its memory may still be there; or the account's lock could not be taken for a
  // while (its holder is stopped): nothing is done then, and *oldest_child is as it was.
  bool sweep(uint32_t* oldest_child);
  // The same for a caller that is short: also waits, for a while, for members that are ending.
  void sweep_settled();
  // Whether the child reserved at that fork epoch, or a descendant handed up in its place, still lives (as of the last
  // sweep).
  bool child_lives(uint32_t fork_epoch) const;
  // The futex words of living children, for sys::futex_wait_any: each changes when the child ends. `unsure`: some child
  // cannot be waited for (it has just been made, or there are more than `max`). Returns how many.
  unsigned child_words(sys::FutexWait* out, unsigned max, bool* unsure);
  // Pieces of a device shared by the tree: takes `pieces` adjacent ones, first index or -ENOSPC.
  [[nodiscard]] int carve(unsigned pieces);
  void uncarve(int first, unsigned pieces);  // gives back what carve() took, unused

  void dump(int fd) const;

 private:
  AccountMember& me() const { return shared_->members[member_]; }
  // Bounded, as processes with fewer rights than this one can write that word, too.
  uint32_t members_used() const {
    const uint32_t high = shared_->member_high.load(std::memory_order_acquire);
    return high < kMembersMax ? high : kMembersMax;
  }
  void lock();
  bool lock_soon();  // false: not free for a while, as its holder is stopped
  void locked(int rc);
  void unlock();
  int reserve(uint32_t weight, unsigned parent_plus_one, uint32_t fork_epoch, int pid, uint64_t* ticket);
  enum class Life { kAlive, kEnding, kDead };
  Life life_of(AccountMember& member);
  void reap(unsigned index);
  void hand_up_children(unsigned index);
  void settle_sums();
  void charge(AccountMember& member, int64_t pages);
  int64_t there() const;
  bool fits(int64_t keep_free) const { return free_pages() >= keep_free; }
  int64_t lower_shared(int64_t pages);

  AccountShared* shared_ = nullptr;
  unsigned member_ = 0;
  int64_t reserved_ = 0;  // of our fixed pages, not used yet
};

}  // namespace lunar
