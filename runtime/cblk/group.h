// SPDX-License-Identifier: Apache-2.0
// A group of chunks: several on one physical LUN, used in turns (GROUP_ID), or one whose device is a stripe of several, block by
// block (RAID 0). Its chunks have ids of their own, which tags carry, but answer only to the group.
// Threading: any. Has no lock: which chunk is next is one atomic number.
#pragma once
#include "cblk/chunk.h"

namespace lunar::cblk {

constexpr int kGroupChunksMax = 256;

class Group final : public Handle {
 public:
  [[nodiscard]] static int open(const Chunk::Options& options, int chunks, Group** out);
  // 0, and the group is gone; -EBUSY: some chunk has commands under way. pre: the caller uses it.
  [[nodiscard]] int close(int flags);

  Chunk& first() { return *chunk_[0]; }
  Chunk& next() { return *chunk_[count_ == 1 ? 0 : turn_.fetch_add(1, std::memory_order_relaxed) % count_]; }
  Chunk* find(chunk_id_t id);
  int chunks() const { return raid0_ ? static_cast<int>(chunk_[0]->device_count()) : static_cast<int>(count_); }
  void stats(chunk_stats_t* out);
  [[nodiscard]] int clone_after_fork(int mode);
  void after_fork_in_child() { closing_.store(false, std::memory_order_relaxed); }   // a closing thread was the parent's
  // As Chunk::result with CBLK_ARESULT_NEXT_TAG, over all of them, the oldest first.
  [[nodiscard]] int64_t next_result(cflsh_cg_tag_t* tag, int flags);

 private:
  Group() : Handle(Kind::kGroup) {}
  void destroy();

  bool raid0_ = false;
  unsigned count_ = 0;
  std::atomic<uint32_t> turn_{0};
  std::atomic<bool> closing_{false};
  std::atomic<uint64_t> sequence_{0};   // of issues, over all chunks
  Chunk* chunk_[kGroupChunksMax] = {};
};

}  // namespace lunar::cblk
