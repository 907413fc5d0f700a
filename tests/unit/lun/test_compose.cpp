// SPDX-License-Identifier: Apache-2.0
// Physical and virtual LUNs over stripes and paths.
#include <errno.h>

#include "composite.h"

using namespace lunar;
using namespace composite;

TEST_CASE(
    "compose: virtual LUNs lie on a stripe, paths and a stripe of paths as on any device, and are "
    "there again") {
  const auto name = [] { return named("16m", fresh()); };
  const std::string twice = name();
  const std::string one = name(), other = name();
  for (const std::string& uri :
       {"stripe:" + name() + ";" + name(), "paths:" + twice + ";" + twice + ",seed=2",
        "stripe:(paths:" + one + ";" + one + ");(paths:" + other + ";" + other + ")"}) {
    INFO(uri);
    ErrorText why;
    std::vector<char> page(kPage, 'v');
    for (int round = 0; round < 2; ++round) {
      PhysicalLun* physical = nullptr;
      const int opened =
          physical_open(uri.c_str(), round ? Format::kNever : Format::kIfBlank, &physical, &why);
      INFO(why.text);
      REQUIRE(opened == 0);
      VirtualOptions options;
      options.name = "one";
      options.create = round == 0;
      options.size_bytes = 2 * kMiB;
      VirtualLun* lun = nullptr;
      REQUIRE(VirtualLun::open(physical, options, &lun, &why) == 0);
      if (round) page.assign(kPage, 0);
      CHECK(io(lun, round ? Op::kRead : Op::kWrite, kMiB, page.data()) == kPage);
      CHECK(page[17] == 'v');
      if (round) CHECK(DeviceModel(lun, 0, 2 * kMiB, seed()).holds(200));
      device_close(lun);
    }
  }
}

TEST_CASE("compose: physical_open refuses a #NAME, and what is there already is not formatted") {
  ErrorText why;
  PhysicalLun* physical = nullptr;
  CHECK(physical_open("sim:16m#one", Format::kIfBlank, &physical, &why) == -EINVAL);
  CHECK(std::string(why.text).find("#NAME") != std::string::npos);
  const std::string a = named("16m", fresh()), b = named("16m", fresh());
  CHECK(physical_open(("stripe:" + a + ";" + b).c_str(), Format::kNever, &physical, &why) ==
        -ENODEV);
  device_close(open("stripe:" + a + ";" + b));
  // a member belongs to its stripe
  CHECK(physical_open(a.c_str(), Format::kIfBlank, &physical, &why) < 0);
  CHECK(physical == nullptr);
}

// As an earlier call may have left the stack.
[[gnu::noinline]] static void soil_stack() {
  volatile char bytes[64 * kKiB];
  for (volatile char& byte : bytes) byte = 0x5a;
}

TEST_CASE("compose: of several scratch LUNs, a virtual one whose device is not there is refused") {
  const std::string there = fresh(), here = "sim:64m,name=" + there;
  for (const std::string& uris :
       {std::string("/nowhere/a#one /nowhere/b#two"), here + " /nowhere/b#two",
        std::string(4100, 'a') + "#one /nowhere/b#two"}) {
    ErrorText why;
    Device* device = nullptr;
    soil_stack();
    CHECK(scratch_open(uris.c_str(), {}, &device, &why) < 0);
    CHECK(device == nullptr);
  }
}
