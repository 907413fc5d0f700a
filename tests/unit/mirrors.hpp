// SPDX-License-Identifier: Apache-2.0
// What the tests of mirrors share. Threading: a test's.
#pragma once
#include "composite.hpp"
#include "lun/member_label.h"
#include "lun/mirror_device.h"

namespace composite {

constexpr uint64_t kSecond = 1'000'000'000;

inline MirrorDevice& mirror(Device* device) { return *static_cast<MirrorDevice*>(device); }

inline Device* open_mirror(const std::string& uri, Format format = Format::kIfBlank, uint64_t probe_ns = 20'000'000) {
  Device* device = open(uri, format);
  mirror(device).set_probe_interval(probe_ns);
  return device;
}

inline std::string status(Device* device, unsigned i) {
  PathInfo out[4];
  REQUIRE(device_paths(device, out, 4) > static_cast<int>(i));
  return out[i].status;
}

inline MemberLabel label_of(Device* device, unsigned i) {
  MemberLabel out;
  REQUIRE(label_read(member(device, i), &out) == 0);
  return out;
}

}  // namespace composite
