// SPDX-License-Identifier: Apache-2.0
// mremap and mmap(MAP_FIXED) on tiered maps that other threads use meanwhile: each page changes
// from its old to its new content at once, a write is in one place, and what a map forbids stays
// forbidden. Before activation ("early") and after, with pages on the LUN.
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "preload_faults.h"
#include "tier_stats.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace {

constexpr size_t kBytes = 8 * kMiB;
constexpr long kSysSeal = 462;  // mseal
constexpr unsigned long kOld = 0x1111, kNew = 0x2222;

std::atomic<bool> g_stop{false};
std::atomic<unsigned long> g_bad{0}, g_faults{0};
thread_local sigjmp_buf t_jump;
thread_local bool t_expects = false;

// Each thread has its own jump. Only the access itself runs between the two.
template <class Access>
bool raises(Access access) {
  t_expects = true;
  const bool hit = sigsetjmp(t_jump, 1) != 0;
  if (!hit) access();
  t_expects = false;
  return hit;
}

void on_fault(int) {
  if (!t_expects) _exit(3);
  siglongjmp(t_jump, 1);
}

unsigned long& word_of(char* map, size_t page) {
  return *reinterpret_cast<unsigned long*>(map + page * g_page);
}

void stamp_pages(char* p, unsigned long value) {
  for (size_t i = 0; i < kBytes / g_page; ++i) word_of(p, i) = value;
}

// More than fits: what was written before is on the LUN, some of it.
void push_out() {
  if (g_early) return;
  char* p = map_tiered(40 * kMiB);
  fill(p, 40 * kMiB, 3);
  REQUIRE(munmap(p, 40 * kMiB) == 0);
}

// One thread uses the memory during `change`, and a while after it.
template <class Use, class Change>
void during(Use use, Change change) {
  g_stop = false;
  std::jthread user([&] {
    while (!g_stop.load(std::memory_order_relaxed)) use();
  });
  usleep(5000);
  change();
  usleep(3000);
  g_stop = true;
}

// Reads the map, page by page: the old or the new content.
void read_all(char* p) {
  for (size_t i = 0; i < kBytes / g_page && !g_stop.load(std::memory_order_relaxed); i += 3) {
    unsigned long there = 0;
    if (raises([&] { there = __atomic_load_n(&word_of(p, i), __ATOMIC_RELAXED); }))
      ++g_faults;
    else if (there != kOld && there != kNew)
      ++g_bad;
  }
}

void replaced_by_a_move() {
  for (int round = 0; round < 20; ++round) {
    char *old = map_tiered(kBytes), *fresh = map_tiered(kBytes);
    stamp_pages(old, kOld);
    stamp_pages(fresh, kNew);
    if (round % 2 != 0) push_out();
    during(
        [=] { read_all(old); },
        [=] { REQUIRE(mremap(fresh, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, old) == old); });
    for (size_t i = 0; i < kBytes / g_page; ++i) REQUIRE(word_of(old, i) == kNew);
    REQUIRE(faults(fresh) && munmap(old, kBytes) == 0);
  }
  REQUIRE(g_bad == 0 && g_faults == 0);
}

void replaced_by_a_file() {
  const int fd = memfd_create("replaces", 0);
  REQUIRE(fd >= 0 && ftruncate(fd, kBytes) == 0);
  auto* file = static_cast<char*>(mmap(nullptr, kBytes, kRw, MAP_SHARED, fd, 0));
  stamp_pages(file, kNew);
  for (int round = 0; round < 20; ++round) {
    char* old = map_tiered(kBytes);
    stamp_pages(old, kOld);
    if (round % 2 != 0) push_out();
    during([=] { read_all(old); },
           [=] { REQUIRE(mmap(old, kBytes, kRw, MAP_SHARED | MAP_FIXED, fd, 0) == old); });
    for (size_t i = 0; i < kBytes / g_page; ++i) REQUIRE(word_of(old, i) == kNew);
    REQUIRE(munmap(old, kBytes) == 0 && faults(old));
  }
  REQUIRE(g_bad == 0 && g_faults == 0);
  // One that cannot be made takes nothing.
  char* kept = map_tiered(kBytes);
  stamp_pages(kept, kOld);
  REQUIRE(mmap(kept, kBytes, kRw, MAP_SHARED | MAP_FIXED, -1, 0) == MAP_FAILED);
  for (size_t i = 0; i < kBytes / g_page; ++i) REQUIRE(word_of(kept, i) == kOld);
}

