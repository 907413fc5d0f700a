// SPDX-License-Identifier: Apache-2.0
// Helpers of the composite devices' tests: opens, refusals, files for members.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "lun/compose.h"
#include "lun/raid/composite_context.h"
#include "superpipe/sim/sim_device.h"
#include "sys/file.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/device_model.h"
#include "tests/support/devices_by_uri.h"
#include "tests/support/seed.h"

namespace composite {

using namespace lunar;
using lunar_test::Attached;
using lunar_test::command_of;
using lunar_test::DeviceModel;
using lunar_test::has;
using lunar_test::io;
using lunar_test::kPage;
using lunar_test::kRaw;
using lunar_test::one;
using lunar_test::PageVector;

inline uint64_t seed() { return tier::run_seed(); }

inline Device* open(const std::string& uri, Format format = Format::kIfBlank) {
  Device* device = nullptr;
  ErrorText why;
  const int status = raw_open(uri.c_str(), kRaw, format, &device, &why);
  INFO(why.text);
  REQUIRE(status == 0);
  return device;
}

// The line of a refusal; its status goes to *error.
inline std::string refusal(const std::string& uri, int* error = nullptr,
                           Format format = Format::kNever) {
  Device* device = nullptr;
  ErrorText why;
  const int status = raw_open(uri.c_str(), kRaw, format, &device, &why);
  CHECK(status < 0);
  CHECK(device == nullptr);
  CHECK(std::string(why.text).find('\n') == std::string::npos);
  if (error) *error = status;
  return why.text;
}

inline SimDevice& sim(Device* device) {
  REQUIRE(strcmp(device->kind(), "sim") == 0);
  return *static_cast<SimDevice*>(device);
}
inline Device* member(Device* device, unsigned i) {
  return static_cast<CompositeDevice*>(device)->member(i);
}

// A new name of memory, so that tests do not share it.
inline std::string fresh() {
  static unsigned count = 0;
  return "t" + std::to_string(++count);
}
inline std::string named(const std::string& size, const std::string& name) {
  return "sim:" + size + ",name=" + name;
}

// Two files with space, and the URI of a device of them. Gone at the end, or at forget().
struct MemberFiles {
  std::string paths[2], uri;
  MemberFiles(const std::string& scheme, uint64_t bytes) : uri(scheme) {
    for (unsigned i = 0; i < 2; ++i) {
      paths[i] = std::string(lunar_test::disk_directory()) + "/lunar-members-" +
                 std::to_string(getpid()) + "-" + fresh();
      const int fd = sys::open_file(paths[i].c_str(), O_RDWR | O_CREAT, 0600);
      REQUIRE(fd >= 0);
      REQUIRE(sys::allocate_space(fd, 0, bytes) == 0);
      sys::close_file(fd);
      uri += (i ? ";" : "") + paths[i];
    }
  }
  ~MemberFiles() { forget(); }
  MemberFiles(const MemberFiles&) = delete;
  MemberFiles& operator=(const MemberFiles&) = delete;
  void forget() const {
    for (const std::string& path : paths) unlink(path.c_str());
  }
};

}  // namespace composite
