// SPDX-License-Identifier: Apache-2.0
// Late commands together with other chunks of their group, a close, a resize, a fork, and the
// cache. The device is simulated; time bounds are wide.
#include <sys/resource.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cblk_test.h"

namespace {

constexpr int kNext = CBLK_ARESULT_NEXT_TAG, kBlocking = CBLK_ARESULT_BLOCKING;

// Repeats an attempt that times out, for 15 seconds at most.
template <class Try>
void done_soon(Try&& attempt) {
  const Watch watch;
  while (!attempt()) {
    REQUIRE(errno == ETIMEDOUT || errno == ETIME);
    REQUIRE(watch.passed() < tier::scaled(15));
  }
}

}  // namespace

// A caller that tries again comes to the group's next chunk.
TEST_CASE("a_late_write_of_a_group_is_not_overtaken_by_another_chunk_of_it", "[sim][timed]") {
  const Limit limit("200");
  for (const bool blocking : {true, false}) {
    const std::string device = std::string("sim:4m,name=siblings") + (blocking ? "b" : "a");
    const chunk_cg_id_t group = cblk_cg_open((device + ",stall=777,stall_us=1200000").c_str(), 0,
                                             O_RDWR, 2, 0, CBLK_GROUP_ID);
    REQUIRE(group != NULL_CHUNK_CG_ID);
    Buffer block(1), other(1);
    cflsh_cg_tag_t tag;
    const auto write = [&](const Buffer& from, off_t lba) {
      if (blocking) return cblk_cg_write(group, from, lba, 1, 0);
      if (cblk_cg_awrite(group, from, lba, 1, &tag, nullptr, 0) < 0) return -1;
      return cblk_cg_aresult(group, &tag, ignored(), kBlocking);
    };
    REQUIRE(cblk_cg_read(group, other, 5, 1, 0) == 1);
    // uses up the second stall, so that the second chunk does not hang
    REFUSES(cblk_cg_read(group, other, 777, 1, 0), ETIMEDOUT);
    const Watch watch;
    stamp(block, 777, 1, 1);
    REFUSES(write(block, 777), ETIMEDOUT);
    stamp(block, 777, 1, 2);
    REFUSES(write(block, 777), ETIMEDOUT);  // by the second chunk
    // writes of other blocks go on (a simulated ring keeps its commands in order)
    if (blocking) REQUIRE(write(other, 9) == 1);
    REQUIRE(watch.passed() < 1.1);
    done_soon([&] { return write(block, 777) == 1; });
    REQUIRE(watch.passed() > 1.1);
    for (int i = 0; i < 4; ++i) REQUIRE(cblk_cg_read(group, other, 5, 1, 0) == 1);
    REQUIRE(cblk_cg_close(group, 0) == 0);
    REQUIRE(holds(device.c_str(), 777, 2));
  }
}

