// SPDX-License-Identifier: Apache-2.0
// A host that refuses io_uring: asynchronous commands do not wait for their I/O, several are
// carried out at once, and an I/O that hangs ends in time. (--no-ring runs the other cases on such
// a host.)
//
// Direct reads into memory that userfaultfd holds back imitate a disk that hangs: the kernel cannot
// pin the memory, so the read does not proceed.
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <set>

#include "cblk_test.h"

namespace {

constexpr size_t kCommands = 32;

// Memory that stays inaccessible before release().
struct BlockedWrites {
  char* memory;
  int fault_fd;
  explicit BlockedWrites(size_t blocks) : bytes(blocks * kBlock) {
    memory = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory != MAP_FAILED);
    fault_fd = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    if (fault_fd < 0) return;
    uffdio_api api = {UFFD_API, 0, 0};
    REQUIRE(ioctl(fault_fd, UFFDIO_API, &api) == 0);
    uffdio_register all = {
        {reinterpret_cast<uintptr_t>(memory), bytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
    REQUIRE(ioctl(fault_fd, UFFDIO_REGISTER, &all) == 0);
  }
  ~BlockedWrites() {
    if (fault_fd >= 0) close(fault_fd);
    munmap(memory, bytes);
  }
  BlockedWrites(const BlockedWrites&) = delete;
  BlockedWrites& operator=(const BlockedWrites&) = delete;
  // How many pages are waited for, once there are `wanted`, or after two seconds.
  size_t waited_for(size_t wanted) {
    for (const double end = seconds() + 2; places.size() < wanted && seconds() < end;) {
      pollfd ready = {fault_fd, POLLIN, 0};
      (void)poll(&ready, 1, 100);
      uffd_msg message;
      while (read(fault_fd, &message, sizeof message) == sizeof message)
        places.insert(message.arg.pagefault.address / kBlock);
    }
    return places.size();
  }
  void release() {
    uffdio_range all = {reinterpret_cast<uintptr_t>(memory), bytes};
    REQUIRE(ioctl(fault_fd, UFFDIO_UNREGISTER, &all) == 0);  // wakes the waiter
  }
  size_t bytes;
  std::set<uint64_t> places;
};

void commands_that_hang() {
  refuse_rings();
  BlockedWrites held(kCommands);
  REQUIRE(held.fault_fd >= 0);
  // or I/O moves through the library's own memory
  const Environment no_limit("CFLSH_BLK_TIMEOUT", "0");
  const Chunk id(open_physical(kBlocks, kCommands));
  Buffer buffer(kCommands);
  stamp(buffer, 0, kCommands, 1);
  REQUIRE(cblk_write(id, buffer, 0, kCommands, 0) == static_cast<int>(kCommands));
  int tags[kCommands];
  for (size_t i = 0; i < kCommands; ++i)
    REQUIRE(cblk_aread(id, held.memory + i * kBlock, static_cast<off_t>(i), 1, &tags[i], nullptr,
                       0) == 0);     // each comes back
  REQUIRE(held.waited_for(4) >= 4);  // several at once are at work
  uint64_t blocks = 0;
  REQUIRE(cblk_aresult(id, &tags[0], &blocks, 0) == 0);
  REQUIRE(cblk_write(id, buffer, 100, 1, 0) == 1);  // and others go on
  held.release();
  for (int& tag : tags) REQUIRE(cblk_aresult(id, &tag, &blocks, CBLK_ARESULT_BLOCKING) == 1);
  for (size_t i = 0; i < kCommands; ++i) REQUIRE(is_stamped(held.memory + i * kBlock, i, 1));
}

void many_of_all() {
  refuse_rings();
  const std::string first = device(kBlocks), second = device(kBlocks, 1);
  const Group group(
      cblk_cg_open((first + ":" + second).c_str(), 64, O_RDWR, 2, 0, CBLK_GROUP_RAID0));
  Buffer out(64), in(64);
  stamp(out, 0, 64, 3);
  REQUIRE(cblk_cg_write(group, out, 0, 64, 0) == 64);
  for (int round = 0; round < 20; ++round) {
    memset(in, 0, 64 * kBlock);
    cflsh_cg_tag_t tag = {0, 0};
    for (int i = 0; i < 64; ++i)
      REQUIRE(cblk_cg_aread(group, in.block(static_cast<size_t>(i)), i, 1, &tag, nullptr, 0) == 0);
    in_parallel(4, [&] {
      cflsh_cg_tag_t any = {0, 0};
      while (cblk_cg_aresult(group, &any, ignored(),
                             CBLK_ARESULT_NEXT_TAG | CBLK_ARESULT_BLOCKING) == 1) {}
      REQUIRE(errno == ENOENT);
    });
    REQUIRE(is_stamped(in, 0, 64, 3));
  }
}

}  // namespace

TEST_CASE("without_io_uring_a_command_does_not_wait_for_its_io", "[disk][not-nvme]") {
  if (BlockedWrites(1).fault_fd < 0) {
    printf("skip: userfaultfd: refused on this host, so no I/O can be made to hang\n");
    return;
  }
  (void)device(kBlocks);  // here, so that it is cleaned up
  in_child(commands_that_hang);
}

TEST_CASE("without_io_uring_groups_and_waits_do_as_ever", "[file]") {
  for (int i = 0; i < 2; ++i) (void)device(kBlocks, i);
  in_child(many_of_all);
}

TEST_CASE("a_lack_of_descriptors_is_told_and_passes", "[file][ring]") {
  in_child([&] {
    const Chunk id(open_physical());
    Buffer buffer(1);
    rlimit files;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
    const rlim_t before = files.rlim_cur;
    files.rlim_cur = 3;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
    int tag;
    REFUSES(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0), EMFILE);
    REFUSES(cblk_read(id, buffer, 0, 1, 0), EMFILE);
    files.rlim_cur = before;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &files) == 0);
    REQUIRE(cblk_read(id, buffer, 0, 1, 0) == 1);
    REQUIRE(cblk_aread(id, buffer, 0, 1, &tag, nullptr, 0) == 0);
    REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) == 1);
  });
}

