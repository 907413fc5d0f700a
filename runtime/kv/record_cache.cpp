// SPDX-License-Identifier: Apache-2.0
// The read cache: see record_cache.h.
// Threading: as there.
#include "kv/record_cache.h"

#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "sys/arena.h"
#include "sys/mem.h"

namespace lunar::kv {
namespace {

constexpr unsigned kIndexBits = 6;
constexpr uint64_t kShareOfIndex = 64;  // of the budget, left for indexes to grow
// Bytes of the budget per ghost: one for each two records of 4 KiB hits best (DECISIONS.md).
constexpr uint64_t kBytesAGhost = 8192;

uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

uint64_t RecordCache::hash_of(Address address, uint64_t life) {
  return mix(mix(life) + address.value);
}

void RecordCache::open(Budget* budget, Epochs* epochs) {
  const uint64_t limit = budget->limit() - budget->used();
  chunk_bytes_ = kChunkBytesMin;
  while (chunk_bytes_ < kChunkBytesMax && limit / (2 * chunk_bytes_) >= kChunksWanted)
    chunk_bytes_ *= 2;
  if (limit / chunk_bytes_ < 2 * kSpareChunks || limit / chunk_bytes_ >= UINT32_MAX) return;
  count_ = static_cast<uint32_t>(limit / chunk_bytes_);
  ghost_count_ = 1;
  while (ghost_count_ * 2 * kBytesAGhost <= limit) ghost_count_ *= 2;
  const uint64_t ghost_bytes = round_up(ghost_count_ * sizeof(uint32_t), 64);
  tables_bytes_ = ghost_bytes + count_ * sizeof(Chunk);
  mapping_bytes_ = (count_ + uint64_t{1}) * chunk_bytes_;
  if (!budget->take(tables_bytes_)) return;
  auto* tables = static_cast<char*>(map_private(tables_bytes_, ForkPolicy::kInherit));
  auto* mapping =
      tables ? static_cast<char*>(map_private(mapping_bytes_, ForkPolicy::kInherit)) : nullptr;
  if (!mapping || index_.open(kIndexBits, budget) < 0) {
    index_.close();
    if (mapping) unmap_private(mapping, mapping_bytes_);
    if (tables) unmap_private(tables, tables_bytes_);
    budget->give_back(tables_bytes_);
    return;
  }
  ghosts_ = reinterpret_cast<uint32_t*>(tables);
  chunks_ = reinterpret_cast<Chunk*>(tables + ghost_bytes);
  mapping_ = mapping;
  base_ = reinterpret_cast<char*>(round_up(reinterpret_cast<uint64_t>(mapping), chunk_bytes_));
  // A chunk is what is charged, so a huge page may be no larger.
  if (chunk_bytes_ == kChunkBytesMax)
    (void)sys::advise(base_, count_ * chunk_bytes_, MADV_HUGEPAGE);
  budget_ = budget;
  epochs_ = epochs;
  for (uint32_t i = 1; i <= count_; ++i) {
    new (&chunks_[i - 1]) Chunk;
    push(&blank_, chunks_, i);
  }
}

void RecordCache::close() {
  if (!base_) return;
  index_.close();
  unmap_private(mapping_, mapping_bytes_);
  unmap_private(ghosts_, tables_bytes_);
  base_ = nullptr;
}

Record* RecordCache::find(Address address, uint64_t life) const {
  if (!base_) return nullptr;
  Record* found = nullptr;
  index_.find(hash_of(address, life), [&](Address at) {
    Copy* copy = copy_at(at);
    if (copy->life != life ||
        copy->address_hits.load(std::memory_order_relaxed) >> kHitBits != address.value)
      return false;
    found = &copy->record;
    return true;
  });
  return found;
}

// Two reads at the same time may count as one.
void RecordCache::note_read(const Record* record) const {
  auto* at = reinterpret_cast<const char*>(record);
  if (!base_ || at < base_ || at >= base_ + count_ * chunk_bytes_) return;
  auto& word = reinterpret_cast<Copy*>(const_cast<char*>(at) - (sizeof(Copy) - sizeof(Record)))
                   ->address_hits;
  uint64_t hits = word.load(std::memory_order_relaxed);
  if ((hits & ((1u << kHitBits) - 1)) < kHitsMost)
    word.compare_exchange_strong(hits, hits + 1, std::memory_order_relaxed);
}

void RecordCache::push(Queue* queue, Chunk* chunks, uint32_t chunk) {
  chunks[chunk - 1].next = 0;
  (queue->last ? chunks[queue->last - 1].next : queue->first) = chunk;
  queue->last = chunk;
  ++queue->count;
}

uint32_t RecordCache::pop(Queue* queue, const Chunk* chunks) {
  const uint32_t chunk = queue->first;
  if (!chunk) return 0;
  queue->first = chunks[chunk - 1].next;
  if (!queue->first) queue->last = 0;
  --queue->count;
  return chunk;
}

// Leaves a 64th of the budget for the store's index and for the cache's own.
bool RecordCache::may_grow() const {
  return blank_.count != 0 &&
         budget_->limit() - budget_->used() >= chunk_bytes_ + budget_->limit() / kShareOfIndex;
}

bool RecordCache::spare_is_safe() const {
  return retired_.first && epochs_->safe(chunks_[retired_.first - 1].retired);
}

uint32_t RecordCache::take_chunk() {
  uint32_t chunk = 0;
  if (spare_is_safe()) {
    chunk = pop(&retired_, chunks_);
  } else if (may_grow() && budget_->take(chunk_bytes_)) {
    bytes_.fetch_add(chunk_bytes_, std::memory_order_relaxed);
    chunk = pop(&blank_, chunks_);
  }
  if (chunk) chunks_[chunk - 1].used = chunks_[chunk - 1].swept = 0;
  return chunk;
}

// Retires a chunk that no entry leads into any more.
void RecordCache::retire(uint32_t chunk) {
  chunks_[chunk - 1].retired = epochs_->retire();
  push(&retired_, chunks_, chunk);
}

// pre: no reader is in it
void RecordCache::discard(uint32_t chunk) {
  (void)sys::advise(memory_of(chunk), chunk_bytes_, MADV_DONTNEED);
  push(&blank_, chunks_, chunk);
  bytes_.fetch_sub(chunk_bytes_, std::memory_order_relaxed);
  budget_->give_back(chunk_bytes_);
}

RecordCache::Copy* RecordCache::put(Queue* queue, const Record* record, const char* body,
                                    Address address, uint64_t life) {
  const uint64_t bytes = copy_bytes(record);
  if (!queue->last || chunks_[queue->last - 1].used + bytes > chunk_bytes_) {
    const uint32_t chunk = take_chunk();
    if (!chunk) return nullptr;
    push(queue, chunks_, chunk);
  }
  Chunk& chunk = chunks_[queue->last - 1];
  auto* copy = reinterpret_cast<Copy*>(memory_of(queue->last) + chunk.used);
  chunk.used += static_cast<uint32_t>(bytes);
  new (copy) Copy{life, {address.value << kHitBits}, {}};
  memcpy(static_cast<void*>(&copy->record), record, record->units() * kUnitBytes);
  if (record->has_body())
    memcpy(const_cast<char*>(behind(&copy->record)), body, record->body_bytes());
  return copy;
}

bool RecordCache::remembered(uint64_t hash) {
  uint32_t& ghost = ghosts_[hash & (ghost_count_ - 1)];
  const bool found = ghost == hash >> 32;
  if (found) ghost = 0;
  return found;
}

void RecordCache::remember(uint64_t hash) {
  ghosts_[hash & (ghost_count_ - 1)] = static_cast<uint32_t>(hash >> 32);
}

// Moves the oldest copy of a queue to the front of the main queue, or drops it.
void RecordCache::look_at_again(const Copy* copy, bool small, bool keep) {
  const uint64_t word = copy->address_hits.load(std::memory_order_relaxed);
  const uint64_t hits = word & ((1u << kHitBits) - 1);
  const Address address{word >> kHitBits}, here = place_of(copy);
  const uint64_t hash = hash_of(address, copy->life);
  std::atomic<uint64_t>* entry = index_.find_entry(hash, [&](Address at) { return at == here; });
  if (!entry) return;
  Copy* fresh = keep && hits
                    ? put(&main_, &copy->record, behind(&copy->record), address, copy->life)
                    : nullptr;
  if (fresh) {
    fresh->address_hits.store(address.value << kHitBits | (small ? 0 : hits - 1),
                              std::memory_order_relaxed);
    Index::replace(entry, place_of(fresh));
    return;
  }
  index_.erase(entry);
  if (small && !hits) remember(hash);
}

// Examines `bytes` of the oldest records, but stops when enough chunks are spare: one for admitted
// records, and one for the records of the next chunk that move to the main queue.
void RecordCache::sweep(uint64_t bytes) {
  while (retired_.count < kSpareChunks && !may_grow()) {
    const bool small = main_.count < 2 || small_.count > 1 + main_.count / 9;
    Queue* queue = small ? &small_ : &main_;
    if (queue->count < 2) return;
    Chunk& chunk = chunks_[queue->first - 1];
    if (chunk.swept == chunk.used) {
      retire(pop(queue, chunks_));
      continue;
    }
    if (bytes == 0) return;
    const auto* copy = reinterpret_cast<const Copy*>(memory_of(queue->first) + chunk.swept);
    const uint64_t own = copy_bytes(&copy->record);
    chunk.swept += static_cast<uint32_t>(own);
    look_at_again(copy, small, true);
    bytes -= std::min(own, bytes);
  }
}

void RecordCache::admit(const Record* record, Address address, uint64_t life, bool again,
                        const char* body) {
  const uint64_t bytes = copy_bytes(record);
  if (!base_ || bytes > chunk_bytes_ / 4 || !lock_.try_lock()) return;
  if (!find(address, life)) {
    sweep(kSweepFactor * bytes);
    const uint64_t hash = hash_of(address, life);
    const Copy* copy =
        put(remembered(hash) || again ? &main_ : &small_, record, body, address, life);
    // Without an entry the copy is never found, and is dropped with its chunk. A spare chunk is
    // given back, so that the index can grow.
    if (copy && index_.insert(hash, place_of(copy)) < 0 && spare_is_safe())
      discard(pop(&retired_, chunks_));
  }
  lock_.unlock();
}

// Empties the oldest chunk of a queue.
void RecordCache::empty(Queue* queue) {
  const uint32_t chunk = pop(queue, chunks_);
  if (!chunk) return;
  const char* memory = memory_of(chunk);
  for (uint32_t at = chunks_[chunk - 1].swept; at < chunks_[chunk - 1].used;) {
    const auto* copy = reinterpret_cast<const Copy*>(memory + at);
    look_at_again(copy, false, false);
    at += static_cast<uint32_t>(copy_bytes(&copy->record));
  }
  retire(chunk);
}

bool RecordCache::shrink() {
  if (!base_) return false;
  sys::Locked guard(lock_);
  if (!retired_.count) empty(main_.count ? &main_ : &small_);
  const uint32_t chunk = pop(&retired_, chunks_);
  if (!chunk) return false;
  while (!epochs_->safe(chunks_[chunk - 1].retired)) sys::yield_cpu();
  discard(chunk);
  return true;
}

}  // namespace lunar::kv
