// SPDX-License-Identifier: Apache-2.0
// scratch_open, which `--lun` uses. See compose.h.
//
// Idea: a device that other processes may share gets (or has) the format, and a scratch LUN on it.
// A device for a single process tree (a file in a directory, an empty file, sim:) is used directly.
// A named LUN is treated like a given file: its own header, then data.
// Threading: any, blocking. May not be used on the fault path.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "lun/compose.h"
#include "lun/raid/stripe_device.h"
#include "lun/volume/physical_impl.h"
#include "superpipe/registry.h"
#include "superpipe/signature.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr unsigned kLunsMax = 8;
// The space is divided into 256 pieces of whole segments for the processes of a tree.
constexpr uint64_t kNamedBytesMin = 66 * kMiB;
constexpr int kFullRetries = 25;
constexpr uint64_t kFullRetryNs = 20'000'000;

bool is_there(const char* path, struct stat* status) { return sys::path_status(path, status) == 0; }

// Whether device_open opens the place directly: a directory, sim:, capi:, mem: (refused there), a
// file that is empty or was given to one process tree before.
bool stands_alone(const char* uri) {
  if (strncmp(uri, "sim:", 4) == 0 || strncmp(uri, "capi:", 5) == 0 || strncmp(uri, "mem:", 4) == 0)
    return true;
  struct stat status;
  const char* path = !is_there(uri, &status) && strncmp(uri, "file:", 5) == 0 ? uri + 5 : uri;
  if (!is_there(path, &status)) return strchr(uri, ':') == nullptr;  // device_open reports it
  if (S_ISDIR(status.st_mode)) return true;
  if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) return true;  // device_open refuses it
  if (S_ISREG(status.st_mode) && static_cast<uint64_t>(status.st_size) <= kScratchDataOffset)
    return true;
  const int fd = sys::open_file(path, O_RDONLY);
  Contents contents = Contents::kForeign;
  uint64_t flags = 0;
  const bool read = fd >= 0 && signature_read(fd, &contents, &flags) == 0;
  if (fd >= 0) sys::close_file(fd);
  return read && contents == Contents::kOurs;
}

int check_room(Device* device, const char* uri, uint64_t want_bytes, ErrorText* why) {
  if (device->size_bytes() >= want_bytes) return 0;
  return why->set(-ENOSPC, "LUN %s: %s %s, %s wanted; ask for less, or give another LUN", uri,
                  format_size(device->size_bytes()).text, device->growable() ? "free" : "large",
                  format_size(want_bytes).text);
}

// Makes a scratch LUN on a device that has the format, or gets it.
int open_shared(const char* uri, Device** out, ErrorText* why) {
  PhysicalLun* physical = nullptr;
  int status = physical_open(uri, Format::kIfBlank, &physical, why);
  if (status < 0) return status;
  VirtualOptions options;
  options.zeroed = false;  // the pager reads only pages that it wrote
  VirtualLun* lun = nullptr;
  status = VirtualLun::open(physical, options, &lun, why);
  *out = lun;
  return status;
}

// Writes a scratch header to the head of a named LUN, with the data behind it, so that the next
// open may discard the data.
int claim_named(const char* uri, VirtualLun* lun, Device** out, ErrorText* why) {
  auto* head = static_cast<char*>(map_private(kScratchProbeBytes, ForkPolicy::kDontFork));
  int status = head ? 0 : -ENOMEM;
  if (status == 0 && lun->size_bytes() < kNamedBytesMin) {
    status =
        why->set(-ENOSPC, "LUN %s: %s is too small for a heap, which wants %s; lunar lun resize it",
                 uri, format_size(lun->size_bytes()).text, format_size(kNamedBytesMin).text);
  } else if (status == 0) {
    status = raw_io(lun, Op::kRead, 0, head, kScratchProbeBytes);
    if (status == 0 && signature_of(head, kScratchProbeBytes, nullptr) == Contents::kForeign)
      status = why->set(-EEXIST,
                        "LUN %s: holds data that is not a former heap's; give another one, or "
                        "remove and create it again",
                        uri);
    else if (status == 0) {
      signature_make(reinterpret_cast<ScratchHeader*>(head), 0);
      status = raw_io(lun, Op::kWrite, 0, head, sizeof(ScratchHeader));
    }
    if (status < 0 && why->text[0] == 0)
      (void)why->set(status, "LUN %s: its head cannot be read and written: %s; check the device",
                     uri, errno_text(status));
  }
  if (head) unmap_private(head, kScratchProbeBytes);
  Device* member = lun;
  if (status == 0)  // a stripe of one member, which begins behind the header
    return StripeDevice::create(uri, &member, 1, kScratchDataOffset,
                                lun->size_bytes() - kScratchDataOffset, out, why);
  device_close(lun);
  return status;
}

