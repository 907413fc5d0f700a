// SPDX-License-Identifier: Apache-2.0
// See compaction.h.
#include "compaction.h"

#include "base/units.h"
#include "heap/heap.h"
#include "heap/slabs.h"
#include "key_memory.h"
#include "sys/thread.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr unsigned kBatch = 128;
constexpr uint64_t kScanNsMax = 2000000;   // keys may also be cold
constexpr uint64_t kRestNs = 60000000000;  // after a pass that moved next to nothing

struct Pass {
  ScanCursor* cursor = nullptr;
  int database = 0;
  uint64_t seen = 0, moved = 0;
};
Pass g_pass;
uint64_t g_rest_until_ns = 0;
uint64_t g_rest_below = 0;  // bytes of holes that are not worth another pass
CompactionCounters g_counters{};
KeyBlock* g_batch[kBatch];
unsigned g_count = 0;

void on_key(Context*, String* name, Key* key, void*) {
  ++g_pass.seen;
  KeyBlock* block = g_count < kBatch ? key_memory_block(name, key) : nullptr;
  if (block != nullptr && heap_in_sparse_slab(key_block_inside(*block))) g_batch[g_count++] = block;
}

// Collects blocks for a batch. False: the pass has reached the end of the keyspace.
bool collect(Context* context) {
  const uint64_t end = sys::now_ns() + kScanNsMax;
  while (g_count < kBatch && sys::now_ns() < end) {
    if (g_pass.cursor == nullptr) g_pass.cursor = g_api.ScanCursorCreate();
    if (g_api.SelectDb(context, g_pass.database) != kOk)
      return false;  // there are no more databases
    if (g_api.Scan(context, g_pass.cursor, on_key, nullptr) != 0) continue;
    g_api.ScanCursorRestart(g_pass.cursor);
    ++g_pass.database;
  }
  return true;
}

void move_batch() {
  lunar_range ranges[kBatch];
  for (unsigned i = 0; i < g_count; ++i) ranges[i] = {key_block_inside(*g_batch[i]), 1};
  if (g_count != 0) (void)tier().prefetch(ranges, g_count);
  for (unsigned i = 0; i < g_count; ++i) {
    const size_t head = key_block_head(*g_batch[i]);
    char* block = static_cast<char*>(key_block_inside(*g_batch[i])) - head;
    if (head == SIZE_MAX || !heap_in_sparse_slab(block))
      continue;  // values that were moved before have filled it
    const size_t bytes = heap_usable_size(block);
    char* moved = static_cast<char*>(heap_move(block));
    if (moved == nullptr) continue;
    key_block_set(*g_batch[i], moved + head);
    ++g_pass.moved;
    ++g_counters.values;
    g_counters.bytes += bytes;
  }
  g_count = 0;
}

void end_pass(uint64_t holes) {
  ++g_counters.passes;
  // Each pass finds less than the one before. If it moves next to nothing, the remaining holes
  // cannot be filled.
  if (g_pass.moved < g_pass.seen / 100 + 1) {
    g_rest_until_ns = sys::now_ns() + kRestNs;
    g_rest_below = holes + holes / 4;
  }
  ScanCursor* cursor = g_pass.cursor;
  g_pass = {};
  g_pass.cursor = cursor;
}

}  // namespace

bool compaction_run(Context* context, uint64_t holes, unsigned slices) {
  if (tier().owner != TierOwner::kModule || !key_memory_known()) return false;
  if (holes < g_rest_below && sys::now_ns() < g_rest_until_ns) return false;
  const uint64_t before = g_counters.values;
  for (unsigned i = 0; i < slices; ++i) {
    const bool more = collect(context);
    move_batch();
    if (more) continue;
    end_pass(holes);
    break;
  }
  return g_counters.values != before;
}

CompactionCounters compaction_counters() { return g_counters; }

}  // namespace lunar::redis
