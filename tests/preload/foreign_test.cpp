// SPDX-License-Identifier: Apache-2.0
// Files, shared memory and code that a program maps over its tiered maps cost no DRAM budget. Their
// place is free when they end, and plain memory that takes it is tiered. Before activation
// ("early"), after it, and with activation in between ("across"). Memory outside the tier is all
// that smaps shows without resident pages of the tier.
#include <sys/shm.h>
#include <sys/syscall.h>

#include <atomic>
#include <cinttypes>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "preload_faults.h"
#include "raw_call.h"
#include "sys/arena.h"
#include "tier_stats.h"

namespace {

const Settings kActive{"LUNAR_DRAM=32m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=1m"},
    kAcross{"LUNAR_DRAM=32m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=30m"},
    kEarly{"LUNAR_DRAM=512m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=400m"};
constexpr size_t kBytes = 8 * kMiB, kOver = 48 * kMiB, kWords = kMiB / sizeof(long);

int memory_file(size_t bytes) {
  const int fd = memfd_create("image", MFD_CLOEXEC);
  REQUIRE(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  return fd;
}

int zero_device() {
  const int fd = open("/dev/zero", O_RDONLY);
  REQUIRE(fd >= 0);
  return fd;
}

void put(char* at, size_t bytes, int fd, int flags = MAP_SHARED) {
  REQUIRE(mmap(at, bytes, kRw, flags | MAP_FIXED, fd, 0) == at && !tiered(at) &&
          !tiered(at + bytes - 1));
}

void put_plain(char* at, size_t bytes, int flags = 0) {
  REQUIRE(mmap(at, bytes, kRw, kPrivate | MAP_FIXED | flags, -1, 0) == at && tiered(at) &&
          tiered(at + bytes - 1));
}

// More than fits; "across", it is what activates.
void push_out() {
  if (g_early) return;
  char* p = map_tiered(40 * kMiB);
  fill(p, 40 * kMiB, 3);
  REQUIRE(munmap(p, 40 * kMiB) == 0);
}

// `bytes` of the map, from 2 MiB on, become a file's; all of it is filled and pushed out.
int put_file_inside(char* map, size_t bytes, unsigned long seed) {
  fill(map, kBytes, seed);
  const int fd = memory_file(bytes);
  put(map + 2 * kMiB, bytes, fd);
  fill(map + 2 * kMiB, bytes, seed + 2);
  push_out();
  return fd;
}

// Mirrored ring buffers: a memory file twice over a reservation, again and again.
void mirrors() {
  std::set<char*> places;
  char* kept[4] = {};
  uint64_t fixed = 0;
  for (int cycle = 0; cycle < 200; ++cycle) {
    if (cycle == 20) push_out();
    if (cycle == 40) fixed = tier_stats().fixed_bytes;
    const int fd = memory_file(kBytes);
    char* p = map_tiered(2 * kBytes, PROT_NONE);
    put(p, kBytes, fd);
    put(p + kBytes, kBytes, fd);
    close(fd);
    p[5] = static_cast<char>(cycle);
    REQUIRE(p[kBytes + 5] == static_cast<char>(cycle));
    char*& old = kept[cycle % 4];
    REQUIRE(old == nullptr || (munmap(old, 2 * kBytes) == 0 && faults(old)));
    places.insert(old = p);
  }
  REQUIRE(places.size() <= 8 && tier_stats().fixed_bytes <= fixed);
  for (char* p : kept) REQUIRE(munmap(p, 2 * kBytes) == 0);
  char* p = map_tiered(8 * kBytes);
  fill(p, 8 * kBytes, 5);
  REQUIRE(holds(p, 8 * kBytes, 5) &&
          (g_early || present_pages(p, 8 * kBytes) <= 32 * kMiB / g_page));
}

// Plain memory over a file, shared memory or code, where each has been in a map or in a
// reservation.
void plain_over(int kind) {
  for (const int reserve : {0, MAP_NORESERVE})
    for (const int prot : {PROT_NONE, kRw}) {
      char* p = map_tiered(kOver, prot, kPrivate | reserve);
      if (prot == kRw) fill(p, kOver, 7);
      const int fd = memory_file(kOver);
      if (kind == PROT_EXEC)
        REQUIRE(mprotect(p, kOver, PROT_READ | PROT_EXEC) == 0 && !tiered(p));
      else
        put(p, kOver, fd, kind);
      close(fd);
      push_out();
      if (kind == PROT_EXEC && prot == kRw) REQUIRE(holds(p, kOver, 7));
      for (size_t at = 0; at < kOver; at += kMiB) put_plain(p + at, kMiB, reserve);
      REQUIRE(all_zero(p, kOver));
      fill(p, kOver, 9);
      REQUIRE(holds(p, kOver, 9) && in_child([=] { return holds(p, kOver, 9); }));
      REQUIRE(g_early || present_pages(p, kOver) <= 32 * kMiB / g_page);
      REQUIRE(munmap(p, kOver) == 0 && faults(p));
    }
}

void halves() {
  char* p = map_tiered(kBytes);
  const int fd = put_file_inside(p, 4 * kMiB, 11);
  REQUIRE(munmap(p + 3 * kMiB, kMiB) == 0 && faults(p + 3 * kMiB));
  put_plain(p + 4 * kMiB, kMiB);
  REQUIRE(all_zero(p + 4 * kMiB, kMiB) && holds(p + 2 * kMiB, kMiB, 13) &&
          holds(p + 5 * kMiB, kMiB, 13, 3 * kWords));
  const auto looks_right = [=] {
    return holds(p, 2 * kMiB, 11) && holds(p + 6 * kMiB, 2 * kMiB, 11, 6 * kWords) &&
           holds(p + 2 * kMiB, kMiB, 13) && holds(p + 5 * kMiB, kMiB, 13, 3 * kWords) &&
           faults(p + 3 * kMiB);
  };
  REQUIRE(in_child([=] {
    REQUIRE(looks_right() && munmap(p + 2 * kMiB, kMiB) == 0);
    put_plain(p + 2 * kMiB, 2 * kMiB);
    fill(p + 2 * kMiB, 2 * kMiB, 15);
    push_out();
    return holds(p + 2 * kMiB, 2 * kMiB, 15) && holds(p + 5 * kMiB, kMiB, 13, 3 * kWords);
  }));
  put_plain(p + 3 * kMiB, kMiB);
  fill(p + 3 * kMiB, 2 * kMiB, 17);
  push_out();
  REQUIRE(holds(p + 3 * kMiB, 2 * kMiB, 17) && holds(p + 5 * kMiB, kMiB, 13, 3 * kWords) &&
          holds(p, 2 * kMiB, 11));
  char* const hole = p + 5 * kMiB;
  REQUIRE(munmap(hole, kMiB) == 0 &&
          mmap(hole, kMiB, kRw, kPrivate | MAP_FIXED_NOREPLACE, -1, 0) == hole && tiered(hole));
  REQUIRE(all_zero(hole, kMiB) && munmap(p, kBytes) == 0 && close(fd) == 0);
}

// A refusal does not cost what is there.
void refused() {
  char* p = map_tiered(kBytes);
  const int fd = memory_file(kBytes);
  put(p, kBytes, fd);
  fill(p, kBytes, 19);
  char* all = nullptr;
  for (size_t bytes = size_t(1) << 30; bytes >= kMiB; bytes /= 2)  // what there is of --size
    for (void* more; (more = mmap(nullptr, bytes, kRw, kPrivate, -1, 0)) != MAP_FAILED;)
      all = static_cast<char*>(more);
  errno = 0;
  REQUIRE(all != nullptr && mmap(p, kBytes, kRw, kPrivate | MAP_FIXED, -1, 0) == MAP_FAILED &&
          errno == ENOMEM);
  REQUIRE(holds(p, kBytes, 19) && munmap(p, kBytes) == 0 && close(fd) == 0);
}

void moved() {
  for (int round = 0; round < 3; ++round) {
    char* p = map_tiered(kBytes);
    const int fd = put_file_inside(p, 2 * kMiB, 21);
    auto* away = static_cast<char*>(mremap(p + 2 * kMiB, 2 * kMiB, 4 * kMiB, MREMAP_MAYMOVE));
    REQUIRE(away != MAP_FAILED && away != p + 2 * kMiB && holds(away, 2 * kMiB, 23) &&
            faults(p + 2 * kMiB));
    put_plain(p + 2 * kMiB, 2 * kMiB);
    REQUIRE(all_zero(p + 2 * kMiB, 2 * kMiB) && holds(p, 2 * kMiB, 21));
    put(p + 4 * kMiB, 2 * kMiB, fd);  // a tiered map takes the place of the next one
    char* q = map_tiered(3 * kMiB);
    fill(q, 3 * kMiB, 25);
    REQUIRE(mremap(q, 3 * kMiB, 3 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 4 * kMiB) ==
                p + 4 * kMiB &&
            faults(q));
    push_out();
    REQUIRE(tiered(p + 4 * kMiB) && holds(p + 4 * kMiB, 3 * kMiB, 25) &&
            holds(p + 7 * kMiB, kMiB, 21, 7 * kWords));
    REQUIRE(in_child([=] { return holds(p + 4 * kMiB, 3 * kMiB, 25) && holds(p, 2 * kMiB, 21); }));
    REQUIRE(munmap(p, kBytes) == 0 && munmap(away, 4 * kMiB) == 0 && close(fd) == 0);
  }
}

// Second views of a file by mremap: of one inside the reservation, and of one that lies elsewhere
// and moves in.
void second_views() {
  for (int round = 0; round < 20; ++round) {
    char* p = map_tiered(kBytes, PROT_NONE);
    const int fd = memory_file(4 * kMiB);
    put(p, 4 * kMiB, fd);
    REQUIRE(mremap(p, 0, 4 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 4 * kMiB) == p + 4 * kMiB);
    p[5] = static_cast<char>(round + 1);
    REQUIRE(p[4 * kMiB + 5] == round + 1 && !tiered(p) && !tiered(p + 4 * kMiB));
    auto* from = static_cast<char*>(mmap(nullptr, 4 * kMiB, kRw, MAP_SHARED, fd, 0));
    REQUIRE(from != MAP_FAILED &&
            mremap(from, 4 * kMiB, 4 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
    REQUIRE(p[5] == round + 1 && faults(from));
    put_plain(p, kBytes);
    fill(p, kBytes, 31);
    if (round % 8 == 0) push_out();
    REQUIRE(holds(p, kBytes, 31));
    put(p, 4 * kMiB, fd);
    REQUIRE(mremap(p, 4 * kMiB, 4 * kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, p + 4 * kMiB) ==
                p + 4 * kMiB &&
            faults(p));
    put_plain(p, 4 * kMiB);
    REQUIRE(all_zero(p, 4 * kMiB) && p[4 * kMiB + 5] == round + 1);
    auto* plain = map_any(8 * g_page);  // too small for the tier
    errno = 0;
    REQUIRE(mremap(plain, 8 * g_page, 8 * g_page, MREMAP_MAYMOVE | MREMAP_FIXED, p) == MAP_FAILED &&
            errno == ENOMEM);
    REQUIRE(munmap(p, kBytes) == 0 && munmap(plain, 8 * g_page) == 0 && close(fd) == 0);
  }
}

void shared_segments() {
  const int id = shmget(IPC_PRIVATE, 2 * kMiB, IPC_CREAT | 0600);
  REQUIRE(id >= 0);
  std::set<char*> places;
  for (int round = 0; round < 20; ++round) {
    char* p = map_tiered(kBytes);
    places.insert(p);
    fill(p, kBytes, 27);
    REQUIRE(shmat(id, p + kMiB, SHM_REMAP) == p + kMiB &&
            shmat(id, p + 3 * kMiB, SHM_REMAP) == p + 3 * kMiB);
    fill(p + kMiB, 2 * kMiB, 29);
    if (round % 8 == 0) push_out();
    REQUIRE(holds(p + 3 * kMiB, 2 * kMiB, 29) && shmdt(p + kMiB) == 0 && faults(p + kMiB));
    REQUIRE(holds(p + 3 * kMiB, 2 * kMiB, 29) && holds(p, kMiB, 27) &&
            holds(p + 5 * kMiB, 3 * kMiB, 27, 5 * kWords));
    put_plain(p + kMiB, 2 * kMiB);
    REQUIRE(all_zero(p + kMiB, 2 * kMiB) && syscall(SYS_shmdt, p + 3 * kMiB) == 0);
    if (round % 2 == 0) put_plain(p + 3 * kMiB, 2 * kMiB);
    REQUIRE(munmap(p, kBytes) == 0);
  }
  REQUIRE(places.size() <= 2 && shmctl(id, IPC_RMID, nullptr) == 0);
}

// Other threads use what lies on both sides while pieces come and go in between.
void neighbours() {
  char* p = map_tiered(kBytes);
  fill(p, kBytes, 31);
  const int fd = memory_file(2 * kMiB);
  std::atomic<bool> good{true};
  Meanwhile beside(
      [&](unsigned i) {
        char* side = p + size_t{i} * 5 * kMiB;
        const size_t first = size_t{i} * 5 * kWords;
        if (!holds(side, 3 * kMiB, 31, first)) good = false;
        REQUIRE(madvise(side, kMiB, MADV_DONTNEED) == 0);
        for (size_t w = 0; w < kWords; ++w)
          reinterpret_cast<unsigned long*>(side)[w] = stamp(31, first + w);
      },
      2);
  for (int round = 0; round < 40; ++round) {
    put(p + 3 * kMiB, 2 * kMiB, fd);
    p[3 * kMiB] = 1;
    if (round % 10 == 0) push_out();
    if (round % 10 == 5) REQUIRE(in_child([=] { return p[3 * kMiB] == 1; }));
    if (round % 3 == 0) REQUIRE(munmap(p + 3 * kMiB, 2 * kMiB) == 0);
    put_plain(p + 3 * kMiB, 2 * kMiB);
    fill(p + 3 * kMiB, 2 * kMiB, 33);
    REQUIRE(holds(p + 3 * kMiB, 2 * kMiB, 33));
  }
  beside.end();
  REQUIRE(good && munmap(p, kBytes) == 0 && close(fd) == 0);
}

// A private map of /dev/zero is anonymous memory to the kernel.
void zeros() {
  const int fd = zero_device(), unreadable = open("/dev/zero", O_WRONLY);
  const auto map = [](size_t bytes, int prot, int flags, int of, long offset) {
    return static_cast<char*>(mmap(nullptr, bytes, prot, flags, of, offset));
  };
  const auto refused = [&](char* at, int of, long offset, int error) {
    constexpr int kPrivateFixed = MAP_PRIVATE | MAP_FIXED;
    errno = 0;
    REQUIRE(mmap(at, kBytes, kRw, at != nullptr ? kPrivateFixed : MAP_PRIVATE, of, offset) ==
                MAP_FAILED &&
            errno == error);
  };
  char* p = map(kBytes, kRw, MAP_PRIVATE, fd, 7L << 40);
  REQUIRE(p != MAP_FAILED && tiered(p) && all_zero(p, kBytes));
  fill(p, kBytes, 47);
  push_out();
  for (char* at : {static_cast<char*>(nullptr), p}) {
    refused(at, unreadable, 0, EACCES);
    refused(at, fd, 1, EINVAL);
    refused(at, 9999, 0, EBADF);
  }
  REQUIRE(holds(p, kBytes, 47) && in_child([=] { return holds(p, kBytes, 47); }));
  for (const size_t bytes : {g_page, kMiB}) {
    REQUIRE(mmap(p + kMiB, bytes, kRw, MAP_PRIVATE | MAP_FIXED, fd, 0) == p + kMiB &&
            tiered(p + kMiB));
    REQUIRE(all_zero(p + kMiB, bytes) && holds(p, kMiB, 47) &&
            holds(p + 2 * kMiB, kMiB, 47, 2 * kWords));
  }
  REQUIRE(syscall(SYS_mmap, p, kBytes, kRw, MAP_PRIVATE | MAP_FIXED, fd, 0) ==
              reinterpret_cast<long>(p) &&
          tiered(p));
  REQUIRE(all_zero(p, kBytes) && munmap(p, kBytes) == 0 && faults(p));
  p = map(kBytes, PROT_NONE, MAP_PRIVATE, fd, 0);  // a reservation
  REQUIRE(p != MAP_FAILED && mprotect(p, kBytes, kRw) == 0 && tiered(p) && all_zero(p, kBytes));
  for (char* plain : {map(kBytes, kRw, MAP_SHARED, open("/dev/zero", O_RDWR), 0),
                      map(g_page, kRw, MAP_PRIVATE, fd, 0),
                      map(kBytes, PROT_READ, MAP_PRIVATE, memory_file(kBytes), 0)})
    REQUIRE(plain != MAP_FAILED && !tiered(plain));
}

// Maps of a file come over tiered ones while many threads touch new pages: none waits for ever.
void beside_faults(int seconds) {
  const int fd = memory_file(g_page);
  std::atomic<unsigned> touched{0}, mapped{0};
  const Meanwhile touching(
      [&] {
        char* p = map_tiered(kMiB);
        for (size_t at = 0; at < kMiB; at += 4 * g_page, ++touched) p[at] = 1;
        REQUIRE(munmap(p, kMiB) == 0);
      },
      40);
  const Meanwhile mapping([&, p = map_tiered(kMiB)] {
    for (size_t at = 0; at < kMiB; at += 2 * g_page, ++mapped) put(p + at, g_page, fd, MAP_PRIVATE);
    put_plain(p, kMiB);
  });
  for (int half = 0; half < 2 * seconds; ++half) {
    const unsigned before = touched, maps = mapped;
    for (int ms = 0; ms < 5000 && (touched == before || mapped == maps); ++ms) usleep(1000);
    REQUIRE(touched != before && mapped != maps);
    usleep(500000);
  }
}

// Several processes, each with pieces of its own.
void forks() {
  char* p = map_tiered(kBytes);
  fill(p, kBytes, 35);
  const int fd = memory_file(kMiB);
  REQUIRE(madvise(p, kBytes, MADV_DOFORK) == 0);
  put(p + kMiB, kMiB, fd);
  REQUIRE(madvise(p + kMiB, kMiB, MADV_DONTFORK) == 0);  // the program's own wish
  put(p + 3 * kMiB, kMiB, fd);
  p[3 * kMiB] = 1;
  push_out();
  for (int round = 0; round < 3; ++round)
    REQUIRE(in_child([=] {
      REQUIRE(faults(p + kMiB) && p[3 * kMiB] == 1 &&
              holds(p + 4 * kMiB, 4 * kMiB, 35, 4 * kWords));
      put_plain(p + kMiB, kMiB);
      put_plain(p + 3 * kMiB, kMiB);
      fill(p + kMiB, kMiB, 37);
      put(p + 5 * kMiB, kMiB, fd);
      p[5 * kMiB] = 1;
      REQUIRE(in_child([=] {
        REQUIRE(munmap(p + 5 * kMiB, kMiB) == 0);
        return holds(p + kMiB, kMiB, 37) && holds(p + 6 * kMiB, 2 * kMiB, 35, 6 * kWords);
      }));
      push_out();
      return p[5 * kMiB] == 1 && holds(p + kMiB, kMiB, 37) && holds(p, kMiB, 35);
    }));
  REQUIRE(holds(p + 5 * kMiB, 3 * kMiB, 35, 5 * kWords) && munmap(p, kBytes) == 0 &&
          close(fd) == 0);
}

// ---- what is outside ----------------------------------------------------------------------------

// The anonymous memory of smaps without the runtime's own (kOwnMapsMark) and without pages of the
// tier, which have words; while there are none the tier's maps are `plain` bytes.
uint64_t outside_by_smaps(uint64_t plain) {
  FILE* smaps = fopen("/proc/self/smaps", "r");
  REQUIRE(smaps != nullptr);
  char line[512];
  uint64_t sum = 0;
  for (bool own = false; fgets(line, sizeof line, smaps) != nullptr;) {
    uint64_t offset = 0, kib = 0;
    if (sscanf(line, "%*x-%*x %*s %" SCNx64, &offset) == 1)
      own = offset >> lunar::kOwnMapsShift == lunar::kOwnMapsMark;
    if (!own && sscanf(line, "Anonymous: %" SCNu64, &kib) == 1) sum += kib << 10;
  }
  fclose(smaps);
  return sum - (g_early ? plain : tier_stats().resident_bytes);
}

void outside() {
  constexpr size_t kOutside = 24 * kMiB, kTiered = 8 * kMiB;
  const std::string what = g_case.substr(strlen("outside-"));
  char* p = map_tiered(kOutside + kTiered, PROT_NONE, kPrivate | MAP_NORESERVE);
  const int flags = kPrivate | MAP_NORESERVE | MAP_FIXED;
  const int fd = memory_file(kOutside);
  put_plain(p + kOutside, kTiered, MAP_NORESERVE);
  fill(p + kOutside, kTiered, 41);
  if (what == "stack") REQUIRE(mmap(p, kOutside, kRw, flags | MAP_STACK, -1, 0) == p);
  if (what == "locked") REQUIRE(mmap(p, kOutside, kRw, flags | MAP_LOCKED, -1, 0) == p);
  if (what == "file") REQUIRE(mmap(p, kOutside, kRw, MAP_PRIVATE | MAP_FIXED, fd, 0) == p);
  if (what == "code")
    REQUIRE(mprotect(p, kOutside, PROT_READ | PROT_EXEC) == 0 && mprotect(p, kOutside, kRw) == 0);
  if (what == "zero")
    p = reinterpret_cast<char*>(raw(SYS_mmap, 0, kOutside, kRw, MAP_PRIVATE, zero_device(), 0));
  REQUIRE(p != MAP_FAILED);
  fill(p, kOutside, 43);
  push_out();
  fill(p, kOutside, 45);
  fprintf(stderr, "smaps: %" PRIu64 "\n", outside_by_smaps(kTiered));
}

// The table says what smaps says; without it, a line says that much is outside.
int compare_outside(char** argv, Settings settings) {
  const auto errors_with = [&](const char* setting) {
    Settings all = settings;
    all.push_back(setting);
    const Ended ended = run_and_listen(argv, all);
    if (const int code = code_of(ended.status); code != 0) _exit(code);
    return ended.errors;
  };
  const auto number_after = [](const std::string& text, const char* key) {
    const size_t at = text.find(key);
    REQUIRE(at != std::string::npos);
    return static_cast<int64_t>(strtoull(text.c_str() + at + strlen(key), nullptr, 10));
  };
  const std::string table = errors_with("LUNAR_STATS=yes"), log = errors_with("LUNAR_LOG=warning");
  const int64_t said = number_after(table, "lunar: stats: outside_bytes "),
                right = number_after(table, "smaps: ");
  REQUIRE(right >= int64_t(24 * kMiB) && llabs(said - right) <= 512 * 1024);
  const size_t line = log.find("were outside the tier");
  REQUIRE(line != std::string::npos &&
          log.find("were outside the tier", line + 1) == std::string::npos);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc == 3 ? argv[2] : "";
  const bool across = name.starts_with("across-");
  if (!inside() && name.find("outside-") != std::string::npos)
    return compare_outside(argv, name.starts_with("early-") ? kAcross : kActive);
  if (across) argv[2] += strlen("across-");
  return run_cases(argc, argv, across ? kAcross : kActive,
                   {{"mirrors", mirrors},
                    {"over-file", [] { plain_over(MAP_PRIVATE); }},
                    {"over-shared", [] { plain_over(MAP_SHARED); }},
                    {"over-code", [] { plain_over(PROT_EXEC); }},
                    {"halves", halves},
                    {"refused", refused},
                    {"moved", moved},
                    {"second-views", second_views},
                    {"segments", shared_segments},
                    {"neighbours", neighbours},
                    {"zeros", zeros},
                    {"beside-faults", [] { beside_faults(2); }},
                    {"beside-faults-long", [] { beside_faults(20); }},
                    {"forks", forks},
                    {"outside-stack", outside},
                    {"outside-locked", outside},
                    {"outside-file", outside},
                    {"outside-code", outside},
                    {"outside-zero", outside}},
                   kEarly);
}
