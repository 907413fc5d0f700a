// SPDX-License-Identifier: Apache-2.0
// Descriptors with a lock that forked children must not get: a child forked while one is listed closes its copy (an atfork handler), so
// that the lock ends with the process that took it, however that ends. Listed are only those of the program's own descriptor table, which is the
// one a child gets.
// Threading: any. Not for the fault path.
#pragma once

namespace lunar {

void register_lock_fd(int fd);
void unregister_lock_fd(int fd);   // before it is closed; fine when it is not listed

}  // namespace lunar
