// SPDX-License-Identifier: Apache-2.0
// What the whole-program tests share: a directory of their own, failures that are counted, and the
// tables that `lunar run --stats` leaves in standard error.
// Threading: one thread. May not be used by code that ships.
#pragma once
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace e2e {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kOverhead = 64 * kMiB;  // what the resident set may have above the cap

using Words = std::vector<std::string>;

struct Skip {
  std::string capability, reason;
};
[[noreturn]] inline void skip(const std::string& capability, const std::string& reason) {
  throw Skip{capability, reason};
}

// The server that is tested: LUNAR_REDIS_SERVER names another one (adapters/redis/README.md).
inline std::string redis_server() {
  const char* given = getenv("LUNAR_REDIS_SERVER");
  return given != nullptr && *given != 0 ? given : "/usr/bin/redis-server";
}
inline bool redis_missing() {
  if (access(redis_server().c_str(), X_OK) == 0) return false;
  fmt::print("skip: redis-server: {} is not there\n", redis_server());
  return true;
}

// main() of a test with a redis-server, around its body (an exit code): 77 and a `skip:` line where
// there is no server, or no right to userfaultfd; one line of what went wrong.
template <class Body>
int guarded(Body body) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (redis_missing()) return 77;
  try {
    return body();
  } catch (const Skip& missing) {
    fmt::print("skip: {}: {}\n", missing.capability, missing.reason);
    return 77;
  } catch (const std::exception& error) {
    const bool refused = strstr(error.what(), "userfaultfd") != nullptr &&
                         access("/dev/userfaultfd", R_OK | W_OK) != 0 && geteuid() != 0;
    fmt::print("{}{}\n", refused ? "skip: userfaultfd: " : "FAIL: ", error.what());
    return refused ? 77 : 1;
  }
}

// A directory of this run, gone with it. On a disk: no LUN lies on a memory file system.
// A directory that goes with the test. One that was killed leaves it: the next test that makes one
// takes it away.
struct Scratch {
  std::string path;
  Scratch() {
    const char* given = getenv("TMPDIR");
    const std::string parent = given != nullptr && *given != 0 ? given : "/var/tmp";
    sweep(parent);
    path = parent + "/lunar-e2e-XXXXXX";
    if (mkdtemp(path.data()) == nullptr || !lock(path, &lock_)) {
      fmt::print(stderr, "{}: {}\n", path, strerror(errno));
      exit(1);
    }
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    close(lock_);
  }
  std::string file(const std::string& name) const { return path + "/" + name; }

 private:
  // A test that lives has its directory locked (close-on-exec: its servers do not).
  static bool lock(const std::string& directory, int* fd) {
    *fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) == 0;
  }
  static void sweep(const std::string& parent) {
    std::error_code ignored;
    for (auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
      struct stat status{};
      const std::string old = entry.path();
      if (old.find("/lunar-e2e-") == std::string::npos || stat(old.c_str(), &status) != 0) continue;
      if (status.st_uid != geteuid() || time(nullptr) - status.st_mtime < 60) continue;
      int fd = -1;
      if (lock(old, &fd)) std::filesystem::remove_all(old, ignored);
      if (fd >= 0) close(fd);
    }
  }
  int lock_ = -1;
};

inline std::string text_of(const std::string& path) {
  std::string text;
  FILE* file = fopen(path.c_str(), "re");
  char buffer[1 << 16];
  for (size_t n; file != nullptr && (n = fread(buffer, 1, sizeof(buffer), file)) > 0;)
    text.append(buffer, n);
  if (file != nullptr) fclose(file);
  return text;
}

inline double now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

inline double mib(uint64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMiB); }

inline int g_failures = 0;

template <class... Arguments>
void require(bool holds, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  if (holds) return;
  ++g_failures;
  fmt::print("FAIL: {}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
}

// The last lines of a test, and its exit code: what the server logged, where something failed, and
// the verdict.
inline int verdict(const std::string& log, const char* whose = "the log") {
  if (g_failures != 0) fmt::print("{}:\n{}\n", whose, log);
  fmt::print("{}\n", g_failures == 0 ? "PASS" : "FAILED");
  return g_failures == 0 ? 0 : 1;
}

using Table = std::map<std::string, std::string>;

inline uint64_t number(const Table& table, const std::string& key) {
  auto found = table.find(key);
  return found == table.end() ? 0 : strtoull(found->second.c_str(), nullptr, 10);
}

// Tables by process, taken out of `text`, which keeps the rest. A process that was killed or never
// tiered has none.
inline std::map<std::string, Table> take_tables(std::string* text) {
  std::map<std::string, Table> tables;
  std::istringstream lines(*text);
  std::string rest, pid, program_name;
  for (std::string line; std::getline(lines, line);) {
    static const std::string kPrefix = "lunar: stats: ";
    if (line.compare(0, kPrefix.size(), kPrefix) != 0) {
      rest += line + "\n";
      continue;
    }
    std::istringstream words(line.substr(kPrefix.size()));
    std::string key, value;
    words >> key >> value;
    if (key == "program") program_name = value;
    if (key == "pid") tables[pid = value]["program"] = program_name;
    tables[pid][key] = value;
  }
  *text = rest;
  return tables;
}

// What must be true of a process that lived above its budget: it evicted at least `factor` times
// the budget, and its resident set never passed the cap + 64 MiB.
inline void check_table(const Table& table, uint64_t cap, uint64_t factor) {
  const uint64_t evicted = number(table, "evictions_bytes"),
                 resident = number(table, "peak_resident_bytes"),
                 own_rss = number(table, "peak_rss_bytes");
  require(!table.empty(), "no `lunar: stats:` lines: it did not run under Lunar");
  require(number(table, "armed") == 1, "the pager was never active: an untiered run");
  require(number(table, "cap_bytes") == cap, "its budget was {:.0f} MiB",
          mib(number(table, "cap_bytes")));
  require(evicted >= factor * cap, "evicted {:.0f} MiB, less than {} x the budget", mib(evicted),
          factor);
  require(resident > 0 && resident <= cap, "tiered pages peaked at {:.1f} MiB, above the cap",
          mib(resident));
  require(own_rss > 0 && own_rss <= cap + kOverhead,
          "its resident set peaked at {:.1f} MiB by its own word", mib(own_rss));
  for (const char* key : {"read_errors", "write_errors", "poisoned"})
    require(number(table, key) == 0, "{} is {}", key, number(table, key));
}

}  // namespace e2e
