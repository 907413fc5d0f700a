// SPDX-License-Identifier: Apache-2.0
// Registry of descriptors with locks that forked children must not keep. A child forked while one
// is registered closes its copy (an atfork handler), so that the lock ends with the process that
// took it, however that process ends. Registers only descriptors in the program's own table, which
// is the one a child inherits. They are registered there as Lunar's own (sys/proc.h), so that a
// file opened with O_DIRECT for its locks does not count as the program's. Threading: any. Not for
// the fault path.
#pragma once

namespace lunar {

[[nodiscard]] int register_lock_fd(int fd);  // 0 or -ENOMEM
void unregister_lock_fd(int fd);  // call before closing it; does nothing if it is not registered

}  // namespace lunar
