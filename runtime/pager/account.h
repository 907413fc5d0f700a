// SPDX-License-Identifier: Apache-2.0
// Account: the DRAM budget and the LUN space of a process tree, in memory shared by its processes.
//
// Every page of DRAM the pager uses (resident, frames, windows, tables, pipes) is taken from the account before it is used
// and given back after it is free. What a forked child inherits is charged to it as well, as if it were a copy. Where there is
// room for that, copy-on-write needs no further thought. Where there is not, the pages are write-protected in both processes
// (cow_gate.h) and counted as *shared*: charged twice and there once. `used - shared <= cap` holds at every moment, in every
// process: a write that would copy such a page waits until unshare() has room for the copy.
// A page that goes and may be shared still lowers `shared`, not what is free: `used - shared` is never less than what is there.
//
// Life of a member is proven by a robust, process-shared mutex that a thread of it holds: when the process ends or execs, the kernel
// releases it, and any other member *reaps* it: returns what it had, and hands its children up. A child of a dead member reads what
// that one could read, so it becomes a child of the dead one's parent, at the dead one's fork epoch. Once the member is active a
// service thread holds `alive`. Before, there is none: its first thread holds `starter`, which may end before its process (pthread_exit in
// main). And the mutex is released before the memory is freed. So /proc is asked as well: a member is reaped when its memory is gone.
//
// Plain memory. A member that is not active cannot evict: all it has committed is charged as if it were resident, and as `fixed`.
//
// Threading: take/give are a few atomic operations. sweep, join, adopt and carve take the account's lock, a robust mutex: who
// holds it may be killed, or exec, at any instruction. `reaping` tells the next holder which reaping was under way, and reaping
// may be done again from its start.
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
  kMemberActive = 2,      // `alive` is held by a service thread
  kMemberPlain = 3,       // `starter` is held by its first thread
};

// A sum that all members change, and from which reaping subtracts exactly once although it may be done again: the lowest bit
// changes in the same step, so that it tells whether the subtraction was made.
class SharedSum {
 public:
  int64_t value() const { return raw_.load(std::memory_order_relaxed) >> 1; }
  int64_t add(int64_t n) { return raw_.fetch_add(n * 2, std::memory_order_acq_rel) >> 1; }   // returns what it was
  uint32_t mark() const { return static_cast<uint32_t>(raw_.load(std::memory_order_relaxed) & 1); }
  // Nothing when the mark is not `mark` any more. pre: the account's lock is held.
  void subtract_once(int64_t n, uint32_t mark) {
    int64_t seen = raw_.load(std::memory_order_relaxed);
    while ((seen & 1) == mark && !raw_.compare_exchange_weak(seen, (seen - n * 2) ^ 1, std::memory_order_acq_rel)) {}
  }

 private:
  std::atomic<int64_t> raw_;
};

// What one member has taken, and how many of its threads are between the two steps of a change (this, and the sum of all). One that was killed
// there has left the sum too high: the member that reaps it sees that, and the sum is made anew (Account::settle_sums). Each change also counts, so that
// who adds up all members can tell that none has begun meanwhile.
class MemberPages {
 public:
  int64_t value() const { return value(raw()); }
  uint64_t raw() const { return raw_.load(std::memory_order_seq_cst); }
  static int64_t value(uint64_t raw) { return static_cast<int64_t>(raw << (64 - kValueBits)) >> (64 - kValueBits); }
  static bool in_hand(uint64_t raw) { return (upper(raw) & kInHandMax) != 0; }
  static uint64_t changes(uint64_t raw) { return upper(raw) >> kInHandBits; }
  void begin(int64_t n) { raw_.fetch_add(kBegin + static_cast<uint64_t>(n), std::memory_order_seq_cst); }
  void end(int64_t n) { raw_.fetch_add(static_cast<uint64_t>(n) - kOne, std::memory_order_seq_cst); }
  void add(int64_t n) { raw_.fetch_add(static_cast<uint64_t>(n), std::memory_order_seq_cst); }   // in a change of another member's
  void reset() { raw_.store(0); }

 private:
  static constexpr unsigned kValueBits = 36, kInHandBits = 12;   // 256 TiB of small pages; 16 bits of changes
  static constexpr uint64_t kOne = uint64_t{1} << kValueBits, kBegin = kOne + (kOne << kInHandBits), kInHandMax = (uint64_t{1} << kInHandBits) - 1;
  static uint64_t upper(uint64_t raw) { return (raw + (kOne >> 1)) >> kValueBits; }   // a value below 0 borrows from it
  std::atomic<uint64_t> raw_;
};

