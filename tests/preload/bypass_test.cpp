// SPDX-License-Identifier: Apache-2.0
// System calls of a program that bypass the preload library, and restrictions that it puts on
// Lunar's own calls. Results are those of plain memory, or one FATAL line and an abort; never a
// hang.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <csignal>

#include "preload_test.h"
#include "raw_call.h"
#include "tests/support/refused_calls.h"

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif

namespace {

constexpr size_t kHeap = 64 * kMiB;  // four times the budget

// A tiered map with a content that does not fit into DRAM.
char* filled_map() {
  char* p = map_any(kHeap);
  REQUIRE(tiered(p));
  fill(p, kHeap, 7);
  return p;
}

// ---- FATAL lines reach the holder of standard error ---------------------------------------------

// A map without reservation that outgrows the LUN ends by a line that a handler writes.
int run_out_of_lun() {
  char* p = map_any(4 * kHeap, kRw, kPrivate | MAP_NORESERVE);
  for (size_t at = 0; at < 4 * kHeap; at += 4096) p[at] = 1;
  return 3;
}

// So does one whose LUN's file may not grow: by a limit on file sizes, or on a full disk.
int run_out_of_file() {
  const rlimit most{96 * kMiB, RLIM_INFINITY};
  return setrlimit(RLIMIT_FSIZE, &most) == 0 ? run_out_of_lun() : 77;
}

int after_rights_are_dropped() {
  char* p = filled_map();  // activated while there are rights
  REQUIRE(setgid(65534) == 0 && setuid(65534) == 0);
  REQUIRE(holds(p, kHeap, 7));
  return run_out_of_lun();
}

void* other_thread(void* body) {
  usleep(100000);  // the main thread is gone by then
  _exit(reinterpret_cast<int (*)()>(body)());
}

// The descriptors are those of a thread that lives on when the main thread has ended.
int by_other_thread(int (*body)()) {
  pthread_t thread;
  char* p = filled_map();
  REQUIRE(p != nullptr &&
          pthread_create(&thread, nullptr, other_thread, reinterpret_cast<void*>(body)) == 0);
  pthread_exit(nullptr);
}

int without_main_thread() { return by_other_thread(run_out_of_lun); }

int direct_io_is_seen() {
  int fd = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, "/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600));
  REQUIRE(fd >= 0);
  char* p = filled_map();  // evicts
  REQUIRE(holds(p, kHeap, 7));
  return 0;
}

int pins_without_main_thread() { return by_other_thread(direct_io_is_seen); }

// ---- filters ------------------------------------------------------------------------------------

// Evicted pages come back and written pages are evicted by other system calls while `calls` are
// refused to all threads.
void use_memory_without(std::initializer_list<RefusedCall> calls,
                        unsigned answer = SECCOMP_RET_ERRNO | EPERM) {
  char* p = filled_map();
  REQUIRE(refuse_calls(calls, true, answer));
  REQUIRE(holds(p, kHeap, 7));
  fill(p, kHeap, 8);
  REQUIRE(holds(p, kHeap, 8));
  char* q = map_any(kHeap);
  REQUIRE(all_zero(q, kHeap));
  fill(q, kHeap, 9);
  REQUIRE(holds(q, kHeap, 9) && holds(p, kHeap, 8));
  REQUIRE(madvise(p, kHeap, MADV_DONTNEED) == 0 && all_zero(p, kHeap));
}

template <long... kNumbers>
void without() {
  use_memory_without({kNumbers...});
}
template <long... kNumbers>
void killed_by() {
  use_memory_without({kNumbers...}, SECCOMP_RET_KILL_THREAD);
}

const RefusedCall kUserfaultfdIoctl{SYS_ioctl, 1, 0xaa00, 0xff00};
void without_ioctl() { use_memory_without({kUserfaultfdIoctl}); }
void killed_by_ioctl() { use_memory_without({kUserfaultfdIoctl}, SECCOMP_RET_KILL_THREAD); }

void no_exit() {
  filled_map();
  REQUIRE(refuse_calls({SYS_exit_group}, true));
  for (;;) raw(SYS_exit, 0);  // the last thread of the program's
}

// ---- limits -------------------------------------------------------------------------------------

// No address space is left for anything new: what is there goes on, also what may not be read
// leaves DRAM, a child is refused.
void no_address_space() {
  char* p = filled_map();
  char statm[64];
  int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  REQUIRE(fd >= 0 && read(fd, statm, sizeof statm) > 0);
  close(fd);
  rlim_t now = strtoul(statm, nullptr, 10) * static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
  rlimit limit{now, now};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  REQUIRE(holds(p, kHeap, 7));
  constexpr size_t kHidden = 8 * kMiB;
  REQUIRE(holds(p, kHidden, 7) && present_pages(p, kHidden) > kHidden / 4096 / 2);
  REQUIRE(mprotect(p, kHidden, PROT_NONE) == 0);
  for (int turn = 0; turn < 4; ++turn)
    REQUIRE(holds(p + kHidden, kHeap - kHidden, 7, kHidden / sizeof(long)));
  REQUIRE(present_pages(p, kHidden) < kHidden / 4096 / 16);
  REQUIRE(mprotect(p, kHidden, kRw) == 0 && holds(p, kHidden, 7));
  fill(p, kHeap, 8);
  REQUIRE(holds(p, kHeap, 8));
  REQUIRE(fork() == -1 && errno == ENOMEM && holds(p, kHeap, 8));
}

// ---- daemons ------------------------------------------------------------------------------------

int of_all_descriptors(int (*close_some)(int first)) {
  char* p = filled_map();
  REQUIRE(chroot("/proc/self/fdinfo") == 0 && chdir("/") == 0 && setgid(65534) == 0 &&
          setuid(65534) == 0);
  REQUIRE(close_some(3) == 0);
  char* more = map_any(kHeap / 2);
  fill(more, kHeap / 2, 9);
  for (int round = 0; round < 2; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      REQUIRE(holds(p, kHeap, 7) && holds(more, kHeap / 2, 9) && close_some(3) == 0);
      fill(p, kHeap, 8);
      if (const pid_t grandchild = fork(); grandchild != 0)
        _exit(ends_well(grandchild) && holds(p, kHeap, 8) ? 0 : 1);
      _exit(holds(p, kHeap, 8) && holds(more, kHeap / 2, 9) ? 0 : 1);
    }
    REQUIRE(ends_well(child));
  }
  REQUIRE(holds(p, kHeap, 7) && holds(more, kHeap / 2, 9));
  return 0;
}

