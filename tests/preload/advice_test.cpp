// SPDX-License-Identifier: Apache-2.0
// A program's madvise, mprotect with and without protection keys, mlock and munmap on its memory,
// and their results: on tiered maps and on the heap, before the pager is active and after, compared
// with plain memory where the kernel decides.
#include <sys/syscall.h>
#include <sys/uio.h>

#include <cstdint>

#include "preload_faults.h"
#include "raw_call.h"
#include "tests/support/own_status.h"
#include "tests/support/refused_calls.h"
#include "tier_stats.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

namespace {

// More than the budget goes through DRAM: what was there is evicted.
void push_out() {
  constexpr size_t kBytes = 96 * kMiB;
  char* p = map_tiered(kBytes);
  fill(p, kBytes, 99);
  REQUIRE(munmap(p, kBytes) == 0);
}

// The next map of the size takes the place of the last one; nothing of what was there may show.
void comes_back_empty(char* before, size_t bytes, int flags = kPrivate) {
  char* p = map_tiered(bytes, kRw, flags);
  REQUIRE(p <= before);  // the lowest free place
  REQUIRE(all_zero(p, bytes) && !faults(p, true));
  REQUIRE(munmap(p, bytes) == 0);
}

void unmapped_reservations_are_emptied() {
  for (int flags : {kPrivate, kPrivate | MAP_NORESERVE}) {
    char* p = map_tiered(4 * kMiB, PROT_NONE, flags);
    REQUIRE(pkey_mprotect(p, 2 * kMiB, kRw, -1) == 0);
    fill(p, 2 * kMiB, 3);
    REQUIRE(holds(p, 2 * kMiB, 3) && faults(p + 3 * kMiB) && munmap(p, 4 * kMiB) == 0);
    comes_back_empty(p, 4 * kMiB, flags);
    p = map_tiered(4 * kMiB, PROT_NONE, flags);
    REQUIRE(raw(SYS_mprotect, p, 2 * kMiB, kRw) == 0);  // behind our back
    fill(p, 2 * kMiB, 5);
    REQUIRE(holds(p, 2 * kMiB, 5) && munmap(p, 4 * kMiB) == 0);
    comes_back_empty(p, 4 * kMiB, flags);
    p = map_tiered(4 * kMiB, PROT_NONE, flags);
    REQUIRE(raw(SYS_mprotect, p, 2 * kMiB, kRw) == 0);
    fill(p, 2 * kMiB, 7);
    REQUIRE(mmap(p, 2 * kMiB, kRw, flags | MAP_FIXED, -1, 0) == p && all_zero(p, 2 * kMiB) &&
            munmap(p, 4 * kMiB) == 0);
  }
}

// As on a machine that has none.
void there_are_no_keys() {
  char* p = map_tiered(4 * kMiB);
  fill(p, 4 * kMiB, 11);
  errno = 0;
  REQUIRE(pkey_alloc(0, 0) == -1 && errno == ENOSPC);
  REQUIRE(syscall(SYS_pkey_alloc, 0, 0) == -1 && errno == ENOSPC);
  REQUIRE(pkey_mprotect(p, kMiB, PROT_NONE, 1) == -1 && errno == EINVAL && holds(p, 4 * kMiB, 11));
  REQUIRE(pkey_mprotect(p, kMiB, PROT_READ, -1) == 0 && faults(p, true) &&
          pkey_mprotect(p, kMiB, kRw, 0) == 0);
  REQUIRE(holds(p, 4 * kMiB, 11) && munmap(p, 4 * kMiB) == 0);
}

void advice_is_known_or_refused() {
  char* p = map_tiered(4 * kMiB);
  auto* heap = static_cast<char*>(aligned_alloc(g_page, 2 * kMiB));
  for (char* at : {p, heap}) {
    fill(at, 2 * kMiB, 13);
    const int harmless[] = {0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23};
    for (int advice : harmless)
      REQUIRE(madvise(at, 2 * kMiB, advice) == 0 && holds(at, 2 * kMiB, 13));
    for (int advice = -3; advice < 140; ++advice) {
      bool known = advice >= 0 && (advice <= 4 || (advice >= 8 && advice <= 25) ||
                                   (advice >= 100 && advice <= 103));
      errno = 0;
      if (!known) REQUIRE(madvise(at, 2 * kMiB, advice) == -1 && errno == EINVAL);
    }
    errno = 0;
    REQUIRE(madvise(at, 2 * kMiB, 9) == -1 && errno == EINVAL);  // MADV_REMOVE: for files
    REQUIRE(holds(at, 2 * kMiB, 13));
  }
  for (int advice : {4, 8, MADV_DONTNEED_LOCKED}) {
    for (char* at : {p, heap}) {
      fill(at, 2 * kMiB, 17);
      push_out();  // evicted content comes from the LUN, not from the kernel
      REQUIRE(madvise(at, kMiB, advice) == 0 && all_zero(at, kMiB) &&
              holds(at + kMiB, kMiB, 17, kMiB / sizeof(long)));
      fill(at, 2 * kMiB, 19);
      REQUIRE(madvise(at, kMiB, advice) == 0 && all_zero(at, kMiB));
    }
  }
  iovec self{p, kMiB};
  int pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  for (const bool by_number : {false, true}) {
    fill(p, 2 * kMiB, 21);
    push_out();
    const ssize_t done = by_number
                             ? syscall(SYS_process_madvise, pidfd, &self, 1ul, MADV_DONTNEED, 0ul)
                             : process_madvise(pidfd, &self, 1, MADV_DONTNEED, 0);
    REQUIRE(done == static_cast<ssize_t>(kMiB));
    REQUIRE(all_zero(p, kMiB) && holds(p + kMiB, kMiB, 21, kMiB / sizeof(long)));
  }
  close(pidfd);
  REQUIRE(posix_madvise(p, 2 * kMiB, POSIX_MADV_DONTNEED) == 0 &&
          posix_madvise(p + 1, kMiB, POSIX_MADV_RANDOM) == EINVAL);
  REQUIRE(holds(p + kMiB, kMiB, 21, kMiB / sizeof(long)));
  // A hole is reported, the rest is done.
  fill(p, 4 * kMiB, 23);
  errno = 0;
  REQUIRE(munmap(p + 2 * kMiB, kMiB) == 0 && madvise(p, 4 * kMiB, MADV_DONTNEED) == -1 &&
          errno == ENOMEM && all_zero(p, 2 * kMiB) && all_zero(p + 3 * kMiB, kMiB));
  errno = 0;
  REQUIRE(madvise(p + 1, kMiB, MADV_DONTNEED) == -1 && errno == EINVAL && munmap(p, 4 * kMiB) == 0);
  free(heap);
}

bool kernel_has_guards() {
  void* p = mmap(nullptr, g_page, kRw, kPrivate, -1, 0);
  bool has = raw(SYS_madvise, p, g_page, MADV_GUARD_INSTALL) == 0;
  munmap(p, g_page);
  return has;
}

// A guard page at every 16th page of the range. What is between them holds `seed`, or (0) is
// touched for the first time.
void guard_every_16th(char* p, size_t bytes, unsigned long seed) {
  size_t pages = bytes / g_page;
  for (size_t i = 5; i < pages; i += 16)
    REQUIRE(madvise(p + i * g_page, g_page, MADV_GUARD_INSTALL) == 0);
  for (size_t i = 0; i < pages; ++i) {
    char* page = p + i * g_page;
    if (i % 16 == 5)
      REQUIRE(faults(page) && faults(page, true) && faults(page + g_page - 1));
    else if (seed != 0)
      REQUIRE(holds(page, g_page, seed, i * g_page / sizeof(long)));
    else
      REQUIRE(all_zero(page, g_page));
  }
}

void guard_pages(bool heap) {
  if (!kernel_has_guards()) {
    char* p = map_tiered(2 * kMiB);
    fill(p, 2 * kMiB, 23);
    errno = 0;
    REQUIRE(madvise(p, kMiB, MADV_GUARD_INSTALL) == -1 && errno == EINVAL &&
            holds(p, 2 * kMiB, 23) && munmap(p, 2 * kMiB) == 0);
    return;
  }
  constexpr size_t kBytes = 4 * kMiB;
  const size_t pages = kBytes / g_page;
  char* p = heap ? static_cast<char*>(aligned_alloc(g_page, kBytes)) : map_tiered(kBytes);
  REQUIRE(tiered(p));
  if (!heap) guard_every_16th(p, kBytes, 0);  // filling at first touch leaves them out
  if (!heap) REQUIRE(madvise(p, kBytes, MADV_GUARD_REMOVE) == 0 && all_zero(p, kBytes));
  fill(p, kBytes, 29);
  push_out();
  guard_every_16th(p, kBytes, 29);
  push_out();
  for (size_t i = 5; i < pages; i += 16) REQUIRE(faults(p + i * g_page));
  REQUIRE(madvise(p, kBytes, MADV_DONTNEED) == 0 && all_zero(p, 5 * g_page) &&
          faults(p + 5 * g_page));  // they stay
  REQUIRE(madvise(p, kBytes, MADV_WILLNEED) == 0 && faults(p + 5 * g_page));
  errno = 0;
  REQUIRE(madvise(p, kBytes, MADV_POPULATE_WRITE) == -1 && errno == EFAULT &&
          faults(p + 5 * g_page));
  pid_t child = fork();
  if (child == 0)
    _exit(faults(p + 5 * g_page) && faults(p + 21 * g_page) && all_zero(p, 5 * g_page) &&
                  !faults(p + 6 * g_page, true)
              ? 0
              : 1);
  REQUIRE(ends_well(child));
  REQUIRE(madvise(p, kBytes, MADV_GUARD_REMOVE) == 0 && all_zero(p, kBytes));
  fill(p, kBytes, 31);
  // nothing to remove: nothing lost
  REQUIRE(madvise(p, kBytes, MADV_GUARD_REMOVE) == 0 && holds(p, kBytes, 31));
  guard_every_16th(p, kBytes, 31);
  if (heap) {
    REQUIRE(madvise(p, kBytes, MADV_GUARD_REMOVE) == 0);
    free(p);
    return;
  }
  char* wall = map_tiered(kMiB);  // so that it must move
  auto* q = static_cast<char*>(mremap(p, kBytes, 2 * kBytes, MREMAP_MAYMOVE));
  REQUIRE(q != MAP_FAILED);
  for (size_t i = 0; i < pages; ++i)
    REQUIRE(i % 16 == 5 ? faults(q + i * g_page)
                        : holds(q + i * g_page, g_page, 31, i * g_page / sizeof(long)));
  REQUIRE(munmap(q, 2 * kBytes) == 0 && munmap(wall, kMiB) == 0);
  comes_back_empty(q, 2 * kBytes);
  comes_back_empty(p, kBytes);
  p = map_tiered(kBytes, PROT_NONE);  // in a reservation
  REQUIRE(madvise(p, g_page, MADV_GUARD_INSTALL) == 0 && mprotect(p, kBytes, kRw) == 0 &&
          faults(p) && all_zero(p + g_page, kBytes - g_page));
  REQUIRE(mmap(p, kBytes, kRw, kPrivate | MAP_FIXED, -1, 0) == p && all_zero(p, kBytes));
  REQUIRE(munmap(p, kBytes) == 0);
}

uint64_t pinned_bytes() { return tier_stats().pinned_bytes; }
uint64_t major_faults() { return tier_stats().major_faults; }
uint64_t prefetched() { return tier_stats().prefetched; }

void locks() {
  char* p = map_tiered(4 * kMiB);
  auto* heap = static_cast<char*>(aligned_alloc(g_page, 2 * kMiB));
  fill(p, 4 * kMiB, 37);
  fill(heap, 2 * kMiB, 37);
  REQUIRE(mlock(p + kMiB, kMiB) == 0 && mlock(heap, kMiB) == 0 && pinned_bytes() == 2 * kMiB &&
          lunar_test::status_kib("VmLck") == 0);
  push_out();
  errno = 0;
  REQUIRE(madvise(p, 4 * kMiB, MADV_DONTNEED) == -1 && errno == EINVAL);  // up to the lock
  REQUIRE(all_zero(p, kMiB) && holds(p + kMiB, 3 * kMiB, 37, kMiB / sizeof(long)));
  REQUIRE(madvise(p + kMiB, kMiB, MADV_DONTNEED_LOCKED) == 0 && all_zero(p + kMiB, kMiB) &&
          pinned_bytes() == 2 * kMiB);
  REQUIRE(munlockall() == 0 && pinned_bytes() == 0 && madvise(p, 4 * kMiB, MADV_DONTNEED) == 0 &&
          all_zero(p, 4 * kMiB));
  // Plain memory, tiered memory, plain memory again, in one call.
  char* plain = p + 2 * kMiB;
  int fd = memfd_create("plain", MFD_CLOEXEC);
  REQUIRE(fd >= 0 && ftruncate(fd, static_cast<off_t>(64 * 1024)) == 0);
  REQUIRE(mmap(plain, 64 * 1024, kRw, MAP_PRIVATE | MAP_FIXED, fd, 0) == plain);
  REQUIRE(mlock(plain - 128 * 1024, 256 * 1024) == 0 && lunar_test::status_kib("VmLck") == 64 &&
          pinned_bytes() == 192 * 1024);
  REQUIRE(munlock(plain - 128 * 1024, 256 * 1024) == 0 && lunar_test::status_kib("VmLck") == 0 &&
          pinned_bytes() == 0);
  REQUIRE(mlock(plain, 128 * 1024) == 0 && lunar_test::status_kib("VmLck") == 64 &&
          pinned_bytes() == 64 * 1024);  // begins in plain memory
  REQUIRE(munlockall() == 0 && lunar_test::status_kib("VmLck") == 0 && pinned_bytes() == 0);
  REQUIRE(mlock(p, g_page) == 0 && munmap(p, 4 * kMiB) == 0 && pinned_bytes() == 0);
  errno = 0;
  REQUIRE(mlock(p, g_page) == -1 && errno == ENOMEM);
  // mremap takes a lock along, and locks what it adds.
  p = map_tiered(4 * kMiB);
  fill(p, 4 * kMiB, 38);
  REQUIRE(mlock(p + kMiB, kMiB) == 0);
  auto* moved = static_cast<char*>(mremap(p + kMiB, kMiB, 2 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(moved != MAP_FAILED && moved != p + kMiB && pinned_bytes() == 2 * kMiB);
  push_out();
  REQUIRE(present_pages(moved, 2 * kMiB) == 2 * kMiB / g_page &&
          holds(moved, kMiB, 38, kMiB / sizeof(long)) && all_zero(moved + kMiB, kMiB));
  REQUIRE(mremap(moved, 2 * kMiB, 2 * kMiB + 64 * 1024, MREMAP_MAYMOVE) != MAP_FAILED &&
          pinned_bytes() == 2 * kMiB + 64 * 1024);
  REQUIRE(munlockall() == 0 && pinned_bytes() == 0 && munmap(p, kMiB) == 0 &&
          munmap(p + 2 * kMiB, 2 * kMiB) == 0);
  p = map_tiered(2 * kMiB, PROT_NONE);
  errno = 0;
  REQUIRE(mlock(p, g_page) == -1 && errno == ENOMEM && munmap(p, 2 * kMiB) == 0);
  close(fd);
  free(heap);
}

bool child_says(bool (*check)(char*), char* p) {
  return in_child([=] { return check(p); });
}

void wiped_on_fork() {
  char* p = map_tiered(4 * kMiB);
  fill(p, 4 * kMiB, 47);
  REQUIRE(madvise(p + kMiB, kMiB, MADV_WIPEONFORK) == 0 && holds(p, 4 * kMiB, 47));
  if (!g_early) push_out();  // on the LUN, from where a child could get it
  auto wiped = [](char* at) {
    return all_zero(at + kMiB, kMiB) && holds(at, kMiB, 47) &&
           holds(at + 2 * kMiB, 2 * kMiB, 47, 2 * kMiB / sizeof(long));
  };
  REQUIRE(child_says(wiped, p) && holds(p, 4 * kMiB, 47) && child_says(wiped, p));
  // A grandchild too, of what the child has written there.
  REQUIRE(child_says(
      [](char* at) {
        fill(at + kMiB, kMiB, 53);
        return child_says([](char* there) { return all_zero(there + kMiB, kMiB); }, at) &&
               holds(at + kMiB, kMiB, 53);
      },
      p));
  char* wall = map_tiered(kMiB);  // it moves along
  auto* q = static_cast<char*>(mremap(p, 4 * kMiB, 8 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(q != MAP_FAILED && child_says(wiped, q) && holds(q, 4 * kMiB, 47));
  REQUIRE(madvise(q, 4 * kMiB, MADV_KEEPONFORK) == 0 &&
          child_says([](char* at) { return holds(at, 4 * kMiB, 47); }, q));
  REQUIRE(madvise(q, 4 * kMiB, MADV_WIPEONFORK) == 0 && munmap(q, 8 * kMiB) == 0 &&
          munmap(wall, kMiB) == 0);
  q = map_tiered(8 * kMiB);  // it ended with its map
  fill(q, 8 * kMiB, 59);
  REQUIRE(child_says([](char* at) { return holds(at, 8 * kMiB, 59); }, q) &&
          munmap(q, 8 * kMiB) == 0);
}

#if defined(__x86_64__)
void put_function(char* at, int answer) {
  // mov eax, answer; ret
  const unsigned char code[] = {0xb8, static_cast<unsigned char>(answer), 0, 0, 0, 0xc3};
  memcpy(at, code, sizeof code);
}
int call(char* at) { return reinterpret_cast<int (*)()>(at)(); }

// A reservation that a just-in-time compiler makes writable, then executable: code stays in DRAM,
// the rest is tiered.
void generated_code(int flags) {
  char* p = map_tiered(8 * kMiB, PROT_NONE, flags);
  REQUIRE(mprotect(p, 4 * kMiB, kRw) == 0);
  fill(p, 4 * kMiB, 61);
  put_function(p + kMiB, 42);
  push_out();
  REQUIRE(present_pages(p, 4 * kMiB) < kMiB / g_page);
  REQUIRE(mprotect(p + kMiB, kMiB, PROT_READ | PROT_EXEC) == 0);
  push_out();
  REQUIRE(present_pages(p + kMiB, kMiB) == kMiB / g_page &&
          present_pages(p, kMiB) < kMiB / g_page / 2);
  REQUIRE(call(p + kMiB) == 42 &&
          holds(p + kMiB + g_page, kMiB - g_page, 61, (kMiB + g_page) / sizeof(long)) &&
          holds(p, kMiB, 61));
  REQUIRE(mprotect(p + kMiB, kMiB, kRw) == 0);  // more code is written
  put_function(p + kMiB + g_page, 43);
  REQUIRE(mprotect(p + kMiB, kMiB, PROT_READ | PROT_EXEC) == 0 && call(p + kMiB + g_page) == 43);
  // was only reserved
  REQUIRE(mprotect(p + 5 * kMiB, kMiB, kRw | PROT_EXEC) == 0 && all_zero(p + 5 * kMiB, kMiB));
  put_function(p + 5 * kMiB, 44);
  REQUIRE(mmap(p + 6 * kMiB, kMiB, kRw | PROT_EXEC, flags | MAP_FIXED, -1, 0) == p + 6 * kMiB);
  put_function(p + 6 * kMiB, 45);
  REQUIRE(call(p + 5 * kMiB) == 44 && call(p + 6 * kMiB) == 45);
  fill(p + 5 * kMiB + g_page, kMiB - g_page, 67);
  push_out();
  REQUIRE(present_pages(p + 5 * kMiB, kMiB) == kMiB / g_page);
  REQUIRE(child_says(
      [](char* at) {
        bool right = call(at + kMiB) == 42 && call(at + kMiB + g_page) == 43 &&
                     call(at + 5 * kMiB) == 44 && call(at + 6 * kMiB) == 45;
        push_out();  // of the child's own budget
        return right && all_zero(at + 6 * kMiB + g_page, kMiB - g_page) && holds(at, kMiB, 61) &&
               present_pages(at + 5 * kMiB, kMiB) == kMiB / g_page &&
               holds(at + 5 * kMiB + g_page, kMiB - g_page, 67) && call(at + kMiB) == 42;
      },
      p));
  REQUIRE(holds(p + 2 * kMiB, 2 * kMiB, 61, 2 * kMiB / sizeof(long)) && faults(p + 7 * kMiB));
  REQUIRE(munmap(p, 8 * kMiB) == 0 && faults(p + kMiB) && faults(p + 5 * kMiB));
  for (int i = 0; i < 4; ++i) {
    char* q = map_tiered(8 * kMiB, kRw, flags);
    REQUIRE(all_zero(q, 8 * kMiB) && !faults(q + kMiB, true));
    if (i % 2) REQUIRE(munmap(q, 8 * kMiB) == 0);
  }
}
#else
void generated_code(int) {}
#endif

// Reads the first word of each page of the range.
void read_pages(const char* p, size_t pages) {
  for (size_t i = 0; i < pages; ++i)
    REQUIRE(*reinterpret_cast<const unsigned long*>(p + i * g_page) ==
            stamp(41, i * g_page / sizeof(long)));
}

// One after the other, and still no page that was not asked for.
void random_reads_nothing_ahead() {
  constexpr size_t kBytes = 128 * kMiB, kRead = 8 * kMiB;
  char* p = map_tiered(kBytes);
  fill(p, kBytes, 41);
  REQUIRE(madvise(p, 2 * kRead, MADV_PAGEOUT) == 0 && madvise(p, 2 * kRead, MADV_RANDOM) == 0);
  uint64_t ahead = prefetched(), major = major_faults();
  read_pages(p, kRead / g_page);
  fprintf(stderr, "random: %lu pages, %lu reads, %lu read ahead\n", kRead / g_page,
          major_faults() - major, prefetched() - ahead);
  REQUIRE(prefetched() == ahead && major_faults() - major > kRead / g_page * 9 / 10);
  REQUIRE(madvise(p, kBytes, MADV_NORMAL) == 0 && madvise(p, 2 * kRead, MADV_PAGEOUT) == 0);
  read_pages(p, kRead / g_page);
  REQUIRE(prefetched() > ahead && holds(p, kBytes, 41) && munmap(p, kBytes) == 0);
}

// From the first page of a run on.
void sequential_reads_ahead() {
  constexpr size_t kBytes = 128 * kMiB, kPlaces = 64, kRun = 32;
  char* p = map_tiered(kBytes);
  fill(p, kBytes, 41);
  REQUIRE(madvise(p, kBytes, MADV_PAGEOUT) == 0 && madvise(p, kBytes, MADV_SEQUENTIAL) == 0);
  uint64_t major = major_faults();
  for (size_t i = 0; i < kPlaces; ++i) {
    const char* at = p + i * (kBytes / kPlaces);
    for (size_t k = 0; k < kRun; ++k)
      REQUIRE(*reinterpret_cast<const unsigned long*>(at + k * g_page) ==
              stamp(41, static_cast<size_t>(at - p + k * g_page) / sizeof(long)));
  }
  fprintf(stderr, "sequential: %lu runs of %lu pages, %lu reads\n", kPlaces, kRun,
          major_faults() - major);
  REQUIRE(major_faults() - major < 2 * kPlaces && holds(p, kBytes, 41) && munmap(p, kBytes) == 0);
}

// Pages behind a sequential reader leave DRAM before other pages.
void sequential_evicts_behind() {
  constexpr size_t kBytes = 64 * kMiB, kOthers = 10 * kMiB;
  char* p = map_tiered(kBytes);
  fill(p, kBytes, 41);
  REQUIRE(madvise(p, kBytes, MADV_PAGEOUT) == 0 && madvise(p, kBytes, MADV_SEQUENTIAL) == 0);
  char* others = map_tiered(kOthers);
  fill(others, kOthers, 43);
  for (int pass = 0; pass < 6; ++pass)
    read_pages(p, kBytes / g_page);  // each brings the clock's hand round once
  const size_t stayed = present_pages(others, kOthers);
  fprintf(stderr, "behind: %lu of %lu pages of others stayed\n", stayed, kOthers / g_page);
  REQUIRE(stayed > kOthers / g_page * 3 / 4);
  REQUIRE(holds(p, kBytes, 41) && holds(others, kOthers, 43) && munmap(p, kBytes) == 0 &&
          munmap(others, kOthers) == 0);
}

// The child shares the memory of its parent, but not its descriptors: what it opens for this thread
// must not stay.
void advised_by_a_child_of_vfork() {
  constexpr size_t kBytes = 16 * kMiB;
  char* p = map_tiered(kBytes);
  fill(p, kBytes, 71);
  for (int advice : {MADV_WILLNEED, MADV_POPULATE_READ}) {
    push_out();
    const pid_t child = vfork();  // NOLINT(bugprone-unsafe-functions): what this is about
    if (child == 0) _exit(madvise(p, 2 * kMiB, advice) == 0 ? 0 : 1);
    REQUIRE(ends_well(child));
    REQUIRE(madvise(p + 4 * kMiB, 2 * kMiB, MADV_POPULATE_READ) == 0 && holds(p, kBytes, 71));
  }
}

// Not active: small, and nothing may activate it but what comes last.
void guard_pages_before_activation() {
  if (!kernel_has_guards()) return;
  char* p = map_tiered(2 * kMiB);
  guard_every_16th(p, 2 * kMiB, 0);
  REQUIRE(madvise(p, kMiB, MADV_DONTNEED) == 0 && faults(p + 5 * g_page) &&
          madvise(p, kMiB, MADV_GUARD_REMOVE) == 0 && all_zero(p, kMiB));
  REQUIRE(faults(p + kMiB + 5 * g_page) && munmap(p, 2 * kMiB) == 0);
  comes_back_empty(p, 2 * kMiB);
  p = map_tiered(2 * kMiB);
  guard_every_16th(p, 2 * kMiB, 0);
  push_out();  // active now
  for (size_t i = 0; i < 2 * kMiB / g_page; ++i) REQUIRE(faults(p + i * g_page) == (i % 16 == 5));
  REQUIRE(munmap(p, 2 * kMiB) == 0);
}

// To a kernel before 6.13 they are unknown. A program that tries them goes on without: all of its
// memory does what it did.
void unknown_guard_pages() {
  REQUIRE(refuse_calls({{SYS_madvise, 2, MADV_GUARD_INSTALL}, {SYS_madvise, 2, MADV_GUARD_REMOVE}},
                       false, SECCOMP_RET_ERRNO | EINVAL));
  char* written = map_tiered(4 * kMiB);
  char* reserved = map_tiered(4 * kMiB, PROT_NONE);
  fill(written, 4 * kMiB, 7);
  for (char* p : {written, reserved})
    for (const int advice : {MADV_GUARD_INSTALL, MADV_GUARD_REMOVE})
      REQUIRE(madvise(p + kMiB, kMiB, advice) != 0 && errno == EINVAL);
  REQUIRE(holds(written, 4 * kMiB, 7));
  REQUIRE(munmap(written + 2 * kMiB, kMiB) == 0);
  REQUIRE(mremap(reserved, 4 * kMiB, 8 * kMiB, MREMAP_MAYMOVE) != MAP_FAILED);
  auto* moved = static_cast<char*>(mremap(written, 2 * kMiB, 6 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(moved != MAP_FAILED && holds(moved, 2 * kMiB, 7));
  REQUIRE(munmap(moved, 6 * kMiB) == 0);
  comes_back_empty(moved, 6 * kMiB);
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(
      argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=1m"},
      {{"wipe", wiped_on_fork},
       {"reservations", unmapped_reservations_are_emptied},
       {"keys", there_are_no_keys},
       {"advice", advice_is_known_or_refused},
       {"vfork", advised_by_a_child_of_vfork},
       {"guards", [] { g_early ? guard_pages_before_activation() : guard_pages(false); }},
       {"heap-guards", [] { guard_pages(true); }},
       {"unknown-guards", unknown_guard_pages},
       {"locks", locks},
       {"code", [] { generated_code(kPrivate); }},
       {"code-noreserve", [] { generated_code(kPrivate | MAP_NORESERVE); }},
       {"random", random_reads_nothing_ahead},
       {"sequential", sequential_reads_ahead},
       {"behind", sequential_evicts_behind}},
      {"LUNAR_ACTIVATE_AT=64m"});
}
