// SPDX-License-Identifier: Apache-2.0
// stress: threads do random things to memory that is several times its DRAM, against a shadow model
// kept in plain DRAM.
//
// Idea. Memory has three parts:
//   pages    every quarter of a page has a version in the model; its words tell (quarter, version).
//            A thread that works on pages holds their locks (try-locks: a taken page means another
//            choice), so neighbours and read-ahead windows are shared between threads all the time,
//            single pages are not
//   shared   never changes after start and is read by all threads without locks: two threads fault
//            on one page
//   blocks   lunar_malloc memory, a table a thread: grown, shrunk, moved, freed
// Every read checks all the words it sees. LUNAR_SEED=N replays the threads' choices (not how they
// interleave).
//
// Options: --operations N, --faults N (at least that many, or the test fails), --memory MIB,
// --divisor N (budget = memory / N), --threads N, --lun URI, --options LIST.
#include <fcntl.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "tests/support/test_tier.h"

namespace {

using lunar_test::option;
using lunar_test::text_option;

using tier::Random;

struct Settings {
  uint64_t operations = option("--operations", 500'000), faults = option("--faults", 250'000),
           memory = option("--memory", 1024), divisor = option("--divisor", 8),
           threads = option("--threads", 8);
  const char *lun = text_option("--lun"), *options = text_option("--options");
};

struct Model {
  size_t page = 0;
  size_t part = 0;  // a quarter of a page
  uint64_t pages = 0, shared_pages = 0;
  char* base = nullptr;
  char* shared = nullptr;
  std::vector<std::atomic<uint32_t>> locks;
  std::vector<uint32_t> versions;  // four a page
  std::atomic<uint64_t> done{0};
  int zero_fd = -1;
};

Model g;

class PageLocks {
 public:
  PageLocks(uint64_t first, uint64_t count) : first_(first) {
    for (; held_ < count; ++held_) {
      uint32_t free = 0;
      if (!g.locks[first + held_].compare_exchange_strong(free, 1, std::memory_order_acquire))
        break;
    }
    all_ = held_ == count;
  }
  ~PageLocks() {
    for (uint64_t i = 0; i < held_; ++i) g.locks[first_ + i].store(0, std::memory_order_release);
  }
  explicit operator bool() const { return all_; }

