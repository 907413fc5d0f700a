// SPDX-License-Identifier: Apache-2.0
// cap_member: the program that dram_cap_tree_test.py runs under a small budget. It reads back every
// page that it writes: a word of the page tells which process wrote it and when.
//
//   cap_member forks N MIB ROUNDS   fills MIB, forks N children one after the other; the parent
//                                   rewrites everything at once, while the children are idle; then
//                                   all of them do, ROUNDS times
//   cap_member ends MIB ROUNDS      fills MIB again and again, while another process that holds as
//                                   much ends: by SIGKILL, exec or exit
//   cap_member spawns N KIB         starts N programs that hold KIB each, for a second; a program
//                                   that gets none ends
//   cap_member late MIB             forks, and takes and fills MIB in a fork handler of its own;
//                                   parent and child rewrite it at the same time
//   cap_member closing WORD...      closes all descriptors but three by a system call of its own,
//                                   then is `cap_member WORD...`
//   cap_member burst MIB            fills MIB, then doubles its heap at once, with two threads, as
//                                   fast as it can
//
// Exit code 0: every page held what its process wrote.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <thread>

#include "sys/kernel_call.h"

namespace {

constexpr uint64_t kPage = 4096;

uint64_t stamp(uint64_t writer, uint64_t page, uint64_t round) {
  uint64_t x = (writer + 1) * 0x9E3779B97F4A7C15ull + page * 0xBF58476D1CE4E5B9ull +
               round * 0x94D049BB133111EBull;
  return (x ^ (x >> 29)) | 1;
}

// Writes the whole page, so that it neither compresses to zero nor equals another.
void write_page(char* page, uint64_t value) {
  auto* words = reinterpret_cast<uint64_t*>(page);
  for (uint64_t i = 0; i < kPage / 8; i += 8) words[i] = value + i;
}

bool holds(const char* page, uint64_t value) {
  auto* words = reinterpret_cast<const uint64_t*>(page);
  for (uint64_t i = 0; i < kPage / 8; i += 8)
    if (words[i] != value + i) return false;
  return true;
}

void fill(char* base, uint64_t pages, uint64_t writer, uint64_t round) {
  for (uint64_t p = 0; p < pages; ++p) write_page(base + p * kPage, stamp(writer, p, round));
}

void check(const char* base, uint64_t pages, uint64_t writer, uint64_t round) {
  for (uint64_t p = 0; p < pages; ++p) {
    if (holds(base + p * kPage, stamp(writer, p, round))) continue;
    fprintf(stderr,
            "cap_member: process %llu, round %llu: page %llu does not hold what was written\n",
            static_cast<unsigned long long>(writer), static_cast<unsigned long long>(round),
            static_cast<unsigned long long>(p));
    _exit(1);
  }
}

void rewrite(char* base, uint64_t pages, uint64_t writer, uint64_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    fill(base, pages, writer, round);
    check(base, pages, writer, round);
  }
}

char* take(uint64_t pages) {
  auto* base = static_cast<char*>(aligned_alloc(kPage, pages * kPage));
  if (base == nullptr) {
    fprintf(stderr, "cap_member: no memory: %s\n", strerror(errno));
    _exit(2);
  }
  return base;
}

int forks(uint64_t children, uint64_t pages, uint64_t rounds) {
  char* base = take(pages);
  fill(base, pages, 0, 0);
  int ready[2];
  if (pipe(ready) != 0) return 2;
  for (uint64_t i = 1; i <= children; ++i) {
    pid_t pid = fork();
    if (pid < 0) {
      fprintf(stderr, "cap_member: fork %llu: %s\n", static_cast<unsigned long long>(i),
              strerror(errno));
      return 3;
    }
    if (pid == 0) {
      close(ready[1]);
      char byte;
      while (read(ready[0], &byte, 1) < 0 && errno == EINTR) {}  // until all are there
      check(base, pages, 0, 0);  // what the parent has overwritten meanwhile
      rewrite(base, pages, i, rounds);
      _exit(0);
    }
  }
  fill(base, pages, 0, 7);
  close(ready[1]);
  check(base, pages, 0, 7);
  rewrite(base, pages, 0, rounds);
  int worst = 0;
  for (uint64_t i = 0; i < children; ++i) {
    int status = 0;
    if (wait(&status) < 0) return 4;
    if (status != 0) worst = WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
  }
  return worst;
}

int burst(uint64_t pages) {
  char* first = take(pages);
  fill(first, pages, 0, 0);
  char* second = take(pages);
  std::thread half([&] { fill(second + pages / 2 * kPage, pages - pages / 2, 1, 0); });
  fill(second, pages / 2, 2, 0);
  half.join();
  check(first, pages, 0, 0);
  check(second, pages / 2, 2, 0);
  check(second + pages / 2 * kPage, pages - pages / 2, 1, 0);
  return 0;
}

