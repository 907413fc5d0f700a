// SPDX-License-Identifier: Apache-2.0
// Groups, RAID 0, paths, reservations.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "cblk_test.h"

namespace {

// opened without reading from the (slow) device
constexpr int kAtOnce = CBLK_GROUP_ID | CBLK_OPN_FORCED_RESERVE;

}  // namespace

TEST_CASE("cg_open_says_what_is_wrong") {
  const std::string path = device(kBlocks);
  REFUSES(cblk_cg_open(nullptr, 0, O_RDWR, 2, 0, CBLK_GROUP_ID), EINVAL);
  REFUSES(cblk_cg_open(path.c_str(), 0, O_RDWR, 0, 0, CBLK_GROUP_ID), EINVAL);
  REFUSES(cblk_cg_open(path.c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_ID | CBLK_GROUP_RAID0), EINVAL);
  REFUSES(cblk_cg_open(path.c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_ID | CBLK_OPN_VIRT_LUN), EINVAL);
  REFUSES(cblk_cg_open(path.c_str(), 8193, O_RDWR, 2, 0, CBLK_GROUP_ID), ENOMEM);
  REFUSES(cblk_cg_open((path + "::" + path).c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_RAID0), EINVAL);
  REFUSES(cblk_cg_open((path + ":/nowhere/at/all").c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_RAID0),
          ENOENT);
  REFUSES(cblk_cg_open(("(" + path + ":" + path).c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_RAID0),
          EINVAL);
  const std::string nine = "sim:1m:sim:1m:sim:1m:sim:1m:sim:1m:sim:1m:sim:1m:sim:1m:sim:1m";
  REFUSES(cblk_cg_open(nine.c_str(), 0, O_RDWR, 9, 0, CBLK_GROUP_RAID0), EINVAL);
}

TEST_CASE("a_group_is_one_lun_for_several_chunks", "[kept]") {
  const std::string path = device(kBlocks);
  const chunk_cg_id_t group = cblk_cg_open(path.c_str(), 8, O_RDWR, 4, 0, CBLK_GROUP_ID);
  REQUIRE(group != NULL_CHUNK_CG_ID);
  REQUIRE(cblk_cg_get_num_chunks(group, 0) == 4);
  size_t size = 0;
  REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size == kBlocks);
  REQUIRE(cblk_cg_get_lun_size(group, &size, 0) == 0 && size == kBlocks);
  REFUSES(cblk_cg_set_size(group, 1, 0), EINVAL);
  chunk_attrs_t attrs;
  REQUIRE(cblk_cg_get_attrs(group, &attrs, 0) == 0 && attrs.block_size == 4096);
  Buffer buffer(16);
  stamp(buffer, 0, 16, 1);
  for (int i = 0; i < 16; ++i) REQUIRE(cblk_cg_write(group, buffer.block(i), i, 1, 0) == 1);
  memset(buffer, 0, 16 * kBlock);
  for (int i = 0; i < 16; ++i) REQUIRE(cblk_cg_read(group, buffer.block(i), i, 1, 0) == 1);
  REQUIRE(is_stamped(buffer, 0, 16, 1));
  // In turns.
  std::set<chunk_id_t> chunks;
  cflsh_cg_tag_t tags[8];
  for (int i = 0; i < 8; ++i) {
    REQUIRE(cblk_cg_awrite(group, buffer.block(i), i, 1, &tags[i], nullptr, 0) == 0);
    chunks.insert(tags[i].id);
  }
  REQUIRE(chunks.size() == 4);
  chunk_stats_t stats;
  for (const chunk_id_t id : chunks) {
    REFUSES(cblk_close(id, 0), EINVAL);  // the group's
    REFUSES(cblk_read(id, buffer, 0, 1, 0), EINVAL);
    REFUSES(cblk_cg_close(id, 0), EINVAL);
  }
  REFUSES(cblk_read(group, buffer, 0, 1, 0), EINVAL);
  for (int i = 7; i >= 0; --i)
    REQUIRE(cblk_cg_aresult(group, &tags[i], ignored(), CBLK_ARESULT_BLOCKING) == 1);
  REFUSES(cblk_cg_aresult(group, &tags[0], ignored(), 0), ENOMSG);
  cflsh_cg_tag_t foreign = {12345678, 0};
  REFUSES(cblk_cg_aresult(group, &foreign, ignored(), 0), EINVAL);
  REQUIRE(cblk_cg_get_stats(group, &stats, 0) == 0);
  REQUIRE(stats.num_reads == 16 && stats.num_writes == 16 && stats.num_awrites == 8);
  // Status in the background, tags of the caller's.
  cblk_arw_status_t status[4];
  cflsh_cg_tag_t tag = {0, 0};
  for (int i = 0; i < 4; ++i)  // into a block each: they are done side by side
    REQUIRE(cblk_cg_aread(group, buffer.block(i), 0, 1, &tag, &status[i],
                          CBLK_ARW_USER_STATUS_FLAG) == 0);
  for (cblk_arw_status_t& one : status) await_status(one);
  tag.tag = 555;
  REQUIRE(cblk_cg_aread(group, buffer, 0, 1, &tag, nullptr, CBLK_ARW_USER_TAG_FLAG) == 0);
  REQUIRE(cblk_cg_aresult(group, &tag, ignored(), CBLK_ARESULT_USER_TAG | CBLK_ARESULT_BLOCKING) ==
          1);
  REQUIRE(cblk_cg_clone_after_fork(group, O_RDWR, 0) == 0);
  REQUIRE(cblk_cg_close(group, 0) == 0);
  REFUSES(cblk_cg_close(group, 0), EINVAL);
  REFUSES(cblk_cg_get_num_chunks(group, 0), EINVAL);
}

