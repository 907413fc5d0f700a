// SPDX-License-Identifier: Apache-2.0
// The journal of a bench or the demo: everything that it sets up on the machine is recorded first,
// so that the next run can undo the setup of a killed run. One line each:
//   cgroup DIRECTORY | swapfile PATH | file PATH | directory PATH | zram NUMBER BOOT_ID
//   page-cluster, zswap or thp VALUE BOOT_ID
// Also the lock that allows only one of them at a time on a machine.
//
// The journal is in /var/lib/lunar (root) or /var/tmp (others, who only use a file that they own).
// Threading: one thread.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tools/support/cgroup.h"

namespace lunar::tools {

inline constexpr const char *kZswapPath = "/sys/module/zswap/parameters/enabled",
                            *kThpPath = "/sys/kernel/mm/transparent_hugepage/enabled";

// The object holds the lock. Throws std::runtime_error that names the holder.
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
  SetupJournal();  // reads the file; pre: the BenchLock is held
  // Undoes the records of an earlier run. Returns one line for each.
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

// The journal has the line as long as the object exists.
class Recorded {
 public:
  Recorded(SetupJournal& journal, std::string line);  // as record()
  ~Recorded();
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  void keep() { line_.clear(); }  // the line stays, and the next run undoes it

 private:
  SetupJournal& journal_;
  std::string line_;
};

// A private directory. The destructor removes it with all its files. pre: its name begins with
// "lunar-bench-".
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

// A file, which the destructor removes.
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

// A setting of the whole machine: "page-cluster", "zswap" or "thp". The destructor restores it.
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
