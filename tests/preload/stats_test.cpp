// SPDX-License-Identifier: Apache-2.0
// The table at exit: it comes by return from main and by _exit, also when the program has closed
// standard error before (as coreutils do); not from a child between vfork and exec; and once only.
// What is outside the tier is said of plain processes too, in the table or in the log.
#include <fcntl.h>

#include <string>

#include <sys/syscall.h>

#include "preload_test.h"
#include "raw_call.h"

namespace {

void child_return() {
  auto* block = static_cast<char*>(malloc(64 << 20));
  fill(block, 64 << 20, 3);
  REQUIRE(holds(block, 64 << 20, 3));
  free(block);
  pid_t pid = vfork();
  if (pid == 0) _exit(3);
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
  fclose(stderr);
}

int child_exit_now() {
  child_return();
  _exit(0);
}

constexpr long kOutside = 64 << 20;  // twice the budget

// Memory that Lunar does not see, of this process or of one that it starts.
void child_outside() {
  const long at = raw(SYS_mmap, 0, kOutside, kRw, kPrivate, -1, 0);
  REQUIRE(at > 0);
  fill(reinterpret_cast<void*>(at), kOutside, 1);
}

// Small maps, of which the kernel makes one.
void child_small() {
  for (long bytes = 0; bytes < kOutside; bytes += 128 << 10) fill(map_any(128 << 10), 128 << 10, 1);
}

void child_of_child_outside() {
  const pid_t pid = fork();
  if (pid == 0) {
    child_outside();
    exit(0);
  }
  REQUIRE(ends_well(pid));
}

std::string run(char** argv, const char* name, const char* setting = "LUNAR_STATS=yes") {
  const std::string body = std::string("STATS_BODY=") + name;
  const Ended ended =
      run_and_listen(argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=512m", setting, body.c_str()});
  if (const int code = code_of(ended.status); code != 0) _exit(code);
  return ended.errors;
}

unsigned long value(const std::string& text, const char* key) {
  std::string line = std::string("lunar: stats: ") + key + " ";
  size_t at = text.find(line);
  if (at == std::string::npos) fprintf(stderr, "no '%s' in:\n%s", key, text.c_str());
  REQUIRE(at != std::string::npos && text.find(line, at + 1) == std::string::npos);
  return strtoul(text.c_str() + at + line.size(), nullptr, 10);
}

void says_what_is_outside(char** argv) {
  const std::string table = run(argv, "outside");
  REQUIRE(value(table, "armed") == 0 && value(table, "outside_bytes") >= kOutside);
  const std::string small = run(argv, "small");
  REQUIRE(value(small, "outside_bytes") >= kOutside &&
          small.find("B, maps and stacks 64.") != std::string::npos);
  constexpr char kLine[] = "of anonymous memory in DRAM were outside the tier";
  for (const char* name : {"outside", "child"})
    for (const char* setting :
         {"LUNAR_STATS=yes", "LUNAR_LOG=info", "LUNAR_LOG=warning", "LUNAR_LOG=error"}) {
      const std::string text = run(argv, name, setting);
      size_t lines = 0, large = 0;
      for (size_t at = 0; (at = text.find(kLine, at)) != std::string::npos; ++at, ++lines) {
        const size_t begin = text.rfind('\n', at) + 1;
        large += text.find("64.", begin) < at || text.find("65.", begin) < at;
      }
      const bool asked = strcmp(setting, "LUNAR_LOG=error") != 0;
      if (large != (asked ? 1 : 0))
        fprintf(stderr, "%s, %s: %zu lines in:\n%s", name, setting, lines, text.c_str());
      REQUIRE(large == (asked ? 1 : 0));
    }
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* name = getenv("STATS_BODY")) {
    argv[2] = const_cast<char*>(name);
    return run_cases(3, argv, {},
                     {{"return", child_return},
                      {"exit", child_exit_now},
                      {"outside", child_outside},
                      {"small", child_small},
                      {"child", child_of_child_outside}});
  }
  if (argc < 2) return 1;
  says_what_is_outside(argv);
  for (const char* body : {"return", "exit"}) {
    std::string text = run(argv, body);
    REQUIRE(value(text, "cap_bytes") == 32ul << 20);
    REQUIRE(value(text, "peak_resident_bytes") <= 32ul << 20);
    REQUIRE(value(text, "evictions_bytes") > value(text, "evicted_bytes") &&
            value(text, "evictions_bytes") == 4096ul * value(text, "evictions") &&
            value(text, "faults") > 0 && value(text, "lun_written_bytes") > 0);
    REQUIRE(value(text, "peak_rss_bytes") > 0 && value(text, "poisoned") == 0);
  }
  return 0;
}