// Every page counted up while the map is moved away from under the writer, which goes on in the old
// place: no count is lost.
void counted_while_moved() {
  constexpr size_t kPages = 4 * kMiB / 4096;
  constexpr int kMoves = 15;
  char* p = map_tiered(kPages * g_page);
  char* places[kMoves];
  std::atomic<unsigned long> counted{0};
  int moves = 0;
  if (!g_early) fill(map_tiered(24 * kMiB), 24 * kMiB, 5);
  size_t next = 0;
  for (; moves < kMoves; ++moves) {
    during(
        [&] {
          for (size_t i = 0; i < 1000; ++i, ++counted)
            __atomic_fetch_add(&word_of(p, next = (next + 13) % kPages), 1, __ATOMIC_RELAXED);
        },
        [&] {
          places[moves] = static_cast<char*>(
              mremap(p, kPages * g_page, kPages * g_page, MREMAP_MAYMOVE | MREMAP_DONTUNMAP));
          REQUIRE(places[moves] != MAP_FAILED);
        });
  }
  unsigned long found = 0;
  for (size_t i = 0; i < kPages; ++i) {
    found += word_of(p, i);
    for (char* place : places) found += word_of(place, i);
  }
  fprintf(stderr, "counted %lu, found %lu\n", counted.load(), found);
  REQUIRE(found == counted);
}

// The same where the old place ends: a count is in the new one, or was SIGSEGV. The writer goes on
// by `step` pages: to places that it has used before, or to new ones.
void count_while_moved_away(size_t bytes, size_t step, int rounds) {
  const size_t count = bytes / g_page;
  for (int round = 0; round < rounds; ++round) {
    char *p = map_tiered(bytes), *target = map_tiered(bytes), *now = nullptr;
    if (round % 4 >= 2) push_out();
    unsigned long counted = 0;
    size_t next = 0;
    during(
        [&] {
          for (size_t i = 0; i < 1000; ++i)
            counted += !raises([&] {
              __atomic_fetch_add(&word_of(p, next = (next + step) % count), 1, __ATOMIC_RELAXED);
            });
        },
        [&] {
          now = static_cast<char*>(
              round % 2 == 0 ? mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target)
                             : mremap(p, bytes, 2 * bytes, MREMAP_MAYMOVE));
          REQUIRE(now != MAP_FAILED);
        });
    if (now == p) continue;  // it has grown in place
    unsigned long found = 0;
    for (size_t i = 0; i < count; ++i) found += word_of(now, i);
    if (found != counted)
      fprintf(stderr, "round %d: counted %lu, found %lu\n", round, counted, found);
    REQUIRE(found == counted);
    REQUIRE(faults(p) && faults(p + bytes - 1));
    if (now != target) REQUIRE(all_zero(now + bytes, bytes) && munmap(target, bytes) == 0);
    REQUIRE(munmap(now, now == target ? bytes : 2 * bytes) == 0);
  }
}

void counted_while_moved_away() {
  count_while_moved_away(kBytes, 13, 20);
  count_while_moved_away(8 * kBytes, 17, 8);
}

void read_only_stays_so() {
  std::atomic<unsigned long> wrote{0};
  for (int round = 0; round < 20; ++round) {
    char *p = map_tiered(kBytes), *target = map_tiered(kBytes);
    stamp_pages(p, kOld);
    stamp_pages(target, kNew);
    if (round % 4 >= 2) push_out();
    REQUIRE(mprotect(p, kBytes, PROT_READ) == 0);
    char* now = nullptr;
    during(
        [&] {
          for (size_t i = 0; i < kBytes / g_page && !g_stop; i += 3)
            wrote += !raises([=] { word_of(p, i) = 7; });
        },
        [&] {
          now = static_cast<char*>(
              mremap(p, kBytes, kBytes,
                     MREMAP_MAYMOVE | (round % 2 == 0 ? MREMAP_FIXED : MREMAP_DONTUNMAP), target));
        });
    REQUIRE(now != MAP_FAILED && wrote == 0);
    for (size_t i = 0; i < kBytes / g_page; ++i) REQUIRE(word_of(now, i) == kOld);
    REQUIRE(faults(now, true));
    REQUIRE(munmap(now, kBytes) == 0);
    if (now != target)
      REQUIRE(all_zero(p, kBytes) && faults(p, true) && munmap(target, kBytes) == 0 &&
              munmap(p, kBytes) == 0);
  }
}

