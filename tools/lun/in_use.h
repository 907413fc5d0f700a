// SPDX-License-Identifier: Apache-2.0
// Whether a device or file is being changed just now, and what it hangs on. The runtime checks
// ownership (superpipe/ownership.h).
// Threading: free functions, one thread. Changes nothing. May not be used by runtime/ (it
// allocates).
#pragma once
#include <string>

namespace lunar::tools {

// Whether a process changes its metadata, or formats it, just now.
bool path_being_changed(const std::string& path);
// What the device hangs on, as lspath's parent: the controller ("nvme0", "virtio3"), a loop
// device's file, or the disk that a file lies on. "-" when that cannot be told.
std::string parent_of(const std::string& path);

}  // namespace lunar::tools