// A daemon shuts itself into another root directory, gives its rights up, and closes what it does
// not know, one by one or all at once: it grows and forks afterwards, as its children do.
int confined_and_closed() {
  return of_all_descriptors([](int first) {
    for (int fd = first; fd < 2048; ++fd) (void)close(fd);
    return 0;
  });
}

int confined_and_closed_at_once() {
  return of_all_descriptors(
      [](int first) { return close_range(static_cast<unsigned>(first), ~0U, 0); });
}

// So does one that is small when it forks: parent and child each have a LUN file.
void confined_early() {
  constexpr size_t kEach = 72 * kMiB;
  REQUIRE(chroot("/proc/self/fdinfo") == 0 && chdir("/") == 0);
  const pid_t child = fork();
  const unsigned long seed = child == 0 ? 1 : 2;
  char* p = map_any(kEach);
  fill(p, kEach, seed);
  for (int round = 0; round < 3; ++round) REQUIRE(holds(p, kEach, seed));
  if (child == 0) _exit(0);
  REQUIRE(ends_well(child));
}

// ---- first touches ------------------------------------------------------------------------------

// A page here and there costs a page each; what is touched one after the other is filled ahead, by
// ever more.
void sparse_touches() {
  constexpr size_t kStep = 64 * 4096, kSparse = 16 * kMiB;
  char* p = map_any(kSparse);
  for (size_t at = 0; at < kSparse; at += kStep) p[at] = 1;
  size_t sparse = present_pages(p, kSparse);
  char* q = map_any(kMiB);
  for (size_t at = 0; at < 64 * 4096; at += 4096) q[at] = 1;
  size_t dense = present_pages(q, kMiB);
  fprintf(stderr, "%zu pages touched far apart: %zu are filled; 64 in a row: %zu\n",
          kSparse / kStep, sparse, dense);
  REQUIRE(sparse <= 2 * (kSparse / kStep) && dense > 64);
}

