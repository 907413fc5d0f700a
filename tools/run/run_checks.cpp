// SPDX-License-Identifier: Apache-2.0
// See run_checks.h. The checks of the LUN are in run_lun.cpp.
#include "tools/run/run_checks.h"

#include <sys/mman.h>

#include "base/error.h"
#include "sys/kernel.h"
#include "sys/mem.h"
#include "sys/proc.h"
#include "sys/usable_memory.h"
#include "tools/support/host.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

// jemalloc maps its first tables before the library can print anything.
bool check_limits(std::string* why) {
  constexpr size_t kFirstTables = 32 * kMiB;
  void* trial = nullptr;
  const int rc = sys::map(nullptr, kFirstTables, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &trial);
  if (rc == 0) return (void)sys::unmap(trial, kFirstTables), true;
  return refuse(
      why,
      text_of("the kernel does not give %s of memory to this process: %s; raise the limit (%s)",
              size_text(kFirstTables).c_str(), errno_text(rc), sys::memory_limit()));
}

}  // namespace

bool check_sizes(Options* options, const OriginOf& origin_of, std::string* why) {
  const sys::UsableMemory memory = sys::usable_memory();
  const uint64_t total = sys::machine_memory_bytes("MemTotal");
  // Whole mebibytes, because the number is shown.
  if (origin_of("dram").find("default") != std::string::npos)
    options->dram = round_down(memory.bytes / 4, kMiB);
  std::string origin = origin_of("dram");
  std::string dram = size_text(options->dram);
  if (options->dram < kDramMin) {
    return refuse(why, text_of("%s: %s is less than the minimum of %s; give --dram 16m or more",
                               origin.c_str(), dram.c_str(), size_text(kDramMin).c_str()));
  }
  if (total != 0 && options->dram > total) {
    return refuse(why, text_of("%s: %s is more than this machine has (%s); give less",
                               origin.c_str(), dram.c_str(), size_text(total).c_str()));
  }
  if (options->dram > memory.limit_bytes) {
    return refuse(why, text_of("%s: %s is more than the memory cgroup allows (%s in %s); give less",
                               origin.c_str(), dram.c_str(), size_text(memory.limit_bytes).c_str(),
                               memory.limit_file));
  }
  bool size_given = origin_of("size").find("default") == std::string::npos;
  if (size_given && options->size < options->dram) {
    return refuse(
        why,
        text_of("%s: %s of LUN is less than the DRAM budget of %s (%s); give at least that much",
                origin_of("size").c_str(), size_text(options->size).c_str(), dram.c_str(),
                origin.c_str()));
  }
  return true;
}

bool check_kernel_calls(std::string* why) {
  if (!check_limits(why)) return false;
  ErrorText text;
  if (sys::kernel_check(&text) < 0) return refuse(why, text.text);
  UffdState state = probe_userfaultfd();
  if (state.error == 0) return true;
  return refuse(why, text_of("%s; to fix it: %s", userfaultfd_lack(state).c_str(),
                             userfaultfd_remedy(state).c_str()));
}

}  // namespace lunar::tools
