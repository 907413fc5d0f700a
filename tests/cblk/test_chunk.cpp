// SPDX-License-Identifier: Apache-2.0
// Opening, sizing, describing, closing; blocking I/O.
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "cblk_test.h"

extern "C" const int lunar_cblk_marker;

TEST_CASE("init_and_term_give_0") {
  REQUIRE(cblk_init(nullptr, 0) == 0);
  REQUIRE(cblk_term(nullptr, 0) == 0);
  REQUIRE(&lunar_cblk_marker != nullptr);
}

TEST_CASE("open_says_what_is_wrong") {
  const std::string path = device(kBlocks);
  REFUSES(cblk_open(nullptr, 0, O_RDWR, 0, 0), EINVAL);
  REFUSES(cblk_open("", 0, O_RDWR, 0, 0), EINVAL);
  REFUSES(cblk_open("/nowhere/to/be/found", 0, O_RDWR, 0, 0), ENOENT);
  REFUSES(cblk_open("tape:/dev/st0", 0, O_RDWR, 0, 0), EINVAL);
  REFUSES(cblk_open("/dev/null", 0, O_RDWR, 0, 0), EINVAL);
  REFUSES(cblk_open(path.c_str(), 8193, O_RDWR, 0, 0), ENOMEM);
  REFUSES(cblk_open(path.c_str(), 0, O_ACCMODE, 0, 0), EINVAL);
  REFUSES(cblk_open(path.c_str(), 8193, O_RDWR, 0, CBLK_OPN_VIRT_LUN), ENOMEM);
}

TEST_CASE("ids_are_never_reused") {
  const std::string path = device(kBlocks);
  chunk_id_t last = 0;
  for (int i = 0; i < 20; ++i) {
    const Chunk id(cblk_open(path.c_str(), 1, O_RDWR, 0, 0));
    REQUIRE(id > last);
    last = id;
  }
}

TEST_CASE("a_closed_chunk_is_unknown_to_every_call") {
  const chunk_id_t closed = open_physical();
  REQUIRE(cblk_close(closed, 0) == 0);
  Buffer buffer(1);
  size_t size;
  int tag = 0, n = 0;
  chunk_stats_t stats;
  chunk_attrs_t attrs;
  uint64_t status;
  for (const chunk_id_t id : {closed, NULL_CHUNK_ID, 0, closed + 1, 2000000000, -77}) {
    REFUSES(cblk_close(id, 0), EINVAL);
    REFUSES(cblk_get_size(id, &size, 0), EINVAL);
    REFUSES(cblk_get_lun_size(id, &size, 0), EINVAL);
    REFUSES(cblk_set_size(id, 1, 0), EINVAL);
    REFUSES(cblk_get_stats(id, &stats, 0), EINVAL);
    REFUSES(cblk_get_attrs(id, &attrs, 0), EINVAL);
    REFUSES(cblk_read(id, buffer, 0, 1, 0), EINVAL);
    REFUSES(cblk_write(id, buffer, 0, 1, 0), EINVAL);
    REFUSES(cblk_unmap(id, buffer, 0, 1, 0), EINVAL);
    REFUSES(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0), EINVAL);
    REFUSES(cblk_awrite(id, buffer, 0, 1, &tag, nullptr, 0), EINVAL);
    REFUSES(cblk_aunmap(id, buffer, 0, 1, &tag, nullptr, 0), EINVAL);
    REFUSES(cblk_aresult(id, &tag, &status, 0), EINVAL);
    REFUSES(cblk_listio(id, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, &n, 0, 0), EINVAL);
    REFUSES(cblk_clone_after_fork(id, O_RDWR, 0), EINVAL);
  }
}

TEST_CASE("size_is_the_whole_device") {
  const Chunk id(open_physical(kBlocks));
  size_t size = 0, lun = 0;
  REQUIRE(cblk_get_size(id, &size, 0) == 0 && size == kBlocks);
  REQUIRE(cblk_get_lun_size(id, &lun, 0) == 0 && lun == kBlocks);
  REFUSES(cblk_get_size(id, nullptr, 0), EINVAL);
  REFUSES(cblk_get_lun_size(id, nullptr, 0), EINVAL);
  REFUSES(cblk_set_size(id, 10, 0), EINVAL);  // physical
}

