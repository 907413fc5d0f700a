// SPDX-License-Identifier: Apache-2.0
// SYS_execve and SYS_execveat, for syscall(). Threading: any thread.
#pragma once

namespace lunar::preload {

// Returns only if the call fails: -1 with errno.
long exec_by_call(long number, const long (&arguments)[6]);

}  // namespace lunar::preload
