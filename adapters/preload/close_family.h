// SPDX-License-Identifier: Apache-2.0
// close, close_range, dup2 and dup3 by number, for syscall(). Threading: any thread.
#pragma once

namespace lunar::preload {

// *result: as syscall() returns it, with errno. False: the number is none of these calls.
bool close_call(long number, const long (&arguments)[6], long* result);

}  // namespace lunar::preload
