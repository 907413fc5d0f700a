// SPDX-License-Identifier: Apache-2.0
// The holders of a lock, from /proc.
#include <fcntl.h>
#include <unistd.h>

#include "superpipe/lock_holders.h"
#include "sys/file.h"
#include "tests/catch.h"
#include "tests/support/lun_file.h"

using namespace lunar;

TEST_CASE("the locks of an owner of 1,024 LUNs are all seen") {
  constexpr uint64_t kFirst = uint64_t{1} << 62, kLuns = 1024;
  const lunar_test::LunFile file(4096);
  const int owner = open(file.path.c_str(), O_RDWR | O_CLOEXEC),
            other = open(file.path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(owner >= 0);
  REQUIRE(other >= 0);
  const auto any_locks = [&](uint64_t lun) {
    const LockedBytes bytes = {kFirst + 2 * lun, 2};
    return any_process_locks(&other, 1, &bytes, 1);
  };
  CHECK_FALSE(any_locks(0));
  for (uint64_t lun = 0; lun < kLuns;
       ++lun)  // not next to each other, which would make them one lock
    REQUIRE(sys::lock_range(owner, sys::RangeLock::kShared, kFirst + 2 * lun, 1) == 0);
  for (const uint64_t lun : {uint64_t{0}, uint64_t{77}, uint64_t{100}, uint64_t{500}, kLuns - 1})
    CHECK(any_locks(lun));
  CHECK_FALSE(any_locks(kLuns));
  close(owner);
  CHECK_FALSE(any_locks(77));
  close(other);
}
