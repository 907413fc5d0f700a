// SPDX-License-Identifier: Apache-2.0
// Limits of the server that the module keeps lower than the user has them, because the LUN cannot
// take more: maxmemory, maxmemory-clients, proto-max-bulk-len. Each has two values: the user's own,
// and the one in force.
//
// CONFIG REWRITE (Sentinel issues it) writes the limit in force into the server's file, where a
// later start would take it for the user's. So the file also gets `lunar.limits`, "NAME OWN HOLDS
// ...": a start that finds HOLDS unchanged goes on with OWN; another value is the user's edit.
//
// Threading: the server's main thread.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

enum class Limit : unsigned { kData, kClients, kBulk };
constexpr unsigned kLimits = 3;

// Registers lunar.limits, before the server sets the module's configuration.
[[nodiscard]] bool limits_register(Context* context);
// Reads the limits in force, once the configuration is set. When the user changes one, `changed` is
// called inside that CONFIG SET.
void limits_start(Context* context, void (*changed)(Context*));

bool limit_known(Limit limit);    // the server has it
uint64_t limit_own(Limit limit);  // the user's. 0: none (kData, kClients)
uint64_t limit_holds(Limit limit);
// False: the server refuses.
[[nodiscard]] bool limit_set(Context* context, Limit limit, uint64_t bytes);
// A server that does not tell of changes is asked for its values.
void limits_poll(Context* context);

}  // namespace lunar::redis
