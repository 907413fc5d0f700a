// SPDX-License-Identifier: Apache-2.0
// The table at exit: it comes by return from main and by _exit, also when the program has closed standard error before
// (as coreutils do); not from a child between vfork and exec; and once only.
#include <fcntl.h>

#include <string>

#include "preload_test.h"

namespace {

int child_return() {
  auto* block = static_cast<char*>(malloc(64 << 20));
  fill(block, 64 << 20, 3);
  CHECK(holds(block, 64 << 20, 3));
  free(block);
  pid_t pid = vfork();
  if (pid == 0) _exit(3);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
  fclose(stderr);
  return 0;
}

int child_exit_now() {
  child_return();
  _exit(0);
}

std::string run(char** argv, int (*body)()) {
  int fds[2];
  CHECK(pipe(fds) == 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(fds[1], STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
    setenv("STATS_BODY", body == child_return ? "return" : "exit", 1);
    _exit(run_preloaded(2, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=512m", "LUNAR_STATS=yes"}, body));
  }
  close(fds[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(fds[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(fds[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  if (WEXITSTATUS(status) == 77) _exit(77);
  if (WEXITSTATUS(status) != 0) fputs(text.c_str(), stderr);
  CHECK(WEXITSTATUS(status) == 0);
  return text;
}

unsigned long value(const std::string& text, const char* key) {
  std::string line = std::string("lunar: stats: ") + key + " ";
  size_t at = text.find(line);
  if (at == std::string::npos) fprintf(stderr, "no '%s' in:\n%s", key, text.c_str());
  CHECK(at != std::string::npos && text.find(line, at + 1) == std::string::npos);
  return strtoul(text.c_str() + at + line.size(), nullptr, 10);
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* which = getenv("STATS_BODY"))
    return run_preloaded(argc, argv, {}, which[0] == 'r' ? child_return : child_exit_now);
  if (argc < 2) return 1;
  for (auto* body : {child_return, child_exit_now}) {
    std::string text = run(argv, body);
    CHECK(value(text, "cap_bytes") == 32ul << 20);
    CHECK(value(text, "peak_resident_bytes") <= 32ul << 20);
    CHECK(value(text, "evictions_bytes") > value(text, "evicted_bytes") &&
          value(text, "evictions_bytes") == 4096ul * value(text, "evictions") && value(text, "faults") > 0 &&
          value(text, "lun_written_bytes") > 0);
    CHECK(value(text, "peak_rss_bytes") > 0 && value(text, "poisoned") == 0);
  }
  return 0;
}
