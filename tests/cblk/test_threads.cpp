// SPDX-License-Identifier: Apache-2.0
// Many threads on one chunk, and with a chunk each. Every read is checked against the last write.
#include <atomic>
#include <memory>
#include <string>

#include "cblk_test.h"

namespace {

struct Worker {
  chunk_id_t id;
  size_t first, blocks;  // of the chunk: this thread's own
  uint64_t seed;
  int operations;
  size_t transfer_max;
};

// One I/O of n blocks that must succeed, by one of the five ways there are.
void one_io(const Worker& worker, uint64_t kind, bool write, void* buffer, cflash_offset_t at,
            size_t n, uint64_t number) {
  const int want = static_cast<int>(n);
  int tag = static_cast<int>(worker.seed * 1000003 + number);
  cblk_arw_status_t status;
  const auto start = [&](int flags) {
    flags |= CBLK_ARW_WAIT_CMD_FLAGS;
    return write ? cblk_awrite(worker.id, buffer, at, n, &tag, &status, flags)
                 : cblk_aread(worker.id, buffer, at, n, &tag, &status, flags);
  };
  switch (kind) {
    case 0:
      REQUIRE((write ? cblk_write(worker.id, buffer, at, n, 0)
                     : cblk_read(worker.id, buffer, at, n, 0)) == want);
      break;
    case 1: {
      const int rc = start(0);
      if (rc == 0) REQUIRE(cblk_aresult(worker.id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == want);
      // from the cache
      else
        REQUIRE(rc == want);
      break;
    }
    case 2: {
      int rc = start(CBLK_ARW_USER_TAG_FLAG);
      REQUIRE(rc == 0 || rc == want);
      while (rc == 0) {
        rc = cblk_aresult(worker.id, &tag, ignored(), CBLK_ARESULT_USER_TAG);
        if (rc == 0) usleep(50);  // a hundred spinning threads would take all CPUs
      }
      REQUIRE(rc == want);
      break;
    }
    case 3: {
      const int rc = start(CBLK_ARW_USER_STATUS_FLAG);
      REQUIRE(rc == 0 || rc == want);
      if (rc) break;
      await_status(status);
      REQUIRE(status.status == CBLK_ARW_STATUS_SUCCESS && status.blocks_transferred == n);
      break;
    }
    default: {
      cblk_io_t io = {};
      cblk_io_t* list = &io;
      io.request_type = write ? CBLK_IO_TYPE_WRITE : CBLK_IO_TYPE_READ;
      io.buf = buffer;
      io.lba = at;
      io.nblocks = n;
      int none = 0;
      REQUIRE(cblk_listio(worker.id, &list, 1, nullptr, 0, &list, 1, nullptr, &none, 0,
                          CBLK_LISTIO_WAIT_ISSUE_CMD) == 0);
      REQUIRE(io.stat.status == CBLK_ARW_STATUS_SUCCESS && io.stat.blocks_transferred == n);
    }
  }
}

// One thread: blocking and asynchronous I/O of every kind, on its own blocks, against a shadow of
// versions.
void work(const Worker& worker) {
  Random random(worker.seed);
  std::vector<uint64_t> shadow(worker.blocks, 0);  // 0: zeros or unknown
  const auto pick = [&](size_t* lba, size_t* n) {
    *n = 1 + random.below(worker.transfer_max < 8 ? worker.transfer_max : 8);
    *lba = random.below(worker.blocks - *n + 1);
  };
  Buffer buffer(8, random.below(3) == 0 ? 24 : 0);
  const auto check = [&](size_t lba, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      if (shadow[lba + i])
        REQUIRE(is_stamped(buffer.block(i), worker.first + lba + i, shadow[lba + i]));
    }
  };
  for (int i = 1; i <= worker.operations; ++i) {
    size_t lba, n;
    pick(&lba, &n);
    const auto at = static_cast<cflash_offset_t>(worker.first + lba);
    const bool write = random.below(2) == 0;
    const auto version = worker.seed << 20 | static_cast<uint64_t>(i);
    if (write) stamp(buffer, worker.first + lba, n, version);
    one_io(worker, random.below(5), write, buffer, at, n, static_cast<uint64_t>(i));
    if (!write) check(lba, n);
    for (size_t k = 0; write && k < n; ++k) shadow[lba + k] = version;
  }
  for (size_t lba = 0; lba < worker.blocks; ++lba) {
    REQUIRE(cblk_read(worker.id, buffer, static_cast<cflash_offset_t>(worker.first + lba), 1, 0) ==
            1);
    check(lba, 1);
  }
}

void run_all(std::vector<Worker>& workers) {
  in_parallel(workers.size(), [&](size_t i) { work(workers[i]); });
}

int operations(int full) { return full_strength() ? full : full / 20; }

void on_one_chunk(int threads, int requests, int flags) {
  // A hundred threads on two CPUs wait long: what is late is another test's.
  const Environment patience("CFLSH_BLK_TIMEOUT", std::to_string(tier::scaled(60)).c_str());
  const Chunk id(open_physical(8192, requests, flags));
  std::vector<Worker> workers;
  for (int t = 0; t < threads; ++t)
    workers.push_back({id, static_cast<size_t>(t) * 64, 64, seed() + static_cast<uint64_t>(t),
                       operations(2000), 8});
  run_all(workers);
  chunk_stats_t stats;
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0);
  REQUIRE(stats.num_errors == 0 && stats.num_act_reads == 0 && stats.num_act_areads == 0 &&
          stats.num_act_writes == 0 && stats.num_act_awrites == 0);
}

}  // namespace

