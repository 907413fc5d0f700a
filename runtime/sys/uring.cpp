// SPDX-License-Identifier: Apache-2.0
// io_uring, by liburing.
//
// Idea: ask for the ring that is cheapest for one waiting thread, and fall back to a ring that the
// kernel knows:
//   SINGLE_ISSUER|DEFER_TASKRUN (6.1)   completions are finished by the thread that waits, when it
//                                       asks
//   COOP_TASKRUN (5.19)                 no interrupt of a running thread to finish a completion
//   plain (5.11)
// TASKRUN_FLAG shows in shared memory that work is pending, so a spinning thread makes no system
// call before there is a completion to fetch. The ring's descriptor is registered with the thread,
// so io_uring_enter still works if the program closes descriptors that are not its own.
// Threading: a Uring belongs to the thread that made it. May not: allocate after init, call libc's
// mmap family (liburing issues its system calls itself).
#include "sys/uring.h"

#include "sys/memory_copy.h"
#include "sys/nvme.h"
#include "sys/proc.h"
#include "sys/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace lunar::sys {
namespace {

// Newer than the headers of the oldest system that Lunar is built on.
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif
#ifndef IORING_URING_CMD_FIXED
#define IORING_URING_CMD_FIXED (1U << 0)
#endif
constexpr uint8_t kOpReadvFixed = 60, kOpWritevFixed = 61;  // 6.15

int try_init(io_uring* ring, unsigned entries, unsigned flags) {
  io_uring_params params = {};
  params.flags = flags | IORING_SETUP_CLAMP;
  return io_uring_queue_init_params(entries, ring, &params);
}

// Whether the kernel takes vectors in registered buffers; asked once per process.
bool knows_fixed_vectors(io_uring* ring) {
  static std::atomic<int> known{-1};
  int answer = known.load(std::memory_order_relaxed);
  if (answer < 0) {
    constexpr unsigned kOps = 64;
    alignas(
        io_uring_probe) char memory[sizeof(io_uring_probe) + kOps * sizeof(io_uring_probe_op)] = {};
    auto* probe = reinterpret_cast<io_uring_probe*>(memory);
    answer = io_uring_register_probe(ring, probe, kOps) == 0 && probe->ops_len > kOpWritevFixed &&
             (probe->ops[kOpReadvFixed].flags & IO_URING_OP_SUPPORTED) &&
             (probe->ops[kOpWritevFixed].flags & IO_URING_OP_SUPPORTED);
    known.store(answer, std::memory_order_relaxed);
  }
  return answer != 0;
}

}  // namespace

int Uring::init(const UringSetup& setup) {
  constexpr unsigned kDeferred = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL;
  constexpr unsigned kCooperative =
      IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL;
  const unsigned attempts[] = {kDeferred, kCooperative, 0};
  const unsigned must = setup.large ? IORING_SETUP_SQE128 | IORING_SETUP_CQE32 : 0u;
  const MakingDescriptor making;
  int status = -EINVAL;
  for (unsigned flags : attempts) {
    // Completions must not wait for the thread that submitted: it may be computing, or have ended.
    if (setup.shared && (flags == kDeferred || (flags == kCooperative && !setup.in_turns)))
      continue;
    status = try_init(&ring_, setup.entries, flags | must);
    if (status == 0) break;
  }
  if (status < 0) return status;
  deferred_ = (ring_.flags & IORING_SETUP_DEFER_TASKRUN) != 0;
  // A child that inherited the ring would submit into its parent's queue. Kernels without the
  // feature map the rings in a way that liburing cannot mark: fork is refused there by the layer
  // above, not here.
  (void)io_uring_ring_dontfork(&ring_);
  if (setup.large) {  // liburing 2.3 marks half of the larger entries
    (void)syscall(SYS_madvise, ring_.sq.sqes, ring_.sq.ring_entries * 2 * sizeof(io_uring_sqe),
                  MADV_DONTFORK);
  }
  fixed_vectors_ = knows_fixed_vectors(&ring_);
  // A thread with its own table has no number that the program could take for its own.
  if (in_program_files()) {
    ring_.ring_fd = move_high(ring_.ring_fd);
    ring_.enter_ring_fd = ring_.ring_fd;
  }
  // Best effort: 5.18 and newer, and at most 16 rings a thread. Without it the descriptor is used
  // as it is.
  if (!setup.shared) (void)io_uring_register_ring_fd(&ring_);
  ready_ = true;
  identity_ = file_identity(ring_.ring_fd);
  copy_ = memory_copy();
  if (in_program_files()) {
    descriptor_ = ring_.ring_fd;
    note_own_descriptor(descriptor_, true);
  }
  return 0;
}

