// SPDX-License-Identifier: Apache-2.0
// Groups of chunks: see group.h.
// Threading: any; open, close and set_size block.
#include "cblk/group.h"

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "config/trust.h"
#include "superpipe/wakeups.h"
#include "sys/arena.h"

namespace lunar::cblk {
namespace {

// Of a vector. A call on a RAID 0 has one vector per chunk on its stack.
constexpr uint32_t kPartsMax = 128;

// Finds the device names of a path. RAID0, RAID0:* and RAID0:N stand for the devices in
// LUNAR_RAID0_DEVICES, which must be N. Any other path lists its devices.
int find_devices(const char* path, char (*names)[kPathBytes]) {
  if (strncmp(path, "RAID0", 5) != 0 || (path[5] && path[5] != ':'))
    return split_devices(path, names, kDevicesMax);
  const char* wanted = path[5] ? path + 6 : "*";
  const char* devices = environment_value("LUNAR_RAID0_DEVICES");
  const int count = devices && *devices ? split_devices(devices, names, kDevicesMax) : 0;
  if (count == 0) return -ENODEV;
  if (count < 0 || strcmp(wanted, "*") == 0) return count;
  const bool is_count =
      wanted[0] >= '1' && wanted[0] <= '0' + static_cast<int>(kDevicesMax) && wanted[1] == '\0';
  return is_count && wanted[0] - '0' == count ? count : -ENODEV;
}

}  // namespace

int Group::open(const Chunk::Options& options, int chunks, Group** out) {
  const int kind = options.flags & CBLK_GROUP_MASK;
  const bool raid0 = kind == CBLK_GROUP_RAID0;
  if (kind == CBLK_GROUP_MASK || chunks <= 0 || !options.path || !*options.path) return -EINVAL;
  // All chunks of a group must have the same content, but each virtual LUN would have its own.
  if (!raid0 && (options.flags & CBLK_OPN_VIRT_LUN)) return -EINVAL;
  if (chunks > kGroupChunksMax) return -ENOMEM;
  void* memory = map_private(sizeof(Group), ForkPolicy::kInherit);
  if (!memory) return -ENOMEM;
  auto* group = new (memory) Group;
  group->raid0_ = raid0;
  Chunk::Options each = options;
  each.kind = Kind::kMember;
  each.flags &= ~CBLK_GROUP_MASK;
  each.sequence = &group->sequence_;
  group->siblings_.chunk = group->chunk_;
  if (!raid0) each.siblings = &group->siblings_;
  each.finished = &group->finished_;
  int status = raid0 ? group->open_devices(each) : 0;
  for (int i = 0; i < (raid0 ? 0 : chunks) && status == 0; ++i) {
    status = group->open_chunk(each);
    each.further = true;
  }
  group->siblings_.count = group->count_;
  if (status == 0) status = table_add(group);
  if (status < 0)
    group->destroy();
  else
    *out = group;
  return status;
}

int Group::open_chunk(const Chunk::Options& options) {
  const int status = Chunk::open(options, &chunk_[count_]);
  if (status == 0) ++count_;
  return status;
}

int Group::open_devices(Chunk::Options options) {
  auto* names =
      static_cast<char(*)[kPathBytes]>(map_private(kDevicesMax * kPathBytes, ForkPolicy::kInherit));
  if (!names) return -ENOMEM;
  const int count = find_devices(options.path, names);
  int status = count < 0 ? count : 0;
  for (int i = 0; i < count && status == 0; ++i) {
    options.path = names[i];
    status = open_chunk(options);
  }
  unmap_private(names, kDevicesMax * kPathBytes);
  return status;
}

// pre: not in use.
void Group::destroy() {
  for (unsigned i = 0; i < count_; ++i) {
    Handle* used = table_acquire(chunk_[i]->id, Kind::kMember);
    if (used && chunk_[i]->close(0) < 0) table_release(used);  // no command can be in progress
  }
  finished_.close();
  unmap_private(this, sizeof(Group));
}

int Group::close(int flags) {
  if (closing_.exchange(true)) return -EINVAL;
  const uint64_t deadline = sys::now_ns() + kCloseWaitNs;
  // All chunks are drained before the first one ends, so a busy group stays whole.
  bool over = true;
  for (unsigned i = 0; i < count_ && over; ++i) over = chunk_[i]->drain(deadline);
  if (over) over = table_shut(this, 1, deadline) == 0;
  if (over) {
    for (unsigned i = 0; i < count_ && over; ++i) over = chunk_[i]->late_end(deadline);
    if (!over) table_reopen(this);
  }
  if (!over) {
    for (unsigned i = 0; i < count_; ++i) chunk_[i]->reopen();
    closing_.store(false);
    return -EBUSY;
  }
  registry_remove(this);
  Slot* const place = slot;
  for (unsigned i = 0; i < count_; ++i) {
    Handle* used = table_acquire(chunk_[i]->id, Kind::kMember);
    if (used && table_shut(used, 1, kForever) == 0)
      chunk_[i]->end(flags);  // a fetch by its id now fails
    chunk_[i] = nullptr;
  }
  finished_.close();
  unmap_private(this, sizeof(Group));
  place->word.fetch_sub(1, std::memory_order_release);  // the closer's own use
  return 0;
}

uint64_t Group::lun_blocks() const {
  uint64_t least = kForever;
  for (unsigned i = 0; i < count_; ++i) {
    if (chunk_[i]->lun_blocks() < least) least = chunk_[i]->lun_blocks();
  }
  return raid0_ ? least * count_ : least;
}

uint64_t Group::size_blocks() const {
  uint64_t least = kForever;
  for (unsigned i = 0; i < count_; ++i) {
    if (chunk_[i]->size_blocks() < least) least = chunk_[i]->size_blocks();
  }
  return raid0_ ? least * count_ : least;
}

// Resizes all chunks or none.
int Group::set_size(uint64_t blocks, int flags) {
  if (!raid0_ || blocks == 0) return -EINVAL;
  const uint64_t before = size_blocks() / count_;
  const bool all = blocks == UINT64_MAX;
  uint64_t each = blocks / count_ + (blocks % count_ != 0);
  int status = 0;
  for (unsigned i = 0; i < count_ && status == 0; ++i) {
    // The chunks on this one's device that have no share yet. A device may occur several times.
    unsigned sharers = 1;
    for (unsigned j = i + 1; all && j < count_; ++j)
      sharers += chunk_[j]->is_on_device_of(*chunk_[i]);
    if (all) each = chunk_[i]->most_blocks(sharers);
    status = chunk_[i]->set_size(each, flags);
    for (unsigned j = i; status < 0 && j-- > 0;) (void)chunk_[j]->set_size(before, flags);
  }
  const uint64_t least = size_blocks() / count_;
  for (unsigned i = 0; i < count_ && status == 0 && all; ++i)
    status = chunk_[i]->set_size(least, flags);
  return status;
}

void Group::attributes(chunk_attrs_t* out) {
  chunk_[0]->attributes(out);
  for (unsigned i = 1; i < count_; ++i) {
    chunk_attrs_t one;
    chunk_[i]->attributes(&one);
    out->flags1 &= one.flags1;
    if (one.num_paths < out->num_paths) out->num_paths = one.num_paths;
    if (one.max_transfer_size < out->max_transfer_size)
      out->max_transfer_size = one.max_transfer_size;
  }
}

Chunk* Group::route(Io* io) {
  if (!raid0_) return chunk_[turn_.fetch_add(1, std::memory_order_relaxed) % count_];
  // The rest of a larger device is unused.
  if (io->lba < 0 || static_cast<uint64_t>(io->lba) >= size_blocks()) return nullptr;
  Chunk* chunk = chunk_[static_cast<uint64_t>(io->lba) % count_];
  io->lba /= count_;
  return chunk;
}

int64_t Group::transfer(Io* io) {
  if (raid0_ && count_ > 1 && io->blocks > 1) return transfer_striped(*io);
  Chunk* chunk = route(io);
  return chunk ? chunk->transfer(io) : -EINVAL;
}

// The chunks' shares of some blocks. All are submitted before the first wait, and each is copied
// while the others are in progress.
struct Group::Shares {
  Shares(Group& of, const Io& whole, uint64_t until_ns)
      : group(of), io(whole), deadline_ns(until_ns) {}

