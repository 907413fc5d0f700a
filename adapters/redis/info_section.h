// SPDX-License-Identifier: Apache-2.0
// `INFO lunar`; LUNAR STATS replies with the same figures. Threading: the server's main thread.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

struct Figure {
  const char* name;  // without the section's prefix
  enum class Kind : uint8_t { kInteger, kReal, kText } kind;
  uint64_t integer;
  double real;
  const char* text;
};
constexpr unsigned kFiguresMax = 96;

// Fills out[0..kFiguresMax) and returns how many there are.
unsigned figures(Figure* out);
[[nodiscard]] int info_register(Context* context);

}  // namespace lunar::redis