TEST_CASE("what_is_written_is_read") {
  const Chunk id(open_physical());
  Buffer out(64), in(64);
  for (const size_t n : {1, 2, 63, 64}) {
    stamp(out, 100, n, n);
    REQUIRE(cblk_write(id, out, 100, n, 0) == static_cast<int>(n));
    memset(in, 0, 64 * kBlock);
    REQUIRE(cblk_read(id, in, 100, n, 0) == static_cast<int>(n));
    REQUIRE(is_stamped(in, 100, n, n));
  }
  REQUIRE(cblk_write(id, out, kBlocks - 1, 1, 0) == 1);  // the last one
  REQUIRE(cblk_read(id, in, kBlocks - 1, 1, 0) == 1);
  REQUIRE(memcmp(in, out, kBlock) == 0);
}

TEST_CASE("contents_outlive_the_chunk", "[kept]") {
  const std::string path = device(kBlocks);
  Buffer buffer(1);
  chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, 0);
  stamp(buffer, 7, 1, 1);
  REQUIRE(cblk_write(id, buffer, 7, 1, 0) == 1);
  REQUIRE(cblk_close(id, 0) == 0);
  id = cblk_open(path.c_str(), 0, O_RDONLY, 0, 0);
  memset(buffer, 0, kBlock);
  REQUIRE(cblk_read(id, buffer, 7, 1, 0) == 1);
  REQUIRE(is_stamped(buffer, 7, 1, 1));
  REQUIRE(cblk_close(id, 0) == 0);
}

TEST_CASE("transfers_of_16_MiB") {
  const Chunk id(open_physical(8192));
  chunk_attrs_t attrs;
  REQUIRE(cblk_get_attrs(id, &attrs, 0) == 0);
  REQUIRE(attrs.max_transfer_size == 4096);
  Buffer out(4097), in(4097);
  stamp(out, 1000, 4096, 5);
  REQUIRE(cblk_write(id, out, 1000, 4096, 0) == 4096);
  REQUIRE(cblk_read(id, in, 1000, 4096, 0) == 4096);
  REQUIRE(is_stamped(in, 1000, 4096, 5));
  REFUSES(cblk_read(id, in, 0, 4097, 0), EINVAL);
  REFUSES(cblk_write(id, in, 0, 4097, 0), EINVAL);
  int tag;
  REFUSES(cblk_aread(id, in, 0, 4097, &tag, nullptr, 0), EINVAL);
  memset(in, 0, 4096 * kBlock);
  REQUIRE(cblk_aread(id, in, 1000, 4096, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 4096);
  REQUIRE(is_stamped(in, 1000, 4096, 5));
}

TEST_CASE("no_blocks_give_0") {
  const Chunk id(open_physical());
  Buffer buffer(1);
  REQUIRE(cblk_read(id, buffer, 0, 0, 0) == 0);
  REQUIRE(cblk_write(id, buffer, 0, 0, 0) == 0);
  int tag = -5;
  uint64_t status;
  REQUIRE(cblk_aread(id, buffer, 0, 0, &tag, nullptr, 0) == 0);
  REFUSES(cblk_aresult(id, &tag, &status, CBLK_ARESULT_BLOCKING), EIO);  // 0 would say: not done
  REFUSES(cblk_aresult(id, &tag, &status, 0), ENOMSG);                   // and it is over
}

TEST_CASE("bad_arguments_are_EINVAL") {
  const Chunk id(open_physical());
  Buffer buffer(4);
  int tag = 0;
  using Sync = int (*)(chunk_id_t, void*, cflash_offset_t, size_t, int);
  using Async = int (*)(chunk_id_t, void*, cflash_offset_t, size_t, int*, cblk_arw_status_t*, int);
  for (const Sync call : {cblk_read, cblk_write, cblk_unmap}) {
    REFUSES(call(id, nullptr, 0, 1, 0), EINVAL);
    REFUSES(call(id, buffer, -1, 1, 0), EINVAL);
    REFUSES(call(id, buffer, kBlocks, 1, 0), EINVAL);
    REFUSES(call(id, buffer, kBlocks - 1, 2, 0), EINVAL);
    REFUSES(call(id, buffer, INT64_MAX, 1, 0), EINVAL);
    REFUSES(call(id, buffer, 0, SIZE_MAX, 0), EINVAL);
  }
  for (const Async call : {cblk_aread, cblk_awrite, cblk_aunmap}) {
    REFUSES(call(id, nullptr, 0, 1, &tag, nullptr, 0), EINVAL);
    REFUSES(call(id, buffer, -1, 1, &tag, nullptr, 0), EINVAL);
    REFUSES(call(id, buffer, kBlocks, 1, &tag, nullptr, 0), EINVAL);
    REFUSES(call(id, buffer, kBlocks - 1, 2, &tag, nullptr, 0), EINVAL);
    REFUSES(call(id, buffer, 0, 1, nullptr, nullptr, 0), EINVAL);
    REFUSES(call(id, buffer, 0, 1, &tag, nullptr, CBLK_ARW_USER_STATUS_FLAG), EINVAL);
  }
  REFUSES(cblk_get_stats(id, nullptr, 0), EINVAL);
  REFUSES(cblk_get_attrs(id, nullptr, 0), EINVAL);
  REFUSES(cblk_aresult(id, nullptr, ignored(), 0), EINVAL);
}

TEST_CASE("the_mode_at_open_limits_access") {
  const std::string path = device(kBlocks);
  Buffer buffer(1);
  int tag;
  chunk_id_t id = cblk_open(path.c_str(), 0, O_RDONLY, 0, 0);
  REQUIRE(id != NULL_CHUNK_ID);
  REQUIRE(cblk_read(id, buffer, 0, 1, 0) == 1);
  REFUSES(cblk_write(id, buffer, 0, 1, 0), EINVAL);
  REFUSES(cblk_unmap(id, buffer, 0, 1, 0), EINVAL);
  REFUSES(cblk_awrite(id, buffer, 0, 1, &tag, nullptr, 0), EINVAL);
  REQUIRE(cblk_close(id, 0) == 0);
  id = cblk_open(path.c_str(), 0, O_WRONLY, 0, 0);
  REQUIRE(id != NULL_CHUNK_ID);
  REQUIRE(cblk_write(id, buffer, 0, 1, 0) == 1);
  REFUSES(cblk_read(id, buffer, 0, 1, 0), EINVAL);
  REFUSES(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0), EINVAL);
  REQUIRE(cblk_close(id, 0) == 0);
}

