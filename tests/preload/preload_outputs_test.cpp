// SPDX-License-Identifier: Apache-2.0
// preload_outputs: where Lunar's lines and counters go does not stop the program, nor end it.
//
//   preload_outputs_test LIBRARY CASE
//     full-pipe        standard error is a full pipe that nothing reads, and the evictor has something to say
//     full-pipe-fatal  a FATAL line cannot be written there: the program is aborted all the same
//     no-reader        standard error is a pipe without a reader, and a thread of the program has something to say
//     stats-cut        the file of live counters is cut to nothing while it is written
//     log-fifo         the log is a FIFO without a reader: refused at the start
//     stats-fifo       so are live counters that are to be a FIFO
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <csignal>
#include <string>

#include "preload_test.h"
#include "raw_call.h"

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kHeap = 64 * kMiB;  // four times the budget

char* map_private(size_t bytes, int flags = 0) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  CHECK(p != MAP_FAILED && tiered(p));
  return static_cast<char*>(p);
}

std::string scratch_path(const char* name) { return "/var/tmp/lunar-test-" + std::to_string(getppid()) + "-" + name; }

// Standard error from now on. The end that reads stays open.
void full_pipe_as_stderr() {
  int ends[2];
  char part[4096] = {};
  CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  while (write(ends[1], part, sizeof part) > 0) {}
  CHECK(errno == EAGAIN && fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], 2) == 2 && close(ends[1]) == 0);
}

int full_pipe() {
  full_pipe_as_stderr();
  const long direct = raw(SYS_openat, AT_FDCWD, "/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  CHECK(direct >= 0);  // which the evictor says
  char* p = map_private(kHeap);
  fill(p, kHeap, 1);
  return holds(p, kHeap, 1) ? 0 : 1;
}

int full_pipe_fatal() {
  const pid_t child = fork();
  if (child == 0) {
    full_pipe_as_stderr();
    char* p = map_private(1024 * kMiB, MAP_NORESERVE);
    for (size_t at = 0; at < 1024 * kMiB; at += 4096) p[at] = 1;
    _exit(0);
  }
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? 0 : 1;
}

int no_reader() {
  int ends[2];
  CHECK(pipe(ends) == 0 && dup2(ends[1], 2) == 2 && close(ends[0]) == 0 && close(ends[1]) == 0);
  CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  CHECK(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM);  // one line
  return 0;
}

int stats_cut() {
  char* p = map_private(kHeap);
  fill(p, kHeap, 1);
  const char* path = getenv("LUNAR_STATS_FILE");
  struct stat status;
  CHECK(path != nullptr && stat(path, &status) == 0 && status.st_size > 0 && truncate(path, 0) == 0);
  usleep(2500000);  // it is written once a second
  CHECK(holds(p, kHeap, 1) && unlink(path) == 0);
  return 0;
}

int not_reached() { return 1; }

// The program must be refused, by one line and exit code 125.
int refused(char** argv, const char* option, const char* name) {
  const std::string path = scratch_path(name), setting = std::string(option) + "=" + path;
  CHECK(mkfifo(path.c_str(), 0600) == 0);
  const pid_t child = fork();
  if (child == 0) {
    setenv("LD_PRELOAD", argv[1], 1);
    setenv("PRELOAD_TEST_INSIDE", "1", 1);
    putenv(const_cast<char*>(setting.c_str()));
    execv("/proc/self/exe", argv);
    _exit(126);
  }
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && unlink(path.c_str()) == 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 125 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string name = argv[2], stats = "LUNAR_STATS_FILE=" + scratch_path("live");
  const bool inside = getenv("PRELOAD_TEST_INSIDE") != nullptr;
  const auto run = [&](int (*body)(), const char* setting) {
    return run_preloaded(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=256m", setting}, body);
  };
  if (name == "full-pipe") return run(full_pipe, "LUNAR_LOG=info");
  if (name == "full-pipe-fatal") return run(full_pipe_fatal, "LUNAR_LOG=warning");
  if (name == "no-reader") return run(no_reader, "LUNAR_LOG=warning");
  if (name == "stats-cut") return run(stats_cut, stats.c_str());
  if (inside) return not_reached();
  if (name == "log-fifo") return refused(argv, "LUNAR_LOG_FILE", "log");
  if (name == "stats-fifo") return refused(argv, "LUNAR_STATS_FILE", "stats");
  return 2;
}
