// SPDX-License-Identifier: Apache-2.0
// Tells whether a process is changing the metadata of a device or file, and the device's parent.
// The runtime checks ownership (superpipe/ownership.h).
// Threading: free functions, one thread. Changes nothing.
#pragma once
#include <string>

namespace lunar::tools {

// True while a process formats the path or changes its metadata.
bool path_being_changed(const std::string& path);
// The parent in the sense of lspath: the controller ("nvme0", "virtio3"), a loop device's file, or
// the disk under a file. "-" if it is not known.
std::string parent_of(const std::string& path);

}  // namespace lunar::tools
