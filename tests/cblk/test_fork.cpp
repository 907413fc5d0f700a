// SPDX-License-Identifier: Apache-2.0
// Chunks in forked children.
#include <dirent.h>
#include <sys/wait.h>

#include <atomic>

#include "cblk_test.h"

namespace {

chunk_id_t id;
Buffer* buffer;

int descriptors() {
  int n = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory)) ++n;
  closedir(directory);
  return n;
}

void round_trip(uint64_t lba, uint64_t version) {
  int tag;
  stamp(*buffer, lba, 4, version);
  REQUIRE(cblk_awrite(id, *buffer, static_cast<cflash_offset_t>(lba), 4, &tag, nullptr, 0) == 0);
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 4);
  memset(*buffer, 0, 4 * kBlock);
  REQUIRE(cblk_read(id, *buffer, static_cast<cflash_offset_t>(lba), 4, 0) == 4);
  REQUIRE(is_stamped(*buffer, lba, 4, version));
  memset(*buffer, 0, 4 * kBlock);
  cblk_arw_status_t status;
  REQUIRE(cblk_aread(id, *buffer, static_cast<cflash_offset_t>(lba), 4, &tag, &status,
                     CBLK_ARW_USER_STATUS_FLAG) == 0);
  await_status(status);
  REQUIRE(status.status == CBLK_ARW_STATUS_SUCCESS && is_stamped(*buffer, lba, 4, version));
}

// Pipes between a parent and its child: 0 leads to the child, 1 to the parent.
struct Turns {
  int ends[2][2];
  void make() { REQUIRE(pipe(ends[0]) == 0 && pipe(ends[1]) == 0); }
  void give(int to) { REQUIRE(write(ends[to][1], "g", 1) == 1); }
  void wait(int to) {
    char go;
    REQUIRE(read(ends[to][0], &go, 1) == 1);
  }
  void end() {
    for (auto& both : ends)
      for (const int fd : both) close(fd);
  }
};

}  // namespace

TEST_CASE("a_physical_chunk_works_on_in_a_child") {
  id = open_physical();
  buffer = new Buffer(4);
  round_trip(100, 1);
  in_child([&] {
    if (survives()) {
      REQUIRE(cblk_read(id, *buffer, 100, 4, 0) == 4);
      REQUIRE(is_stamped(*buffer, 100, 4, 1));
    }
    round_trip(200, 2);
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);  // nothing to do
    in_child([&] { round_trip(300, 3); });
    REQUIRE(cblk_close(id, 0) == 0);
    REFUSES(cblk_close(id, 0), EINVAL);
  });
  round_trip(400, 4);
  if (survives()) {
    REQUIRE(cblk_read(id, *buffer, 300, 4, 0) == 4);
    REQUIRE(is_stamped(*buffer, 300, 4, 3));
  }
  REQUIRE(cblk_close(id, 0) == 0);
  delete buffer;
}

