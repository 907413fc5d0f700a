// SPDX-License-Identifier: Apache-2.0
// io_uring_setup and io_uring_register by number, for syscall(). Threading: any thread.
#pragma once

namespace lunar::preload {

// As syscall() returns it.
long ring_by_call(long number, const long (&arguments)[6]);

}  // namespace lunar::preload
