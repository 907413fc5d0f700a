// SPDX-License-Identifier: Apache-2.0
// userfaultfd(2), ioctl_userfaultfd(2). Knows the ioctls, and explains what a host lacks.
// Threading: stateless. Allocates nothing.
#include "sys/uffd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/units.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/userfaultfd_api.h"

namespace lunar::sys {
namespace {

struct MoveArguments {  // struct uffdio_move
  uint64_t dst, src, len, mode;
  int64_t moved;
};
struct PoisonArguments {  // struct uffdio_poison
  uint64_t start, len, mode;
  int64_t updated;
};
constexpr unsigned long kIoctlMove = _IOWR(0xAA, 0x05, MoveArguments);
constexpr unsigned long kIoctlPoison = _IOWR(0xAA, 0x08, PoisonArguments);
constexpr uint64_t kNeeded = UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EVENT_UNMAP |
                             UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_POISON | UFFD_FEATURE_MOVE;

std::atomic<int> g_device{-1};  // /dev/userfaultfd, kept
std::atomic<uint64_t> g_device_number{0};

bool is_device(int fd, uint64_t* number) {
  struct stat status;
  if (file_status(fd, &status) < 0 || !S_ISCHR(status.st_mode)) return false;
  *number = status.st_rdev;
  return true;
}

int kept_device() {
  const int fd = g_device.load(std::memory_order_relaxed);
  uint64_t number = 0;
  return fd >= 0 && is_device(fd, &number) &&
                 number == g_device_number.load(std::memory_order_relaxed)
             ? fd
             : -1;
}

// Tries the kept device first: the process may have lost its rights, and a seccomp filter may end a
// process that makes the system call.
int open_raw() {
  const int kept = kept_device();
  if (kept >= 0) {
    const int made = ioctl(kept, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
    if (made >= 0) return made;
  }
  int fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  if (fd >= 0) return fd;
  int first_error = -errno;
  int device = open_file("/dev/userfaultfd", O_RDWR);
  if (device < 0) return first_error;
  fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) first_error = -errno;
  close_file(device);
  return fd >= 0 ? fd : first_error;
}

// "NUMBER:DEVICE": the number, or -1.
int parse_inherited(const char* text, uint64_t* device) {
  uint64_t fields[2];
  if (!parse_numbers(text, fields, 2) || fields[0] > 1u << 20) return -1;
  *device = fields[1];
  return static_cast<int>(fields[0]);
}

int explain_refusal(int error, ErrorText* why) {
  if (error == -EMFILE)
    return why->set(error, "userfaultfd: no file descriptor left; raise the limit (ulimit -n)");
  if (error == -ENFILE)
    return why->set(error,
                    "userfaultfd: no file descriptor left on this machine; raise fs.file-max");
  if (error == -ENOSYS) {
    return why->set(error,
                    "userfaultfd: this kernel (or container) has no userfaultfd system call; "
                    "run on a kernel with CONFIG_USERFAULTFD, or pass the device in: "
                    "docker run --device /dev/userfaultfd");
  }
  if (getuid() == 0) {
    return why->set(error,
                    "userfaultfd: not permitted, even to root (a container's system call filter?); "
                    "pass the device in: docker run --device /dev/userfaultfd");
  }
  return why->set(error,
                  "userfaultfd: not permitted for this user; "
                  "as root run `sysctl -w vm.unprivileged_userfaultfd=1`, "
                  "or give access to the device node with `setfacl -m u:%u:rw /dev/userfaultfd`",
                  static_cast<unsigned>(getuid()));
}

}  // namespace

int uffd_device_number() { return kept_device(); }

bool uffd_device_is(int fd) {
  return fd >= 0 && fd == g_device.load(std::memory_order_relaxed) && fd == kept_device();
}

int uffd_keep_device(const char* inherited) {
  if (kept_device() >= 0) return kept_device();
  uint64_t number = 0, named = 0;
  int fd = parse_inherited(inherited, &named);
  // The program may have put another file there.
  if (fd < 0 || !is_device(fd, &number) || number != named) {
    fd = open_file("/dev/userfaultfd", O_RDWR);
    if (fd < 0 || !is_device(fd, &number)) return -1;
    fd = move_high(fd);
  }
  g_device_number.store(number);
  g_device.store(fd);
  return fd;
}

int uffd_open(bool* write_protect, ErrorText* why) {
  const int fd = open_raw();
  if (fd < 0) return explain_refusal(fd, why);
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kNeeded;
  const int rc = ioctl(fd, UFFDIO_API, &api) == 0 ? 0 : -errno;
  *write_protect = (api.features & UFFD_FEATURE_PAGEFAULT_FLAG_WP) != 0;
  // Some kernels accept features that they do not know (6.1, before 6.1.27), but their answer lists
  // only the features that they have.
  if (rc == 0 && (api.features & kNeeded) == kNeeded) return fd;
  close_file(fd);
  if (rc != 0 && rc != -EINVAL)
    return why->set(rc, "userfaultfd: the kernel refused the API handshake (%s)", errno_text(rc));
  return why->set(-EOPNOTSUPP, "userfaultfd: %s; %s", kOldKernel, kNewerKernel);
}

int uffd_register(int uffd, void* address, size_t bytes, bool write_protect) {
  uffdio_register arguments{};
  arguments.range = {reinterpret_cast<uintptr_t>(address), bytes};
  arguments.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (write_protect) arguments.mode |= UFFDIO_REGISTER_MODE_WP;
  return ioctl(uffd, UFFDIO_REGISTER, &arguments) == 0 ? 0 : -errno;
}

int uffd_unregister(int uffd, void* address, size_t bytes) {
  uffdio_range range{reinterpret_cast<uintptr_t>(address), bytes};
  const int rc = ioctl(uffd, UFFDIO_UNREGISTER, &range) == 0 ? 0 : -errno;
  // The kernel wakes first and then removes the registration: a thread that faults in between (it
  // holds only the lock of the map) would sleep forever.
  (void)uffd_wake(uffd, address, bytes);
  return rc;
}

int uffd_read(int uffd, UffdMessage* out, unsigned max) {
  uffd_msg messages[32];
  if (max > 32) max = 32;
  ssize_t got = read(uffd, messages, max * sizeof messages[0]);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? 0 : -errno;
  unsigned n = 0;
  for (unsigned i = 0; i < static_cast<unsigned>(got) / sizeof messages[0]; ++i) {
    if (messages[i].event == UFFD_EVENT_UNMAP) {
      const auto& range = messages[i].arg.remove;
      out[n++] = {
          range.start, 0, false, false, UffdMessage::Kind::kUnmap, range.end - range.start, 0};
    } else if (messages[i].event == UFFD_EVENT_REMAP) {
      const auto& range = messages[i].arg.remap;
      out[n++] = {range.from, 0, false, false, UffdMessage::Kind::kRemap, range.len, range.to};
    }
    if (messages[i].event != UFFD_EVENT_PAGEFAULT) continue;
    const auto& fault = messages[i].arg.pagefault;
    out[n++] = {fault.address, static_cast<int32_t>(fault.feat.ptid),
                (fault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0,
                (fault.flags & UFFD_PAGEFAULT_FLAG_WP) != 0};
  }
  return static_cast<int>(n);
}

int64_t uffd_copy(int uffd, void* dst, const void* src, size_t bytes, bool protect) {
  uffdio_copy arguments{};
  arguments.mode = protect ? UFFDIO_COPY_MODE_WP : 0;
  arguments.dst = reinterpret_cast<uintptr_t>(dst);
  arguments.src = reinterpret_cast<uintptr_t>(src);
  arguments.len = bytes;
  if (ioctl(uffd, UFFDIO_COPY, &arguments) == 0) return static_cast<int64_t>(bytes);
  int rc = -errno;
  fatal_if_refused(rc, "ioctl(UFFDIO_COPY)");
  return arguments.copy > 0 ? arguments.copy : rc;
}

int uffd_protect(int uffd, void* address, size_t bytes, bool protect) {
  uffdio_writeprotect arguments{};
  arguments.range = {reinterpret_cast<uintptr_t>(address), bytes};
  arguments.mode = protect ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
  return ioctl(uffd, UFFDIO_WRITEPROTECT, &arguments) == 0 ? 0 : -errno;
}

int uffd_wake(int uffd, void* address, size_t bytes) {
  uffdio_range range{reinterpret_cast<uintptr_t>(address), bytes};
  if (ioctl(uffd, UFFDIO_WAKE, &range) == 0) return 0;
  const int rc = -errno;
  fatal_if_refused(rc, "ioctl(UFFDIO_WAKE)");
  return rc;
}

int64_t uffd_move(int uffd, void* dst, void* src, size_t bytes) {
  MoveArguments arguments{reinterpret_cast<uintptr_t>(dst), reinterpret_cast<uintptr_t>(src), bytes,
                          0, 0};
  if (ioctl(uffd, kIoctlMove, &arguments) == 0) return static_cast<int64_t>(bytes);
  int rc = -errno;
  fatal_if_refused(rc, "ioctl(UFFDIO_MOVE)");
  return arguments.moved > 0 ? arguments.moved : rc;
}

int uffd_poison(int uffd, void* address, size_t bytes) {
  PoisonArguments arguments{reinterpret_cast<uintptr_t>(address), bytes, 0, 0};
  return ioctl(uffd, kIoctlPoison, &arguments) == 0 ? 0 : -errno;
}

}  // namespace lunar::sys