  // Transfers blocks [from, to) of the call: at most kPartsMax per chunk.
  void run(uint64_t from, uint64_t to) {
    for (uint64_t first = from; first < to && first < from + group.count_; ++first) {
      Share& share = shares[begun];
      Chunk& chunk = fill(&share, first, to);
      if (begun > ended) share.io.may_wait = false;
      if (!chunk.begin(&share.blocking)) {
        end_all();
        share.io.may_wait = true;
        (void)chunk.begin(&share.blocking);
      }
      share.chunk = &chunk;
      ++begun;
    }
    end_all();
    begun = ended = 0;
  }

  Group& group;
  const Io& io;
  const uint64_t deadline_ns;
  int64_t error = 0;  // the first

 private:
  struct Share {
    Io io;
    Blocking blocking{io};
    Chunk* chunk = nullptr;
    iovec parts[kPartsMax];
  };

  Chunk& fill(Share* share, uint64_t first, uint64_t to) {
    const uint64_t count = group.count_;
    Io& own = share->io;
    own = Io();
    share->blocking.reset();
    own.op = io.op;
    own.deadline_ns = deadline_ns;
    own.lba = static_cast<int64_t>((static_cast<uint64_t>(io.lba) + first) / count);
    own.buffer = io.buffer + first * kBlockBytes;
    own.overlaps = true;
    for (uint64_t at = first; at < to; at += count) {
      if (io.op != Op::kDiscard)
        share->parts[own.blocks] = {io.buffer + at * kBlockBytes, kBlockBytes};
      ++own.blocks;
    }
    own.parts = io.op == Op::kDiscard ? nullptr : share->parts;
    own.part_count = static_cast<uint32_t>(own.blocks);
    return *group.chunk_[(static_cast<uint64_t>(io.lba) + first) % count];
  }

