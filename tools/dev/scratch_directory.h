// SPDX-License-Identifier: Apache-2.0
// A private directory on a disk, removed with all its files at the end. It holds a locked file
// while its owner lives, by which the next run knows what a killed one left, and removes that (and
// its memory cgroup). Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <string>
#include <vector>

namespace lunar::tools {

class ScratchDirectory {
 public:
  // PARENT/lunar-demo-XXXXXX. Throws std::runtime_error (also when PARENT is a memory file system).
  explicit ScratchDirectory(const std::string& parent);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // The memory cgroup to remove with it if this process is killed.
  void note_cgroup(const std::string& directory);

  // Removes what dead owners left in `parent`; the names of what was removed.
  static std::vector<std::string> sweep(const std::string& parent);

 private:
  std::string path_;
  int lock_ = -1;
};

}  // namespace lunar::tools
