// SPDX-License-Identifier: Apache-2.0
// The configuration that a process trusts: one rule for LUNAR_* and CFLSH_* variables and for
// config files.
//
//   variables     all, but in a process that has rights which its user does not have (AT_SECURE: a
//                 setuid or setgid program, or one with file capabilities): there they all count as
//                 not set, HOME too. /etc/lunar.conf is read there as well
//   config files  those that belong to root or to the effective user, without write permission for
//                 group and others
//
// Threading: any. Allocates nothing.
#pragma once
#include "base/error.h"

namespace lunar {

bool environment_trusted();
// getenv if the environment is trusted, else nullptr.
const char* environment_value(const char* name);
// An open config file: 0, or -EPERM with *why (its owner, or the users who may write to it).
[[nodiscard]] int config_file_trusted(int fd, const char* path, ErrorText* why);

}  // namespace lunar
