// SPDX-License-Identifier: Apache-2.0
// Which configuration a process trusts: the one rule for LUNAR_* and CFLSH_* variables and for config files.
//
//   variables     none in a process that has rights which its user does not have (AT_SECURE: a setuid or setgid
//                 program, one with file capabilities): all are as if they were not set, HOME too. /etc/lunar.conf is
//                 read as ever
//   config files  that belong to root or to the effective user, and that group and others may not write
//
// Threading: any. Allocates nothing.
#pragma once
#include "base/error.h"

namespace lunar {

bool environment_trusted();
// getenv, where the environment is trusted; else nullptr.
const char* environment_value(const char* name);
// An open config file: 0, or -EPERM with *why (its owner, or the users who may write to it).
[[nodiscard]] int config_file_trusted(int fd, const char* path, ErrorText* why);

}  // namespace lunar
