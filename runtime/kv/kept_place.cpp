// SPDX-License-Identifier: Apache-2.0
// Places of stores that are kept: see kept_place.h.
// Threading: as there.
#include "kv/kept_place.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "config/trust.h"
#include "kv/store_head.h"
#include "lun/compose.h"
#include "lun/raw_io.h"
#include "sys/file.h"
#include "sys/proc.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kDramLeast = 64 * kMiB, kEndBytes = kMiB;

// What a file was before its place was opened: what was made of it is undone when the store cannot be opened.
enum class FileBefore : uint8_t { kAsItIs, kEmpty, kMissing };

// PATH#NAME or URI#NAME, as scratch LUNs are named; not a file that has one in its name, there or to be made.
bool names_virtual_lun(const char* path) {
  const char* hash = strrchr(path, '#');
  struct stat status;
  if (!hash || sys::path_status(path, &status) == 0) return false;
  const std::string_view device(path, static_cast<size_t>(hash - path));
  char before[4096];
  if (device.size() >= sizeof before) return false;
  before[device.copy(before, device.size())] = 0;
  return scheme_length(path) != 0 || (sys::path_status(before, &status) == 0 && !S_ISDIR(status.st_mode));
}

int make_large(const KeptPlace& place, int flags, ErrorText* why) {
  const int fd = sys::open_file(place.path, O_RDWR | flags, 0600);
  const int status = fd < 0 ? fd : sys::set_file_size(fd, place.bytes_if_empty);
  if (fd >= 0) sys::close_file(fd);
  return status < 0 ? why->set(status, "%s: %s: cannot be made %s large: %s", place.caller, place.path,
                               format_size(place.bytes_if_empty).text, errno_text(status))
                    : 0;
}

// A file that is wanted, or empty, gets its size.
int prepare_file(const KeptPlace& place, FileBefore* before, ErrorText* why) {
  struct stat status_of;
  const int status = sys::path_status(place.path, &status_of);
  const bool makes = place.take == Take::kMake || place.take == Take::kReplaceAll;
  if (status == -ENOENT && makes && scheme_length(place.path) == 0) {
    const int done = make_large(place, O_CREAT | O_EXCL, why);
    if (done == -EEXIST)  // nothing is where the path leads, and something at the path
      return why->set(done, "%s: %s: is a symbolic link that leads to nothing; make the store where it leads",
                      place.caller, place.path);
    *before = FileBefore::kMissing;
    return done;
  }
  if (status < 0) return 0;  // a URI, or opening says it
  if (S_ISDIR(status_of.st_mode))
    return why->set(-EINVAL, "%s: %s: is a directory; a store that is kept wants a file in it", place.caller,
                    place.path);
  const bool may_grow = place.take != Take::kLook && place.take != Take::kLoad;
  if (S_ISREG(status_of.st_mode) && status_of.st_size == 0 && may_grow) {
    *before = FileBefore::kEmpty;
    return make_large(place, 0, why);
  }
  return 0;
}

void undo(const KeptPlace& place, FileBefore before) {
  if (before == FileBefore::kMissing) (void)::unlink(place.path);
  if (before == FileBefore::kEmpty) (void)::truncate(place.path, 0);
}

int check_size(const KeptPlace& place, const Device* device, ErrorText* why) {
  if (device->size_bytes() >= kPlaceBytesLeast) return 0;
  return why->set(-ENOSPC, "%s: %s: %s are too small for a store; give %s at least", place.caller, place.path,
                  format_size(device->size_bytes()).text, format_size(kPlaceBytesLeast).text);
}

// Of a place without a store: 0, it is blank; 1, `what` says what it holds; -errno.
int holds_other(const KeptPlace& place, Device* device, char* what, size_t size, ErrorText* why) {
  DeviceContent content = DeviceContent::kForeign;
  if (const int status = device_content(device, &content, what, size, false); status < 0)
    return why->set(status, "%s: %s: cannot be read: %s", place.caller, place.path, errno_text(status));
  return content != DeviceContent::kBlank && content != DeviceContent::kEnded;
}

int refuse_content(const KeptPlace& place, const char* what, ErrorText* why) {
  return why->set(-EEXIST, "%s: %s: holds %s%s", place.caller, place.path, what, place.advice);
}

