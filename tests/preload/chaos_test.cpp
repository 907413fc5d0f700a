// SPDX-License-Identifier: Apache-2.0
// Six threads do random libc calls on tiered memory that is several times its DRAM: mmap, munmap,
// mremap, mprotect, madvise, mlock, fork, threads (also on stacks in tiered memory), dlopen, read,
// write, vmsplice, process_vm_readv and _writev, malloc and its relatives. Every page is checked
// against a model. "activation": three threads begin on plain memory, which becomes tiered while
// the heap grows, several times over.
//
// Idea: a map has a lock; a thread works on a map whose lock it gets, and takes another one where
// it does not. The model tells of each page whether it is mapped and which content it has (0:
// zeros, else a number that all its words are made of). A forked child checks the maps whose locks
// its parent's thread holds. LUNAR_SEED=N repeats the threads' choices (not how they interleave).
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "preload_test.h"
#include "tests/support/seed.h"
#include "tier_stats.h"

namespace {

struct Random : tier::Random {
  using tier::Random::Random;
  uint32_t version() { return 1 + static_cast<uint32_t>(below(1u << 30)); }
};

// maps below 256 KiB are not tiered
constexpr size_t kPage = 4096, kPagesMin = 64, kPagesMax = 2048;
constexpr unsigned kMaps = 24, kThreads = 6, kBlocks = 40, kGap = UINT32_MAX;

const char* g_object;
unsigned g_map_count = kMaps;
bool g_begins_plain = false;
std::atomic<bool> g_stop{false};
std::atomic<uint64_t> g_done{0}, g_forks{0}, g_refused{0};

uint64_t word_of(uint32_t version, size_t index) {
  return version == 0 ? 0 : version * 0x9e3779b97f4a7c15 + index;
}

void write_page(void* page, uint32_t version) {
  for (size_t i = 0; i < kPage / 8; ++i) static_cast<uint64_t*>(page)[i] = word_of(version, i);
}

void check_page(const void* page, uint32_t version, const char* when) {
  auto* words = static_cast<const uint64_t*>(page);
  for (size_t i = 0; i < kPage / 8; ++i) {
    if (words[i] == word_of(version, i)) continue;
    fprintf(stderr, "%s: page %p word %zu: %llx, not that of version %u\n", when, page, i,
            static_cast<unsigned long long>(words[i]), version);
    abort();
  }
}

struct Map {
  std::mutex lock;
  char* base = nullptr;
  std::vector<uint32_t> versions;  // kGap: not mapped

