// SPDX-License-Identifier: Apache-2.0
// The settings of a URI: SCHEME:PATH,key=value,key=value. A path that exists with that literal name
// wins over settings. Threading: no state; any thread, at open only.
#pragma once
#include <cstddef>

#include "base/error.h"

namespace lunar {

enum class Choice : unsigned char { kUnset, kAuto, kOn, kOff };

struct SettingSpec {
  const char* key;
  Choice* choice;  // "auto", "on", "off"; or nullptr:
  char* text;      //   any text, which is copied here
  size_t text_size;
};

// Splits what follows the scheme in `uri` (`rest`) into the path (copied, NUL-terminated) and
// settings, by `specs`. 0 or -errno with *why: an unknown key (the known ones are named), a bad
// value, a path that is too long.
[[nodiscard]] int settings_parse(const char* uri, const char* rest, const SettingSpec* specs,
                                 unsigned count, char* path, size_t path_size, ErrorText* why);

}  // namespace lunar
