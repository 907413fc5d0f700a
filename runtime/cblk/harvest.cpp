// SPDX-License-Identifier: Apache-2.0
// From the ring to the caller: completions of a chunk.
//
// Idea: the harvester copies (a bounced read, a block for the cache) without the lock. It counts as
// the leader, so no other thread harvests meanwhile.
// Threading: under the chunk's lock but for copy_out. May not: allocate.
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "cblk/wait.h"

namespace lunar::cblk {
namespace {

// Whether the kernel cancelled a command because it had no thread for it (RLIMIT_NPROC).
bool was_cancelled(const Entry& entry, const Response& response) {
  return response.result == -ECANCELED && !entry.lost;
}
bool needs_copy(const Entry& entry) {
  return entry.io.op == Op::kRead && entry.io.bounce.memory && !entry.lost;
}

}  // namespace

int64_t Chunk::do_again(const Entry& entry) {
  return device_->transfer(command_for(entry.io.op, static_cast<uint64_t>(entry.io.lba),
                                       &entry.part, 1, entry.part.iov_len));
}

void Chunk::copy_out(const Response& response) {
  Io& io = commands_[response.tag].io;
  if (response.result <= 0) return;
  const auto bytes = static_cast<size_t>(response.result);
  memcpy(io.buffer, io.bounce.memory, bytes);
  if (io.stamps.known && bytes == io.blocks * kBlockBytes)
    cache_.fill(static_cast<uint64_t>(io.lba), io.blocks, io.bounce.memory, io.stamps.of);
}

// Takes completions from the ring, and submits commands of the backlog. False: there was no
// completion. pre: no leader.
bool Chunk::reap() {
  if (backlog_blocked_ && commands_.backlog()) {
    leader_ = true;
    unlock();
    take_back_late();
    lock_.lock();
    leader_ = false;
  }
  if (commands_.backlog()) push_backlog();
  return take_completions();
}

bool Chunk::take_completions() {
  if (in_ring_ == 0) return false;
  Response responses[kHarvestBatch];
  const int n = context_->reap(responses, kHarvestBatch);
  if (n <= 0) return false;
  bool copies = false;
  for (int i = 0; i < n; ++i) {
    Entry& entry = commands_[responses[i].tag];
    entry.delivered = !entry.lost;
    copies |= needs_copy(entry) || was_cancelled(entry, responses[i]);
  }
  if (copies) {
    leader_ = true;
    unlock();
    for (int i = 0; i < n; ++i) {
      Entry& entry = commands_[responses[i].tag];
      if (was_cancelled(entry, responses[i])) responses[i].result = do_again(entry);
      if (needs_copy(entry)) copy_out(responses[i]);
    }
    lock_.lock();
    leader_ = false;
  }
  for (int i = 0; i < n; ++i) finish(static_cast<uint32_t>(responses[i].tag), responses[i].result);
  if (commands_.backlog()) push_backlog();
  return true;
}

void Chunk::count(const Io& io, int64_t blocks) {
  if (blocks < 0) add(counters_.errors);
  if (io.op == Op::kRead) {
    add(counters_.areads);
    if (blocks > 0) add(counters_.blocks_read, static_cast<uint64_t>(blocks));
  } else {
    add(counters_.awrites);
    if (blocks > 0 && io.op == Op::kWrite)
      add(counters_.blocks_written, static_cast<uint64_t>(blocks));
  }
}

// Finishes a command that left the ring.
void Chunk::finish(uint32_t index, int64_t bytes) {
  Entry& entry = commands_[index];
  Io& io = entry.io;
  --in_ring_;
  entry.delivered = false;
  if (entry.lost) {
    end_lost(entry);
    if (entry.is(Entry::kOrphaned)) give_free(index);
    if (idle()) waiters_.signal_all(Waiter::kIdle);
    return;
  }
  int64_t blocks = bytes < 0 ? bytes : bytes / static_cast<int64_t>(kBlockBytes);
  if (bytes == 0 && io.op == Op::kDiscard) blocks = static_cast<int64_t>(io.blocks);
  if (bytes == -EOPNOTSUPP && io.op == Op::kDiscard) blocks = -EPROTONOSUPPORT;
  if (blocks == 0 || is_our_answer(blocks)) blocks = -EIO;  // 0 would mean that it is not done
  if (io.cached_write) cache_.end_write(static_cast<uint64_t>(io.lba), io.blocks);
  bounces_.give(&io.bounce);
  report(index, blocks);
}

// Reports the result of a command, for a fetch or in the caller's structure.
void Chunk::report(uint32_t index, int64_t blocks) {
  Entry& entry = commands_[index];
  Io& io = entry.io;
  count(io, blocks);
  if (io.status) {
    completer_.remove();
    commands_.leave_background(index);
    asynchronous(io.op).leave_locked();  // before the caller sees the status
    fill_status(io.status, blocks);
    give_free(index);
  } else {
    entry.result = blocks;
    commands_.move_to_done(index);
    if (entry.waiters)
      waiters_.signal_list(&entry.waiters);
    else
      waiters_.signal_one(Waiter::kAny);
    if (finished_) finished_->tell();
  }
  if (idle() || completer_.commands() == 0) waiters_.signal_all(Waiter::kIdle);
}

// Frees a command. The entry of a lost command becomes free when the device releases it.
void Chunk::give_free(uint32_t index) {
  const bool freed = commands_.release(index);
  waiters_.signal_list(&commands_[index].waiters);
  if (freed) waiters_.signal_one(Waiter::kFree);
}

void fill_status(cblk_arw_status_t* status, int64_t blocks) {
  status->blocks_transferred = static_cast<size_t>(std::max<int64_t>(blocks, 0));
  status->fail_errno = blocks < 0 ? static_cast<int>(-blocks) : 0;
  set_status(status, blocks < 0 ? CBLK_ARW_STATUS_FAIL : CBLK_ARW_STATUS_SUCCESS);
}

}  // namespace lunar::cblk
