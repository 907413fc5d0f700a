// SPDX-License-Identifier: Apache-2.0
// CFLSH_BLK_TIMEOUT bounds every I/O, and a late one no longer touches the caller's memory. The
// device is simulated and takes as long as the test says. Bounds are wide, as other tests run.
#include <dirent.h>

#include "cblk_test.h"

namespace {

constexpr int kNext = CBLK_ARESULT_NEXT_TAG, kBlocking = CBLK_ARESULT_BLOCKING;

bool untouched(const Buffer& buffer, size_t blocks) {
  for (size_t i = 0; i < blocks * kBlock; ++i) {
    if (buffer.data()[i] != 0x5a) return false;
  }
  return true;
}

chunk_stats_t stats_of(chunk_id_t id) {
  chunk_stats_t stats;
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0);
  return stats;
}

}  // namespace

TEST_CASE("a_blocking_read_ends_in_time_and_its_buffer_is_the_callers_again", "[sim][timed]") {
  const Limit limit("300");
  const Chunk id(open_sim("stall=777,stall_us=1500000"));
  Buffer buffer(20), fine(1);
  const Watch watch;
  REFUSES(cblk_read(id, buffer, 777, 20, 0), ETIMEDOUT);
  REQUIRE(watch.passed() >= 0.3 && watch.passed() < 1.4);
  REQUIRE(stats_of(id).num_timeouts == 1 && stats_of(id).num_fail_timeouts == 1 &&
          stats_of(id).num_errors == 1);
  REQUIRE(cblk_read(id, fine, 0, 1, 0) == 1);   // the others go on
  for (int i = 0; watch.passed() < 1.8; ++i) {  // also when the device has it done
    REQUIRE(cblk_read(id, fine, i % 100, 1, 0) == 1);
    REQUIRE(untouched(buffer, 20));
    usleep(1000);
  }
}

TEST_CASE("asynchronous_commands_end_in_time", "[sim][timed]") {
  const Limit limit("300");
  const Chunk id(open_sim("latency_us=1000000", 8));
  Buffer buffers(5);
  int tags[5];
  cblk_arw_status_t status;
  const Watch watch;
  for (int i = 0; i < 4; ++i)
    REQUIRE(cblk_aread(id, buffers.block(i), i, 1, &tags[i], nullptr, 0) == 0);
  REQUIRE(cblk_aread(id, buffers.block(4), 4, 1, &tags[4], &status, CBLK_ARW_USER_STATUS_FLAG) ==
          0);
  int any = 0;
  REQUIRE(cblk_aresult(id, &any, ignored(), kNext) == 0 && any == -1);
  REFUSES(cblk_aresult(id, &tags[2], ignored(), kBlocking), ETIMEDOUT);
  REQUIRE(watch.passed() >= 0.3 && watch.passed() < 0.9);
  // it is over: its tag says which one
  REFUSES(cblk_aresult(id, &any, ignored(), kNext | kBlocking), ETIMEDOUT);
  REQUIRE(any == tags[0]);
  REFUSES(cblk_aresult(id, &tags[1], ignored(), 0), ETIMEDOUT);  // a caller that polls sees it too
  REFUSES(cblk_aresult(id, &any, ignored(), kNext), ETIMEDOUT);
  REQUIRE(any == tags[3]);
  REFUSES(cblk_aresult(id, &any, ignored(), kNext), ENOENT);
  while (status_of(status) == CBLK_ARW_STATUS_PENDING) REQUIRE(watch.passed() < 0.95);
  REQUIRE(status.status == CBLK_ARW_STATUS_FAIL && status.fail_errno == ETIMEDOUT &&
          status.blocks_transferred == 0);
  const chunk_stats_t stats = stats_of(id);
  REQUIRE(stats.num_timeouts == 5 && stats.num_errors == 5 && stats.num_act_areads == 0);
  // Their places come free when the device is done with them; nothing came into the buffers.
  watch.until(1.1);
  REFUSES(cblk_aresult(id, &any, ignored(), kNext), ENOENT);
  for (int i = 0; i < 8; ++i)
    REQUIRE(cblk_aread(id, buffers.block(4), i, 1, &any, nullptr, CBLK_ARW_WAIT_CMD_FLAGS) == 0);
  REQUIRE(untouched(buffers, 4));
  for (int i = 0; i < 8; ++i)
    REFUSES(cblk_aresult(id, &any, ignored(), kNext | kBlocking), ETIMEDOUT);
  REQUIRE(untouched(buffers, 5));
}

