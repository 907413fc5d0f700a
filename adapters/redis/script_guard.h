// SPDX-License-Identifier: Apache-2.0
// A script that has written may exceed maxmemory, because the server does not stop it in the
// middle. When the LUN is nearly full, an allocation would fail in the end. So the guard replaces
// the name of the script's next command that may allocate by one that no server knows: the error
// ends the script. Its writes so far stay, as after any error in a script.
//
// The guard does nothing on a replica, which must do everything that its master has done.
//
// Threading: the server's main thread.
#pragma once
#include "module_abi.h"

namespace lunar::redis {

// Learns from the server which commands may allocate (`denyoom`).
void script_guard_start(Context* context);
// Called for a command that the filter is about to pass on. pre: the LUN is nearly full.
void script_guard(Context* context, CommandFilterContext* command);

}  // namespace lunar::redis
