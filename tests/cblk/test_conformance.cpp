// SPDX-License-Identifier: Apache-2.0
// The behaviours that callers of IBM's library rely on, each on a physical and on a virtual chunk.
// Their source is IBM's library, its test program and its samples; where this library differs on
// purpose, capiblock.h and the man pages say so, and no case is here.
#include <thread>

#include "cblk_test.h"

namespace {

struct Lun {
  bool is_virtual;
  int flags() const { return is_virtual ? CBLK_OPN_VIRT_LUN : 0; }
};

using Line = void (*)(Lun);

constexpr size_t kSized = 240;  // blocks of a virtual chunk here; a multiple of 2 and 3

chunk_id_t open_chunk(Lun lun, int requests = 16, int number = 0) {
  const chunk_id_t id =
      cblk_open(device(kBlocks, number).c_str(), requests, O_RDWR, 0, lun.flags());
  if (id != NULL_CHUNK_ID && lun.is_virtual && cblk_set_size(id, kSized, 0) != 0)
    return NULL_CHUNK_ID;
  return id;
}

chunk_cg_id_t open_raid0(Lun lun, int devices, int requests = 16) {
  std::string path;
  for (int i = 0; i < devices; ++i) path += (i ? ":" : "") + device(kBlocks, i);
  const chunk_cg_id_t id =
      cblk_cg_open(path.c_str(), requests, O_RDWR, 1, 0, CBLK_GROUP_RAID0 | lun.flags());
  if (id != NULL_CHUNK_CG_ID && lun.is_virtual &&
      cblk_cg_set_size(id, kSized, CBLK_GROUP_RAID0) != 0)
    return NULL_CHUNK_CG_ID;
  return id;
}

// ---- RAID 0 ----

void a_raid0_by_name(Lun lun) {
  const std::string devices = device(kBlocks, 0) + ":" + device(kBlocks, 1);
  const int flags = CBLK_GROUP_RAID0 | lun.flags();
  REFUSES(cblk_cg_open("RAID0", 8, O_RDWR, 1, 0, flags), ENODEV);  // none is named
  const Environment named("LUNAR_RAID0_DEVICES", devices.c_str());
  for (const char* name : {"RAID0", "RAID0:*", "RAID0:2"}) {
    const Group id(cblk_cg_open(name, 8, O_RDWR, 1, 0, flags));
    REQUIRE(cblk_cg_get_num_chunks(id, 0) == 2);
  }
  REFUSES(cblk_cg_open("RAID0:3", 8, O_RDWR, 1, 0, flags), ENODEV);
}

// IBM's blockr0io relies on this: it keeps its I/Os by tag.id % devices and tag.tag < requests.
void raid0_requests_are_a_devices(Lun lun) {
  const Group id(open_raid0(lun, 2, 4));
  Buffer buffer(8);
  cflsh_cg_tag_t tags[8], tag;
  for (int i = 0; i < 8; ++i) {
    REQUIRE(cblk_cg_aread(id, buffer.block(static_cast<size_t>(i)), i, 1, &tags[i], nullptr,
                          CBLK_GROUP_RAID0) == 0);
    REQUIRE(tags[i].tag >= 0 && tags[i].tag < 4);
    REQUIRE(tags[i].id % 2 == (tags[0].id + i) % 2);
  }
  REFUSES(cblk_cg_aread(id, buffer, 8, 1, &tag, nullptr, CBLK_GROUP_RAID0), EWOULDBLOCK);
  REFUSES(cblk_cg_aread(id, buffer, 9, 1, &tag, nullptr, CBLK_GROUP_RAID0), EWOULDBLOCK);
  uint64_t status = 0;
  for (cflsh_cg_tag_t& one : tags)
    REQUIRE(cblk_cg_aresult(id, &one, &status, CBLK_GROUP_RAID0 | CBLK_ARESULT_BLOCKING) == 1 &&
            status == 1);
}

void a_raid0s_commands_move_one_block(Lun lun) {
  const Group id(open_raid0(lun, 2));
  Buffer buffer(2);
  cflsh_cg_tag_t tag;
  REFUSES(cblk_cg_aread(id, buffer, 0, 2, &tag, nullptr, CBLK_GROUP_RAID0), EINVAL);
  REFUSES(cblk_cg_awrite(id, buffer, 0, 2, &tag, nullptr, CBLK_GROUP_RAID0), EINVAL);
  REFUSES(cblk_cg_aunmap(id, buffer, 0, 2, &tag, nullptr, CBLK_GROUP_RAID0), EINVAL);
}

void a_group_has_chunks(Lun lun) {
  const std::string path = device(kBlocks);
  for (const int chunks : {0, -1}) {
    REFUSES(cblk_cg_open(path.c_str(), 8, O_RDWR, chunks, 0, CBLK_GROUP_RAID0 | lun.flags()),
            EINVAL);
    REFUSES(cblk_cg_open(path.c_str(), 8, O_RDWR, chunks, 0, CBLK_GROUP_ID), EINVAL);
  }
}

// ---- lists ----

struct Ios {
  cblk_io_t ios[8] = {};
  cblk_io_t* list[8];
  Ios() {
    for (int i = 0; i < 8; ++i) list[i] = &ios[i];
  }
  Ios(uint8_t type, const Buffer& buffer) : Ios() {
    for (int i = 0; i < 8; ++i) {
      ios[i].request_type = type;
      ios[i].buf = buffer.block(static_cast<size_t>(i));
      ios[i].lba = i + 1;
      ios[i].nblocks = 1;
    }
  }
  Ios(const Ios& other) : Ios() { memcpy(ios, other.ios, sizeof ios); }
};

void an_io_that_is_refused_has_failed(Lun lun) {
  const Chunk id(open_chunk(lun));
  Buffer in(8);
  Ios issue(CBLK_IO_TYPE_READ, in), complete;
  issue.ios[2].lba = kBlocks;
  issue.ios[4].lba = -1;
  issue.ios[5].nblocks = kBlocks + 1;
  Ios wait(issue);
  int n = 1;
  REQUIRE(cblk_listio(id, issue.list, 8, nullptr, 0, wait.list, 7, complete.list, &n, 0, 0) == 0);
  for (const int i : {2, 4, 5})
    for (const Ios* list : {&wait, &issue})
      REQUIRE(list->ios[i].stat.status == CBLK_ARW_STATUS_FAIL &&
              list->ios[i].stat.fail_errno == EINVAL);
  for (const int i : {0, 1, 3, 6}) REQUIRE(wait.ios[i].stat.status == CBLK_ARW_STATUS_SUCCESS);
  issue.ios[7].lba = -1;  // in no wait list: told as a completion
  Ios rest(issue);
  uint64_t status;
  REQUIRE(cblk_aresult(id, &issue.ios[7].tag, &status, CBLK_ARESULT_BLOCKING) == 1);
  n = 1;
  REQUIRE(cblk_listio(id, issue.list + 7, 1, nullptr, 0, nullptr, 0, complete.list, &n, 0, 0) == 0);
  REQUIRE(n == 1 && complete.ios[0].stat.status == CBLK_ARW_STATUS_FAIL &&
          complete.ios[0].stat.fail_errno == EINVAL);
  int tag = 5;  // never issued
  Ios lost(CBLK_IO_TYPE_READ, in);
  lost.ios[0].tag = tag;
  n = 1;
  REQUIRE(cblk_listio(id, nullptr, 0, lost.list, 1, nullptr, 0, complete.list, &n, 0, 0) == 0);
  REQUIRE(n == 1 && complete.ios[0].stat.status == CBLK_ARW_STATUS_FAIL &&
          complete.ios[0].stat.fail_errno == ENOMSG);
}

void a_list_without_a_buffer_is_refused(Lun lun) {
  const Chunk id(open_chunk(lun));
  Buffer in(8);
  for (const bool type : {false, true}) {
    Ios issue(CBLK_IO_TYPE_READ, in), wait(issue), complete;
    if (type)
      issue.ios[3].request_type = 9;
    else
      issue.ios[3].buf = nullptr;
    int n = 8;
    REFUSES(cblk_listio(id, issue.list, 8, nullptr, 0, wait.list, 8, complete.list, &n, 0, 0),
            EINVAL);
    REQUIRE(issue.ios[3].stat.status == CBLK_ARW_STATUS_INVALID &&
            issue.ios[3].stat.fail_errno == EINVAL);
    n = 8;
    REFUSES(cblk_listio(id, nullptr, 0, issue.list, 8, nullptr, 0, complete.list, &n, 0, 0),
            EINVAL);
    n = 8;
    REFUSES(cblk_listio(id, nullptr, 0, nullptr, 0, issue.list, 8, complete.list, &n, 0, 0),
            EINVAL);
  }
  int tag;
  uint64_t status;
  REFUSES(cblk_aresult(id, &tag, &status, CBLK_ARESULT_NEXT_TAG), ENOENT);  // nothing was issued
}

// ---- one set of calls for chunks and groups ----

void cblk_open_opens_groups(Lun lun) {
  const std::string path = device(kBlocks);
  REFUSES(cblk_open(path.c_str(), 8, O_RDWR, 0, CBLK_OPN_GROUP), EINVAL);
  REFUSES(cblk_open(path.c_str(), 8, O_RDWR, 0x100000001, CBLK_OPN_GROUP), ENOMEM);
  chunk_id_t id = cblk_open(path.c_str(), 8, O_RDWR, 3, CBLK_OPN_GROUP);
  REQUIRE(id != NULL_CHUNK_ID);
  REQUIRE(cblk_cg_get_num_chunks(id, 0) == 3);
  REQUIRE(cblk_close(id, CBLK_GROUP_ID) == 0);
  id = cblk_open(path.c_str(), 8, O_RDWR, 1, CBLK_OPN_GROUP | CBLK_GROUP_RAID0 | lun.flags());
  REQUIRE(id != NULL_CHUNK_ID);
  REQUIRE(cblk_cg_get_num_chunks(id, 0) == 1);
  REQUIRE(cblk_close(id, CBLK_GROUP_RAID0) == 0);
  REFUSES(cblk_cg_get_num_chunks(id, 0), EINVAL);
}

void plain_calls_act_on_a_raid0_of(int devices, Lun lun) {
  const chunk_cg_id_t id = open_raid0(lun, devices);
  REQUIRE(id != NULL_CHUNK_CG_ID && cblk_cg_get_num_chunks(id, 0) == devices);
  const size_t blocks = static_cast<size_t>(devices) * kBlocks;
  size_t size = 0;
  for (const int flag : {CBLK_GROUP_ID, CBLK_GROUP_RAID0}) {
    REQUIRE(cblk_get_lun_size(id, &size, flag) == 0 && size == blocks);
    REQUIRE(cblk_get_size(id, &size, flag) == 0 && size == (lun.is_virtual ? kSized : blocks));
    Buffer out(2), in(2);
    stamp(out, 2, 2, 1);
    REQUIRE(cblk_write(id, out, 2, 1, flag) == 1);
    REQUIRE(cblk_write(id, out.block(1), 3, 1, flag) == 1);
    REQUIRE(cblk_read(id, in, 2, 1, flag) == 1);
    REQUIRE(cblk_read(id, in.block(1), 3, 1, flag) == 1);
    REQUIRE(is_stamped(in, 2, 2, 1));
    chunk_attrs_t attrs;
    REQUIRE(cblk_get_attrs(id, &attrs, flag) == 0 && attrs.block_size == 4096);
    if (attrs.flags1 & CFLSH_ATTR_UNMAP) {
      REQUIRE(cblk_unmap(id, out, 2, 1, flag) == 1);
      REQUIRE(cblk_read(id, in, 2, 1, flag) == 1 && is_zero(in, 1));
    }
    chunk_stats_t stats;
    REQUIRE(cblk_get_stats(id, &stats, flag) == 0 && stats.num_reads >= 2);
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, flag) == 0);
    if (lun.is_virtual)
      REQUIRE(cblk_set_size(id, kSized, flag) == 0);
    else
      REFUSES(cblk_set_size(id, 10, flag), EINVAL);
  }
  Buffer buffer(1);
  REFUSES(cblk_read(id, buffer, 0, 1, 0), EINVAL);  // not a chunk
  REFUSES(cblk_close(id, 0), EINVAL);
  REQUIRE(cblk_close(id, CBLK_GROUP_RAID0) == 0);
  const chunk_id_t chunk = open_chunk(lun);
  REFUSES(cblk_read(chunk, buffer, 0, 1, CBLK_GROUP_ID), EINVAL);  // not a group
  REFUSES(cblk_close(chunk, CBLK_GROUP_RAID0), EINVAL);
  REQUIRE(cblk_close(chunk, 0) == 0);
}

