// SPDX-License-Identifier: Apache-2.0
// Programs that open and close devices for as long as they live: no resource of a device stays.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "base/units.h"
#include "lun/compose.h"
#include "sys/arena.h"
#include "tests/catch.h"
#include "tests/support/own_status.h"

using namespace lunar;

namespace {

constexpr int kOpens = 20'000;

int open_once(const std::string& uri) {
  DeviceOptions options;
  options.scratch = false;
  Device* device = nullptr;
  ErrorText why;
  const int status = raw_open(uri.c_str(), options, Format::kIfBlank, &device, &why);
  if (status == 0) device_close(device);
  return status;
}

// Opens and closes a device `opens` times, after some rounds that create what stays.
void opens_leave_nothing(const std::string& uri, int opens, bool refused = false) {
  INFO(uri);
  const int expected = open_once(uri);
  REQUIRE((expected < 0) == refused);
  for (int i = 0; i < 64; ++i) REQUIRE(open_once(uri) == expected);
  const size_t data = lunar_test::status_kib("VmData"), resident = lunar_test::status_kib("VmRSS"),
               mapped = arena_bytes();
  int failed = 0;
  for (int i = 0; i < opens; ++i) failed += open_once(uri) != expected;
  CHECK(failed == 0);
  CHECK(arena_bytes() == mapped);
  CHECK(lunar_test::status_kib("VmData") < data + 512);
  CHECK(lunar_test::status_kib("VmRSS") < resident + 512);
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
