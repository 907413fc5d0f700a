// SPDX-License-Identifier: Apache-2.0
// Virtual chunks, and what a device that carries Lunar's format allows.
#include <atomic>

#include "cblk_test.h"

namespace {

chunk_id_t open_virtual(const std::string& path, int flags = 0, int mode = O_RDWR) {
  const chunk_id_t id = cblk_open(path.c_str(), 0, mode, 0, CBLK_OPN_VIRT_LUN | flags);
  REQUIRE(id != NULL_CHUNK_ID);
  return id;
}

void write_run(chunk_id_t id, size_t from, size_t n, uint64_t version) {
  Buffer block(1);
  for (size_t i = from; i < from + n; ++i) {
    stamp(block, i, 1, version);
    REQUIRE(cblk_write(id, block, static_cast<cflash_offset_t>(i), 1, 0) == 1);
  }
}

bool holds_run(chunk_id_t id, size_t from, size_t n, uint64_t version) {
  Buffer block(1);
  for (size_t i = from; i < from + n; ++i) {
    REQUIRE(cblk_read(id, block, static_cast<cflash_offset_t>(i), 1, 0) == 1);
    if (!is_stamped(block, i, 1, version)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a_virtual_chunk_has_no_size_until_it_is_set") {
  const Chunk id(open_virtual(device(kBlocks)));
  Buffer buffer(2);
  size_t size = 99, lun = 0;
  int tag;
  REQUIRE(cblk_get_size(id, &size, 0) == 0 && size == 0);
  REQUIRE(cblk_get_lun_size(id, &lun, 0) == 0 && lun == kBlocks);
  REFUSES(cblk_read(id, buffer, 0, 1, 0), EINVAL);
  REFUSES(cblk_write(id, buffer, 0, 1, 0), EINVAL);
  REFUSES(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0), EINVAL);
  REQUIRE(cblk_set_size(id, 100, 0) == 0);
  REQUIRE(cblk_get_size(id, &size, 0) == 0 && size == 100);
  write_run(id, 0, 100, 1);
  REQUIRE(holds_run(id, 0, 100, 1));
  REFUSES(cblk_read(id, buffer, 100, 1, 0), EINVAL);
  REFUSES(cblk_read(id, buffer, 0, 2, 0), EINVAL);  // one block a transfer
  REFUSES(cblk_write(id, buffer, 0, 2, 0), EINVAL);
  REFUSES(cblk_aread(id, buffer, 0, 2, &tag, nullptr, 0), EINVAL);
  chunk_attrs_t attrs;
  REQUIRE(cblk_get_attrs(id, &attrs, 0) == 0 && attrs.max_transfer_size == 1);
  REQUIRE(cblk_aread(id, buffer, 7, 1, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(is_stamped(buffer, 7, 1, 1));
}

// Shrinking waits for the I/O that may reach what it takes away, not for a moment without any.
TEST_CASE("a_chunk_shrinks_beside_threads_that_never_pause") {
  for (const char* limit : {"0", "5000"}) {
    const Limit time(limit);
    const Chunk id(open_virtual(kind() == "sim" ? "sim:16m,latency_us=300" : device(kBlocks)));
    REQUIRE(cblk_set_size(id, 2048, 0) == 0);
    write_run(id, 0, 128, 1);
    std::atomic<bool> over{false};
    auto threads = start_threads(4, [&](int n) {
      Buffer block(1);
      for (uint64_t i = static_cast<uint64_t>(n); !over; i += 7) {
        REQUIRE(cblk_read(id, block, static_cast<cflash_offset_t>(i % 100), 1, 0) == 1);
        REQUIRE(is_stamped(block, i % 100, 1, 1));
      }
    });
    const Watch watch;
    for (int i = 0; i < 20; ++i) {
      REQUIRE(cblk_set_size(id, 1024, i % 2 ? CBLK_SCRUB_DATA_FLG : 0) == 0);
      Buffer block(1);
      REFUSES(cblk_read(id, block, 1500, 1, 0), EINVAL);
      REQUIRE(cblk_set_size(id, 2048, 0) == 0);
      REQUIRE(cblk_read(id, block, 1500, 1, 0) == 1);
    }
    over = true;
    threads.clear();
    REQUIRE(watch.passed() < tier::scaled(20));
  }
}

TEST_CASE("growing_keeps_shrinking_drops_the_tail") {
  const Chunk id(open_virtual(device(kBlocks)));
  REQUIRE(cblk_set_size(id, 50, 0) == 0);
  write_run(id, 0, 50, 1);
  REQUIRE(cblk_set_size(id, 700, 0) == 0);
  REQUIRE(holds_run(id, 0, 50, 1));
  write_run(id, 50, 650, 2);
  REQUIRE(cblk_set_size(id, 60, 0) == 0);
  REQUIRE(holds_run(id, 0, 50, 1) && holds_run(id, 50, 10, 2));
  Buffer block(1);
  REFUSES(cblk_read(id, block, 60, 1, 0), EINVAL);
  REQUIRE(cblk_set_size(id, 0, 0) == 0);
  REFUSES(cblk_read(id, block, 0, 1, 0), EINVAL);
}

// IBM's file mode keeps one pointer for all chunks of a file: growing any but the last loses its
// data.
TEST_CASE("chunks_on_one_device_grow_in_any_order", "[kept]") {
  const std::string path = device(kBlocks);
  chunk_id_t id[3];
  for (chunk_id_t& one : id) one = open_virtual(path);
  size_t size[3] = {};
  for (int round = 1; round <= 4; ++round) {
    for (int i = 0; i < 3; ++i) {
      const size_t grown = size[i] + 60 + static_cast<size_t>(17 * i);
      REQUIRE(cblk_set_size(id[i], grown, 0) == 0);
      write_run(id[i], size[i], grown - size[i], 10 + static_cast<uint64_t>(i));
      size[i] = grown;
      for (int j = 0; j < 3; ++j)
        REQUIRE(holds_run(id[j], 0, size[j], 10 + static_cast<uint64_t>(j)));
    }
  }
  REQUIRE(cblk_close(id[1], 0) == 0);
  REQUIRE(holds_run(id[0], 0, size[0], 10) && holds_run(id[2], 0, size[2], 12));
  REQUIRE(cblk_close(id[0], 0) == 0);
  REQUIRE(cblk_close(id[2], 0) == 0);
}

TEST_CASE("all_that_remains_and_no_more") {
  const std::string path = device(kBlocks);
  const Chunk id(open_virtual(path));
  REQUIRE(cblk_set_size(id, 40, 0) == 0);
  write_run(id, 0, 40, 1);
  REFUSES(cblk_set_size(id, kBlocks, 0), ENOMEM);  // less what the format takes
  REFUSES(cblk_set_size(id, kBlocks + 1, 0), EINVAL);
  REFUSES(cblk_set_size(id, SIZE_MAX - 1, 0), EINVAL);
  size_t size = 0;
  REQUIRE(cblk_get_size(id, &size, 0) == 0 && size == 40);  // nothing was changed
  REQUIRE(cblk_set_size(id, static_cast<size_t>(-1), 0) == 0);
  REQUIRE(cblk_get_size(id, &size, 0) == 0);
  REQUIRE(size > kBlocks / 2 && size < kBlocks);
  REQUIRE(holds_run(id, 0, 40, 1));
  write_run(id, size - 1, 1, 2);
  REQUIRE(holds_run(id, size - 1, 1, 2));
  if (survives()) {
    const Chunk other(open_virtual(path));
    REFUSES(cblk_set_size(other, size, 0), ENOMEM);  // nothing is left
  }
}

TEST_CASE("a_virtual_chunk_is_gone_at_close", "[kept]") {
  const std::string path = device(kBlocks);
  size_t size = 0, first = 0;
  for (int i = 0; i < 10; ++i) {  // its space is there again each time
    const chunk_id_t id = open_virtual(path, i % 2 ? CBLK_OPN_SCRUB_DATA : 0);
    REQUIRE(cblk_set_size(id, static_cast<size_t>(-1), 0) == 0);
    REQUIRE(cblk_get_size(id, &size, 0) == 0);
    if (i == 0) first = size;
    REQUIRE(size == first);
    Buffer block(1);
    REQUIRE(cblk_read(id, block, 17, 1, 0) == 1);
    REQUIRE(!is_stamped(block, 17, 1, 1));
    write_run(id, 17, 1, 1);
    REQUIRE(cblk_close(id, i % 3 == 0 ? CBLK_SCRUB_DATA_FLG : 0) == 0);
  }
}

TEST_CASE("scrubbed_data_is_not_on_the_device_any_more", "[file]") {
  const std::string path = device(kBlocks);
  const chunk_id_t id = open_virtual(path);
  REQUIRE(cblk_set_size(id, 300, 0) == 0);
  write_run(id, 0, 300, 77);
  REQUIRE(cblk_set_size(id, 100, CBLK_SCRUB_DATA_FLG) == 0);
  REQUIRE(holds_run(id, 0, 100, 77));
  REQUIRE(cblk_close(id, CBLK_SCRUB_DATA_FLG) == 0);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  Buffer block(1);
  for (size_t i = 0; i < kBlocks; ++i) {
    REQUIRE(pread(fd, block, kBlock, static_cast<off_t>(i * kBlock)) ==
            static_cast<ssize_t>(kBlock));
    uint64_t lba;
    memcpy(&lba, block, sizeof lba);
    REQUIRE(lba >= 300 || !is_stamped(block.data(), lba, 77));
  }
  close(fd);
}

TEST_CASE("who_forces_a_formatted_device_open_finds_it_as_it_is", "[kept]") {
  const std::string path = device(kBlocks);
  REQUIRE(cblk_close(open_virtual(path), 0) == 0);
  const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_FORCED_RESERVE);
  REQUIRE(id != NULL_CHUNK_ID);
  REQUIRE(cblk_close(id, 0) == 0);
  REQUIRE(cblk_close(open_virtual(path), 0) == 0);  // it was not harmed
}

TEST_CASE("a_blank_device_in_use_as_a_whole_is_not_formatted", "[kept]") {
  const std::string path = device(kBlocks);
  const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, 0);
  REQUIRE(id != NULL_CHUNK_ID);
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN), EBUSY);
  REQUIRE(cblk_close(id, 0) == 0);
  REQUIRE(cblk_close(open_virtual(path), 0) == 0);
}

