// SPDX-License-Identifier: Apache-2.0
// cblk_listio.
#include "cblk_test.h"

namespace {

struct List {
  explicit List(size_t n) : ios(n), pointers(n) {
    for (size_t i = 0; i < n; ++i) {
      memset(&ios[i], 0, sizeof ios[i]);
      pointers[i] = &ios[i];
    }
  }
  cblk_io_t& operator[](size_t i) { return ios[i]; }
  cblk_io_t** data() { return pointers.data(); }
  int size() const { return static_cast<int>(ios.size()); }
  void fill(uint8_t type, const Buffer& buffer, size_t lba, size_t blocks) {
    for (size_t i = 0; i < ios.size(); ++i) {
      ios[i].request_type = type;
      ios[i].buf = buffer.block(i * blocks);
      ios[i].lba = static_cast<cflash_offset_t>(lba + i * blocks);
      ios[i].nblocks = blocks;
    }
  }
  std::vector<cblk_io_t> ios;
  std::vector<cblk_io_t*> pointers;
};
int none = 0;  // room for completions

// Polls until no I/O is pending. Returns how many were reported as completions.
int finish(chunk_id_t id, cblk_io_t** pending, int n) {
  List out(static_cast<size_t>(n));
  const double end = seconds() + tier::scaled(10);
  for (int seen = 0;;) {
    int done = n, left = 0;
    REQUIRE(cblk_listio(id, nullptr, 0, pending, n, nullptr, 0, out.data(), &done, 0, 0) == 0);
    for (int i = 0; i < done; ++i)
      REQUIRE(out[static_cast<size_t>(i)].stat.status == CBLK_ARW_STATUS_SUCCESS);
    for (int i = 0; i < n; ++i) left += status_of(pending[i]->stat) == CBLK_ARW_STATUS_PENDING;
    seen += done;
    if (left == 0) return seen;
    REQUIRE(seconds() < end);
  }
}

}  // namespace

TEST_CASE("a_list_that_is_waited_for") {
  const Chunk id(open_physical());
  Buffer out(256), in(256);
  List list(32);
  stamp(out, 64, 256, 1);
  list.fill(CBLK_IO_TYPE_WRITE, out, 64, 8);
  REQUIRE(cblk_listio(id, list.data(), 32, nullptr, 0, list.data(), 32, nullptr, &none, 0, 0) == 0);
  for (const cblk_io_t& io : list.ios)
    REQUIRE(io.stat.status == CBLK_ARW_STATUS_SUCCESS && io.stat.blocks_transferred == 8);
  list.fill(CBLK_IO_TYPE_READ, in, 64, 8);
  int n = 0;
  REQUIRE(cblk_listio(id, list.data(), 32, nullptr, 0, list.data(), 32, nullptr, &n, 5000000, 0) ==
          0);
  REQUIRE(n == 0);
  REQUIRE(is_stamped(in, 64, 256, 1));
  chunk_attrs_t attrs;
  REQUIRE(cblk_get_attrs(id, &attrs, 0) == 0);
  if (attrs.flags1 & CFLSH_ATTR_UNMAP) {
    list.fill(CBLK_IO_TYPE_UNMAP, in, 64, 8);
    REQUIRE(cblk_listio(id, list.data(), 32, nullptr, 0, list.data(), 32, nullptr, &none, 0, 0) ==
            0);
    REQUIRE(cblk_read(id, in, 64, 256, 0) == 256);
    REQUIRE(is_zero(in, 256));
  }
}