// The parent gets the results of commands that were under way; the child does not.
TEST_CASE("commands_under_way_stay_with_the_parent") {
  id = open_sim("latency_us=100000");
  buffer = new Buffer(8);
  int tags[8];
  for (int i = 0; i < 8; ++i)
    REQUIRE(cblk_aread(id, buffer->block(static_cast<size_t>(i)), i, 1, &tags[i], nullptr, 0) == 0);
  in_child([&] {
    int tag = 0;
    REFUSES(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_NEXT_TAG), ENOENT);
    REQUIRE(cblk_aread(id, *buffer, 0, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
    REQUIRE(cblk_close(id, 0) == 0);
  });
  for (int& tag : tags) REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(cblk_close(id, 0) == 0);
  delete buffer;
}

// A ring that a child inherits must be closed there, or the parent's lives as long as the child.
TEST_CASE("a_child_keeps_no_ring_of_its_parent", "[file][ring]") {
  id = open_physical();
  Buffer block(1);
  int tag;
  const int before = descriptors();
  REQUIRE(cblk_aread(id, block, 0, 1, &tag, nullptr, 0) == 0 &&
          cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  REQUIRE(cblk_read(id, block, 0, 1, 0) == 1);
  REQUIRE(descriptors() == before + 2);  // one for commands, one for blocking I/O
  in_child([&] { REQUIRE(descriptors() == before); });
  REQUIRE(cblk_close(id, 0) == 0);
}

TEST_CASE("fork_among_busy_threads") {
  id = open_physical();
  static std::atomic<bool> stop;
  stop = false;
  auto threads = start_threads(4, [](int t) {
    Buffer mine(1);
    while (!stop) {
      int tag;
      stamp(mine, static_cast<uint64_t>(t), 1, 1);
      REQUIRE(cblk_awrite(id, mine, t, 1, &tag, nullptr, 0) == 0);
      REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
      REQUIRE(cblk_read(id, mine, t, 1, 0) == 1);
    }
  });
  for (int i = 0; i < 20; ++i) {
    buffer = new Buffer(4);
    in_child([&] { round_trip(1000, 5); });
    delete buffer;
  }
  stop = true;
  threads.clear();
  REQUIRE(cblk_close(id, 0) == 0);
}

TEST_CASE("a_virtual_chunk_must_be_cloned") {
  const std::string path = device(kBlocks);
  id = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 600, 0) == 0);
  buffer = new Buffer(1);
  stamp(*buffer, 11, 1, 1);
  REQUIRE(cblk_write(id, *buffer, 11, 1, 0) == 1);
  in_child([&] {
    int tag = 0;
    REFUSES(cblk_read(id, *buffer, 11, 1, 0), EINVAL);
    REFUSES(cblk_aread(id, *buffer, 11, 1, &tag, nullptr, 0), EINVAL);
    REFUSES(cblk_aresult(id, &tag, ignored(), 0), EINVAL);
    REFUSES(cblk_set_size(id, 700, 0), EINVAL);
    REFUSES(cblk_clone_after_fork(id, O_ACCMODE, 0), EINVAL);
    REQUIRE(cblk_clone_after_fork(id, O_RDONLY, 0) == 0);
    memset(*buffer, 0, kBlock);
    REQUIRE(cblk_read(id, *buffer, 11, 1, 0) == 1);
    REQUIRE(is_stamped(*buffer, 11, 1, 1));
    REFUSES(cblk_write(id, *buffer, 11, 1, 0), EINVAL);     // asked for less than the parent has
    REFUSES(cblk_clone_after_fork(id, O_RDWR, 0), EINVAL);  // and cannot have it back
    REQUIRE(cblk_aread(id, *buffer, 11, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
    REQUIRE(cblk_close(id, 0) == 0);
  });
  in_child([&] {
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
    stamp(*buffer, 12, 1, 2);
    REQUIRE(cblk_write(id, *buffer, 12, 1, 0) == 1);
  });
  // the children's ends changed nothing
  REQUIRE(cblk_read(id, *buffer, 11, 1, 0) == 1 && is_stamped(*buffer, 11, 1, 1));
  if (survives()) REQUIRE(cblk_read(id, *buffer, 12, 1, 0) == 1 && is_stamped(*buffer, 12, 1, 2));
  REQUIRE(cblk_close(id, 0) == 0);
  delete buffer;
}

TEST_CASE("a_clone_has_the_size_that_another_gave_it", "[kept]") {
  id = cblk_open(device(kBlocks).c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 40, 0) == 0);
  static int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork_child([&] {
    char go;
    size_t size = 0;
    Buffer block(1);
    REQUIRE(read(ends[0], &go, 1) == 1);
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
    REQUIRE(cblk_get_size(id, &size, 0) == 0 && size == 90);
    REQUIRE(cblk_read(id, block, 89, 1, 0) == 1);
  });
  REQUIRE(cblk_set_size(id, 90, 0) == 0 && write(ends[1], "g", 1) == 1);
  expect_exit(child);
  close(ends[0]);
  close(ends[1]);
  REQUIRE(cblk_close(id, 0) == 0);
}

// Blocks that one process gives up go to other LUNs, so it must not shrink while another uses it.
TEST_CASE("a_virtual_chunk_does_not_shrink_while_another_process_uses_it", "[kept]") {
  const std::string path = device(kBlocks);
  id = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 90, 0) == 0);
  Buffer block(1);
  stamp(block, 89, 1, 1);
  REQUIRE(cblk_write(id, block, 89, 1, 0) == 1);
  in_child([&] {
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
    Buffer block(1);
    REFUSES(cblk_set_size(id, 30, CBLK_SCRUB_DATA_FLG), EBUSY);
    REQUIRE(cblk_read(id, block, 89, 1, 0) == 1 && is_stamped(block, 89, 1, 1));
    REQUIRE(cblk_set_size(id, 95, 0) == 0);
    REQUIRE(cblk_write(id, block, 94, 1, 0) == 1);
  });
  static Turns turns;
  turns.make();
  const pid_t child = fork_child([&] {
    turns.wait(0);
    size_t size = 0;
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
    REQUIRE(cblk_get_size(id, &size, 0) == 0 && size == 80);
    turns.give(1);
    turns.wait(0);  // the parent has closed its own
    REQUIRE(cblk_set_size(id, 30, 0) == 0);
  });
  REQUIRE(cblk_set_size(id, 80, 0) == 0);  // the child does not use it yet
  turns.give(0);
  turns.wait(1);
  REFUSES(cblk_set_size(id, 30, 0), EBUSY);
  REQUIRE(cblk_write(id, block, 79, 1, 0) == 1);
  REQUIRE(cblk_close(id, 0) == 0);
  turns.give(0);
  expect_exit(child);
  turns.end();
}