// A fault of the original: the limit set for physical chunks reached virtual ones too.
TEST_CASE("max_xfer_is_of_physical_chunks_only") {
  Environment limit("CFLSH_BLK_MAX_XFER", "16");
  chunk_attrs_t attrs;
  Buffer buffer(17);
  const chunk_id_t physical = open_physical();
  REQUIRE(cblk_get_attrs(physical, &attrs, 0) == 0 && attrs.max_transfer_size == 16);
  REQUIRE(cblk_read(physical, buffer, 0, 16, 0) == 16);
  REFUSES(cblk_read(physical, buffer, 0, 17, 0), EINVAL);
  REQUIRE(cblk_close(physical, 0) == 0);
  const Chunk id(open_virtual(device(kBlocks)));
  REQUIRE(cblk_set_size(id, 100, 0) == 0);
  REQUIRE(cblk_get_attrs(id, &attrs, 0) == 0 && attrs.max_transfer_size == 1);
  REFUSES(cblk_read(id, buffer, 0, 2, 0), EINVAL);
}

TEST_CASE("a_virtual_chunk_knows_its_mode") {
  const Chunk id(open_virtual(device(kBlocks), 0, O_RDONLY));
  Buffer block(1);
  REQUIRE(cblk_set_size(id, 10, 0) == 0);
  REQUIRE(cblk_read(id, block, 0, 1, 0) == 1);
  REFUSES(cblk_write(id, block, 0, 1, 0), EINVAL);
}