// ---- idle ---------------------------------------------------------------------------------------

// How often the pager's threads have gone to sleep so far.
unsigned long service_switches(unsigned* threads) {
  unsigned long sum = 0;
  *threads = 0;
  DIR* directory = opendir("/proc/self/task");
  REQUIRE(directory != nullptr);
  while (dirent* entry = readdir(directory)) {
    char path[300], text[4096] = {};
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    const char* line = n > 0 && strncmp(text, "Name:\tlunar-", 12) == 0
                           ? strstr(text, "\nvoluntary_ctxt_switches:")
                           : nullptr;
    if (line == nullptr) continue;
    sum += strtoul(line + 25, nullptr, 10);
    ++*threads;
  }
  closedir(directory);
  return sum;
}

// Two seconds in which the program does nothing.
void stays_asleep(const char* who) {
  usleep(1000000);  // what is under way comes to its end
  unsigned threads = 0;
  unsigned long before = service_switches(&threads);
  REQUIRE(threads >= 3);
  usleep(2000000);
  unsigned long wakeups = service_switches(&threads) - before;
  fprintf(stderr, "%s: %u threads, %lu wake-ups in 2 s\n", who, threads, wakeups);
  REQUIRE(wakeups <= 4);
}

void idle() {
  char* p = filled_map();
  REQUIRE(holds(p, kHeap, 7));
  stays_asleep("alone");
  int has_read[2];
  REQUIRE(pipe(has_read) == 0);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    REQUIRE(holds(p, kHeap, 7));
    REQUIRE(write(has_read[1], "", 1) == 1);
    stays_asleep("child");
    _exit(0);
  }
  char byte;  // the child's reading makes its parent evict
  REQUIRE(close(has_read[1]) == 0 && read(has_read[0], &byte, 1) == 1);
  stays_asleep("parent");
  REQUIRE(ends_well(child));
}

// ---- raw calls on tiered memory -----------------------------------------------------------------

// The call takes effect, and its caller goes on; the line comes at once.
[[noreturn]] void unmap_is_refused(char* at, size_t bytes) {
  REQUIRE(raw(SYS_munmap, at, bytes) != -1);
  for (;;) pause();
}

int raw_munmap() { unmap_is_refused(filled_map() + kHeap / 4, kHeap / 2); }
int raw_munmap_heap() {
  auto* p = static_cast<char*>(aligned_alloc(kMiB, kHeap));
  fill(p, kHeap, 7);
  unmap_is_refused(p + kMiB, kMiB);
}

// A forked child ends as its parent would, which goes on.
void raw_munmap_in_child() {
  char* p = filled_map();
  const pid_t child = fork();
  if (child == 0) unmap_is_refused(p, kMiB);
  int status = 0;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
          WTERMSIG(status) == SIGABRT);
  REQUIRE(holds(p, kHeap, 7));
}

// A raw munmap before activation leaves a hole in a region, which no memory of the pager's may
// fill.
void raw_munmap_early() {
  char* p = map_any(kMiB);
  char* hole = map_any(16 * kMiB);
  fill(p, kMiB, 3);
  REQUIRE(raw(SYS_munmap, hole, 16 * kMiB) == 0);
  char* q = filled_map();
  char* r = filled_map();
  REQUIRE(holds(q, kHeap, 7) && holds(r, kHeap, 7) && holds(p, kMiB, 3));
}

