// SPDX-License-Identifier: Apache-2.0
// The state of one page is one atomic 64-bit word.
//
//   bit  0..2   state
//        3..5   state before kBusy
//        6      waiter
//        7      pinned
//        8..10  heat
//        11     charged on touch
//        12..15 LUN the slot lies on (PagerState::luns)
//        16..31 epoch   kResident            fork epoch in which the page was exclusive; 0: not
//                                            known
//                       kInFrame, kEvicted   eviction time (PagerState::eviction_time)
//        32..63 index   kResident            slot of the last copy, which may have become old, or
//                                            kNoSlot
//                       kEvicted             slot
//                       kInFrame             frame
//                       kBusy                as in the state before
//
//                    ┌──────────── discard ───────────────┐
//                    ▼                                    │
//     touch   ┌────────────┐  install   ┌─────────────┐   │
//   ─────────►│   kEmpty   │───────────►│  kResident  │───┤
//             └────────────┘            └──┬───────▲──┘   │
//                    ▲ zero page    gather │       │ copy from frame ("second chance")
//                    │              -evict ▼       │      │
//                    │                  ┌─────────────┐   │
//                    └──────────────────│  kInFrame   │───┤
//                                       └──────┬──────┘   │
//                                frame reused  ▼          │
//                                       ┌─────────────┐   │  read failed, retried     ┌───────────┐
//                                       │  kEvicted   │───┴──────────────────────────►│ kPoisoned │
//                                       └─────────────┘  read + install ──► kResident └───────────┘
//
// Every arrow passes through kBusy: the thread that compare-exchanges a word to kBusy has locked
// the page, until it stores the next state. The fault path never blocks on kBusy: a handler that
// finds it sets `waiter` and forgets the message, and the owner wakes the page's waiters when it
// releases the page (UFFDIO_COPY also wakes them). kGuard is a guard page (MADV_GUARD_INSTALL): the
// kernel's marker is in its place, touching it raises SIGSEGV, and a copy into it would erase the
// marker.
#pragma once
#include <errno.h>

#include <atomic>
#include <cstdint>
#include <iterator>

#include "base/units.h"

namespace lunar {

enum class PageState : uint8_t { kEmpty, kResident, kEvicted, kInFrame, kBusy, kPoisoned, kGuard };
constexpr unsigned kPageStates = 7;
constexpr const char* kPageStateNames[] = {"empty", "resident", "evicted", "in frame",
                                           "busy",  "poisoned", "guard"};
static_assert(std::size(kPageStateNames) == kPageStates &&
              static_cast<unsigned>(PageState::kGuard) == kPageStates - 1);

struct PageWord {
  uint64_t raw = 0;

  static constexpr uint64_t kStateMask = 7, kPreviousShift = 3, kWaiter = 1u << 6,
                            kPinned = 1u << 7;
  static constexpr uint64_t kHeatShift = 8, kHeatMax = 7, kCharged = 1u << 11, kLunShift = 12,
                            kEpochShift = 16;
  static constexpr uint64_t kIndexShift = 32;

  constexpr PageState state() const {  // NOLINT(*EnumCast*): 7 is not stored
    return static_cast<PageState>(raw & kStateMask);
  }
  constexpr PageState previous() const {
    return static_cast<PageState>((raw >> kPreviousShift) & 7);
  }
  // The state; for a busy page, the state before.
  constexpr PageState settled() const { return state() == PageState::kBusy ? previous() : state(); }
  constexpr bool waiter() const { return raw & kWaiter; }
  constexpr bool pinned() const { return raw & kPinned; }
  constexpr bool charged() const { return raw & kCharged; }
  constexpr unsigned heat() const { return (raw >> kHeatShift) & kHeatMax; }
  constexpr unsigned lun() const { return (raw >> kLunShift) & 15; }
  constexpr uint16_t epoch() const { return static_cast<uint16_t>(raw >> kEpochShift); }
  constexpr uint16_t eviction_time() const { return epoch(); }  // of kInFrame, kEvicted
  constexpr uint32_t index() const { return static_cast<uint32_t>(raw >> kIndexShift); }
  constexpr Slot slot() const { return Slot(index()); }
  constexpr bool has_slot() const { return index() != kNoSlot.value; }

