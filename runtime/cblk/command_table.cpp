// SPDX-License-Identifier: Apache-2.0
// The command table of a chunk: free commands, fetchable ones in the order of their issue, tags.
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
    entry.lost = entry.delivered = false;
    entry.late = {};
    ++entry.life;
    entry.waiters = nullptr;
    entry.next = free_;
    free_ = i;
  }
  for (uint32_t i = 0; i <= hash_mask_; ++i) hash_[i] = kNone;
  backlog_first_ = backlog_last_ = kNone;
  active_line_ = done_line_ = {};
  backlog_count_ = in_ring_ = fetchable_ = done_ = 0;
  lost_ = 0;
  backlog_blocked_ = false;
  background_.store(0, std::memory_order_relaxed);
}

uint32_t Chunk::take_free() {
  const uint32_t index = free_;
  if (index == kNone) return kNone;
  free_ = entries_[index].next;
  entries_[index].next = kNone;
  return index;
}

// A lost one's place comes free when the device releases it.
void Chunk::give_free(uint32_t index) {
  Entry& entry = entries_[index];
  entry.state.store(entry.lost ? Entry::kOrphaned : Entry::kFree, std::memory_order_release);
  if (entry.lost) {
    ++entry.life;
    signal_waiters_of(index);
    return;
  }
  ++entry.life;
  signal_waiters_of(index);
  entry.next = free_;
  free_ = index;
  signal_one(Waiter::kFree);
}

void Chunk::enter(Line* line, uint32_t index) {
  Entry& entry = entries_[index];
  uint32_t older = line->newest;  // nearly always the right place
  while (older != kNone && entries_[older].sequence > entry.sequence) older = entries_[older].older;
  entry.older = older;
  entry.newer = older == kNone ? line->oldest : entries_[older].newer;
  (entry.older == kNone ? line->oldest : entries_[entry.older].newer) = index;
  (entry.newer == kNone ? line->newest : entries_[entry.newer].older) = index;
}

void Chunk::leave(Line* line, uint32_t index) {
  const Entry& entry = entries_[index];
  (entry.older == kNone ? line->oldest : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? line->newest : entries_[entry.newer].older) = entry.older;
}

void Chunk::enter_fetchable(uint32_t index) {
  Entry& entry = entries_[index];
  enter(&active_line_, index);
  ++fetchable_;
  if (!entry.io.has_user_tag) return;
  entry.same_hash = kNone;
  uint32_t* place = &hash_[hash_of(entry.io.user_tag) & hash_mask_];
  while (*place != kNone) place = &entries_[*place].same_hash;  // at the end: of equal tags the oldest is found
  *place = index;
}

void Chunk::move_to_done(uint32_t index) {
  leave(&active_line_, index);
  enter(&done_line_, index);
  entries_[index].state.store(Entry::kDone, std::memory_order_release);
  ++done_;
}

// pre: it is done.
void Chunk::leave_fetchable(uint32_t index) {
  Entry& entry = entries_[index];
  leave(&done_line_, index);
  --done_;
  --fetchable_;
  if (!entry.io.has_user_tag) return;
  uint32_t* place = &hash_[hash_of(entry.io.user_tag) & hash_mask_];
  while (*place != index) place = &entries_[*place].same_hash;
  *place = entry.same_hash;
}

// The command a tag means: 0; -ENOMSG: it is free; -EINVAL: no such tag.
int Chunk::find_tag(int tag, bool user, uint32_t* index) const {
  if (!user) {
    if (tag < 0 || static_cast<uint32_t>(tag) >= entry_count_) return -EINVAL;
    const Entry& entry = entries_[tag];
    const uint8_t state = entry.state.load(std::memory_order_relaxed);
    if (state == Entry::kFree || state == Entry::kOrphaned) return -ENOMSG;
    *index = static_cast<uint32_t>(tag);
    return entry.io.has_user_tag ? -EINVAL : 0;
  }
  for (uint32_t i = hash_[hash_of(tag) & hash_mask_]; i != kNone; i = entries_[i].same_hash) {
    if (entries_[i].io.user_tag != tag) continue;
    *index = i;
    return 0;
  }
  // an error, or one that is under way with a status: it may take its time
  for (uint32_t i = 0; i < entry_count_; ++i) {
    const Entry& entry = entries_[i];
    const uint8_t state = entry.state.load(std::memory_order_relaxed);
    if (!entry.io.has_user_tag || entry.io.user_tag != tag || state == Entry::kFree || state == Entry::kOrphaned)
      continue;
    *index = i;
    return 0;
  }
  return -EINVAL;
}

}  // namespace lunar::cblk
