// SPDX-License-Identifier: Apache-2.0
// The module's settings, their sources, and `CONFIG GET|SET lunar.*`.
//
// Precedence: default < config file of Lunar < environment (LUNAR_*) < module arguments
// (`loadmodule ... dram 4gb`) < `lunar.*` lines of the server's configuration. dram, forks, gate
// and gate-hold-ms can change at run time; the others take effect only at the start.
// Threading: the server's main thread.
#pragma once
#include "base/error.h"
#include "config/options.h"
#include "module_abi.h"

namespace lunar::redis {

Options& settings();

// Reads environment and arguments. 0 or -errno with *why.
[[nodiscard]] int settings_load(String** arguments, int count, ErrorText* why);
// Registers lunar.* and lets the server set them from its configuration. 0, or -EINVAL (the server
// has logged why).
[[nodiscard]] int settings_register(Context* context);

}  // namespace lunar::redis
