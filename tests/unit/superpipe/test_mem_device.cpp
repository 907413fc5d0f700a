// SPDX-License-Identifier: Apache-2.0
// mem: grows at its end and never moves, is accessed in place, and its refusals say why.
// device_conformance tests the behaviour that all devices share.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/units.h"
#include "superpipe/device.h"
#include "superpipe/registry.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"

using namespace lunar;
using namespace lunar_test;

TEST_CASE("mem: begins empty, grows in place, and what is there stays") {
  Device* device = opened("mem:,limit=1g", kRaw);
  CHECK(device->size_bytes() == 0);
  CHECK(device->map(DeviceOffset{0}, 0) != nullptr);
  CHECK(device->map(DeviceOffset{0}, 1) == nullptr);
  REQUIRE(device->grow(5000) == 0);
  CHECK(device->size_bytes() == 8192);
  auto* first = static_cast<char*>(device->map(DeviceOffset{0}, 8192));
  REQUIRE(first);
  memset(first, 'a', 8192);
  REQUIRE(device->grow(kGiB) == 0);
  CHECK(device->map(DeviceOffset{0}, kGiB) == first);
  CHECK(first[8191] == 'a');
  CHECK(first[8192] == 0);
  first[kGiB - 1] = 'z';
  CHECK(device->grow(4096) == 0);  // it never shrinks
  CHECK(device->size_bytes() == kGiB);
  CHECK(device->grow(kGiB + 1) == -ENOSPC);
  device_close(device);
}

TEST_CASE("mem: reserve makes the memory be there, release gives it back as zeros") {
  Device* device = opened("mem:8m", kRaw);
  auto* at = static_cast<char*>(device->map(DeviceOffset{0}, 8 * kMiB));
  REQUIRE(at);
  const auto resident = [&] {
    unsigned char pages[2048];
    REQUIRE(mincore(at, 8 * kMiB, pages) == 0);
    unsigned count = 0;
    for (unsigned char page : pages) count += page & 1;
    return count;
  };
  REQUIRE(device->reserve(DeviceOffset{kMiB}, kMiB) == 0);
  const unsigned reserved = resident();  // huge pages may bring more
  CHECK(reserved >= 256);
  CHECK(device->reserve(DeviceOffset{8 * kMiB}, 1) == -ENOSPC);
  memset(at + kMiB, 'x', kMiB);
  device->release(DeviceOffset{kMiB + 100}, kMiB - 100);  // whole pages only
  CHECK(at[kMiB + 4095] == 'x');
  CHECK(at[kMiB + 4096] == 0);
  CHECK(resident() <= reserved - 254);
  device_close(device);
}

TEST_CASE("mem: grows while others use it") {
  Device* device = opened("mem:1m,limit=512m", kRaw);
  std::optional<Attached> context(device);
  std::atomic<bool> end{false};
  std::thread grower([&] {
    for (uint64_t bytes = kMiB; bytes <= 512 * kMiB; bytes += kMiB) {
      if (device->grow(bytes) != 0) abort();
    }
    end.store(true);
  });
  Pages page(1);
  uint64_t rounds = 0;
  do {
    const uint64_t last = device->size_bytes() - kPage;
    memset(page.base, 'g', kPage);
    const iovec part = {page.base, kPage};
    REQUIRE(one(*context, command_of(Op::kWrite, last, &part, 1)) == kPage);
    auto* at = static_cast<char*>(device->map(DeviceOffset{last}, kPage));
    REQUIRE((at && at[0] == 'g' && at[kPage - 1] == 'g'));
    ++rounds;
  } while (!end.load());
  grower.join();
  CHECK(rounds > 0);
  CHECK(device->size_bytes() == 512 * kMiB);
  context.reset();
  device_close(device);
}

TEST_CASE("mem: says what it can and what it refuses") {
  Device* device = opened("mem:1m", kRaw);
  const Capabilities can = device->capabilities();
  CHECK((can.discard && can.instant && !can.persistent));
  CHECK(can.fua == Fua::kFree);
  CHECK(std::string(device->kind()) == "mem");
  const pid_t child = fork();
  if (child == 0) {  // its copy is its own
    memset(device->map(DeviceOffset{0}, 4096), 'c', 4096);
    _exit(0);
  }
  int status = 1;
  CHECK((waitpid(child, &status, 0) == child && status == 0));
  CHECK(*static_cast<char*>(device->map(DeviceOffset{0}, 4096)) == 0);
  device_close(device);
  CHECK(has(refused("mem:12q", kRaw, -EINVAL), "write mem:[SIZE][,limit=SIZE]"));
  CHECK(has(refused("mem:1m,colour=3", kRaw, -EINVAL), "known: limit"));
  CHECK(has(refused("mem:1m,limit=x", kRaw, -EINVAL), "limit needs a size"));
  CHECK(has(refused("mem:2m,limit=1m", kRaw, -ENOSPC), "give a larger limit"));
  CHECK(has(refused("mem:,limit=1m", {.want_bytes = 2 * kMiB, .scratch = false}, -ENOSPC),
            "give a larger limit"));
  CHECK(has(refused("mem:1m", {}, -ENOTSUP), "is memory itself"));
}
