// SPDX-License-Identifier: Apache-2.0
// Places of persistent stores: see store_path.h.
// Threading: as there.
#include "kv/store_path.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "config/trust.h"
#include "kv/store_head.h"
#include "lun/compose.h"
#include "lun/raw_io.h"
#include "sys/file.h"
#include "sys/thread.h"
#include "sys/usable_memory.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kDramLeast = 64 * kMiB, kEndBytes = kMiB;
constexpr int kAttempts = 5;
// Waits for another process that sizes the file.
constexpr uint64_t kSizeWaitNs = 1'000'000'000, kSizePauseNs = 5'000'000;

// The state of a file before its place was opened. If the store cannot be opened, the file returns
// to it.
enum class FileBefore : uint8_t { kAsItIs, kEmpty, kMissing };

bool lies_at(int fd, const char* path) {
  struct stat there;
  return sys::path_status(path, &there) == 0 && sys::is_file(fd, {there.st_dev, there.st_ino});
}

// A file whose size this process sets or resets. The lock keeps other processes from the file while
// the descriptor is open (superpipe/ownership.h).
class SizedFile {
 public:
  explicit SizedFile(int fd = -1) : fd_(fd) {}
  ~SizedFile() {
    if (fd_ >= 0) sys::close_file(fd_);
  }
  SizedFile(const SizedFile&) = delete;
  SizedFile& operator=(const SizedFile&) = delete;
  int fd() const { return fd_; }
  // Locks the file. 0; -EAGAIN: another process has it; -errno: files cannot be locked here, and
  // opening will say so.
  int lock() const {
    return fd_ < 0 ? fd_ : sys::lock_range(fd_, sys::RangeLock::kExclusive, 0, 0);
  }
  int64_t bytes() const {
    struct stat status;
    const int error = sys::file_status(fd_, &status);
    return error < 0 ? error : status.st_size;
  }
  // Whether no byte of the file was ever written. The number of blocks does not tell: ZFS counts a
  // written block only when it has placed it, and other file systems count blocks for the
  // attributes of an empty file. On a file system that does not report holes, no file is blank.
  bool is_blank() const { return sys::next_data(fd_, 0) == -ENXIO; }
  // Shares the claim of the device, so that closing the device does not end it.
  // pre: not open
  void hold(const Device* device) {
    if (device->fd_count() != 0) fd_ = sys::control_file(device->fd(0), F_DUPFD_CLOEXEC, nullptr);
  }

 private:
  int fd_;
};

// Whether a path is PATH#NAME or URI#NAME, as scratch LUNs are named. A file with # in its name,
// which exists or is to be made, is not.
bool names_virtual_lun(const char* path) {
  const char* hash = strrchr(path, '#');
  struct stat status;
  if (!hash || sys::path_status(path, &status) == 0) return false;
  const std::string_view device(path, static_cast<size_t>(hash - path));
  char before[4096];
  if (device.size() >= sizeof before) return false;
  before[device.copy(before, device.size())] = 0;
  return scheme_length(path) != 0 ||
         (sys::path_status(before, &status) == 0 && !S_ISDIR(status.st_mode));
}

// Gives an empty file its size, under the lock, so that no data of another process is cut off. If
// another process has the lock, it sizes the file, or opening will report that it has the file.
int size_if_empty(const StorePath& place, const SizedFile& file, FileBefore* before,
                  ErrorText* why) {
  const uint64_t start = sys::now_ns();
  for (;;) {
    const int locked = file.lock();
    if (locked == 0) break;
    const bool waits = locked == -EAGAIN || locked == -EINTR;
    if (!waits || file.bytes() != 0 || sys::now_ns() - start > kSizeWaitNs) return 0;
    sys::sleep_ns(kSizePauseNs);
  }
  if (file.bytes() != 0) return 0;
  if (*before == FileBefore::kAsItIs) *before = FileBefore::kEmpty;
  const int status = sys::set_file_size(file.fd(), place.bytes_if_empty);
  return status < 0
             ? why->set(status, "%s: %s: cannot be made %s large: %s", place.caller, place.path,
                        format_size(place.bytes_if_empty).text, errno_text(status))
             : 0;
}

// pre: no other process has the file
void undo_made(const StorePath& place, const SizedFile& file, FileBefore before) {
  if (before == FileBefore::kMissing && lies_at(file.fd(), place.path)) (void)::unlink(place.path);
  if (before == FileBefore::kEmpty) (void)sys::set_file_size(file.fd(), 0);
}

