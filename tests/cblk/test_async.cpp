// SPDX-License-Identifier: Apache-2.0
// Asynchronous commands: tags, results, statuses, limits.
#include <dirent.h>
#include <sys/resource.h>

#include <thread>

#include "cblk_test.h"

namespace {

constexpr int kNext = CBLK_ARESULT_NEXT_TAG, kBlocking = CBLK_ARESULT_BLOCKING,
              kUserTag = CBLK_ARESULT_USER_TAG;

}  // namespace

TEST_CASE("a_result_is_fetched_once") {
  const Chunk id(open_physical());
  Buffer buffer(4);
  int tag = -1;
  uint64_t status = 99;
  stamp(buffer, 5, 4, 1);
  REQUIRE(cblk_awrite(id, buffer, 5, 4, &tag, nullptr, 0) == 0);
  REQUIRE(tag >= 0 && tag < 64);
  REQUIRE(cblk_aresult(id, &tag, &status, kBlocking) == 4);
  REQUIRE(status == 4);
  REFUSES(cblk_aresult(id, &tag, &status, 0), ENOMSG);
  memset(buffer, 0, 4 * kBlock);
  REQUIRE(cblk_aread(id, buffer, 5, 4, &tag, nullptr, 0) == 0);
  int rc;
  while ((rc = cblk_aresult(id, &tag, ignored(), 0)) == 0) {}  // polling
  REQUIRE(rc == 4);
  REQUIRE(is_stamped(buffer, 5, 4, 1));
}

TEST_CASE("next_tag", "[sim][timed]") {
  const Chunk id(open_sim("latency_us=30000"));
  Buffer buffer(8);
  int tag = 12;
  uint64_t status;
  REFUSES(cblk_aresult(id, &tag, &status, kNext), ENOENT);  // nothing active
  REFUSES(cblk_aresult(id, &tag, &status, kNext | kBlocking), ENOENT);
  int tags[8];
  for (int i = 0; i < 8; ++i)
    REQUIRE(cblk_aread(id, buffer.block(i), i, 1, &tags[i], nullptr, 0) == 0);
  tag = 12;
  REQUIRE(cblk_aresult(id, &tag, &status, kNext) == 0);  // nothing done
  REQUIRE(tag == -1);
  for (int i = 0; i < 8; ++i) {
    REQUIRE(cblk_aresult(id, &tag, &status, kNext | kBlocking) == 1);
    REQUIRE(tag == tags[i]);  // the oldest first
  }
  REFUSES(cblk_aresult(id, &tag, &status, kNext), ENOENT);
  chunk_stats_t stats;
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0);
  REQUIRE(stats.num_aresult_no_cmplt >= 1);
}

TEST_CASE("no_harvest_looks_but_does_not_ask", "[sim][timed]") {
  const Chunk id(open_sim("latency_us=1000"));
  Buffer buffer(1);
  int tag, any = 0;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  usleep(5000);
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_NO_HARVEST) == 0);
  REQUIRE(cblk_aresult(id, &any, ignored(), kNext | CBLK_ARESULT_NO_HARVEST) == 0);
  REQUIRE(cblk_aresult(id, &tag, ignored(), 0) == 1);
}

TEST_CASE("user_tags") {
  const Chunk id(open_physical());
  Buffer buffer(8);
  for (int i = 0; i < 8; ++i) {
    int tag = -1000 + 7 * i;
    REQUIRE(cblk_aread(id, buffer.block(i), i, 1, &tag, nullptr, CBLK_ARW_USER_TAG_FLAG) == 0);
    REQUIRE(tag == -1000 + 7 * i);
  }
  int index = 0;
  REFUSES(cblk_aresult(id, &index, ignored(), 0), EINVAL);  // it has a name of the caller's
  for (int i = 7; i >= 0; --i) {
    int tag = -1000 + 7 * i;
    REQUIRE(cblk_aresult(id, &tag, ignored(), kUserTag | kBlocking) == 1);
    REFUSES(cblk_aresult(id, &tag, ignored(), kUserTag), EINVAL);
  }
  int tag = 77777;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, CBLK_ARW_USER_TAG_FLAG) == 0);
  tag = 0;
  REQUIRE(cblk_aresult(id, &tag, ignored(), kNext | kBlocking) == 1);
  REQUIRE(tag == 77777);
}

