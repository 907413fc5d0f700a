// SPDX-License-Identifier: Apache-2.0
// Switches for tests. Each removes one protection, to prove that a test fails without it, or holds
// a thread between two steps. Set as options named test_NAME (lunar_config.options).
//
// They exist only in the runtime that the tests link (LUNAR_TEST_SWITCHES, see
// runtime/meson.build). In shipped code each is a constant, no option has its name, and its
// branches are compiled out. The few sources that read a switch are compiled twice: list a new one
// in `switched_sources` of its meson.build. May not be read in a header: objects of both kinds are
// linked together.
#pragma once
#include <cstdint>

namespace lunar {

struct TestSwitches {
#define LUNAR_SWITCH_BOOL(name, help) bool name = false;
#define LUNAR_SWITCH_UNSIGNED(name, value, help) uint64_t name = 0;
#include "base/test_switches.def"
#undef LUNAR_SWITCH_BOOL
#undef LUNAR_SWITCH_UNSIGNED
};

#ifdef LUNAR_TEST_SWITCHES
extern TestSwitches test_switches;
#else
inline constexpr TestSwitches test_switches{};
#endif

}  // namespace lunar