TEST_CASE("unmapped_blocks_read_as_zeros_or_EPROTONOSUPPORT") {
  const Chunk id(open_physical());
  chunk_attrs_t attrs;
  REQUIRE(cblk_get_attrs(id, &attrs, 0) == 0);
  Buffer buffer(8);
  int tag;
  stamp(buffer, 16, 8, 1);
  REQUIRE(cblk_write(id, buffer, 16, 8, 0) == 8);
  if (attrs.flags1 & CFLSH_ATTR_UNMAP) {
    REQUIRE(cblk_unmap(id, buffer, 16, 4, 0) == 4);
    REQUIRE(cblk_read(id, buffer, 16, 8, 0) == 8);
    REQUIRE(is_zero(buffer, 4));
    REQUIRE(is_stamped(buffer.block(4), 20, 1));
    REQUIRE(cblk_aunmap(id, buffer, 20, 4, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 4);
    REQUIRE(cblk_read(id, buffer, 16, 8, 0) == 8);
    REQUIRE(is_zero(buffer, 8));
  } else {
    REFUSES(cblk_unmap(id, buffer, 16, 4, 0), EPROTONOSUPPORT);
    REFUSES(cblk_aunmap(id, buffer, 16, 4, &tag, nullptr, 0), EPROTONOSUPPORT);
  }
}

TEST_CASE("buffers_of_any_alignment") {
  const Chunk id(open_physical());
  for (const size_t skew : {1, 2, 7, 8, 16, 64, 511, 512, 2048, 4095}) {
    for (const size_t n : {1, 16, 17, 40}) {
      Buffer out(n, skew), in(n, skew), other(n, 4096 - skew);
      int tag;
      stamp(out, 300, n, skew);
      REQUIRE(cblk_write(id, out, 300, n, 0) == static_cast<int>(n));
      REQUIRE(cblk_read(id, in, 300, n, 0) == static_cast<int>(n));
      REQUIRE(is_stamped(in, 300, n, skew));
      stamp(out, 300, n, skew + 5000);
      REQUIRE(cblk_awrite(id, out, 300, n, &tag, nullptr, 0) == 0);
      REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == static_cast<int>(n));
      REQUIRE(cblk_aread(id, other, 300, n, &tag, nullptr, 0) == 0);
      REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == static_cast<int>(n));
      REQUIRE(is_stamped(other, 300, n, skew + 5000));
    }
  }
  // More commands at one time than there are bounce buffers.
  std::vector<Buffer*> many;
  for (int i = 0; i < 40; ++i) {
    many.push_back(new Buffer(1, 3));
    stamp(*many.back(), 1000 + i, 1, 9);
    int tag = i;
    REQUIRE(cblk_awrite(id, *many.back(), 1000 + i, 1, &tag, nullptr, CBLK_ARW_USER_TAG_FLAG) == 0);
  }
  for (int i = 0; i < 40; ++i) {
    int tag = i;
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_USER_TAG | CBLK_ARESULT_BLOCKING) == 1);
    REQUIRE(cblk_read(id, *many[i], 1000 + i, 1, 0) == 1);
    REQUIRE(is_stamped(*many[i], 1000 + i, 1, 9));
    delete many[i];
  }
}

