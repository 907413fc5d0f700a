// SPDX-License-Identifier: Apache-2.0
// The server's own configuration, as CONFIG GET shows it, and its changes. (A server accepts one
// subscriber per module and event.)
// Threading: the server's main thread.
#pragma once
#include <cstddef>
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

// False: the server has no such setting, or its value does not fit into `size` bytes.
[[nodiscard]] bool server_config_text(Context* context, const char* name, char* out, size_t size);
[[nodiscard]] bool server_config_number(Context* context, const char* name, uint64_t* out);
// `changed` is called inside the CONFIG SET that changed `name`. At most kWatchesMax names. False:
// the server has no event for that, or there are too many names.
constexpr unsigned kWatchesMax = 16;
[[nodiscard]] bool server_config_watch(Context* context, const char* name,
                                       void (*changed)(Context*));

}  // namespace lunar::redis