// The ends of a device, where formats have their marks and copies of them.
int erase_ends(Device* device) {
  const uint64_t bytes = device->size_bytes(), head = media::kHeadBytes;
  if (bytes <= head + kEndBytes) return raw_zero(device, 0, round_down(bytes, media::kBlockBytes));
  int status = raw_zero(device, 0, head);
  if (status == 0) status = raw_zero(device, round_down(bytes, media::kBlockBytes) - kEndBytes, kEndBytes);
  return status == 0 ? raw_flush(device) : status;
}

// What there is, against what may be.
int choose(const KeptPlace& place, HeadDamage damage, Device* device, Contents* contents, ErrorText* why) {
  *contents = Contents::kKept;
  media::Superblock super;
  const int found = superblock_read(device, damage, &super, why);
  const bool only_there = place.take == Take::kLook || place.take == Take::kLoad;
  if (found != -ENOENT && (only_there || place.take == Take::kLoadOrMake)) return found;
  char what[64];
  if (only_there) {
    const int other = holds_other(place, device, what, sizeof what, why);
    return other == 0  ? why->set(-ENOENT, "%s: holds no key/value store", place.path)
           : other < 0 ? other
                       : why->set(-EEXIST, "%s: holds %s, not a key/value store; is the name right?", place.path, what);
  }
  *contents = Contents::kNew;
  if (place.take == Take::kReplaceAll) {
    if (const int small = check_size(place, device, why); small < 0) return small;
    const int status = erase_ends(device);
    return status < 0 ? why->set(status, "%s: %s: cannot be erased: %s", place.caller, place.path, errno_text(status))
                      : 0;
  }
  if (found != -ENOENT) {
    const bool is_store = found == 0 || found == -EBADMSG || found == -EPROTONOSUPPORT;
    if (!is_store) return found;
    if (place.take == Take::kMake) return refuse_content(place, "a key/value store", why);
    return found == -EPROTONOSUPPORT ? found : 0;
  }
  const int other = holds_other(place, device, what, sizeof what, why);
  if (other != 0) return other == 1 ? refuse_content(place, what, why) : other;
  return check_size(place, device, why);
}

// *contents is what to open the store with.
int open_place(const KeptPlace& place, StoreOptions* options, FileBefore* before, ErrorText* why) {
  Device** device = &options->device;
  *device = nullptr;
  *before = FileBefore::kAsItIs;
  if (names_virtual_lun(place.path))
    return why->set(-EINVAL,
                    "%s: %s: names a virtual LUN, which ends with its process; a store that is kept wants a device or "
                    "file of its own, without #NAME",
                    place.caller, place.path);
  if (const int status = prepare_file(place, before, why); status < 0) {
    undo(place, *before);
    return status;
  }
  DeviceOptions how;
  how.scratch = false;
  how.read_only = place.take == Take::kLook;
  // kWhole: a lock that readers share, and that a description for reading can have (superpipe/ownership.h).
  how.claim = how.read_only ? Claim::kWhole : Claim::kAlone;
  int status = raw_open(place.path, how, how.read_only ? Format::kNever : Format::kIfBlank, device, why);
  const HeadDamage damage = how.read_only && options->salvage ? HeadDamage::kSalvage : HeadDamage::kRefuse;
  if (status == 0) status = choose(place, damage, *device, &options->contents, why);
  if (status == 0) return 0;
  device_close(*device);
  *device = nullptr;
  undo(place, *before);
  return status;
}

}  // namespace

int kept_store_open(const KeptPlace& place, StoreOptions* options, Store** out, ErrorText* why) {
  FileBefore before;
  if (const int status = open_place(place, options, &before, why); status < 0) return status;
  const int status = Store::open(*options, out, why);
  if (status < 0) undo(place, before);
  return status;
}

int size_variable(const char* name, const char* caller, uint64_t* bytes, ErrorText* why) {
  const char* text = environment_value(name);
  *bytes = 0;
  if (!text || !*text) return 0;
  if (parse_size(text, bytes) == 0 && *bytes != 0) return 0;
  return why->set(-EINVAL, "%s: %s=%s is not a size; give one such as 512m or 4g", caller, name, text);
}

int dram_of_stores(const char* caller, uint64_t* bytes, ErrorText* why) {
  if (const int status = size_variable("LUNAR_KV_DRAM", caller, bytes, why); status < 0 || *bytes != 0) return status;
  const int64_t available = sys::machine_memory_bytes("MemAvailable");
  *bytes = available > 0 ? static_cast<uint64_t>(available) / 4 : 0;
  if (*bytes < kDramLeast) *bytes = kDramLeast;
  return 0;
}

}  // namespace lunar::kv