TEST_CASE("commands_of_a_list_end_in_time", "[sim][timed]") {
  const Limit limit("300");
  const chunk_id_t id = open_sim("latency_us=1000000", 8);
  Buffer buffers(2);
  cblk_io_t ios[2] = {}, *both[2] = {&ios[0], &ios[1]}, ended = {}, *done[1] = {&ended};
  for (int i = 0; i < 2; ++i) {
    ios[i].request_type = CBLK_IO_TYPE_READ;
    ios[i].buf = buffers.block(i);
    ios[i].lba = i;
    ios[i].nblocks = 1;
  }
  const Watch watch;
  int n = 1;
  REQUIRE(cblk_listio(id, both, 2, nullptr, 0, both, 1, done, &n, 0, 0) ==
          0);  // no limit of its own
  REQUIRE(watch.passed() < 0.9);
  REQUIRE(ios[0].stat.status == CBLK_ARW_STATUS_FAIL && ios[0].stat.fail_errno == ETIMEDOUT);
  for (n = 0; n == 0;) {  // asks again and again
    REQUIRE(watch.passed() < 0.95);
    n = 1;
    REQUIRE(cblk_listio(id, nullptr, 0, &both[1], 1, nullptr, 0, done, &n, 0, 0) == 0);
  }
  REQUIRE(ended.stat.status == CBLK_ARW_STATUS_FAIL && ended.stat.fail_errno == ETIMEDOUT);
  watch.until(1.1);
  REQUIRE(untouched(buffers, 2) && cblk_close(id, 0) == 0);
}

// A late write may still land, with its first content, and never after a later write to its blocks.
TEST_CASE("a_late_write_is_never_the_last_word", "[sim][timed]") {
  for (const bool blocking : {true, false}) {
    const Limit limit("400");
    const std::string device = std::string("sim:4m,name=late") + (blocking ? "1" : "2");
    const chunk_id_t id =
        cblk_open((device + ",stall=777,stall_us=1500000").c_str(), 0, O_RDWR, 0, 0);
    REQUIRE(id != NULL_CHUNK_ID);
    Buffer first(1), second(1), other(1);
    stamp(first, 777, 1, 1);
    stamp(second, 777, 1, 2);
    int tag;
    const auto write = [&](const Buffer& from, off_t lba) {
      if (blocking) return cblk_write(id, from, lba, 1, 0);
      if (cblk_awrite(id, from, lba, 1, &tag, nullptr, 0) < 0) return -1;
      return cblk_aresult(id, &tag, ignored(), kBlocking);
    };
    const Watch watch;
    REFUSES(write(first, 777), ETIMEDOUT);
    REQUIRE(watch.passed() < 1.0);
    memset(first, 0x77, kBlock);             // it is the caller's again
    REFUSES(write(second, 777), ETIMEDOUT);  // it must wait for the first one, and that is late
    if (blocking) REQUIRE(cblk_write(id, other, 9, 1, 0) == 1);  // not so elsewhere
    while (write(second, 777) < 0) REQUIRE(errno == ETIMEDOUT && watch.passed() < tier::scaled(10));
    REQUIRE(watch.passed() > 1.4);  // after it
    REQUIRE(holds(device.c_str(), 777, 2));
    usleep(200000);
    REQUIRE(holds(device.c_str(), 777, 2));
    REQUIRE(cblk_close(id, 0) == 0);
  }
  // A write without a successor lands with its own content, not with the buffer's later one.
  const Limit limit("200");
  const chunk_id_t id = cblk_open("sim:4m,name=late3,stall=777,stall_us=700000", 0, O_RDWR, 0, 0);
  Buffer block(1);
  stamp(block, 777, 1, 3);
  REFUSES(cblk_write(id, block, 777, 1, 0), ETIMEDOUT);
  memset(block, 0x77, kBlock);
  REQUIRE(cblk_close(id, 0) == 0);  // waits for it
  REQUIRE(holds("sim:4m,name=late3", 777, 3));
}

