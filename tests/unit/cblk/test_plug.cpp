// SPDX-License-Identifier: Apache-2.0
// When asynchronous commands of the block library are held for company, and when no longer.
#include "tests/catch.h"

#include "cblk/plug.h"

using lunar::cblk::Plug;

namespace {

constexpr uint32_t kBusy = 100;  // commands at the device

// Commands until they go together.
uint32_t held_together(Plug& plug) {
  uint32_t count = 1;
  while (plug.holds(kBusy)) ++count;
  (void)plug.pull();
  return count;
}

}  // namespace

TEST_CASE("a device with little to do gets each command at once") {
  Plug plug;
  for (uint32_t at_device = 0; at_device < 16; ++at_device) REQUIRE(!plug.holds(at_device));
  REQUIRE(plug.held() == 0);
}

TEST_CASE("a busy device gets several together, and never more than a quarter of what it has") {
  Plug plug;
  REQUIRE(held_together(plug) == 8);
  for (uint32_t count = 1; plug.holds(16); ++count) REQUIRE(count < 4);
  REQUIRE(!plug.pull());
}

TEST_CASE("a program that does not come back gets its next commands sent at once, for longer each time") {
  Plug plug;
  uint32_t at_once[2];
  for (uint32_t& count : at_once) {
    REQUIRE(plug.holds(kBusy));
    REQUIRE(!plug.is_late());
    lunar::sys::sleep_ns(2'000'000);
    REQUIRE(plug.is_late());
    REQUIRE(plug.pull());
    REQUIRE(plug.held() == 0);
    for (count = 0; !plug.holds(kBusy); ++count) REQUIRE(count < 10000);
    (void)plug.pull();
  }
  REQUIRE(at_once[0] >= 50);
  REQUIRE(at_once[1] > at_once[0]);
}