// The other process holds its memory, says so, and ends so many milliseconds after it is told to.
int hold(uint64_t pages, int told, int said, const char* how, unsigned ms) {
  char* base = take(pages);
  fill(base, pages, 0, 0);
  char byte = 0;
  if (write(said, "h", 1) != 1 || read(told, &byte, 1) != 1) return 5;
  usleep(ms * 1000);
  if (strcmp(how, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(how, "exec") == 0) execl("/proc/self/exe", "cap_member", "nap", nullptr);
  _exit(0);
}

int ends(uint64_t mib, uint64_t rounds) {
  const char* const ways[] = {"kill", "exec", "exit"};
  const uint64_t pages = mib * (1 << 20) / kPage;
  for (uint64_t round = 0; round < rounds; ++round) {
    int told[2], said[2];
    if (pipe(told) != 0 || pipe(said) != 0) return 2;
    char words[4][24];
    const unsigned long long values[] = {mib, static_cast<unsigned long long>(told[0]),
                                         static_cast<unsigned long long>(said[1]),
                                         1 + round * 13 % 50};
    for (int i = 0; i < 4; ++i) snprintf(words[i], sizeof words[i], "%llu", values[i]);
    char name[] = "cap_member", mode[] = "hold", how[8];
    snprintf(how, sizeof how, "%s", ways[round % 3]);
    char* const arguments[] = {name, mode, words[0], words[1], words[2], how, words[3], nullptr};
    pid_t pid = 0;
    if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) return 3;
    close(said[1]);
    char byte;
    if (read(said[0], &byte, 1) != 1) return 4;
    char* base = take(pages);
    if (write(told[1], "e", 1) != 1) return 5;
    fill(base, pages, 1, round);
    check(base, pages, 1, round);
    free(base);
    int status = 0;
    if (waitpid(pid, &status, 0) != pid || (status != 0 && !WIFSIGNALED(status))) return 6;
    for (int fd : {told[0], told[1], said[0]}) close(fd);
  }
  return 0;
}

uint64_t g_late_pages = 0;
char* g_late = nullptr;

int late(uint64_t pages) {
  g_late_pages = pages;
  pthread_atfork([] { fill(g_late = take(g_late_pages), g_late_pages, 0, 0); }, nullptr, nullptr);
  const pid_t pid = fork();
  if (pid < 0) return 3;
  check(g_late, pages, 0, 0);
  rewrite(g_late, pages, pid == 0 ? 1 : 2, 3);
  if (pid == 0) _exit(0);
  int status = 0;
  return wait(&status) != pid || status != 0 ? 4 : 0;
}

int spawns(uint64_t children, const char* kib) {
  char name[] = "cap_member", mode[] = "sit", size[24];
  snprintf(size, sizeof size, "%s", kib);
  char* const arguments[] = {name, mode, size, nullptr};
  for (uint64_t i = 0; i < children; ++i) {
    pid_t pid = 0;
    if (posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, arguments, environ) != 0) return 3;
  }
  int status = 0;
  for (uint64_t i = 0; i < children; ++i)
    if (wait(&status) < 0 || (status != 0 && (!WIFEXITED(status) || WEXITSTATUS(status) != 2)))
      return 4;  // 2: no memory
  return 0;
}

int sit(uint64_t pages) {
  char* base = take(pages);
  fill(base, pages, 3, 0);
  usleep(1000000);
  check(base, pages, 3, 0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto number = [&](int i) { return i < argc ? strtoull(argv[i], nullptr, 10) : 0; };
  if (argc >= 5 && strcmp(argv[1], "forks") == 0)
    return forks(number(2), number(3) * (1 << 20) / kPage, number(4));
  if (argc >= 3 && strcmp(argv[1], "burst") == 0) return burst(number(2) * (1 << 20) / kPage);
  if (argc >= 3 && strcmp(argv[1], "late") == 0) return late(number(2) * (1 << 20) / kPage);
  if (argc >= 4 && strcmp(argv[1], "spawns") == 0) return spawns(number(2), argv[3]);
  if (argc >= 3 && strcmp(argv[1], "sit") == 0) return sit(number(2) * 1024 / kPage);
  if (argc >= 4 && strcmp(argv[1], "ends") == 0) return ends(number(2), number(3));
  if (argc >= 7 && strcmp(argv[1], "hold") == 0)
    return hold(number(2) * (1 << 20) / kPage, static_cast<int>(number(3)),
                static_cast<int>(number(4)), argv[5], static_cast<unsigned>(number(6)));
  if (argc >= 2 && strcmp(argv[1], "nap") == 0) return usleep(100000);
  if (argc >= 3 && strcmp(argv[1], "closing") == 0) {
    (void)lunar::sys::kernel_call(SYS_close_range, {3, ~0u, 0, 0, 0, 0});
    return execv(argv[0], argv + 1);
  }
  return 64;
}
