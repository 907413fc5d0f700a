// SPDX-License-Identifier: Apache-2.0
// Signatures of content that may be overwritten: see signature.h.
//
// Idea: refuse if in doubt. A place is accepted if its first 64 KiB are zeros, or Lunar's header
// followed by zeros. A block device must also be unused (mounts, swap, holders) and unknown to
// libblkid, which is loaded on demand, so that programs that never use a block device do not load
// it.
// Threading: any thread, at open only. May not be used on the fault path.
#include "superpipe/signature.h"

#include <blkid/blkid.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/format.h"
#include "base/host_guard.h"
#include "base/units.h"
#include "base/xxh3.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar {
namespace {

constexpr char kMagic[16] = "LunarScratchLUN";
constexpr uint32_t kVersion = 1;

uint64_t checksum_of(const ScratchHeader& header) {
  return XXH64(&header, offsetof(ScratchHeader, checksum), 0);
}

bool all_zero(const char* bytes, size_t count) {
  return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

bool is_ours(const char* head, size_t bytes) {
  if (bytes < sizeof(ScratchHeader)) return false;
  const auto* header = reinterpret_cast<const ScratchHeader*>(head);
  return memcmp(header->magic, kMagic, sizeof kMagic) == 0 && header->version == kVersion &&
         header->header_bytes == sizeof(ScratchHeader) &&
         header->data_offset == kScratchDataOffset && header->checksum == checksum_of(*header) &&
         all_zero(head + sizeof(ScratchHeader), bytes - sizeof(ScratchHeader));
}

// Reads up to kScratchProbeBytes from the start; fewer from a small file.
int64_t read_head(int fd, char* head) {
  size_t got = 0;
  while (got < kScratchProbeBytes) {
    const int64_t n = sys::read_at(fd, head + got, kScratchProbeBytes - got, got);
    if (n == -EINTR) continue;
    if (n < 0) return n;
    got += static_cast<size_t>(n);
    if (n == 0 || got % 4096 != 0)
      break;  // the end, or a short read, behind which the offset would not suit O_DIRECT
  }
  return static_cast<int64_t>(got);
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
    return library && find(&new_probe, "blkid_new_probe") &&
           find(&free_probe, "blkid_free_probe") && find(&set_device, "blkid_probe_set_device") &&
           find(&enable_superblocks, "blkid_probe_enable_superblocks") &&
           find(&set_superblocks_flags, "blkid_probe_set_superblocks_flags") &&
           find(&enable_partitions, "blkid_probe_enable_partitions") &&
           find(&safeprobe, "blkid_do_safeprobe") && find(&lookup, "blkid_probe_lookup_value");
  }
};

// Loads libblkid once, and keeps it, because other code may use it. nullptr: it is not installed.
const Blkid* loaded_blkid() {
  static Blkid blkid;
  static const bool loaded = blkid.load();
  return loaded ? &blkid : nullptr;
}

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
  auto* header =
      static_cast<ScratchHeader*>(map_private(sizeof(ScratchHeader), ForkPolicy::kDontFork));
  if (!header) return -ENOMEM;
  signature_make(header, flags);
  int64_t n;
  do n = sys::write_at(fd, header, sizeof(ScratchHeader), 0);
  while (n == -EINTR);
  unmap_private(header, sizeof(ScratchHeader));
  if (n < 0) return static_cast<int>(n);
  return n == static_cast<int64_t>(sizeof(ScratchHeader)) ? 0 : -EIO;
}

void signature_prepare() {
  const HostGuard guard;
  (void)loaded_blkid();
}

int block_signature(const char* path, bool only_head, char* what, size_t size) {
  const HostGuard guard;  // dlopen and libblkid allocate from DRAM
  const Blkid* const library = loaded_blkid();
  if (library == nullptr) return -ENOSYS;
  const Blkid& blkid = *library;
  // The buffers of libblkid do not suit a descriptor with O_DIRECT.
  const int fd = sys::open_file(path, O_RDONLY);
  if (fd < 0) return fd;
  blkid_probe probe = blkid.new_probe();
  int status = probe ? -EIO : -ENOMEM;
  if (probe &&
      blkid.set_device(probe, fd, 0,
                       only_head ? static_cast<blkid_loff_t>(kScratchDataOffset) : 0) == 0) {
    blkid.enable_superblocks(probe, 1);
    blkid.set_superblocks_flags(probe, BLKID_SUBLKS_TYPE);
    blkid.enable_partitions(probe, 1);
    const int found = blkid.safeprobe(probe);  // 0 found, 1 nothing, -2 several, -1 error
    const char* type = nullptr;
    if (found == 0 && blkid.lookup(probe, "TYPE", &type, nullptr) != 0)
      blkid.lookup(probe, "PTTYPE", &type, nullptr);
    if (found == 0) format_to(what, size, "%s", type ? type : "a known signature");
    if (found == -2) format_to(what, size, "several signatures");
    status = found == 0 || found == -2 ? 1 : found == 1 ? 0 : -EIO;
  }
  if (probe) blkid.free_probe(probe);
  sys::close_file(fd);
  return status;
}

}  // namespace lunar
