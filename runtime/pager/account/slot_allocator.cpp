// SPDX-License-Identifier: Apache-2.0
// The slots: see slot_allocator.h.
//
//   slots     0        64       128              reserved               total
//             ├────────┼────────┼─── ... ────────┼──────────────────────┤
//   used      │ word 0 │ word 1 │                │ no space there yet   │ one bit a slot, 1 = taken
//   empty     one bit a word: 1 = the whole segment is free (a hint that may lag; the word decides)
//             ▲ head: where the log goes on
//
// The device's space grows as a prefix (fallocate), and only slots below `reserved` are given out.
// Charged, retired and cleaning slots together never exceed it, so alloc finds a slot for every
// charged page.
//
// Threading: bits change by compare-and-swap of their word; the thread that set a bit owns the
// slot. The counters follow the words and may lag behind them for a moment. Growth is under
// grow_lock. alloc, release, charge_fast and uncharge may not block.
#include "pager/account/slot_allocator.h"

#include <errno.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <new>

#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kExtentBytes = 64 * kMiB;
constexpr uint64_t kSlotsMax = UINT32_MAX - 63;  // Slot has 32 bits, kNoSlot is not a slot
constexpr unsigned kWindow = 64;                 // segments among which the emptiest is taken
constexpr unsigned kWindowsPicky = 16;  // windows in which only segments above average are taken

constexpr uint32_t kOpenSegment = 1u << 31;

constexpr uint64_t mask_of(unsigned first, unsigned count) {
  return (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first;
}

// The caller's runs while they fill: neighbours are joined.
struct RunList {
  SlotRun* runs;
  unsigned max;
  uint32_t want;
  unsigned count = 0;

  bool full() const { return want == 0; }
  bool has_room() const { return count < max; }
  // Whether a run that starts at `slot` could be taken in.
  bool accepts(uint32_t slot) const { return has_room() || continues(slot); }
  bool continues(uint32_t slot) const {
    return count && runs[count - 1].first.value + runs[count - 1].count == slot;
  }
  void add(uint32_t slot, uint32_t length) {
    want -= length;
    if (continues(slot))
      runs[count - 1].count += length;
    else
      runs[count++] = {Slot{slot}, length};
  }
};

}  // namespace

struct SlotAllocator::Impl {
  uint64_t base = 0;
  uint32_t total = 0;     // slots
  uint32_t cleaning = 0;  // slots that cannot be charged (kCleaningReserve)
  uint32_t extent = 0;    // slots by which the device's space grows
  size_t mapping_bytes = 0;
  std::atomic<uint64_t>* used = nullptr;
  std::atomic<uint64_t>* empty = nullptr;
  // slots with space behind them, a prefix; whole segments
  alignas(64) std::atomic<uint32_t> reserved{0};
  std::atomic<uint64_t> charged{0};
  // segment, | kOpenSegment when the log is in the middle of it
  alignas(64) std::atomic<uint32_t> head{0};
  alignas(64) std::atomic<uint32_t> used_count{0};
  std::atomic<uint32_t> retired{0};
  sys::Mutex grow_lock;

  uint32_t segments() const { return reserved.load(std::memory_order_acquire) / kSlotsPerSegment; }
  void mark_empty(uint32_t segment) { empty[segment / 64].fetch_or(uint64_t{1} << segment % 64); }
  void mark_not_empty(uint32_t segment) {
    empty[segment / 64].fetch_and(~(uint64_t{1} << segment % 64));
    // it may have become empty between the claim and the line above
    if (used[segment].load() == 0) mark_empty(segment);
  }
  uint32_t find_empty(uint32_t from, uint32_t limit) const;
  unsigned claim(uint32_t segment, unsigned want, bool tail_only, unsigned* first);
  unsigned take(RunList* list, uint32_t segment, bool tail_only);
  void take_log(RunList* list, uint32_t segments);
  void take_emptiest(RunList* list, uint32_t segments);
};

// The first segment in [from, limit) that is hinted as empty, or limit.
uint32_t SlotAllocator::Impl::find_empty(uint32_t from, uint32_t limit) const {
  for (uint32_t at = from; at < limit; at = (at / 64 + 1) * 64) {
    const uint64_t word =
        empty[at / 64].load(std::memory_order_relaxed) & (~uint64_t{0} << at % 64);
    if (word == 0) continue;
    const uint32_t found = at / 64 * 64 + static_cast<uint32_t>(std::countr_zero(word));
    return std::min(found, limit);
  }
  return limit;
}

