// SPDX-License-Identifier: Apache-2.0
// catch_main: main() for Catch2 v2, which makes its users define one; v3 brings its own
// (catch2-with-main) and does not build this file.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