  size_t pages() const { return versions.size(); }
  char* at(size_t page) const { return base + page * kPage; }
  void make(Random& random) {
    const size_t count = kPagesMin + random.below(kPagesMax - kPagesMin);
    base = map_any(count * kPage, kRw, kPrivate | (random.below(4) != 0 ? 0 : MAP_NORESERVE));
    if (random.below(2) == 0) (void)madvise(base, count * kPage, MADV_HUGEPAGE);
    versions.assign(count, 0);
  }
  void check(size_t first, size_t count, const char* when) const {
    for (size_t i = first; i < first + count; ++i)
      if (versions[i] != kGap) check_page(at(i), versions[i], when);
  }
  void check_all(const char* when) const { check(0, pages(), when); }
  bool whole() const {
    for (const uint32_t version : versions)
      if (version == kGap) return false;
    return true;
  }
};

Map g_maps[kMaps];

// A part of a map that has no gaps.
struct Part {
  Map& map;
  size_t first, count;
  char* at() const { return map.at(first); }
  size_t bytes() const { return count * kPage; }
  void check(const char* when) const { map.check(first, count, when); }
  void fill(uint32_t version) const {
    for (size_t i = first; i < first + count; ++i) map.versions[i] = version;
  }
};

Part choose(Map& map, Random& random, size_t most) {
  Part part{map, random.below(map.pages()), 0};
  const size_t wanted = 1 + random.below(most);
  while (part.count < wanted && part.first + part.count < map.pages() &&
         map.versions[part.first + part.count] != kGap)
    ++part.count;
  return part;
}

void write_part(const Part& part, Random& random) {
  for (size_t i = part.first; i < part.first + part.count; ++i)
    write_page(part.map.at(i), part.map.versions[i] = random.version());
}

void discard(const Part& part, Random& random) {
  if (random.below(3) == 0) {
    REQUIRE(mmap(part.at(), part.bytes(), kRw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            part.at());
  } else {
    REQUIRE(madvise(part.at(), part.bytes(), MADV_DONTNEED) == 0);
  }
  part.fill(0);
}

void advise(const Part& part, Random& random) {
  constexpr int kAdvice[] = {MADV_NORMAL, MADV_RANDOM,     MADV_SEQUENTIAL, MADV_WILLNEED,
                             MADV_COLD,   MADV_NOHUGEPAGE, MADV_HUGEPAGE,   MADV_PAGEOUT};
  (void)madvise(part.at(), part.bytes(), kAdvice[random.below(std::size(kAdvice))]);
  part.check("after advice");
}

void protect(const Part& part, Random& random) {
  const bool readable = random.below(2) == 0;
  REQUIRE(mprotect(part.at(), part.bytes(), readable ? PROT_READ : PROT_NONE) == 0);
  if (readable) part.check("read-only");
  REQUIRE(mprotect(part.at(), part.bytes(), kRw) == 0);
  part.check("writable again");
}

void lock_pages(const Part& part, Random& random) {
  if (mlock(part.at(), part.bytes()) != 0) return;  // its limit, or no room
  part.check("locked");
  if (random.below(2) == 0) write_part(part, random);
  REQUIRE(munlock(part.at(), part.bytes()) == 0);
}

void unmap(const Part& part) {
  REQUIRE(munmap(part.at(), part.bytes()) == 0);
  part.fill(kGap);
}

void renew(Map& map, Random& random) {
  map.check_all("before munmap");
  for (size_t first = 0, end; first < map.pages();
       first = end + 1) {  // a gap may be another map's by now
    for (end = first; end < map.pages() && map.versions[end] != kGap;) ++end;
    if (end > first) REQUIRE(munmap(map.at(first), (end - first) * kPage) == 0);
  }
  map.make(random);
}

void resize(Map& map, Random& random) {
  if (!map.whole()) return renew(map, random);
  const size_t count = kPagesMin + random.below(kPagesMax - kPagesMin);
  void* moved = mremap(map.base, map.pages() * kPage, count * kPage, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) {
    REQUIRE(errno == EFAULT || errno == ENOMEM);  // of several pieces; no room
    return;
  }
  map.base = static_cast<char*>(moved);
  map.versions.resize(count, 0);
}

// Through a file: what write(2) took from one part, read(2) brings into it again, after the part
// was overwritten.
void through_file(const Part& part, Random& random) {
  const int fd = memfd_create("chaos", MFD_CLOEXEC);
  REQUIRE(fd >= 0);
  REQUIRE(pwrite(fd, part.at(), part.bytes(), 0) == static_cast<ssize_t>(part.bytes()));
  const std::vector<uint32_t> before(
      part.map.versions.begin() + static_cast<ptrdiff_t>(part.first),
      part.map.versions.begin() + static_cast<ptrdiff_t>(part.first + part.count));
  random.below(2) == 0 ? discard(part, random) : write_part(part, random);
  REQUIRE(pread(fd, part.at(), part.bytes(), 0) == static_cast<ssize_t>(part.bytes()));
  std::copy(before.begin(), before.end(),
            part.map.versions.begin() + static_cast<ptrdiff_t>(part.first));
  part.check("read from a file");
  close(fd);
}

void through_pipe(const Part& part) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const size_t bytes = part.count < 8 ? part.bytes() : 8 * kPage;
  iovec what{part.at(), bytes};
  const ssize_t given = vmsplice(ends[1], &what, 1, SPLICE_F_NONBLOCK);
  alignas(8) char page[kPage];
  for (ssize_t taken = 0; taken + static_cast<ssize_t>(kPage) <= given; taken += kPage) {
    for (size_t have = 0; have < kPage;) {
      const ssize_t n = read(ends[0], page + have, kPage - have);
      REQUIRE(n > 0);
      have += static_cast<size_t>(n);
    }
    check_page(page, part.map.versions[part.first + static_cast<size_t>(taken) / kPage], "spliced");
  }
  close(ends[0]);
  close(ends[1]);
}

void by_process_vm(const Part& part, Random& random) {
  std::vector<char> copy(part.bytes());
  iovec local{copy.data(), copy.size()}, remote{part.at(), part.bytes()};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(copy.size()))
    return;  // no right
  for (size_t i = 0; i < part.count; ++i)
    check_page(copy.data() + i * kPage, part.map.versions[part.first + i], "process_vm_readv");
  const uint32_t version = random.version();
  for (size_t i = 0; i < part.count; ++i) write_page(copy.data() + i * kPage, version);
  REQUIRE(process_vm_writev(getpid(), &local, 1, &remote, 1, 0) ==
          static_cast<ssize_t>(copy.size()));
  part.fill(version);
  part.check("process_vm_writev");
}