// Completions are copied into the caller's structures in the order in which they are found. The
// caller's pointers stay.
TEST_CASE("completions_are_copies_of_the_ios") {
  const Chunk id(open_physical());
  Buffer buffer(16);
  List list(16), out(14);
  list.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  const std::vector<cblk_io_t*> kept = out.pointers;
  int n = 14;
  cblk_io_t* wait[2] = {&list[3], &list[9]};
  REQUIRE(cblk_listio(id, list.data(), 16, nullptr, 0, wait, 2, out.data(), &n, 0, 0) == 0);
  REQUIRE(list[3].stat.status == CBLK_ARW_STATUS_SUCCESS &&
          list[9].stat.status == CBLK_ARW_STATUS_SUCCESS);
  REQUIRE(n == 0);  // a later call reports what was issued and not waited for
  REQUIRE(finish(id, list.data(), 16) == 14);
  list.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  REQUIRE(cblk_listio(id, list.data(), 16, nullptr, 0, list.data(), 16, nullptr, &none, 0, 0) == 0);
  std::vector<bool> seen(14);
  n = 14;
  REQUIRE(cblk_listio(id, list.data(), 14, nullptr, 0, nullptr, 0, out.data(), &n, 0, 0) == 0 &&
          n == 0);
  for (int left = 14; left; left -= n) {
    n = 14;
    REQUIRE(cblk_listio(id, nullptr, 0, list.data(), 14, nullptr, 0, out.data(), &n, 0, 0) == 0);
    for (int i = 0; i < n; ++i) {
      const cblk_io_t& one = out[static_cast<size_t>(i)];
      const auto at = static_cast<size_t>(one.lba);
      REQUIRE(one.buf == buffer.block(at) && one.tag == list[at].tag &&
              one.stat.blocks_transferred == 1);
      REQUIRE(!seen[at]);
      seen[at] = true;
    }
  }
  REQUIRE(out.pointers == kept);
}

TEST_CASE("lists_with_wrong_arguments_are_refused") {
  const Chunk id(open_physical());
  Buffer buffer(8);
  List list(4), more(2);
  list.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  more.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  List completions(8);
  cblk_io_t** out = completions.data();
  cblk_io_t *holes[2] = {&list[0], nullptr}, **four = list.data(), **two = more.data();
  constexpr int kNoCount = -77;  // a null pointer to the number of completions
  const struct {
    cblk_io_t** issue;
    int issues;
    cblk_io_t** pending;
    int pendings;
    cblk_io_t** wait;
    int waits;
    cblk_io_t** completions;
    int room;
  } wrong[] = {
      {four, 4, nullptr, 0, nullptr, 0, out, 3},
      {four, 4, two, 2, four, 4, out, 1},
      {four, 4, nullptr, 0, nullptr, 0, nullptr, kNoCount},
      {nullptr, 4, nullptr, 0, four, 4, nullptr, kNoCount},
      {four, -1, nullptr, 0, four, 4, nullptr, kNoCount},
      {holes, 2, nullptr, 0, nullptr, 0, out, 8},
      {nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 1},
      {four, 0, nullptr, 0, nullptr, 0, out, 1},
      {four, 1, nullptr, 0, nullptr, 0, out, kNoCount},
      {four, 1, nullptr, 0, four, 1, nullptr, kNoCount},
      {four, 1, nullptr, 0, nullptr, 0, nullptr, 1},
      {four, 1, nullptr, 0, nullptr, 1, out, 0},
      {four, 1, nullptr, 0, nullptr, 1, out, -1},
  };
  int n = 0;
  for (const auto& one : wrong) {
    n = one.room;
    REFUSES(cblk_listio(id, one.issue, one.issues, one.pending, one.pendings, one.wait, one.waits,
                        one.completions, one.room == kNoCount ? nullptr : &n, 0, 0),
            EINVAL);
  }
  list[1].flags = CBLK_IO_USER_STATUS;
  n = 8;
  // waits for a status of its own
  REFUSES(cblk_listio(id, list.data(), 4, nullptr, 0, list.data(), 4, out, &n, 0, 0), EINVAL);
  int tag = 0;
  // no call has issued anything
  REFUSES(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_NEXT_TAG), ENOENT);
  out[3] = nullptr;
  n = 4;
  // no structure for a completion
  REFUSES(cblk_listio(id, list.data(), 1, nullptr, 0, nullptr, 0, out, &n, 0, 0), EINVAL);
}