// Content that may not be read is moved, and may not be read meanwhile.
void unreadable_stays_so() {
  std::atomic<unsigned long> read{0};
  for (int round = 0; round < 8; ++round) {
    char *p = map_tiered(kBytes), *target = map_tiered(kBytes), *now = nullptr;
    stamp_pages(p, kOld);
    stamp_pages(target, kNew);
    if (round % 4 >= 2) push_out();
    REQUIRE(mprotect(p, kBytes, PROT_NONE) == 0);
    during(
        [&] {
          for (size_t i = 0; i < kBytes / g_page && !g_stop; i += 3)
            read += !raises([=] { (void)*static_cast<volatile unsigned long*>(&word_of(p, i)); });
        },
        [&] {
          now = static_cast<char*>(
              mremap(p, kBytes, kBytes,
                     MREMAP_MAYMOVE | (round % 2 == 0 ? MREMAP_FIXED : MREMAP_DONTUNMAP), target));
        });
    REQUIRE(now != MAP_FAILED && read == 0 && faults(now) && mprotect(now, kBytes, PROT_READ) == 0);
    for (size_t i = 0; i < kBytes / g_page; ++i) REQUIRE(word_of(now, i) == kOld);
    REQUIRE(munmap(now, kBytes) == 0);
    if (now != target) REQUIRE(faults(p) && munmap(target, kBytes) == 0 && munmap(p, kBytes) == 0);
  }
}