TEST_CASE("a_chunk_with_late_commands_is_not_closed", "[.][sim][timed]") {
  const Limit limit("200");
  const chunk_id_t id = open_sim("stall=777,stall_us=7000000");
  Buffer block(1);
  const Watch watch;
  REFUSES(cblk_read(id, block, 777, 1, 0), ETIMEDOUT);
  REFUSES(cblk_close(id, 0), EBUSY);
  REQUIRE(watch.passed() > 5 && watch.passed() < 6.9);
  REQUIRE(cblk_read(id, block, 0, 1, 0) == 1);  // it stays open
  REQUIRE(cblk_close(id, 0) == 0);
}

// Blocks that a late write may still reach are not given to another LUN.
TEST_CASE("a_virtual_chunk_with_a_late_write_does_not_shrink", "[sim][timed]") {
  const Limit limit("150");
  Buffer block(1);
  for (int page = 50;; page += 16) {  // where block 50 came to lie
    REQUIRE(page < 4096);
    const std::string uri = "sim:16m,stall_us=500000,stall=" + std::to_string(page);
    const chunk_id_t id = cblk_open(uri.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
    REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 100, 0) == 0);
    const bool late = cblk_write(id, block, 50, 1, 0) < 0;
    if (late) {
      REQUIRE(errno == ETIMEDOUT);
      REFUSES(cblk_set_size(id, 10, 0), EBUSY);
      REQUIRE(cblk_set_size(id, 200, 0) == 0);  // growing takes nothing away
      usleep(600000);
      REQUIRE(cblk_set_size(id, 10, 0) == 0);
    }
    REQUIRE(cblk_close(id, 0) == 0);
    if (late) return;
  }
}

TEST_CASE("a_stripe_with_one_member_that_hangs_ends_in_time", "[sim][timed]") {
  const Limit limit("200");
  const chunk_cg_id_t group = cblk_cg_open("(sim:4m):(sim:4m,stall=777,stall_us=1000000)", 0,
                                           O_RDWR, 2, 0, CBLK_GROUP_RAID0);
  REQUIRE(group != NULL_CHUNK_CG_ID);
  Buffer buffer(8);
  const Watch watch;
  REQUIRE(cblk_cg_read(group, buffer, 0, 1, 0) == 1);
  memset(buffer, 0x5a, 8 * kBlock);
  REFUSES(cblk_cg_read(group, buffer, 777 * 2, 8, 0), ETIMEDOUT);
  REQUIRE(watch.passed() < 0.9);
  const std::string then(buffer.data(), 8 * kBlock);  // the sound member's blocks may have come
  Buffer other(1);
  REQUIRE(cblk_cg_read(group, other, 1, 1, 0) == 1);
  REQUIRE(cblk_cg_close(group, 0) == 0);  // waits for what is late
  REQUIRE(memcmp(buffer, then.data(), 8 * kBlock) == 0);
}

TEST_CASE("units_and_the_absence_of_a_limit", "[sim][timed]") {
  constexpr struct {
    const char *number, *units;
    int result;
    double least, most;  // seconds
  } kReads[] = {
      {"200000", "MICRO", -1, 0.2, 1.5}, {"200", "MILLI", -1, 0.2, 1.5},
      {"1", "SECONDS", -1, 1, 1.59},     {"0", "MILLI", 1, 1.6, 60},  // no limit
      {"10 000", "MILLI", 1, 1.6, 60},                                // no number: 15 s
  };
  std::vector<chunk_id_t> ids;
  for (const auto& read : kReads) {
    const Environment a("CFLSH_BLK_TIMEOUT", read.number), b("CFLSH_BLK_TIMEOUT_UNITS", read.units);
    ids.push_back(open_sim("stall=777,stall_us=1600000"));
  }
  in_parallel(ids.size(), [&](size_t i) {
    Buffer block(1);
    const Watch watch;
    REQUIRE(cblk_read(ids[i], block, 777, 1, 0) == kReads[i].result);
    REQUIRE(watch.passed() >= kReads[i].least && watch.passed() < kReads[i].most, "%s %s",
            kReads[i].number, kReads[i].units);
  });
  for (const chunk_id_t id : ids) REQUIRE(cblk_close(id, 0) == 0);
}

