// SPDX-License-Identifier: Apache-2.0
// A group of chunks: several on one physical LUN, used in turn (GROUP_ID), or one per device (RAID
// 0), where block b is block b / n of chunk b % n. The chunks have their own ids, which tags carry.
// Such an id is only valid for fetching a result.
//
// An asynchronous command goes to one chunk; one of a RAID 0 moves one block. A blocking call on a
// RAID 0 moves any number of blocks: each chunk gets one vector of the blocks that are on it, and
// all chunks work at the same time. Threading: any. Has no lock: the next chunk is an atomic
// number.
#pragma once
#include "cblk/chunk.h"

namespace lunar::cblk {

constexpr int kGroupChunksMax = 256;

class Group final : public Handle {
 public:
  // chunks: the number of chunks of a GROUP_ID; a RAID 0 has as many as its path names devices.
  [[nodiscard]] static int open(const Chunk::Options& options, int chunks, Group** out);

  // -EBUSY: some chunk has commands in progress or results not fetched; all chunks stay open.
  [[nodiscard]] int close(int flags) override;
  uint64_t lun_blocks() const override;
  uint64_t size_blocks() const override;
  [[nodiscard]] int set_size(uint64_t blocks, int flags) override;  // rounded up to whole stripes
  void stats(chunk_stats_t* out) override;
  void attributes(chunk_attrs_t* out) override;
  [[nodiscard]] int clone_after_fork(int mode) override;
  [[nodiscard]] int64_t transfer(Io* io) override;
  [[nodiscard]] int64_t issue(Io* io, cflsh_cg_tag_t* tag) override;
  // NEXT_TAG: the oldest result of all chunks. 0 if nothing is in progress (-ENOENT if the call
  // would block); -ETIME if it blocked for too long.
  [[nodiscard]] int64_t result(cflsh_cg_tag_t* tag, int flags) override;
  int chunks() const { return static_cast<int>(count_); }
  void after_fork_in_child() {
    closing_.store(false, std::memory_order_relaxed);  // the closing thread is in the parent
    finished_.close();                                 // and so are the sleepers
  }

 private:
  Group() : Handle(Kind::kGroup) {}
  [[nodiscard]] int open_chunk(const Chunk::Options& options);
  [[nodiscard]] int open_devices(Chunk::Options options);
  void destroy();
  // Returns the chunk that an I/O goes to, and sets io->lba to the block of that chunk; nullptr:
  // beyond the end.
  Chunk* route(Io* io);
  [[nodiscard]] int64_t transfer_striped(const Io& io);
  [[nodiscard]] int64_t next_result(cflsh_cg_tag_t* tag, int flags);
  struct Shares;
  struct Oldest {
    Chunk* done = nullptr;  // the chunk with the oldest result
    bool active = false;    // some chunk has a command in progress
  };
  Oldest find_oldest(bool harvests);
  void sleep();

  bool raid0_ = false;
  unsigned count_ = 0;
  std::atomic<uint32_t> turn_{0};
  std::atomic<bool> closing_{false};
  std::atomic<uint64_t> sequence_{0};  // number of issues on all chunks
  Siblings siblings_;                  // GROUP_ID
  Finished finished_;
  Chunk* chunk_[kGroupChunksMax] = {};
};

}  // namespace lunar::cblk
