// SPDX-License-Identifier: Apache-2.0
// Exit codes of the subcommands of `lunar`. (`lunar run` has those of env(1): run/program.h.)
// Threading: free functions, no state.
#pragma once
#include <cerrno>
#include <cstdint>

namespace lunar::tools {

enum ExitCode : int {
  kExitDone = 0,
  kExitNo = 1,  // a key does not exist; a check found something, and no data is lost
  // wrong use, bad input, no consent, too little space, a place in use: nothing was changed
  kExitRefused = 2,
  kExitDamaged = 3,  // data or metadata cannot be read as it was written
  kExitFailed = 4,   // an I/O error or the like stopped the command
};

// The exit code for -errno of the runtime, for a command that has changed nothing.
inline ExitCode exit_code_of(int64_t error) {
  switch (-error) {
    case EBADMSG:
    case EUCLEAN:
      return kExitDamaged;
    case EIO:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ETIME:
    case ETIMEDOUT:
      return kExitFailed;
    default:
      return kExitRefused;
  }
}

}  // namespace lunar::tools