 private:
  uint64_t first_, held_ = 0;
  bool all_ = false;
};

char* address_of(uint64_t page) { return g.base + page * g.page; }

void check_content(uint64_t page, const char* content, const char* what) {
  for (unsigned q = 0; q < 4; ++q) {
    uint64_t key = page * 4 + q;
    if (tier::stamp_holds(content + q * g.part, g.part, key, g.versions[key])) continue;
    auto* word = reinterpret_cast<const uint64_t*>(content + q * g.part);
    fprintf(stderr,
            "page %lu (%p) quarter %u: expected version %u, first words %lx %lx, state %d\n", page,
            static_cast<void*>(address_of(page)), q, g.versions[key], word[0], word[1],
            lunar::pager_page_state(address_of(page)));
    for (uint32_t v = 0; v <= g.versions[key]; ++v)
      if (tier::stamp_holds(word, 8, key, v)) fprintf(stderr, "  it begins like version %u\n", v);
    REQUIRE(false, "%s saw the wrong content", what);
  }
}

void write_part(uint64_t page, unsigned q, char* at) {
  uint64_t key = page * 4 + q;
  tier::stamp_write(at, g.part, key, ++g.versions[key]);
}

// One worker's belongings.
struct Worker {
  Worker(uint64_t seed, unsigned index, uint64_t block_bytes)
      : random(seed * 64 + index), block_limit(block_bytes) {
    REQUIRE(pipe2(pipe_fds, O_CLOEXEC) == 0);
    fcntl(pipe_fds[1], F_SETPIPE_SZ, 1 << 20);
    plain.resize(64 * g.page);
  }
  struct Block {
    char* at;
    size_t bytes;
    uint64_t id;
  };
  Random random;
  std::vector<Block> blocks;
  size_t block_bytes = 0, block_limit;
  uint64_t next_id = 1;
  int pipe_fds[2];
  std::vector<char> plain;
};

uint64_t some_run(Worker& w, uint64_t longest, uint64_t* first) {
  uint64_t n = w.random.one_in(16) ? 1 + w.random.below(longest) : 1;
  *first = w.random.below(g.pages - n);
  return n;
}

void read_pages(Worker& w) {
  uint64_t first, n = some_run(w, 64, &first);
  PageLocks hold(first, n);
  if (!hold) return;
  for (uint64_t i = 0; i < n; ++i) check_content(first + i, address_of(first + i), "a read");
}

void write_pages(Worker& w) {
  uint64_t first, n = some_run(w, 16, &first);
  PageLocks hold(first, n);
  if (!hold) return;
  for (uint64_t i = 0; i < n; ++i) {
    unsigned only = static_cast<unsigned>(w.random.below(8));  // 4..7: the whole page
    for (unsigned q = 0; q < 4; ++q)
      if (only >= 4 || q == only) write_part(first + i, q, address_of(first + i) + q * g.part);
  }
}

void discard_pages(Worker& w) {
  uint64_t first, n = some_run(w, 32, &first);
  PageLocks hold(first, n);
  if (!hold) return;
  REQUIRE(lunar_discard(address_of(first), n * g.page) == 0);
  for (uint64_t key = first * 4; key < (first + n) * 4; ++key) g.versions[key] = 0;
  if (w.random.one_in(2)) check_content(first, address_of(first), "a read after discard");
}

void pin_pages(Worker& w) {
  uint64_t first, n = some_run(w, 8, &first);
  PageLocks hold(first, n);
  if (!hold) return;
  int rc = lunar_pin(address_of(first), n * g.page);
  REQUIRE(rc == 0, "pin: %d", rc);
  for (unsigned round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < n; ++i) {
      check_content(first + i, address_of(first + i), "a pinned read");
      int state = lunar::pager_page_state(address_of(first + i));
      REQUIRE(state == 1, "a pinned page is in state %d", state);
    }
    if (round == 0) usleep(static_cast<unsigned>(w.random.below(200)));
  }
  if (w.random.one_in(2)) write_part(first, 0, address_of(first));
  REQUIRE(lunar_unpin(address_of(first), n * g.page) == 0);
}

void prefetch_pages(Worker& w) {
  lunar_range ranges[64];
  uint64_t n = 1 + w.random.below(64);
  for (uint64_t i = 0; i < n; ++i) ranges[i] = {address_of(w.random.below(g.pages)), g.page};
  int rc = lunar_prefetch(ranges, n);
  REQUIRE(rc == 0, "prefetch: %d", rc);
}

void touch_or_evict(Worker& w) {
  uint64_t first, n = some_run(w, 64, &first);
  if (w.random.one_in(2)) {
    int rc = lunar_touch(address_of(first), n * g.page);
    REQUIRE(rc == 0, "touch: %d", rc);
  } else {
    int64_t rc = lunar_evict(address_of(first), n * g.page);
    REQUIRE(rc >= 0, "evict: %lld", static_cast<long long>(rc));
  }
}

// The kernel accesses missing pages: the source or target of a system call.
void system_call(Worker& w) {
  uint64_t first, n = some_run(w, 16, &first);
  PageLocks hold(first, n);
  if (!hold) return;
  size_t bytes = n * g.page;
  char* plain = w.plain.data();
  switch (w.random.below(3)) {
    case 0:
      REQUIRE(read(g.zero_fd, address_of(first), bytes) == static_cast<ssize_t>(bytes),
              "read of zeros: %s", strerror(errno));
      for (uint64_t key = first * 4; key < (first + n) * 4; ++key) g.versions[key] = 0;
      break;
    case 1:  // out of tiered memory
      REQUIRE(write(w.pipe_fds[1], address_of(first), bytes) == static_cast<ssize_t>(bytes));
      REQUIRE(read(w.pipe_fds[0], plain, bytes) == static_cast<ssize_t>(bytes));
      for (uint64_t i = 0; i < n; ++i) check_content(first + i, plain + i * g.page, "a write()");
      break;
    default:  // into it
      for (uint64_t i = 0; i < n; ++i)
        for (unsigned q = 0; q < 4; ++q) write_part(first + i, q, plain + i * g.page + q * g.part);
      REQUIRE(write(w.pipe_fds[1], plain, bytes) == static_cast<ssize_t>(bytes));
      REQUIRE(read(w.pipe_fds[0], address_of(first), bytes) == static_cast<ssize_t>(bytes));
  }
}

