// SPDX-License-Identifier: Apache-2.0
#include "pager/table/leaf_pool.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "pager/state/requests.h"
#include "pager/table/table_promise.h"
#include "sys/arena.h"
#include "sys/fatal.h"

namespace lunar {

namespace {

// retired leaves and empty pages of DRAM, above which the housekeeping thread is asked to trim
constexpr uint32_t kPendingMax = 512, kEmptyMax = 32;
constexpr uint32_t kPendingLook = 64;  // retired leaves between attempts to use some again

}  // namespace

// The lowest leaf that is free, in a charged block or (`fresh`) in one that is not.
LeafPool::Place LeafPool::find(bool fresh) {
  uint32_t& low = fresh ? low_fresh_ : low_charged_;
  if (!fresh && free_charged_ == 0) return {};
  for (; low < segments_ * kWords; ++low) {
    const SegmentBits& bits = *bits_[low / kWords];
    const uint64_t charged = bits.charged.words[low % kWords],
                   free = (fresh ? ~charged : charged) & ~bits.used.words[low % kWords];
    if (free != 0) return {low * 64 + static_cast<uint32_t>(__builtin_ctzll(free)) + 1, fresh};
  }
  return {};
}

// Maps one more segment. Not under the lock.
bool LeafPool::grow() {
  void* leaves = map_private(kSegmentLeaves * sizeof(Leaf), ForkPolicy::kInherit);
  void* bits = map_private(sizeof(SegmentBits), ForkPolicy::kInherit);
  bool grown = false;
  {
    sys::Locked<sys::SpinLock> lock(lock_);
    grown = leaves != nullptr && bits != nullptr && segments_ < kSegmentsMax;
    if (grown) {
      bits_[segments_] = new (bits) SegmentBits;
      g_leaf_segments[segments_].store(static_cast<Leaf*>(leaves), std::memory_order_relaxed);
      ++segments_;
    }
  }
  if (!grown && leaves != nullptr) unmap_private(leaves, kSegmentLeaves * sizeof(Leaf));
  if (!grown && bits != nullptr) unmap_private(bits, sizeof(SegmentBits));
  return grown;
}

void LeafPool::change_loose(PagerState& state, int64_t units) {
  loose_units_ += units;
  if (units < 0) (void)promise_change(state, units);
}

// Promises and takes the DRAM for a leaf, and for its page of the directory if that has none. pre:
// the lock. 0; -ENOMEM: it may not be promised; -EAGAIN: there is no DRAM now.
int LeafPool::charge(PagerState& state, const Region& region, uint64_t page, bool fresh,
                     int64_t keep_free, Loose* loose) {
  const PageTable::Span& span = region.table.span_of(page);
  const auto none = [](const std::atomic<int32_t>& committed) {
    return committed.load(std::memory_order_relaxed) <= 0;
  };
  loose->leaf = region.on_touch || none(region.chunk_committed[page / kChunkPages]);
  loose->span = !span.charged && (region.on_touch || none(span.committed));
  const int64_t units = (loose->leaf ? 1 : 0) + (loose->span ? block_leaves() : 0);
  if (units != 0 && !promise_change(state, units)) return -ENOMEM;
  const int64_t cost = (fresh ? 1 : 0) + (span.charged ? 0 : 1);
  if (live_ && cost != 0 && !state.account.take_tables(cost, keep_free)) {
    (void)promise_change(state, -units);
    return -EAGAIN;
  }
  loose_units_ += units;
  return 0;
}

// pre: the lock.
void LeafPool::mark_used(Place place, bool loose) {
  const uint32_t number = place.number - 1, index = number % kSegmentLeaves;
  SegmentBits& bits = bits_of(number);
  LUNAR_DCHECK(!bits.used.get(index) && bits.charged.get(index) != place.fresh);
  if (place.fresh) {
    bits.charged.set_block(round_down(index, block_leaves()), true);
    ++charged_blocks_;
    free_charged_ += block_leaves();
    if (const uint32_t word = number / 64; word < low_charged_) low_charged_ = word;
  } else if (bits.used.block_is_clear(round_down(index, block_leaves()))) {
    --empty_blocks_;
  }
  --free_charged_;
  bits.used.set(index, true);
  bits.loose.set(index, loose);
}

// Adds a leaf for a group of pages that has none. pre: the lock. *must_grow: no segment has a leaf
// left.
int LeafPool::take(PagerState& state, Region& region, uint64_t group, int64_t keep_free,
                   bool* must_grow) {
  PageTable& table = region.table;
  if (table.leaf_of(group) != nullptr) return 0;
  const uint64_t page = group * kLeafPages;
  if (free_charged_ == 0 && pending_ != 0) use_again();
  Place place = find(false);
  if (place.number == 0) place = find(true);
  *must_grow = place.number == 0;
  if (*must_grow) return -EAGAIN;
  Loose loose;
  if (int rc = charge(state, region, page, place.fresh, keep_free, &loose); rc < 0) return rc;
  mark_used(place, loose.leaf);
  PageTable::Span& span = table.span_of(page);
  if (!span.charged) {
    span.charged = true;
    span.loose = loose.span;
    ++charged_spans_;
  } else if (span.leaves.load(std::memory_order_relaxed) == 0) {
    --empty_spans_;
  }
  Leaf& leaf = leaf_at(place.number - 1);
  for (AtomicPageWord& word : leaf.words) word.store({}, std::memory_order_relaxed);
  // before the number: a reader that finds a number, and a forked child, finds the span in use
  span.leaves.fetch_add(1, std::memory_order_release);
  table.directory_[group].store(place.number, std::memory_order_release);
  return 0;
}

int LeafPool::add(PagerState& state, Region& region, uint64_t group, int64_t keep_free) {
  for (;;) {
    bool must_grow = false;
    {
      sys::Locked<sys::SpinLock> lock(lock_);
      const int rc = take(state, region, group, keep_free, &must_grow);
      if (!must_grow) return rc;
    }
    if (!grow()) return -ENOMEM;
  }
}

// pre: the lock.
void LeafPool::free_leaf(uint32_t number) {
  const uint32_t index = number % kSegmentLeaves;
  SegmentBits& bits = bits_of(number);
  bits.used.set(index, false);
  ++free_charged_;
  if (number / 64 < low_charged_) low_charged_ = number / 64;
  if (bits.used.block_is_clear(round_down(index, block_leaves()))) ++empty_blocks_;
}

// Frees the retired leaves that no scope can hold any more. pre: the lock.
void LeafPool::use_again() {
  (void)TableScope::next_epoch();
  const uint64_t now = TableScope::epoch();
  while (queue_first_ != 0) {
    Leaf& leaf = leaf_at(queue_first_ - 1);
    if (leaf.hashes[1] + 2 > now) return;
    const uint32_t number = queue_first_ - 1;
    queue_first_ = static_cast<uint32_t>(leaf.hashes[0]);
    --pending_;
    free_leaf(number);
  }
}

void LeafPool::retire(PagerState& state, Region& region, uint64_t group, bool must) {
  PageTable& table = region.table;
  Leaf* leaf = table.leaf_of(group);
  if (leaf == nullptr) return;
  unsigned held = 0;
  const uint64_t first = group * kLeafPages;
  const auto wake = [&](unsigned i) {
    wake_waiters(state, region.address_of(PageIndex(first + i)), state.page_size);
  };
  for (; !must && held < kLeafPages; ++held) {
    const PageWord seen = leaf->words[held].load(std::memory_order_acquire);
    PageWord expected = seen;
    if (!seen.blank() || !leaf->words[held].compare_exchange_strong(expected, {PageWord::kLeaving}))
      break;
  }
  if (!must && held < kLeafPages) {
    while (held-- > 0)
      if (page_unlock(leaf->words[held], {})) wake(held);
    return;
  }
  bool ask = false;
  {
    sys::Locked<sys::SpinLock> lock(lock_);
    const uint32_t number = table.directory_[group].load(std::memory_order_relaxed) - 1;
    table.directory_[group].store(0, std::memory_order_seq_cst);
    PageTable::Span& span = table.span_of(first);
    if (span.leaves.fetch_sub(1, std::memory_order_release) == 1) ++empty_spans_;
    if (bits_of(number).loose.get(number % kSegmentLeaves)) change_loose(state, -1);
    leaf->hashes[0] = 0;
    leaf->hashes[1] = TableScope::epoch();
    if (queue_first_ == 0)
      queue_first_ = number + 1;
    else
      leaf_at(queue_last_ - 1).hashes[0] = number + 1;
    queue_last_ = number + 1;
    if (++pending_ % kPendingLook == 0) use_again();
    ask = live_ && (pending_ >= kPendingMax || empty_blocks_ + empty_spans_ >= kEmptyMax);
  }
  // After the leaf has left the directory. It cannot be used again yet, as this thread is in a
  // scope.
  for (unsigned i = 0; i < kLeafPages; ++i)
    if (leaf->words[i].exchange({PageWord::kRetired}, std::memory_order_acq_rel).waiter()) wake(i);
  if (ask) housekeeping_wake(state, kHousekeepingTables);
}

// Gives empty blocks back to the kernel. Returns how many. Each run of blocks counts as used
// meanwhile.
int64_t LeafPool::trim_blocks() {
  int64_t given = 0;
  const uint32_t step = block_leaves();
  for (uint32_t at = 0;;) {
    uint32_t first = 0, end = 0;
    {
      sys::Locked<sys::SpinLock> lock(lock_);
      const uint32_t limit = segments_ * kSegmentLeaves;
      const auto is_empty = [&](uint32_t i) {
        const SegmentBits& bits = bits_of(i);
        return bits.charged.get(i % kSegmentLeaves) && bits.used.block_is_clear(i % kSegmentLeaves);
      };
      while (at < limit && empty_blocks_ != 0 && !is_empty(at)) at += step;
      if (at >= limit || empty_blocks_ == 0) return given;
      first = end = at;
      for (; end < limit && end / kSegmentLeaves == first / kSegmentLeaves && is_empty(end);
           end += step) {
        bits_of(end).used.set_block(end % kSegmentLeaves, true);
        --empty_blocks_;
        free_charged_ -= step;
      }
    }
    (void)sys::advise(&leaf_at(first), (end - first) * sizeof(Leaf), MADV_DONTNEED);
    sys::Locked<sys::SpinLock> lock(lock_);
    for (at = first; at < end; at += step) {
      bits_of(at).used.set_block(at % kSegmentLeaves, false);
      bits_of(at).charged.set_block(at % kSegmentLeaves, false);
      --charged_blocks_;
      ++given;
    }
    if (first / 64 < low_fresh_) low_fresh_ = first / 64;
  }
}

// pre: the regions' lock.
int64_t LeafPool::trim_spans(PagerState& state) {
  int64_t given = 0;
  for (Region& region : state.regions) {
    for (uint64_t page = 0; page < region.pages; page += PageTable::span_pages()) {
      PageTable::Span& span = region.table.span_of(page);
      if (span.leaves.load(std::memory_order_relaxed) != 0) continue;
      sys::Locked<sys::SpinLock> lock(lock_);
      if (empty_spans_ == 0) return given;
      if (!span.charged || span.leaves.load(std::memory_order_relaxed) != 0) continue;
      const uint64_t bytes = PageTable::span_groups() * sizeof(uint32_t);
      (void)sys::advise(
          reinterpret_cast<char*>(region.table.directory_) + page / PageTable::span_pages() * bytes,
          bytes, MADV_DONTNEED);
      span.charged = false;
      if (span.loose) change_loose(state, -static_cast<int64_t>(block_leaves()));
      --empty_spans_;
      --charged_spans_;
      ++given;
    }
  }
  return given;
}

bool LeafPool::trim(PagerState& state) {
  bool settled;
  {
    sys::Locked<sys::SpinLock> lock(lock_);
    if (!live_) return true;
    use_again();
    use_again();  // frees what was retired in this epoch if there is no scope
    settled = pending_ == 0;
  }
  int64_t given = trim_blocks();
  if (state.regions.lock.try_lock()) {  // try: a fork that holds it may wait for this thread
    given += trim_spans(state);
    state.regions.lock.unlock();
  }
  if (given != 0) {
    state.account.give_tables(given);
    hand_over_room(state, false);
  }
  return settled;
}

// The region's directory is about to be unmapped.
void LeafPool::end_region(PagerState& state, Region& region) {
  int64_t given = 0, loose = 0;
  {
    sys::Locked<sys::SpinLock> lock(lock_);
    for (uint64_t page = 0; page < region.pages; page += PageTable::span_pages()) {
      PageTable::Span& span = region.table.span_of(page);
      given += span.charged;
      loose += span.charged && span.loose;
      span.charged = false;
    }
    charged_spans_ -= given;
    empty_spans_ -= static_cast<uint32_t>(given);
    change_loose(state, -loose * block_leaves());
  }
  if (live_) state.account.give_tables(given);
}

void LeafPool::go_live(PagerState& state) {
  sys::Locked<sys::SpinLock> lock(lock_);
  live_ = true;
  state.account.take_tables_always(pages());
}

// A thread of the parent may have been adding a leaf, so exactly the leaves that the directories
// name count as used.
void LeafPool::enter_child(PagerState& state) {
  lock_.unlock();
  live_ = false;
  TableScope::reset_in_child();
  for (uint32_t s = 0; s < segments_; ++s) bits_[s]->used = bits_[s]->loose = Bits{};
  loose_units_ = charged_spans_ = empty_spans_ = 0;
  int64_t used = 0;
  for (Region& region : state.regions) {
    PageTable& table = region.table;
    uint64_t high = region.table_pages.load();
    for (uint64_t first = 0; first < region.pages; first += PageTable::span_pages()) {
      PageTable::Span& span = table.span_of(first);
      const uint64_t end = std::min(first + PageTable::span_pages(), region.pages);
      uint32_t leaves = 0;
      for (uint64_t page = first; span.leaves.load() != 0 && page < end; page += kLeafPages) {
        const uint32_t number = table.directory_[page / kLeafPages].load(std::memory_order_relaxed);
        if (number == 0) continue;
        ++leaves;
        const bool loose =
            region.on_touch || region.chunk_committed[page / kChunkPages].load() <= 0;
        bits_of(number - 1).used.set((number - 1) % kSegmentLeaves, true);
        bits_of(number - 1).loose.set((number - 1) % kSegmentLeaves, loose);
        loose_units_ += loose;
        high = std::max(high, std::min(page + kLeafPages, region.pages));
      }
      used += leaves;
      const bool was_charged = span.charged || span.leaves.load() != 0;
      span.leaves.store(leaves);
      span.charged = was_charged;
      span.loose = was_charged && (region.on_touch || span.committed.load() <= 0);
      charged_spans_ += span.charged;
      empty_spans_ += span.charged && leaves == 0;
      loose_units_ += span.loose ? block_leaves() : 0;
    }
    region.table_pages.store(high);
  }
  // Charged blocks stay charged: the child has their memory.
  charged_blocks_ = empty_blocks_ = 0;
  for (uint32_t number = 0; number < segments_ * kSegmentLeaves; number += block_leaves()) {
    SegmentBits& bits = bits_of(number);
    const uint32_t index = number % kSegmentLeaves;
    const bool empty = bits.used.block_is_clear(index);
    if (!empty) bits.charged.set_block(index, true);
    charged_blocks_ += bits.charged.get(index);
    empty_blocks_ += empty && bits.charged.get(index);
  }
  free_charged_ = charged_blocks_ * block_leaves() - used;
  low_charged_ = low_fresh_ = queue_first_ = queue_last_ = pending_ = 0;
}

}  // namespace lunar
