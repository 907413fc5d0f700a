// SPDX-License-Identifier: Apache-2.0
// Several processes of a tree fork at the same moment in a budget that has room for one or two
// more: a fork is refused (ENOMEM, EAGAIN) or its child lives and finds its memory. A fork that
// failed gives back what was reserved for it.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "preload_test.h"
#include "tier_stats.h"

namespace {

constexpr size_t kBytes = 24u << 20;
constexpr int kForkers = 4, kForksEach = 6, kRounds = 12;

char* g_memory;

void take_memory() {
  g_memory = map_tiered(kBytes);
  fill(g_memory, kBytes, 1);
}

bool sees_memory() {
  return holds(g_memory + (kBytes / 2), 64 * 4096, 1, kBytes / 2 / sizeof(long));
}

// A child that stays until `go` has an end of file.
int fork_one_more(const int (&go)[2]) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  char byte;
  close(go[1]);
  (void)!read(go[0], &byte, 1);
  _exit(sees_memory() ? 0 : 7);
}

// How a child ended; 0: well.
int end_of(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
    fprintf(stderr, "process %d ended by signal %d\n", pid, WTERMSIG(status));
  return status == 0 ? 0 : WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// Forks at the same moment as the others, until it is refused; then ends with its children.
int fork_with_others(pthread_barrier_t* together, pthread_barrier_t* done) {
  int go[2];
  REQUIRE(pipe(go) == 0);
  pid_t children[kForksEach];
  int count = 0, worst = 0;
  (void)pthread_barrier_wait(together);
  while (count < kForksEach) {
    const pid_t pid = fork_one_more(go);
    if (pid < 0) {
      REQUIRE(errno == ENOMEM || errno == EAGAIN);
      break;
    }
    if (pid > 0) children[count++] = pid;
  }
  (void)pthread_barrier_wait(done);
  close(go[1]);
  for (int i = 0; i < count; ++i) {
    const int one = end_of(children[i]);
    if (one != 0) worst = one;
  }
  return worst;
}

struct Shared {
  pthread_barrier_t together, done;
};

void at_once() {
  take_memory();
  auto* shared =
      static_cast<Shared*>(mmap(nullptr, sizeof(Shared), kRw, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(shared != MAP_FAILED);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  int refused = 0;
  for (int round = 0; round < kRounds; ++round) {
    int go[2];
    REQUIRE(pipe(go) == 0);
    pid_t forkers[kForkers];
    int count = 0;
    // Only as many as there is room for take part.
    for (; count < kForkers; ++count) {
      const pid_t pid = forkers[count] = fork();
      if (pid < 0) break;
      if (pid != 0) continue;
      close(go[1]);
      char byte;
      if (read(go[0], &byte, 1) != 1) _exit(0);
      _exit(fork_with_others(&shared->together, &shared->done));
    }
    refused += count < kForkers;
    REQUIRE(count >= 2);
    pthread_barrier_init(&shared->together, &attributes, static_cast<unsigned>(count));
    pthread_barrier_init(&shared->done, &attributes, static_cast<unsigned>(count));
    for (int i = 0; i < count; ++i) REQUIRE(write(go[1], "g", 1) == 1);
    close(go[1]);
    close(go[0]);
    int worst = 0;
    for (int i = 0; i < count; ++i) {
      const int one = end_of(forkers[i]);
      if (one != 0) worst = one;
    }
    REQUIRE(worst == 0);
  }
  REQUIRE(sees_memory());
}

// The kernel refuses the fork (RLIMIT_NPROC) after all was prepared: again and again, and what was
// reserved comes back.
int failed() {
  if (host_has_swap()) SKIP("no-swap", "a child that gave root up cannot see what is swapped out");
  take_memory();
  if (getuid() == 0) REQUIRE(setresuid(65534, 65534, 65534) == 0);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NPROC, &before) == 0);
  const rlimit soft{0, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NPROC, &soft) == 0);
  for (int i = 0; i < 40; ++i) REQUIRE(fork() < 0);
  REQUIRE(setrlimit(RLIMIT_NPROC, &before) == 0);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) _exit(sees_memory() ? 0 : 7);
  REQUIRE(end_of(pid) == 0);
  return 0;
}

// Pages that have found no slot on the LUN go to a forked child all the same.
void write_errors() {
  take_memory();
  const Meanwhile writing([turn = 0ul]() mutable {
    ++turn;
    for (size_t at = 0; at < kBytes / 2; at += 4096)
      *reinterpret_cast<volatile unsigned long*>(g_memory + at) = turn;
  });
  for (int i = 0; i < 25; ++i) {
    const pid_t pid = fork();
    REQUIRE(pid >= 0 || errno == ENOMEM || errno == EAGAIN);
    if (pid == 0)
      _exit(holds(g_memory + kBytes / 2, kBytes / 2, 1, kBytes / 2 / sizeof(long)) ? 0 : 7);
    if (pid > 0) REQUIRE(end_of(pid) == 0);
  }
}

