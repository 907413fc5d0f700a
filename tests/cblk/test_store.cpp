// SPDX-License-Identifier: Apache-2.0
// The block library as IBM's key/value layer uses it: a RAID 0 of one path and virtual, grown in
// many steps, then I/O of one block by a hundred threads. Some issue a run and then wait for each
// result, others poll; all check what they read.

#include "cblk_test.h"

namespace {

// kOwn: blocks of a thread
constexpr int kFlag = CBLK_GROUP_RAID0, kThreads = 100, kOwn = 16, kSteps = 197;
constexpr size_t kStep = 9;
static_assert(kSteps * kStep >= static_cast<size_t>(kThreads) * kOwn);

chunk_cg_id_t open_store(int requests) {
  const chunk_cg_id_t id = cblk_cg_open(device(kBlocks).c_str(), requests, O_RDWR, 1, 0,
                                        kFlag | CBLK_OPN_VIRT_LUN | CBLK_OPN_NO_INTRP_THREADS);
  REQUIRE(id != NULL_CHUNK_CG_ID);
  chunk_attrs_t attrs;
  REQUIRE(cblk_get_attrs(id, &attrs, kFlag) == 0 && attrs.block_size == 4096 &&
          attrs.max_transfer_size == 1);
  return id;
}

struct Thread {
  chunk_cg_id_t id;
  int first;  // of its blocks
  long polls = 0, busy = 0;
  Buffer buffer{kOwn};
  cflsh_cg_tag_t tags[kOwn];

  int start(bool write, int i, int flags) {
    const auto at = static_cast<size_t>(i);
    const cflash_offset_t lba = first + i;
    return write ? cblk_cg_awrite(id, buffer.block(at), lba, 1, &tags[i], nullptr, kFlag | flags)
                 : cblk_cg_aread(id, buffer.block(at), lba, 1, &tags[i], nullptr, kFlag | flags);
  }
  // A run as far as there are commands, then its results; then the rest.
  void wait_round(bool write) {
    for (int done = 0, i = 0; done < kOwn;) {
      for (; i < kOwn && start(write, i, CBLK_ARW_WAIT_CMD_FLAGS) == 0; ++i) {}
      if (i < kOwn) {
        REQUIRE(errno == EBUSY);
        ++busy;
      }
      for (; done < i; ++done)
        REQUIRE(cblk_cg_aresult(id, &tags[done], ignored(), kFlag | CBLK_ARESULT_BLOCKING) == 1);
    }
  }
  void poll_round(bool write) {
    bool under_way[kOwn] = {}, over[kOwn] = {};
    for (int done = 0; done < kOwn;) {
      for (int i = 0; i < kOwn; ++i) {
        if (over[i]) continue;
        if (!under_way[i]) {
          under_way[i] = start(write, i, 0) == 0;
          REQUIRE(under_way[i] || errno == EAGAIN);
          continue;
        }
        ++polls;
        const int rc = cblk_cg_aresult(id, &tags[i], ignored(), kFlag);
        REQUIRE(rc >= 0);
        over[i] = rc > 0;
        done += over[i];
      }
    }
  }
  void run(bool polled, uint64_t rounds) {
    for (uint64_t round = 1; round <= rounds; ++round) {
      stamp(buffer, static_cast<uint64_t>(first), kOwn, round);
      polled ? poll_round(true) : wait_round(true);
      memset(buffer, 0, kOwn * kBlock);
      polled ? poll_round(false) : wait_round(false);
      REQUIRE(is_stamped(buffer, static_cast<uint64_t>(first), kOwn, round));
    }
  }
};

// Results and polls an I/O.
struct Outcome {
  double seconds, polls;
};
Outcome run_threads(chunk_cg_id_t id, int threads, int polled, uint64_t rounds) {
  std::vector<Thread> of(static_cast<size_t>(threads));
  const double start = seconds();
  in_parallel(threads, [&](int i) {
    Thread& one = of[static_cast<size_t>(i)];
    one.id = id;
    one.first = i * kOwn;
    one.run(i < polled, rounds);
  });
  long polls = 0, busy = 0;
  for (const Thread& one : of) polls += one.polls, busy += one.busy;
  const Outcome out = {seconds() - start,
                       static_cast<double>(polls) /
                           (static_cast<double>(rounds) * 2 * kOwn * (polled ? polled : 1))};
  printf("%d threads, %d of them poll: %.2f s, %.1f polls an I/O, %ld times no command\n", threads,
         polled, out.seconds, out.polls, busy);
  return out;
}

}  // namespace

TEST_CASE("a_store_of_a_hundred_threads") {
  const chunk_cg_id_t id = open_store(8192);
  const double start = seconds();
  for (size_t i = 1; i <= kSteps; ++i) REQUIRE(cblk_cg_set_size(id, i * kStep, kFlag) == 0);
  printf("%d sizes: %.2f s\n", kSteps, seconds() - start);
  const Outcome out = run_threads(id, kThreads, kThreads / 2, 3);
  REQUIRE(out.seconds < tier::scaled(20));
  // A thread that polls in vain yields its CPU, or a hundred of them would keep the few with work
  // from running. (2 CPUs: 3 to 80 polls an I/O; 1400 to 2600 without.)
  if (sysconf(_SC_NPROCESSORS_ONLN) <= 4) REQUIRE(out.polls < tier::scaled(600));
  REQUIRE(cblk_cg_close(id, kFlag) == 0);
}

// Each thread holds results and waits for a free command, which no thread frees. Some get EBUSY
// soon and fetch, and all go on.
TEST_CASE("a_store_with_fewer_commands_than_it_holds", "[.]") {
  const chunk_cg_id_t id = open_store(160);
  REQUIRE(cblk_cg_set_size(id, static_cast<size_t>(kThreads) * kOwn, kFlag) == 0);
  REQUIRE(run_threads(id, kThreads, 0, 1).seconds < tier::scaled(25));
  REQUIRE(cblk_cg_close(id, kFlag) == 0);
}