TEST_CASE("commands_run_out", "[sim][timed]") {
  const Chunk id(open_sim("latency_us=20000", 4));
  Buffer buffer(8);
  int tags[5];
  for (int i = 0; i < 4; ++i)
    REQUIRE(cblk_aread(id, buffer.block(i), i, 1, &tags[i], nullptr, 0) == 0);
  REFUSES(cblk_aread(id, buffer.block(4), 4, 1, &tags[4], nullptr, 0), EWOULDBLOCK);
  chunk_stats_t stats;
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0);
  REQUIRE(stats.num_no_cmds_free == 1 && stats.num_no_cmds_free_fail == 1 &&
          stats.num_act_areads == 4);
  // Another thread fetches a result, which frees a command for the waiter.
  std::thread fetcher([&] {
    usleep(20000);
    REQUIRE(cblk_aresult(id, &tags[2], ignored(), kBlocking) == 1);
  });
  REQUIRE(cblk_aread(id, buffer.block(4), 4, 1, &tags[4], nullptr, CBLK_ARW_WAIT_CMD_FLAGS) == 0);
  fetcher.join();
  for (int i : {0, 1, 3, 4}) REQUIRE(cblk_aresult(id, &tags[i], ignored(), kBlocking) == 1);
}

// If the device has answered all commands and no thread fetches, the wait for a free command ends
// soon. Otherwise it lasts as long as CFLSH_BLK_TIMEOUT says.
TEST_CASE("waiting_for_a_command_ends_in_EBUSY", "[sim][timed]") {
  const Chunk id(open_physical(kBlocks, 1));
  Buffer buffer(2);
  int tag, other;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  const double start = seconds();
  REFUSES(cblk_aread(id, buffer.block(1), 0, 1, &other, nullptr, CBLK_ARW_WAIT_CMD_FLAGS), EBUSY);
  REQUIRE(seconds() - start > 0.15 && seconds() - start < 3);
  REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
}

// As in the original, a command is active until its result was fetched, also when the device is
// done with it.
TEST_CASE("a_command_counts_as_active_until_it_is_fetched") {
  const Chunk id(open_physical());
  Buffer buffer(2);
  int tags[2];
  chunk_stats_t stats;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tags[0], nullptr, 0) == 0);
  REQUIRE(cblk_awrite(id, buffer.block(1), 1, 1, &tags[1], nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tags[1], ignored(), kBlocking) == 1);
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0 && stats.num_act_areads == 1 &&
          stats.num_act_awrites == 0);
  int n = 0;
  cblk_io_t none = {}, *list[1] = {&none};  // harvests, fetches nothing
  none.request_type = CBLK_IO_TYPE_READ;
  none.buf = buffer;
  none.nblocks = 1;
  REQUIRE(cblk_listio(id, list, 1, nullptr, 0, list, 1, nullptr, &n, 0, 0) == 0);
  usleep(50000);
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0 && stats.num_act_areads == 1);
  REQUIRE(cblk_aresult(id, &tags[0], ignored(), kBlocking) == 1);
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0 && stats.num_act_areads == 0 &&
          stats.max_num_act_areads >= 1);
  // A command with a status ends without a fetch.
  cblk_arw_status_t status;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tags[0], &status, CBLK_ARW_USER_STATUS_FLAG) == 0);
  await_status(status);
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0 && stats.num_act_areads == 0);
}

TEST_CASE("status_is_filled_in_the_background") {
  const Chunk id(open_physical());
  Buffer buffer(16);
  cblk_arw_status_t status[16];
  int tag = -1;
  stamp(buffer, 40, 16, 3);
  for (int i = 0; i < 16; ++i) {
    memset(&status[i], 0xff, sizeof status[i]);
    REQUIRE(cblk_awrite(id, buffer.block(i), 40 + i, 1, &tag, &status[i],
                        CBLK_ARW_USER_STATUS_FLAG) == 0);
  }
  for (cblk_arw_status_t& one : status) {
    await_status(one);
    REQUIRE(one.status == CBLK_ARW_STATUS_SUCCESS && one.blocks_transferred == 1 &&
            one.fail_errno == 0);
  }
  REFUSES(cblk_aresult(id, &tag, ignored(), 0), ENOMSG);
  REFUSES(cblk_aresult(id, &tag, ignored(), kNext), ENOENT);
  // The same with a tag that the caller chose.
  int mine = 4242;
  REQUIRE(cblk_aread(id, buffer, 40, 16, &mine, &status[0],
                     CBLK_ARW_USER_STATUS_FLAG | CBLK_ARW_USER_TAG_FLAG) == 0);
  await_status(status[0]);
  REQUIRE(status[0].blocks_transferred == 16 && is_stamped(buffer, 40, 16, 3));
  REFUSES(cblk_aresult(id, &mine, ignored(), kUserTag), EINVAL);
  // Its place is free again without any fetch.
  for (int i = 0; i < 1000; ++i) {
    REQUIRE(cblk_aread(id, buffer, 40, 1, &tag, &status[i % 16],
                       CBLK_ARW_USER_STATUS_FLAG | CBLK_ARW_WAIT_CMD_FLAGS) == 0);
    if (i % 16 == 15) {
      for (cblk_arw_status_t& one : status) await_status(one);
    }
  }
  for (cblk_arw_status_t& one : status) await_status(one);
}

