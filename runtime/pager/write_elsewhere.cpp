// SPDX-License-Identifier: Apache-2.0
// process_vm_writev into tiered memory of another process of the tree, as MPI uses it. The kernel pins up to 1024 pages
// of the target, waits for faults meanwhile, and then copies: a page that is evicted in between keeps its old content.
//
// With UFFDIO_MOVE (6.8), all members evict by it meanwhile: a pinned page stays. Without it nothing could be evicted
// during the call, and the call could wait for memory that way forever. There the call is made in pieces: what a piece
// writes to is not evicted, and everything else is. (To read back what was written is no way: whoever polls the memory
// may have answered there by then, and what looks lost would arrive twice.)
//
// Threading: any thread.
#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/host_guard.h"
#include "pager/pager.h"
#include "pager/state.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/proc.h"
#include "sys/thread.h"
#include "sys/uffd.h"

namespace lunar {
namespace {

constexpr size_t kBytesMax = 0x7ffff000;  // the kernel's MAX_RW_COUNT

// Before this process is active, asked of the kernel once.
bool kernel_can_move(const PagerState& state) {
  if (pager_active()) return state.features.move;
  static std::atomic<int> known{-1};
  if (known.load(std::memory_order_relaxed) < 0) {
    HostGuard guard;
    sys::MakingDescriptor making;
    sys::UffdFeatures features;
    ErrorText why;
    const int fd = sys::uffd_open(&features, &why);
    if (fd >= 0) sys::close_file(fd);
    known.store(fd >= 0 && features.move ? 1 : 0, std::memory_order_relaxed);
  }
  return known.load(std::memory_order_relaxed) == 1;
}

long write_piece(PagerState& state, long pid, const iovec& from, const iovec& to) {
  const long a[6] = {pid, reinterpret_cast<long>(&from), 1, reinterpret_cast<long>(&to), 1, 0};
  sys::ScopedSignalBlock signals;  // a handler that leaves by longjmp would never end it
  const unsigned which = state.account.write_block_begin(reinterpret_cast<uintptr_t>(to.iov_base));
  const long done = sys::kernel_call_errno(SYS_process_vm_writev, a);
  state.account.write_block_end(which);
  return done;
}

// What is left of a list of parts.
class Parts {
 public:
  Parts(const iovec* first, unsigned long count) : next_(first), end_(first + count) { skip_empty(); }
  bool over() const { return next_ == end_; }
  size_t left() const { return next_->iov_len - at_; }
  char* address() const { return static_cast<char*>(next_->iov_base) + at_; }
  void take(size_t bytes) {
    at_ += bytes;
    skip_empty();
  }

 private:
  void skip_empty() {
    for (; next_ != end_ && at_ == next_->iov_len; ++next_) at_ = 0;
  }

  const iovec *next_, *end_;
  size_t at_ = 0;
};

// pre: the kernel has accepted the parts.
long write_in_pieces(PagerState& state, long pid, Parts from, Parts to) {
  size_t written = 0;
  while (!from.over() && !to.over() && written < kBytesMax) {
    const size_t block =
        Account::kWriteBlockBytes - reinterpret_cast<uintptr_t>(to.address()) % Account::kWriteBlockBytes;
    const size_t bytes = std::min({block, from.left(), to.left(), kBytesMax - written});
    const long done = write_piece(state, pid, {from.address(), bytes}, {to.address(), bytes});
    if (done < 0) return written != 0 ? static_cast<long>(written) : done;
    written += static_cast<size_t>(done);
    if (static_cast<size_t>(done) < bytes) break;
    from.take(bytes);
    to.take(bytes);
  }
  return static_cast<long>(written);
}

// Has the kernel look at the arguments before anything is read here: it is asked to write to a process that cannot be.
// 1: they are in order; else the kernel's answer.
long try_arguments(const long (&a)[6]) {
  const long nobody[6] = {-1, a[1], a[2], a[3], a[4], a[5]};
  const long result = sys::kernel_call_errno(SYS_process_vm_writev, nobody);
  return result == -1 && errno == ESRCH ? 1 : result;
}

}  // namespace

long pager_write_elsewhere(const long (&a)[6]) {
  auto& state = pager_state();
  if (!kernel_can_move(state)) {
    const int before = errno;
    if (const long result = try_arguments(a); result <= 0) return result;
    errno = before;
    return write_in_pieces(state, a[0], {reinterpret_cast<const iovec*>(a[1]), static_cast<unsigned long>(a[2])},
                           {reinterpret_cast<const iovec*>(a[3]), static_cast<unsigned long>(a[4])});
  }
  sys::ScopedSignalBlock signals;  // a handler that leaves by longjmp would never end it
  state.account.write_elsewhere_begin();
  const long result = sys::kernel_call_errno(SYS_process_vm_writev, a);
  state.account.write_elsewhere_end();
  return result;
}

}  // namespace lunar