void* check_in_thread(void* part) {
  static_cast<const Part*>(part)->check("in a thread");
  return nullptr;
}

// Its stack, where it fits, is a part of the same map.
void with_thread(const Part& part, Random& random) {
  constexpr size_t kStackPages = 64;
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  const bool own_stack = part.count > kStackPages + 1 && random.below(2) == 0;
  const size_t stack = own_stack ? kStackPages : 0;
  Part checked{part.map, part.first + stack, part.count - stack};
  if (own_stack) REQUIRE(pthread_attr_setstack(&attributes, part.at(), stack * kPage) == 0);
  pthread_t thread;
  const int rc = pthread_create(&thread, &attributes, check_in_thread, &checked);
  if (rc == 0) REQUIRE(pthread_join(thread, nullptr) == 0);
  REQUIRE(rc == 0 || rc == EAGAIN);
  pthread_attr_destroy(&attributes);
  if (own_stack) discard({part.map, part.first, stack}, random);
}

void in_child(Map& map, Map* other, Random& random) {
  const pid_t child = fork();
  if (child < 0) {
    g_refused.fetch_add(1);
    return;
  }
  if (child == 0) {
    map.check_all("in a child");
    const Part part = choose(map, random, 400);
    write_part(part, random);
    if (other != nullptr) other->check_all("in a child");
    map.check_all("in a child, after its writes");
    _exit(0);
  }
  write_part(choose(map, random, 400), random);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (status != 0) {
    fprintf(stderr, "a child: status %x\n", static_cast<unsigned>(status));
    abort();
  }
  map.check_all("after a fork");
  g_forks.fetch_add(1);
}

// Blocks of the heap, each thread its own.
class Blocks {
 public:
  void step(Random& random) {
    Block& block = blocks_[random.below(kBlocks)];
    const size_t words = 1 + random.below(random.below(8) == 0 ? 1u << 17 : 1u << 12);
    block.check();
    if (block.words == nullptr || random.below(3) == 0) {
      free(block.words);
      block.words =
          static_cast<uint64_t*>(random.below(2) == 0 ? calloc(words, 8) : malloc(words * 8));
    } else {
      auto* moved = static_cast<uint64_t*>(realloc(block.words, words * 8));
      REQUIRE(moved != nullptr);
      for (size_t i = 0; i < words && i < block.count; ++i)
        REQUIRE(moved[i] == word_of(block.version, i));
      block.words = moved;
    }
    REQUIRE(block.words != nullptr);
    block.count = words;
    block.version = random.version();
    for (size_t i = 0; i < words; ++i) block.words[i] = word_of(block.version, i);
  }
  void end() {
    for (Block& block : blocks_) {
      block.check();
      free(block.words);
    }
  }

 private:
  struct Block {
    uint64_t* words = nullptr;
    size_t count = 0;
    uint32_t version = 0;
    void check() const {
      for (size_t i = 0; i < count; ++i) REQUIRE(words[i] == word_of(version, i));
    }
  };
  Block blocks_[kBlocks];
};