void plain_calls_act_on_groups(Lun lun) {
  for (const int devices : {1, 2}) plain_calls_act_on_a_raid0_of(devices, lun);
}

void plain_commands_refuse_groups(Lun lun) {
  const chunk_id_t chunk = open_chunk(lun, 16, 1);
  const chunk_cg_id_t group = open_raid0(lun, 1);
  REQUIRE(chunk != NULL_CHUNK_ID && group != NULL_CHUNK_CG_ID);
  Buffer buffer(1);
  int tag = 0;
  uint64_t status;
  for (const chunk_id_t id : {chunk, group}) {
    for (const int flag : {CBLK_GROUP_ID, CBLK_GROUP_RAID0}) {
      REFUSES(cblk_aread(id, buffer, 0, 1, &tag, nullptr, flag), EINVAL);
      REFUSES(cblk_awrite(id, buffer, 0, 1, &tag, nullptr, flag), EINVAL);
      REFUSES(cblk_aunmap(id, buffer, 0, 1, &tag, nullptr, flag), EINVAL);
      REFUSES(cblk_aresult(id, &tag, &status, flag), EINVAL);
    }
  }
  REQUIRE(cblk_close(chunk, 0) == 0 && cblk_cg_close(group, 0) == 0);
}

void a_groups_tag_names_a_chunk(Lun lun) {
  const Group group(open_raid0(lun, 2));
  Buffer buffer(2);
  for (int lba = 0; lba < 2; ++lba) {
    cflsh_cg_tag_t tag;
    uint64_t status = 0;
    REQUIRE(cblk_cg_aread(group, buffer, lba, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(tag.id, &tag.tag, &status, CBLK_ARESULT_BLOCKING) == 1 && status == 1);
  }
}

void a_group_that_is_none(Lun) {
  size_t size;
  Buffer buffer(1);
  for (const chunk_cg_id_t id : {-1, 0, 1 << 30}) {
    REFUSES(cblk_cg_get_lun_size(id, &size, 0), ENODEV);  // this one alone
    REFUSES(cblk_get_lun_size(id, &size, CBLK_GROUP_ID), ENODEV);
    REFUSES(cblk_get_lun_size(id, &size, 0), EINVAL);
    REFUSES(cblk_cg_get_size(id, &size, 0), EINVAL);
    REFUSES(cblk_cg_get_num_chunks(id, 0), EINVAL);
    REFUSES(cblk_cg_read(id, buffer, 0, 1, 0), EINVAL);
    REFUSES(cblk_cg_close(id, 0), EINVAL);
  }
}

// ---- results ----

void a_free_tag_has_no_message(Lun lun) {
  const Chunk id(open_chunk(lun, 8));
  Buffer buffer(1);
  uint64_t status;
  int tag = 0;
  for (int free : {0, 3, 7})
    for (const int flag : {0, CBLK_ARESULT_BLOCKING})
      REFUSES(cblk_aresult(id, &free, &status, flag), ENOMSG);
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tag, &status, CBLK_ARESULT_BLOCKING) == 1);
  REFUSES(cblk_aresult(id, &tag, &status, CBLK_ARESULT_BLOCKING), ENOMSG);
  for (int wrong : {-1, 8, 1000000, -1000})
    for (const int flag : {0, CBLK_ARESULT_BLOCKING, CBLK_ARESULT_USER_TAG})
      REFUSES(cblk_aresult(id, &wrong, &status, flag), EINVAL);
  REFUSES(cblk_aresult(id, &tag, &status, CBLK_ARESULT_USER_TAG), EINVAL);  // no such one
}

