// SPDX-License-Identifier: Apache-2.0
// A group of chunks: several on one physical LUN, used in turns (GROUP_ID), or one a device (RAID 0): block b is block
// b / n of chunk b % n. Its chunks have ids of their own, which tags carry; by such an id a result can be fetched and
// nothing else be done.
//
// An asynchronous command is one chunk's; one of a RAID 0 moves one block. A blocking call of a RAID 0 moves any
// number, chunk by chunk, each with one vector of the blocks that are its own, all of them at work at once. Threading:
// any. Has no lock: which chunk is next is one atomic number.
#pragma once
#include "cblk/chunk.h"

namespace lunar::cblk {

constexpr int kGroupChunksMax = 256;

class Group final : public Handle {
 public:
  // chunks: how many, for GROUP_ID; a RAID 0 has as many as its path names devices.
  [[nodiscard]] static int open(const Chunk::Options& options, int chunks, Group** out);

  // -EBUSY: some chunk has commands under way or results not fetched; all live on.
  [[nodiscard]] int close(int flags) override;
  uint64_t lun_blocks() const override;
  uint64_t size_blocks() const override;
  [[nodiscard]] int set_size(uint64_t blocks, int flags) override;  // rounded up to whole stripes
  void stats(chunk_stats_t* out) override;
  void attributes(chunk_attrs_t* out) override;
  [[nodiscard]] int clone_after_fork(int mode) override;
  [[nodiscard]] int64_t transfer(Io* io) override;
  [[nodiscard]] int64_t issue(Io* io, cflsh_cg_tag_t* tag) override;
  // NEXT_TAG: of all chunks the oldest. Nothing under way is 0 (-ENOENT, where it would block); blocked too long
  // -ETIME.
  [[nodiscard]] int64_t result(cflsh_cg_tag_t* tag, int flags) override;
  int chunks() const { return static_cast<int>(count_); }
  void after_fork_in_child() {
    closing_.store(false, std::memory_order_relaxed);  // a closing thread was the parent's
    finished_.close();                                 // and so were its sleepers
  }

 private:
  Group() : Handle(Kind::kGroup) {}
  [[nodiscard]] int open_chunk(const Chunk::Options& options);
  [[nodiscard]] int open_devices(Chunk::Options options);
  void destroy();
  // The chunk that an I/O goes to, and io->lba becomes that chunk's; nullptr: beyond the end.
  Chunk* route(Io* io);
  [[nodiscard]] int64_t transfer_striped(const Io& io);
  [[nodiscard]] int64_t next_result(cflsh_cg_tag_t* tag, int flags);
  struct Shares;
  struct Oldest {
    Chunk* done = nullptr;  // that has the oldest result
    bool active = false;    // some chunk has a command under way
  };
  Oldest find_oldest(bool harvests);
  void sleep();

  bool raid0_ = false;
  unsigned count_ = 0;
  std::atomic<uint32_t> turn_{0};
  std::atomic<bool> closing_{false};
  std::atomic<uint64_t> sequence_{0};  // of issues, over all chunks
  Siblings siblings_;                  // GROUP_ID
  Finished finished_;
  Chunk* chunk_[kGroupChunksMax] = {};
};

}  // namespace lunar::cblk