// A clone after a shrink, and of a RAID 0 whose size is no multiple of its members.
TEST_CASE("a_clone_of_a_shrunk_chunk_and_of_a_raid0", "[kept]") {
  id = cblk_open(device(kBlocks).c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 90, 0) == 0);
  const std::string path = device(kBlocks, 1) + ":" + device(kBlocks, 2);
  static chunk_cg_id_t group;
  group = cblk_cg_open(path.c_str(), 0, O_RDWR, 2, 0, CBLK_GROUP_RAID0 | CBLK_OPN_VIRT_LUN);
  REQUIRE(group != NULL_CHUNK_CG_ID && cblk_cg_set_size(group, 101, 0) == 0);
  static Turns turns;
  turns.make();
  const pid_t child = fork_child([&] {
    turns.wait(0);
    size_t size = 0;
    Buffer block(1);
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
    REQUIRE(cblk_get_size(id, &size, 0) == 0 && size == 30);
    REFUSES(cblk_read(id, block, 30, 1, 0), EINVAL);
    REQUIRE(cblk_cg_clone_after_fork(group, O_RDWR, 0) == 0);
    REQUIRE(cblk_cg_get_size(group, &size, 0) == 0 && size == 102);
  });
  REQUIRE(cblk_set_size(id, 30, 0) == 0);
  turns.give(0);
  expect_exit(child);
  turns.end();
  REQUIRE(cblk_cg_close(group, 0) == 0);
  REQUIRE(cblk_close(id, 0) == 0);
}

