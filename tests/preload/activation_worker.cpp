// SPDX-License-Identifier: Apache-2.0
// The program of activation_test.py: `activation_worker STEP...`, one after the other. Every page
// it holds carries a stamp that is checked before each line it prints, and at the end ("sound").
//
//   grow:MIB     mallocs 256 KiB blocks till it holds so many MiB; ENOMEM is printed, not fatal
//                ("refused at N MiB")
//   map:MIB      the same from one mmap, with MADV_HUGEPAGE
//   noreserve:MIB  with MAP_NORESERVE, half of it used
//   outside:MIB  memory that Lunar does not see (a system call past libc)
//   child:MIB    the same by a child, which ends
//   pieces:MIB   by maps that are too small for the tier
//   vfork        a child that ends between vfork and exec
//   deaf         closes standard error
//   exit         ends by _exit
//   advise       MADV_HUGEPAGE and MADV_COLLAPSE on all that it holds
//   setuid       becomes nobody, permanently        chroot:DIR
//   seccomp      open, openat and userfaultfd are refused from now on (EPERM)
//   fork:MIB     a child grows by so many MiB, overwrites half of what it inherited and checks all;
//                its parent goes on meanwhile
//   huge         fails unless AnonHugePages of this process is above 0
//   closeall     closes every descriptor but the first three, as daemons do (close_range, and one
//                by one)
//   small        fails if the kernel could put a huge page anywhere but into the stack or brk's
//                heap
//   stray        a second thread goes on, the first ends (pthread_exit)
//   discards:MIB two threads discard pages here and there of so many MiB and use them again, while
//                as much again and a half is grown
//   again:N      tries N further mallocs of 256 KiB that are expected to fail
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "raw_call.h"
#include "tests/support/cases.h"
#include "tests/support/meanwhile.h"
#include "tests/support/refused_calls.h"

