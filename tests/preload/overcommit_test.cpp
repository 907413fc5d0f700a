// SPDX-License-Identifier: Apache-2.0
// vm.overcommit_memory=2 (root): the kernel counts what is writable against its commit limit. What a program gives back
// is not counted any more, before activation and after, and a fork is counted for what there is.
//
//   overcommit_test LIBRARY plain | active   maps, with MAP_NORESERVE and without, and the heap
//   overcommit_test LIBRARY reserved         what is called on memory that is reserved only, and has no page table yet
//   overcommit_test LIBRARY heap-among-forks the heap gives back while another thread forks
//   overcommit_test LIBRARY refused          the kernel refuses to map anew
//   overcommit_test LIBRARY among-forks      maps come and go in four threads while the process forks and evicts
//
// The setting is the machine's. So the test raises the limit out of reach first (overcommit_ratio), looks at what is
// counted for itself alone (smaps: ac), and a process in a session of its own restores the setting when the test has
// ended, however it ends. One such test of the machine runs at a time (a lock on /dev/shm): it would take another's
// setting for the machine's.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "preload_test.h"
#include "raw_call.h"
#include "seccomp_filter.h"

extern "C" int mallctl(const char*, void*, size_t*, void*, size_t) __attribute__((weak));

namespace {

constexpr size_t kMiB = 1 << 20, kMap = 48 * kMiB, kSlack = 4 * kMiB;
constexpr size_t kOwnMost = 48 * kMiB;  // of a process that has nothing yet: libraries, tables, the heap's first part
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
const char* const kBeyondAll = "1000000000";  // percent of the memory: also a sanitizer's shadow of 16 TiB
const char* const kMode = "/proc/sys/vm/overcommit_memory";
const char* const kRatio = "/proc/sys/vm/overcommit_ratio";
const char* const kBytes = "/proc/sys/vm/overcommit_kbytes";  // 0: the ratio counts

// ---- the setting ----------------------------------------------------------------------------------------------------

std::string setting(const char* path) {
  char text[32] = "";
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) text[0] = '\0';
  if (fd >= 0) close(fd);
  return text;
}

bool set(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  const bool done = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  return done;
}

// Counts commits for as long as it lives.
class StrictCommits {
 public:
  StrictCommits() {
    lock_ = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // the guard's too, until it has restored all
    CHECK(lock_ >= 0 && syscall(SYS_flock, lock_, 2 /* LOCK_EX */) == 0);
    const std::string mode = setting(kMode), ratio = setting(kRatio), bytes = setting(kBytes);
    CHECK(!mode.empty() && !ratio.empty() && pipe2(alive_, O_CLOEXEC) == 0);
    guard_ = fork();
    CHECK(guard_ >= 0);
    if (guard_ == 0) {
      setsid();
      for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGQUIT}) (void)sigaction(signal, &ignore_, nullptr);
      close(alive_[1]);
      char byte;
      while (read(alive_[0], &byte, 1) < 0 && errno == EINTR) {}
      const bool done =
          set(kMode, mode) & (strtoul(bytes.c_str(), nullptr, 10) != 0 ? set(kBytes, bytes) : set(kRatio, ratio));
      _exit(done ? 0 : 1);
    }
    close(alive_[0]);
    on_ = set(kRatio, kBeyondAll) && set(kMode, "2");
  }
  bool on() const { return on_; }
  // Whether all is as it was.
  bool end() const {
    close(alive_[1]);
    int status = 0;
    return waitpid(guard_, &status, 0) == guard_ && status == 0;
  }

 private:
  struct sigaction ignore_ = [] {
    struct sigaction action{};
    action.sa_handler = SIG_IGN;
    return action;
  }();
  int lock_, alive_[2];
  pid_t guard_ = -1;
  bool on_ = false;
};

// ---- what is counted ------------------------------------------------------------------------------------------------

size_t counted() {
  FILE* file = fopen("/proc/self/smaps", "re");
  CHECK(file != nullptr);
  char line[512];
  size_t begin = 0, end = 0, sum = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    size_t from, to;
    char access[8];
    if (sscanf(line, "%lx-%lx %4[rwxps-]", &from, &to, access) == 3) {
      begin = from;
      end = to;
    } else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " ac ") != nullptr) {
      sum += end - begin;
    }
  }
  fclose(file);
  return sum;
}

bool about(size_t is, size_t expected) {
  const bool near = is <= expected + kSlack && expected <= is + kSlack;
  if (!near) fprintf(stderr, "%.1f MiB are counted, not %.1f\n", double(is) / kMiB, double(expected) / kMiB);
  return near;
}

