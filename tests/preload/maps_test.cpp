// SPDX-License-Identifier: Apache-2.0
// mmap, munmap, mremap, madvise, mprotect under the preload: the kernel's semantics, on tiered
// maps.
#include <fcntl.h>
#include <sched.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include <cstdint>

#include "preload_faults.h"

namespace {

constexpr size_t kWords = kMiB / sizeof(long);

void what_is_tiered() {
  char* small = map_any(64 * 1024);
  char* large = map_any(2 * kMiB);
  char* stack = map_any(2 * kMiB, kRw, kPrivate | MAP_STACK);
  char* shared = map_any(2 * kMiB, kRw, MAP_SHARED | MAP_ANONYMOUS);
  char* code = map_any(2 * kMiB, kRw | PROT_EXEC);
  char* down = map_any(2 * kMiB, kRw, kPrivate | MAP_GROWSDOWN);
  char* locked = map_any(2 * kMiB, kRw, kPrivate | MAP_LOCKED);
  REQUIRE(!tiered(small) && tiered(large) && !tiered(stack) && !tiered(shared) && !tiered(code) &&
          !tiered(down) && tiered(locked));
  REQUIRE(all_zero(large, 2 * kMiB));
  for (char* p : {large, stack, shared, code, down, locked}) REQUIRE(munmap(p, 2 * kMiB) == 0);
  REQUIRE(munmap(small, 64 * 1024) == 0);
  char *below = map_any(252 * 1024), *smallest = map_any(256 * 1024);  // as V8's pages
  REQUIRE(!tiered(below) && tiered(smallest) && munmap(below, 252 * 1024) == 0 &&
          munmap(smallest, 256 * 1024) == 0);
  errno = 0;
  REQUIRE(mmap(nullptr, 0, kRw, kPrivate, -1, 0) == MAP_FAILED && errno == EINVAL);
}

void partial_unmap() {
  char* p = map_any(4 * kMiB);
  fill(p, 4 * kMiB, 5);
  REQUIRE(munmap(p + kMiB, kMiB) == 0);
  REQUIRE(faults(p + kMiB) && faults(p + 2 * kMiB - 1));
  REQUIRE(holds(p, kMiB, 5) && holds(p + 2 * kMiB, 2 * kMiB, 5, 2 * kMiB / sizeof(long)));
  errno = 0;
  REQUIRE(munmap(p + 1, kMiB) == -1 && errno == EINVAL);
  errno = 0;
  REQUIRE(munmap(p, 0) == -1 && errno == EINVAL);
  REQUIRE(munmap(p, 4 * kMiB) == 0);  // holes are fine
  REQUIRE(faults(p) && faults(p + 3 * kMiB));
}

void remap() {
  char* p = map_any(3 * kMiB);
  fill(p, 3 * kMiB, 9);
  auto* q = static_cast<char*>(mremap(p, 3 * kMiB, 2 * kMiB, 0));
  REQUIRE(q == p && holds(p, 2 * kMiB, 9) && faults(p + 2 * kMiB));
  // what was given back lies right behind
  q = static_cast<char*>(mremap(p, 2 * kMiB, 3 * kMiB, 0));
  REQUIRE(q == p && holds(p, 2 * kMiB, 9) && all_zero(p + 2 * kMiB, kMiB));
  fill(p, 3 * kMiB, 9);
  char* wall = static_cast<char*>(mmap(p + 3 * kMiB, kMiB, kRw, kPrivate, -1, 0));
  errno = 0;
  if (wall == p + 3 * kMiB)
    REQUIRE(mremap(p, 3 * kMiB, 64 * kMiB, 0) == MAP_FAILED && errno == ENOMEM);
  q = static_cast<char*>(mremap(p, 3 * kMiB, 64 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(q != MAP_FAILED && tiered(q) && holds(q, 3 * kMiB, 9) &&
          all_zero(q + 3 * kMiB, 61 * kMiB));
  if (q != p) REQUIRE(faults(p));
  fill(q, 64 * kMiB, 11);  // evicted pages move too
  wall = static_cast<char*>(mmap(q + 64 * kMiB, kMiB, kRw, kPrivate, -1, 0));
  char* r = static_cast<char*>(mremap(q, 64 * kMiB, 96 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(r != MAP_FAILED && holds(r, 64 * kMiB, 11));
  errno = 0;
  REQUIRE(mremap(r + 1, kMiB, 2 * kMiB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
  errno = 0;
  REQUIRE(mremap(r, kMiB, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
  errno = 0;
  REQUIRE(mremap(r, 200 * kMiB, 300 * kMiB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
  char* target = map_any(2 * kMiB);
  char* moved =
      static_cast<char*>(mremap(r, 2 * kMiB, 2 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, target));
  REQUIRE(moved == target && holds(moved, 2 * kMiB, 11) && faults(r));
  REQUIRE(munmap(moved, 2 * kMiB) == 0 && munmap(r + 2 * kMiB, 94 * kMiB) == 0);
}

// As munmap, a shrinking mremap takes what lies there, be it one map or several; so does one that
// changes nothing.
void shrink_over_several() {
  char* p = map_any(4 * kMiB);
  fill(p, 4 * kMiB, 13);
  REQUIRE(mprotect(p + kMiB, kMiB, PROT_READ) == 0 && munmap(p + 2 * kMiB, kMiB / 2) == 0);
  REQUIRE(mremap(p, 4 * kMiB, 4 * kMiB, MREMAP_MAYMOVE) == p && holds(p, 2 * kMiB, 13));
  REQUIRE(mremap(p, 4 * kMiB, 3 * kMiB / 2, MREMAP_MAYMOVE) == p);
  REQUIRE(holds(p, 3 * kMiB / 2, 13) && faults(p + 3 * kMiB / 2) && faults(p + 3 * kMiB));
  errno = 0;
  REQUIRE(mremap(p, 3 * kMiB / 2, 2 * kMiB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
  REQUIRE(mremap(p, 3 * kMiB / 2, kMiB, 0) == p && holds(p, kMiB, 13) && faults(p + kMiB));
  errno = 0;
  REQUIRE(mremap(p + kMiB, kMiB, kMiB / 2, 0) == MAP_FAILED && errno == EFAULT);
  REQUIRE(munmap(p, kMiB) == 0);
}

// A map too small for the tier is taken in when mremap makes it larger, with its contents and its
// protection.
void grows_into_the_tier() {
  constexpr size_t kSmall = 64 * 1024;
  for (const int prot : {kRw, PROT_READ, PROT_NONE}) {
    for (const size_t bytes : {kMiB, 48 * kMiB}) {  // more than the budget
      char* p = map_any(kSmall);
      REQUIRE(!tiered(p));
      fill(p + kSmall / 2, kSmall / 2, 21);
      REQUIRE(mprotect(p, kSmall, prot) == 0);
      errno = 0;
      REQUIRE(mremap(p, kSmall, bytes, 0) == MAP_FAILED && errno == ENOMEM);  // not where it is
      auto* q = static_cast<char*>(mremap(p, kSmall, bytes, MREMAP_MAYMOVE));
      REQUIRE(q != MAP_FAILED && tiered(q) && faults(p));
      REQUIRE(faults(q) == (prot == PROT_NONE) && faults(q + bytes - 1, true) == (prot != kRw));
      REQUIRE(mprotect(q, bytes, kRw) == 0 && all_zero(q, kSmall / 2) &&
              holds(q + kSmall / 2, kSmall / 2, 21) && all_zero(q + kSmall, bytes - kSmall - 1));
      fill(q, bytes, 25);
      REQUIRE(holds(q, bytes, 25) && munmap(q, bytes) == 0);
    }
  }
  char* p = map_any(kSmall);
  fill(p, kSmall, 27);
  auto* q = static_cast<char*>(mremap(p, kSmall, 2 * kSmall, MREMAP_MAYMOVE));  // still small
  REQUIRE(q != MAP_FAILED && !tiered(q) && holds(q, kSmall, 27) && munmap(q, 2 * kSmall) == 0);
  // A part of what the kernel takes for one map; locked memory, code and files stay the kernel's.
  p = map_any(4 * kSmall - g_page);
  fill(p, 4 * kSmall - g_page, 29);
  q = static_cast<char*>(mremap(p + kSmall, kSmall, 2 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(q != MAP_FAILED && tiered(q) && holds(q, kSmall, 29, kSmall / sizeof(long)) &&
          all_zero(q + kSmall, 2 * kMiB - kSmall));
  REQUIRE(holds(p, kSmall, 29) && faults(p + kSmall) &&
          holds(p + 2 * kSmall, kSmall, 29, 2 * kSmall / sizeof(long)));
  REQUIRE(munmap(q, 2 * kMiB) == 0 && munmap(p, 4 * kSmall - g_page) == 0);
  p = map_any(kSmall);
  REQUIRE(mlock(p, kSmall) == 0);
  q = static_cast<char*>(mremap(p, kSmall, kMiB, MREMAP_MAYMOVE));
  REQUIRE(q != MAP_FAILED && !tiered(q) && munmap(q, kMiB) == 0);
  p = map_any(kSmall, kRw | PROT_EXEC);
  q = static_cast<char*>(mremap(p, kSmall, kMiB, MREMAP_MAYMOVE));
  REQUIRE(q != MAP_FAILED && !tiered(q) && munmap(q, kMiB) == 0);
  p = map_any(kSmall, kRw, MAP_SHARED | MAP_ANONYMOUS);
  q = static_cast<char*>(mremap(p, kSmall, kMiB, MREMAP_MAYMOVE));
  REQUIRE(q != MAP_FAILED && !tiered(q) && munmap(q, kMiB) == 0);
}

// Their own process: a mark on plain memory, which a copy would not have, is permanent.
void marked_maps_stay_with_the_kernel() {
  constexpr size_t kSmall = 64 * 1024;
  const pid_t child = fork();
  if (child == 0) {
    char* p = map_any(kSmall);
    fill(p, kSmall, 33);
    REQUIRE(madvise(p, kSmall, MADV_WIPEONFORK) == 0);
    auto* q = static_cast<char*>(mremap(p, kSmall, 2 * kMiB, MREMAP_MAYMOVE));
    REQUIRE(q != MAP_FAILED && holds(q, kSmall, 33));
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(all_zero(q, 2 * kMiB) ? 0 : 1);
    REQUIRE(ends_well(grandchild));
    _exit(0);
  }
  REQUIRE(ends_well(child));
}

// MAP_LOCKED: there at once, and it stays; half of the budget at most.
void locked_maps() {
  unsigned char there[8 * kMiB / 4096];
  for (const int prot : {kRw, PROT_READ}) {
    char* p = map_any(8 * kMiB, prot, kPrivate | MAP_LOCKED);
    char* other = map_any(48 * kMiB);
    fill(other, 48 * kMiB, 35);
    REQUIRE(mincore(p, 8 * kMiB, there) == 0);
    for (const unsigned char one : there) REQUIRE((one & 1) != 0);
    REQUIRE(all_zero(p, 8 * kMiB));
    errno = 0;
    // with what is locked already
    REQUIRE(mmap(nullptr, 12 * kMiB, kRw, kPrivate | MAP_LOCKED, -1, 0) == MAP_FAILED &&
            errno == EAGAIN);
    REQUIRE(munmap(p, 8 * kMiB) == 0);
    p = map_any(12 * kMiB, prot, kPrivate | MAP_LOCKED);  // the lock has ended with its map
    REQUIRE(mmap(other, kMiB, prot, kPrivate | MAP_LOCKED | MAP_FIXED, -1, 0) == other &&
            all_zero(other, kMiB));
    errno = 0;
    // as of all locked memory
    REQUIRE(madvise(other, kMiB, MADV_DONTNEED) == -1 && errno == EINVAL);
    REQUIRE(holds(other + kMiB, 47 * kMiB, 35, kMiB / sizeof(long)) && munmap(p, 12 * kMiB) == 0 &&
            munmap(other, 48 * kMiB) == 0);
  }
  char* p = map_any(48 * kMiB, PROT_NONE, kPrivate | MAP_LOCKED);  // nothing to lock
  REQUIRE(tiered(p) && munmap(p, 48 * kMiB) == 0);
}

void protection() {
  char* p = map_any(8 * kMiB, PROT_NONE);
  REQUIRE(tiered(p) && faults(p) && faults(p + 7 * kMiB));
  REQUIRE(mprotect(p + kMiB, kMiB, kRw) == 0 && faults(p) && faults(p + 2 * kMiB));
  fill(p + kMiB, kMiB, 17);
  REQUIRE(mprotect(p + kMiB, kMiB, PROT_READ) == 0 && faults(p + kMiB, true) &&
          holds(p + kMiB, kMiB, 17));
  REQUIRE(mprotect(p + kMiB, kMiB, PROT_NONE) == 0 && faults(p + kMiB));
  REQUIRE(mprotect(p, 4 * kMiB, kRw) == 0 && holds(p + kMiB, kMiB, 17) && all_zero(p, kMiB));
  REQUIRE(munmap(p + 2 * kMiB, g_page) == 0);
  errno = 0;
  REQUIRE(mprotect(p, 4 * kMiB, PROT_READ) == -1 && errno == ENOMEM);
  REQUIRE(munmap(p, 8 * kMiB) == 0);
  p = map_any(2 * kMiB, PROT_READ);
  REQUIRE(all_zero(p, 2 * kMiB) && faults(p, true));
  REQUIRE(munmap(p, 2 * kMiB) == 0);
}

void fixed_inside() {
  char* p = map_any(8 * kMiB);
  fill(p, 8 * kMiB, 19);
  REQUIRE(mmap(p + kMiB, kMiB, kRw, kPrivate | MAP_FIXED, -1, 0) == p + kMiB);
  REQUIRE(tiered(p + kMiB) && all_zero(p + kMiB, kMiB) && holds(p, kMiB, 19));
  REQUIRE(mmap(p + 2 * kMiB, kMiB, PROT_NONE, kPrivate | MAP_FIXED, -1, 0) == p + 2 * kMiB &&
          faults(p + 2 * kMiB));
  REQUIRE(mmap(p + 2 * kMiB, kMiB, kRw, kPrivate | MAP_FIXED, -1, 0) == p + 2 * kMiB &&
          all_zero(p + 2 * kMiB, kMiB));
#ifdef MAP_FIXED_NOREPLACE
  errno = 0;
  REQUIRE(mmap(p, kMiB, kRw, kPrivate | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
          errno == EEXIST);
#endif
  errno = 0;
  REQUIRE(mmap(p, kMiB, kRw, MAP_PRIVATE | MAP_FIXED, 9999, 0) == MAP_FAILED && errno == EBADF &&
          holds(p, kMiB, 19));
  REQUIRE(munmap(p, 8 * kMiB) == 0);
}

// The part that mprotect changes before it meets a hole stays changed; a place that a file has left
// can be mapped again.
void up_to_a_hole() {
  char* p = map_any(4 * kMiB);
  fill(p, 4 * kMiB, 41);
  REQUIRE(munmap(p + 2 * kMiB, kMiB) == 0);
  errno = 0;
  REQUIRE(mprotect(p + kMiB, 3 * kMiB, PROT_NONE) == -1 && errno == ENOMEM);
  REQUIRE(faults(p + kMiB) && faults(p + 2 * kMiB - 1) && holds(p, kMiB, 41) &&
          holds(p + 3 * kMiB, kMiB, 41, 3 * kWords));
  const int fd = memfd_create("file", MFD_CLOEXEC);
  REQUIRE(fd >= 0 && ftruncate(fd, kMiB) == 0);
  REQUIRE(mmap(p + 2 * kMiB, kMiB, kRw, MAP_SHARED | MAP_FIXED, fd, 0) == p + 2 * kMiB);
  REQUIRE(munmap(p + 2 * kMiB, kMiB) == 0 && close(fd) == 0);
#ifdef MAP_FIXED_NOREPLACE
  REQUIRE(mmap(p + 2 * kMiB, kMiB, kRw, kPrivate | MAP_FIXED_NOREPLACE, -1, 0) == p + 2 * kMiB);
  REQUIRE(all_zero(p + 2 * kMiB, kMiB));
  fill(p + 2 * kMiB, kMiB, 43);
#endif
  REQUIRE(munmap(p, 4 * kMiB) == 0);
}

// System V shared memory over tiered memory, and where a tiered map has been: its place is the
// kernel's, as long as the program uses it.
void shared_memory_inside() {
  const int id = shmget(IPC_PRIVATE, kMiB, IPC_CREAT | 0600);
  REQUIRE(id >= 0);
  char *p = map_any(4 * kMiB), *cold = map_any(64 * kMiB), *place = p + kMiB;
  fill(p, 4 * kMiB, 47);
  fill(cold, 64 * kMiB, 1);  // p is evicted, or about to be
  errno = 0;
  REQUIRE(shmat(id, place, 0) == MAP_FAILED && errno == EINVAL);
  REQUIRE(shmat(-1, place, SHM_REMAP) == MAP_FAILED && holds(p, 4 * kMiB, 47));
  REQUIRE(shmat(id, place, SHM_REMAP) == place && all_zero(place, kMiB));
  fill(place, kMiB, 49);
  REQUIRE(holds(cold, 64 * kMiB, 1) && holds(place, kMiB, 49) && shmdt(place) == 0 &&
          faults(place));
  REQUIRE(shmat(id, place + 5, SHM_RND) == place && holds(place, kMiB, 49) && shmdt(place) == 0);
  REQUIRE(mmap(place, kMiB, kRw, kPrivate | MAP_FIXED, -1, 0) == place && all_zero(place, kMiB));
  REQUIRE(holds(p, kMiB, 47) && holds(p + 2 * kMiB, 2 * kMiB, 47, 2 * kWords) &&
          munmap(p, 4 * kMiB) == 0);
  p = map_any(kMiB);
  fill(p, kMiB, 51);
  REQUIRE(munmap(p, kMiB) == 0);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(syscall(SYS_shmat, id, p, 0) == reinterpret_cast<long>(p) &&
            shmat(id, p, 0) == MAP_FAILED);
    REQUIRE(holds(p, kMiB, 49) && shmdt(p) == 0);
  }
  REQUIRE(shmctl(id, IPC_RMID, nullptr) == 0 && munmap(cold, 64 * kMiB) == 0);
  for (int i = 0; i < 8; ++i) fill(map_any(kMiB), kMiB, 53);  // there is room
}

// Where segments go with their last use (in an IPC namespace of its own: the setting is one of the
// namespace).
void shared_memory_that_is_forgotten() {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int setting = unshare(CLONE_NEWIPC) == 0
                            ? open("/proc/sys/kernel/shm_rmid_forced", O_WRONLY | O_CLOEXEC)
                            : -1;
    if (setting < 0 || write(setting, "1", 1) != 1) _exit(0);  // no right to
    char* p = map_any(4 * kMiB);
    fill(p, 4 * kMiB, 57);
    const int id = shmget(IPC_PRIVATE, kMiB, IPC_CREAT | 0600);
    REQUIRE(id >= 0 && shmat(id, p + kMiB, SHM_REMAP) == p + kMiB && all_zero(p + kMiB, kMiB));
    REQUIRE(holds(p, kMiB, 57) && shmdt(p + kMiB) == 0);
    _exit(0);
  }
  REQUIRE(ends_well(child));
}

// Sealed memory could not be evicted, nor unmapped by the pager.
void no_seals() {
  constexpr long kMseal = 462;
  char* p = map_any(kMiB);
  fill(p, kMiB, 55);
  errno = 0;
  REQUIRE(syscall(kMseal, p, kMiB, 0) == -1 && errno == ENOSYS);
  REQUIRE(holds(p, kMiB, 55) && munmap(p, kMiB) == 0 && faults(p));
}

// The pager knows of a descriptor with O_DIRECT before it is handed out, also when it takes another
// one's number.
void direct_io(bool by_fcntl) {
  int said = memfd_create("log", MFD_CLOEXEC), kept = dup(2),
      before = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  char* p = map_any(64 * kMiB);
  fill(p, 64 * kMiB, 37);  // evictions have looked at the descriptors
  REQUIRE(said >= 0 && kept >= 0 && before >= 0 && dup2(said, 2) == 2);
  if (by_fcntl) {
    REQUIRE(fcntl(before, F_SETFL, O_DIRECT) == 0);
  } else {
    close(before);
    REQUIRE(open("/proc/self/exe", O_RDONLY | O_CLOEXEC | O_DIRECT) == before);
  }
  char text[512] = {};
  REQUIRE(dup2(kept, 2) == 2 && pread(said, text, sizeof text - 1, 0) > 0 &&
          strstr(text, "may pin pages") != nullptr);
  REQUIRE(holds(p, 64 * kMiB, 37) && munmap(p, 64 * kMiB) == 0);
  for (int fd : {said, kept, before}) close(fd);
}

// In a process each: what was noticed stays noticed. (Beyond its budget it goes on only where pages
// that may be pinned can be evicted.)
void direct_io_is_noticed() {
  for (bool by_fcntl : {false, true}) {
    pid_t child = fork();
    if (child == 0) {
      direct_io(by_fcntl);
      _exit(0);
    }
    REQUIRE(ends_well(child));
  }
}

// A language runtime's reservations for many instances, of which each uses a little.
void vast_reservations() {
  constexpr size_t kSlot = size_t(64) << 30, kSlots = 128, kUsed = kMiB / 2;
  for (const int prot : {PROT_NONE, kRw}) {
    auto* p =
        static_cast<char*>(mmap(nullptr, kSlots * kSlot, prot, kPrivate | MAP_NORESERVE, -1, 0));
    REQUIRE(p != MAP_FAILED && tiered(p) && tiered(p + kSlots * kSlot - 1));
    for (size_t i = 0; i < kSlots; ++i) {
      REQUIRE(mprotect(p + i * kSlot, kUsed, kRw) == 0);
      fill(p + i * kSlot, kUsed, i);
    }
    size_t present = 0;
    for (size_t i = 0; i < kSlots; ++i) {
      unsigned char pages[kUsed / 4096];
      REQUIRE(mincore(p + i * kSlot, kUsed, pages) == 0);
      for (size_t page = 0; page < kUsed / g_page; ++page) present += pages[page] & 1;
    }
    REQUIRE(present * g_page <= 32 * kMiB);
    for (size_t i = 0; i < kSlots; ++i) REQUIRE(holds(p + i * kSlot, kUsed, i));
    REQUIRE(munmap(p, kSlots * kSlot) == 0);
  }
}

// A guard page below read-write memory: that is a stack, of which the top is filled without a
// fault. A larger map is none. What is not used of it costs one page.
void guard_below_a_stack() {
  constexpr size_t kStack = 320 * 1024, kStacks = 16;
  fill(map_tiered(2 * kMiB), 2 * kMiB, 1);  // active now
  for (size_t i = 0; i < kStacks; ++i) {
    char* p = map_tiered(kStack, kRw, kPrivate | MAP_NORESERVE);
    REQUIRE(present_pages(p, kStack) == 0 && mprotect(p, g_page, PROT_NONE) == 0);
    REQUIRE(present_pages(p + kStack - g_page, g_page) == 1 && present_pages(p, kStack) == 1);
    REQUIRE(faults(p) && all_zero(p + g_page, kStack - g_page));
  }
  char* retired = map_tiered(kStack);  // with its guard
  REQUIRE(mprotect(retired, g_page, PROT_NONE) == 0 &&
          madvise(retired, kStack, MADV_DONTNEED) == 0);
  REQUIRE(mprotect(retired, kStack, PROT_NONE) == 0 && present_pages(retired, kStack) == 0);
  char* large = map_tiered(32 * kMiB);
  REQUIRE(mprotect(large, g_page, PROT_NONE) == 0 && present_pages(large, 32 * kMiB) == 0);
  REQUIRE(munmap(large, 32 * kMiB) == 0);
}

void body() {
  what_is_tiered();
  guard_below_a_stack();
  partial_unmap();
  remap();
  shrink_over_several();
  grows_into_the_tier();
  marked_maps_stay_with_the_kernel();
  locked_maps();
  protection();
  fixed_inside();
  vast_reservations();
  up_to_a_hole();
  shared_memory_inside();
  shared_memory_that_is_forgotten();
  no_seals();
  direct_io_is_noticed();
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv,
                   {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=1m", "LUNAR_LOG=info"},
                   {{"all", body}});
}