TEST_CASE("a_groups_next_tag_is_the_oldest", "[sim][timed]") {
  const Group group(cblk_cg_open("sim:1m,latency_us=20000", 8, O_RDWR, 3, 0, CBLK_GROUP_ID));
  Buffer buffer(9);
  cflsh_cg_tag_t tags[9], tag;
  uint64_t status;
  REFUSES(cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING),
          ENOENT);
  for (int i = 0; i < 9; ++i)
    REQUIRE(cblk_cg_aread(group, buffer.block(i), i, 1, &tags[i], nullptr, 0) == 0);
  REQUIRE(cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG) == 0 && tag.tag == -1);
  REQUIRE(cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) ==
          1);
  usleep(30000);  // all are done by now
  for (int i = 1; i < 9; ++i) {
    REQUIRE(cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) ==
            1);
    REQUIRE(tag.id == tags[i].id && tag.tag == tags[i].tag);
  }
  REFUSES(cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING),
          ENOENT);
}

// The time limit of a close is one for all chunks.
TEST_CASE("a_group_closes_though_all_its_chunks_are_busy", "[sim][timed]") {
  const chunk_cg_id_t group = cblk_cg_open("sim:1m,latency_us=60000", 4, O_RDWR, 4, 0, kAtOnce);
  REQUIRE(group != NULL_CHUNK_CG_ID);
  Buffer buffer(4);
  cflsh_cg_tag_t tag;
  cblk_arw_status_t status[4] = {};
  for (int i = 0; i < 4; ++i) {  // each ends after the one before it
    REQUIRE(cblk_cg_aread(group, buffer.block(static_cast<size_t>(i)), i, 1, &tag, &status[i],
                          CBLK_ARW_USER_STATUS_FLAG) == 0);
    usleep(15000);
  }
  REQUIRE(cblk_cg_close(group, 0) == 0);
  for (cblk_arw_status_t& one : status) REQUIRE(status_of(one) == CBLK_ARW_STATUS_SUCCESS);
}

