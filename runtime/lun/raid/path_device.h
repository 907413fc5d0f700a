// SPDX-License-Identifier: Apache-2.0
// Several paths to the same device: I/O takes the first path that works (the primary one, while it does). A command
// that fails because of its path is re-issued on the next; the caller sees an error only when no path is left.
//
//   Enabled ── an error here, and success on another path ──► Failed
//      ▲                                                        │ every kProbeNs the next context with I/O reads a page
//      └───────────────── that read succeeds ◄──────────────────┘ through it (and does not wait for that)
//   Missing: it could not be opened; it is tried at the next open.
//
// That they reach one backing device is checked at open: equal sizes, and one of: the same file (st_dev, st_ino, or the
// node's number); the same memory (sim:); the same wwid (block devices, /sys); or a head (64 KiB) that is equal and not
// zeros. Where heads are zeros and formatting is allowed, a random page is written through the first path, must be seen
// through the others, and is zeroed again. Different wwids are refused whatever the heads say. A byte-for-byte copy of
// a device without a wwid cannot be told from it.
//
// An error that all paths give is the backing device's: it is returned, and no path is marked. A path that delivers
// late what was given up on it (a timeout) could land an old write over a newer one; the kernel's drivers abort a
// command before they report -ETIMEDOUT.
//
// Threading: as every device; states and counters are atomics of the device (this process').
#pragma once
#include "base/error.h"
#include "lun/raid/composite_context.h"

namespace lunar {

// One path of a paths: device (or the one path of any other), for `lunar lun paths`.
struct PathInfo {
  char name[64] = {};         // of the device it reaches
  char connection[128] = {};  // the member's URI
  const char* status = "";    // "Enabled", "Failed", "Missing" (AIX's lspath words)
  bool primary = false;
  uint64_t ios = 0, errors = 0, failovers = 0;
};

class PathDevice final : public CompositeDevice {
 public:
  // Takes the paths over: closed with the device, or at once on failure. A nullptr is a missing one. uris: kept, not
  // copied.
  [[nodiscard]] static int create(const char* name, Device* const* paths, const char* const* uris, unsigned count,
                                  bool may_write, Device** out, ErrorText* why);
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  [[nodiscard]] int64_t transfer(const Command& command) override;
  const char* kind() const override { return "paths"; }
  void describe(unsigned path, PathInfo* out) const;

  static constexpr uint64_t kProbeNs = 3'000'000'000;
  void set_probe_interval(uint64_t ns) { probe_ns_.store(ns, std::memory_order_relaxed); }  // for tests

 private:
  [[nodiscard]] int start(CompositeContext* context, CompositeParent* parent) override;
  bool child_done(CompositeContext* context, CompositeParent* parent, CompositeChild* child, int64_t result) override;
  void finish(CompositeContext*, CompositeParent*) override {}
  void probed(unsigned member, int64_t result) override;
  [[nodiscard]] int verify(bool may_write, ErrorText* why);

  struct Path {
    std::atomic<uint64_t> ios{0}, errors{0}, failovers{0};
    std::atomic<uint64_t> probe_at_ns{0};
  };
  unsigned pick(uint32_t tried) const;  // count_: none left
  void succeeded(unsigned path, uint32_t bad);
  bool may_probe(unsigned path, uint64_t now);
  int settle(uint32_t* tried, uint32_t* bad, unsigned path, int64_t result, uint64_t bytes);

  Path path_[kCompositeMembersMax];
  const char* uri_[kCompositeMembersMax] = {};
  std::atomic<uint32_t> failed_{0};  // bit a path
  std::atomic<uint64_t> probe_ns_{kProbeNs};
  uint32_t missing_ = 0;
};

// Fills up to `max`; returns how many. Of a device that is no paths: its one path; a stripe's members are listed
// likewise. Any thread.
[[nodiscard]] int device_paths(Device* device, PathInfo* out, unsigned max);

// Locks of a physical LUN are the first path's. Where paths have different locks (superpipe/device_files.h), every
// process must have the same path first: 0 when all are present and in the order of their device numbers, or raw is no
// paths: device; else -errno with *why.
[[nodiscard]] int paths_in_order(Device* raw, ErrorText* why);

// Whether they share a file, a device node or a simulated memory; any of theirs, when they consist of several.
bool same_backing_device(Device* a, Device* b);

}  // namespace lunar