// Takes one run of up to `want` slots in the segment: with tail_only the free tail, where the log
// goes on, else the first free run. Returns its length; 0: there is none.
unsigned SlotAllocator::Impl::claim(uint32_t segment, unsigned want, bool tail_only,
                                    unsigned* first) {
  uint64_t word = used[segment].load(std::memory_order_relaxed);
  for (;;) {
    if (word == ~uint64_t{0}) return 0;
    const unsigned start = tail_only ? 64 - static_cast<unsigned>(std::countl_zero(word))
                                     : static_cast<unsigned>(std::countr_one(word));
    if (start == 64) return 0;
    // countr_zero is 64 when no slot in use follows
    const unsigned count =
        std::min({static_cast<unsigned>(std::countr_zero(word >> start)), 64 - start, want});
    const uint64_t mask = mask_of(start, count);
    if (!used[segment].compare_exchange_weak(word, word | mask)) continue;
    if (word == 0) mark_not_empty(segment);
    used_count.fetch_add(count, std::memory_order_relaxed);
    *first = start;
    return count;
  }
}

unsigned SlotAllocator::Impl::take(RunList* list, uint32_t segment, bool tail_only) {
  unsigned first = 0;
  const unsigned count = claim(segment, std::min(list->want, 64u), tail_only, &first);
  if (count) list->add(segment * kSlotsPerSegment + first, count);
  return count;
}

int SlotAllocator::open(Device* device, DeviceOffset base, uint64_t capacity_bytes,
                        uint32_t page_bytes) {
  if (impl_ || page_bytes < 4096 || !std::has_single_bit(page_bytes) ||
      base.value % page_bytes != 0)
    return -EINVAL;
  if (base.value > device->size_bytes() || capacity_bytes > device->size_bytes() - base.value)
    return -ENOSPC;
  uint64_t slots = capacity_bytes / page_bytes;
  if (slots > kSlotsMax) {
    log_warning(
        "LUN %s: %s of its %s are used, which is what a process can number; the rest stays idle",
        device->name(), format_size(kSlotsMax * page_bytes).text, format_size(capacity_bytes).text);
    slots = kSlotsMax;
  }
  slots = round_down(slots, kSlotsPerSegment);
  if (slots < 2 * kSlotsPerSegment) return -EINVAL;

  const uint64_t words = slots / kSlotsPerSegment, hints = (words + 63) / 64;
  const size_t head = round_up(sizeof(Impl), 64), bytes = head + (words + hints) * sizeof(uint64_t);
  // inherited: a child reads its ancestors' slots
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  impl_ = new (memory) Impl;
  impl_->base = base.value;
  impl_->total = static_cast<uint32_t>(slots);
  impl_->cleaning = static_cast<uint32_t>(
      std::min<uint64_t>(round_up(slots / 16, kSlotsPerSegment), kCleaningReserve));
  const uint64_t extent = std::clamp<uint64_t>(kExtentBytes / page_bytes, 1, slots / 16);
  impl_->extent = static_cast<uint32_t>(round_up(extent, kSlotsPerSegment));
  impl_->mapping_bytes = bytes;
  impl_->used = reinterpret_cast<std::atomic<uint64_t>*>(memory + head);
  impl_->empty = impl_->used + words;
  device_ = device;
  page_bytes_ = page_bytes;
  return 0;
}

void SlotAllocator::close() {
  if (!impl_) return;
  const uint64_t bytes = static_cast<uint64_t>(impl_->reserved.load()) * page_bytes_;
  if (bytes) device_->release(DeviceOffset{impl_->base}, bytes);
  unmap_private(impl_, impl_->mapping_bytes);
  impl_ = nullptr;
  device_ = nullptr;
}

void SlotAllocator::forget() {
  if (!impl_) return;
  unmap_private(impl_, impl_->mapping_bytes);
  impl_ = nullptr;
  device_ = nullptr;
}

uint64_t SlotAllocator::capacity_slots() const {
  const uint64_t held = uint64_t{impl_->cleaning} + impl_->retired.load(std::memory_order_relaxed);
  return held < impl_->total ? impl_->total - held : 0;
}

uint64_t SlotAllocator::charged_slots() const {
  return impl_->charged.load(std::memory_order_relaxed);
}
uint64_t SlotAllocator::used_slots() const {
  return impl_->used_count.load(std::memory_order_relaxed);
}
uint64_t SlotAllocator::retired_slots() const {
  return impl_->retired.load(std::memory_order_relaxed);
}

