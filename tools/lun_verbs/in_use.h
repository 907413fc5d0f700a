// SPDX-License-Identifier: Apache-2.0
// Whether somebody uses a device or file, asked before anything on it is erased; and what it hangs on.
// Threading: free functions, one thread. Changes nothing. May not be used by runtime/ (it allocates).
#pragma once
#include <string>

namespace lunar::tools {

// True with a few words in *who: mounted, swap, part of another device, a loop device's file; `locks`: or locked by a process.
bool path_in_use(const std::string& path, bool locks, std::string* who);
// Whether a process has a lock on it: it is a LUN in use, or being formatted just now.
bool path_locked(const std::string& path);
// What the device hangs on, as lspath's parent: the controller ("nvme0", "virtio3"), a loop device's file, or the disk that a
// file lies on. "-" when that cannot be told.
std::string parent_of(const std::string& path);

}   // namespace lunar::tools
