// SPDX-License-Identifier: Apache-2.0
// The base of every other test: the runtime is linked once, its version is readable, and the host's
// page size is valid. Single-threaded; touches no LUN.
#include <unistd.h>

#include "pager/pager.h"
#include "sys/mem.h"
#include "tests/catch.h"

TEST_CASE("the page is the system's page") {
  REQUIRE(lunar::sys::page_bytes() == static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

TEST_CASE("nothing is created or activated before it is asked for") {
  REQUIRE_FALSE(lunar::pager_created());
  REQUIRE_FALSE(lunar::pager_active());
}
