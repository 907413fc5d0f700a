// SPDX-License-Identifier: Apache-2.0
// io_uring, by liburing.
// Threading: a Uring belongs to one thread (SINGLE_ISSUER) unless it is `shared`. After init()
// nothing is allocated, and all calls may be used on the fault path.
#pragma once
#include <liburing.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>

#include "sys/file.h"

namespace lunar::sys {

struct Cqe {
  uint64_t user;
  int32_t result;
  uint32_t flags;
};

struct UringSetup {
  unsigned entries = 8;
  bool shared = false;  // any thread may use it, one at a time (await(): at any time)
  // With shared: the thread that submits also waits, so completions need not interrupt it.
  bool in_turns = false;
  bool large = false;  // 128-byte entries and 32-byte completions, for queue_nvme
};

struct NvmeCommand;  // sys/nvme.h

class Uring {
 public:
  // Tries SINGLE_ISSUER|DEFER_TASKRUN, then plainer rings. The ring's memory is MADV_DONTFORK.
  // -errno of the last attempt (-ENOSYS/-EPERM: the host refuses io_uring).
  [[nodiscard]] int init(const UringSetup& setup);
  void destroy();  // in a forked child: closes the inherited descriptor, no more
  [[nodiscard]] int register_files(const int* fds, unsigned count);
  [[nodiscard]] int register_buffers(const iovec* iov, unsigned count);

  // These queue one operation. False: the submission ring is full (submit, then try again). fd: a
  // descriptor, or a registered file's index when fixed_file. buffer_index: of the registered
  // buffer in which all of the memory lies, -1 for none; of a vector only where fixed_vectors().
  // flags: RWF_*.
  bool queue_readv(int fd, bool fixed_file, const iovec* iov, unsigned count, uint64_t offset,
                   int buffer_index, uint64_t user);
  bool queue_writev(int fd, bool fixed_file, const iovec* iov, unsigned count, uint64_t offset,
                    int buffer_index, uint64_t user, int flags = 0);
  bool queue_read(int fd, bool fixed_file, void* buffer, unsigned bytes, uint64_t offset,
                  int buffer_index, uint64_t user);
  bool queue_write(int fd, bool fixed_file, const void* buffer, unsigned bytes, uint64_t offset,
                   int buffer_index, uint64_t user, int flags = 0);
  bool queue_poll_in(int fd, uint64_t user);  // one-shot
  bool queue_fsync(int fd, bool fixed_file, uint64_t user);
  // keep: a file keeps its space (zero range); otherwise the space is freed (punch).
  bool queue_discard(int fd, bool fixed_file, uint64_t offset, uint64_t length, bool keep,
                     uint64_t user);
  bool queue_nop(uint64_t user);  // completes with 0
  // pre: a large ring.
  bool queue_nvme(int fd, bool fixed_file, const NvmeCommand& command, int buffer_index,
                  uint64_t user);

  [[nodiscard]] int submit();  // count or -errno
  // Submits what is queued and waits for at least `count` completions or the timeout (< 0: none).
  // 0, -ETIME, -EINTR, ...
  [[nodiscard]] int submit_and_wait(int64_t timeout_ns, unsigned count = 1);
  // Sleeps until there is a completion, or until the timeout. Does not touch the rings, so on a
  // shared ring it may run concurrently with other calls. 0 or -errno (-ETIME, -EINTR).
  [[nodiscard]] int await(int64_t timeout_ns);
  // Takes completions; runs deferred task work first when `drive` (a system call).
  unsigned reap(Cqe* out, unsigned max, bool drive);

  unsigned queued() const {  // not yet taken by the kernel
    return ready_ ? io_uring_sq_ready(&ring_) : 0;
  }
  bool deferred() const { return deferred_; }
  bool fixed_vectors() const {  // the kernel takes vectors in a registered buffer (6.15)
    return fixed_vectors_;
  }
  bool ready() const { return ready_; }
  // To poll() for completions; not with deferred(), whose completions need reap(drive).
  int descriptor() const { return ring_.ring_fd; }

 private:
  template <class Prepare>
  bool queue(bool fixed_file, uint64_t user, Prepare prepare);
  void unregister_buffers();

  io_uring ring_{};
  FileIdentity identity_;
  bool ready_ = false;
  // of the ring, if it is in the program's table (noted in sys/proc.h as one of ours)
  int descriptor_ = -1;
  int64_t pinned_bytes_ = 0;  // registered buffers
  bool deferred_ = false;
  bool fixed_vectors_ = false;
  uint32_t copy_ = 0;  // of the memory that it was made in (sys/memory_copy.h)
};

// Whether this host allows a ring, and a registered buffer (RLIMIT_MEMLOCK): 0 or -errno. The
// buffer is unregistered again.
[[nodiscard]] int uring_probe();
[[nodiscard]] int uring_probe_window(void* buffer, size_t bytes);

}  // namespace lunar::sys