bool fork_sees(const char* memory, size_t bytes, unsigned long seed) {
  const pid_t child = fork();
  if (child == 0) _exit(holds(memory, bytes, seed) ? 0 : 7);
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

void maps_come_back(int flags) {
  size_t before = 0;
  for (unsigned long round = 0; round < 3; ++round) {  // the first one makes the area, with its page table
    auto* map = static_cast<char*>(mmap(nullptr, kMap, PROT_READ | PROT_WRITE, flags, -1, 0));
    CHECK(map != MAP_FAILED && tiered(map) && all_zero(map, kMap));
    fill(map, kMap, round);
    CHECK(fork_sees(map, kMap, round));
    const size_t with = counted();
    CHECK(munmap(map + kMap / 4, kMap / 2) == 0 && about(counted(), with - kMap / 2));
    CHECK(holds(map, kMap / 4, round) && holds(map + kMap / 4 * 3, kMap / 4, round, kMap / 4 * 3 / sizeof(long)));
    CHECK(mmap(map + kMap / 4, kMap / 2, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0) == map + kMap / 4);
    CHECK(about(counted(), with) && all_zero(map + kMap / 4, kMap / 2));
    CHECK(munmap(map, kMap) == 0);
    if (round == 0) before = counted();
    CHECK(about(counted(), before));
  }
}

void heap_comes_back() {
  constexpr size_t kEach = kMiB, kCount = kMap / kEach;
  CHECK(mallctl != nullptr);
  size_t before = 0;
  for (unsigned long round = 0; round < 3; ++round) {
    std::vector<char*> blocks;
    for (size_t i = 0; i < kCount; ++i) {
      blocks.push_back(static_cast<char*>(malloc(kEach)));
      CHECK(blocks.back() != nullptr && tiered(blocks.back()));
      fill(blocks.back(), kEach, round + i);
    }
    for (size_t i = 0; i < kCount; ++i) CHECK(holds(blocks[i], kEach, round + i));
    CHECK(fork_sees(blocks[kCount / 2], kEach, round + kCount / 2));
    const size_t with = counted();
    for (char* block : blocks) free(block);
    CHECK(mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0) == 0);  // MALLCTL_ARENAS_ALL
    CHECK(about(counted(), with - kMap));
    if (round == 0) before = counted();
    CHECK(about(counted(), before));
  }
}

int give_back() {
  CHECK(counted() <= kOwnMost);  // page tables: 1/256 of what is reserved, which is 16 GiB and more
  maps_come_back(kPrivate);
  maps_come_back(kPrivate | MAP_NORESERVE);
  heap_comes_back();
  return 0;
}

int reserved() {
  constexpr size_t kGiB = 1 << 30, kPart = kMiB;
  auto* full = static_cast<char*>(mmap(nullptr, kMap, PROT_READ | PROT_WRITE, kPrivate, -1, 0));
  CHECK(full != MAP_FAILED);
  fill(full, kMap, 1);
  auto* at = static_cast<char*>(mmap(nullptr, 8 * kGiB, PROT_NONE, kPrivate | MAP_NORESERVE, -1, 0));
  CHECK(at != MAP_FAILED && tiered(at));
  const size_t before = counted();
  CHECK(mlock(at + 6 * kGiB, kPart) != 0);
  CHECK(madvise(at + 5 * kGiB, kPart, 18 /* MADV_WIPEONFORK */) == 0);
  (void)madvise(at, kPart, 102 /* MADV_GUARD_INSTALL */);  // since 6.13
  (void)madvise(at + 4 * kGiB, kPart, 103 /* MADV_GUARD_REMOVE */);
  CHECK(mremap(at + 3 * kGiB, kPart, 2 * kPart, MREMAP_MAYMOVE) != MAP_FAILED);
  // Past the library, and as it is meant.
  CHECK(raw(SYS_mprotect, at + 7 * kGiB, kPart, PROT_READ | PROT_WRITE) == 0);
  CHECK(mprotect(at + 2 * kGiB, kPart, PROT_READ | PROT_WRITE) == 0);
  for (char* part : {at + 7 * kGiB, at + 2 * kGiB}) {
    CHECK(all_zero(part, kPart));
    fill(part, kPart, 2);
  }
  fill(full, kMap, 3);  // evicts them
  CHECK(fork_sees(at + 2 * kGiB, kPart, 2) && fork_sees(at + 7 * kGiB, kPart, 2));
  CHECK(munmap(at, 8 * kGiB) == 0 && holds(full, kMap, 3));
  CHECK(about(counted(), before));  // the page table of what was used has hardly taken anything
  return 0;
}