TEST_CASE("counters_are_right") {
  const Chunk id(open_physical());
  Buffer buffer(8);
  chunk_stats_t stats;
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0);
  REQUIRE(stats.block_size == 4096 && stats.num_paths == 1 && stats.max_transfer_size == 4096);
  REQUIRE(stats.num_reads == 0 && stats.num_blocks_read == 0);
  for (int i = 0; i < 3; ++i) REQUIRE(cblk_write(id, buffer, 0, 8, 0) == 8);
  for (int i = 0; i < 5; ++i) REQUIRE(cblk_read(id, buffer, 0, 4, 0) == 4);
  int tags[2];
  REQUIRE(cblk_aread(id, buffer, 0, 2, &tags[0], nullptr, 0) == 0);
  REQUIRE(cblk_awrite(id, buffer, 4, 3, &tags[1], nullptr, 0) == 0);
  for (int& tag : tags) REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) > 0);
  REFUSES(cblk_read(id, buffer, kBlocks, 1, 0), EINVAL);
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0);
  REQUIRE(stats.num_reads == 5 && stats.num_writes == 3 && stats.num_areads == 1 &&
          stats.num_awrites == 1);
  REQUIRE(stats.num_blocks_read == 22 && stats.num_blocks_written == 27);
  REQUIRE(stats.num_act_reads == 0 && stats.num_act_areads == 0 && stats.num_act_awrites == 0);
  REQUIRE(stats.max_num_act_reads == 1 && stats.max_num_act_areads == 1 &&
          stats.max_num_act_awrites == 1);
  REQUIRE(stats.num_errors == 0 && stats.num_cache_hits == 0);
}

TEST_CASE("device_errors_reach_the_caller", "[sim]") {
  const Chunk id(open_sim("write_error=1"));
  Buffer buffer(1);
  chunk_stats_t stats;
  int tag;
  REFUSES(cblk_write(id, buffer, 0, 1, 0), EIO);
  REQUIRE(cblk_awrite(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  REFUSES(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING), EIO);
  REFUSES(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING), ENOMSG);
  cblk_arw_status_t status = {};
  REQUIRE(cblk_awrite(id, buffer, 0, 1, &tag, &status, CBLK_ARW_USER_STATUS_FLAG) == 0);
  await_status(status);
  REQUIRE(status.status == CBLK_ARW_STATUS_FAIL && status.fail_errno == EIO &&
          status.blocks_transferred == 0);
  REQUIRE(cblk_get_stats(id, &stats, 0) == 0);
  REQUIRE(stats.num_errors == 3);
}

// Some errno values tell the caller that a command goes on or does not exist. A device's error must
// not look like one of these, because no caller would fetch the end of such a command.
TEST_CASE("a_devices_errno_is_not_mistaken_for_the_librarys", "[sim]") {
  for (const int wrong : {EINVAL, ETIMEDOUT, ENOMSG, ENOENT, EAGAIN, ENOSPC, ENODEV}) {
    const int told = wrong == ENOSPC || wrong == ENODEV ? wrong : EIO;  // others pass
    const std::string uri = "sim:1m,write_error=1,errno=" + std::to_string(wrong);
    const chunk_id_t id = cblk_open(uri.c_str(), 4, O_RDWR, 0, 0);
    REQUIRE(id != NULL_CHUNK_ID);
    Buffer buffer(2);
    int tag;
    REFUSES(cblk_write(id, buffer, 0, 1, 0), told);
    for (const int flags : {CBLK_ARESULT_BLOCKING, CBLK_ARESULT_BLOCKING | CBLK_ARESULT_NEXT_TAG}) {
      REQUIRE(cblk_awrite(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
      REFUSES(cblk_aresult(id, &tag, ignored(), flags), told);
      // its place is free
      REFUSES(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_NEXT_TAG), ENOENT);
    }
    cblk_arw_status_t status = {};
    REQUIRE(cblk_awrite(id, buffer, 0, 1, &tag, &status, CBLK_ARW_USER_STATUS_FLAG) == 0);
    await_status(status);
    REQUIRE(status.status == CBLK_ARW_STATUS_FAIL && status.fail_errno == told);
    cblk_io_t io[2] = {};
    cblk_io_t* list[2] = {&io[0], &io[1]};
    for (cblk_io_t& one : io) {
      one.request_type = CBLK_IO_TYPE_WRITE;
      one.buf = buffer;
      one.lba = &one - io;
      one.nblocks = 1;
    }
    int none = 0;
    REQUIRE(cblk_listio(id, list, 2, nullptr, 0, list, 2, nullptr, &none, 2000000, 0) == 0);
    for (const cblk_io_t& one : io)
      REQUIRE(one.stat.status == CBLK_ARW_STATUS_FAIL && one.stat.fail_errno == told);
    REFUSES(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_NEXT_TAG), ENOENT);
    REQUIRE(cblk_close(id, 0) == 0);
    const Group group(cblk_cg_open(uri.c_str(), 4, O_RDWR, 2, 0, CBLK_GROUP_ID));
    cflsh_cg_tag_t of_group;
    for (int i = 0; i < 2; ++i)
      REQUIRE(cblk_cg_awrite(group, buffer.block(static_cast<size_t>(i)), i, 1, &of_group, nullptr,
                             0) == 0);
    for (int i = 0; i < 2; ++i)
      REFUSES(cblk_cg_aresult(group, &of_group, ignored(),
                              CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING),
              told);
    REQUIRE(cblk_cg_aresult(group, &of_group, ignored(), CBLK_ARESULT_NEXT_TAG) == 0);
  }
}