TEST_CASE("a_list_with_user_tags_and_statuses") {
  const Chunk id(open_physical());
  Buffer buffer(12);
  List list(12);
  list.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  for (int i = 0; i < 12; ++i) {
    if (i % 3 == 0) list[i].flags = CBLK_IO_USER_STATUS;
    if (i % 3 == 1) list[i].flags = CBLK_IO_USER_TAG | CBLK_IO_PRIORITY_REQ;
    list[i].tag = 900 + i;
  }
  List out(12);
  int n = 12;
  REQUIRE(cblk_listio(id, list.data(), 12, nullptr, 0, nullptr, 0, out.data(), &n, 0, 0) == 0);
  REQUIRE(finish(id, list.data(), 12) == 8);  // those with a status tell by it alone
  for (int i = 0; i < 12; ++i) {
    REQUIRE(list[i].stat.status == CBLK_ARW_STATUS_SUCCESS && list[i].stat.blocks_transferred == 1);
    if (i % 3 == 1) REQUIRE(list[i].tag == 900 + i);
  }
}

TEST_CASE("a_list_times_out", "[sim][timed]") {
  const Chunk id(open_sim("latency_us=200000"));
  Buffer buffer(4);
  List list(4);
  list.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  const double start = seconds();
  REFUSES(cblk_listio(id, list.data(), 4, nullptr, 0, list.data(), 4, nullptr, &none, 50000, 0),
          ETIMEDOUT);
  REQUIRE(seconds() - start > 0.04 && seconds() - start < 0.19);
  // The commands go on. This wait has no limit.
  REQUIRE(cblk_listio(id, nullptr, 0, list.data(), 4, list.data(), 4, nullptr, &none, 0, 0) == 0);
  for (const cblk_io_t& io : list.ios) REQUIRE(io.stat.status == CBLK_ARW_STATUS_SUCCESS);
}

// A timeout reports every finished entry, also those behind the first unfinished one.
TEST_CASE("a_list_that_times_out_reports_the_finished_entries", "[sim][timed]") {
  const Chunk id(open_sim("latency_us=200000"));
  Buffer buffer(4);
  List first(1), list(3), later(1);
  first.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  list.fill(CBLK_IO_TYPE_READ, buffer, 1, 1);
  List out(1);
  int n = 1;
  REQUIRE(cblk_listio(id, first.data(), 1, nullptr, 0, nullptr, 0, out.data(), &n, 0, 0) == 0);
  usleep(150000);
  later.fill(CBLK_IO_TYPE_READ, buffer, 2, 1);
  cblk_io_t* wait[2] = {&later[0], &first[0]};
  REFUSES(cblk_listio(id, later.data(), 1, nullptr, 0, wait, 2, nullptr, &none, 100000, 0),
          ETIMEDOUT);
  REQUIRE(later[0].stat.status == CBLK_ARW_STATUS_PENDING);
  REQUIRE(first[0].stat.status == CBLK_ARW_STATUS_SUCCESS);
  REQUIRE(cblk_listio(id, nullptr, 0, later.data(), 1, later.data(), 1, nullptr, &none, 0, 0) == 0);
}

TEST_CASE("a_list_waits_for_room_no_longer_than_it_may", "[sim][timed]") {
  const Chunk id(open_sim("latency_us=300000", 2));
  Buffer buffer(6);
  List list(6);
  list.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  const double start = seconds();
  REFUSES(cblk_listio(id, list.data(), 6, nullptr, 0, list.data(), 6, nullptr, &none, 50000,
                      CBLK_LISTIO_WAIT_ISSUE_CMD),
          ETIMEDOUT);
  REQUIRE(seconds() - start < 0.29);
  for (int i = 0; i < 6; ++i) {
    if (i < 2)
      REQUIRE(list[i].stat.status == CBLK_ARW_STATUS_PENDING);
    else
      REQUIRE(list[i].stat.status == CBLK_ARW_STATUS_FAIL && list[i].stat.fail_errno == EBUSY);
  }
  REQUIRE(cblk_listio(id, nullptr, 0, list.data(), 2, list.data(), 2, nullptr, &none, 0, 0) == 0);
}

