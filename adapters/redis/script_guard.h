// SPDX-License-Identifier: Apache-2.0
// A script that has written may go on past maxmemory: the server does not stop it in the middle.
// With the LUN nearly full that would end in an allocation that fails, so from there on the
// script's next command that may allocate is refused, by a name that no server knows: an error ends
// the script. What it has written stays, as after any error in a script.
//
// Never on a replica: what its master has done it must do.
//
// Threading: the server's main thread.
#pragma once
#include "module_abi.h"

namespace lunar::redis {

// Learns from the server which commands may allocate (`denyoom`).
void script_guard_start(Context* context);
// For the command that the filter is about to pass on. pre: there is next to no LUN space left.
void script_guard(Context* context, CommandFilterContext* command);

}  // namespace lunar::redis