TEST_CASE("more_threads_than_lanes_get_their_turn", "[sim]") {
  const chunk_id_t id = open_sim("latency_us=2000");
  in_parallel(150, [&](int t) {
    Buffer block(1), back(1);
    for (uint64_t i = 0; i < 5; ++i) {
      stamp(block, static_cast<uint64_t>(t), 1, i);
      REQUIRE(cblk_write(id, block, t, 1, 0) == 1);
      REQUIRE(cblk_read(id, back, t, 1, 0) == 1 &&
              is_stamped(back, static_cast<uint64_t>(t), 1, i));
    }
  });
  REQUIRE(stats_of(id).num_timeouts == 0 && cblk_close(id, 0) == 0);
}

TEST_CASE("a_child_does_not_inherit_what_is_late", "[sim][timed]") {
  const Limit limit("200");
  static chunk_id_t id;
  id = open_sim("stall=777,stall_us=1000000");
  Buffer block(1);
  REFUSES(cblk_write(id, block, 777, 1, 0), ETIMEDOUT);
  in_child([&] {
    Buffer own(1);
    REQUIRE(cblk_write(id, own, 777, 1, 0) == 1);  // what is late is the parent's
    REQUIRE(cblk_close(id, 0) == 0);
  });
  REQUIRE(cblk_close(id, 0) == 0);
}

// An open without I/O takes no ring; many opens at one time leave no descriptor or mapping behind.
TEST_CASE("thousands_of_opens_leave_nothing_behind", "[kept]") {
  const std::string path = device(kBlocks);
  const auto count = [](const char* what) {  // descriptors; lines of the maps
    size_t n = 0;
    if (DIR* directory = strcmp(what, "maps") ? opendir("/proc/self/fd") : nullptr) {
      while (readdir(directory)) ++n;
      closedir(directory);
      return n;
    }
    FILE* file = fopen("/proc/self/maps", "r");
    for (int c; (c = fgetc(file)) != EOF;) n += c == '\n';
    fclose(file);
    return n;
  };
  const auto open_and_close = [&](int flags) {
    const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, flags);
    REQUIRE(id != NULL_CHUNK_ID && cblk_close(id, 0) == 0);
  };
  open_and_close(0);
  const size_t descriptors = count("fd"), maps = count("maps");
  const double start = seconds();
  timespec before, after;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  for (int i = 0; i < 2000; ++i) open_and_close(0);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  printf("an open and close: %.3f ms, CPU %.3f ms\n", (seconds() - start) / 2,
         static_cast<double>(after.tv_sec - before.tv_sec) / 2 +
             static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-6 / 2000);
  REQUIRE(seconds() - start < tier::scaled(40));
  // Some chunks' worth of address space may come to lie apart or together.
  REQUIRE(count("fd") == descriptors && count("maps") <= maps + 4);
  // All of them at one time, each with I/O, as far as there are descriptors.
  std::vector<chunk_id_t> ids;
  Buffer block(1);
  for (int i = 0; i < 200; ++i) {
    ids.push_back(cblk_open(path.c_str(), 0, O_RDONLY, 0, 0));
    REQUIRE(ids.back() != NULL_CHUNK_ID && cblk_read(ids.back(), block, i, 1, 0) == 1);
  }
  for (const chunk_id_t id : ids) REQUIRE(cblk_close(id, 0) == 0);
  REQUIRE(count("fd") == descriptors);
}
