// SPDX-License-Identifier: Apache-2.0
// See real_calls.h.
#include "real_calls.h"

namespace lunar::preload {

constinit RealCalls g_real;

void real_calls_prepare() {
#define LUNAR_REAL(name, symbol, result, parameters) look_up(g_real.name, symbol);
#include "real_calls.def"
#undef LUNAR_REAL
}

}  // namespace lunar::preload