struct AccountMember {
  pthread_mutex_t alive;                  // robust, shared; held by a service thread of the member
  pthread_mutex_t starter;                // robust, shared; held by the member's first thread
  std::atomic<uint32_t> state;            // MemberState
  std::atomic<int32_t> pid;               // below 0: of a child that its parent has named, and that has not adopted this yet
  MemberPages pages;                        // DRAM taken; in hand while lun_bytes changes, too
  std::atomic<int64_t> fixed;             // of these what eviction cannot give back: frames, windows, tables
  std::atomic<int64_t> lun_bytes;         // LUN space promised
  std::atomic<uint32_t> weight;           // share of the budget, 1..8 (a forked child: 1, others: 8)
  std::atomic<uint32_t> parent;           // member index + 1; 0: none
  std::atomic<uint32_t> fork_epoch;       // the parent's fork epoch that made it
  std::atomic<uint32_t> inherits_from;            // member index + 1 of the living one that has the pieces it inherited; 0: none
  std::atomic<uint64_t> created_ns;
  std::atomic<uint64_t> replaced_ns;      // when it was first seen that another program is in its place; 0: not yet
  std::atomic<uint32_t> writing_elsewhere;   // threads of it that are writing into other processes (process_vm_writev)
  std::atomic<uint32_t> batch;            // odd: it has an eviction batch under way
};

struct AccountShared {
  uint64_t magic;
  uint32_t bytes;                         // sizeof(AccountShared): the version
  std::atomic<uint32_t> ready;            // 0 fresh, 1 being set up, 2 ready
  std::atomic<int64_t> cap_pages;
  SharedSum used_pages;
  std::atomic<int64_t> lun_cap_bytes;
  SharedSum lun_used_bytes;
  std::atomic<uint32_t> pressure;         // futex: bumped when DRAM runs low
  std::atomic<uint32_t> sleepers;         // evictors that wait on it
  std::atomic<uint32_t> reaping;           // (member index + 1) << 2 | marks of the two sums at its start; 0: none under way
  std::atomic<uint32_t> room_wanted;      // 1: some member has faults that wait for DRAM; whoever gives back clears it and raises the pressure
  std::atomic<uint32_t> member_high;      // members ever used
  std::atomic<uint32_t> unsettled;        // 1: a member died in the middle of a change, the sums may be too high
  pthread_mutex_t lock;                   // robust, shared
  std::atomic<uint16_t> carve_owner[kCarvePieces];   // shared device: member index + 1 by piece
  AccountMember members[kMembersMax];
  std::atomic<int64_t> shared_pages;      // charged to several members and there once
};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint16_t>::is_always_lock_free);

class Account {
 public:
  // fd >= 0: the tree's memfd (made by `lunar run`); -1: an account of our own. First one in sets the caps.
  [[nodiscard]] int open(int fd, uint64_t cap_pages, uint64_t lun_cap_bytes);
  // Becomes a member. The calling thread proves its life until the process' housekeeping thread can (lock_alive).
  [[nodiscard]] int join();
  // Before a fork: a member for the child to come, index or -errno; the child adopts it. A fork that failed leaves one
  // that nobody adopts; it is reaped after 30 s. *ticket: what the child shows for it.
  [[nodiscard]] int reserve_child(uint32_t fork_epoch, uint64_t* ticket);
  // The fork has returned in the parent: a child that is killed before it adopts its member is seen to be gone.
  void name_child(unsigned index, uint64_t ticket, int pid);
  // -ESRCH: it was reaped (the child has stood still for so long).
  [[nodiscard]] int adopt(unsigned index, uint64_t ticket);
  void lock_starter();                    // by the first thread of a member that is not active
  void lock_alive();                      // by a service thread that lives as long as the process

  // Memory of a member that is not active. take_plain: false when the tree's use would pass `limit` pages, also after the dead have
  // been swept. reserve_plain_child: a member for a child with so much; `prepaid` of it is charged to this member until now. Index or -errno.
  bool take_plain(int64_t pages, int64_t limit);
  void give_plain(int64_t pages) { give_fixed(pages); }
  int64_t plain_pages() const { return me().fixed.load(std::memory_order_relaxed); }
  [[nodiscard]] int reserve_plain_child(int64_t pages, int64_t prepaid, uint64_t* ticket);
  // Activation: what is plain can be evicted from now on (and back, when it failed).
  void plain_to_evictable(int64_t pages) { me().fixed.fetch_sub(pages, std::memory_order_relaxed); }
  unsigned member() const { return member_; }

