// SPDX-License-Identifier: Apache-2.0
// See host.h. The probes make the same system calls as the runtime, and undo them at once.
#include "tools/support/host.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "sys/uffd.h"
#include "tools/support/text.h"
#include "tools/support/text_file.h"

// Kernel API newer than Debian 12's headers.
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif

namespace lunar::tools {

std::string read_line(const std::string& path) {
  std::string text = read_text(path).value_or("");
  return trimmed(text.substr(0, text.find('\n')));
}

std::string user_name() {
  const passwd* entry = getpwuid(geteuid());
  return entry ? entry->pw_name : text_of("%u", geteuid());
}

// ---- userfaultfd --------------------------------------------------------------------------------

UffdState probe_userfaultfd() {
  UffdState state;
  std::string sysctl = read_line("/proc/sys/vm/unprivileged_userfaultfd");
  if (!sysctl.empty()) state.sysctl = atoi(sysctl.c_str());
  state.device_there = access("/dev/userfaultfd", F_OK) == 0;
  bool write_protect = false;
  ErrorText why;
  const int fd = sys::uffd_open(&write_protect, &why);
  if (fd < 0)
    state.error = -fd;
  else
    close(fd);
  return state;
}

std::string userfaultfd_lack(const UffdState& state) {
  if (state.error == 0) return "";
  if (state.error == EOPNOTSUPP) return sys::kOldKernel;
  if (state.error == ENOSYS)
    return "the kernel, or the container's system call filter, has no userfaultfd";
  if (state.error != EPERM && state.error != EACCES)
    return text_of("userfaultfd fails: %s", errno_text(state.error));
  std::string reason =
      geteuid() == 0 ? "userfaultfd is refused even to root (a container's system call filter?)"
                     : text_of("user %s has no right to userfaultfd", user_name().c_str());
  reason += state.sysctl >= 0 ? text_of("; vm.unprivileged_userfaultfd is %d", state.sysctl)
                              : "; there is no vm.unprivileged_userfaultfd";
  return reason + (state.device_there ? ", /dev/userfaultfd is closed to it"
                                      : ", there is no /dev/userfaultfd");
}

std::string userfaultfd_remedy(const UffdState& state) {
  if (state.error == 0) return "";
  if (state.error == EOPNOTSUPP) return sys::kNewerKernel;
  const bool in_container = probe_container().inside();
  const bool filtered = geteuid() == 0 || state.error == ENOSYS || state.sysctl == 1;
  // In a container the node keeps the owner and mode that it has on the host.
  if (in_container && state.device_there && geteuid() != 0)
    return "on the host `sudo chmod 666 /dev/userfaultfd`, or start the container with `--user "
           "root`";
  // Without the filter the system call still needs CAP_SYS_PTRACE or the sysctl.
  if (in_container || filtered)
    return "start the container with `--device /dev/userfaultfd`, or with `--security-opt "
           "seccomp=unconfined --cap-add SYS_PTRACE`";
  std::string command = "sudo sysctl -w vm.unprivileged_userfaultfd=1";
  if (state.device_there)
    command +=
        "`, or for this user alone `sudo setfacl -m u:" + user_name() + ":rw /dev/userfaultfd";
  return "`" + command + "`";
}

// ---- io_uring, process_madvise ------------------------------------------------------------------

int probe_io_uring() {
  std::array<uint32_t, 30> parameters{};  // struct io_uring_params, all zero
  int fd = static_cast<int>(syscall(SYS_io_uring_setup, 4, parameters.data()));
  if (fd < 0) return -errno;
  close(fd);
  return 0;
}

ContainerState probe_container() {
  ContainerState state;
  const char* said = getenv("container");  // podman, systemd-nspawn, lxc
  if (access("/run/.containerenv", F_OK) == 0)
    state.engine = "podman";
  else if (access("/.dockerenv", F_OK) == 0)
    state.engine = "docker";
  else if (said != nullptr && *said != '\0')
    state.engine = "container";
  if (getenv("KUBERNETES_SERVICE_HOST") != nullptr) state.engine = "kubernetes";
  const std::string status = read_text("/proc/self/status").value_or("");
  state.filtered = status.find("Seccomp:\t2") != std::string::npos;
  // A virtual machine made from an image also has the marks. A container has read-only sysctls, or
  // a filter.
  struct statvfs sysctls{};
  const bool bounded =
      state.filtered || (statvfs("/proc/sys", &sysctls) == 0 && (sysctls.f_flag & ST_RDONLY) != 0);
  if (!bounded) state.engine.clear();
  return state;
}

// The engine sets the limits of a container.
std::string memlock_remedy() {
  if (probe_container().inside())
    return "start the container with `--ulimit memlock=-1`, or with `--cap-add IPC_LOCK`";
  return "`sudo prlimit --memlock=unlimited --pid $$` (permanently: a line `* - memlock unlimited` "
         "in /etc/security/limits.conf)";
}

int probe_discard_vector() {
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -errno;
  iovec range{memory, page};
  constexpr int kSelf = -10000;  // PIDFD_SELF_THREAD (6.14)
  const int result =
      syscall(SYS_process_madvise, kSelf, &range, 1UL, MADV_DONTNEED, 0U) == static_cast<long>(page)
          ? 0
          : -errno;
  munmap(memory, page);
  return result;
}

// ---- file systems -------------------------------------------------------------------------------

int probe_file_system(const std::string& path, FileSystem* out) {
  struct statfs status;
  if (statfs(path.c_str(), &status) != 0) return -errno;
  struct Kind {
    unsigned long magic;
    const char* name;
  };
  static constexpr Kind kKinds[] = {{EXT4_SUPER_MAGIC, "ext4"},
                                    {0x58465342, "xfs"},
                                    {BTRFS_SUPER_MAGIC, "btrfs"},
                                    {TMPFS_MAGIC, "tmpfs"},
                                    {RAMFS_MAGIC, "ramfs"},
                                    {HUGETLBFS_MAGIC, "hugetlbfs"},
                                    {0x794c7630, "overlayfs"},
                                    {NFS_SUPER_MAGIC, "nfs"},
                                    {PROC_SUPER_MAGIC, "proc"},
                                    {SYSFS_MAGIC, "sysfs"},
                                    {CGROUP_SUPER_MAGIC, "cgroup"},
                                    {CGROUP2_SUPER_MAGIC, "cgroup2"},
                                    {0x2fc12fc1, "zfs"},
                                    {F2FS_SUPER_MAGIC, "f2fs"},
                                    {0x65735546, "fuse"},
                                    {0x01021997, "9p"},
                                    {0x9123683e, "btrfs"},
                                    {0x4d44, "vfat"},
                                    {0x2011BAB0, "exfat"},
                                    {0xca451a4e, "bcachefs"}};
  unsigned long magic = static_cast<unsigned long>(status.f_type) & 0xffffffffUL;
  out->kind = text_of("0x%lx", magic);
  for (const Kind& kind : kKinds) {
    if (kind.magic == magic) out->kind = kind.name;
  }
  out->in_memory = magic == TMPFS_MAGIC || magic == RAMFS_MAGIC || magic == HUGETLBFS_MAGIC;
  out->no_data = status.f_blocks == 0 && !out->in_memory;
  out->read_only = status.f_flags & ST_RDONLY;
  out->free_bytes = static_cast<uint64_t>(status.f_bavail) * static_cast<uint64_t>(status.f_bsize);
  return 0;
}

int probe_scratch_file(const std::string& directory) {
  int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) {
    close(fd);
    return 0;
  }
  // Without unnamed files the runtime makes a named one and unlinks it. It checks O_DIRECT then.
  if (errno == EOPNOTSUPP || errno == EISDIR) return 0;
  return -errno;
}

