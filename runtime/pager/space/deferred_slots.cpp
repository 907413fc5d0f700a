// SPDX-License-Identifier: Apache-2.0
#include "pager/space/deferred_slots.h"

#include <errno.h>

#include "pager/space/lun_space.h"
#include "pager/state/state.h"
#include "sys/arena.h"
#include "sys/fatal.h"

namespace lunar {
namespace {

// A queue of slots in the order of the fork epoch in which they were given up.
struct DeferredSlot {
  uint32_t slot;
  uint32_t epoch;
};
struct DeferredQueue {
  sys::SpinLock lock;
  // a ring, mapped at first use, with an entry for each slot of the LUN
  DeferredSlot* entries = nullptr;
  uint64_t capacity = 0, head = 0, count = 0;
  // slots that were in use at forks whose children live: only these are deferred
  uint64_t* shared = nullptr;
};
constinit DeferredQueue g_deferred;

struct ForkReservation {
  uint32_t epoch = 0;  // 0: none
  uint64_t slots = 0;
};
constinit ForkReservation g_reservations[kMembersMax];

bool defer_slot(Slot slot, uint32_t epoch) {
  sys::Locked<sys::SpinLock> lock(g_deferred.lock);
  if (g_deferred.entries == nullptr || !(g_deferred.shared[slot.value / 64] >> slot.value % 64 & 1))
    return false;
  LUNAR_CHECK(g_deferred.count < g_deferred.capacity,
              "more slots held for children than there are");
  g_deferred.entries[(g_deferred.head + g_deferred.count++) % g_deferred.capacity] = {slot.value,
                                                                                      epoch};
  return true;
}

}  // namespace

uint64_t deferred_slots_bytes(uint64_t slots) { return slots * sizeof(DeferredSlot) + slots / 8; }

int deferred_slots_prepare(PagerState& state) {
  if (!state.luns.ready.load()) return 0;
  const SlotAllocator& lun = state.luns.slots[state.luns.own];
  if (g_deferred.entries == nullptr) {  // only this function, one fork at a time, makes it
    const uint64_t capacity = uint64_t{lun.bitmap_words()} * 64;
    const size_t shared_bytes = lun.bitmap_words() * sizeof(uint64_t),
                 entries_bytes = capacity * sizeof(DeferredSlot);
    void* shared = map_private(shared_bytes, ForkPolicy::kDontFork);
    void* entries = map_private(entries_bytes, ForkPolicy::kDontFork);
    if (entries == nullptr || shared == nullptr) {
      unmap_private(shared, shared_bytes);
      unmap_private(entries, entries_bytes);
      return -ENOMEM;
    }
    const sys::Locked<sys::SpinLock> lock(g_deferred.lock);
    g_deferred.capacity = capacity;
    g_deferred.shared = static_cast<uint64_t*>(shared);
    g_deferred.entries = static_cast<DeferredSlot*>(entries);
  }
  const sys::Locked<sys::SpinLock> lock(g_deferred.lock);
  // No write is in flight now, so every slot that a page of the child may refer to is in use. (So
  // are slots that are still held for children that have ended by now.)
  lun.copy_used(g_deferred.shared, state.fork.oldest_child.load(std::memory_order_acquire) != 0);
  return 0;
}

void deferred_slots_forget() {
  g_deferred.lock.unlock();
  g_deferred.entries = nullptr;
  g_deferred.shared = nullptr;
  g_deferred.head = g_deferred.count = g_deferred.capacity = 0;
}

void slot_release(PagerState& state, unsigned lun, Slot slot) {
  if (slot == kNoSlot || lun != state.luns.own) return;
  if (state.fork.oldest_child.load(std::memory_order_acquire) != 0 &&
      defer_slot(slot, state.fork.epoch.load(std::memory_order_acquire)))
    return;
  state.luns.slots[lun].release(slot);
}

void deferred_slots_release(PagerState& state) {
  for (;;) {
    Slot slot = kNoSlot;
    {
      sys::Locked<sys::SpinLock> lock(g_deferred.lock);
      if (g_deferred.count == 0) return;
      // read each time: a fork may have come in between
      uint32_t oldest = state.fork.oldest_child.load(std::memory_order_acquire);
      DeferredSlot& first = g_deferred.entries[g_deferred.head];
      if (oldest != 0 && first.epoch >= oldest) return;
      slot = Slot(first.slot);
      g_deferred.head = (g_deferred.head + 1) % g_deferred.capacity;
      --g_deferred.count;
    }
    state.luns.slots[state.luns.own].release(slot);
  }
}

uint64_t deferred_slot_count() { return g_deferred.count; }

void reservations_release(PagerState& state) {
  for (ForkReservation& reservation : g_reservations) {
    if (reservation.epoch == 0 || state.account.child_lives(reservation.epoch)) continue;
    state.luns.slots[state.luns.own].uncharge(reservation.slots);
    reservation = {};
  }
}

int reservation_make(PagerState& state, uint32_t epoch) {
  reservations_release(state);
  ForkReservation* place = nullptr;
  for (ForkReservation& reservation : g_reservations)
    if (reservation.epoch == 0 && place == nullptr) place = &reservation;
  if (place == nullptr) return -EAGAIN;
  const uint64_t slots = committed_pages(state);
  const int rc = slots_charge(state, slots);
  if (rc == 0) *place = {epoch, slots};
  return rc;
}

void reservations_forget() {
  for (ForkReservation& reservation : g_reservations) reservation = {};
}

}  // namespace lunar
