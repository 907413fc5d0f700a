// SPDX-License-Identifier: Apache-2.0
// Groups of chunks: see group.h.
// Threading: any; open and close block.
#include "cblk/group.h"

#include <errno.h>
#include <string.h>

#include <new>

#include "base/arena.h"

namespace lunar::cblk {
namespace {

constexpr uint64_t kTurnNs = 1'000'000;   // a completion of another chunk than the one that is slept on is seen so late at most

}  // namespace

int Group::open(const Chunk::Options& options, int chunks, Group** out) {
  const int kind = options.flags & CBLK_GROUP_MASK;
  const bool raid0 = kind == CBLK_GROUP_RAID0;
  if (kind == CBLK_GROUP_MASK) return -EINVAL;
  // Chunks of a group hold the same; virtual LUNs, each on its own, would not.
  if (!raid0 && (chunks <= 0 || (options.flags & CBLK_OPN_VIRT_LUN))) return -EINVAL;
  if (chunks > kGroupChunksMax) return -ENOMEM;
  void* memory = map_private(sizeof(Group), ForkPolicy::kInherit);
  if (!memory) return -ENOMEM;
  auto* group = new (memory) Group;
  group->raid0_ = raid0;
  Chunk::Options each = options;
  each.kind = Kind::kMember;
  each.raid0 = raid0;
  each.sequence = &group->sequence_;
  // One reservation is the group's: its chunks would refuse each other.
  int status = 0;
  for (int i = 0; i < (raid0 ? 1 : chunks) && status == 0; ++i) {
    status = Chunk::open(each, &group->chunk_[i]);
    if (status == 0) ++group->count_;
    if (each.flags & (CBLK_OPN_RESERVE | CBLK_OPN_FORCED_RESERVE)) each.flags |= CBLK_OPN_FORCED_RESERVE;
  }
  if (status == 0) status = table_add(group);
  if (status < 0) group->destroy();
  else *out = group;
  return status;
}

// pre: nobody uses it.
void Group::destroy() {
  for (unsigned i = 0; i < count_; ++i) {
    if (!chunk_[i]) continue;
    Handle* used = table_acquire(chunk_[i]->id, Kind::kMember);
    if (used && chunk_[i]->close(0) < 0) table_release(used);   // nothing can be under way
  }
  unmap_private(this, sizeof(Group));
}

int Group::close(int flags) {
  if (closing_.exchange(true)) return -EINVAL;
  const uint64_t deadline = sys::now_ns() + kCloseWaitNs;
  for (unsigned i = 0; i < count_; ++i) {   // first ask, so that a busy group stays whole
    if (!chunk_[i]->drain(deadline)) {
      for (unsigned j = 0; j <= i; ++j) chunk_[j]->reopen();
      closing_.store(false);
      return -EBUSY;
    }
  }
  if (table_shut(this, 1, deadline) < 0) {
    for (unsigned j = 0; j < count_; ++j) chunk_[j]->reopen();
    closing_.store(false);
    return -EBUSY;
  }
  registry_remove(this);
  Slot* const place = slot;
  for (unsigned i = 0; i < count_; ++i) {
    Handle* used = table_acquire(chunk_[i]->id, Kind::kMember);
    if (used && table_shut(used, 1, kForever) == 0) chunk_[i]->end(flags);   // only ids that are mistaken for a chunk's come by
    chunk_[i] = nullptr;
  }
  unmap_private(this, sizeof(Group));
  place->word.fetch_sub(1, std::memory_order_release);   // the closer's own use
  return 0;
}

Chunk* Group::find(chunk_id_t id) {
  for (unsigned i = 0; i < count_; ++i) {
    if (chunk_[i]->id == id) return chunk_[i];
  }
  return nullptr;
}

int Group::clone_after_fork(int mode) {
  for (unsigned i = 0; i < count_; ++i) {
    if (const int status = chunk_[i]->clone_after_fork(mode); status < 0) return status;
  }
  return 0;
}

int64_t Group::next_result(cflsh_cg_tag_t* tag, int flags) {
  if (count_ == 1) {
    tag->id = chunk_[0]->id;
    return chunk_[0]->result(&tag->tag, flags, chunk_[0]->result_deadline());
  }
  const uint64_t deadline = chunk_[0]->result_deadline();
  for (;;) {
    unsigned done = kGroupChunksMax, active = kGroupChunksMax;
    uint64_t oldest_done = kForever, oldest_active = kForever;
    for (unsigned i = 0; i < count_; ++i) {
      const uint64_t finished = chunk_[i]->oldest_done((flags & CBLK_ARESULT_NO_HARVEST) == 0);
      const uint64_t started = chunk_[i]->oldest_active();
      if (finished < oldest_done) oldest_done = finished, done = i;
      if (started < oldest_active) oldest_active = started, active = i;
    }
    if (done < kGroupChunksMax) {
      tag->id = chunk_[done]->id;
      const int64_t result = chunk_[done]->result(&tag->tag, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_NO_HARVEST, kForever);
      if (result != 0 && result != -ENOENT) return result;
      continue;   // another thread was quicker
    }
    if (active == kGroupChunksMax) return -ENOENT;
    if (!(flags & CBLK_ARESULT_BLOCKING)) {
      *tag = {NULL_CHUNK_ID, -1};
      return 0;
    }
    const uint64_t now = sys::now_ns();
    if (now >= deadline) return -ETIMEDOUT;
    const uint64_t turn = now + kTurnNs < deadline ? now + kTurnNs : deadline;
    (void)chunk_[active]->await_any(turn);
  }
}

void Group::stats(chunk_stats_t* out) {
  chunk_[0]->stats(out);
  for (unsigned i = 1; i < count_; ++i) {
    chunk_stats_t one;
    chunk_[i]->stats(&one);
    uint64_t chunk_stats_t::*const sums[] = {
        &chunk_stats_t::num_reads, &chunk_stats_t::num_writes, &chunk_stats_t::num_areads, &chunk_stats_t::num_awrites,
        &chunk_stats_t::num_blocks_read, &chunk_stats_t::num_blocks_written, &chunk_stats_t::num_errors,
        &chunk_stats_t::num_aresult_no_cmplt, &chunk_stats_t::num_timeouts, &chunk_stats_t::num_no_cmds_free,
        &chunk_stats_t::num_no_cmd_room, &chunk_stats_t::num_no_cmds_free_fail, &chunk_stats_t::num_success_threads,
        &chunk_stats_t::num_failed_threads, &chunk_stats_t::num_active_threads, &chunk_stats_t::max_num_act_threads,
        &chunk_stats_t::num_cache_hits, &chunk_stats_t::num_path_fail_overs};
    uint32_t chunk_stats_t::*const gauges[] = {
        &chunk_stats_t::num_act_reads, &chunk_stats_t::num_act_writes, &chunk_stats_t::num_act_areads,
        &chunk_stats_t::num_act_awrites, &chunk_stats_t::max_num_act_reads, &chunk_stats_t::max_num_act_writes,
        &chunk_stats_t::max_num_act_areads, &chunk_stats_t::max_num_act_awrites};
    for (auto sum : sums) out->*sum += one.*sum;
    for (auto gauge : gauges) out->*gauge += one.*gauge;
  }
}

}  // namespace lunar::cblk
