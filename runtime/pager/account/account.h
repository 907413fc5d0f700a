// SPDX-License-Identifier: Apache-2.0
// Account: the DRAM budget and the LUN space of a process tree, in memory shared by its processes
// (README.md).
//
// Pages that a forked child inherits and that cannot be copied yet (cow_gate.h) count as *shared*:
// they are charged twice, but present once. Giving back a page that may still be shared lowers
// `shared` along with `used`, so `used - shared` never falls below the number of present pages. All
// committed memory of a member that is not active is charged as if it were resident, as `fixed`.
//
// Threading: take and give are a few atomic operations; carve takes the account's lock.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "base/units.h"
#include "pager/account/members.h"

namespace lunar {

constexpr int64_t kKeepFreePages = 32;  // DRAM that only the evictors' own faults may take

class Account : public Members {
 public:
  // fd >= 0: the tree's memfd (made by `lunar run`); -1: a private account, in a file made here.
  // The first member sets the caps.
  [[nodiscard]] int open(int fd, uint64_t cap_pages, uint64_t lun_cap_bytes);

  // Memory of a member that is not active. take_plain: false if the tree's use would exceed `limit`
  // pages, even after dead members were swept. reserve_plain_child: makes a member for a child with
  // `pages` pages, of which `prepaid` are charged to this member so far. Index or -errno.
  bool take_plain(int64_t pages, int64_t limit);
  void give_plain(int64_t pages) { give_fixed(pages); }
  int64_t plain_pages() const { return me().fixed.load(std::memory_order_relaxed); }
  [[nodiscard]] int reserve_plain_child(int64_t pages, int64_t prepaid, uint64_t* ticket);
  // Activation: plain memory can be evicted from now on. With a negative count, if activation
  // failed: it cannot.
  void plain_to_evictable(int64_t pages) { me().fixed.fetch_sub(pages, std::memory_order_relaxed); }

  // DRAM. take: false if fewer than `keep_free` pages would be free.
  bool take(int64_t pages, int64_t keep_free);
  void take_always(int64_t pages);  // may exceed the cap: for pages that exist already
  // Before a fork: charges the child for the pages that it inherits. True: all of them can be
  // copied at any time. False: they count as shared, if they `can_share`.
  bool take_for_child(unsigned index, int64_t pages, int64_t keep_free, bool can_share);
  // Called before shared pages are copied. False: there is no room for the copies now.
  bool unshare(int64_t pages, int64_t keep_free);
  void unshare_always(int64_t pages);
  int64_t shared_pages() const { return shared_->shared_pages.load(std::memory_order_relaxed); }
  void take_fixed(int64_t pages);  // for frames, windows, tables; may exceed the cap
  // The same, but false if fewer than `keep_free` pages would be free.
  [[nodiscard]] bool take_fixed_within(int64_t pages, int64_t keep_free);
  // Reserves fixed pages ahead of their use, if `room` pages of the cap remain that are not fixed,
  // even when several members ask at once. take_fixed first takes from the amount set with
  // use_reserved. May sleep.
  [[nodiscard]] bool reserve_fixed(int64_t pages, int64_t room);
  void use_reserved(int64_t pages) { reserved_ = pages; }
  int64_t reserved() const { return reserved_; }
  void end_reserved();  // returns the rest
  // Page tables. promise: false if fewer than `room` pages of the cap would not be fixed. take: as
  // take_fixed_within.
  [[nodiscard]] bool promise_tables(int64_t pages, int64_t room);
  [[nodiscard]] bool take_tables(int64_t pages, int64_t keep_free);
  void take_tables_always(int64_t pages);
  void give_tables(int64_t pages);
  // Transfers fixed pages, LUN space and promised tables of this member to the child.
  void hand_to_child(unsigned index, int64_t fixed_pages, int64_t lun_bytes,
                     int64_t promised_tables = 0);
  void give_fixed(int64_t pages);
  void give(int64_t pages);
  void give_maybe_shared(int64_t pages);  // another process may still share them
  int64_t free_pages() const {
    return shared_->cap_pages.load(std::memory_order_relaxed) - present_at_most();
  }
  int64_t cap_pages() const { return shared_->cap_pages.load(std::memory_order_relaxed); }
  // The fixed pages of all members (frames, windows, plain memory), with the tables that are
  // promised.
  int64_t fixed_total() const;
  bool others_active() const;  // some other member has fixed pages
  int64_t own_fixed() const { return me().fixed.load(std::memory_order_relaxed); }
  int64_t own_pages() const { return me().pages.value(); }
  void set_cap(int64_t pages) { shared_->cap_pages.store(pages); }
  void set_lun_cap(int64_t bytes) { shared_->lun_cap_bytes.store(bytes); }
  // Whether this member is at or above its weighted share of the evictable pages: it evicts when
  // DRAM runs low.
  bool above_share() const;
  bool says_once() { return !shared_->said.exchange(true); }
  void raise_pressure();                                  // wakes sleeping evictors of all members
  void wait_pressure(uint32_t seen, int64_t timeout_ns);  // -1: no limit
  void want_room() {                                      // the next give() wakes evictors
    shared_->room_wanted.store(1, std::memory_order_seq_cst);
  }
  uint32_t pressure() const { return shared_->pressure.load(std::memory_order_acquire); }

  // Between begin and end all members evict by UFFDIO_MOVE (pager_write_elsewhere). begin waits for
  // their batches in progress. False: a member was stopped inside a batch; nothing was begun.
  [[nodiscard]] bool write_elsewhere_begin();
  void write_elsewhere_end() { me().writing_elsewhere.fetch_sub(1, std::memory_order_release); }
  bool someone_writes_elsewhere() const;  // called inside a batch
  // An eviction batch of this member. wait_for_own_batch returns when every batch that began before
  // the call has ended, however long that takes: such a batch may still drop a page that a device
  // writes to.
  void batch_begin() {
    me().batch.fetch_add(1, std::memory_order_seq_cst);
    // pairs with the fence of a waiting thread: one of the two sees the other
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void wait_for_own_batch();
  void batch_end() { me().batch.fetch_add(1, std::memory_order_release); }

  // LUN space promised to this member.
  [[nodiscard]] int lun_take(int64_t bytes);
  void lun_give(int64_t bytes);
  int64_t lun_free() const {
    return shared_->lun_cap_bytes.load() - shared_->lun_used_bytes.value();
  }
  int64_t lun_cap() const { return shared_->lun_cap_bytes.load(); }

  // Takes `pieces` adjacent pieces of a device that the tree shares. Returns the first, or -ENOSPC.
  [[nodiscard]] int carve(unsigned pieces);
  void uncarve(int first, unsigned pieces);  // returns unused pieces that carve() took

  void dump(int fd) const;

 private:
  void charge(AccountMember& member, int64_t pages);
  int64_t present_at_most() const;
  bool fits(int64_t keep_free) const { return free_pages() >= keep_free; }
  int64_t unused_promises() const;

  int64_t reserved_ = 0;  // own fixed pages that are not used yet
};

}  // namespace lunar
