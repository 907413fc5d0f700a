// SPDX-License-Identifier: Apache-2.0
// What a bench, or the demo, set up on the machine, written down before it exists, so that the next
// run can sweep away what a killed one left. One line each:
//   cgroup DIRECTORY | swapfile PATH | file PATH | directory PATH | zram NUMBER BOOT_ID
//   page-cluster, zswap or thp VALUE BOOT_ID
// Also the lock that lets only one of them run on a machine at a time.
//
// The state file lies in /var/lib/lunar (root) or /var/tmp (others; only a file owned by the caller
// is believed). Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/support/cgroup.h"

namespace lunar::tools {

inline constexpr const char *kZswapPath = "/sys/module/zswap/parameters/enabled",
                            *kThpPath = "/sys/kernel/mm/transparent_hugepage/enabled";

// Held for the life of the object. Throws std::runtime_error naming the holder.
class BenchLock {
 public:
  BenchLock();
  ~BenchLock();
  BenchLock(const BenchLock&) = delete;
  BenchLock& operator=(const BenchLock&) = delete;

 private:
  int fd_ = -1;
};

class SetupJournal {
 public:
  SetupJournal();  // reads the state file; pre: the BenchLock is held
  // Undoes what an earlier run recorded; one line a thing swept.
  std::vector<std::string> sweep();
  void record(const std::string& line);  // on disk when it returns; throws std::runtime_error
  void forget(const std::string& line);
  static std::string boot_id();

 private:
  bool undo(const std::string& line, std::string* said);
  void save() const;
  std::string path_;
  std::vector<std::string> lines_;
};

// A line that is in the journal for the life of the object.
class Recorded {
 public:
  Recorded(SetupJournal& journal, std::string line);  // as record()
  ~Recorded();
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  void keep() { line_.clear(); }  // also after that: the next run undoes it

 private:
  SetupJournal& journal_;
  std::string line_;
};

// A private directory, removed with all its files at the end. Its name begins with "lunar-bench-".
class WorkDirectory {
 public:
  WorkDirectory(SetupJournal& journal, const std::string& path);  // throws std::runtime_error
  ~WorkDirectory();
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  Recorded recorded_;
};

// A file, removed at the end.
class RecordedFile {
 public:
  RecordedFile(SetupJournal& journal, const std::string& path)
      : path_(path), recorded_(journal, "file " + path) {}
  ~RecordedFile();
  RecordedFile(const RecordedFile&) = delete;
  RecordedFile& operator=(const RecordedFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Recorded recorded_;
};

// The memory cgroup lunar-bench-PID-LAST_PART.
struct RecordedCgroup {
  RecordedCgroup(SetupJournal& journal, const CgroupPlace& place, const std::string& last_part,
                 uint64_t limit_bytes, bool swap);
  const std::string name;
  const Recorded recorded;
  const MemoryCgroup group;
};

// What a bench sets for the whole machine: "page-cluster", "zswap" or "thp". At the end it is set
// back.
class MachineSetting {
 public:
  MachineSetting(SetupJournal& journal, const std::string& kind);  // throws std::runtime_error
  ~MachineSetting();
  MachineSetting(const MachineSetting&) = delete;
  MachineSetting& operator=(const MachineSetting&) = delete;
  void set(const std::string& value);  // throws std::runtime_error

 private:
  std::string path_, before_, now_;
  std::optional<Recorded> recorded_;
};

}  // namespace lunar::tools