  constexpr PageWord with_state(PageState s) const {
    return {(raw & ~kStateMask) | static_cast<uint64_t>(s)};
  }
  constexpr PageWord busy() const {
    return {(raw & ~(kStateMask | (7u << kPreviousShift) | kWaiter)) |
            static_cast<uint64_t>(PageState::kBusy) |
            (static_cast<uint64_t>(state()) << kPreviousShift)};
  }
  // Words of a leaf that leaves the table (page_table.h): busy until it has left (kLeaving). After
  // that (kRetired) they cannot be locked or pinned, and the page is looked up again.
  static constexpr uint64_t kLeaving =
      static_cast<uint64_t>(PageState::kBusy) * (1 + (1 << kPreviousShift));
  static constexpr uint64_t kRetired = kLeaving | uint64_t{1} << kIndexShift;
  constexpr bool leaving() const {
    return state() == PageState::kBusy && previous() == PageState::kBusy;
  }
  constexpr bool retired() const { return leaving() && index() != 0; }
  // Empty, not pinned and without a waiter: the page needs no word.
  constexpr bool blank() const { return state() == PageState::kEmpty && !pinned() && !waiter(); }
  constexpr PageWord with_waiter() const { return {raw | kWaiter}; }
  constexpr PageWord with_heat(unsigned h) const {
    return {(raw & ~(kHeatMax << kHeatShift)) |
            (static_cast<uint64_t>(h > kHeatMax ? kHeatMax : h) << kHeatShift)};
  }
  constexpr PageWord with_charged(bool c) const { return {c ? raw | kCharged : raw & ~kCharged}; }
  constexpr PageWord with_lun(unsigned l) const {
    return {(raw & ~(uint64_t{15} << kLunShift)) | (static_cast<uint64_t>(l) << kLunShift)};
  }
  constexpr PageWord with_epoch(uint16_t e) const {
    return {(raw & ~(uint64_t{0xffff} << kEpochShift)) | (static_cast<uint64_t>(e) << kEpochShift)};
  }
  constexpr PageWord with_eviction_time(uint16_t t) const { return with_epoch(t); }
  constexpr PageWord with_index(uint32_t i) const {
    return {(raw & 0xffffffffu) | (static_cast<uint64_t>(i) << kIndexShift)};
  }
  // Without content or charge. next: kEmpty or kGuard.
  constexpr PageWord emptied(PageState next) const {
    return with_state(next).with_slot(kNoSlot).with_heat(0).with_charged(false);
  }
  constexpr PageWord with_slot(Slot s) const { return with_index(s.value); }
};
static_assert(sizeof(PageWord) == 8);
static_assert(std::atomic<PageWord>::is_always_lock_free);

// The low 16 bits of the fork epoch (which advances by two per fork) mark pages as exclusive.
// Before the epoch enters a half of these values, the marks with such values, which are from the
// last round, are removed (retire_epochs in fork.cpp).
constexpr uint16_t kEpochUnknown = 0;
constexpr bool still_exclusive(uint16_t mark, uint16_t now) {
  return mark == now && mark != kEpochUnknown;
}
constexpr bool same_epoch_half(uint16_t a, uint16_t b) { return (a ^ b) < 0x8000; }

// Heat of a page that comes in (evict/choose.h).
constexpr unsigned kHeatFault = 1, kHeatReadAhead = 0, kHeatSecondChance = 4, kHeatHot = 7;

using AtomicPageWord = std::atomic<PageWord>;

// Locks the page: from `seen` to kBusy. False: the word changed (look again).
inline bool page_lock(AtomicPageWord& word, PageWord seen) {
  return word.compare_exchange_strong(seen, seen.busy(), std::memory_order_acq_rel,
                                      std::memory_order_relaxed);
}

// Releases a busy page: `next`, which is not busy, is its word from now on, with the pin bit as it
// is. Returns true if a thread waits: the caller must wake the page's waiters.
inline bool page_unlock(AtomicPageWord& word, PageWord next) {
  PageWord old = word.load(std::memory_order_relaxed);
  PageWord want;
  do {
    want.raw =
        (next.raw & ~(PageWord::kWaiter | PageWord::kPinned)) | (old.raw & PageWord::kPinned);
  } while (
      !word.compare_exchange_weak(old, want, std::memory_order_acq_rel, std::memory_order_relaxed));
  return old.waiter();
}

// The pin bit may be changed at any time and in any state. Both return 1 if it was set before,
// otherwise 0. -EAGAIN: the page's leaf is leaving the table; call table_reach and look it up
// again.
inline int page_set_pinned(AtomicPageWord& word) {
  PageWord old = word.load(std::memory_order_relaxed);
  do {
    if (old.leaving()) return -EAGAIN;
  } while (
      !word.compare_exchange_weak(old, {old.raw | PageWord::kPinned}, std::memory_order_acq_rel));
  return old.pinned();
}
inline int page_clear_pinned(AtomicPageWord& word) {
  PageWord old = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(old, {old.raw & ~PageWord::kPinned},
                                     std::memory_order_acq_rel)) {}
  return old.pinned();
}

}  // namespace lunar