// A refused entry has no command, so its tag may name another entry's.
TEST_CASE("a_refused_entry_of_a_list_takes_no_result") {
  const Chunk id(open_physical(kBlocks, 2));
  Buffer buffer(6);
  List list(6);
  list.fill(CBLK_IO_TYPE_WRITE, buffer, 0, 1);
  list[0].lba = 1 << 30;
  list[0].tag = 0;
  REQUIRE(cblk_listio(id, list.data(), 6, nullptr, 0, list.data(), 6, nullptr, &none, 0,
                      CBLK_LISTIO_WAIT_ISSUE_CMD) == 0);
  REQUIRE(list[0].stat.status == CBLK_ARW_STATUS_FAIL && list[0].stat.fail_errno == EINVAL);
  for (int i = 1; i < 6; ++i) REQUIRE(list[i].stat.status == CBLK_ARW_STATUS_SUCCESS);
}

TEST_CASE("a_list_longer_than_the_commands") {
  const Chunk id(open_physical(kBlocks, 10));
  Buffer buffer(100);
  List list(100);
  list.fill(CBLK_IO_TYPE_READ, buffer, 0, 1);
  REQUIRE(cblk_listio(id, list.data(), 100, nullptr, 0, list.data(), 100, nullptr, &none, 0,
                      CBLK_LISTIO_WAIT_ISSUE_CMD) == 0);
  for (const cblk_io_t& io : list.ios) REQUIRE(io.stat.status == CBLK_ARW_STATUS_SUCCESS);
  for (cblk_io_t& io : list.ios) io.flags = CBLK_IO_USER_STATUS;
  List out(100);
  int n = 100;
  REQUIRE(cblk_listio(id, list.data(), 100, nullptr, 0, nullptr, 0, out.data(), &n, 0,
                      CBLK_LISTIO_WAIT_ISSUE_CMD) == 0);
  finish(id, list.data(), 100);
  for (cblk_io_t& io : list.ios) REQUIRE(io.stat.status == CBLK_ARW_STATUS_SUCCESS);
  // Without the flag, I/Os that find no free command fail.
  const Chunk slow(open_sim("latency_us=20000", 10));
  for (cblk_io_t& io : list.ios) io.flags = 0;
  REQUIRE(cblk_listio(slow, list.data(), 100, nullptr, 0, list.data(), 100, nullptr, &none, 0, 0) ==
          0);
  for (int i = 0; i < 100; ++i) {
    if (i < 10)
      REQUIRE(list[i].stat.status == CBLK_ARW_STATUS_SUCCESS);
    else
      REQUIRE(list[i].stat.status == CBLK_ARW_STATUS_FAIL &&
              list[i].stat.fail_errno == EWOULDBLOCK);
  }
}

// An I/O is identified by buf, lba and nblocks; its tag only says where to look first.
TEST_CASE("a_stale_tag_takes_no_other_ios_result") {
  const Chunk id(open_physical());
  Buffer buffer(8);
  int tag = -1;
  REQUIRE(cblk_aread(id, buffer.block(0), 3, 1, &tag, nullptr, 0) == 0);
  List never(1), out(1);
  never.fill(CBLK_IO_TYPE_READ, buffer, 50, 1);
  for (const bool waits : {true, false}) {
    never[0].tag = tag;
    never[0].stat = {};
    int n = 1;
    REQUIRE(cblk_listio(id, nullptr, 0, waits ? nullptr : never.data(), waits ? 0 : 1,
                        waits ? never.data() : nullptr, waits ? 1 : 0, out.data(), &n, 0, 0) == 0);
    REQUIRE(never[0].stat.status == CBLK_ARW_STATUS_FAIL && never[0].stat.fail_errno == ENOMSG);
  }
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);  // it is still there
}

