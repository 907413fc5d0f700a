// SPDX-License-Identifier: Apache-2.0
// process_vm_writev into tiered memory of another process of the tree, as MPI uses it. The kernel pins up to 1024 pages
// of the target, waits for faults meanwhile, and then copies: a page that is evicted in between keeps its old content.
//
// With UFFDIO_MOVE (6.8), all members evict by it meanwhile: a pinned page stays. Without it nothing could be evicted
// during the call, and the call could wait for memory that way forever. There the call is made in pieces. A piece lies
// within a page, so that nothing is pinned while its page is read; and what was written is read back, because the page
// may still have been evicted at the very moment.
//
// Threading: any thread.
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/host_guard.h"
#include "pager/pager.h"
#include "pager/state.h"
#include "sys/kernel_call.h"
#include "sys/proc.h"
#include "sys/thread.h"
#include "sys/uffd.h"

namespace lunar {
namespace {

constexpr size_t kPieceBytes = 1024;  // on the stack; divides a page
constexpr unsigned kTries = 16;       // others may write there, too
constexpr unsigned long kPartsMax = 1024;

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
    if (fd >= 0) close(fd);
    known.store(fd >= 0 && features.move ? 1 : 0, std::memory_order_relaxed);
  }
  return known.load(std::memory_order_relaxed) == 1;
}

long transfer(long number, long pid, const iovec& mine, const iovec& theirs) {
  const long a[6] = {pid, reinterpret_cast<long>(&mine), 1, reinterpret_cast<long>(&theirs), 1, 0};
  return sys::kernel_call_errno(number, a);
}

// Until it is found there. Bytes written, or -1 with errno. A target that may not be read is believed.
long write_piece(long pid, const iovec& from, const iovec& to) {
  long done = 0;
  for (unsigned i = 0; i < kTries; ++i) {
    done = transfer(SYS_process_vm_writev, pid, from, to);
    if (done <= 0) return done;
    char there[kPieceBytes];
    const iovec back{there, static_cast<size_t>(done)};
    if (transfer(SYS_process_vm_readv, pid, back, to) != done) return done;
    if (memcmp(there, from.iov_base, static_cast<size_t>(done)) == 0) return done;
  }
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

long write_in_pieces(long pid, Parts from, Parts to) {
  long written = 0;
  while (!from.over() && !to.over()) {
    const size_t piece = kPieceBytes - reinterpret_cast<uintptr_t>(to.address()) % kPieceBytes;
    const size_t bytes = std::min({piece, from.left(), to.left()});
    const long done = write_piece(pid, {from.address(), bytes}, {to.address(), bytes});
    if (done < 0) return written != 0 ? written : done;
    written += done;
    if (static_cast<size_t>(done) < bytes) break;
    from.take(bytes);
    to.take(bytes);
  }
  return written;
}

}  // namespace

long pager_write_elsewhere(const long (&a)[6]) {
  auto& state = pager_state();
  const auto locals = static_cast<unsigned long>(a[2]), remotes = static_cast<unsigned long>(a[4]);
  if (!kernel_can_move(state) && a[5] == 0 && locals <= kPartsMax && remotes <= kPartsMax)
    return write_in_pieces(a[0], {reinterpret_cast<const iovec*>(a[1]), locals},
                           {reinterpret_cast<const iovec*>(a[3]), remotes});
  sys::ScopedSignalBlock signals;  // a handler that leaves by longjmp would never end it
  state.account.write_elsewhere_begin();
  const long result = sys::kernel_call_errno(SYS_process_vm_writev, a);
  state.account.write_elsewhere_end();
  return result;
}

}  // namespace lunar