void Uring::destroy() {
  if (!ready_) return;
  const MakingDescriptor ending;
  ready_ = false;
  const bool in_table_of_program = descriptor_ >= 0;
  if (in_table_of_program) note_own_descriptor(descriptor_, false);
  descriptor_ = -1;
  // The program may have closed this number and opened its own file under it, perhaps another ring.
  // That one must stay open.
  const bool in_place = is_file(ring_.ring_fd, identity_);
  // In a forked child the ring's memory is not mapped, and its addresses may be in use again. (A
  // service thread's ring has no descriptor there at all.)
  if (copy_ != memory_copy()) {
    pinned_bytes_ = 0;
    if (in_place) close_file(ring_.ring_fd);
    return;
  }
  if (in_place) {
    unregister_buffers();
    // The kernel ends a ring some milliseconds later, in the background. This releases its files,
    // and the locks on them, now.
    (void)io_uring_unregister_files(&ring_);
    io_uring_queue_exit(&ring_);
    return;
  }
  // The program closed the descriptor. The kernel ends the ring with the thread, whose registration
  // holds it. liburing removes the mappings, with a descriptor number that no file has.
  ring_.ring_fd = -1;
  ring_.int_flags = 0;
  io_uring_queue_exit(&ring_);
}

int Uring::register_files(const int* fds, unsigned count) {
  return io_uring_register_files(&ring_, fds, count);
}

int Uring::register_buffers(const iovec* iov, unsigned count) {
  int64_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) bytes += static_cast<int64_t>(iov[i].iov_len);
  note_own_pinned(bytes);  // first: VmPin must never show more than is recorded as Lunar's
  const int status = io_uring_register_buffers(&ring_, iov, count);
  if (status < 0)
    note_own_pinned(-bytes);
  else
    pinned_bytes_ += bytes;
  return status;
}

// Unregisters them now, and does not leave it to the kernel after the ring's end: until then VmPin
// would show pages without a known owner, which the evictor takes for the program's
// (pager/evict/pins.h). If this fails, they stay counted as Lunar's.
void Uring::unregister_buffers() {
  if (pinned_bytes_ == 0 || io_uring_unregister_buffers(&ring_) < 0) return;
  note_own_pinned(-pinned_bytes_);
  pinned_bytes_ = 0;
}

template <class Prepare>
bool Uring::queue(bool fixed_file, uint64_t user, Prepare prepare) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (!sqe) return false;
  prepare(sqe);
  if (fixed_file) sqe->flags |= IOSQE_FIXED_FILE;
  sqe->user_data = user;
  return true;
}

bool Uring::queue_readv(int fd, bool fixed_file, const iovec* iov, unsigned count, uint64_t offset,
                        int buffer_index, uint64_t user) {
  return queue(fixed_file, user, [&](io_uring_sqe* sqe) {
    io_uring_prep_readv(sqe, fd, iov, count, offset);
    if (buffer_index < 0) return;
    sqe->opcode = kOpReadvFixed;
    sqe->buf_index = static_cast<uint16_t>(buffer_index);
  });
}

bool Uring::queue_writev(int fd, bool fixed_file, const iovec* iov, unsigned count, uint64_t offset,
                         int buffer_index, uint64_t user, int flags) {
  return queue(fixed_file, user, [&](io_uring_sqe* sqe) {
    io_uring_prep_writev2(sqe, fd, iov, count, offset, flags);
    if (buffer_index < 0) return;
    sqe->opcode = kOpWritevFixed;
    sqe->buf_index = static_cast<uint16_t>(buffer_index);
  });
}

bool Uring::queue_read(int fd, bool fixed_file, void* buffer, unsigned bytes, uint64_t offset,
                       int buffer_index, uint64_t user) {
  return queue(fixed_file, user, [&](io_uring_sqe* sqe) {
    if (buffer_index >= 0)
      io_uring_prep_read_fixed(sqe, fd, buffer, bytes, offset, buffer_index);
    else
      io_uring_prep_read(sqe, fd, buffer, bytes, offset);
  });
}

bool Uring::queue_write(int fd, bool fixed_file, const void* buffer, unsigned bytes,
                        uint64_t offset, int buffer_index, uint64_t user, int flags) {
  return queue(fixed_file, user, [&](io_uring_sqe* sqe) {
    if (buffer_index >= 0)
      io_uring_prep_write_fixed(sqe, fd, buffer, bytes, offset, buffer_index);
    else
      io_uring_prep_write(sqe, fd, buffer, bytes, offset);
    sqe->rw_flags = flags;
  });
}

