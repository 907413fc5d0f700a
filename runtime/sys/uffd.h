// SPDX-License-Identifier: Apache-2.0
// userfaultfd: no other module uses its ioctls.
// Threading: any thread, also on the fault path. Allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace lunar::sys {

struct UffdMessage {
  uint64_t address;   // page-aligned
  int32_t thread_id;  // the faulting thread (0 when the kernel does not tell)
  bool write;
  bool write_protected;  // the page is there, protected against writes (uffd_protect)
  enum class Kind : uint8_t { kFault, kUnmap, kRemap } kind = Kind::kFault;
  uint64_t bytes = 0;  // kUnmap, kRemap: of the range at `address`
  uint64_t to = 0;     // kRemap: where it is now
};

// Messages for a kernel without UFFDIO_MOVE or UFFDIO_POISON: the defect, and the remedy.
inline constexpr char kOldKernel[] =
    "this kernel is too old: the pager needs Linux 6.8 or newer (UFFDIO_MOVE, UFFDIO_POISON)";
inline constexpr char kNewerKernel[] =
    "on Debian 12 run `sudo apt install linux-image-6.12-amd64` and reboot";

// Keeps /dev/userfaultfd open, so that uffd_open works after the process has lost its rights: the
// descriptor that `inherited` names ("NUMBER:DEVICE", from `lunar run`) if it is that device, else
// a new one. Returns the descriptor, or -1. Forked children inherit it.
int uffd_keep_device(const char* inherited);
bool uffd_device_is(int fd);  // the descriptor that is kept, and still the device
int uffd_device_number();     // the descriptor that is kept; -1: none
// Opens a userfaultfd (O_CLOEXEC|O_NONBLOCK) that serves kernel-mode faults too: by the device that
// is kept, the system call, or /dev/userfaultfd, in this order. *write_protect: whether it protects
// anonymous memory against writes (not on every architecture). Returns the descriptor, or -errno
// with *why, one line: what is missing, and the command that fixes it. -EOPNOTSUPP: kOldKernel.
[[nodiscard]] int uffd_open(bool* write_protect, ErrorText* why);
// Registers the range for missing pages, and with write_protect also for writes to protected pages.
// 0 or -errno.
[[nodiscard]] int uffd_register(int uffd, void* address, size_t bytes, bool write_protect = false);
// Wakes the threads that wait for a page there. 0 or -errno.
[[nodiscard]] int uffd_unregister(int uffd, void* address, size_t bytes);
// Reads up to `max` messages without waiting: how many, 0: none, or -errno.
[[nodiscard]] int uffd_read(int uffd, UffdMessage* out, unsigned max);
// Fills missing pages and wakes their waiters. Returns bytes filled from the start (may be short),
// or -errno when none: -EEXIST: the first page is there already (no wake-up), -EAGAIN: address
// space is changing, try again. protect: the pages are write-protected from the start.
[[nodiscard]] int64_t uffd_copy(int uffd, void* dst, const void* src, size_t bytes,
                                bool protect = false);
// Protects the present pages of the range against writes (the first write to each is a message), or
// removes the protection and wakes the waiters. 0 or -errno; -EAGAIN: try again.
[[nodiscard]] int uffd_protect(int uffd, void* address, size_t bytes, bool protect);
[[nodiscard]] int uffd_wake(int uffd, void* address, size_t bytes);
// Moves pages: bytes moved from the start, or -errno when none (-EBUSY: pinned or shared, -ENOENT:
// a hole).
[[nodiscard]] int64_t uffd_move(int uffd, void* dst, void* src, size_t bytes);
// Marks a page that cannot be read back: each access raises SIGBUS, or EFAULT or EHWPOISON in a
// system call, until the page is dropped. 0 or -errno.
[[nodiscard]] int uffd_poison(int uffd, void* address, size_t bytes);

}  // namespace lunar::sys