TEST_CASE("one_write_that_is_held_up_holds_up_no_other_command", "[sim][timed]") {
  const Limit limit("500");
  const chunk_id_t id = open_sim("stall=777,stall_us=2500000");
  Buffer blocks(4);
  int held[2], tag;
  REFUSES(cblk_write(id, blocks, 777, 1, 0), ETIMEDOUT);
  const Watch watch;
  for (int& one : held) REQUIRE(cblk_awrite(id, blocks, 777, 1, &one, nullptr, 0) == 0);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(cblk_awrite(id, blocks.block(1), i, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
    REQUIRE(cblk_aread(id, blocks.block(2), i, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
  }
  REQUIRE(watch.passed() < 0.45);
  for (int& one : held) REFUSES(cblk_aresult(id, &one, ignored(), kBlocking), ETIMEDOUT);
  REQUIRE(watch.passed() < 1.5 && cblk_close(id, 0) == 0);
}

TEST_CASE("lanes_come_back_when_all_were_lost", "[sim][timed]") {
  const Limit limit("400");
  const Chunk id(open_sim("stall=777,stall_us=2500000,stalls=64"));
  const Watch watch;
  in_parallel(64, [&] {
    Buffer block(1);
    REFUSES(cblk_read(id, block, 777, 1, 0), ETIMEDOUT);
  });
  REQUIRE(watch.passed() < 2.4);  // each has waited for its own limit, none for a stall
  Buffer block(1);
  // by a lane that comes back when its stall ends
  done_soon([&] { return cblk_read(id, block, 5, 1, 0) == 1; });
}

TEST_CASE("the_limit_of_a_raid_0_is_that_of_the_call", "[sim][timed]") {
  const Limit limit("500");
  const Group group(cblk_cg_open(
      "(sim:4m,latency_us=300000):(sim:4m,latency_us=300000):(sim:4m,latency_us=300000)", 0, O_RDWR,
      3, 0, CBLK_GROUP_RAID0 | CBLK_OPN_FORCED_RESERVE));
  Buffer buffer(900);
  const Watch watch;
  REQUIRE(cblk_cg_read(group, buffer, 4, 1, 0) == 1);
  const double one = watch.passed();
  // three times as much as a device is asked for at once
  REFUSES(cblk_cg_read(group, buffer, 0, 900, 0), ETIMEDOUT);
  REQUIRE(watch.passed() - one < 0.85);
}

TEST_CASE("next_tag_of_a_group_ends_in_time_whatever_its_flags", "[sim][timed]") {
  const Limit limit("250");
  for (const int flags : {kNext | kBlocking, kNext | kBlocking | CBLK_ARESULT_NO_HARVEST}) {
    const Group group(cblk_cg_open("sim:4m,latency_us=1500000", 0, O_RDWR, 2, 0,
                                   CBLK_GROUP_ID | CBLK_OPN_FORCED_RESERVE));
    Buffer buffer(2);
    cflsh_cg_tag_t tag;
    const Watch watch;
    for (int i = 0; i < 2; ++i)
      REQUIRE(cblk_cg_aread(group, buffer.block(static_cast<size_t>(i)), i, 1, &tag, nullptr, 0) ==
              0);
    for (int i = 0; i < 2; ++i) REFUSES(cblk_cg_aresult(group, &tag, ignored(), flags), ETIME);
    REQUIRE(watch.passed() < 1.2);
  }
}

TEST_CASE("a_child_clones_a_chunk_whose_late_commands_were_told", "[sim][timed]") {
  const Limit limit("150");
  for (const bool blocking : {true, false}) {
    static chunk_id_t id;
    Buffer block(1);
    bool late = false;
    for (int page = 50; !late; page += 16) {
      REQUIRE(page < 4096);
      const std::string uri = "sim:16m,stall_us=900000,stall=" + std::to_string(page);
      id = cblk_open(uri.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
      REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 100, 0) == 0);
      int tag, result;
      if (blocking) {
        result = cblk_write(id, block, 50, 1, 0);
      } else {
        REQUIRE(cblk_awrite(id, block, 50, 1, &tag, nullptr, 0) == 0);
        result = cblk_aresult(id, &tag, ignored(), kBlocking);
      }
      late = result < 0;
      if (late) {
        // also in the same process
        REQUIRE(errno == ETIMEDOUT && cblk_clone_after_fork(id, O_RDWR, 0) == 0);
        in_child([&] {
          Buffer own(1);
          REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
          stamp(own, 3, 1, 1);
          REQUIRE(cblk_write(id, own, 3, 1, 0) == 1);
          memset(own, 0, kBlock);
          REQUIRE(cblk_read(id, own, 3, 1, 0) == 1 && is_stamped(own, 3, 1, 1));
        });
      }
      REQUIRE(cblk_close(id, 0) == 0);
    }
  }
}

// The blocks that a virtual LUN gives up at a close hold none of its data, also when a write became
// late while the close waited.
TEST_CASE("a_write_that_becomes_late_during_a_close_does_not_land_behind_the_scrubbing",
          "[sim][timed]") {
  const Limit limit("400");
  for (int page = 50;; page += 16) {
    REQUIRE(page < 4096);
    const std::string device = "sim:16m,name=scrub" + std::to_string(page);
    const std::string uri = device + ",stall_us=1200000,stall=" + std::to_string(page);
    const chunk_id_t id = cblk_open(uri.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
    REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 100, 0) == 0);
    std::atomic<int> answer{0};
    std::thread writer([&] {
      Buffer block(1);
      stamp(block, 50, 1, 7);
      answer = cblk_write(id, block, 50, 1, 0) == 1 ? 1 : -errno;
    });
    usleep(100000);
    const bool hangs = answer == 0;
    if (hangs) REQUIRE(cblk_close(id, CBLK_SCRUB_DATA_FLG) == 0);
    writer.join();
    if (!hangs) {
      REQUIRE(answer == 1 && cblk_close(id, 0) == 0);
      continue;
    }
    REQUIRE(answer == -ETIMEDOUT);
    const chunk_id_t whole = cblk_open(device.c_str(), 0, O_RDONLY, 0, CBLK_OPN_FORCED_RESERVE);
    Buffer block(1);
    for (off_t lba = 0; lba < 4096; ++lba)
      REQUIRE(cblk_read(whole, block, lba, 1, 0) == 1 && !is_stamped(block, 50, 1, 7));
    REQUIRE(cblk_close(whole, 0) == 0);
    return;
  }
}

// A close keeps its own limit for commands that become late while it waits.
TEST_CASE("a_close_is_refused_by_a_command_that_becomes_late_while_it_waits", "[.][sim][timed]") {
  const Limit limit("500");
  for (const bool group : {false, true}) {
    const char* uri = "sim:4m,stall=777,stall_us=9000000";
    const int id =
        group ? cblk_cg_open(uri, 0, O_RDWR, 2, 0, CBLK_GROUP_ID) : cblk_open(uri, 0, O_RDWR, 0, 0);
    REQUIRE(id > 0);
    const int which = group ? CBLK_GROUP_ID : 0;
    std::thread reader([&] {
      Buffer block(1);
      REFUSES(cblk_read(id, block, 777, 1, which), ETIMEDOUT);
    });
    usleep(100000);
    const Watch watch;
    REFUSES(cblk_close(id, which), EBUSY);
    REQUIRE(watch.passed() > 4.5 && watch.passed() < 7);
    reader.join();
    Buffer block(1);
    REQUIRE(cblk_read(id, block, 5, 1, which) == 1);  // it goes on
    REQUIRE(cblk_close(id, which) == 0);
  }
}

TEST_CASE("a_command_is_told_to_come_again_while_a_close_waits") {
  const chunk_id_t id = open_physical(kBlocks, 4);
  Buffer slow(1), block(1);
  int first, tag;
  REQUIRE(cblk_aread(id, slow, 1, 1, &first, nullptr, 0) == 0);
  std::thread closer([&id] { REQUIRE(cblk_close(id, 0) == 0); });
  while (cblk_aread(id, block, 2, 1, &tag, nullptr, 0) == 0) {  // the close has not begun
    REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
    usleep(1000);
  }
  REQUIRE(errno == EWOULDBLOCK);  // the close may yet fail
  REFUSES(cblk_aread(id, block, 2, 1, &tag, nullptr, CBLK_ARW_WAIT_CMD_FLAGS), EBUSY);
  REQUIRE(cblk_read(id, block, 2, 1, 0) == 1);
  REQUIRE(cblk_aresult(id, &first, ignored(), kBlocking) == 1);
  closer.join();
  REFUSES(cblk_aread(id, block, 2, 1, &tag, nullptr, 0), EINVAL);
}

TEST_CASE("a_command_that_waited_for_a_place_obeys_the_size_after_its_wait") {
  const std::string path = kind() == "sim" ? "sim:16m,name=waited" : device(kBlocks);
  const Chunk id(cblk_open(path.c_str(), 1, O_RDWR, 0, CBLK_OPN_VIRT_LUN));
  REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 300, 0) == 0);
  Buffer blocks(2);
  int first;
  REQUIRE(cblk_awrite(id, blocks, 3, 1, &first, nullptr, 0) == 0);
  usleep(100000);  // done, not fetched
  std::jthread late([&] {
    int tag, status;
    do status = cblk_awrite(id, blocks.block(1), 290, 1, &tag, nullptr, CBLK_ARW_WAIT_CMD_FLAGS);
    while (status < 0 && errno == EBUSY);  // a machine under load
    REQUIRE(status < 0 && errno == EINVAL);
  });
  usleep(50000);
  REQUIRE(cblk_set_size(id, 100, 0) ==
          0);  // takes what is done out of the ring; it stays to be fetched
  REQUIRE(cblk_aresult(id, &first, ignored(), kBlocking) == 1);
}