TEST_CASE("a_raid0_of_virtual_luns") {
  const std::string path = device(kBlocks, 0) + ":" + device(kBlocks, 1);
  const Group group(
      cblk_cg_open(path.c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_RAID0 | CBLK_OPN_VIRT_LUN));
  size_t size = 9;
  REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size == 0);
  Buffer block(1);
  REFUSES(cblk_cg_read(group, block, 0, 1, 0), EINVAL);
  REQUIRE(cblk_cg_set_size(group, 101, 0) == 0);
  REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size == 102);  // whole stripes
  for (int i = 0; i < 101; ++i) {
    stamp(block, static_cast<uint64_t>(i), 1, 6);
    REQUIRE(cblk_cg_write(group, block, i, 1, 0) == 1);
  }
  REQUIRE(cblk_cg_set_size(group, 900, 0) == 0);
  for (int i = 0; i < 101; ++i) {
    REQUIRE(cblk_cg_read(group, block, i, 1, 0) == 1);
    REQUIRE(is_stamped(block, static_cast<uint64_t>(i), 1, 6));
  }
  REFUSES(cblk_cg_set_size(group, kBlocks * 2, 0), ENOMEM);
  REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size == 900);  // all devices are as they were
  for (const size_t none : {size_t{0}, 2 * kBlocks + 1})
    REFUSES(cblk_cg_set_size(group, none, 0), EINVAL);
  REQUIRE(cblk_cg_set_size(group, static_cast<size_t>(-1), 0) == 0);
  REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size > kBlocks && size % 2 == 0);
}