TEST_CASE("a_busy_group_is_EBUSY_after_5_s_in_all", "[.][sim][timed]") {
  const chunk_cg_id_t group = cblk_cg_open("sim:1m,latency_us=7000000", 4, O_RDWR, 4, 0, kAtOnce);
  REQUIRE(group != NULL_CHUNK_CG_ID);
  Buffer buffer(4);
  cflsh_cg_tag_t tags[4];
  const double start = seconds();
  for (int i = 0; i < 4; ++i)
    REQUIRE(cblk_cg_aread(group, buffer.block(static_cast<size_t>(i)), i, 1, &tags[i], nullptr,
                          0) == 0);
  REFUSES(cblk_cg_close(group, 0), EBUSY);
  REQUIRE(seconds() - start > 4.5 && seconds() - start < 8);
  // it is whole
  for (cflsh_cg_tag_t& tag : tags)
    REQUIRE(cblk_cg_aresult(group, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(cblk_cg_close(group, 0) == 0);
}

// A forked child does not have the thread that closes the group.
TEST_CASE("a_group_in_the_middle_of_a_close_at_a_fork", "[sim][timed]") {
  static chunk_cg_id_t group;
  constexpr size_t kRequests = 1000;
  group = cblk_cg_open("sim:1m,latency_us=250000", kRequests, O_RDWR, 2, 0, kAtOnce);
  REQUIRE(group != NULL_CHUNK_CG_ID);
  Buffer buffer(kRequests);  // a block for each read: they are done side by side
  cflsh_cg_tag_t tag;
  cblk_arw_status_t status[2] = {};
  REQUIRE(cblk_cg_aread(group, buffer, 0, 1, &tag, &status[0], CBLK_ARW_USER_STATUS_FLAG) == 0);
  std::thread closer([] { REQUIRE(cblk_cg_close(group, 0) == 0); });
  size_t read = 0;
  do {
    usleep(1000);
    errno = 0;
    (void)!cblk_cg_aread(group, buffer.block(++read % kRequests), 0, 1, &tag, &status[1],
                         CBLK_ARW_USER_STATUS_FLAG);
  } while (errno != EWOULDBLOCK);  // once the close has begun
  in_child([&] {
    REQUIRE(cblk_cg_close(group, 0) == 0);
    REFUSES(cblk_cg_close(group, 0), EINVAL);
  });
  closer.join();
  REFUSES(cblk_cg_close(group, 0), EINVAL);
}

TEST_CASE("raid0_puts_block_b_on_device_b_mod_n") {
  for (const int n : {2, 3, 8}) {
    if (n == 8 && (kind() == "block" || kind() == "nvme")) continue;  // enough devices for one test
    std::string path;
    std::vector<std::string> devices;
    for (int i = 0; i < n; ++i) {
      devices.push_back(device(i == 1 ? 80 : 100, i));  // the smallest counts
      path += (i ? ":" : "") + devices.back();
    }
    const chunk_cg_id_t group = cblk_cg_open(path.c_str(), 0, O_RDWR, n, 0, CBLK_GROUP_RAID0);
    REQUIRE(group != NULL_CHUNK_CG_ID);
    REQUIRE(cblk_cg_get_num_chunks(group, 0) == n);
    size_t size = 0;
    REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size == static_cast<size_t>(80 * n));
    Buffer out(size), in(size);
    stamp(out, 0, size, 3);
    for (size_t at = 0, run = 1; at < size; at += run, run = run % 29 + 1) {
      if (run > size - at) run = size - at;
      REQUIRE(cblk_cg_write(group, out.block(at), static_cast<cflash_offset_t>(at), run, 0) ==
              static_cast<int>(run));
    }
    REQUIRE(cblk_cg_read(group, in, 0, size, 0) == static_cast<int>(size));
    REQUIRE(is_stamped(in, 0, size, 3));
    cflsh_cg_tag_t tags[40], tag;  // of a command a block
    memset(in, 0, size * kBlock);
    for (int i = 0; i < 40; ++i)
      REQUIRE(cblk_cg_aread(group, in.block(static_cast<size_t>(i)), 5 + i, 1, &tags[i], nullptr,
                            0) == 0);
    for (cflsh_cg_tag_t& one : tags)
      REQUIRE(cblk_cg_aresult(group, &one, ignored(), CBLK_ARESULT_BLOCKING) == 1);
    REQUIRE(is_stamped(in, 5, 40, 3));
    stamp(out, 7, 50, 4);
    for (int i = 0; i < 50; ++i)
      REQUIRE(cblk_cg_awrite(group, out.block(static_cast<size_t>(i)), 7 + i, 1, &tag, nullptr,
                             0) == 0);
    for (int i = 0; i < 50; ++i)
      REQUIRE(cblk_cg_aresult(group, &tag, ignored(),
                              CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) == 1);
    Buffer skewed(60, 5);
    REQUIRE(cblk_cg_read(group, skewed, 0, 60, 0) == 60);
    REQUIRE(is_stamped(skewed.block(0), 0, 3) && is_stamped(skewed.block(7), 7, 4) &&
            is_stamped(skewed.block(57), 57, 3));
    REFUSES(cblk_cg_read(group, in, static_cast<cflash_offset_t>(size), 1, 0), EINVAL);
    REQUIRE(cblk_cg_close(group, 0) == 0);
    if (!survives()) continue;
    for (int d = 0; d < n; ++d) {  // where each block went
      const Chunk one(cblk_open(devices[d].c_str(), 0, O_RDONLY, 0, 0));
      for (int b = 0; b < 80; ++b) {
        const uint64_t lba = static_cast<uint64_t>(b * n + d);
        REQUIRE(cblk_read(one, in, b, 1, 0) == 1);
        REQUIRE(is_stamped(in.data(), lba, lba >= 7 && lba < 57 ? 4 : 3));
      }
    }
  }
}

TEST_CASE("raid0_takes_uris_apart", "[sim]") {
  const Group group(
      cblk_cg_open("sim:1m:(sim:2m,latency_us=10):sim:1m", 0, O_RDWR, 3, 0, CBLK_GROUP_RAID0));
  size_t size = 0;
  REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size == 3 * 256);
}