// Calls about memory by libc's syscall() are served as those of their names: what they take stays
// in the tier, zeros come where zeros are due.
void calls_by_number() {
  auto* p = reinterpret_cast<char*>(syscall(SYS_mmap, nullptr, kHeap, kRw, kPrivate, -1, 0));
  REQUIRE(p != MAP_FAILED && tiered(p));
  fill(p, kHeap, 7);
  auto* moved =
      reinterpret_cast<char*>(syscall(SYS_mremap, p, kHeap, kHeap + kMiB, MREMAP_MAYMOVE));
  REQUIRE(moved != MAP_FAILED && tiered(moved) && holds(moved, kHeap, 7) &&
          all_zero(moved + kHeap, kMiB));
  REQUIRE(syscall(SYS_madvise, moved, kMiB, MADV_DONTNEED) == 0 && all_zero(moved, kMiB));
  REQUIRE(syscall(SYS_mprotect, moved, kMiB, PROT_NONE) == 0 &&
          syscall(SYS_mprotect, moved, kMiB, PROT_READ) == 0);
  REQUIRE(syscall(SYS_mlock, moved + kMiB, kMiB) == 0 &&
          syscall(SYS_munlock, moved + kMiB, kMiB) == 0);
  REQUIRE(syscall(SYS_mlockall, MCL_CURRENT) == -1 && errno == ENOMEM);
  REQUIRE(syscall(SYS_munmap, moved + kMiB, kMiB) == 0);
  REQUIRE(syscall(SYS_madvise, moved + kMiB, kMiB, MADV_DONTNEED) == -1 && errno == ENOMEM);
  REQUIRE(holds(moved + 2 * kMiB, kHeap - 2 * kMiB, 7, 2 * kMiB / sizeof(long)));
  REQUIRE(syscall(SYS_munmap, moved, kHeap + kMiB) == 0 && syscall(SYS_getpid) == getpid());
  REQUIRE(syscall(SYS_munmap, 1, 4096) == -1 && errno == EINVAL);
}

// Guard pages made past us: as on plain memory, also when the pages around them are evicted.
int raw_guards() {
  constexpr int kInstall = 102;
  char* p = filled_map();
  char* hot = p + kHeap - kMiB;
  fill(hot, kMiB, 8);
  if (raw(SYS_madvise, hot + 4096, 2 * 4096, kInstall) != 0) {  // before 6.13
    printf("skip: guard-pages: this kernel has none\n");
    return 0;
  }
  char* q = filled_map();
  REQUIRE(holds(q, kHeap, 7) && holds(hot, 4096, 8) &&
          holds(hot + 3 * 4096, kMiB - 3 * 4096, 8, 3 * 4096 / sizeof(long)));
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(hot[4096]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
          WTERMSIG(status) == SIGSEGV);
  // And those that we were told of, when they are taken away by a call past us.
  constexpr int kRemove = 103;
  REQUIRE(madvise(p, kMiB, kInstall) == 0 && raw(SYS_madvise, p, kMiB, kRemove) == 0);
  REQUIRE(all_zero(p, kMiB));
  fill(p, kMiB, 9);
  REQUIRE(holds(q, kHeap, 7) && holds(p, kMiB, 9));
  return 0;
}