void a_result_needs_a_place(Lun lun) {
  const chunk_id_t id = open_chunk(lun, 16, 1);
  const chunk_cg_id_t group = open_raid0(lun, 1);
  REQUIRE(id != NULL_CHUNK_ID && group != NULL_CHUNK_CG_ID);
  Buffer buffer(2);
  int tag;
  cflsh_cg_tag_t of_group;
  uint64_t status;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  REFUSES(cblk_aresult(id, &tag, nullptr, CBLK_ARESULT_BLOCKING), EINVAL);
  REFUSES(cblk_aresult(id, nullptr, &status, CBLK_ARESULT_BLOCKING), EINVAL);
  REQUIRE(cblk_aresult(id, &tag, &status, CBLK_ARESULT_BLOCKING) == 1);  // it was not lost
  REQUIRE(cblk_cg_aread(group, buffer, 0, 1, &of_group, nullptr, 0) == 0);
  REFUSES(cblk_cg_aresult(group, &of_group, nullptr, CBLK_ARESULT_BLOCKING), EINVAL);
  REFUSES(cblk_cg_aresult(group, &of_group, nullptr, CBLK_ARESULT_NEXT_TAG), EINVAL);
  REQUIRE(cblk_cg_aresult(group, &of_group, &status,
                          CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(cblk_close(id, 0) == 0 && cblk_cg_close(group, 0) == 0);
}

void a_group_with_nothing_under_way(Lun lun) {
  const Group group(open_raid0(lun, 2));
  cflsh_cg_tag_t tag = {0, 0};
  uint64_t status;
  // a chunk says ENOENT
  REQUIRE(cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG) == 0 && tag.tag == -1);
}

// ---- open and size ----

void reserved_paths(Lun lun) {
  const std::string path = device(kBlocks);
  for (const int reserve : {CBLK_OPN_RESERVE, CBLK_OPN_FORCED_RESERVE})
    REFUSES(cblk_open(path.c_str(), 8, O_RDWR, 0, CBLK_OPN_MPIO_FO | reserve | lun.flags()),
            EINVAL);
}

constexpr struct {
  const char* name;
  Line line;
} kLines[] = {
    {"raid0-by-name", a_raid0_by_name},
    {"raid0-requests", raid0_requests_are_a_devices},
    {"raid0-async-blocks", a_raid0s_commands_move_one_block},
    {"group-num-chunks", a_group_has_chunks},
    {"group-wrong-id", a_group_that_is_none},
    {"group-tag", a_groups_tag_names_a_chunk},
    {"group-idle", a_group_with_nothing_under_way},
    {"open-group", cblk_open_opens_groups},
    {"plain-on-group", plain_calls_act_on_groups},
    {"plain-async-on-group", plain_commands_refuse_groups},
    {"listio-refused", an_io_that_is_refused_has_failed},
    {"listio-null-buffer", a_list_without_a_buffer_is_refused},
    {"aresult-free-tag", a_free_tag_has_no_message},
    {"aresult-null-status", a_result_needs_a_place},
    {"reserve-mpio", reserved_paths},
};

}  // namespace

