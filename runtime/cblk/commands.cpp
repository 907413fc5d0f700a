// SPDX-License-Identifier: Apache-2.0
// The table of commands of a chunk: free ones, those whose result can be fetched in the order of their issue, tags.
// Threading: under the chunk's lock, all of it.
#include "cblk/chunk.h"

namespace lunar::cblk {
namespace {

uint32_t hash_of(int tag) { return static_cast<uint32_t>(tag) * 0x9e3779b9u >> 8; }

}  // namespace

void Chunk::reset_commands() {
  free_ = kNone;
  for (uint32_t i = entry_count_; i-- > 0;) {
    Entry& entry = entries_[i];
    entry.state.store(Entry::kFree, std::memory_order_relaxed);
    ++entry.life;
    entry.waiters = nullptr;
    entry.next = free_;
    free_ = i;
  }
  for (uint32_t i = 0; i <= hash_mask_; ++i) hash_[i] = kNone;
  backlog_first_ = backlog_last_ = oldest_ = newest_ = kNone;
  backlog_count_ = in_ring_ = fetchable_ = done_ = 0;
  background_.store(0, std::memory_order_relaxed);
}

uint32_t Chunk::take_free() {
  const uint32_t index = free_;
  if (index == kNone) return kNone;
  free_ = entries_[index].next;
  entries_[index].next = kNone;
  return index;
}

void Chunk::give_free(uint32_t index) {
  Entry& entry = entries_[index];
  entry.state.store(Entry::kFree, std::memory_order_release);
  ++entry.life;
  signal_waiters_of(index);
  entry.next = free_;
  free_ = index;
  signal_one(Waiter::kFree);
}

void Chunk::enter_fetchable(uint32_t index) {
  Entry& entry = entries_[index];
  entry.newer = kNone;
  entry.older = newest_;
  if (newest_ != kNone) entries_[newest_].newer = index;
  else oldest_ = index;
  newest_ = index;
  ++fetchable_;
  if (!entry.io.has_user_tag) return;
  entry.same_hash = kNone;
  uint32_t* place = &hash_[hash_of(entry.io.user_tag) & hash_mask_];
  while (*place != kNone) place = &entries_[*place].same_hash;   // at the end: of equal tags the oldest is found
  *place = index;
}

void Chunk::leave_fetchable(uint32_t index) {
  Entry& entry = entries_[index];
  if (entry.older != kNone) entries_[entry.older].newer = entry.newer;
  else oldest_ = entry.newer;
  if (entry.newer != kNone) entries_[entry.newer].older = entry.older;
  else newest_ = entry.older;
  --fetchable_;
  if (!entry.io.has_user_tag) return;
  uint32_t* place = &hash_[hash_of(entry.io.user_tag) & hash_mask_];
  while (*place != index) place = &entries_[*place].same_hash;
  *place = entry.same_hash;
}

uint32_t Chunk::oldest(Entry::State state) const {
  for (uint32_t i = oldest_; i != kNone; i = entries_[i].newer) {
    if (entries_[i].state.load(std::memory_order_relaxed) == state) return i;
  }
  return kNone;
}

// The command a tag means, or kNone; then *left_status: it was one whose status went to the caller's structure.
uint32_t Chunk::find_tag(int tag, bool user, bool* left_status) const {
  *left_status = false;
  if (!user) {
    if (tag < 0 || static_cast<uint32_t>(tag) >= entry_count_) return kNone;
    const Entry& entry = entries_[tag];
    const bool free = entry.state.load(std::memory_order_relaxed) == Entry::kFree;
    *left_status = free && entry.left_status && !entry.io.has_user_tag;
    return free || entry.io.has_user_tag ? kNone : static_cast<uint32_t>(tag);
  }
  for (uint32_t i = hash_[hash_of(tag) & hash_mask_]; i != kNone; i = entries_[i].same_hash) {
    if (entries_[i].io.user_tag == tag) return i;
  }
  for (uint32_t i = 0; i < entry_count_; ++i) {   // an error, or one that is under way with a status: it may take its time
    const Entry& entry = entries_[i];
    if (!entry.io.has_user_tag || entry.io.user_tag != tag) continue;
    if (entry.state.load(std::memory_order_relaxed) != Entry::kFree) return i;
    if (entry.left_status) *left_status = true;
  }
  return kNone;
}

}  // namespace lunar::cblk