int SlotAllocator::charge_fast(uint64_t slots) {
  uint64_t charged = impl_->charged.load(std::memory_order_relaxed);
  do {
    const uint64_t held =
        uint64_t{impl_->cleaning} + impl_->retired.load(std::memory_order_relaxed);
    if (slots > impl_->total || charged + slots + held > impl_->total) return -ENOMEM;
    if (charged + slots + held > impl_->reserved.load(std::memory_order_acquire)) return -EAGAIN;
  } while (
      !impl_->charged.compare_exchange_weak(charged, charged + slots, std::memory_order_acq_rel));
  return 0;
}

bool SlotAllocator::runs_short() const {
  const uint64_t taken = charged_slots() + impl_->cleaning + retired_slots(),
                 have = impl_->reserved.load(std::memory_order_relaxed);
  return have < impl_->total && taken + impl_->extent / 4 > have;
}

int SlotAllocator::charge(uint64_t slots) {
  int status = charge_fast(slots);
  if (status != -EAGAIN) return status;
  sys::Locked lock(impl_->grow_lock);
  // Other threads may take what was just reserved: try again until the charge succeeds, or the
  // device has no more.
  while ((status = charge_fast(slots)) == -EAGAIN) {
    const uint32_t have = impl_->reserved.load(std::memory_order_relaxed);
    const uint64_t need = charged_slots() + slots + impl_->cleaning + retired_slots();
    if (need <= have) continue;
    // Half an extent ahead, so that charge_fast finds reserved space.
    const uint64_t ahead = round_up(need + impl_->extent / 2, impl_->extent);
    const uint64_t exact = round_up(need, kSlotsPerSegment);
    status = -ENOSPC;
    for (uint64_t goal : {ahead, exact}) {
      if (goal > impl_->total) goal = impl_->total;
      const DeviceOffset at{impl_->base + uint64_t{have} * page_bytes_};
      status = device_->reserve(at, (goal - have) * page_bytes_);
      if (status < 0) continue;
      for (uint32_t segment = have / kSlotsPerSegment; segment < goal / kSlotsPerSegment; ++segment)
        impl_->mark_empty(segment);
      impl_->reserved.store(static_cast<uint32_t>(goal), std::memory_order_release);
      break;
    }
    if (status == -EFBIG)
      LUNAR_LOG_LIMITED(log_warning, 1,
                        "the LUN's file may not grow beyond this process' limit on file sizes: no "
                        "more memory can be allocated; raise it (ulimit -f, LimitFSIZE=), or give "
                        "--lun a block device");
    if (status < 0) return status == -EFBIG ? status : -ENOMEM;
  }
  return status;
}

void SlotAllocator::uncharge(uint64_t slots) {
  const uint64_t before = impl_->charged.fetch_sub(slots, std::memory_order_acq_rel);
  LUNAR_CHECK(before >= slots, "more slots given back than were charged");
}

// The log: the rest of the open segment, then whole free segments behind the head, once around.
void SlotAllocator::Impl::take_log(RunList* list, uint32_t segments) {
  const uint32_t hint = head.load(std::memory_order_relaxed);
  uint32_t at = hint & ~kOpenSegment;
  if (at >= segments) at = 0;
  const uint32_t start = at;
  uint32_t last = at;
  if (hint & kOpenSegment) {
    // A short tail with no free segment behind it would use up the only run of a caller that wants
    // one.
    const bool goes_on =
        start + 1 < segments && used[start + 1].load(std::memory_order_relaxed) == 0;
    const auto tail =
        static_cast<uint32_t>(std::countl_zero(used[start].load(std::memory_order_relaxed)));
    if (list->max > 1 || goes_on || tail >= list->want) take(list, start, true);
    ++at;
  }
  for (bool around = false; !list->full();) {
    const uint32_t limit = around ? start : segments;
    at = at < limit ? find_empty(at, limit) : limit;
    if (at >= limit) {
      if (around) break;
      around = true;
      at = 0;
      continue;
    }
    if (!list->accepts(at * kSlotsPerSegment)) break;
    if (used[at].load(std::memory_order_relaxed) == 0 && take(list, at, true)) last = at;
    ++at;
  }
  head.store(last | kOpenSegment, std::memory_order_relaxed);
}

