// SPDX-License-Identifier: Apache-2.0
// PhysicalLun: a device with Lunar's format, from which many processes at once carve virtual LUNs,
// in extents. physical_format.h has the on-media layout, and says why it survives a crash between
// any two writes.
//
// Locks (F_OFD_SETLK byte ranges of the raw device's file, and a node's lock file: lun_locks.h; a
// sim device, which no other process can see, needs none):
//   the metadata byte       exclusive during a change of the metadata; its holder reads the newest
//                           image first
//   one byte per LUN entry  shared, held by every owner while it has the LUN open. If it could be
//                           taken exclusively, the LUN has no owner. By this test the next change
//                           frees scratch LUNs whose owners were killed, and refuses to shrink or
//                           remove a LUN in use
// Threading: any thread may make calls (a lock inside). All block; not for the fault path.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "superpipe/device.h"

namespace lunar {

// With the NUL. Names are of [A-Za-z0-9._-], not empty, and do not start with '-' or '.'.
constexpr size_t kLunNameBytes = 32;
constexpr unsigned kVirtualLunsMax = 1024;  // of one physical LUN, scratch ones included

// The content of a virtual LUN. A later version may have more types: a LUN of unknown type is
// listed and can be removed, but not opened.
enum class LunType : uint32_t { kBlocks = 0, kKeyValue = 1 };
constexpr const char* lun_type_text(LunType type) {
  return type == LunType::kBlocks     ? "a LUN of plain blocks"
         : type == LunType::kKeyValue ? "a key/value store"
                                      : "of a type not known here";
}

struct VirtualLunInfo {
  unsigned index = 0;             // of its entry
  char name[kLunNameBytes] = {};  // "" : scratch
  LunType type = LunType::kBlocks;
  uint8_t uuid[16] = {};
  uint64_t size_bytes = 0;
  uint64_t extents = 0;
  uint64_t created_s = 0;  // seconds since 1970
  // 0: none. Other values are of earlier versions; such a LUN does not open (-EOPNOTSUPP)
  uint32_t cipher_id = 0;
  bool in_use = false;  // open in some process
};

struct PhysicalLunInfo {
  uint8_t uuid[16] = {};
  uint32_t version = 0;
  uint64_t device_bytes = 0;
  uint64_t usable_bytes = 0;  // in extents
  uint64_t free_bytes = 0;
  uint64_t extent_bytes = 0;
  uint64_t sequence = 0;  // of the newest metadata image
  unsigned luns = 0;      // scratch ones included
  bool repaired = false;  // a copy was found damaged at open and repaired
  unsigned damaged = 0;   // copies that were found damaged at open and not repaired (Format::kLook)
  // bits: physical_format.h
  uint64_t features = 0;
};

enum class Format : uint8_t {
  kNever,  // -ENODEV (blank) or -EEXIST (foreign) if the device does not carry the format
  // formats a device whose head (64 KiB) is zeros and on which libblkid finds nothing; otherwise as
  // kNever
  kIfBlank,
  kForce,  // overwrites any content (a device in use is still -EBUSY)
  // as kNever, but restores a head that was erased, or overwritten by unknown data, from the copy
  // at the end, and metadata from two sound slots if these prove to be the newest
  kRepair,
  // as kNever, but writes nothing: damage that one copy could repair stays, calls that would change
  // anything fail with -EROFS, and dead scratch LUNs are omitted, not freed. `raw` may be open
  // read-only
  kLook,
  kCheck,  // as kLook, but also opens metadata that is damaged beyond its copies, for check() only
  kEnd,    // as kLook, but also opens a format that was being ended, for end() only
};
constexpr bool only_looks(Format format) {
  return format == Format::kLook || format == Format::kCheck || format == Format::kEnd;
}

// The findings of check(). A line that begins with `fatal` means that data may be lost or owned
// twice.
struct CheckReport {
  unsigned problems = 0, repaired = 0;
  // Of the newest image whose checksums are right, even if its content is invalid.
  uint64_t extents_free = 0, extents_used = 0;
  // Assigned to a LUN that does not exist, or beyond its end: neither free nor used.
  uint64_t extents_lost = 0;
  uint64_t extents_double = 0;   // at a position in a LUN that another extent has already
  uint64_t extents_missing = 0;  // positions in LUNs without an extent
  // called with one line per finding; may be null
  void (*line)(void* argument, const char* text) = nullptr;
  void* argument = nullptr;
};

class PhysicalLun {
 public:
  static constexpr uint64_t kBytesMin = 4 * 1024 * 1024;

  // Takes ownership of `raw` (opened for Claim::kParts) in any case: it is closed with the LUN, or
  // at once on failure. 0 or -errno with *why: -ENODEV blank, -EEXIST contains something else,
  // -EPROTONOSUPPORT version or unknown features, -EBADMSG damaged beyond its copies, -ENOSPC too
  // small, -EROFS (open read-only).
  [[nodiscard]] static int open(Device* raw, Format format, PhysicalLun** out, ErrorText* why);
  virtual void close() = 0;

  [[nodiscard]] virtual int info(PhysicalLunInfo* out) = 0;
  // Lists up to `max` entries in use, from index `first` on; returns how many. (For dead scratch
  // LUNs see kLook.)
  [[nodiscard]] virtual int list(VirtualLunInfo* out, unsigned max, unsigned first) = 0;
  // Removes a named LUN. -ENOENT, -EBUSY.
  [[nodiscard]] virtual int remove(const char* name, ErrorText* why) = 0;
  // Checks the whole structure. repair: rewrites damaged copies, and frees scratch LUNs of dead
  // owners (-EROFS with kLook). 0, or -errno if it could not be checked.
  [[nodiscard]] virtual int check(bool repair, CheckReport* report) = 0;
  // Makes the device blank again (its head; the data of LUNs stay) if nothing on it outlives its
  // owners. -EBUSY: there is a named LUN; -errno. If it fails half way, the device counts as blank.
  // pre: opened by kEnd, and the device for Claim::kAlone, so that no scratch LUN has an owner
  [[nodiscard]] virtual int end(ErrorText* why) = 0;
  virtual Device* device() = 0;

 protected:
  virtual ~PhysicalLun() = default;
};

// The content of the head of a raw device: kBlank (zeros), kScratch (a scratch LUN of the plain
// kind), kForeign, or one of the others. kEnded: virtual LUNs that were being ended; counts as
// blank. kStore: a persistent key/value store.
enum class DeviceContent : uint8_t {
  kBlank,
  kPhysicalLun,
  kMember,
  kScratch,
  kForeign,
  kEnded,
  kStore
};
// The beginning of the superblocks of a key/value store (kv/store_format.h), of which there are
// two.
constexpr char kStoreMagic[16] = "LunarKeyValue\r\n";
constexpr uint64_t kStoreMagicAt[] = {0, 60 * 1024};
// Reads only the head of a device. `what` receives words for a message ("ext4", "a member of a
// stripe of Lunar").
[[nodiscard]] int device_content(Device* raw, DeviceContent* out, char* what, size_t size,
                                 bool only_ours = false);

}  // namespace lunar
