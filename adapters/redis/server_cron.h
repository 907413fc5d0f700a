// SPDX-License-Identifier: Apache-2.0
// Functions that run in each of the server's cron loops (`hz`, by default ten times a second). A
// server accepts one subscriber per module and event. (A repeated timer would not do: a server
// refuses to unload a module with a timer before it asks the module.) Threading: the server's main
// thread.
#pragma once
#include "module_abi.h"

namespace lunar::redis {

constexpr unsigned kCronMax = 8;
// False: the server has no such event, or there are kCronMax already.
[[nodiscard]] bool server_cron_add(Context* context, void (*function)(Context*));

}  // namespace lunar::redis
