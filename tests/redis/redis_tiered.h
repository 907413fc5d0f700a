// SPDX-License-Identifier: Apache-2.0
// What the tests of the Redis module share: a tiered and a plain server in a directory of the run,
// what a tiered one must show for itself, waiting for its children, and main().
// Threading: one thread a server. May not be used by code that ships.
#pragma once
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "redis_values.h"
#include "tests/e2e/e2e.h"
#include "tools/support/redis_server.h"

namespace e2e {

using lunar::tools::RedisServer;
using lunar::tools::ServerSetup;

constexpr int kPatienceSeconds = 900;  // DEBUG DIGEST of 1 GiB

struct Run {
  std::string module;
  uint64_t cap = 0, keys = 0;
  const Scratch* scratch = nullptr;
  uint64_t size_per_cap = 24;

  ServerSetup plain(const std::string& name, const std::string& dump,
                    const std::string& further = "") const {
    ServerSetup result;
    result.redis_server = redis_server();
    result.directory = scratch->file(name);  // of its own: append-only files have one name
    std::filesystem::create_directories(result.directory);
    result.name = name;
    result.dump = dump;
    result.saves = false;
    std::istringstream words(further);
    for (std::string word; words >> word;) result.further.push_back(word);
    return result;
  }
  // The LUN has room for the data set and what a child of it is promised at fork. "": a file in the
  // run's directory.
  ServerSetup tiered(const std::string& name, const std::string& dump,
                     const std::string& further = "", const std::string& lun = "") const {
    return plain(name, dump,
                 fmt::format("--loadmodule {} dram {} lun {} size {} {}", module, cap,
                             lun.empty() ? scratch->path : lun, size_per_cap * cap, further));
  }
};

inline uint64_t peak_rss(pid_t pid) {
  const std::string status = text_of(fmt::format("/proc/{}/status", pid));
  const size_t at = status.find("VmHWM:");
  return at == std::string::npos ? 0 : strtoull(status.c_str() + at + 6, nullptr, 10) * 1024;
}

inline uint64_t figure(RedisServer& server, const std::string& name) {
  return strtoull(server.info("lunar", "lunar_" + name).c_str(), nullptr, 10);
}

// It lived above its budget, within its cap, without an error.
inline void check_tiered(RedisServer& server, const Run& run, const std::string& name,
                         uint64_t evicted_factor) {
  const uint64_t evicted = figure(server, "evicted_pages") * 4096,
                 resident = figure(server, "resident_peak_bytes"), rss = peak_rss(server.pid());
  require(figure(server, "dram_budget_bytes") == run.cap, "{}: its budget is {:.0f} MiB", name,
          mib(figure(server, "dram_budget_bytes")));
  require(evicted >= evicted_factor * run.cap, "{}: evicted {:.0f} MiB, less than {} x the budget",
          name, mib(evicted), evicted_factor);
  require(resident <= run.cap, "{}: tiered pages peaked at {:.1f} MiB, above the cap", name,
          mib(resident));
  require(rss > 0 && rss <= run.cap + kOverhead, "{}: its resident set peaked at {:.1f} MiB", name,
          mib(rss));
  for (const char* key : {"read_errors", "write_errors", "poisoned_pages"})
    require(figure(server, key) == 0, "{}: {} is {}", name, key, figure(server, key));
  fmt::print("{:8} cap {:.0f} MiB  peak RSS {:.1f}  evicted {:.1f} MiB\n", name, mib(run.cap),
             mib(rss), mib(evicted));
}

inline void must_be(const std::string& what, const std::string& got, const std::string& wanted) {
  require(got == wanted, "{}: digest {}, not {}", what, got, wanted);
}

inline void wait_for_child(RedisServer& server, const std::string& running,
                           const std::string& status) {
  wait_until("the end of " + running, [&] { return server.info("persistence", running) == "0"; });
  const std::string state = server.info("persistence", status);
  require(state == "ok", "{} is '{}':\n{}", status, state, server.log_tail());
}

// The digest of a plain server that loads FROM/dump.rdb.
inline std::string digest_of_dump(const Run& run, const std::string& from,
                                  const std::string& name) {
  const ServerSetup setup = run.plain(name, "dump.rdb");
  std::filesystem::copy_file(run.scratch->file(from) + "/dump.rdb", setup.directory + "/dump.rdb",
                             std::filesystem::copy_options::overwrite_existing);
  RedisServer server(setup);
  server.set_patience(kPatienceSeconds);
  return digest(server);
}

inline void follow(RedisServer& replica, const RedisServer& master) {
  (void)replica.command({"REPLICAOF", "127.0.0.1", std::to_string(master.port())});
  wait_until("the link of a replica",
             [&] { return replica.info("replication", "master_link_status") == "up"; });
}

// main() of a test: MODULE SCENARIO CAP_MIB VALUES_MIB... Skips where there is no server, or no
// right to userfaultfd.
template <class Test>
int run_test(char** argv, Test test) {
  return guarded([&] {
    const Scratch scratch;
    const Run run{std::filesystem::absolute(argv[1]), strtoull(argv[3], nullptr, 10) * kMiB,
                  strtoull(argv[4], nullptr, 10) * kMiB / kKeyBytes, &scratch};
    return test(argv[2], run);
  });
}

}  // namespace e2e
