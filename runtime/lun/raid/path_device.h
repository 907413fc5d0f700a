// SPDX-License-Identifier: Apache-2.0
// Several paths to the same device: I/O takes the first path that works (the primary one, as long
// as it works). A command that fails because of its path is issued again on the next; the caller
// sees an error only when no path is left.
//
//   Enabled ── an error here, and success on another path ──► Failed
//      ▲                                                        │ every kProbeNs the next context
//      └───────────────── that read succeeds ◄──────────────────┘ with I/O reads a page through it
//                                                                 (and does not wait for that)
//   Missing: the path could not be opened; it is tried again at the next open.
//
// Open checks that all paths reach one backing device: they have equal sizes, and one of: the same
// file (st_dev, st_ino, or the number of the device node); the same memory (sim:); the same wwid
// (block devices, /sys); or a head (64 KiB) that is equal and not zeros. If heads are zeros and
// formatting is allowed, a random page is written through the first path, must be visible through
// the others, and is zeroed again. Different wwids are refused whatever the heads contain. A
// byte-for-byte copy of a device without a wwid cannot be distinguished from the device.
//
// An error that all paths return belongs to the backing device: it is passed on, and no path is
// marked. If a path carried out a command after its timeout, an old write could overwrite a newer
// one; the kernel's drivers abort a command before they report -ETIMEDOUT.
//
// Threading: as for every device; states and counters are atomics of the device, in this process.
#pragma once
#include "base/error.h"
#include "lun/raid/composite_context.h"

namespace lunar {

// One path of a paths: device (or the only path of any other device), for `lunar lun paths`.
struct PathInfo {
  char name[64] = {};         // of the device it reaches
  char connection[128] = {};  // the member's URI
  const char* status = "";    // "Enabled", "Failed", "Missing" (AIX's lspath words)
  bool primary = false;
  uint64_t ios = 0, errors = 0, failovers = 0;
};

class PathDevice final : public CompositeDevice {
 public:
  // Takes ownership of the paths: they are closed with the device, or at once on failure. nullptr:
  // a missing path. uris: referenced, not copied.
  [[nodiscard]] static int create(const char* name, Device* const* paths, const char* const* uris,
                                  unsigned count, bool may_write, Device** out, ErrorText* why);
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  [[nodiscard]] int64_t transfer(const Command& command) override;
  const char* kind() const override { return "paths"; }
  void describe(unsigned path, PathInfo* out) const;

  static constexpr uint64_t kProbeNs = 3'000'000'000;
  void set_probe_interval(uint64_t ns) {  // for tests
    probe_ns_.store(ns, std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] int start(CompositeContext* context, CompositeParent* parent) override;
  bool child_done(CompositeContext* context, CompositeParent* parent, CompositeChild* child,
                  int64_t result) override;
  void finish(CompositeContext*, CompositeParent*) override {}
  void probed(unsigned member, int64_t result) override;
  [[nodiscard]] int verify(bool may_write, ErrorText* why);

  struct Path {
    std::atomic<uint64_t> ios{0}, errors{0}, failovers{0};
    std::atomic<uint64_t> probe_at_ns{0};
  };
  unsigned pick(uint32_t tried) const;  // count_: all paths were tried
  void succeeded(unsigned path, uint32_t bad);
  bool may_probe(unsigned path, uint64_t now);
  int settle(uint32_t* tried, uint32_t* bad, unsigned path, int64_t result, uint64_t bytes);

  Path path_[kCompositeMembersMax];
  const char* uri_[kCompositeMembersMax] = {};
  std::atomic<uint32_t> failed_{0};  // one bit per path
  std::atomic<uint64_t> probe_ns_{kProbeNs};
  uint32_t missing_ = 0;
};

// Fills up to `max` entries; returns how many. A device that is not a paths: device has one path;
// the members of a stripe are listed likewise. Any thread.
[[nodiscard]] int device_paths(Device* device, PathInfo* out, unsigned max);

// The locks of a physical LUN are those of its first path. If the paths have different locks
// (superpipe/device_files.h), every process must have the same path first. 0 if all are present and
// in the order of their device numbers, or raw is not a paths: device; otherwise -errno with *why.
[[nodiscard]] int paths_in_order(Device* raw, ErrorText* why);

// Whether two devices share a file, a device node or a simulated memory (if they consist of
// several: whether any of these is shared).
bool same_backing_device(Device* a, Device* b);

}  // namespace lunar