void step_map(Map& map, Random& random) {
  const Part part = choose(map, random, 300);
  if (part.count == 0) return renew(map, random);
  switch (random.below(64)) {
    case 0:
      return renew(map, random);
    case 1:
    case 2:
      return resize(map, random);
    case 3:
      return unmap(part);
    case 4: {
      const size_t other = random.below(g_map_count);
      std::unique_lock second(g_maps[other].lock, std::defer_lock);
      const bool both = &g_maps[other] != &map && second.try_lock();
      return in_child(map, both ? &g_maps[other] : nullptr, random);
    }
    case 5: {
      void* object = dlopen(g_object, RTLD_NOW | RTLD_LOCAL);
      REQUIRE(object != nullptr && dlclose(object) == 0);
      return;
    }
    case 6:
    case 7:
      return with_thread(part, random);
    case 8:
    case 9:
      if (g_begins_plain) break;  // a lock would activate
      return lock_pages(choose(map, random, 8), random);
    default:
      break;
  }
  switch (random.below(10)) {
    case 0:
      return discard(part, random);
    case 1:
      return advise(part, random);
    case 2:
      return protect(part, random);
    case 3:
      return through_file(part, random);
    case 4:
      return through_pipe(part);
    case 5:
      return by_process_vm(part, random);
    case 6:
    case 7:
      return part.check("in passing");
    default:
      return write_part(part, random);
  }
}

void work(uint64_t seed) {
  Random random(seed);
  Blocks blocks;
  while (!g_stop.load(std::memory_order_relaxed)) {
    if (random.below(4) == 0) {
      blocks.step(random);
    } else {
      Map& map = g_maps[random.below(g_map_count)];
      if (std::unique_lock lock(map.lock, std::try_to_lock); lock) step_map(map, random);
    }
    g_done.fetch_add(1, std::memory_order_relaxed);
  }
  blocks.end();
}

template <class Meanwhile>
void chaos(unsigned thread_count, Meanwhile meanwhile) {
  const uint64_t seed = tier::run_seed();
  Random random(seed);
  for (unsigned i = 0; i < g_map_count; ++i) g_maps[i].make(random);
  auto threads =
      lunar_test::start_threads(thread_count, [=](unsigned i) { work(seed * kThreads + i); });
  meanwhile(random);
  g_stop.store(true);
  threads.clear();
  for (const Map& map : g_maps) map.check_all("at the end");
  const uint64_t evicted = tier_stats().evictions;
  printf("%lu operations, %lu forks (%lu refused), %lu pages evicted\n", g_done.load(),
         g_forks.load(), g_refused.load(), evicted);
  REQUIRE(g_forks.load() > 0 && evicted > 1000);
}

template <unsigned kSeconds>
void chaos_on_tiered_memory() {
  chaos(kThreads, [](Random&) { std::this_thread::sleep_for(std::chrono::seconds(kSeconds)); });
}

void chaos_at_activation() {
  g_begins_plain = true;
  g_map_count = 4;
  chaos(3, [](Random& random) {
    constexpr size_t kBlock = 128 << 10, kCount = 400;  // 50 MiB
    char* blocks[kCount];
    for (size_t i = 0; i < kCount; ++i) {
      blocks[i] = static_cast<char*>(malloc(kBlock));
      REQUIRE(blocks[i] != nullptr);
      fill(blocks[i], kBlock, i);
      usleep(static_cast<useconds_t>(random.below(6000)));
    }
    for (size_t i = 0; i < kCount; ++i) REQUIRE(holds(blocks[i], kBlock, i), "block %zu", i);
  });
}

}  // namespace

// PROGRAM LIBRARY CASE SHARED_OBJECT [RUNS]
int main(int argc, char** argv) {
  if (argc < 4) return 2;
  g_object = argv[3];
  int code = 0;
  for (int run = argc > 4 && !inside() ? atoi(argv[4]) : 1; run > 0 && code == 0; --run)
    code = run_cases(argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=2g"},
                     {{"short", chaos_on_tiered_memory<5>},
                      {"long", chaos_on_tiered_memory<600>},
                      {"activation", chaos_at_activation, {"LUNAR_DRAM=48m", "LUNAR_SIZE=4g"}}});
  return code;
}