TEST_CASE("two_processes_share_a_physical_lun", "[kept]") {
  const std::string path = device(kBlocks);
  for (int turn = 0; turn < 4; ++turn) {  // virtual LUNs of several processes at one time
    in_child([&] {
      const chunk_id_t id = open_virtual(path);
      REQUIRE(cblk_set_size(id, 100, 0) == 0);
      write_run(id, 0, 100, 50 + static_cast<uint64_t>(turn));
      in_child([&] {  // another one, at the same time
        const Chunk other(open_virtual(path));
        REQUIRE(cblk_set_size(other, 150, 0) == 0);
        write_run(other, 0, 150, 99);
        REQUIRE(holds_run(other, 0, 150, 99));
      });
      REQUIRE(holds_run(id, 0, 100, 50 + static_cast<uint64_t>(turn)));
      if (turn != 2) REQUIRE(cblk_close(id, 0) == 0);  // one just dies
    });
  }
  const chunk_id_t id = open_virtual(path);
  REQUIRE(cblk_set_size(id, static_cast<size_t>(-1), 0) == 0);
  size_t size;
  // what the dead one had is free again
  REQUIRE(cblk_get_size(id, &size, 0) == 0 && size > kBlocks * 3 / 4);
  REQUIRE(cblk_close(id, 0) == 0);
}

// capiblock.h and the examples' README state the space that the format takes.
TEST_CASE("the_format_takes_two_megabytes", "[file]") {
  for (const size_t mebibytes : {66, 1026}) {
    const std::string path = "/var/tmp/lunar-cblk-room-" + std::to_string(getpid());
    // sparse: only its size counts
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0 && ftruncate(fd, static_cast<off_t>(mebibytes << 20)) == 0 && close(fd) == 0);
    const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
    const size_t fits = (mebibytes - 2) << 8;
    const bool more = id != NULL_CHUNK_ID && cblk_set_size(id, fits + 256, 0) == 0;
    const int errno_of_more = errno, rest = cblk_set_size(id, fits, 0), errno_of_rest = errno;
    (void)!cblk_close(id, 0);
    unlink(path.c_str());
    if (rest != 0 && errno_of_rest == ENOSPC) return;  // this disk is full
    REQUIRE(!more && errno_of_more == ENOMEM && rest == 0);
  }
}
