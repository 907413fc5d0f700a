// SPDX-License-Identifier: Apache-2.0
// LUNAR TOP [COUNT n]: the prefixes of keys that the gate has sampled (gate/prefixes.h).
// Threading: the server's main thread.
#pragma once
#include "module_abi.h"

namespace lunar::redis {

int top_command(Context* context, String** words, int count);

}  // namespace lunar::redis
