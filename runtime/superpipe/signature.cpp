// SPDX-License-Identifier: Apache-2.0
// What may be overwritten: see signature.h.
//
// Idea: refuse on doubt. A place is accepted when its first 64 KiB are zeros, or our own header followed by zeros; a
// block device must moreover be nobody's (mounts, swap, holders) and unknown to libblkid, which is opened at need so
// that programs that never use a block device do not load it.
// Threading: any thread, at open only. May not be used on the fault path.
#include "superpipe/signature.h"

#include <blkid/blkid.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/arena.h"
#include "base/format.h"
#include "base/host_guard.h"
#include "base/units.h"
#include "sys/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace lunar {
namespace {

constexpr char kMagic[16] = "LunarScratchLUN";
constexpr uint32_t kVersion = 1;

uint64_t checksum_of(const ScratchHeader& header) { return XXH64(&header, offsetof(ScratchHeader, checksum), 0); }

bool all_zero(const char* bytes, size_t count) {
  return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

bool is_ours(const char* head, size_t bytes) {
  if (bytes < sizeof(ScratchHeader)) return false;
  const auto* header = reinterpret_cast<const ScratchHeader*>(head);
  return memcmp(header->magic, kMagic, sizeof kMagic) == 0 && header->version == kVersion &&
         header->header_bytes == sizeof(ScratchHeader) && header->data_offset == kScratchDataOffset &&
         header->checksum == checksum_of(*header) &&
         all_zero(head + sizeof(ScratchHeader), bytes - sizeof(ScratchHeader));
}

// Up to kScratchProbeBytes from the start; fewer from a small file.
int64_t read_head(int fd, char* head) {
  size_t got = 0;
  while (got < kScratchProbeBytes) {
    const int64_t n = sys::read_at(fd, head + got, kScratchProbeBytes - got, got);
    if (n == -EINTR) continue;
    if (n < 0) return n;
    got += static_cast<size_t>(n);
    if (n == 0 || got % 4096 != 0) break;   // the end; beyond a short read the offset would not suit O_DIRECT
  }
  return static_cast<int64_t>(got);
}

// Fields of /proc/self/mountinfo: id parent major:minor root mountpoint ...
bool mounted_at(unsigned major_number, unsigned minor_number, char* who, size_t size) {
  constexpr size_t kBytes = 256 * 1024;
  auto* text = static_cast<char*>(map_private(kBytes, ForkPolicy::kDontFork));
  if (!text) return false;
  bool found = false;
  char device[32];
  format_to(device, sizeof device, "%u:%u", major_number, minor_number);
  if (sys::read_text("/proc/self/mountinfo", text, kBytes) > 0) {
    char *lines = nullptr, *words = nullptr;
    for (char* line = strtok_r(text, "\n", &lines); line && !found; line = strtok_r(nullptr, "\n", &lines)) {
      const char* field[5] = {};
      unsigned n = 0;
      for (char* word = strtok_r(line, " ", &words); word && n < 5; word = strtok_r(nullptr, " ", &words))
        field[n++] = word;
      if (n < 5 || strcmp(field[2], device) != 0) continue;
      format_to(who, size, "mounted on %s", field[4]);
      found = true;
    }
  }
  unmap_private(text, kBytes);
  return found;
}

bool used_as_swap(const struct stat& node) {
  char text[8192];
  if (sys::read_text("/proc/swaps", text, sizeof text) <= 0) return false;
  char *lines = nullptr, *words = nullptr;
  for (char* line = strtok_r(text, "\n", &lines); line; line = strtok_r(nullptr, "\n", &lines)) {
    const char* path = strtok_r(line, " \t", &words);
    struct stat status;
    if (!path || path[0] != '/' || sys::path_status(path, &status) != 0 || (status.st_mode & S_IFMT) != (node.st_mode & S_IFMT)) continue;
    if (S_ISBLK(node.st_mode) ? status.st_rdev == node.st_rdev : status.st_dev == node.st_dev && status.st_ino == node.st_ino) return true;
  }
  return false;
}

// The few calls of libblkid that are needed, looked up by name.
struct Blkid {
  void* library = nullptr;
  decltype(&blkid_new_probe) new_probe = nullptr;
  decltype(&blkid_free_probe) free_probe = nullptr;
  decltype(&blkid_probe_set_device) set_device = nullptr;
  decltype(&blkid_probe_enable_superblocks) enable_superblocks = nullptr;
  decltype(&blkid_probe_set_superblocks_flags) set_superblocks_flags = nullptr;
  decltype(&blkid_probe_enable_partitions) enable_partitions = nullptr;
  decltype(&blkid_do_safeprobe) safeprobe = nullptr;
  decltype(&blkid_probe_lookup_value) lookup = nullptr;

  template <class F>
  bool find(F* function, const char* name) {
    *function = reinterpret_cast<F>(dlsym(library, name));
    return *function != nullptr;
  }
  bool load() {
    library = dlopen("libblkid.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && find(&new_probe, "blkid_new_probe") && find(&free_probe, "blkid_free_probe") &&
           find(&set_device, "blkid_probe_set_device") && find(&enable_superblocks, "blkid_probe_enable_superblocks") &&
           find(&set_superblocks_flags, "blkid_probe_set_superblocks_flags") &&
           find(&enable_partitions, "blkid_probe_enable_partitions") && find(&safeprobe, "blkid_do_safeprobe") &&
           find(&lookup, "blkid_probe_lookup_value");
  }
};

}  // namespace

Contents signature_of(const void* head, size_t bytes, uint64_t* flags) {
  const auto* text = static_cast<const char*>(head);
  if (all_zero(text, bytes)) return Contents::kEmpty;
  if (!is_ours(text, bytes)) return Contents::kForeign;
  if (flags) *flags = static_cast<const ScratchHeader*>(head)->flags;
  return Contents::kOurs;
}

void signature_make(ScratchHeader* header, uint64_t flags) {
  memset(header, 0, sizeof *header);
  memcpy(header->magic, kMagic, sizeof kMagic);
  header->version = kVersion;
  header->header_bytes = sizeof(ScratchHeader);
  header->data_offset = kScratchDataOffset;
  header->flags = flags;
  header->checksum = checksum_of(*header);
}

int signature_read(int fd, Contents* contents, uint64_t* flags) {
  auto* head = static_cast<char*>(map_private(kScratchProbeBytes, ForkPolicy::kDontFork));
  if (!head) return -ENOMEM;
  const int64_t got = read_head(fd, head);
  if (got < 0) {
    unmap_private(head, kScratchProbeBytes);
    return static_cast<int>(got);
  }
  *contents = signature_of(head, static_cast<size_t>(got), flags);
  unmap_private(head, kScratchProbeBytes);
  return 0;
}

int signature_write(int fd, uint64_t flags) {
  auto* header = static_cast<ScratchHeader*>(map_private(sizeof(ScratchHeader), ForkPolicy::kDontFork));
  if (!header) return -ENOMEM;
  signature_make(header, flags);
  int64_t n;
  do n = sys::write_at(fd, header, sizeof(ScratchHeader), 0);
  while (n == -EINTR);
  unmap_private(header, sizeof(ScratchHeader));
  if (n < 0) return static_cast<int>(n);
  return n == static_cast<int64_t>(sizeof(ScratchHeader)) ? 0 : -EIO;
}

namespace {

bool block_itself_in_use(unsigned major_number, unsigned minor_number, char* who, size_t size) {
  if (mounted_at(major_number, minor_number, who, size)) return true;
  struct stat node = {};
  node.st_mode = S_IFBLK;
  node.st_rdev = makedev(major_number, minor_number);
  if (used_as_swap(node)) {
    format_to(who, size, "swap space (swapoff it first)");
    return true;
  }
  char path[96], holder[64];
  format_to(path, sizeof path, "/sys/dev/block/%u:%u/holders", major_number, minor_number);
  if (sys::first_entry(path, holder, sizeof holder) > 0) {
    format_to(who, size, "held by %s (device-mapper or RAID)", holder);
    return true;
  }
  return false;
}

// The file of loop device NAME ("loop0", also of its partition "loop0p1"); false when it is none, or its file has no name any more.
bool loop_file(const char* name, char* path, size_t size) {
  char sysfs[96];
  const int digits = static_cast<int>(strspn(name + strlen("loop"), "0123456789"));
  format_to(sysfs, sizeof sysfs, "/sys/block/loop%.*s/loop/backing_file", digits, name + strlen("loop"));
  if (sys::read_text(sysfs, path, size) <= 0) return false;
  path[strcspn(path, "\n")] = '\0';
  return true;
}

// Value of KEY in a sysfs uevent file, into `out`. False when there is none.
bool uevent_value(const char* path, const char* key, char* out, size_t size) {
  char text[1024];
  if (sys::read_text(path, text, sizeof text) <= 0) return false;
  const size_t length = strlen(key);
  for (const char* line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : nullptr) {
    if (strncmp(line, key, length) != 0 || line[length] != '=') continue;
    const char* value = line + length + 1;
    format_to(out, size, "%.*s", static_cast<int>(strcspn(value, "\n")), value);
    return true;
  }
  return false;
}

}  // namespace

bool device_node_name(bool block, uint64_t rdev, char* name, size_t size) {
  char path[96];
  format_to(path, sizeof path, "/sys/dev/%s/%u:%u/uevent", block ? "block" : "char", major(rdev), minor(rdev));
  return uevent_value(path, "DEVNAME", name, size);
}

bool block_in_use(uint64_t rdev, char* who, size_t size) {
  const unsigned major_number = major(rdev), minor_number = minor(rdev);
  if (block_itself_in_use(major_number, minor_number, who, size)) return true;
  // A disk's partitions are folders in its own that begin with its name.
  char disk[64], folder[96], part[64];
  if (!device_node_name(true, rdev, disk, sizeof disk)) return false;
  char file[4096];
  if (strncmp(disk, "loop", 4) == 0 && loop_file(disk, file, sizeof file)) {
    const int fd = sys::open_file(file, O_RDONLY | O_NONBLOCK);
    const bool locked = fd >= 0 && sys::range_locked(fd, 0, 0) == 1;
    if (fd >= 0) sys::close_file(fd);
    if (locked) {
      format_to(who, size, "a loop device on %s, which is in use itself", file);
      return true;
    }
  }
  format_to(folder, sizeof folder, "/sys/dev/block/%u:%u", major_number, minor_number);
  for (unsigned n = 0; sys::nth_entry(folder, disk, n, part, sizeof part) > 0; ++n) {
    char path[192], numbers[32], reason[192], *rest = nullptr;
    format_to(path, sizeof path, "%s/%s/dev", folder, part);
    if (sys::read_text(path, numbers, sizeof numbers) <= 0) continue;
    const auto part_major = static_cast<unsigned>(strtoul(numbers, &rest, 10));
    if (*rest != ':') continue;
    if (!block_itself_in_use(part_major, static_cast<unsigned>(strtoul(rest + 1, nullptr, 10)), reason, sizeof reason)) continue;
    format_to(who, size, "in use by its partition %s: %s", part, reason);
    return true;
  }
  return false;
}

bool file_in_use(const struct stat& node, char* who, size_t size) {
  if (used_as_swap(node)) {
    format_to(who, size, "in use as swap space (swapoff it first)");
    return true;
  }
  // Loop devices without a file have no size, and are not listed there. Lines: major minor blocks name.
  constexpr size_t kBytes = 256 * 1024;
  auto* text = static_cast<char*>(map_private(kBytes, ForkPolicy::kDontFork));
  if (!text) return false;
  bool found = false;
  if (sys::read_text("/proc/partitions", text, kBytes) > 0) {
    char* lines = nullptr;
    for (char* line = strtok_r(text, "\n", &lines); line && !found; line = strtok_r(nullptr, "\n", &lines)) {
      const char* blank = strrchr(line, ' ');
      char file[4096];
      struct stat status;
      if (!blank || strncmp(blank + 1, "loop", 4) != 0) continue;
      found = loop_file(blank + 1, file, sizeof file) && sys::path_status(file, &status) == 0 && status.st_dev == node.st_dev &&
              status.st_ino == node.st_ino;
      if (found) format_to(who, size, "in use as that of /dev/%s (give that, or losetup -d it)", blank + 1);
    }
  }
  unmap_private(text, kBytes);
  return found;
}

int block_signature(const char* path, bool only_head, char* what, size_t size) {
  const HostGuard guard;   // dlopen and libblkid allocate: from DRAM
  Blkid blkid;
  if (!blkid.load()) return -ENOSYS;
  const int fd = sys::open_file(path, O_RDONLY);   // libblkid's buffers do not suit a descriptor with O_DIRECT
  if (fd < 0) return fd;
  blkid_probe probe = blkid.new_probe();
  int status = probe ? -EIO : -ENOMEM;
  if (probe && blkid.set_device(probe, fd, 0, only_head ? static_cast<blkid_loff_t>(kScratchDataOffset) : 0) == 0) {
    blkid.enable_superblocks(probe, 1);
    blkid.set_superblocks_flags(probe, BLKID_SUBLKS_TYPE);
    blkid.enable_partitions(probe, 1);
    const int found = blkid.safeprobe(probe);   // 0 found, 1 nothing, -2 several, -1 error
    const char* type = nullptr;
    if (found == 0 && blkid.lookup(probe, "TYPE", &type, nullptr) != 0) blkid.lookup(probe, "PTTYPE", &type, nullptr);
    if (found == 0) format_to(what, size, "%s", type ? type : "a known signature");
    if (found == -2) format_to(what, size, "several signatures");
    status = found == 0 || found == -2 ? 1 : found == 1 ? 0 : -EIO;
  }
  if (probe) blkid.free_probe(probe);
  sys::close_file(fd);
  return status;   // the library stays loaded: others may have come to use it
}

}  // namespace lunar
