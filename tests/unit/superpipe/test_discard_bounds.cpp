// SPDX-License-Identifier: Apache-2.0
// A discard that reaches beyond the end of a block device fails, and discards nothing.
#include <errno.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>

#include "superpipe/device.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"
#include "tests/support/loop_device.h"

using namespace lunar;
using namespace lunar_test;

TEST_CASE("block: a discard across the end is refused, by each way, one up to the end is made") {
  if (geteuid() != 0) LUNAR_SKIP("root", "loop devices need root");
  const Directory directory;
  const Loop loop(directory.file("disk", "", 32 * kMiB));
  if (loop.name.empty()) LUNAR_SKIP("loop", "no free loop device");
  Device* device = opened(loop.name);
  if (!device->capabilities().discard) {
    device_close(device);
    LUNAR_SKIP("loop", "this loop device cannot discard");
  }
  const uint64_t last = device->size_bytes() - kPage;
  const Pages pages(1);
  for (const bool by_context : {false, true}) {
    std::optional<Attached> attached;
    if (by_context) attached.emplace(device);
    Context* context = attached ? attached->context : nullptr;
    const auto last_page_is = [&](int fill) {
      REQUIRE(io(device, Op::kRead, last, pages.base, kPage, context) == kPage);
      return pages.base[0] == fill && pages.base[kPage - 1] == fill;
    };
    memset(pages.base, 7, kPage);
    REQUIRE(io(device, Op::kWrite, last, pages.base, kPage, context) == kPage);
    CHECK(io(device, Op::kDiscard, last, nullptr, 2 * kPage, context) == -EINVAL);
    CHECK(io(device, Op::kDiscard, last + kPage, nullptr, kPage, context) == -EINVAL);
    CHECK(io(device, Op::kDiscard, last + 2 * kPage, nullptr, kPage, context) == -EINVAL);
    CHECK(last_page_is(7));
    CHECK(io(device, Op::kDiscard, last, nullptr, kPage, context) == 0);
    CHECK(last_page_is(0));
  }
  device_close(device);
}
