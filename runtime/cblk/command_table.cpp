// SPDX-License-Identifier: Apache-2.0
#include "cblk/command_table.h"

#include <errno.h>

#include <initializer_list>
#include <new>

#include "base/units.h"

namespace lunar::cblk {
namespace {

constexpr uint32_t kChainsMin = 16;

uint32_t hash_of(int tag) { return static_cast<uint32_t>(tag) * 0x9e3779b9u >> 8; }

uint32_t chains_of(uint32_t count) {
  uint32_t chains = kChainsMin;
  while (chains < count) chains *= 2;
  return chains;
}

}  // namespace

size_t CommandTable::bytes_of(uint32_t count) {
  return round_up(count * sizeof(Entry), 64) + chains_of(count) * sizeof(uint32_t);
}

void CommandTable::init(char* memory, uint32_t count) {
  entries_ = reinterpret_cast<Entry*>(memory);
  count_ = count;
  hash_ = reinterpret_cast<uint32_t*>(memory + round_up(count * sizeof(Entry), 64));
  hash_mask_ = chains_of(count) - 1;
  for (uint32_t i = 0; i < count; ++i) new (&entries_[i]) Entry;
  reset();
}

void CommandTable::reset() {
  free_ = kNone;
  for (uint32_t i = count_; i-- > 0;) {
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
  active_line_ = done_line_ = background_line_ = {};
  backlog_ = fetchable_ = done_ = 0;
  next_like_ = kNone;
}

uint32_t CommandTable::take_free() {
  const uint32_t index = free_;
  if (index == kNone) return kNone;
  free_ = entries_[index].next;
  entries_[index].next = kNone;
  return index;
}

bool CommandTable::release(uint32_t index) {
  Entry& entry = entries_[index];
  entry.state.store(entry.lost ? Entry::kOrphaned : Entry::kFree, std::memory_order_release);
  ++entry.life;
  if (entry.lost) return false;
  entry.next = free_;
  free_ = index;
  return true;
}

void CommandTable::enter(Line* line, uint32_t index) {
  Entry& entry = entries_[index];
  uint32_t older = line->newest;  // nearly always right
  while (older != kNone && entries_[older].sequence > entry.sequence) older = entries_[older].older;
  entry.older = older;
  entry.newer = older == kNone ? line->oldest : entries_[older].newer;
  (entry.older == kNone ? line->oldest : entries_[entry.older].newer) = index;
  (entry.newer == kNone ? line->newest : entries_[entry.newer].older) = index;
}

void CommandTable::leave(Line* line, uint32_t index) {
  const Entry& entry = entries_[index];
  (entry.older == kNone ? line->oldest : entries_[entry.older].newer) = entry.newer;
  (entry.newer == kNone ? line->newest : entries_[entry.newer].older) = entry.older;
}

void CommandTable::enter_fetchable(uint32_t index) {
  Entry& entry = entries_[index];
  enter(&active_line_, index);
  ++fetchable_;
  if (!entry.io.has_user_tag) return;
  entry.same_hash = kNone;
  uint32_t* place = &hash_[hash_of(entry.io.user_tag) & hash_mask_];
  while (*place != kNone)
    place = &entries_[*place].same_hash;  // appended, so that the oldest of equal tags is found
  *place = index;
}

void CommandTable::enter_background(uint32_t index) { enter(&background_line_, index); }
void CommandTable::leave_background(uint32_t index) { leave(&background_line_, index); }

void CommandTable::move_to_done(uint32_t index) {
  leave(&active_line_, index);
  enter(&done_line_, index);
  entries_[index].state.store(Entry::kDone, std::memory_order_release);
  ++done_;
}

void CommandTable::leave_fetchable(uint32_t index) {
  Entry& entry = entries_[index];
  leave(&done_line_, index);
  --done_;
  --fetchable_;
  if (!entry.io.has_user_tag) return;
  uint32_t* place = &hash_[hash_of(entry.io.user_tag) & hash_mask_];
  while (*place != index) place = &entries_[*place].same_hash;
  *place = entry.same_hash;
}

int CommandTable::find_tag(int tag, bool user, uint32_t* index) const {
  if (!user) {
    if (tag < 0 || static_cast<uint32_t>(tag) >= count_) return -EINVAL;
    const Entry& entry = entries_[tag];
    if (entry.is_over()) return -ENOMSG;
    *index = static_cast<uint32_t>(tag);
    return entry.io.has_user_tag ? -EINVAL : 0;
  }
  for (uint32_t i = hash_[hash_of(tag) & hash_mask_]; i != kNone; i = entries_[i].same_hash) {
    if (entries_[i].io.user_tag != tag) continue;
    *index = i;
    return 0;
  }
  // The tag is wrong, or belongs to a command with a status. This search may be slow.
  for (uint32_t i = 0; i < count_; ++i) {
    const Entry& entry = entries_[i];
    if (!entry.io.has_user_tag || entry.io.user_tag != tag || entry.is_over()) continue;
    *index = i;
    return 0;
  }
  return -EINVAL;
}

int CommandTable::find_like(int tag, const Io& like, uint32_t* index) {
  const auto is_like = [&](uint32_t i) {
    const Io& io = entries_[i].io;
    return io.op == like.op && io.buffer == like.buffer && io.lba == like.lba &&
           io.blocks == like.blocks && !io.status && io.has_user_tag == like.has_user_tag &&
           (!io.has_user_tag || io.user_tag == like.user_tag);
  };
  if (find_tag(tag, like.has_user_tag, index) == 0 && is_like(*index)) return 0;
  const auto is_there = [&](uint32_t i) {
    return i != kNone && entries_[i].sequence == next_like_sequence_ && !entries_[i].is_over();
  };
  uint32_t found = is_there(next_like_) && is_like(next_like_) ? next_like_ : kNone;
  if (found == kNone) found = oldest_of(is_like);
  if (found == kNone) return -ENOMSG;
  next_like_ = entries_[found].newer;
  if (next_like_ != kNone) next_like_sequence_ = entries_[next_like_].sequence;
  *index = found;
  return 0;
}

template <class Is>
uint32_t CommandTable::oldest_of(Is is) const {
  uint32_t found = kNone;
  for (const Line& line : {done_line_, active_line_}) {
    uint32_t i = line.oldest;
    while (i != kNone && !is(i)) i = entries_[i].newer;
    if (i != kNone && (found == kNone || entries_[i].sequence < entries_[found].sequence))
      found = i;
  }
  return found;
}

void CommandTable::append_backlog(uint32_t index) {
  entries_[index].next = kNone;
  (backlog_last_ == kNone ? backlog_first_ : entries_[backlog_last_].next) = index;
  backlog_last_ = index;
  ++backlog_;
}

uint32_t CommandTable::take_backlog_after(uint32_t before) {
  uint32_t* const link = before == kNone ? &backlog_first_ : &entries_[before].next;
  const uint32_t index = *link;
  *link = entries_[index].next;
  if (backlog_last_ == index) backlog_last_ = before;
  --backlog_;
  return index;
}

bool CommandTable::take_from_backlog(uint32_t index) {
  uint32_t before = kNone, at = backlog_first_;
  while (at != kNone && at != index) {
    before = at;
    at = entries_[at].next;
  }
  if (at == kNone) return false;
  take_backlog_after(before);
  return true;
}

}  // namespace lunar::cblk
