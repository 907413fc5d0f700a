// SPDX-License-Identifier: Apache-2.0
// The gate redirects calls of a program that is linked to a fixed address and also takes their
// address: pointers to the function hold the program's own jump then, which goes where the slot
// says, so to the replacement. What the replacement calls has to be the function itself.
// Threading: main.
#include <dlfcn.h>
#include <strings.h>

#include "elf/program_got.h"
#include "tests/catch.h"

namespace {

using Compare = int (*)(const char*, const char*);
Compare g_before = nullptr;
int g_calls = 0, g_inside = 0;
Compare g_pointer = nullptr;

int replacement(const char* a, const char* b) {
  REQUIRE(++g_inside == 1);
  ++g_calls;
  const int order = g_before(a, b);
  --g_inside;
  return order;
}

const char* object_with(Compare function) {
  Dl_info where;
  return dladdr(reinterpret_cast<void*>(function), &where) != 0 ? where.dli_fname : "";
}

}  // namespace

TEST_CASE("calls and pointers of a program at a fixed address go to the replacement", "[gate]") {
  g_pointer = strcasecmp;
  const char* own = object_with(replacement);
  REQUIRE(object_with(g_pointer) ==
          own);  // else the linker gives no such jumps, and this shows nothing
  g_before = reinterpret_cast<Compare>(lunar::program_calls("strcasecmp"));
  REQUIRE((g_before != nullptr && object_with(g_before) != own));
  void* before = nullptr;
  lunar::ErrorText why;
  REQUIRE(lunar::program_redirect("strcasecmp", reinterpret_cast<void*>(replacement), &before,
                                  &why) == 0);
  REQUIRE(before == reinterpret_cast<void*>(g_before));
  REQUIRE((strcasecmp("a word", "A Word") == 0 && g_calls == 1));
  REQUIRE((g_pointer("a word", "another") != 0 && g_calls == 2));
  REQUIRE(lunar::program_redirect("strcasecmp", reinterpret_cast<void*>(g_before), &before, &why) ==
          0);
  REQUIRE((strcasecmp("a word", "A Word") == 0 && g_calls == 2));
}
