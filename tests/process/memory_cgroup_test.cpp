// SPDX-License-Identifier: Apache-2.0
// `memory_cgroup_test LUNAR`: in a memory cgroup, the default DRAM budgets are a quarter of what
// the group has left, not of what the machine has: lunar_init's, a key/value store's and `lunar
// run`'s. A budget above the group's limit is refused. The group's page cache makes no difference.
#include <fcntl.h>
#include <sys/wait.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/store_path.h"
#include "lunar/lunar.h"
#include "tests/support/cases.h"
#include "tests/support/test_tier.h"
#include "tools/support/cgroup.h"

namespace {

using lunar::kMiB;
using lunar::tools::CgroupPlace;
using lunar::tools::MemoryCgroup;

// The test itself uses less than 32 MiB.
constexpr uint64_t kLimit = 512 * kMiB, kQuarter = kLimit / 4, kQuarterLeast = kQuarter - 8 * kMiB;

bool is_quarter(uint64_t bytes) { return bytes >= kQuarterLeast && bytes <= kQuarter; }

uint64_t tier_budget() {
  lunar_stats stats{};
  stats.struct_size = sizeof stats;
  REQUIRE(lunar_get_stats(&stats) == 0);
  return stats.dram_budget_bytes;
}

void default_of_tier() {
  tier::start_tier(0, 0);
  REQUIRE(is_quarter(tier_budget()), "%lu MiB", tier_budget() / kMiB);
}

void budget_above_limit() {
  lunar_config config{};
  config.struct_size = sizeof config;
  config.dram_bytes = kLimit + kMiB;
  const int rc = lunar_init(&config);
  REQUIRE(rc == -EINVAL, "%d", rc);
  REQUIRE(strstr(lunar_error(), "memory cgroup") != nullptr, "%s", lunar_error());
}

void default_of_stores() {
  uint64_t bytes = 0;
  lunar::ErrorText why;
  REQUIRE(lunar::kv::dram_of_stores("test", &bytes, &why) == 0);
  REQUIRE(is_quarter(bytes), "%lu MiB", bytes / kMiB);
}

void page_cache_is_no_use() {
  char path[] = "/var/tmp/lunar-cgroup-test-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0 && unlink(path) == 0);
  const std::vector<char> data(kMiB, 'x');
  for (int i = 0; i < 192; ++i)
    REQUIRE(write(file, data.data(), data.size()) == static_cast<ssize_t>(data.size()));
  default_of_stores();
}

void default_of_run() {
  const std::string command =
      lunar_test::g_argv[1] + std::string(" run -- sh -c 'echo $LUNAR_DRAM'");
  FILE* output = popen(command.c_str(), "r");
  unsigned long bytes = 0;
  REQUIRE(output != nullptr && fscanf(output, "%lu", &bytes) == 1);
  REQUIRE(pclose(output) == 0 && is_quarter(bytes), "%lu MiB", bytes / kMiB);
}

// A child each: what is started once a process starts anew.
void within_group(const MemoryCgroup& group, void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    const int procs = open(group.procs_path().c_str(), O_WRONLY | O_CLOEXEC);
    REQUIRE(procs >= 0 && write(procs, "0", 1) == 1);
    body();
    fflush(nullptr);
    _exit(0);
  }
  int status = 0;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
  if (WEXITSTATUS(status) != 0) throw WEXITSTATUS(status);  // the group is removed on the way
}

}  // namespace

int main(int argc, char** argv) {
  lunar_test::g_argc = argc;
  lunar_test::g_argv = argv;
  const CgroupPlace place = lunar::tools::find_cgroup_place();
  if (place.version == 0) SKIP("memory-cgroup", place.why_not.c_str());
  std::unique_ptr<MemoryCgroup> group;
  try {
    group = std::make_unique<MemoryCgroup>(place, "lunar-test-" + std::to_string(getpid()), kLimit,
                                           false);
  } catch (const std::runtime_error& error) { SKIP("memory-cgroup", error.what()); }
  try {
    for (void (*body)() : {default_of_tier, budget_above_limit, default_of_stores,
                           page_cache_is_no_use, default_of_run})
      within_group(*group, body);
  } catch (int code) { return code; }
  return 0;
}
