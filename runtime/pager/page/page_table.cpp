// SPDX-License-Identifier: Apache-2.0
// See page_table.h.
#include "pager/page/page_table.h"

#include <string.h>

#include "base/xxh3.h"
#include "sys/arena.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar {

constinit std::atomic<Leaf*> g_leaf_segments[kSegmentsMax];

namespace {

constexpr unsigned kShards = 16;

struct alignas(64) Shard {
  std::atomic<uint32_t> inside[2] = {};
};
constinit Shard g_shards[kShards];
constinit std::atomic<uint64_t> g_epoch{2};

alignas(64) constinit unsigned char g_hash_key[192] = {};  // XXH3's own length of a secret
constinit bool g_hash_key_made = false;
static_assert(sizeof g_hash_key >= XXH3_SECRET_SIZE_MIN);

}  // namespace

uint64_t TableScope::epoch() { return g_epoch.load(std::memory_order_seq_cst); }

bool TableScope::next_epoch() {
  uint64_t now = g_epoch.load(std::memory_order_seq_cst);
  for (const Shard& shard : g_shards)
    if (shard.inside[(now + 1) & 1].load(std::memory_order_seq_cst) != 0) return false;
  return g_epoch.compare_exchange_strong(now, now + 1, std::memory_order_seq_cst);
}

void TableScope::reset_in_child() {
  for (Shard& shard : g_shards)
    for (auto& inside : shard.inside) inside.store(0);
}

TableScope::TableScope() {
  const auto thread = reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
  Shard& shard = g_shards[(thread >> 6) * 0x9e3779b97f4a7c15u >> 60];
  for (;;) {
    const uint64_t now = g_epoch.load(std::memory_order_acquire);
    inside_ = &shard.inside[now & 1];
    inside_->fetch_add(1, std::memory_order_seq_cst);
    if (g_epoch.load(std::memory_order_seq_cst) == now) return;
    inside_->fetch_sub(1, std::memory_order_relaxed);
  }
}

uint64_t PageTable::span_groups() { return sys::page_bytes() / sizeof(uint32_t); }

bool PageTable::map(uint64_t pages) {
  const uint64_t groups = (pages + kLeafPages - 1) / kLeafPages;
  const uint64_t spans = (groups + span_groups() - 1) / span_groups();
  pages_ = pages;
  directory_ = static_cast<std::atomic<uint32_t>*>(
      map_private(groups * sizeof(uint32_t), ForkPolicy::kInherit));
  spans_ = static_cast<Span*>(map_table(spans * sizeof(Span)));
  return directory_ != nullptr && spans_ != nullptr;
}

void PageTable::unmap() {
  const uint64_t groups = (pages_ + kLeafPages - 1) / kLeafPages;
  if (directory_ != nullptr) unmap_private(directory_, groups * sizeof(uint32_t));
  if (spans_ != nullptr)
    unmap_table(spans_, (groups + span_groups() - 1) / span_groups() * sizeof(Span));
}

uint64_t PageTable::next_used(uint64_t page, uint64_t end) const {
  while (page < end) {
    const uint64_t group = page / kLeafPages;
    if ((page % span_pages() == 0 || directory_[group].load(std::memory_order_relaxed) == 0) &&
        span_of(page).leaves.load(std::memory_order_acquire) == 0)
      page = round_down(page, span_pages()) + span_pages();
    else if (directory_[group].load(std::memory_order_acquire) == 0)
      page = round_down(page, kLeafPages) + kLeafPages;
    else
      return page;
  }
  return end;
}

int page_hash_key_make() {
  if (g_hash_key_made) return 0;
  int rc = sys::random_bytes(g_hash_key, sizeof g_hash_key);
  g_hash_key_made = rc == 0;
  return rc;
}

uint64_t page_hash(const void* content) {
  return XXH3_64bits_withSecret(content, sys::page_bytes(), g_hash_key, sizeof g_hash_key);
}

bool page_is_zero(const void* content) {
  auto* words = static_cast<const uint64_t*>(content);
  size_t count = sys::page_bytes() / sizeof(uint64_t);
  if (words[0] != 0 || words[count - 1] != 0) return false;
  // Overlapping compare: every word equals the one before it, and the first is zero.
  return memcmp(words, words + 1, (count - 1) * sizeof(uint64_t)) == 0;
}

}  // namespace lunar
