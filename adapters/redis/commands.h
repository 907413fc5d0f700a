// SPDX-License-Identifier: Apache-2.0
// The LUNAR command: STATS, TOP, HELP, and subcommands about keys (MEMORY, HOT, COLD, PREFETCH,
// PIN, UNPIN). Threading: the server's main thread.
#pragma once
#include "base/error.h"
#include "module_abi.h"

namespace lunar::redis {

// Whether the name is free: no other module has registered such a command.
bool commands_free(Context* context);
// Registers it. 0, or -EINVAL with *why.
[[nodiscard]] int commands_register(Context* context, ErrorText* why);

}  // namespace lunar::redis