// No whole segment is left: takes the emptiest segments of each window, in turn from the head on.
// At first only segments at least as empty as the average, then any.
void SlotAllocator::Impl::take_emptiest(RunList* list, uint32_t segments) {
  const uint64_t taken = uint64_t{used_count.load(std::memory_order_relaxed)} +
                         retired.load(std::memory_order_relaxed);
  const uint64_t slots = uint64_t{segments} * kSlotsPerSegment;
  const auto average = static_cast<unsigned>(taken < slots ? (slots - taken) / segments : 0);
  const uint32_t windows = (segments + kWindow - 1) / kWindow;
  const uint32_t picky = std::min(windows, kWindowsPicky);
  uint32_t window = (head.load(std::memory_order_relaxed) & ~kOpenSegment) / kWindow;
  if (window >= windows) window = 0;
  for (uint32_t step = 0; step < picky + windows; ++step) {
    const unsigned least = step < picky && average > 1 ? average : 1;
    const uint32_t base_segment = window * kWindow;
    const uint32_t count = std::min(segments - base_segment, kWindow);
    uint8_t free_in[kWindow];
    for (uint32_t i = 0; i < count; ++i)
      free_in[i] = static_cast<uint8_t>(
          64 - std::popcount(used[base_segment + i].load(std::memory_order_relaxed)));
    while (!list->full() && list->has_room()) {
      uint32_t best = 0;
      for (uint32_t i = 1; i < count; ++i) best = free_in[i] > free_in[best] ? i : best;
      if (free_in[best] < least) break;
      free_in[best] = 0;
      while (!list->full() && list->has_room() && take(list, base_segment + best, false)) {}
    }
    // the next window, where the next call begins as well: the segments of this one are taken
    window = window + 1 < windows ? window + 1 : 0;
    if (list->full() || !list->has_room()) break;
  }
  head.store(window * kWindow, std::memory_order_relaxed);
}

unsigned SlotAllocator::alloc(uint32_t want, SlotRun* runs, unsigned max_runs) {
  const uint32_t segments = impl_->segments();
  if (want == 0 || max_runs == 0 || segments == 0) return 0;
  RunList list{runs, max_runs, want};
  impl_->take_log(&list, segments);
  if (!list.full() && list.has_room()) impl_->take_emptiest(&list, segments);
  return list.count;
}

void SlotAllocator::release(Slot slot) {
  LUNAR_CHECK(slot.value < impl_->total, "slot outside the LUN");
  const uint32_t segment = slot.value / kSlotsPerSegment;
  const uint64_t bit = uint64_t{1} << slot.value % kSlotsPerSegment;
  impl_->used_count.fetch_sub(1, std::memory_order_relaxed);
  const uint64_t before = impl_->used[segment].fetch_and(~bit);
  LUNAR_CHECK(before & bit, "slot released twice");
  if (before == bit) impl_->mark_empty(segment);
}

void SlotAllocator::retire(Slot slot) {
  LUNAR_CHECK(slot.value < impl_->total, "slot outside the LUN");
  const uint64_t bit = uint64_t{1} << slot.value % kSlotsPerSegment;
  LUNAR_CHECK(impl_->used[slot.value / kSlotsPerSegment].load() & bit,
              "slot retired without an owner");
  impl_->used_count.fetch_sub(1, std::memory_order_relaxed);
  impl_->retired.fetch_add(1, std::memory_order_relaxed);  // its bit stays set
}

DeviceOffset SlotAllocator::offset_of(Slot slot) const {
  return DeviceOffset{impl_->base + uint64_t{slot.value} * page_bytes_};
}

uint32_t SlotAllocator::bitmap_words() const { return impl_->total / kSlotsPerSegment; }

void SlotAllocator::copy_used(uint64_t* words, bool add) const {
  for (uint32_t i = 0; i < bitmap_words(); ++i)
    words[i] = (add ? words[i] : 0) | impl_->used[i].load(std::memory_order_relaxed);
}

bool SlotAllocator::validate() const {
  uint64_t bits = 0;
  const uint32_t words = impl_->total / kSlotsPerSegment, reserved = impl_->reserved.load();
  bool sound = reserved <= impl_->total && reserved % kSlotsPerSegment == 0;
  for (uint32_t i = 0; i < words; ++i) {
    const uint64_t word = impl_->used[i].load();
    bits += static_cast<unsigned>(std::popcount(word));
    if (i >= reserved / kSlotsPerSegment)
      sound &= word == 0;  // no slot is in use where there is no space
    else
      sound &= ((impl_->empty[i / 64].load() >> i % 64 & 1) != 0) == (word == 0);
  }
  const uint64_t charged = charged_slots();
  return sound && bits == used_slots() + retired_slots() &&
         (charged == 0 || charged + impl_->cleaning <= reserved);
}

}  // namespace lunar
