// SPDX-License-Identifier: Apache-2.0
#include "pager/evict/choose.h"

#include "pager/state/state.h"

namespace lunar {
namespace {

// Locks a resident page without heat, and adds it to the batch; lowers the heat of a page that has
// some.
void try_victim(Batch& batch, Region* region, PageIndex page, bool ignore_heat) {
  AtomicPageWord* word = region->table.find(page.value);
  if (word == nullptr) return;
  PageWord seen = word->load(std::memory_order_relaxed);
  if (seen.state() != PageState::kResident || seen.pinned()) return;
  if (seen.heat() != 0 && !ignore_heat)
    word->compare_exchange_strong(seen, seen.with_heat(seen.heat() - 1), std::memory_order_relaxed);
  else if (page_lock(*word, seen))
    batch.victims[batch.count++] = {.region = region, .page = page, .word = seen};
}

}  // namespace

void Chooser::reset() {
  behind_lock_.unlock();  // the parent may have held it
  for (Behind& one : behind_) one = {};
  has_behind_.store(false);
}

bool Chooser::choose(Batch& batch, unsigned want) {
  const TableScope scope;
  batch.count = 0;
  choose_behind(batch, want);
  if (batch.count == 0) choose_clock(batch, want);
  return batch.count != 0;
}

bool Chooser::choose_range(Batch& batch, unsigned want, Region* region, uint64_t* first,
                           uint64_t end) {
  const TableScope scope;
  batch.count = 0;
  while (batch.count < want) {
    *first = region->table.next_used(*first, end);
    if (*first >= end) break;
    try_victim(batch, region, PageIndex((*first)++), true);
  }
  return batch.count != 0;
}

// Seven laps cool the hottest page, and one more takes it. If all pages are pinned, ten laps end
// the search.
void Chooser::choose_clock(Batch& batch, unsigned want) {
  const auto& regions = state_.regions;
  for (unsigned laps = 0; batch.count < want && laps < 10;) {
    const uint32_t count = regions.count.load(std::memory_order_acquire);
    if (count == 0) return;
    if (hand_region_ >= count) {
      hand_region_ = 0;
      hand_page_ = 0;
      ++laps;
    }
    Region* region = regions.sorted[hand_region_].load(std::memory_order_acquire);
    const uint64_t end = sweep(batch, want, region);
    if (hand_page_ < end) continue;
    ++hand_region_;
    hand_page_ = 0;
  }
}

// Moves the hand on in this region, past chunks without resident pages. Returns the end of the
// region.
uint64_t Chooser::sweep(Batch& batch, unsigned want, Region* region) {
  const uint64_t end = region != nullptr ? region->table_pages.load(std::memory_order_acquire) : 0;
  while (hand_page_ < end && batch.count < want) {
    const auto& resident = region->chunk_resident[hand_page_ / kChunkPages];
    if (hand_page_ % kChunkPages == 0 && resident.load(std::memory_order_relaxed) <= 0)
      hand_page_ += kChunkPages;
    else
      try_victim(batch, region, PageIndex(hand_page_++), false);
  }
  return end;
}

void Chooser::leave_behind(const Region& region, PageIndex page) {
  // pages before `page`: still in use; read since the fault before; that belong to the same reader
  constexpr uint64_t kLag = 8, kReach = kReadRunMax + kLag, kJoin = 256;
  if (page.value <= kLag || region.access_of(PageIndex(page.value - kLag)) != Access::kSequential)
    return;
  const uint64_t first = page.value > kReach ? page.value - kReach : 0,
                 join = kJoin << state_.page_shift;
  char *begin = region.address_of(PageIndex(first)),
       *end = region.address_of(PageIndex(page.value - kLag));
  sys::Locked<sys::SpinLock> lock(behind_lock_);
  has_behind_.store(true, std::memory_order_relaxed);
  for (Behind& one : behind_) {
    if (one.begin == one.end || begin < one.begin || begin > one.end + join) continue;
    if (end > one.end) one.end = end;
    return;
  }
  behind_[behind_next_++ % kBehindMax] = {begin, end};
}

// The next page that was left behind, or null.
char* Chooser::next_behind() {
  sys::Locked<sys::SpinLock> lock(behind_lock_);
  for (unsigned i = 0; i < kBehindMax; ++i) {
    Behind& one = behind_[(behind_next_ + i) % kBehindMax];
    if (one.begin == one.end) continue;
    char* at = one.begin;
    one.begin += state_.page_size;
    return at;
  }
  has_behind_.store(false, std::memory_order_relaxed);
  return nullptr;
}

void Chooser::choose_behind(Batch& batch, unsigned want) {
  while (has_behind_.load(std::memory_order_relaxed) && batch.count < want) {
    char* at = next_behind();
    Region* region = at != nullptr ? state_.regions.find(at) : nullptr;
    if (region != nullptr && region->access_of(region->page_of(at)) == Access::kSequential)
      try_victim(batch, region, region->page_of(at), true);
  }
}

}  // namespace lunar