// Resident pages that a raw MADV_DONTNEED drops read as zeros; a raw mprotect and a raw mlock
// change no content.
void raw_advice() {
  char* p = map_any(4 * kMiB);
  fill(p, 4 * kMiB, 7);
  REQUIRE(raw(SYS_madvise, p, kMiB, MADV_DONTNEED) == 0 && all_zero(p, kMiB));
  REQUIRE(holds(p + kMiB, 3 * kMiB, 7, kMiB / sizeof(long)));
  REQUIRE(raw(SYS_mprotect, p + kMiB, kMiB, PROT_READ) == 0 &&
          raw(SYS_mlock, p + 2 * kMiB, kMiB) == 0);
  char* q = filled_map();
  REQUIRE(holds(q, kHeap, 7) && holds(p + kMiB, 3 * kMiB, 7, kMiB / sizeof(long)));
  REQUIRE(mmap(p + kMiB, kMiB, kRw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + kMiB &&
          all_zero(p + kMiB, kMiB));
  p[kMiB] = 1;  // a map of its own may be written
}

// ---- harness ------------------------------------------------------------------------------------

constexpr const char *kSaysMunmap = "FATAL: munmap (or mremap to less) of ",
                     *kLunFull = "LUN space is used up",
                     *kThreadEnded = "has ended; only the kernel can do that";

// With root's rights, which the body drops.
template <auto kRun>
int with_rights() {
  if (geteuid() != 0) SKIP("root", "rights can be dropped by root only");
  return Body(kRun)();
}

// The kernel's process_madvise takes MADV_DONTNEED for the own process (6.14).
bool kernel_has_own_advice() {
  char* page = map_any(4096);
  iovec range{page, 4096};
  const auto self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  const bool works = syscall(SYS_process_madvise, self, &range, 1, MADV_DONTNEED, 0) == 4096;
  close(self);
  munmap(page, 4096);
  return works;
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_own = inside() || kernel_has_own_advice();
  return run_cases(
      argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=192m", "LUNAR_LOG=warning"},
      {fatal("file-limit", run_out_of_file, kLunFull),
       {"stderr-socket", run_out_of_lun, {}, kLunFull, Ends::kFatal, Errors::kSocket},
       fatal("stderr-rights", with_rights<after_rights_are_dropped>, kLunFull),
       fatal("stderr-main-gone", without_main_thread, kLunFull),
       {"pins-main-gone",
        pins_without_main_thread,
        {"LUNAR_LOG=info"},
        "may pin pages for devices"},
       {"seccomp-vmsplice", without<SYS_vmsplice>},
       {"seccomp-process-madvise", without<SYS_process_madvise>},
       has_own ? Case{"seccomp-madvise", without<SYS_madvise>}
               : fatal("seccomp-madvise", without<SYS_madvise>, "refuses madvise (EPERM)"),
       fatal("seccomp-madvise-both", without<SYS_madvise, SYS_process_madvise>,
             "refuses madvise (EPERM)"),
       fatal("seccomp-ring", without<SYS_io_uring_enter>, "refuses io_uring_enter (EPERM)"),
       fatal("seccomp-futex", without<SYS_futex>, "refuses futex (EPERM)"),
       {"seccomp-exit", no_exit, {}, nullptr, Ends::kAbort},
       fatal("seccomp-ioctl", without_ioctl, "(EPERM)"),
       {"seccomp-open", without<SYS_openat, SYS_open>},
       fatal("seccomp-kill-vmsplice", killed_by<SYS_vmsplice>, kThreadEnded),
       fatal("seccomp-kill-ring", killed_by<SYS_io_uring_enter>, kThreadEnded),
       fatal("seccomp-kill-ioctl", killed_by_ioctl, kThreadEnded),
       {"calls-by-number", calls_by_number},
       fatal("raw-munmap", raw_munmap, "(lunar run --no-mmap)"),
       {"raw-munmap-early", raw_munmap_early, {"LUNAR_DRAM=64m"}},
       fatal("raw-munmap-heap", raw_munmap_heap, kSaysMunmap),
       {"raw-munmap-child", raw_munmap_in_child, {"LUNAR_SIZE=768m"}, kSaysMunmap},
       {"raw-guards", raw_guards, {"LUNAR_SIZE=768m"}},
       {"raw-advice", raw_advice},
       {"sparse-touches", sparse_touches, {"LUNAR_ACTIVATE_AT=1m"}},
       {"idle", idle},
       {"confined-closed", with_rights<confined_and_closed>, {"LUNAR_SIZE=1g"}},
       {"confined-closed-at-once", with_rights<confined_and_closed_at_once>, {"LUNAR_SIZE=1g"}},
       {"confined-early", with_rights<confined_early>, {"LUNAR_DRAM=64m"}},
       {"address-space", no_address_space, {}, "fork refused"}});
}