TEST_CASE("all_that_remains_of_a_device_that_is_there_twice_is_shared_out", "[kept]") {
  const std::string one = device(8 * kBlocks), other = device(8 * kBlocks, 1);
  const auto most = [](const std::string& path, int devices) {
    const chunk_cg_id_t group =
        cblk_cg_open(path.c_str(), 0, O_RDWR, devices, 0, CBLK_GROUP_RAID0 | CBLK_OPN_VIRT_LUN);
    REQUIRE(group != NULL_CHUNK_CG_ID);
    REQUIRE(cblk_cg_set_size(group, static_cast<size_t>(-1), 0) == 0);
    size_t size = 0;
    REQUIRE(cblk_cg_get_size(group, &size, 0) == 0);
    REQUIRE(cblk_cg_close(group, 0) == 0);
    return size;
  };
  const size_t alone = most(one, 1);
  REQUIRE(alone > 4 * kBlocks);
  REQUIRE(most(one + ":" + one, 2) > alone * 9 / 10);
  // each member is as large as half of the first device
  const size_t three = most(one + ":" + other + ":" + one, 3);
  REQUIRE(three > alone * 13 / 10 && three <= alone * 3 / 2);
}

TEST_CASE("raid0_moves_as_much_as_it_says", "[sim]") {
  const Group group(cblk_cg_open("sim:16m:sim:16m", 0, O_RDWR, 2, 0, CBLK_GROUP_RAID0));
  chunk_attrs_t attrs;
  REQUIRE(cblk_cg_get_attrs(group, &attrs, 0) == 0);
  const size_t most = attrs.max_transfer_size;
  REQUIRE(most >= 256);
  Buffer out(most + 1), in(most + 1);
  stamp(out, 3, most, 1);
  REQUIRE(cblk_cg_write(group, out, 3, most, 0) == static_cast<int>(most));
  REQUIRE(cblk_cg_read(group, in, 3, most, 0) == static_cast<int>(most));
  REQUIRE(is_stamped(in, 3, most, 1));
  REFUSES(cblk_cg_read(group, in, 0, most + 1, 0), EINVAL);
}