namespace {

constexpr size_t kBlock = 256 << 10, kPage = 4096;

struct Block {
  unsigned char* at;
  size_t bytes;
  unsigned long seed;
};
std::vector<Block> g_blocks;
unsigned long g_seed = 1;

void write_block(Block& block, unsigned long seed) {
  block.seed = seed;
  for (size_t i = 0; i < block.bytes; i += kPage) {
    *reinterpret_cast<unsigned long*>(block.at + i) = seed + i;
    *reinterpret_cast<unsigned long*>(block.at + i + kPage - 8) = ~(seed + i);
  }
}

void check_all(const char* when) {
  for (const Block& block : g_blocks)
    for (size_t i = 0; i < block.bytes; i += kPage)
      if (*reinterpret_cast<unsigned long*>(block.at + i) != block.seed + i ||
          *reinterpret_cast<unsigned long*>(block.at + i + kPage - 8) != ~(block.seed + i)) {
        printf("page %zu of a block at %p (seed %lu) holds %lx ", i / kPage,
               static_cast<void*>(block.at), block.seed,
               *reinterpret_cast<unsigned long*>(block.at + i));
        FAIL(when);
      }
}

void grow(size_t mib) {
  for (size_t have = 0; have < mib << 20; have += kBlock) {
    Block block{static_cast<unsigned char*>(malloc(kBlock)), kBlock, 0};
    if (block.at == nullptr) {
      printf("refused at %zu MiB\n", have >> 20);
      return;
    }
    write_block(block, ++g_seed << 32);
    g_blocks.push_back(block);
  }
}

void hold(void* at, size_t bytes) {
  REQUIRE(at != MAP_FAILED);
  g_blocks.push_back({static_cast<unsigned char*>(at), bytes, 0});
  write_block(g_blocks.back(), ++g_seed << 32);
}

void map_huge(size_t mib) {
  void* at = mmap(nullptr, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)madvise(at, mib << 20, MADV_HUGEPAGE);
  hold(at, mib << 20);
}

void map_unreserved(size_t mib) {
  const size_t bytes = mib << 20;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(at != MAP_FAILED);
  hold(static_cast<char*>(at) + bytes / 4, bytes / 2);
}

void map_outside(size_t mib) {
  hold(reinterpret_cast<void*>(
           raw(SYS_mmap, 0, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
       mib << 20);
}

void map_outside_in_child(size_t mib) {
  const pid_t child = fork();
  if (child == 0) {
    map_outside(mib);
    exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

void map_pieces(size_t mib) {
  constexpr size_t kPiece = 128 << 10;
  for (size_t have = 0; have < mib << 20; have += kPiece)
    hold(mmap(nullptr, kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), kPiece);
}

void end_behind_vfork() {
  const pid_t child = vfork();
  if (child == 0) _exit(3);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
}

[[noreturn]] void end_now() {
  check_all("the end");
  printf("sound\n");
  fflush(stdout);
  _exit(0);
}

void advise() {
  for (const int advice : {MADV_HUGEPAGE, 25 /* MADV_COLLAPSE */})
    for (const Block& block :
         g_blocks)  // the huge page that it begins in, with what else lies there
      (void)madvise(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(block.at) >> 21 << 21),
                    size_t{2} << 20, advice);
}

void become_nobody() {
  REQUIRE(setgroups(0, nullptr) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
  REQUIRE(setuid(0) != 0, "still root");
}

void close_all() {
  REQUIRE(close_range(3, ~0u, 0) == 0);
  for (int fd = 3; fd < 1100; ++fd) (void)close(fd);
}

void change_root(const char* directory) { REQUIRE(chroot(directory) == 0 && chdir("/") == 0); }

// Refuses system calls that name a file, and the one that activation could use.
void install_filter() {
#ifdef SYS_open
  REQUIRE(refuse_calls({SYS_openat, SYS_open, SYS_userfaultfd}));
#else
  REQUIRE(refuse_calls({SYS_openat, SYS_userfaultfd}));
#endif
  REQUIRE(open("/dev/null", O_RDONLY) < 0, "the filter lets open pass");
}

void fork_and_grow(size_t mib) {
  fflush(stdout);
  const pid_t child = fork();
  if (child < 0) {
    printf("fork refused\n");
    return;
  }
  if (child == 0) {
    g_seed += 1000;
    for (size_t i = 0; i < g_blocks.size(); i += 2) write_block(g_blocks[i], ++g_seed << 32);
    grow(mib);
    check_all("in the child");
    check_all("in the child, again");
    fflush(stdout);
    _exit(0);
  }
  for (size_t i = 1; i < g_blocks.size(); i += 2) write_block(g_blocks[i], ++g_seed << 32);
  check_all("in the parent");
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}

void require_huge() {
  FILE* file = fopen("/proc/self/smaps_rollup", "r");
  char line[256];
  unsigned long kib = 0;
  while (file != nullptr && fgets(line, sizeof line, file) != nullptr)
    (void)sscanf(line, "AnonHugePages: %lu", &kib);
  if (file != nullptr) fclose(file);
  REQUIRE(kib != 0, "no huge pages");
}

void require_small() {
  constexpr unsigned long kHuge = 2 << 20;
  FILE* file = fopen("/proc/self/smaps", "r");
  REQUIRE(file != nullptr);
  char line[512], map[512] = "";
  unsigned long start = 0, end = 0, bad = 0;
  bool counts = false;
  while (fgets(line, sizeof line, file) != nullptr) {
    char flags[8];
    int path = 0;
    if (sscanf(line, "%lx-%lx %7s %*x %*s %*u %n", &start, &end, flags, &path) == 3) {
      counts = flags[1] == 'w' && flags[3] == 'p' && (line[path] == '\n' || line[path] == 0) &&
               (start + kHuge - 1) / kHuge * kHuge + kHuge <= end;
      strcpy(map, line);
    } else if (counts && strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " nh") == nullptr) {
      printf("huge pages may come into %s", map);
      ++bad;
    }
  }
  fclose(file);
  REQUIRE(bad == 0, "memory outside of the budget may grow by huge pages");
}

void again(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    void* volatile block = malloc(kBlock);
    if (block != nullptr) memset(block, 1, kBlock);  // kept: it is about refusals
  }
}

int g_argc;
char** g_argv;
int g_at = 1;

constexpr size_t kDiscarded = 8 * kPage;  // at once

// Discarded memory reads as zeros, whatever happens to the rest of its huge page.
void discard_some(unsigned char* base, size_t bytes, unsigned which, unsigned* seed) {
  // each thread has every second MiB
  unsigned char* at = base + ((rand_r(seed) % (bytes >> 21) * 2 + which) << 20);
  at += rand_r(seed) % ((1 << 20) / kDiscarded) * kDiscarded;
  REQUIRE(madvise(at, kDiscarded, MADV_DONTNEED) == 0);
  for (size_t page = 0; page < kDiscarded; page += kPage) {
    REQUIRE(at[page] == 0, "a discarded page came back");
    at[page] = 1;
  }
}

void discards(size_t bytes) {
  auto* base = static_cast<unsigned char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(base != MAP_FAILED);
  memset(base, 1, bytes);
  const lunar_test::Meanwhile discarding(
      [=, seed = 0u](unsigned which) mutable { discard_some(base, bytes, which, &seed); }, 2);
  usleep(2000);
  const size_t more = bytes + bytes / 2;
  auto* other = static_cast<unsigned char*>(
      mmap(nullptr, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(other != MAP_FAILED);
  for (int round = 0; round < 2; ++round)
    for (size_t at = 0; at < more; at += kPage) other[at] = 1;
}

struct Step {
  const char* name;
  void (*run)(size_t number);
};
constexpr Step kSteps[] = {{"grow", grow},
                           {"map", map_huge},
                           {"noreserve", map_unreserved},
                           {"outside", map_outside},
                           {"child", map_outside_in_child},
                           {"pieces", map_pieces},
                           {"vfork", [](size_t) { end_behind_vfork(); }},
                           {"deaf", [](size_t) { fclose(stderr); }},
                           {"exit", [](size_t) { end_now(); }},
                           {"advise", [](size_t) { advise(); }},
                           {"setuid", [](size_t) { become_nobody(); }},
                           {"seccomp", [](size_t) { install_filter(); }},
                           {"fork", fork_and_grow},
                           {"huge", [](size_t) { require_huge(); }},
                           {"discards", [](size_t mib) { discards(mib << 20); }},
                           {"closeall", [](size_t) { close_all(); }},
                           {"small", [](size_t) { require_small(); }},
                           {"again", again}};

void steps() {
  for (; g_at < g_argc; ++g_at) {
    const char* step = g_argv[g_at];
    const char* colon = strchr(step, ':');
    const size_t length = colon != nullptr ? static_cast<size_t>(colon - step) : strlen(step);
    const auto is = [&](const char* name) {
      return strlen(name) == length && strncmp(step, name, length) == 0;
    };
    const char* value = colon != nullptr ? colon + 1 : "";
    const size_t number = strtoul(value, nullptr, 10);
    if (is("chroot")) {
      change_root(value);
    } else {
      const Step* found = std::find_if(std::begin(kSteps), std::end(kSteps),
                                       [&](const Step& one) { return is(one.name); });
      if (found == std::end(kSteps)) FAIL(step);
      found->run(number);
    }
    check_all(step);
  }
  check_all("the end");
  printf("sound\n");
  fflush(stdout);
}

void* steps_of_thread(void*) {
  steps();
  exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  g_argc = argc;
  g_argv = argv;
  if (argc > 1 && strcmp(argv[1], "stray") == 0) {
    ++g_at;
    pthread_t thread;
    REQUIRE(pthread_create(&thread, nullptr, steps_of_thread, nullptr) == 0);
    pthread_exit(nullptr);
  }
  steps();
  return 0;
}