// Targets of several pieces, larger and smaller; and one that is refused costs nothing.
void pieces() {
  char *p = map_tiered(2 * kMiB), *target = map_tiered(8 * kMiB);
  fill(p, 2 * kMiB, 7);
  fill(target, 8 * kMiB, 9);
  REQUIRE(mprotect(target + kMiB, kMiB, PROT_NONE) == 0 && munmap(target + 2 * kMiB, kMiB) == 0 &&
          mprotect(target + 3 * kMiB, kMiB, PROT_READ) == 0);
  push_out();
  REQUIRE(mremap(p, 2 * kMiB, 5 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, target + kMiB / 2) ==
          target + kMiB / 2);
  REQUIRE(holds(target, kMiB / 2, 9) && holds(target + kMiB / 2, 2 * kMiB, 7) &&
          all_zero(target + 5 * kMiB / 2, 3 * kMiB));
  REQUIRE(holds(target + 11 * kMiB / 2, 5 * kMiB / 2, 9, 11 * kMiB / 2 / sizeof(long)) &&
          faults(p) && faults(p + 2 * kMiB - 1));
  fill(target + kMiB / 2, 5 * kMiB, 11);  // all of it is writable
  push_out();
  REQUIRE(holds(target + kMiB / 2, 5 * kMiB, 11));
  p = map_tiered(4 * kMiB);
  fill(p, 4 * kMiB, 13);
  REQUIRE(mremap(p, 4 * kMiB, kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
  REQUIRE(holds(target, kMiB, 13) && faults(p) && faults(p + 2 * kMiB));
  REQUIRE(holds(target + kMiB, 9 * kMiB / 2, 11, kMiB / 2 / sizeof(long)));
  const int fd = memfd_create("ends by it", 0);
  REQUIRE(fd >= 0 && ftruncate(fd, kMiB) == 0 &&
          mmap(target + kMiB, kMiB, kRw, MAP_SHARED | MAP_FIXED, fd, 0) == target + kMiB);
  p = map_tiered(4 * kMiB);
  fill(p, 4 * kMiB, 15);
  REQUIRE(mremap(p, 4 * kMiB, 4 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target &&
          faults(p));
  push_out();
  REQUIRE(holds(target, 4 * kMiB, 15) && munmap(target, 8 * kMiB) == 0);
}

// Data that another thread writes while the map ends, or becomes read-only and empty, is not in the
// next map.
void ended_beside_a_writer() {
  constexpr size_t kPages = kMiB / 4096;
  for (int round = 0; round < 60; ++round) {
    const bool unmaps = round % 2 == 0;
    char* p = map_tiered(kPages * g_page);
    std::atomic<bool> writing{false};
    std::thread writer([&] {
      size_t next = 0;
      while (!raises([&] { word_of(p, next = (next + 13) % kPages) = 7; })) writing = true;
    });
    while (!writing) {}
    if (unmaps)
      REQUIRE(munmap(p, kPages * g_page) == 0);
    else
      REQUIRE(mmap(p, kPages * g_page, PROT_READ, kPrivate | MAP_FIXED, -1, 0) == p);
    writer.join();
    if (unmaps) REQUIRE(mmap(p, kPages * g_page, kRw, kPrivate, -1, 0) == p);
    REQUIRE(all_zero(p, kPages * g_page) && munmap(p, kPages * g_page) == 0);
  }
}

// Guard pages and locks go along; those of the map that is replaced go with it.
void marks() {
  constexpr int kInstallGuards = 102;
  char *p = map_tiered(2 * kMiB), *target = map_tiered(2 * kMiB);
  fill(p, 2 * kMiB, 17);
  fill(target, 2 * kMiB, 19);
  const bool guards = madvise(p + 5 * g_page, g_page, kInstallGuards) == 0 &&
                      madvise(target + 7 * g_page, 70 * g_page, kInstallGuards) == 0;
  // it would activate the process
  if (!g_early)
    REQUIRE(mlock(p + kMiB, g_page) == 0 && mlock(target + kMiB + 3 * g_page, 90 * g_page) == 0);
  push_out();
  REQUIRE(mremap(p, 2 * kMiB, 2 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
  if (guards)
    REQUIRE(faults(target + 5 * g_page) &&
            madvise(target + 5 * g_page, g_page, kInstallGuards + 1) == 0 &&
            all_zero(target + 5 * g_page, g_page));
  REQUIRE(holds(target, 5 * g_page, 17) &&
          holds(target + 6 * g_page, 2 * kMiB - 6 * g_page, 17, 6 * g_page / sizeof(long)));
  push_out();
  REQUIRE(holds(target + 6 * g_page, 2 * kMiB - 6 * g_page, 17, 6 * g_page / sizeof(long)));
  errno = 0;
  if (!g_early) REQUIRE(madvise(target + kMiB, g_page, MADV_DONTNEED) == -1 && errno == EINVAL);
  REQUIRE(madvise(target + kMiB + g_page, kMiB - g_page, MADV_DONTNEED) == 0 &&
          all_zero(target + kMiB + g_page, kMiB - g_page));
  REQUIRE(munmap(target, 2 * kMiB) == 0);
}

// The kernel refuses to change the end of the target: what had been moved by then comes back.
void refused_half_way() {
  char *p = map_tiered(kBytes), *target = map_tiered(kBytes);
  fill(p, kBytes, 21);
  fill(target, kBytes, 23);
  push_out();
  if (syscall(kSysSeal, target + kBytes - kMiB, kMiB, 0ul) != 0) return;  // before 6.10
  REQUIRE(mremap(p, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED);
  REQUIRE(holds(p, kBytes, 21));
  fill(p, kBytes, 25);
  REQUIRE(holds(p, kBytes, 25) && munmap(p, kBytes) == 0);
}

// The space that is promised follows the contents, whether a map is charged as a whole or, with
// MAP_NORESERVE, by page.
void charges() {
  constexpr int kMoved = MREMAP_MAYMOVE | MREMAP_FIXED;
  for (const int flags : {0, MAP_NORESERVE}) {
    if (!g_early) push_out();
    const auto before = tier_stats().committed_bytes;
    auto* p = static_cast<char*>(mmap(nullptr, kBytes, kRw, kPrivate | flags, -1, 0));
    auto* target = static_cast<char*>(
        mmap(nullptr, kBytes, PROT_NONE, kPrivate | (flags ^ MAP_NORESERVE), -1, 0));
    REQUIRE(tiered(p) && tiered(target));
    fill(p, kBytes, 31);
    REQUIRE(mremap(p, kBytes, kBytes, kMoved, target) == target);
    push_out();
    REQUIRE(holds(target, kBytes, 31));
    if (!g_early) REQUIRE(tier_stats().committed_bytes == before + kBytes);
    REQUIRE(munmap(target, kBytes) == 0 && tier_stats().committed_bytes == before);
  }
}

// Each case begins by this.
template <void (*kRun)()>
void with_handler() {
  struct sigaction action{};
  action.sa_handler = on_fault;
  action.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
  kRun();
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=1m"},
                   {{"by-move", with_handler<replaced_by_a_move>},
                    {"by-file", with_handler<replaced_by_a_file>},
                    {"kept", with_handler<counted_while_moved>},
                    {"moved-away", with_handler<counted_while_moved_away>},
                    {"read-only", with_handler<read_only_stays_so>},
                    {"unreadable", with_handler<unreadable_stays_so>},
                    {"pieces", with_handler<pieces>},
                    {"ended", with_handler<ended_beside_a_writer>},
                    {"marks", with_handler<marks>},
                    {"refused", with_handler<refused_half_way>},
                    {"charges", with_handler<charges>}},
                   {"LUNAR_DRAM=256m", "LUNAR_ACTIVATE_AT=128m"});
}