// The copies' tags mean nothing yet.
TEST_CASE("copies_made_before_the_issue_stand_for_their_ios") {
  const chunk_id_t id = open_physical(kBlocks, 128);
  Buffer buffer(80), block(1);
  for (size_t i = 0; i < 80; ++i) {
    stamp(block, 100 + i, 1, 5);
    REQUIRE(cblk_write(id, block, static_cast<cflash_offset_t>(100 + i), 1, 0) == 1);
  }
  enum Use { kPending, kWaited, kWaitedAtOnce };
  for (const Use use : {kPending, kWaited, kWaitedAtOnce}) {
    List issued(80), copies(80), out(80);
    issued.fill(CBLK_IO_TYPE_READ, buffer, 100, 1);
    copies.fill(CBLK_IO_TYPE_READ, buffer, 100, 1);
    std::swap(copies.pointers[1], copies.pointers[6]);  // their order does not count
    int n = 80;
    REQUIRE(cblk_listio(id, issued.data(), 80, nullptr, 0, copies.data(),
                        use == kWaitedAtOnce ? 80 : 0, out.data(), &n, 0,
                        CBLK_LISTIO_WAIT_ISSUE_CMD) == 0);
    if (use == kPending)
      finish(id, copies.data(), 80);
    else if (use == kWaited)
      REQUIRE(cblk_listio(id, nullptr, 0, nullptr, 0, copies.data(), 80, nullptr, &none, 0, 0) ==
              0);
    for (size_t i = 0; i < 80; ++i)
      REQUIRE(copies[i].stat.status == CBLK_ARW_STATUS_SUCCESS && copies[i].tag == issued[i].tag);
    REQUIRE(is_stamped(buffer, 100, 80, 5));
  }
  // Pending I/Os are waited for by copies without a tag.
  List issued(10), copies(10), out(10);
  issued.fill(CBLK_IO_TYPE_READ, buffer, 100, 1);
  copies.fill(CBLK_IO_TYPE_READ, buffer, 100, 1);
  int n = 10;
  REQUIRE(cblk_listio(id, issued.data(), 10, nullptr, 0, nullptr, 0, out.data(), &n, 0, 0) == 0);
  n = 0;
  REQUIRE(cblk_listio(id, nullptr, 0, issued.data(), 10, copies.data(), 10, nullptr, &n, 0, 0) ==
          0);
  for (size_t i = 0; i < 10; ++i) {
    REQUIRE(copies[i].stat.status == CBLK_ARW_STATUS_SUCCESS);
    REQUIRE(issued[i].stat.status == CBLK_ARW_STATUS_SUCCESS);
  }
  REQUIRE(cblk_close(id, 0) == 0);  // nothing is left to fetch
}

// Without the tags, each look at an entry would search all commands.
TEST_CASE("copies_learn_their_tags_while_they_are_pending", "[sim]") {
  const Chunk id(open_sim("latency_us=300000", 16));
  Buffer buffer(8);
  List issued(8), copies(8), out(8);
  issued.fill(CBLK_IO_TYPE_READ, buffer, 100, 1);
  copies.fill(CBLK_IO_TYPE_READ, buffer, 100, 1);
  for (cblk_io_t& io : copies.ios) io.tag = -1;
  int n = 8;
  REQUIRE(cblk_listio(id, issued.data(), 8, nullptr, 0, nullptr, 0, out.data(), &n, 0, 0) == 0 &&
          n == 0);
  n = 8;
  REQUIRE(cblk_listio(id, nullptr, 0, copies.data(), 8, nullptr, 0, out.data(), &n, 0, 0) == 0);
  for (size_t i = 0; i < 8; ++i) REQUIRE(copies[i].tag == issued[i].tag);
  finish(id, copies.data(), 8);
}

TEST_CASE("a_write_takes_no_reads_result") {
  const Chunk id(open_physical());
  Buffer buffer(1);
  int tag = -1;
  REQUIRE(cblk_aread(id, buffer, 3, 1, &tag, nullptr, 0) == 0);
  List never(1), out(1);
  never.fill(CBLK_IO_TYPE_WRITE, buffer, 3, 1);
  never[0].tag = tag;
  int n = 1;
  REQUIRE(cblk_listio(id, nullptr, 0, never.data(), 1, nullptr, 0, out.data(), &n, 0, 0) == 0);
  REQUIRE(never[0].stat.status == CBLK_ARW_STATUS_FAIL && never[0].stat.fail_errno == ENOMSG);
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
}
