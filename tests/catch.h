// SPDX-License-Identifier: Apache-2.0
// catch.h: the one include of every Catch2 test. Debian 12 has Catch2 v2, Debian 13 v3; their
// headers differ. Tests include "tests/catch.h" and use the macros both versions have.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>

// Ends a test case early because this host lacks something. `capability` is one word tools/test
// knows (userfaultfd, io_uring, ...; see EXPECTED in tests/support/watch.py), `reason` a sentence.
// Pre: in a TEST_CASE body.
#define LUNAR_SKIP(capability, reason)                     \
  do {                                                     \
    std::printf("skip: %s: %s\n", (capability), (reason)); \
    std::fflush(stdout);                                   \
    SUCCEED("skip: " capability);                          \
    return;                                                \
  } while (0)