void read_shared(Worker& w) {
  // Half of the reads go to a small hot part: threads meet there.
  uint64_t page = w.random.below(w.random.one_in(2) ? 64 : g.shared_pages);
  REQUIRE(tier::stamp_holds(g.shared + page * g.page, g.page, page, 7),
          "shared page %lu is wrong, state %d", page,
          lunar::pager_page_state(g.shared + page * g.page));
}

void check_block(const Worker::Block& block, size_t bytes) {
  REQUIRE(tier::stamp_holds(block.at, bytes / 8 * 8, block.id, 1), "block %p of %zu bytes is wrong",
          static_cast<void*>(block.at), bytes);
}

size_t some_size(Worker& w) {
  size_t bytes = size_t{8} << w.random.below(16);  // 8 bytes to 256 KiB
  return bytes + w.random.below(bytes) / 8 * 8;
}

void free_block(Worker& w, size_t index) {
  check_block(w.blocks[index], w.blocks[index].bytes);
  lunar_free(w.blocks[index].at);
  w.block_bytes -= w.blocks[index].bytes;
  w.blocks[index] = w.blocks.back();
  w.blocks.pop_back();
}

void work_blocks(Worker& w) {
  while (!w.blocks.empty() && w.block_bytes > w.block_limit)
    free_block(w, w.random.below(w.blocks.size()));
  if (w.blocks.empty() || w.random.one_in(3)) {  // new
    Worker::Block block{nullptr, some_size(w), (w.next_id++ << 16) + w.random.below(1 << 16)};
    block.at = static_cast<char*>(w.random.one_in(4) ? lunar_calloc(1, block.bytes)
                                                     : lunar_malloc(block.bytes));
    REQUIRE(block.at != nullptr, "lunar_malloc(%zu): %s", block.bytes, strerror(errno));
    tier::stamp_write(block.at, block.bytes, block.id, 1);
    w.block_bytes += block.bytes;
    w.blocks.push_back(block);
    return;
  }
  size_t index = w.random.below(w.blocks.size());
  Worker::Block& block = w.blocks[index];
  if (w.random.one_in(3)) return free_block(w, index);
  if (w.random.one_in(2)) return check_block(block, block.bytes);
  size_t bytes = some_size(w), kept = bytes < block.bytes ? bytes : block.bytes;  // grown or shrunk
  auto* at = static_cast<char*>(lunar_realloc(block.at, bytes));
  REQUIRE(at != nullptr, "lunar_realloc(%zu): %s", bytes, strerror(errno));
  block.at = at;
  check_block(block, kept);
  tier::stamp_write(at, bytes, block.id, 1);
  w.block_bytes += bytes;
  w.block_bytes -= block.bytes;
  block.bytes = bytes;
}

// A region that only this thread uses, and that it destroys.
void work_region(Worker& w) {
  uint64_t pages = 1 + w.random.below(256);
  char* at = tier::new_region(pages * g.page);
  uint64_t written = w.random.below(pages) + 1;
  for (uint64_t i = 0; i < written; ++i) tier::stamp_write(at + i * g.page, g.page, i, 3);
  if (w.random.one_in(2)) REQUIRE(lunar_evict(at, pages * g.page) >= 0);
  for (uint64_t i = 0; i < pages; ++i)
    REQUIRE(tier::stamp_holds(at + i * g.page, g.page, i, i < written ? 3 : 0),
            "region page %lu of %lu (%lu written)", i, pages, written);
  int rc = lunar_region_destroy(at, pages * g.page);
  REQUIRE(rc == 0, "region_destroy: %d", rc);
}

