// SPDX-License-Identifier: Apache-2.0
// The check of the machine before a bench sets anything up, and the LUN file of a system.
// Threading: one thread.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tools/bench/progress.h"
#include "tools/bench/setup_journal.h"

namespace lunar::tools {

struct BenchHost {
  std::unique_ptr<SetupJournal> journal;       // after its sweep
  std::string directory;                       // for files, on a disk
  std::string disk_stat;                       // of that disk; "": not known
  std::optional<CgroupPlace> cgroup;           // none: see `skipped`
  std::map<std::string, std::string> skipped;  // "swap", "cgroup", "disk_bytes": reason
};
// Sweeps the remains of a killed run, then checks the machine. pre: the BenchLock is held. Throws
// std::runtime_error if the bench cannot run at all.
BenchHost check_bench_host(const std::string& lun, uint64_t memory_bytes);

// Header and rounding of a LUN file, in addition to its LUN space.
constexpr uint64_t kLunOverheadBytes = 4 << 20;
// Makes a file lunar-bench-PID-NAME.lun with `bytes` of LUN space. It is written whole, because
// reads of holes do not reach the disk. Throws std::runtime_error, Interrupted.
std::unique_ptr<RecordedFile> make_lun_file(const BenchHost& host, const std::string& name,
                                            uint64_t bytes, Progress& progress);

}  // namespace lunar::tools
