// SPDX-License-Identifier: Apache-2.0
// PhysicalLun: a device with Lunar's format: many processes at once carve virtual LUNs out of it, in extents.
// The on-media layout, and why a crash between any two writes leaves it whole: physical_format.h.
//
// Locks (F_OFD_SETLK byte ranges of the raw device's file, and a node's lock file: lun_locks.h; a sim device, which no
// other process can see, needs none):
//   the metadata byte     exclusive during a change of the metadata; its holder reads the newest image first
//   one byte a LUN entry  shared, held by every owner for as long as it has the LUN open. Taking it exclusively proves
//                         that there is no owner: so the next change finds and frees a scratch LUN whose owners were
//                         killed, and shrinking or removing a LUN in use is refused
// Threading: calls may come from any thread (a lock inside). All block; not for the fault path.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "superpipe/device.h"

namespace lunar {

constexpr size_t kLunNameBytes = 32;        // with its NUL; [A-Za-z0-9._-], not empty, not starting with '-' or '.'
constexpr unsigned kVirtualLunsMax = 1024;  // of one physical LUN, scratch ones included

// What lies in a virtual LUN. A later version may have more: such a LUN is listed and can be removed, but not opened.
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
  uint32_t cipher_id = 0;  // 0: none. Others are of earlier versions, and do not open (-EOPNOTSUPP)
  bool in_use = false;     // open in some process
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
  bool repaired = false;  // a copy was found damaged at open and written again
  unsigned damaged = 0;   // copies that were found damaged at open and left so (Format::kLook)
  uint64_t features_compatible = 0, features_read_only = 0, features_incompatible = 0;  // bits: physical_format.h
};

enum class Format : uint8_t {
  kNever,    // -ENODEV (blank), -EEXIST (foreign) when it does not carry the format
  kIfBlank,  // formats a device whose header (64 KiB) is zeros and that libblkid knows nothing on; else as kNever
  kForce,    // whatever it holds goes (in use is still -EBUSY)
  // as kNever, but a head that was erased or overwritten by nothing known is restored from the copy at the end, and
  // metadata from two sound slots where these prove to be the newest
  kRepair,
  // as kNever, but nothing is ever written: damage that one copy repairs is left, what would change anything is -EROFS,
  // and dead scratch LUNs are not freed but left out. `raw` may be open for reading only
  kLook,
  kCheck,  // as kLook, and what is damaged beyond its copies opens, for check() alone
  kEnd,    // as kLook, and a format that was being ended opens, for end() alone
};
constexpr bool only_looks(Format format) {
  return format == Format::kLook || format == Format::kCheck || format == Format::kEnd;
}

// Findings of check(): a line that begins with `fatal` means that data may be lost or owned twice.
struct CheckReport {
  unsigned problems = 0, repaired = 0;
  // Of the newest image whose checksums are right, also where its content is invalid.
  uint64_t extents_free = 0, extents_used = 0;
  uint64_t extents_lost = 0;     // given to a LUN that does not exist or is not so large: neither free nor used
  uint64_t extents_double = 0;   // at a place of a LUN that another extent has already
  uint64_t extents_missing = 0;  // places of LUNs without an extent
  void (*line)(void* argument, const char* text) = nullptr;  // one line a finding; may be null
  void* argument = nullptr;
};

class PhysicalLun {
 public:
  static constexpr uint64_t kBytesMin = 4 * 1024 * 1024;

  // Takes `raw` (opened for Claim::kParts) over in any case: closes it with the LUN, or at once on failure. 0 or -errno
  // with *why: -ENODEV blank, -EEXIST holds something else, -EPROTONOSUPPORT version or unknown features, -EBADMSG
  // damaged beyond its copies, -ENOSPC too small, -EROFS (open for reading, or with features that this version may only
  // read: kLook opens these).
  [[nodiscard]] static int open(Device* raw, Format format, PhysicalLun** out, ErrorText* why);
  virtual void close() = 0;

  [[nodiscard]] virtual int info(PhysicalLunInfo* out) = 0;
  // Up to `max` entries that are in use (of dead scratch LUNs: see kLook), by index from `first`; returns how many.
  [[nodiscard]] virtual int list(VirtualLunInfo* out, unsigned max, unsigned first) = 0;
  // Removes a named LUN. -ENOENT, -EBUSY.
  [[nodiscard]] virtual int remove(const char* name, ErrorText* why) = 0;
  // Whole-structure check. repair: writes damaged copies again, frees what dead owners left (-EROFS by kLook). 0 or
  // -errno when it could not look.
  [[nodiscard]] virtual int check(bool repair, CheckReport* report) = 0;
  // Makes the device blank again (its head; the data of LUNs stay), where nothing on it outlives its owners. Pre:
  // opened by kEnd, and the device for Claim::kAlone, so that no scratch LUN has an owner. -EBUSY: a named LUN lies
  // there; -EROFS: features this version does not know; -errno. Where it fails half way, the device counts as blank.
  [[nodiscard]] virtual int end(ErrorText* why) = 0;
  virtual Device* device() = 0;

 protected:
  virtual ~PhysicalLun() = default;
};

// What the head of a raw device holds: kEmpty (zeros), kOurs (a scratch LUN of the plain kind), kForeign, or one of
// these. kEnded: virtual LUNs that were being ended; as good as blank. kStore: a key/value store that is kept.
enum class DeviceContent : uint8_t { kBlank, kPhysicalLun, kMember, kScratch, kForeign, kEnded, kStore };
// How the superblocks of a key/value store begin (kv/store_format.h), of which there are two.
constexpr char kStoreMagic[16] = "LunarKeyValue\r\n";
constexpr uint64_t kStoreMagicAt[] = {0, 60 * 1024};
// Looks at the head only; for a device that answers reads. `what` gets a word for people ("ext4", "a member of a stripe
// of Lunar").
[[nodiscard]] int device_content(Device* raw, DeviceContent* out, char* what, size_t size, bool only_ours = false);

}  // namespace lunar
