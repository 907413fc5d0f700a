// SPDX-License-Identifier: Apache-2.0
// The LUNAR command: STATS, and what can be said about keys (MEMORY, HOT, COLD, PIN, UNPIN, PREFETCH).
// Threading: the server's main thread.
#pragma once
#include "base/error.h"
#include "module_abi.h"

namespace lunar::redis {

// No other module has it.
bool commands_free(Context* context);
// Registers it. 0, or -EINVAL with *why.
[[nodiscard]] int commands_register(Context* context, ErrorText* why);
// Bytes of values that LUNAR PIN holds in DRAM.
unsigned commands_pinned_keys();

}  // namespace lunar::redis
