// SPDX-License-Identifier: Apache-2.0
// One device is used as a whole and in virtual LUNs, in turns. A use that left nothing on the
// device gives way; otherwise the next use is refused.
#include "cblk_test.h"

namespace {

std::string fresh() {
  static int number = 0;
  return survives() ? device(kBlocks) : "sim:16m,name=turns" + std::to_string(++number);
}

chunk_id_t open_virtual(const std::string& path) {
  const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  REQUIRE(id != NULL_CHUNK_ID);
  return id;
}

void use_virtual(const std::string& path, uint64_t version) {
  const Chunk id(open_virtual(path));
  Buffer block(1);
  REQUIRE(cblk_set_size(id, 500, 0) == 0);
  stamp(block, 499, 1, version);
  REQUIRE(cblk_write(id, block, 499, 1, 0) == 1);
  memset(block, 0, kBlock);
  REQUIRE(cblk_read(id, block, 499, 1, 0) == 1 && is_stamped(block, 499, 1, version));
}

// Whether its first 64 KiB and its last block are zeros.
bool is_blank(chunk_id_t id) {
  Buffer head(16), tail(1);
  size_t blocks = 0;
  REQUIRE(cblk_get_size(id, &blocks, 0) == 0 && cblk_read(id, head, 0, 16, 0) == 16);
  REQUIRE(cblk_read(id, tail, static_cast<off_t>(blocks - 1), 1, 0) == 1);
  return is_zero(head, 16) && is_zero(tail, 1);
}

}  // namespace

TEST_CASE("physical_after_virtual_and_virtual_after_physical") {
  const std::string path = fresh();
  Buffer block(1);
  for (uint64_t round = 1; round <= 3; ++round) {
    use_virtual(path, round);
    const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, 0);
    REQUIRE(id != NULL_CHUNK_ID && is_blank(id));
    size_t blocks = 0;
    REQUIRE(cblk_get_size(id, &blocks, 0) == 0 && blocks == kBlocks);
    for (const size_t lba : {size_t{0}, size_t{1}, blocks / 2, blocks - 1}) {
      stamp(block, lba, 1, round);
      REQUIRE(cblk_write(id, block, static_cast<off_t>(lba), 1, 0) == 1);
    }
    REQUIRE(cblk_close(id, 0) == 0);
    // now something would be lost
    REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN), EEXIST);
    const Chunk again(cblk_open(path.c_str(), 0, O_RDWR, 0, 0));
    for (const size_t lba : {size_t{0}, size_t{1}, blocks / 2, blocks - 1}) {
      REQUIRE(cblk_read(again, block, static_cast<off_t>(lba), 1, 0) == 1 &&
              is_stamped(block, lba, 1, round));
      memset(block, 0, kBlock);
      REQUIRE(cblk_write(again, block, static_cast<off_t>(lba), 1, 0) == 1);  // nothing any more
    }
  }
}

TEST_CASE("a_physical_open_of_any_kind_comes_after_virtual_ones", "[kept]") {
  const std::string path = fresh();
  use_virtual(path, 1);
  const chunk_id_t reserved = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_RESERVE);
  REQUIRE(reserved != NULL_CHUNK_ID && is_blank(reserved));
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN), EBUSY);
  REQUIRE(cblk_close(reserved, 0) == 0);
  use_virtual(path, 2);
  const chunk_cg_id_t group = cblk_cg_open(path.c_str(), 0, O_RDWR, 3, 0, CBLK_GROUP_ID);
  REQUIRE(group != NULL_CHUNK_CG_ID && cblk_cg_close(group, 0) == 0);
  use_virtual(path, 3);
  const chunk_cg_id_t raid = cblk_cg_open(path.c_str(), 0, O_RDWR, 1, 0, CBLK_GROUP_RAID0);
  REQUIRE(raid != NULL_CHUNK_CG_ID && cblk_cg_close(raid, 0) == 0);
}

TEST_CASE("a_reading_open_leaves_virtual_luns_as_they_are", "[kept]") {
  const std::string path = fresh();
  use_virtual(path, 1);
  const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDONLY, 0, 0);
  REQUIRE(id != NULL_CHUNK_ID && !is_blank(id));
  REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN), EBUSY);
  REQUIRE(cblk_close(id, 0) == 0);
  use_virtual(path, 2);
}

TEST_CASE("a_physical_open_does_not_wait_for_dead_owners", "[kept]") {
  const std::string path = fresh();
  in_child([&] {  // ends without a close, with I/O just done
    const chunk_id_t id = open_virtual(path);
    Buffer block(1);
    int tag;
    REQUIRE(cblk_set_size(id, 100, 0) == 0 && cblk_awrite(id, block, 7, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  });
  const chunk_id_t id = cblk_open(path.c_str(), 0, O_RDWR, 0, 0);
  REQUIRE(id != NULL_CHUNK_ID && is_blank(id) && cblk_close(id, 0) == 0);
}

TEST_CASE("virtual_luns_that_live_are_not_taken", "[kept]") {
  const std::string path = fresh();
  const chunk_id_t id = open_virtual(path);
  Buffer block(1);
  REQUIRE(cblk_set_size(id, 100, 0) == 0);
  stamp(block, 7, 1, 1);
  REQUIRE(cblk_write(id, block, 7, 1, 0) == 1);
  for (const int flags : {0, CBLK_OPN_RESERVE})
    REFUSES(cblk_open(path.c_str(), 0, O_RDWR, 0, flags), EBUSY);
  REFUSES(cblk_cg_open(path.c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_ID), EBUSY);
  memset(block, 0, kBlock);
  REQUIRE(cblk_read(id, block, 7, 1, 0) == 1 && is_stamped(block, 7, 1, 1));
  REQUIRE(cblk_set_size(id, 200, 0) == 0 && cblk_close(id, 0) == 0);
}