TEST_CASE("chunks_without_threads_fill_no_status") {
  const Chunk id(open_physical(kBlocks, 0, CBLK_OPN_NO_INTRP_THREADS));
  Buffer buffer(1);
  cblk_arw_status_t status;
  int tag;
  REFUSES(cblk_aread(id, buffer, 0, 1, &tag, &status, CBLK_ARW_USER_STATUS_FLAG), EINVAL);
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
}

namespace {

// CPU nanoseconds of the library's threads, and how many there are.
unsigned long long completer_cpu(int* threads) {
  unsigned long long sum = 0;
  *threads = 0;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    char path[400], name[32] = {};
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE* file = fopen(path, "r");
    if (!file) continue;
    const bool ours = fgets(name, sizeof name, file) && strncmp(name, "lunar-cblk", 10) == 0;
    fclose(file);
    if (!ours) continue;
    ++*threads;
    snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", entry->d_name);
    file = fopen(path, "r");
    unsigned long long ran = 0;
    if (file && fscanf(file, "%llu", &ran) == 1) sum += ran;
    if (file) fclose(file);
  }
  closedir(tasks);
  return sum;
}

}  // namespace

TEST_CASE("the_completer_starts_late_and_sleeps_when_idle", "[not-nvme][timed]") {
  const chunk_id_t id = open_physical();
  Buffer buffer(1);
  int tag, threads;
  (void)completer_cpu(&threads);
  REQUIRE(threads == 0);
  for (int i = 0; i < 100; ++i) REQUIRE(cblk_read(id, buffer, 0, 1, 0) == 1);
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
  (void)completer_cpu(&threads);
  REQUIRE(threads == 0);
  cblk_arw_status_t status;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, &status, CBLK_ARW_USER_STATUS_FLAG) == 0);
  await_status(status);
  usleep(20000);
  const unsigned long long before = completer_cpu(&threads);
  REQUIRE(threads == 1);
  usleep(400000);
  const unsigned long long idle = completer_cpu(&threads) - before;
  REQUIRE(idle < 1000000);  // below 1 ms of CPU in 400 ms
  // The thread also sleeps while a slow command is under way.
  const chunk_id_t slow = open_sim("latency_us=400000");
  REQUIRE(cblk_aread(slow, buffer, 0, 1, &tag, &status, CBLK_ARW_USER_STATUS_FLAG) == 0);
  usleep(50000);
  const unsigned long long busy = completer_cpu(&threads);
  REQUIRE(threads == 2);
  usleep(250000);
  REQUIRE(completer_cpu(&threads) - busy < 2000000);
  await_status(status);
  REQUIRE(cblk_close(slow, 0) == 0);
  REQUIRE(cblk_close(id, 0) == 0);
  usleep(10000);
  (void)completer_cpu(&threads);
  REQUIRE(threads == 0);
}