// ---- Lunar's libraries
// ------------------------------------------------------------------------------

std::string find_preload_library(std::string* tried) {
  return find_own_library("adapters/preload/liblunar-preload.so", "liblunar-preload.so", tried);
}

std::string own_directory() {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  const std::string path(self, length > 0 ? static_cast<size_t>(length) : 0);
  return path.substr(0, path.rfind('/'));
}

std::string find_own_library(const std::string& in_build, const std::string& installed,
                             std::string* tried) {
  const std::string directory = own_directory();
  if (directory.empty()) {
    *tried = "/proc/self/exe cannot be read";
    return "";
  }
  std::string candidates[] = {
      "..",  // the build tree
#ifdef LUNAR_MULTIARCH
      "../lib/" LUNAR_MULTIARCH "/lunar",
      "../lib/" LUNAR_MULTIARCH,
#endif
      "../lib64/lunar",
      "../lib/lunar",
      "../lib64",
      "../lib",
#ifdef LUNAR_LIBDIR
      LUNAR_LIBDIR "/lunar",
      LUNAR_LIBDIR,
#endif
  };
  for (const std::string& candidate : candidates) {
    const std::string place =
        candidate[0] == '/' ? candidate : text_of("%s/%s", directory.c_str(), candidate.c_str());
    const std::string file =
        text_of("%s/%s", place.c_str(), (candidate == ".." ? in_build : installed).c_str());
    if (access(file.c_str(), R_OK) == 0) {
      char* absolute = realpath(file.c_str(), nullptr);
      std::string found = absolute ? absolute : file;
      free(absolute);
      return found;
    }
  }
  *tried = directory + "/../" + in_build + " and " + directory + "/../lib*/**/" + installed;
  return "";
}

}  // namespace lunar::tools