// As another user, because root's memory and threads have no limit.
TEST_CASE("limits_on_locked_memory_and_threads_cost_no_io", "[file]") {
  if (geteuid() != 0) {
    printf("skip: root: it takes root to become another user\n");
    return;
  }
  (void)device(kBlocks);
  for (const int resource : {RLIMIT_MEMLOCK, RLIMIT_NPROC}) {
    in_child([&] {
      const Chunk id(open_physical());
      const rlimit little = {1, 1};
      REQUIRE(setrlimit(static_cast<__rlimit_resource>(resource), &little) == 0);
      REQUIRE(setgid(65534) == 0 && setuid(65534) == 0);
      constexpr size_t kAtOnce = 16;
      Buffer out(kAtOnce), in(kAtOnce);
      stamp(out, 0, kAtOnce, 1);
      REQUIRE(cblk_write(id, out, 0, kAtOnce, 0) ==
              static_cast<int>(kAtOnce));  // into holes: by threads of the kernel's
      int tag;
      stamp(out, 500, kAtOnce, 2);
      REQUIRE(cblk_awrite(id, out, 500, kAtOnce, &tag, nullptr, 0) == 0);
      REQUIRE(cblk_aresult(id, &tag, ignored(), CBLK_ARESULT_BLOCKING) ==
              static_cast<int>(kAtOnce));
      REQUIRE(cblk_read(id, in, 0, kAtOnce, 0) == static_cast<int>(kAtOnce) &&
              is_stamped(in, 0, kAtOnce, 1));
      REQUIRE(cblk_read(id, in, 500, kAtOnce, 0) == static_cast<int>(kAtOnce) &&
              is_stamped(in, 500, kAtOnce, 2));
      REQUIRE(cblk_unmap(id, out, 100, kAtOnce, 0) == static_cast<int>(kAtOnce));
    });
  }
}