TEST_CASE("a_read_that_fails_leaves_the_buffer_alone_though_a_part_is_cached", "[sim][timed]") {
  const Limit limit("200");
  Environment cache("CFLSH_BLK_CACHE_SIZE", "64");
  const Chunk id(open_sim("stall=776,stall_us=700000"));
  Buffer blocks(2);
  REQUIRE(cblk_read(id, blocks, 775, 2, 0) == 2);
  memset(blocks, 0x5a, 2 * kBlock);
  REFUSES(cblk_read(id, blocks, 776, 2, 0), ETIMEDOUT);
  for (size_t i = 0; i < 2 * kBlock; ++i) REQUIRE(blocks.data()[i] == 0x5a);
  REQUIRE(cblk_read(id, blocks, 775, 2, 0) == 2 && is_zero(blocks, 2));  // from the cache
}

#ifndef __SANITIZE_THREAD__  // the race is what it tests
// A program may do anything to its buffer while a read is under way: it affects no other command.
TEST_CASE("the_cache_holds_what_the_device_does", "[sim]") {
  Environment cache("CFLSH_BLK_CACHE_SIZE", "4096");
  for (const char* limit : {"0", "5"}) {
    Environment timeout("CFLSH_BLK_TIMEOUT", limit);
    const Chunk id(open_sim("latency_us=50"));
    Buffer mine(1), other(1);
    Meanwhile scribbler([&] {
      for (size_t i = 0; i < kBlock; i += 64) static_cast<volatile char*>(mine.data())[i] = 'x';
    });
    for (off_t lba = 0; lba < 1000; ++lba) {
      int tag;
      if (lba % 2) {
        REQUIRE(cblk_read(id, mine, lba, 1, 0) == 1);
      } else {
        REQUIRE(cblk_aread(id, mine, lba, 1, &tag, nullptr, 0) == 0);
        REQUIRE(cblk_aresult(id, &tag, ignored(), kBlocking) == 1);
      }
      REQUIRE(cblk_read(id, other, lba, 1, 0) == 1 && is_zero(other, 1));
    }
    chunk_stats_t stats;
    REQUIRE(cblk_get_stats(id, &stats, 0) == 0 && stats.num_cache_hits > 500);
  }
}
#endif
