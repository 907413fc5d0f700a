// SPDX-License-Identifier: Apache-2.0
// See bench_host.h.
#include "tools/bench/bench_host.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>

#include "base/units.h"
#include "sys/proc.h"
#include "tools/bench/swap_file.h"
#include "tools/support/host.h"
#include "tools/support/process.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {

// The directory of the LUN, if it has one.
std::string directory_for_files(const std::string& lun) {
  struct stat info{};
  if (stat(lun.c_str(), &info) != 0) return "/var/tmp";
  if (S_ISDIR(info.st_mode)) return lun;
  if (S_ISREG(info.st_mode) && lun.find('/') != std::string::npos)
    return lun.substr(0, lun.rfind('/') + 1);
  return "/var/tmp";
}
}  // namespace

BenchHost check_bench_host(const std::string& lun, uint64_t memory_bytes) {
  BenchHost host;
  host.journal = std::make_unique<SetupJournal>();
  for (const std::string& line : host.journal->sweep())
    fmt::print(stderr, "lunar: bench: {}\n", line);
  host.directory = directory_for_files(lun);
  const uint64_t available = sys::machine_memory_bytes("MemAvailable");
  const uint64_t wanted = memory_bytes + 64 * kMiB;
  if (available < wanted) {
    throw std::runtime_error(fmt::format(
        "{} MiB of memory are available, {} are needed for all systems at once: use a smaller "
        "--dram",
        available / kMiB, wanted / kMiB));
  }
  FileSystem system;
  if (probe_file_system(host.directory, &system) == 0 && system.in_memory) {
    throw std::runtime_error(fmt::format(
        "{} is a memory file system: give a directory on a disk by --lun DIR", host.directory));
  }
  std::string why;
  host.disk_stat = disk_stat_path(host.directory, &why);
  if (host.disk_stat.empty()) host.skipped["disk_bytes"] = why + ": bytes moved cannot be checked";
  const CgroupPlace place = find_cgroup_place();
  if (geteuid() != 0) {
    host.skipped["cgroup"] =
        "making a memory cgroup needs root (sudo): Lunar runs under its own cap only";
    host.skipped["swap"] = "swap and a memory cgroup need root: run with sudo";
  } else if (place.version == 0) {
    host.skipped["cgroup"] = place.why_not;
    host.skipped["swap"] = "no memory cgroup to bound it: " + place.why_not;
  } else {
    host.cgroup = place;
  }
  return host;
}

std::unique_ptr<RecordedFile> make_lun_file(const BenchHost& host, const std::string& name,
                                            uint64_t bytes, Progress& progress) {
  constexpr size_t kHeaderBytes = 1 << 20;  // zeros, which mark the file as blank
  progress.say(fmt::format("writing {} MiB of LUN in {}", bytes / kMiB, host.directory));
  auto file = std::make_unique<RecordedFile>(
      *host.journal, fmt::format("{}/lunar-bench-{}-{}.lun", host.directory, getpid(), name));
  write_whole_file(file->path(), bytes + kLunOverheadBytes, kHeaderBytes, 0x1a, check_interrupted);
  return file;
}

}  // namespace lunar::tools
