// SPDX-License-Identifier: Apache-2.0
// What a bench asks of the machine before it sets anything up, what it must skip there, and the LUN
// file of a backend. Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tools/bench/progress.h"
#include "tools/bench/setup_journal.h"

namespace lunar::tools {

struct BenchHost {
  std::unique_ptr<SetupJournal> journal;       // swept
  std::string directory;                       // for files, on a disk
  std::string disk_stat;                       // of that disk; "" when it cannot be told
  std::optional<CgroupPlace> cgroup;           // none: skipped says why
  std::map<std::string, std::string> skipped;  // "swap", "cgroup", "disk_bytes": reason
};
// pre: the BenchLock is held. Throws std::runtime_error when the bench cannot run at all.
BenchHost check_bench_host(const std::string& lun, uint64_t memory_bytes);

// of a LUN file: header and rounding, above what is asked for as LUN space
constexpr uint64_t kLunOverheadBytes = 4 << 20;
// A new file lunar-bench-PID-NAME.lun of that and `bytes`, written whole: holes are not read from
// the disk. Throws std::runtime_error, Interrupted.
std::unique_ptr<RecordedFile> make_lun_file(const BenchHost& host, const std::string& name,
                                            uint64_t bytes, Progress& progress);

}  // namespace lunar::tools
