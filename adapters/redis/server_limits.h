// SPDX-License-Identifier: Apache-2.0
// Limits of the server that the module keeps below the user's values, because the LUN cannot hold
// more: maxmemory, maxmemory-clients, proto-max-bulk-len. Each has two values: the user's own, and
// the one in force.
//
// CONFIG REWRITE (Sentinel issues it) writes the limit in force into the server's file, where a
// later start would take it for the user's. So the file also gets `lunar.limits`, "NAME OWN HOLDS
// ...". If a start finds HOLDS unchanged, it uses OWN; any other value is an edit by the user.
//
// Threading: the server's main thread.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

enum class Limit : unsigned { kData, kClients, kBulk };
constexpr unsigned kLimits = 3;

// Registers lunar.limits. Called before the server sets the module's configuration.
[[nodiscard]] bool limits_register(Context* context);
// Reads the limits in force. Called after the configuration is set. When the user changes a limit,
// `changed` is called inside that CONFIG SET.
void limits_start(Context* context, void (*changed)(Context*));

bool limit_known(Limit limit);      // the server has it
uint64_t limit_own(Limit limit);    // the user's; 0: no limit (kData, kClients)
uint64_t limit_holds(Limit limit);  // in force
// False: the server refuses.
[[nodiscard]] bool limit_set(Context* context, Limit limit, uint64_t bytes);
// Reads the values from a server that has no event for changes.
void limits_poll(Context* context);

}  // namespace lunar::redis
