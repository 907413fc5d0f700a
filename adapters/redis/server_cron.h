// SPDX-License-Identifier: Apache-2.0
// Functions that run in each of the server's cron loops (`hz`, by default ten times a second). A
// server accepts one subscriber per module and event, and does not ask a module that holds a timer
// whether it may be unloaded. Threading: the server's main thread.
#pragma once
#include "module_abi.h"

namespace lunar::redis {

constexpr unsigned kCronMax = 8;
// False: the server has no such event, or there are kCronMax already.
[[nodiscard]] bool server_cron_add(Context* context, void (*function)(Context*));

}  // namespace lunar::redis