void one_operation(Worker& w) {
  uint64_t dice = w.random.below(1000);
  if (dice < 390)
    read_pages(w);
  else if (dice < 690)
    write_pages(w);
  else if (dice < 790)
    read_shared(w);
  else if (dice < 810)
    discard_pages(w);
  else if (dice < 820)
    pin_pages(w);
  else if (dice < 840)
    prefetch_pages(w);
  else if (dice < 850)
    touch_or_evict(w);
  else if (dice < 920)
    system_call(w);
  else if (dice < 999)
    work_blocks(w);
  else
    work_region(w);
}

void set_up(const Settings& s) {
  uint64_t total = s.memory * tier::kMega;
  tier::start_tier(total / s.divisor, total * 2, s.lun, s.options);
  g.page = lunar_page_bytes();
  g.part = g.page / 4;
  g.pages = total * 3 / 4 / g.page;
  g.shared_pages = total / 8 / g.page;  // the last eighth is for blocks
  g.base = static_cast<char*>(lunar_region_create(g.pages * g.page));
  g.shared = static_cast<char*>(lunar_region_create(g.shared_pages * g.page));
  REQUIRE(g.base != nullptr && g.shared != nullptr);
  g.locks = std::vector<std::atomic<uint32_t>>(g.pages);
  g.versions.assign(g.pages * 4, 0);
  g.zero_fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  for (uint64_t i = 0; i < g.shared_pages; ++i)
    tier::stamp_write(g.shared + i * g.page, g.page, i, 7);
  for (uint64_t i = 0; i < g.pages; ++i)  // an eighth stays untouched
    for (unsigned q = 0; q < 4 && i % 8 != 0; ++q) write_part(i, q, address_of(i) + q * g.part);
}

}  // namespace

TEST_CASE("stress") {
  const Settings s;
  uint64_t seed = tier::run_seed();
  set_up(s);
  double start = tier::seconds();
  {
    tier::Watchdog watchdog(g.done, 60);
    lunar_test::in_parallel(s.threads, [&](unsigned t) {
      Worker worker(seed, t, s.memory * tier::kMega / 8 / s.threads);
      while (g.done.fetch_add(1, std::memory_order_relaxed) < s.operations) one_operation(worker);
      while (!worker.blocks.empty()) free_block(worker, worker.blocks.size() - 1);
    });
    for (uint64_t page = 0; page < g.pages; ++page, ++g.done)
      check_content(page, address_of(page), "the last look");
  }
  double took = tier::seconds() - start;
  lunar_stats st = tier::stats();
  printf(
      "%lu operations in %.1f s: faults %lu (major %lu, second chances %lu, zero %lu), prefetched "
      "%lu, evictions %lu (clean %lu, zero %lu), waits %lu; resident peak %lu of %lu MiB\n",
      s.operations, took, st.faults, st.major_faults, st.second_chances, st.zero_fills,
      st.prefetched, st.evictions, st.evicted_clean, st.evicted_zero, st.budget_waits,
      st.resident_peak_bytes >> 20, st.dram_budget_bytes >> 20);
  REQUIRE(st.read_errors == 0 && st.write_errors == 0 && st.poisoned == 0);
  REQUIRE(st.resident_peak_bytes <= st.dram_budget_bytes, "the cap was passed");
  REQUIRE(st.faults >= s.faults, "too few faults: %lu of %lu", st.faults, s.faults);
  REQUIRE(tier::validate(), "the page table does not add up");
  REQUIRE(lunar_region_destroy(g.base, g.pages * g.page) == 0 &&
          lunar_region_destroy(g.shared, g.shared_pages * g.page) == 0);
}