  // DRAM. take: false when it would leave fewer than `keep_free` pages.
  bool take(int64_t pages, int64_t keep_free);
  void take_always(int64_t pages);        // may pass the cap: what is there already
  // Before a fork: what the child inherits, charged to it. True: all of it can be copied at any time. False: it is counted as shared.
  bool take_for_child(unsigned index, int64_t pages, int64_t keep_free, bool can_share);
  // Shared pages are about to be copied. False: no room for that now.
  bool unshare(int64_t pages, int64_t keep_free);
  void unshare_always(int64_t pages);
  int64_t shared_pages() const { return shared_->shared_pages.load(std::memory_order_relaxed); }
  void take_fixed(int64_t pages);         // frames, windows, tables: always
  // The same where the cap allows it.
  [[nodiscard]] bool take_fixed_within(int64_t pages, int64_t keep_free);
  // Fixed pages ahead of their use, where `room` pages of the cap stay that are not fixed: also among several that ask at once. take_fixed takes
  // of what was put down with use_reserved, until it is used up. May sleep.
  [[nodiscard]] bool reserve_fixed(int64_t pages, int64_t room);
  void use_reserved(int64_t pages) { reserved_ = pages; }
  int64_t reserved() const { return reserved_; }
  void end_reserved();                    // what is left of it is given back
  // Fixed pages and LUN space of ours are the child's from now on.
  void hand_to_child(unsigned index, int64_t fixed_pages, int64_t lun_bytes);
  // The fork failed: nobody will adopt it.
  void release_child(unsigned index, uint64_t ticket);
  void give_fixed(int64_t pages);
  void give(int64_t pages);
  void give_maybe_shared(int64_t pages);  // they may still be there for a relative
  int64_t free_pages() const { return shared_->cap_pages.load(std::memory_order_relaxed) - there(); }
  int64_t cap_pages() const { return shared_->cap_pages.load(std::memory_order_relaxed); }
  // What eviction cannot give back (frames, windows, tables), of all members together.
  int64_t fixed_total() const;
  bool others_active() const;   // some other member has such
  // The housekeeping thread holds this member's mutex: its end, also by exec, will be seen.
  bool alive_locked() const { return me().state.load(std::memory_order_acquire) == 2; }
  int64_t own_fixed() const { return me().fixed.load(std::memory_order_relaxed); }
  int64_t own_pages() const { return me().pages.value(); }
  void set_cap(int64_t pages) { shared_->cap_pages.store(pages); }
  void set_lun_cap(int64_t bytes) { shared_->lun_cap_bytes.store(bytes); }
  // Whether this member is at or above its weighted share of what can be evicted: it evicts when DRAM runs low.
  bool above_share() const;
  void raise_pressure();                  // wakes sleeping evictors of all members
  void wait_pressure(uint32_t seen, int64_t timeout_ns);   // -1: without end
  void want_room() { shared_->room_wanted.store(1, std::memory_order_seq_cst); }   // the next give() wakes evictors
  uint32_t pressure() const { return shared_->pressure.load(std::memory_order_acquire); }

  // The kernel pins pages of the target while process_vm_writev goes on: members evict by UFFDIO_MOVE meanwhile. begin waits for their
  // batches under way (bounded).
  void write_elsewhere_begin();
  void write_elsewhere_end() { me().writing_elsewhere.fetch_sub(1, std::memory_order_release); }
  bool someone_writes_elsewhere() const;  // inside a batch
  // An eviction batch of this member; wait_for_own_batch returns when none is under way that began before the call (bounded).
  void batch_begin() {
    me().batch.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);   // with those who wait: one of the two sees the other
  }
  void wait_for_own_batch();
  void batch_end() { me().batch.fetch_add(1, std::memory_order_release); }

  // LUN space promised to this member.
  [[nodiscard]] int lun_take(int64_t bytes);
  void lun_give(int64_t bytes);
  int64_t lun_free() const { return shared_->lun_cap_bytes.load() - shared_->lun_used_bytes.value(); }
  int64_t lun_cap() const { return shared_->lun_cap_bytes.load(); }

  // Gives back what dead members held. Lowest fork epoch of a live child of ours goes to *oldest_child (0: none). False: some member is
  // ending, and its memory may be there still.
  bool sweep(uint32_t* oldest_child);
  // The same by who is short: waits for members that are ending, a while.
  void sweep_settled();
  // Whether the child reserved at that fork epoch, or a descendant that was handed up to us in its place, is still there (as of
  // the last sweep).
  bool child_lives(uint32_t fork_epoch) const;
  // The futex words of living children, for sys::futex_wait_any: each changes when the child ends. `unsure`: some child cannot be waited for (it
  // has just been made, or there are more than `max`). Returns how many.
  unsigned child_words(sys::FutexWait* out, unsigned max, bool* unsure);
  // Pieces of a device shared by the tree: takes `pieces` adjacent ones, first index or -ENOSPC.
  [[nodiscard]] int carve(unsigned pieces);
  void uncarve(int first, unsigned pieces);   // gives back what carve() took, unused

  void dump(int fd) const;

 private:
  AccountMember& me() const { return shared_->members[member_]; }
  // Others write that word, also those with fewer rights than ours: never above what there is.
  uint32_t members_used() const {
    const uint32_t high = shared_->member_high.load(std::memory_order_acquire);
    return high < kMembersMax ? high : kMembersMax;
  }
  void lock();
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
  int64_t reserved_ = 0;   // of our fixed pages, not used yet
};

}  // namespace lunar
