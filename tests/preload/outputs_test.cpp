// SPDX-License-Identifier: Apache-2.0
// Where Lunar's lines and counters go does not stop the program, nor end it. A FIFO is refused at
// the start: it may have no reader.
#include <fcntl.h>
#include <sys/stat.h>

#include <csignal>
#include <string>

#include "preload_test.h"
#include "raw_call.h"

namespace {

constexpr size_t kHeap = 64 * kMiB;  // four times the budget

// Standard error from now on. The end that reads stays open.
void full_pipe_as_stderr() {
  int ends[2];
  char part[4096] = {};
  REQUIRE(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  while (write(ends[1], part, sizeof part) > 0) {}
  REQUIRE(errno == EAGAIN && fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], 2) == 2 &&
          close(ends[1]) == 0);
}

// The evictor has something to say.
int full_pipe() {
  full_pipe_as_stderr();
  const long direct = raw(SYS_openat, AT_FDCWD, "/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600);
  REQUIRE(direct >= 0);  // which the evictor says
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  return holds(p, kHeap, 1) ? 0 : 1;
}

// The line cannot be written; the program is aborted all the same.
int full_pipe_fatal() {
  const pid_t child = fork();
  if (child == 0) {
    full_pipe_as_stderr();
    char* p = map_tiered(1024 * kMiB, kRw, kPrivate | MAP_NORESERVE);
    for (size_t at = 0; at < 1024 * kMiB; at += 4096) p[at] = 1;
    _exit(0);
  }
  int status = 0;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? 0 : 1;
}

// A thread of the program has something to say.
void no_reader() {
  int ends[2];
  REQUIRE(pipe(ends) == 0 && dup2(ends[1], 2) == 2 && close(ends[0]) == 0 && close(ends[1]) == 0);
  REQUIRE(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  REQUIRE(mlockall(MCL_CURRENT) == -1 && errno == ENOMEM);  // one line
}

void stats_cut() {
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  const char* path = getenv("LUNAR_STATS_FILE");
  struct stat status;
  REQUIRE(path != nullptr && stat(path, &status) == 0 && status.st_size > 0 &&
          truncate(path, 0) == 0);
  usleep(2500000);  // it is written once a second
  REQUIRE(holds(p, kHeap, 1) && unlink(path) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string place = "/var/tmp/lunar-test-" + std::to_string(getpid()),
                    stats = "LUNAR_STATS_FILE=" + place, log = "LUNAR_LOG_FILE=" + place;
  const bool fifo = !inside() && argc == 3 && strstr(argv[2], "-fifo") != nullptr;
  REQUIRE(!fifo || mkfifo(place.c_str(), 0600) == 0);
  const auto not_reached = [] { return 1; };
  const int code =
      run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=256m"},
                {{"full-pipe", full_pipe, {"LUNAR_LOG=info"}},
                 {"full-pipe-fatal", full_pipe_fatal, {"LUNAR_LOG=warning"}},
                 {"no-reader", no_reader, {"LUNAR_LOG=warning"}},
                 {"stats-cut", stats_cut, {stats.c_str()}},
                 {"log-fifo", not_reached, {log.c_str()}, "lunar: ", Ends::kRefused},
                 {"stats-fifo", not_reached, {stats.c_str()}, "lunar: ", Ends::kRefused}});
  REQUIRE(!fifo || unlink(place.c_str()) == 0);
  return code;
}