TEST_CASE("a_hundred_threads_on_one_chunk") { on_one_chunk(100, 256, 0); }

TEST_CASE("more_threads_than_commands") { on_one_chunk(32, 3, 0); }

TEST_CASE("a_hundred_threads_with_a_cache") {
  Environment cache("CFLSH_BLK_CACHE_SIZE", "500");
  on_one_chunk(100, 256, 0);
}

TEST_CASE("a_chunk_a_thread") {
  const std::string path = device(8192);
  const int threads = 100;
  std::vector<Worker> workers;
  for (int t = 0; t < threads; ++t) {
    const chunk_id_t id = cblk_open(path.c_str(), 8, O_RDWR, 0, 0);
    REQUIRE(id != NULL_CHUNK_ID);
    workers.push_back({id, static_cast<size_t>(t) * 64, 64, seed() + static_cast<uint64_t>(t),
                       operations(2000), 8});
  }
  run_all(workers);
  for (const Worker& worker : workers) REQUIRE(cblk_close(worker.id, 0) == 0);
}

TEST_CASE("a_virtual_chunk_a_thread", "[kept]") {
  const std::string path = device(8192);
  std::vector<Worker> workers;
  for (int t = 0; t < 16; ++t) {
    const chunk_id_t id = cblk_open(path.c_str(), 8, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
    REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 64, 0) == 0);
    workers.push_back({id, 0, 64, seed() + static_cast<uint64_t>(t), operations(1000), 1});
  }
  run_all(workers);
  for (const Worker& worker : workers) REQUIRE(cblk_close(worker.id, 0) == 0);
}

// One thread issues, others take whatever is done: every command comes out exactly once.
TEST_CASE("issuers_and_fetchers") {
  const Chunk id(open_physical(kBlocks, 64));
  const int total = operations(100000);
  auto seen = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(total));
  std::atomic<int> fetched{0}, issued{0};
  Buffer buffer(64);
  const auto issuers = start_threads(2, [&] {
    for (int number; (number = issued++) < total;) {
      int tag = number;
      while (cblk_aread(id, buffer.block(static_cast<size_t>(number % 64)), number % 4096, 1, &tag,
                        nullptr, CBLK_ARW_USER_TAG_FLAG) != 0) {
        REQUIRE(errno == EWOULDBLOCK);
        usleep(50);
      }
    }
  });
  in_parallel(6, [&](int t) {
    while (fetched < total) {
      int tag = -1;
      const int rc = cblk_aresult(id, &tag, ignored(),
                                  CBLK_ARESULT_NEXT_TAG | (t % 2 ? CBLK_ARESULT_BLOCKING : 0));
      if (rc == 1) {
        REQUIRE(tag >= 0 && tag < total && seen[static_cast<size_t>(tag)]++ == 0);
        ++fetched;
      } else {
        REQUIRE(rc == 0 || errno == ENOENT);
        usleep(50);
      }
    }
  });
  REQUIRE(fetched == total);
}

// A's command ends first, so A stops harvesting; B, which slept behind it, must take over.
TEST_CASE("the_next_waiter_takes_over", "[sim][timed]") {
  Environment limit("CFLSH_BLK_TIMEOUT", "2");  // instead of a hang
  const Chunk id(open_sim("latency_us=100000", 64));
  in_parallel(4, [&](int t) {
    Buffer buffer(1);
    int tag;
    usleep(static_cast<useconds_t>(t) * 25000);
    const double start = seconds();
    REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
    REQUIRE(seconds() - start < 1);
  });
}

// Readers fill the cache with what they read while the block is being written: what is old must not
// stay.
TEST_CASE("the_cache_never_tells_of_the_past") {
  if (kind() == "sim")
    return;  // a device of memory, on which reads and writes of one block are a race of their own
  Environment cache("CFLSH_BLK_CACHE_SIZE", "4");
  const Chunk id(open_physical());
  std::atomic<bool> stop{false};
  auto readers = start_threads(3, [&id, &stop](int t) {
    Buffer block(1);
    while (!stop) {
      int tag;
      if (t == 0)
        REQUIRE(cblk_read(id, block, 3, 1, 0) == 1);
      else if (cblk_aread(id, block, 3, 1, &tag, nullptr, 0) == 0)
        REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
    }
  });
  Buffer block(1);
  for (uint64_t version = 1;
       version <=
       static_cast<uint64_t>(operations(kind() == "sim" || kind() == "pmem" ? 100000 : 6000));
       ++version) {
    int tag;
    stamp(block, 3, 1, version);
    if (version % 2)
      REQUIRE(cblk_write(id, block, 3, 1, 0) == 1);
    else
      REQUIRE(cblk_awrite(id, block, 3, 1, &tag, nullptr, 0) == 0 &&
              cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
    for (int i = 0; i < 2; ++i)
      REQUIRE(cblk_read(id, block, 3, 1, 0) == 1 && is_stamped(block, 3, 1, version));
  }
  stop = true;
  readers.clear();
}

// The waiting threads must not wake each other for nothing: with N of them on slow commands, few
// turns of the CPU are needed.
TEST_CASE("waiters_sleep", "[sim]") {
  const Chunk id(open_sim("latency_us=300000", 64));
  timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  in_parallel(32, [&] {
    Buffer buffer(1);
    int tag;
    REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  });
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double cpu = static_cast<double>(after.tv_sec - before.tv_sec) +
                     static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  REQUIRE(cpu <
          // half of one CPU, for 300 ms; sanitizers and thread starts included
          0.15 * tier::scaled(1));
}