// held: has the claim of the device, or is not open. If it is not open, another process may have
// the file, or have had it.
void undo(const StorePath& place, const SizedFile& held, FileBefore before) {
  if (before == FileBefore::kAsItIs) return;
  if (held.fd() >= 0) return undo_made(place, held, before);
  const SizedFile file(sys::open_file(place.path, O_RDWR));
  const int status = file.lock();
  // A file that cannot be locked was not sized.
  const bool is_empty = file.fd() >= 0 && file.bytes() == 0;
  if (status == -EAGAIN || (status < 0 && !is_empty) || !file.is_blank()) return;
  if (before == FileBefore::kMissing || static_cast<uint64_t>(file.bytes()) == place.bytes_if_empty)
    undo_made(place, file, before);
}

int removed(const StorePath& place, ErrorText* why) {
  return why->set(-ESTALE, "%s: %s: was removed while it was opened", place.caller, place.path);
}

// Whether a missing file is created.
bool makes_file(const StorePath& place) {
  return (place.mode == OpenMode::kMake || place.mode == OpenMode::kReplaceAll) &&
         scheme_length(place.path) == 0;
}

// Creates a missing file if the mode allows it, and gives an empty file its size.
int prepare_file(const StorePath& place, FileBefore* before, ErrorText* why) {
  struct stat status_of;
  int status = sys::path_status(place.path, &status_of);
  if (status == -ENOENT && makes_file(place)) {
    const SizedFile file(sys::open_file(place.path, O_RDWR | O_CREAT | O_EXCL, 0600));
    if (file.fd() >= 0) {
      *before = FileBefore::kMissing;
      return size_if_empty(place, file, before, why);
    }
    if (file.fd() != -EEXIST)
      return why->set(file.fd(), "%s: %s: cannot be made: %s", place.caller, place.path,
                      errno_text(file.fd()));
    status = sys::path_status(place.path, &status_of);
    if (status == -ENOENT && sys::link_status(place.path, &status_of) == -ENOENT)
      return removed(place, why);
    if (status == -ENOENT)  // the path is a link whose target does not exist
      return why->set(
          -EEXIST,
          "%s: %s: is a symbolic link that leads to nothing; make the store where it leads",
          place.caller, place.path);
  }
  if (status < 0) return 0;  // a URI, or opening reports it
  if (S_ISDIR(status_of.st_mode))
    return why->set(-EINVAL, "%s: %s: is a directory; a persistent store needs a file in it",
                    place.caller, place.path);
  const bool may_grow = place.mode != OpenMode::kReadOnly && place.mode != OpenMode::kLoad;
  if (!S_ISREG(status_of.st_mode) || status_of.st_size != 0 || !may_grow) return 0;
  const SizedFile file(sys::open_file(place.path, O_RDWR));
  return file.fd() < 0 ? 0 : size_if_empty(place, file, before, why);
}

int check_size(const StorePath& place, const Device* device, ErrorText* why) {
  if (device->size_bytes() >= kPlaceBytesLeast) return 0;
  return why->set(-ENOSPC, "%s: %s: %s are too small for a store; give %s at least", place.caller,
                  place.path, format_size(device->size_bytes()).text,
                  format_size(kPlaceBytesLeast).text);
}

// Looks at a place without a store. 0: it is blank; 1: `what` says what it holds; -errno.
int holds_other(const StorePath& place, Device* device, char* what, size_t size, ErrorText* why) {
  DeviceContent content = DeviceContent::kForeign;
  if (const int status = device_content(device, &content, what, size, false); status < 0)
    return why->set(status, "%s: %s: cannot be read: %s", place.caller, place.path,
                    errno_text(status));
  return content != DeviceContent::kBlank && content != DeviceContent::kEnded;
}

int refuse_content(const StorePath& place, const char* what, ErrorText* why) {
  return why->set(-EEXIST, "%s: %s: holds %s%s", place.caller, place.path, what, place.advice);
}

// Erases the ends of a device, where formats keep their marks and the copies of them.
int erase_ends(Device* device) {
  const uint64_t bytes = device->size_bytes(), head = media::kHeadBytes;
  if (bytes <= head + kEndBytes) return raw_zero(device, 0, round_down(bytes, media::kBlockBytes));
  int status = raw_zero(device, 0, head);
  if (status == 0)
    status = raw_zero(device, round_down(bytes, media::kBlockBytes) - kEndBytes, kEndBytes);
  return status == 0 ? raw_flush(device) : status;
}