// The system's EAGAIN becomes ENOMEM, because EAGAIN means that no command is free.
TEST_CASE("no_thread_for_the_background_is_ENOMEM", "[sim]") {
  in_child([&] {
    const rlimit none = {0, 0};
    REQUIRE(setrlimit(RLIMIT_NPROC, &none) == 0);
    REQUIRE(geteuid() != 0 || setresuid(65534, 65534, 65534) == 0);  // root has no limit
    const Chunk id(open_sim("seed=1", 2));
    Buffer buffer(2);
    int tag;
    cblk_arw_status_t status = {};
    for (int i = 0; i < 3; ++i)  // a second each, for which a thread's start is tried
      REFUSES(cblk_aread(id, buffer, 0, 1, &tag, &status, CBLK_ARW_USER_STATUS_FLAG), ENOMEM);
    cblk_io_t io = {};
    cblk_io_t completion, *list = &io, *out = &completion;
    io.request_type = CBLK_IO_TYPE_READ;
    io.flags = CBLK_IO_USER_STATUS;
    io.buf = buffer;
    io.nblocks = 1;
    int n = 1;
    REQUIRE(cblk_listio(id, &list, 1, nullptr, 0, nullptr, 0, &out, &n, 0, 0) == 0);
    REQUIRE(io.stat.status != CBLK_ARW_STATUS_PENDING && io.stat.fail_errno == ENOMEM);
    for (int i = 0; i < 2; ++i)
      REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);  // none was lost
    for (int i = 0; i < 2; ++i)
      REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) ==
              1);
    chunk_stats_t stats;
    REQUIRE(cblk_get_stats(id, &stats, 0) == 0 && stats.num_failed_threads >= 1 &&
            stats.num_active_threads == 0);
  });
}

#if !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)  // they keep memory of their own for each thread
TEST_CASE("a_closed_chunk_leaves_no_memory_behind", "[sim]") {
  const auto mapped_pages = [] {
    unsigned long pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    REQUIRE(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages;
  };
  Buffer buffer(1);
  unsigned long before = 0;
  for (int i = 0; i < 30; ++i) {
    if (i == 10) before = mapped_pages();
    const chunk_id_t id = open_sim("seed=1");
    int tag;
    cblk_arw_status_t status = {};
    // starts the thread
    REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, &status, CBLK_ARW_USER_STATUS_FLAG) == 0);
    await_status(status);
    REQUIRE(cblk_close(id, 0) == 0);
  }
  REQUIRE(mapped_pages() < before + 40);  // its stack, or any of its tables, for each: more
}
#endif

TEST_CASE("max_requests_of_8192") {
  const Chunk id(open_physical(kBlocks, 8192));
  Buffer buffer(1);
  static int tags[8192];
  for (int& tag : tags) REQUIRE(cblk_aread(id, buffer, 3, 1, &tag, nullptr, 0) == 0);
  int extra;
  REFUSES(cblk_aread(id, buffer, 3, 1, &extra, nullptr, 0), EWOULDBLOCK);
  for (int& tag : tags) REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
}

// A close that waits ends with the last fetch.
TEST_CASE("a_close_ends_with_the_last_fetch", "[timed]") {
  const chunk_id_t id = open_physical();
  Buffer buffer(4);
  int tag;
  for (int i = 0; i < 4; ++i) REQUIRE(cblk_aread(id, buffer.block(i), i, 1, &tag, nullptr, 0) == 0);
  std::thread fetcher([&id] {
    usleep(50000);  // let the close begin; right either way
    for (int i = 0; i < 4; ++i) {
      int any;
      REQUIRE(cblk_aresult(id, &any, ignored(), CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) ==
              1);
    }
  });
  const double start = seconds();
  REQUIRE(cblk_close(id, 0) == 0);
  REQUIRE(seconds() - start < 4.5);
  fetcher.join();
}

// Of two threads that wait for one tag, one gets the result and the other ENOMSG.
TEST_CASE("two_waiters_for_one_tag", "[sim]") {
  const Chunk id(open_sim("latency_us=50000"));
  Buffer buffer(1);
  int tag, results[2], errors[2];
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  in_parallel(2, [&](int i) {
    int mine = tag;
    results[i] = cblk_aresult(id, &mine, ignored(), kBlocking);
    errors[i] = errno;
  });
  REQUIRE(results[0] + results[1] == 0);  // 1 and -1
  REQUIRE(errors[results[0] == -1 ? 0 : 1] == ENOMSG);
}

TEST_CASE("waiters_for_any_end_with_ENOENT_when_all_is_fetched", "[sim]") {
  const Chunk id(open_sim("latency_us=50000"));
  Buffer buffer(1);
  int tag;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  int got[3], errors[3];
  in_parallel(3, [&](int i) {
    int any;
    got[i] = cblk_aresult(id, &any, ignored(), kNext | kBlocking);
    errors[i] = errno;
  });
  int ones = 0;
  for (int i = 0; i < 3; ++i) {
    ones += got[i] == 1;
    REQUIRE(got[i] == 1 || errors[i] == ENOENT);
  }
  REQUIRE(ones == 1);
}