// The user may have no further process: the kernel cannot make a thread for I/O that it puts off,
// and cancels it. No page is lost, and no slot of the LUN is taken for broken.
int no_process() {
  take_memory();
  if (getuid() == 0) REQUIRE(setresuid(65534, 65534, 65534) == 0);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NPROC, &limit) == 0);
  limit.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NPROC, &limit) == 0);
  for (unsigned long turn = 2; turn < 6; ++turn) {
    fill(g_memory, kBytes, turn);
    REQUIRE(holds(g_memory, kBytes, turn));
  }
  const lunar_stats stats = tier_stats();
  const unsigned long reads = stats.read_errors, writes = stats.write_errors;
  if (writes != 0 || reads != 0)
    fprintf(stderr, "%lu writes and %lu reads failed\n", writes, reads);
  return writes == 0 && reads == 0 ? 0 : 1;
}

// A fork handler of the program's; as well another thread could.
constexpr size_t kHeld = 26u << 20, kLittle = 4u << 20, kMuch = 20u << 20, kLeft = 70u << 20;
size_t g_late_bytes = kLittle;
char* g_late;

void commit_late() {
  g_late = map_if_possible(g_late_bytes);
  if (g_late != nullptr) fill(g_late, g_late_bytes, 3);
}

// Memory is committed after a fork was checked: the child also has room for that, or the program
// has none.
void meanwhile() {
  take_memory();
  char* held = map_if_possible(kHeld);
  REQUIRE(held != nullptr && pthread_atfork(commit_late, nullptr, nullptr) == 0);
  fill(held, kHeld, 2);
  for (int round = 0; round < 6; ++round) {
    g_late_bytes = round % 2 == 0 ? kLittle : kMuch;
    const pid_t pid = fork();
    REQUIRE(pid >= 0 && (g_late != nullptr || g_late_bytes == kMuch));
    if (pid == 0)
      _exit(sees_memory() && (g_late == nullptr || holds(g_late, g_late_bytes, 3)) ? 0 : 7);
    REQUIRE(end_of(pid) == 0 && (g_late == nullptr || munmap(g_late, g_late_bytes) == 0));
  }
  REQUIRE(map_if_possible(kLeft) != nullptr);
}

// Children that are killed before they have begun leave nothing charged.
int killed() {
  constexpr size_t kInherited = 10u << 20, kAfter = 40u << 20;
  auto* inherited = static_cast<char*>(malloc(kInherited));
  REQUIRE(inherited != nullptr);
  fill(inherited, kInherited, 1);
  for (int i = 0; i < 100; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    REQUIRE(pid > 0 && kill(pid, SIGKILL) == 0);
    REQUIRE(end_of(pid) >= 0);
  }
  auto* after = static_cast<char*>(malloc(kAfter));
  REQUIRE(after != nullptr);
  fill(after, kAfter, 2);
  REQUIRE(holds(inherited, kInherited, 1) && holds(after, kAfter, 2));
  return 0;
}

rlim_t bytes_of_line(const char* path, const char* key) {
  rlim_t kib = 0;
  char line[256];
  FILE* file = fopen(path, "r");
  REQUIRE(file != nullptr);
  while (fgets(line, sizeof line, file) != nullptr)
    if (strncmp(line, key, strlen(key)) == 0) kib = strtoul(line + strlen(key), nullptr, 10);
  fclose(file);
  return kib * 1024;
}

rlim_t in_use(const char* key) {
  const rlim_t bytes = bytes_of_line("/proc/self/status", key);
  REQUIRE(bytes != 0);
  return bytes;
}

// With `limit`, fork makes a child that works, or none. Whether it has made one.
bool fork_within(decltype(RLIMIT_AS) which, rlim_t limit) {
  rlimit before{};
  REQUIRE(getrlimit(which, &before) == 0);
  const rlimit now{limit, before.rlim_max};
  REQUIRE(setrlimit(which, &now) == 0);
  errno = 0;
  const pid_t child = fork();
  if (child == 0) _exit(holds(g_memory, kBytes, 1) ? 0 : 7);
  REQUIRE(child > 0 || errno == ENOMEM);
  REQUIRE(setrlimit(which, &before) == 0 && (child < 0 || end_of(child) == 0));
  return child > 0;
}

// RLIMIT_AS and RLIMIT_DATA leave the child nothing, little or enough.
int limits() {
  constexpr rlim_t kStep = 256 << 10, kMost = 32 << 20;
  take_memory();
  unsigned made = 0, refused = 0;
  for (rlim_t more = 0; more <= kMost; more += more < kMost / 8 ? kStep : kMost / 8) {
    ++(fork_within(RLIMIT_AS, in_use("VmSize:") + more) ? made : refused);
    ++(fork_within(RLIMIT_DATA, in_use("VmData:") + more) ? made : refused);
  }
  REQUIRE(made != 0 && refused != 0 && holds(g_memory, kBytes, 1));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(
      argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=2g"},
      {{"at-once", at_once},
       {"failed", failed},
       {"limits", limits, {"LUNAR_SIZE=192m"}},
       {"meanwhile", meanwhile, {"LUNAR_SIZE=128m"}},
       {"killed", killed, {"LUNAR_DRAM=64m"}},
       {"write-errors", write_errors, {"LUNAR_SIZE=256m", "LUNAR_LUN=sim:1g,write_error=2"}},
       {"no-process", no_process}});
}