int among_forks() {
  constexpr int kThreads = 4, kForks = 20;
  constexpr size_t kEach = 6 * kMiB;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([t, &stop] {
      for (unsigned long round = t; !stop; round += kThreads) {
        auto* map = static_cast<char*>(mmap(nullptr, kEach, PROT_READ | PROT_WRITE, kPrivate, -1, 0));
        CHECK(map != MAP_FAILED && all_zero(map, kEach));
        fill(map, kEach, round);
        CHECK(munmap(map + kEach / 3 / 4096 * 4096, kEach / 2) == 0);
        CHECK(holds(map, kEach / 3 / 4096 * 4096, round) && munmap(map, kEach) == 0);
      }
    });
  auto* kept = static_cast<char*>(mmap(nullptr, 2 * kEach, PROT_READ | PROT_WRITE, kPrivate, -1, 0));
  CHECK(kept != MAP_FAILED);
  fill(kept, 2 * kEach, 99);
  for (int i = 0; i < kForks; ++i) CHECK(fork_sees(kept, 2 * kEach, 99));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(holds(kept, 2 * kEach, 99));
  return 0;
}

// From now on the kernel refuses maps at fixed places, as it does where the process has too many of them.
void refuse_fixed_maps() {
  constexpr auto kFlags = static_cast<unsigned>(offsetof(seccomp_data, args) + 3 * sizeof(uint64_t));  // little-endian
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
                        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
                        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_FIXED, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  install_filter(code);
}

// What cannot be mapped anew is given back all the same, and goes on counting.
int refused() {
  auto* kept = static_cast<char*>(mmap(nullptr, kMap, PROT_READ | PROT_WRITE, kPrivate, -1, 0));
  CHECK(kept != MAP_FAILED && tiered(kept));
  fill(kept, kMap, 1);
  refuse_fixed_maps();
  for (unsigned long round = 2; round < 6; ++round) {
    CHECK(munmap(kept + kMap / 4, kMap / 2) == 0 && holds(kept, kMap / 4, 1));
    auto* map = static_cast<char*>(mmap(nullptr, kMap / 2, PROT_READ | PROT_WRITE, kPrivate, -1, 0));
    CHECK(map == kept + kMap / 4 && all_zero(map, kMap / 2));
    fill(map, kMap / 2, round);
    CHECK(holds(map, kMap / 2, round) && fork_sees(map, kMap / 2, round));
    CHECK(holds(kept, kMap / 4, 1) && holds(kept + kMap / 4 * 3, kMap / 4, 1, kMap / 4 * 3 / sizeof(long)));
  }
  return 0;
}

// What the heap gives back while another thread forks is not counted either.
int heap_among_forks() {
  constexpr size_t kEach = 3 * kMiB, kCount = 8;
  constexpr int kRounds = 40;
  CHECK(mallctl != nullptr);
  std::atomic<bool> stop{false}, pause{false}, rests{false};
  std::thread forking([&] {
    while (!stop) {
      rests = pause.load();
      if (rests) {
        usleep(100);
        continue;
      }
      const pid_t child = fork();
      if (child == 0) _exit(0);
      int status = -1;
      CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
  });
  const auto purge = [] { CHECK(mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0) == 0); };
  size_t before = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<char*> blocks;
    for (size_t i = 0; i < kCount; ++i) {
      blocks.push_back(static_cast<char*>(malloc(kEach)));
      CHECK(blocks.back() != nullptr);
      fill(blocks.back(), kEach, i);
    }
    for (char* block : blocks) {
      free(block);
      purge();
    }
    pause = true;
    while (!rests) usleep(100);
    purge();  // what it could not give back while a fork was under way
    if (round == 0) before = counted();
    CHECK(about(counted(), before));
    pause = false;
  }
  stop = true;
  forking.join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[2] : "plain";
  const char* const dram = mode == "plain" ? "LUNAR_DRAM=512m" : "LUNAR_DRAM=16m";
  int (*const body)() = mode == "among-forks"        ? among_forks
                        : mode == "heap-among-forks" ? heap_among_forks
                        : mode == "refused"          ? refused
                        : mode == "reserved"         ? reserved
                                                     : give_back;
  if (getenv("PRELOAD_TEST_INSIDE") != nullptr) return body();
  if (geteuid() != 0) {
    printf("skip: root: vm.overcommit_memory is to be set\n");
    return 77;
  }
  const StrictCommits strict;
  int rc = 77;
  if (strict.on())
    rc = run_preloaded(argc, argv, {dram, "LUNAR_SIZE=1g"}, body);
  else
    printf("skip: sysctl: vm.overcommit_memory cannot be set here\n");
  CHECK(strict.end());
  return rc;
}