TEST_CASE("conforms_to_the_original") {
  for (const auto& [name, line] : kLines) {
    for (const bool is_virtual : {false, true}) {
      printf("  %s, %s\n", name, is_virtual ? "virtual" : "physical");
      line(Lun{is_virtual});
    }
  }
}

// A close gives EBUSY after 5 s, and the chunk stays open. Another thread may fetch during a close.
TEST_CASE("a_result_keeps_a_chunk_open") {
  const chunk_id_t id = open_chunk({false}, 16, 1);
  const chunk_cg_id_t group = open_raid0({false}, 1);
  REQUIRE(id != NULL_CHUNK_ID && group != NULL_CHUNK_CG_ID);
  Buffer buffer(3);
  int tag;
  cflsh_cg_tag_t of_group;
  uint64_t status;
  REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_cg_aread(group, buffer.block(1), 1, 1, &of_group, nullptr, 0) == 0);
  {
    const std::jthread other([&] { REFUSES(cblk_cg_close(group, 0), EBUSY); });
    REFUSES(cblk_close(id, 0), EBUSY);
  }
  {
    const std::jthread fetcher([&] {
      usleep(100000);
      (void)!cblk_aresult(id, &tag, &status, CBLK_ARESULT_BLOCKING);
    });
    REQUIRE(cblk_close(id, 0) == 0);
  }
  REQUIRE(cblk_cg_aresult(group, &of_group, &status, CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(cblk_cg_close(group, 0) == 0);
}

TEST_CASE("a_raid0_that_waits_too_long_is_ETIME", "[sim][timed]") {
  const Limit limit("300");
  const Group group(cblk_cg_open("(sim:1m,latency_us=1000000):(sim:1m,latency_us=1000000)", 4,
                                 O_RDWR, 1, 0, CBLK_GROUP_RAID0 | CBLK_OPN_FORCED_RESERVE));
  Buffer buffer(2);
  cflsh_cg_tag_t tag;
  uint64_t status;
  for (int i = 0; i < 2; ++i)
    REQUIRE(cblk_cg_aread(group, buffer.block(static_cast<size_t>(i)), i, 1, &tag, nullptr, 0) ==
            0);
  REFUSES(cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING),
          ETIME);
  usleep(1000000);
  for (int i = 0; i < 2; ++i)
    (void)!cblk_cg_aresult(group, &tag, &status, CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING);
}
