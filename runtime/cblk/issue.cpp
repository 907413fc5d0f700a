// SPDX-License-Identifier: Apache-2.0 From the caller to the ring: asynchronous commands of a chunk, and the thread
// that completes those that no call fetches.
//
// Idea: slow work (checks, the cache, copying into a bounce buffer) comes before the lock; under the lock a command is
// only filled in and put at the end of the backlog, and the backlog goes to the ring as far as it has room.
// Threading: any. Allocates nothing; the first asynchronous command after a fork attaches a ring, the first one with a
// status starts the thread.
#include <errno.h>
#include <fcntl.h>
#include <string.h>

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
  if (io.blocks > transfer_blocks_max_ || io.blocks > size - static_cast<uint64_t>(io.lba)) return -EINVAL;
  if (io.op == Op::kDiscard && !can_unmap_) return -EPROTONOSUPPORT;
  return 0;
}

// 0: goes to the ring; > 0: answered from the cache; -errno.
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
  // The cache is filled from a buffer of ours: the caller may change its own at any time.
  if (timeout_ns_ == 0 && !io->stamps.known && reinterpret_cast<uintptr_t>(io->buffer) % buffer_align_ == 0) return 0;
  const int status = bounces_.take(bytes, &io->bounce);
  if (status == 0 && io->op == Op::kWrite) memcpy(io->bounce.memory, io->buffer, bytes);
  return status;
}

void Chunk::drop(Io* io) { bounces_.give(&io->bounce); }

// Until a command is free, the deadline, or there is little to wait for: commands come free when their results are
// fetched, and when the device owes none and there was less than a round of them, the threads that could fetch are
// waiting here too. The lock is held.
void Chunk::await_free(uint64_t deadline_ns) {
  for (;;) {
    const uint64_t turn = sys::now_ns() + kFreeWaitNs, before = sequence_->load(std::memory_order_relaxed);
    Waiter waiter;
    waiter.kind = Waiter::kFree;
    const int status =
        wait_until(&waiter, turn < deadline_ns ? turn : deadline_ns, [this] { return free_ != kNone || closing_; });
    if (status == 0 || turn >= deadline_ns) return;
    const uint64_t issued = sequence_->load(std::memory_order_relaxed) - before;
    if (in_ring_ + backlog_count_ == 0 && issued < entry_count_) return;
  }
}