// Decides by the content of the place and the mode how the store is opened, or refuses.
int choose(const StorePath& place, HeadDamage damage, Device* device, Contents* contents,
           ErrorText* why) {
  *contents = Contents::kExisting;
  media::Superblock super;
  const int found = superblock_read(device, damage, &super, why);
  const bool only_there = place.mode == OpenMode::kReadOnly || place.mode == OpenMode::kLoad;
  if (found != -ENOENT && (only_there || place.mode == OpenMode::kLoadOrMake)) return found;
  char what[64];
  if (only_there) {
    const int other = holds_other(place, device, what, sizeof what, why);
    if (other < 0) return other;
    if (other == 0) return why->set(-ENOENT, "%s: holds no key/value store", place.path);
    return why->set(-EEXIST, "%s: holds %s, not a key/value store; is the name right?", place.path,
                    what);
  }
  *contents = Contents::kNew;
  if (place.mode == OpenMode::kReplaceAll) {
    if (const int small = check_size(place, device, why); small < 0) return small;
    const int status = erase_ends(device);
    return status < 0 ? why->set(status, "%s: %s: cannot be erased: %s", place.caller, place.path,
                                 errno_text(status))
                      : 0;
  }
  if (found != -ENOENT) {
    const bool is_store = found == 0 || found == -EBADMSG || found == -EPROTONOSUPPORT;
    if (!is_store) return found;
    if (place.mode == OpenMode::kMake) return refuse_content(place, "a key/value store", why);
    return found == -EPROTONOSUPPORT ? found : 0;
  }
  const int other = holds_other(place, device, what, sizeof what, why);
  if (other != 0) return other == 1 ? refuse_content(place, what, why) : other;
  return check_size(place, device, why);
}

// Whether the device's file is the one at the path. Another process that made the file and was then
// refused may have removed it while this process waited for its claim.
bool still_there(const StorePath& place, const Device* device) {
  return device->fd_count() == 0 || lies_at(device->fd(0), place.path);
}

// Opens the device at a place and sets options->contents. held: gets the claim of a file that was
// made or sized here. -ESTALE: call again.
int open_place(const StorePath& place, StoreOptions* options, FileBefore* before, SizedFile* held,
               ErrorText* why) {
  Device** device = &options->device;
  *device = nullptr;
  *before = FileBefore::kAsItIs;
  if (names_virtual_lun(place.path))
    return why->set(-EINVAL,
                    "%s: %s: names a virtual LUN, which ends with its process; "
                    "a persistent store needs a device or file of its own, without #NAME",
                    place.caller, place.path);
  if (const int status = prepare_file(place, before, why); status < 0) {
    undo(place, *held, *before);
    return status;
  }
  struct stat found;
  const int seen = sys::path_status(place.path, &found);
  if (seen == -ENOENT && makes_file(place)) return removed(place, why);
  const bool is_file = seen == 0 && S_ISREG(found.st_mode);
  DeviceOptions how;
  how.scratch = false;
  how.read_only = place.mode == OpenMode::kReadOnly;
  // kWhole: a lock that readers share, and that a description for reading can have
  // (superpipe/ownership.h).
  how.claim = how.read_only ? Claim::kWhole : Claim::kAlone;
  int status =
      raw_open(place.path, how, how.read_only ? Format::kNever : Format::kIfBlank, device, why);
  if (is_file && (status == -ENOENT || (status == 0 && !still_there(place, *device)))) {
    device_close(*device);
    *device = nullptr;
    return removed(place, why);
  }
  const HeadDamage damage =
      how.read_only && options->salvage ? HeadDamage::kSalvage : HeadDamage::kRefuse;
  if (status == 0 && *before != FileBefore::kAsItIs) held->hold(*device);
  if (held->fd() >= 0 && !held->is_blank())
    *before = FileBefore::kAsItIs;  // another process wrote to it first
  if (status == 0) status = choose(place, damage, *device, &options->contents, why);
  if (status == 0) return 0;
  device_close(*device);
  *device = nullptr;
  undo(place, *held, *before);
  return status;
}

}  // namespace

int persistent_store_open(const StorePath& place, StoreOptions* options, Store** out,
                          ErrorText* why) {
  FileBefore before;
  SizedFile held;
  int status = -ESTALE;
  for (int i = 0; i < kAttempts && status == -ESTALE; ++i)
    status = open_place(place, options, &before, &held, why);
  if (status < 0) return status;
  status = Store::open(*options, out, why);
  if (status < 0) undo(place, held, before);
  return status;
}

int size_variable(const char* name, const char* caller, uint64_t* bytes, ErrorText* why) {
  const char* text = environment_value(name);
  *bytes = 0;
  if (!text || !*text) return 0;
  if (parse_size(text, bytes) == 0 && *bytes != 0) return 0;
  return why->set(-EINVAL, "%s: %s=%s is not a size; give one such as 512m or 4g", caller, name,
                  text);
}

int dram_of_stores(const char* caller, uint64_t* bytes, ErrorText* why) {
  if (const int status = size_variable("LUNAR_KV_DRAM", caller, bytes, why);
      status < 0 || *bytes != 0)
    return status;
  *bytes = std::max(sys::usable_memory().bytes / 4, kDramLeast);
  return 0;
}

}  // namespace lunar::kv