  void end_all() {
    for (; ended < begun; ++ended) {
      Share& share = shares[ended];
      const int64_t moved = share.chunk->end(&share.blocking);
      if (moved != static_cast<int64_t>(share.io.blocks) && error == 0)
        error = moved < 0 ? moved : -EIO;
    }
  }

  unsigned begun = 0, ended = 0;
  Share shares[kDevicesMax];
};

// Returns the number of all blocks, or -errno: some may have moved.
int64_t Group::transfer_striped(const Io& io) {
  chunk_attrs_t attrs;
  attributes(&attrs);
  const uint64_t size = size_blocks();
  if (!io.buffer || io.lba < 0 || static_cast<uint64_t>(io.lba) >= size ||
      io.blocks > size - static_cast<uint64_t>(io.lba) || io.blocks > attrs.max_transfer_size)
    return -EINVAL;
  if (io.op == Op::kDiscard && !(attrs.flags1 & CFLSH_ATTR_UNMAP))
    return -EPROTONOSUPPORT;     // one chunk cannot, so none does
  uint64_t deadline = kForever;  // of the call, not of each share
  for (unsigned i = 0; i < count_; ++i) {
    if (const uint64_t own = chunk_[i]->deadline_of_a_new_one(); own < deadline) deadline = own;
  }
  const uint64_t most = io.op == Op::kDiscard ? io.blocks : uint64_t{kPartsMax} * count_;
  Shares shares(*this, io, deadline);
  for (uint64_t at = 0; at < io.blocks && shares.error == 0; at += most)
    shares.run(at, at + std::min<uint64_t>(io.blocks - at, most));
  return shares.error ? shares.error : static_cast<int64_t>(io.blocks);
}

int64_t Group::issue(Io* io, cflsh_cg_tag_t* tag) {
  if (raid0_ && io->blocks > 1) return -EINVAL;  // a tag is of one chunk
  Chunk* chunk = route(io);
  return chunk ? chunk->issue(io, tag) : -EINVAL;
}

int64_t Group::result(cflsh_cg_tag_t* tag, int flags) {
  if (flags & CBLK_ARESULT_NEXT_TAG) {
    int64_t result = next_result(tag, flags);
    if (result == -ETIMEDOUT) return -ETIME;
    if (result != -ENOENT || (flags & CBLK_ARESULT_BLOCKING)) return result;
    *tag = {NULL_CHUNK_ID, -1};
    return 0;
  }
  for (unsigned i = 0; i < count_; ++i) {
    if (chunk_[i]->id == tag->id) return chunk_[i]->result(tag, flags);
  }
  return -EINVAL;
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
    return chunk_[0]->result(tag, flags);
  }
  const bool harvests =
      (flags & (CBLK_ARESULT_NO_HARVEST | CBLK_ARESULT_BLOCKING)) != CBLK_ARESULT_NO_HARVEST;
  for (;;) {
    const Oldest oldest = find_oldest(harvests);
    if (oldest.done) {
      tag->id = oldest.done->id;
      const int64_t result =
          oldest.done->result(&tag->tag, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_NO_HARVEST, kForever);
      if (result == 0 || result == -ENOENT) continue;  // another thread has fetched it
      finished_.tell();
      return result;
    }
    if (!oldest.active) return -ENOENT;
    if (!(flags & CBLK_ARESULT_BLOCKING)) {
      *tag = {NULL_CHUNK_ID, -1};
      return 0;
    }
    sleep();
  }
}