namespace {

chunk_cg_id_t open_slow(const char* settings, int devices) {
  std::string path;
  for (int i = 0; i < devices; ++i) path += std::string(i ? ":" : "") + "(sim:4m," + settings + ")";
  const chunk_cg_id_t group = cblk_cg_open(path.c_str(), 64, O_RDWR, devices, 0, CBLK_GROUP_RAID0);
  REQUIRE(group != NULL_CHUNK_CG_ID);
  return group;
}

long sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

// One device after the other would take 240 ms. With and without a time limit, and with buffers
// that the library must copy.
TEST_CASE("a_blocking_call_of_a_raid0_has_all_devices_at_work_at_once", "[sim][timed]") {
  for (const char* limit : {"5", "0"}) {
    const Environment timeout("CFLSH_BLK_TIMEOUT", limit);
    const Group group(open_slow("latency_us=60000", 4));
    for (const size_t skew : {size_t{0}, size_t{7}}) {
      Buffer out(40, skew), in(40, skew);
      stamp(out, 3, 40, skew + 1);
      double best = 1;
      for (int i = 0; i < 5 && best > 0.13; ++i) {
        double start = seconds();
        REQUIRE(cblk_cg_write(group, out, 3, 40, 0) == 40);
        best = std::min(best, seconds() - start);
        start = seconds();
        REQUIRE(cblk_cg_read(group, in, 3, 40, 0) == 40);
        best = std::max(best, seconds() - start);
        REQUIRE(is_stamped(in, 3, 40, skew + 1));
      }
      REQUIRE(best < 0.13);
    }
  }
}

TEST_CASE("a_blocking_call_of_a_raid0_says_what_failed", "[sim]") {
  const Group group(
      cblk_cg_open("sim:4m:(sim:4m,write_error=1):sim:4m", 0, O_RDWR, 3, 0, CBLK_GROUP_RAID0));
  Buffer buffer(2000);
  REFUSES(cblk_cg_write(group, buffer, 0, 2000, 0), EIO);
  REQUIRE(cblk_cg_write(group, buffer, 0, 1, 0) == 1);
  REQUIRE(cblk_cg_read(group, buffer, 0, 2000, 0) == 2000);
}

TEST_CASE("a_raid0_unmaps_on_all_its_devices_or_on_none", "[sim]") {
  // a tmpfs cannot unmap
  const std::string plain = "/dev/shm/lunar-cblk-" + std::to_string(getpid());
  const int fd = open(plain.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0 && ftruncate(fd, 4 << 20) == 0 && close(fd) == 0);
  const chunk_cg_id_t group =
      cblk_cg_open(("sim:4m:" + plain + ":sim:4m").c_str(), 0, O_RDWR, 3, 0, CBLK_GROUP_RAID0);
  REQUIRE(unlink(plain.c_str()) == 0);
  REQUIRE(group != NULL_CHUNK_CG_ID);
  chunk_attrs_t attrs;
  REQUIRE(cblk_cg_get_attrs(group, &attrs, 0) == 0 && !(attrs.flags1 & CFLSH_ATTR_UNMAP));
  Buffer out(12), in(12);
  stamp(out, 6, 12, 1);
  REQUIRE(cblk_cg_write(group, out, 6, 12, 0) == 12);
  REFUSES(cblk_cg_unmap(group, out, 6, 12, 0), EPROTONOSUPPORT);
  REQUIRE(cblk_cg_read(group, in, 6, 12, 0) == 12 && is_stamped(in, 6, 12, 1));
  REQUIRE(cblk_cg_close(group, 0) == 0);

  const chunk_cg_id_t able = cblk_cg_open("sim:4m:sim:4m", 0, O_RDWR, 2, 0, CBLK_GROUP_RAID0);
  REQUIRE(able != NULL_CHUNK_CG_ID);
  REQUIRE(cblk_cg_write(able, out, 6, 12, 0) == 12 && cblk_cg_unmap(able, out, 7, 10, 0) == 10);
  REQUIRE(cblk_cg_read(able, in, 6, 12, 0) == 12 && is_stamped(in.data(), 6, 1) &&
          is_stamped(in.block(11), 17, 1));
  memmove(in.data(), in.block(1), 10 * kBlock);
  REQUIRE(is_zero(in, 10) && cblk_cg_close(able, 0) == 0);
}

// A blocking call counts once a chunk that has a part in it, a command once; what is alike in all
// is not added up.
TEST_CASE("statistics_of_a_raid0_are_its_chunks_together", "[sim]") {
  const Group group(
      cblk_cg_open("sim:4m:(sim:4m,write_error=1):sim:4m", 16, O_RDWR, 3, 0, CBLK_GROUP_RAID0));
  Buffer buffer(12);
  cflsh_cg_tag_t tags[6];
  REQUIRE(cblk_cg_read(group, buffer, 0, 12, 0) == 12);  // three parts
  REQUIRE(cblk_cg_read(group, buffer, 4, 2, 0) == 2);    // two
  for (int i = 0; i < 6; ++i)
    REQUIRE(cblk_cg_aread(group, buffer.block(static_cast<size_t>(i)), i, 1, &tags[i], nullptr,
                          0) == 0);
  chunk_stats_t stats;
  REQUIRE(cblk_cg_get_stats(group, &stats, 0) == 0 && stats.num_act_areads == 6 &&
          stats.max_num_act_areads == 6);
  for (cflsh_cg_tag_t& tag : tags)
    REQUIRE(cblk_cg_aresult(group, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(cblk_cg_write(group, buffer, 0, 1, 0) == 1);
  REFUSES(cblk_cg_write(group, buffer, 1, 1, 0), EIO);
  REQUIRE(cblk_cg_get_stats(group, &stats, 0) == 0);
  REQUIRE(stats.block_size == 4096 && stats.num_paths == 1);
  REQUIRE(stats.num_reads == 5 && stats.num_areads == 6 && stats.num_writes == 1 &&
          stats.num_awrites == 0);
  REQUIRE(stats.num_blocks_read == 20 && stats.num_blocks_written == 1 && stats.num_errors == 1);
  REQUIRE(stats.num_act_reads == 0 && stats.num_act_areads == 0 && stats.num_act_writes == 0);
}

// A wait that looked at the devices in turns of a millisecond would sleep 300 times.
TEST_CASE("who_waits_for_the_next_of_a_group_sleeps_until_there_is_one", "[sim]") {
  const Group group(open_slow("latency_us=300000", 4));
  Buffer buffer(4);
  cflsh_cg_tag_t tag = {0, 0};
  for (int i = 0; i < 4; ++i)
    REQUIRE(cblk_cg_aread(group, buffer.block(i), i, 1, &tag, nullptr, 0) == 0);
  const long before = sleeps();
  for (int i = 0; i < 4; ++i)
    REQUIRE(cblk_cg_aresult(group, &tag, ignored(),
                            CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(sleeps() - before < 150);
  REFUSES(cblk_cg_aresult(group, &tag, ignored(), CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING),
          ENOENT);
}

// Some threads wait for any result, one for the result of a tag. Each result is fetched once, and
// every thread returns.
TEST_CASE("several_threads_wait_for_the_next_of_a_raid0") {
  const std::string first = device(kBlocks), second = device(kBlocks, 1);
  const Group group(
      cblk_cg_open((first + ":" + second).c_str(), 64, O_RDWR, 2, 0, CBLK_GROUP_RAID0));
  constexpr int kRounds = 100, kThreads = 4, kEach = 3;
  for (int round = 0; round < kRounds; ++round) {
    Buffer buffer(kThreads * kEach);
    std::vector<cflsh_cg_tag_t> tags(kThreads * kEach);
    for (size_t i = 0; i < tags.size(); ++i)
      REQUIRE(cblk_cg_aread(group, buffer.block(i), static_cast<off_t>(i), 1, &tags[i], nullptr,
                            0) == 0);
    std::atomic<int> fetched{0};
    auto threads = start_threads(kThreads, [&] {
      for (;;) {
        cflsh_cg_tag_t tag = {0, 0};
        if (cblk_cg_aresult(group, &tag, ignored(),
                            CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) == 1) {
          ++fetched;
        } else {
          REQUIRE(errno == ENOENT);
          return;
        }
      }
    });
    const int mine = cblk_cg_aresult(group, &tags[5], ignored(), CBLK_ARESULT_BLOCKING);
    REQUIRE(mine == 1 || errno == ENOMSG);
    threads.clear();
    REQUIRE(fetched + (mine == 1) == kThreads * kEach);
  }
}

TEST_CASE("several_paths_to_one_device", "[disk]") {
  const std::string path = device(kBlocks);
  const chunk_id_t id = cblk_open((path + ":" + path).c_str(), 0, O_RDWR, 0, CBLK_OPN_MPIO_FO);
  REQUIRE(id != NULL_CHUNK_ID);
  chunk_stats_t stats;
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0 && stats.num_paths == 2 &&
          stats.num_path_fail_overs == 0);
  Buffer buffer(4);
  stamp(buffer, 9, 4, 1);
  int tag;
  REQUIRE(cblk_write(id, buffer, 9, 4, 0) == 4);
  memset(buffer, 0, 4 * kBlock);
  REQUIRE(cblk_aread(id, buffer, 9, 4, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 4);
  REQUIRE(is_stamped(buffer, 9, 4, 1));
  REQUIRE(cblk_close(id, 0) == 0);
  // a single path will do
  const Chunk one(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_MPIO_FO));
}

TEST_CASE("a_reservation_keeps_others_out", "[kept]") {
  const std::string path = device(kBlocks);
  const chunk_id_t first = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_RESERVE);
  REQUIRE(first != NULL_CHUNK_ID);
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, 0), EBUSY);
  REFUSES(cblk_open(path.c_str(), 0, O_RDONLY, 0, 0), EBUSY);
  const chunk_id_t forced = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_FORCED_RESERVE);
  REQUIRE(forced != NULL_CHUNK_ID);
  REQUIRE(cblk_close(forced, 0) == 0);
  REQUIRE(cblk_close(first, 0) == 0);
  const Chunk plain(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_SHARE_CTXT));
  const Chunk other(cblk_open(path.c_str(), 0, O_RDWR, 0, 0));
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_RESERVE), EBUSY);
}

