// SPDX-License-Identifier: Apache-2.0
// From the caller to the ring: asynchronous commands of a chunk.
//
// Idea: slow work (checks, the cache, copying into a bounce buffer) is done before taking the lock.
// Under the lock a command is only filled in and put at the end of the backlog, and as much of the
// backlog is submitted as the ring has room for.
// Threading: any. Allocates nothing; the first asynchronous command after a fork attaches a ring,
// the first one with a status starts the thread.
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "cblk/wait.h"

namespace lunar::cblk {
namespace {

constexpr unsigned kBatch = 32;
constexpr uint64_t kFreeWaitNs = 200'000'000;  // about as long as IBM's library waits

}  // namespace

int Chunk::check(const Io& io) const {
  if (inherited_.load(std::memory_order_relaxed)) return -EINVAL;
  if (!io.buffer) return -EINVAL;
  const bool read = io.op == Op::kRead;
  if (access_ == (read ? O_WRONLY : O_RDONLY)) return -EINVAL;
  const uint64_t size = size_blocks();
  if (size == 0 || io.lba < 0 || static_cast<uint64_t>(io.lba) >= size) return -EINVAL;
  if (io.blocks > transfer_blocks_max_ || io.blocks > size - static_cast<uint64_t>(io.lba))
    return -EINVAL;
  if (io.op == Op::kDiscard && !can_unmap_) return -EPROTONOSUPPORT;
  return 0;
}

// Prepares an I/O. 0: it goes to the ring; > 0: it was answered from the cache; -errno.
int64_t Chunk::prepare(Io* io) {
  if (const int status = check(*io); status < 0) return status;
  if (io->status && (flags_ & CBLK_OPN_NO_INTRP_THREADS)) return -EINVAL;
  if (io->blocks == 0 || io->op == Op::kDiscard) return 0;
  const auto block = static_cast<uint64_t>(io->lba);
  const size_t bytes = io->blocks * kBlockBytes;
  if (cache_.active() && io->op == Op::kRead) {
    if (cache_.read(block, io->blocks, io->buffer)) {
      add(counters_.cache_hits);
      add(counters_.areads);
      add(counters_.blocks_read, io->blocks);
      return static_cast<int64_t>(io->blocks);
    }
    io->stamps.known = io->blocks <= Cache::kFillBlocksMax;
    if (io->stamps.known) cache_.begin_read(block, io->blocks, io->stamps.of);
  }
  // The cache is filled from a buffer of the library, because the caller may change its own.
  if (timeout_ns_ == 0 && !io->stamps.known &&
      reinterpret_cast<uintptr_t>(io->buffer) % buffer_align_ == 0)
    return 0;
  const int status = bounces_.take(bytes, &io->bounce);
  if (status == 0 && io->op == Op::kWrite) memcpy(io->bounce.memory, io->buffer, bytes);
  return status;
}

void Chunk::drop(Io* io) { bounces_.give(&io->bounce); }

// Waits until a command is free, until the deadline, or until waiting makes no sense. Commands
// become free when their results are fetched. If the device has no command in progress, and fewer
// results than the table holds were fetched in a turn, the threads that could fetch results are
// waiting here as well. The lock is held.
void Chunk::await_free(uint64_t deadline_ns) {
  for (;;) {
    const uint64_t turn = sys::now_ns() + kFreeWaitNs,
                   before = sequence_->load(std::memory_order_relaxed);
    Waiter waiter(Waiter::kFree);
    const int status = wait_until(&waiter, std::min(turn, deadline_ns),
                                  [this] { return commands_.any_free() || closing_; });
    if (status == 0 || turn >= deadline_ns) return;
    const uint64_t issued = sequence_->load(std::memory_order_relaxed) - before;
    if (idle() && issued < commands_.size()) return;
  }
}

// Puts a prepared I/O into the backlog. 0 with *index; or -errno, and the I/O is unchanged.
int64_t Chunk::admit(Io* io, uint32_t* out) {
  // While a close waits, no command counts as free. If the close fails, the chunk continues.
  if (closing_) return io->wait_for_command ? -EBUSY : -EWOULDBLOCK;
  if (static_cast<uint64_t>(io->lba) + io->blocks > size_blocks())
    return -EINVAL;  // the chunk has shrunk meanwhile
  if (!context_) {
    if (const int status = attach(); status < 0) return status;
  }
  if (io->status) {
    if (const int status = start_completer(); status < 0) return status;
  }
  uint32_t index = commands_.take_free();
  if (index == kNone) {
    if (!leader_ && reap())
      index = commands_.take_free();  // the completion may have freed a command with a status
  }
  if (index == kNone) {
    add(counters_.none_free);
    if (io->wait_for_command) {
      const uint64_t usual = sys::now_ns() + command_timeout_ns_;
      await_free(std::min(usual, io->wait_deadline_ns));
      if (closing_) return -EBUSY;
      if (static_cast<uint64_t>(io->lba) + io->blocks > size_blocks()) return -EINVAL;
      index = commands_.take_free();
      if (commands_.any_free())
        waiters_.signal_one(Waiter::kFree);  // another command is free for another thread
    }
    if (index == kNone) {
      add(counters_.none_free_failed);
      return io->wait_for_command ? -EBUSY : -EWOULDBLOCK;
    }
  }
  if (io->op == Op::kWrite || io->op == Op::kDiscard) {
    io->cached_write = cache_.active();
    if (io->cached_write) cache_.begin_write(static_cast<uint64_t>(io->lba), io->blocks);
  }
  Entry& entry = commands_[index];
  entry.io = *io;
  entry.deadline_ns = deadline_of_a_new_one();
  entry.sequence = sequence_->fetch_add(1, std::memory_order_relaxed);
  entry.state.store(Entry::kActive, std::memory_order_relaxed);
  asynchronous(io->op).enter_locked();
  if (io->status) {
    completer_.add();
    commands_.enter_background(index);
  } else {
    commands_.enter_fetchable(index);
  }
  *out = index;
  if (io->blocks == 0) {  // ends like a completion of zero length
    ++in_ring_;
    finish(index, 0);
    return 0;
  }
  entry.part = {io->bounce.memory ? io->bounce.memory : io->buffer, io->blocks * kBlockBytes};
  commands_.append_backlog(index);
  return 0;
}

void Chunk::push_backlog() {
  backlog_blocked_ = false;
  // The last command that stays. Commands that wait for a late write are overtaken.
  uint32_t before = kNone;
  for (;;) {
    // Commands are constructed one by one, because most batches have one.
    alignas(::lunar::Command) char memory[kBatch * sizeof(::lunar::Command)];
    auto* batch = reinterpret_cast<::lunar::Command*>(memory);
    uint32_t index = commands_.backlog_after(before);
    unsigned n = 0;
    for (; n < kBatch && index != kNone && in_ring_ + n < depth_;
         index = commands_[index].next, ++n) {
      const Entry& entry = commands_[index];
      if (blocked_by_late(entry.io)) break;
      auto& command = *new (&batch[n])::lunar::Command;
      command.op = entry.io.op;
      command.offset = DeviceOffset{static_cast<uint64_t>(entry.io.lba) * kBlockBytes};
      command.iov = &entry.part;
      command.iov_count = 1;
      command.length = entry.part.iov_len;
      command.tag = index;
    }
    if (n == 0 && index != kNone && in_ring_ < depth_) {
      backlog_blocked_ = true;
      before = index;
      continue;
    }
    if (n == 0) {
      if (index != kNone) add(counters_.no_room);
      return;
    }
    const int taken = context_->submit(batch, n);
    if (taken < 0 && (taken == -EAGAIN || taken == -EBUSY || taken == -EINTR)) return;
    // A refused command ends with the ring's error.
    const unsigned leave = taken < 0 ? 1 : static_cast<unsigned>(taken);
    for (unsigned i = 0; i < leave; ++i) {
      index = commands_.take_backlog_after(before);
      ++in_ring_;
      if (taken < 0) finish(index, taken);
    }
    if (taken >= 0 && leave < n) return;
  }
}

int64_t Chunk::issue(Io* io, cflsh_cg_tag_t* tag) {
  if (const int64_t answered = prepare(io); answered != 0) {
    if (answered > 0 && io->status) fill_status(io->status, answered);
    return answered;
  }
  if (io->status) set_status(io->status, CBLK_ARW_STATUS_PENDING);
  lock_.lock();
  uint32_t index = kNone;
  const int64_t status = admit(io, &index);
  if (status == 0) {
    tag->id = id;
    if (!io->has_user_tag) tag->tag = static_cast<int>(index);
    push_backlog();
  }
  unlock();
  if (status < 0)
    drop(io);
  else if (io->status)
    completer_.wake();
  return status;
}

// ---- commands that no call fetches ----

int Chunk::start_completer() {
  bool started = false;
  const int status = completer_.start(
      [](void* chunk) { static_cast<Chunk*>(chunk)->complete_background(); }, this, &started);
  if (status < 0) add(counters_.threads_failed);
  if (started) add(counters_.threads_started);
  return status;
}

void Chunk::complete_background() {
  lock_.lock();
  Waiter waiter(Waiter::kIdle);
  (void)wait_until(&waiter, expire_late_background(),
                   [this] { return completer_.commands() == 0 || completer_.stopping(); });
  unlock();
}

}  // namespace lunar::cblk
