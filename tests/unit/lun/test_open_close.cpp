// SPDX-License-Identifier: Apache-2.0
// Programs that open and close devices for as long as they live: nothing of a device stays.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/units.h"
#include "lun/compose.h"
#include "sys/arena.h"
#include "tests/catch.h"

using namespace lunar;

namespace {

constexpr int kOpens = 20'000;

// "VmRSS", "VmData" of this process.
size_t kibibytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name, rest; status >> name && std::getline(status, rest);)
    if (name == field + ":") return strtoul(rest.c_str(), nullptr, 10);
  return 0;
}

int open_once(const std::string& uri) {
  DeviceOptions options;
  options.scratch = false;
  Device* device = nullptr;
  ErrorText why;
  const int status = raw_open(uri.c_str(), options, Format::kIfBlank, &device, &why);
  if (status == 0) device_close(device);
  return status;
}

// So many opens, after some that make what stays once.
void opens_leave_nothing(const std::string& uri, int opens, bool refused = false) {
  INFO(uri);
  const int expected = open_once(uri);
  REQUIRE((expected < 0) == refused);
  for (int i = 0; i < 64; ++i) REQUIRE(open_once(uri) == expected);
  const size_t data = kibibytes("VmData"), resident = kibibytes("VmRSS"), mapped = arena_bytes();
  int failed = 0;
  for (int i = 0; i < opens; ++i) failed += open_once(uri) != expected;
  CHECK(failed == 0);
  CHECK(arena_bytes() == mapped);
  CHECK(kibibytes("VmData") < data + 512);
  CHECK(kibibytes("VmRSS") < resident + 512);
}

}  // namespace

TEST_CASE("open and close: devices in memory leave nothing, alone, in a stripe or as paths") {
  opens_leave_nothing("sim:1m", kOpens);
  opens_leave_nothing("mem:1m", kOpens);
  opens_leave_nothing("stripe:sim:8m,name=open-a;sim:8m,name=open-b", kOpens);
  opens_leave_nothing("paths:sim:8m,name=open-c;sim:8m,name=open-c", kOpens);
}

TEST_CASE("open and close: refused opens leave nothing") {
  opens_leave_nothing("file:/nowhere/disk", kOpens, true);
  opens_leave_nothing("/dev/null", kOpens, true);
  opens_leave_nothing("pmem:/dev/null", kOpens, true);
  opens_leave_nothing("stripe:sim:1m;sim:1m;", kOpens, true);
}

TEST_CASE("open and close: files leave nothing") {
  std::string path = "/var/tmp/lunar-test-XXXXXX";
  const int fd = mkstemp(path.data());
  REQUIRE(fd >= 0);
  REQUIRE(posix_fallocate(fd, 0, 8 * kMiB) == 0);
  opens_leave_nothing(path, kOpens);
  opens_leave_nothing("pmem:" + path, kOpens);
  close(fd);
  unlink(path.c_str());
}