Group::Oldest Group::find_oldest(bool harvests) {
  Oldest out;
  uint64_t oldest_done = kForever;
  for (unsigned i = 0; i < count_; ++i) {
    const uint64_t finished = chunk_[i]->oldest_done(harvests);
    if (finished < oldest_done) {
      oldest_done = finished;
      out.done = chunk_[i];
    }
    out.active |= chunk_[i]->oldest_active() != kForever;
  }
  return out;
}

// Sleeps until a chunk may have a result. finished_ reports results that another thread harvests.
void Group::sleep() {
  Wakeups any;
  finished_.begin_sleep(&any);
  const Oldest oldest = find_oldest(false);
  if (!oldest.done && oldest.active) {
    for (unsigned i = 0; i < count_; ++i) chunk_[i]->wakeups(&any);
    (void)any.sleep(-1);
  }
  finished_.end_sleep();
}

void Group::stats(chunk_stats_t* out) {
  chunk_[0]->stats(out);
  for (unsigned i = 1; i < count_; ++i) {
    chunk_stats_t one;
    chunk_[i]->stats(&one);
    uint64_t chunk_stats_t::* const sums[] = {&chunk_stats_t::num_reads,
                                              &chunk_stats_t::num_writes,
                                              &chunk_stats_t::num_areads,
                                              &chunk_stats_t::num_awrites,
                                              &chunk_stats_t::num_blocks_read,
                                              &chunk_stats_t::num_blocks_written,
                                              &chunk_stats_t::num_errors,
                                              &chunk_stats_t::num_aresult_no_cmplt,
                                              &chunk_stats_t::num_timeouts,
                                              &chunk_stats_t::num_fail_timeouts,
                                              &chunk_stats_t::num_no_cmds_free,
                                              &chunk_stats_t::num_no_cmd_room,
                                              &chunk_stats_t::num_no_cmds_free_fail,
                                              &chunk_stats_t::num_success_threads,
                                              &chunk_stats_t::num_failed_threads,
                                              &chunk_stats_t::num_active_threads,
                                              &chunk_stats_t::max_num_act_threads,
                                              &chunk_stats_t::num_cache_hits,
                                              &chunk_stats_t::num_path_fail_overs};
    uint32_t chunk_stats_t::* const gauges[] = {
        &chunk_stats_t::num_act_reads,      &chunk_stats_t::num_act_writes,
        &chunk_stats_t::num_act_areads,     &chunk_stats_t::num_act_awrites,
        &chunk_stats_t::max_num_act_reads,  &chunk_stats_t::max_num_act_writes,
        &chunk_stats_t::max_num_act_areads, &chunk_stats_t::max_num_act_awrites};
    for (auto sum : sums) out->*sum += one.*sum;
    for (auto gauge : gauges) out->*gauge += one.*gauge;
  }
}

}  // namespace lunar::cblk