int open_named(const char* uri, const char* name, Device** out, ErrorText* why) {
  char base[4096];
  const auto length = static_cast<size_t>(name - 1 - uri);
  if (length >= sizeof base)
    return why->set(-ENAMETOOLONG, "LUN: the name is longer than %zu bytes", sizeof base);
  memcpy(base, uri, length);
  base[length] = 0;
  PhysicalLun* physical = nullptr;
  int status = physical_open(base, Format::kNever, &physical, why);
  if (status < 0) return status;
  VirtualOptions options;
  options.name = name;
  VirtualLun* lun = nullptr;
  status = VirtualLun::open(physical, options, &lun, why);
  return status < 0 ? status : claim_named(uri, lun, out, why);
}

// Removes the rights of other users to a file, or refuses it, because no other user may read a
// heap. (The rights of the group stay, so that several users can share a file. Nodes of devices
// keep the rights that the administrator gave them.)
int close_to_others(Device* device, const char* uri, ErrorText* why) {
  bool after_node = false;
  for (unsigned i = 0; i < device->fd_count(); ++i) {
    struct stat status;
    if (device->fd(i) < 0 || sys::file_status(device->fd(i), &status) < 0) continue;
    // An empty file behind a node is the lock file of the node (superpipe/device_files.h).
    const bool lock_file = after_node && status.st_size == 0;
    after_node = S_ISBLK(status.st_mode) || S_ISCHR(status.st_mode);
    if (lock_file || !S_ISREG(status.st_mode) || (status.st_mode & 07) == 0) continue;
    const mode_t mode = status.st_mode & 07777;
    sys::set_mode(device->fd(i), mode & ~mode_t{07});
    if (sys::file_status(device->fd(i), &status) < 0 || (status.st_mode & 07) != 0)
      return why->set(-EACCES,
                      "LUN %s: every user may open it (mode %u%u%u of user %u), "
                      "and a heap's content would lie there; chmod o-rwx it",
                      uri, mode >> 6 & 7, mode >> 3 & 7, mode & 7,
                      static_cast<unsigned>(status.st_uid));
    log_info("LUN %s: taken away from others (it had mode %u%u%u)", uri, mode >> 6 & 7,
             mode >> 3 & 7, mode & 7);
  }
  return 0;
}

int try_open_one(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  *out = nullptr;
  struct stat unused;
  const char* hash = strrchr(uri, '#');
  if (hash && is_there(uri, &unused)) hash = nullptr;  // a file whose name contains the #
  const bool alone = !hash && stands_alone(uri);
  int status = hash    ? open_named(uri, hash + 1, out, why)
               : alone ? device_open(uri, options, out, why)
                       : open_shared(uri, out, why);
  if (status == 0) status = close_to_others(*out, uri, why);
  if (status != 0 || alone) return status;
  return check_room(*out, uri, options.want_bytes, why);
}

// The locks of a process that has ended are released some milliseconds later, and its space with
// them. So a failed open is repeated for that time.
int open_one(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  for (int tries = 0;; ++tries) {
    const int status = try_open_one(uri, options, out, why);
    if (status == 0) return 0;
    if (*out) device_close(*out);
    *out = nullptr;
    if (status != -ENOSPC || tries == kFullRetries || stands_alone(uri)) return status;
    sys::sleep_ns(kFullRetryNs);
  }
}

}  // namespace

int scratch_open(const char* uris, const DeviceOptions& options, Device** out, ErrorText* why) {
  *out = nullptr;
  if (!uris || !*uris) return device_open(uris, options, out, why);
  // An existing path that contains a blank is one LUN.
  struct stat unused;
  if (!strchr(uris, ' ') || is_there(uris, &unused)) return open_one(uris, options, out, why);

  const TextCopy copy(uris);
  if (!copy.text()) return why->set(-ENOMEM, "LUN: out of memory");
  char* words[kLunsMax];
  unsigned count = 0;
  char* rest = nullptr;
  for (char* word = strtok_r(copy.text(), " ", &rest); word; word = strtok_r(nullptr, " ", &rest)) {
    if (count == kLunsMax)
      return why->set(-E2BIG, "LUN: more than %u of them; a stripe has so many at most", kLunsMax);
    words[count++] = word;
  }
  if (count == 0) return why->set(-EINVAL, "LUN: empty name; give a directory on a disk");
  if (count == 1) return open_one(words[0], options, out, why);
  DeviceOptions each = options;
  each.want_bytes = (options.want_bytes + count - 1) / count;
  Device* members[kLunsMax];
  uint64_t least = UINT64_MAX;
  unsigned opened = 0;
  int status = 0;
  for (; opened < count; ++opened) {
    status = open_one(words[opened], each, &members[opened], why);
    if (status != 0) break;
    if (members[opened]->size_bytes() < least) least = members[opened]->size_bytes();
  }
  if (status == 0) return StripeDevice::create(uris, members, count, 0, least, out, why);
  while (opened > 0) device_close(members[--opened]);
  return status;
}

}  // namespace lunar