bool Uring::queue_poll_in(int fd, uint64_t user) {
  return queue(false, user, [&](io_uring_sqe* sqe) { io_uring_prep_poll_add(sqe, fd, POLLIN); });
}

bool Uring::queue_fsync(int fd, bool fixed_file, uint64_t user) {
  return queue(fixed_file, user,
               [&](io_uring_sqe* sqe) { io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC); });
}

bool Uring::queue_discard(int fd, bool fixed_file, uint64_t offset, uint64_t length, bool keep,
                          uint64_t user) {
  return queue(fixed_file, user, [&](io_uring_sqe* sqe) {
    io_uring_prep_rw(IORING_OP_FALLOCATE, sqe, fd, reinterpret_cast<const void*>(length),
                     (keep ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE) | FALLOC_FL_KEEP_SIZE,
                     offset);  // 64-bit length travels in `addr`
  });
}

bool Uring::queue_nop(uint64_t user) {
  return queue(false, user, [](io_uring_sqe* sqe) { io_uring_prep_nop(sqe); });
}

bool Uring::queue_nvme(int fd, bool fixed_file, const NvmeCommand& command, int buffer_index,
                       uint64_t user) {
  return queue(fixed_file, user, [&](io_uring_sqe* sqe) {
    io_uring_prep_rw(IORING_OP_URING_CMD, sqe, fd, nullptr, 0, 0);
    if (buffer_index >= 0) {
      sqe->uring_cmd_flags = IORING_URING_CMD_FIXED;
      sqe->buf_index = static_cast<uint16_t>(buffer_index);
    }
    nvme_ring_command(command, &sqe->cmd_op, sqe->cmd);
  });
}

int Uring::submit() { return io_uring_submit(&ring_); }

int Uring::submit_and_wait(int64_t timeout_ns, unsigned count) {
  int status;
  if (timeout_ns < 0) {
    status = io_uring_submit_and_wait(&ring_, count);
  } else {
    __kernel_timespec time = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    io_uring_cqe* cqe = nullptr;
    status = io_uring_submit_and_wait_timeout(&ring_, &cqe, count, &time, nullptr);
  }
  return status < 0 ? status : 0;
}

int Uring::await(int64_t timeout_ns) {
  io_uring_getevents_arg argument = {};
  __kernel_timespec time = {timeout_ns / 1000000000, timeout_ns % 1000000000};
  argument.sigmask_sz = _NSIG / 8;
  if (timeout_ns >= 0) argument.ts = reinterpret_cast<uintptr_t>(&time);
  const int status = io_uring_enter2(static_cast<unsigned>(ring_.enter_ring_fd), 0, 1,
                                     IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG |
                                         (ring_.int_flags & 1 ? IORING_ENTER_REGISTERED_RING : 0u),
                                     reinterpret_cast<sigset_t*>(&argument), sizeof argument);
  return status < 0 ? status : 0;
}

unsigned Uring::reap(Cqe* out, unsigned max, bool drive) {
  unsigned taken = 0;
  for (int round = 0; round < 2; ++round) {
    unsigned head, seen = 0;
    io_uring_cqe* cqe;
    io_uring_for_each_cqe(&ring_, head, cqe) {
      if (taken == max) break;
      ++seen;
      if (cqe->user_data == LIBURING_UDATA_TIMEOUT)
        continue;  // liburing's own, on kernels without EXT_ARG
      out[taken++] = {cqe->user_data, cqe->res, cqe->flags};
    }
    if (seen) io_uring_cq_advance(&ring_, seen);
    if (taken || !drive || round) break;
    const unsigned flags = __atomic_load_n(ring_.sq.kflags, __ATOMIC_RELAXED);
    if (!(flags & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN))) break;
    (void)io_uring_get_events(&ring_);
  }
  return taken;
}

int uring_probe() {
  const MakingDescriptor making;
  io_uring ring = {};
  const int status = try_init(&ring, 2, 0);
  if (status == 0) io_uring_queue_exit(&ring);
  return status;
}

int uring_probe_window(void* buffer, size_t bytes) {
  const MakingDescriptor making;
  io_uring ring = {};
  int status = try_init(&ring, 2, 0);
  if (status < 0) return status;
  const iovec part = {buffer, bytes};
  note_own_pinned(static_cast<int64_t>(bytes));
  status = io_uring_register_buffers(&ring, &part, 1);
  // see Uring::unregister_buffers
  const int given_back = status < 0 ? 0 : io_uring_unregister_buffers(&ring);
  io_uring_queue_exit(&ring);
  if (given_back == 0) note_own_pinned(-static_cast<int64_t>(bytes));
  return status;
}

}  // namespace lunar::sys