// A reservation with O_RDONLY, which cannot take a lock for writing.
TEST_CASE("a_reservation_for_reading_keeps_others_out", "[kept]") {
  const std::string path = device(kBlocks);
  const chunk_id_t first = cblk_open(path.c_str(), 0, O_RDONLY, 0, CBLK_OPN_RESERVE);
  REQUIRE(first != NULL_CHUNK_ID);
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, 0), EBUSY);
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN), EBUSY);
  REFUSES(cblk_open(path.c_str(), 0, O_RDONLY, 0, CBLK_OPN_RESERVE), EBUSY);
  REQUIRE(cblk_close(first, 0) == 0);
  const Chunk writer(cblk_open(path.c_str(), 0, O_RDWR, 0, 0));
  REFUSES(cblk_open(path.c_str(), 0, O_RDONLY, 0, CBLK_OPN_RESERVE), EBUSY);
}

// The reservation belongs to the group, so its chunks do not wait for each other. A group that is
// forced open while there are other owners waits once.
TEST_CASE("a_reserved_group_opens_as_fast_as_a_chunk", "[kept]") {
  const std::string path = device(kBlocks);
  const Watch alone;
  const chunk_cg_id_t reserved =
      cblk_cg_open(path.c_str(), 0, O_RDWR, 12, 0, CBLK_GROUP_ID | CBLK_OPN_RESERVE);
  REQUIRE(reserved != NULL_CHUNK_CG_ID);
  REQUIRE(alone.passed() < 5);  // a second each, where each asked for itself
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, 0), EBUSY);
  const Watch among;
  const Group forced(cblk_cg_open(path.c_str(), 0, O_RDWR, 12, 0, kAtOnce));
  REQUIRE(forced != NULL_CHUNK_CG_ID && among.passed() < 5);
  REQUIRE(cblk_cg_close(reserved, 0) == 0);
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN), EBUSY);
}