TEST_CASE("a_device_shorter_than_its_size_is_EIO", "[file]") {
  const std::string path = device(64, 3);
  const Chunk id(cblk_open(path.c_str(), 0, O_RDWR, 0, 0));
  Buffer buffer(8);
  REQUIRE(truncate(path.c_str(), 32 * kBlock) == 0);
  REQUIRE(cblk_read(id, buffer, 30, 8, 0) == 2);
  REFUSES(cblk_read(id, buffer, 40, 1, 0), EIO);
  int tag;
  REQUIRE(cblk_aread(id, buffer, 40, 1, &tag, nullptr, 0) == 0);
  REFUSES(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING), EIO);
}

TEST_CASE("close_waits_5_s_for_active_commands_then_EBUSY", "[.][sim][timed]") {
  const chunk_id_t id = open_sim("latency_us=7000000");
  Buffer buffer(1);
  int tag;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  double start = seconds();
  REFUSES(cblk_close(id, 0), EBUSY);
  REQUIRE(seconds() - start > 4.5 && seconds() - start < 6.5);
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);  // it lives on
  REQUIRE(cblk_close(id, 0) == 0);
  // A close waits for a command that ends soon.
  const chunk_id_t soon = open_sim("latency_us=300000");
  REQUIRE(cblk_aread(soon, buffer, 0, 1, &tag, nullptr, 0) == 0);
  start = seconds();
  std::jthread fetcher([&] { (void)cblk_aresult(soon, &tag, ignored(), CBLK_ARESULT_BLOCKING); });
  usleep(100000);
  REQUIRE(cblk_close(soon, 0) == 0);
  REQUIRE(seconds() - start > 0.2);
}

TEST_CASE("close_waits_for_blocking_io_too", "[sim][timed]") {
  const chunk_id_t id = open_sim("latency_us=200000");
  const double start = seconds();
  std::jthread reader([&id] {
    Buffer buffer(1);
    REQUIRE(cblk_read(id, buffer, 0, 1, 0) == 1);
  });
  usleep(50000);  // or longer, on a busy machine
  REQUIRE(cblk_close(id, 0) == 0);
  REQUIRE(seconds() - start > 0.19);
}

TEST_CASE("close_races_with_everything") {
  for (int round = 0; round < 20; ++round) {
    const chunk_id_t id = open_physical(256, 8);
    std::atomic<int> closed{0};
    in_parallel(6, [&](int t) {
      Buffer buffer(1);
      for (int i = 0;; ++i) {
        if (t == 0 && i == 50) {
          if (cblk_close(id, 0) == 0) ++closed;
          return;
        }
        int tag;
        if (t % 2 ? cblk_read(id, buffer, t, 1, 0) == 1
                  : cblk_aread(id, buffer, t, 1, &tag, nullptr, 0) == 0) {
          if (t % 2 == 0 && cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) != 1)
            REQUIRE(errno == EINVAL);
          continue;
        }
        if (errno == EWOULDBLOCK) continue;
        REQUIRE(errno == EINVAL);
        return;
      }
    });
    REQUIRE(closed == 1);
  }
}