// Puts a prepared I/O into the backlog. 0 with *index, or -errno and the I/O is as it was.
int64_t Chunk::admit(Io* io, uint32_t* out) {
  // No command is free while a close waits: it may yet fail, and then the chunk goes on.
  if (closing_) return io->wait_for_command ? -EBUSY : -EWOULDBLOCK;
  if (static_cast<uint64_t>(io->lba) + io->blocks > size_blocks()) return -EINVAL;  // shrunk meanwhile
  if (!context_) {
    if (const int status = attach(); status < 0) return status;
  }
  if (io->status) {
    if (const int status = start_completer(); status < 0) return status;
  }
  uint32_t index = take_free();
  if (index == kNone) {
    if (!leader_ && reap()) index = take_free();  // what frees itself may just have come in
  }
  if (index == kNone) {
    add(counters_.none_free);
    if (io->wait_for_command) {
      const uint64_t usual = sys::now_ns() + command_timeout_ns_;
      await_free(usual < io->wait_deadline_ns ? usual : io->wait_deadline_ns);
      if (closing_) return -EBUSY;
      if (static_cast<uint64_t>(io->lba) + io->blocks > size_blocks()) return -EINVAL;
      index = take_free();
      if (free_ != kNone) signal_one(Waiter::kFree);  // one more came free than was waited for
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
  Entry& entry = entries_[index];
  entry.io = *io;
  entry.deadline_ns = deadline_of_a_new_one();
  entry.sequence = sequence_->fetch_add(1, std::memory_order_relaxed);
  entry.state.store(Entry::kActive, std::memory_order_relaxed);
  asynchronous(io->op).enter_locked();
  if (io->status)
    background_.fetch_add(1, std::memory_order_relaxed);
  else
    enter_fetchable(index);
  *out = index;
  if (io->blocks == 0) {  // nothing to move: ends as a completion of zero length does
    ++in_ring_;
    finish(index, 0);
    return 0;
  }
  entry.part = {io->bounce.memory ? io->bounce.memory : io->buffer, io->blocks * kBlockBytes};
  entry.next = kNone;
  if (backlog_last_ != kNone)
    entries_[backlog_last_].next = index;
  else
    backlog_first_ = index;
  backlog_last_ = index;
  ++backlog_count_;
  return 0;
}

void Chunk::push_backlog() {
  backlog_blocked_ = false;
  uint32_t before = kNone;  // the last one that stays: those that a late write holds up are passed by
  for (;;) {
    alignas(::lunar::Command) char memory[kBatch * sizeof(::lunar::Command)];  // made one by one: most often it is one
    auto* batch = reinterpret_cast<::lunar::Command*>(memory);
    uint32_t index = before == kNone ? backlog_first_ : entries_[before].next;
    unsigned n = 0;
    for (; n < kBatch && index != kNone && in_ring_ + n < depth_; index = entries_[index].next, ++n) {
      const Entry& entry = entries_[index];
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
    const unsigned leave = taken < 0 ? 1 : static_cast<unsigned>(taken);  // a refused one ends with the ring's error
    for (unsigned i = 0; i < leave; ++i) {
      uint32_t* const link = before == kNone ? &backlog_first_ : &entries_[before].next;
      index = *link;
      *link = entries_[index].next;
      if (backlog_last_ == index) backlog_last_ = before;
      --backlog_count_;
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
    wake_completer();
  return status;
}

// ---- the completer ----

int Chunk::start_completer() {
  if (completer_state_ == Completer::kRuns) return 0;
  completer_stop_.store(false, std::memory_order_relaxed);
  sys::ThreadSpec spec;
  spec.name = "lunar-cblk";
  spec.run = [](void* chunk) { static_cast<Chunk*>(chunk)->completer(); };
  spec.argument = this;
  spec.program_files = true;
  const int status = sys::thread_start(spec, &completer_thread_);
  if (status < 0) {
    add(counters_.threads_failed);
    return -ENOMEM;  // EAGAIN would say that no command is free
  }
  add(counters_.threads_started);
  completer_state_ = Completer::kRuns;
  return 0;
}

void Chunk::wake_completer() {
  completer_word_.fetch_add(1, std::memory_order_seq_cst);
  if (completer_sleeps_.load(std::memory_order_seq_cst)) sys::futex_wake(&completer_word_, 1, false);
}

// Sleeps on its word while no command has a status to fill, and otherwise waits as every other thread does.
void Chunk::completer() {
  // statuses and what is copied out are the program's memory: a fault there is the program's to see
  sys::allow_fault_signals();
  for (;;) {
    const uint32_t word = completer_word_.load(std::memory_order_acquire);
    if (completer_stop_.load(std::memory_order_acquire)) return;
    if (background_.load(std::memory_order_relaxed) == 0) {
      completer_sleeps_.store(true, std::memory_order_seq_cst);
      (void)sys::futex_wait(&completer_word_, word, -1, false);  // returns at once when the word has changed since
      completer_sleeps_.store(false, std::memory_order_relaxed);
      continue;
    }
    lock_.lock();
    Waiter waiter;
    waiter.kind = Waiter::kIdle;
    (void)wait_until(&waiter, expire_late_background(), [this] {
      return background_.load(std::memory_order_relaxed) == 0 || completer_stop_.load(std::memory_order_relaxed);
    });
    unlock();
  }
}

// pre: nothing is under way, the lock is free.
void Chunk::stop_completer() {
  if (completer_state_ != Completer::kRuns) return;
  completer_stop_.store(true, std::memory_order_release);
  completer_word_.fetch_add(1, std::memory_order_release);
  sys::futex_wake(&completer_word_, 1, false);
  sys::thread_end(completer_thread_);
  completer_state_ = Completer::kNone;
}

}  // namespace lunar::cblk