// No side of a fork scrubs blocks that the other side may still use.
TEST_CASE("a_shared_virtual_chunk_is_not_scrubbed", "[kept]") {
  id = cblk_open(device(kBlocks).c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN | CBLK_OPN_SCRUB_DATA);
  REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 40, 0) == 0);
  buffer = new Buffer(1);
  stamp(*buffer, 11, 1, 1);
  REQUIRE(cblk_write(id, *buffer, 11, 1, 0) == 1);
  in_child([&] {
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
    REQUIRE(cblk_close(id, CBLK_SCRUB_DATA_FLG) == 0);
  });
  REQUIRE(cblk_read(id, *buffer, 11, 1, 0) == 1 && is_stamped(*buffer, 11, 1, 1));
  static int ends[2], answers[2];
  REQUIRE(pipe(ends) == 0 && pipe(answers) == 0);
  const pid_t child = fork_child([&] {
    char go;
    REQUIRE(cblk_clone_after_fork(id, O_RDWR, 0) == 0);
    REQUIRE(read(ends[0], &go, 1) == 1);
    const bool kept = cblk_read(id, *buffer, 11, 1, 0) == 1 && is_stamped(*buffer, 11, 1, 1);
    REQUIRE(write(answers[1], kept ? "y" : "n", 1) == 1);
  });
  REQUIRE(cblk_close(id, 0) == 0);
  char answer = 0;
  REQUIRE(write(ends[1], "g", 1) == 1 && read(answers[0], &answer, 1) == 1);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  REQUIRE(answer == 'y');
  for (int fd : {ends[0], ends[1], answers[0], answers[1]}) close(fd);
  delete buffer;
}

TEST_CASE("clone_is_EBUSY_with_active_commands", "[sim][timed]") {
  id = cblk_open("sim:16m,latency_us=15000", 0, O_RDONLY, 0, CBLK_OPN_VIRT_LUN);
  REQUIRE(id != NULL_CHUNK_ID && cblk_set_size(id, 100, 0) == 0);
  buffer = new Buffer(1);
  int tag;
  REQUIRE(cblk_aread(id, *buffer, 0, 1, &tag, nullptr, 0) == 0);
  REFUSES(cblk_clone_after_fork(id, O_RDONLY, 0), EBUSY);
  in_child([&] {
    REFUSES(cblk_clone_after_fork(id, O_RDONLY, 0), EBUSY);
    // in the grandchild as well
    in_child([&] { REFUSES(cblk_clone_after_fork(id, O_RDONLY, 0), EBUSY); });
  });
  REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  REFUSES(cblk_clone_after_fork(id, O_RDWR, 0), EINVAL);  // more than it was opened with
  REQUIRE(cblk_close(id, 0) == 0);
  delete buffer;
}

// If the parent ends first, the LUN is the child's.
TEST_CASE("a_clone_outlives_its_parent", "[kept]") {
  static std::string path;
  static int ends[2];
  path = device(kBlocks);
  REQUIRE(pipe(ends) == 0);
  in_child([&] {
    const chunk_id_t mine = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
    REQUIRE(mine != NULL_CHUNK_ID && cblk_set_size(mine, 300, 0) == 0);
    Buffer block(1);
    stamp(block, 5, 1, 1);
    REQUIRE(cblk_write(mine, block, 5, 1, 0) == 1);
    if (fork() == 0) {
      REQUIRE(cblk_clone_after_fork(mine, O_RDWR, 0) == 0);
      char wait;
      REQUIRE(read(ends[0], &wait, 1) == 1);
      memset(block, 0, kBlock);
      char answer = cblk_read(mine, block, 5, 1, 0) == 1 && is_stamped(block, 5, 1, 1) ? 'y' : 'n';
      REQUIRE(write(ends[1], &answer, 1) == 1);
      _exit(0);
    }
    REQUIRE(cblk_close(mine, 0) == 0);
  });
  // Another owner takes all free space and overwrites it.
  const chunk_id_t other = cblk_open(path.c_str(), 0, O_RDWR, 0, CBLK_OPN_VIRT_LUN);
  REQUIRE(cblk_set_size(other, static_cast<size_t>(-1), 0) == 0);
  size_t size;
  REQUIRE(cblk_get_size(other, &size, 0) == 0);
  Buffer block(1);
  for (size_t i = 0; i < size; ++i)
    REQUIRE(cblk_write(other, block, static_cast<cflash_offset_t>(i), 1, 0) == 1);
  REQUIRE(write(ends[1], "g", 1) == 1);
  usleep(200000);
  char answer = 0;
  REQUIRE(read(ends[0], &answer, 1) == 1);
  REQUIRE(answer == 'y');
  REQUIRE(cblk_close(other, 0) == 0);
  close(ends[0]);
  close(ends[1]);
}
