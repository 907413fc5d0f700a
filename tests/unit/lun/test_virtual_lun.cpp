// SPDX-License-Identifier: Apache-2.0
// Virtual LUNs: creation, removal, size.
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "superpipe/registry.h"
#include "sys/thread.h"
#include "tests/support/loop_device.h"
#include "tests/support/lun_device.h"
#include "tests/support/meanwhile.h"
#include "tests/support/virtual_lun_fixture.h"

using namespace lunar;
using namespace lunar_test;

TEST_CASE("virtual: a named LUN keeps its content and its size") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, named("db", 300 * kKiB));
  CHECK(lun->size_bytes() == 300 * kKiB);
  CHECK(lun->used_bytes() == 300 * kKiB);
  CHECK_FALSE(lun->growable());
  CHECK(std::string(lun->kind()) == "virtual");
  CHECK(std::string(lun->info().name) == "db");
  CHECK(lun->reserve(DeviceOffset{0}, 300 * kKiB) == 0);
  CHECK(lun->reserve(DeviceOffset{0}, 301 * kKiB) == -ENOSPC);
  CHECK(zeros(lun, 0, 300 * kKiB));
  Buffer buffer(300 * kKiB);
  memset(buffer.at, 0x5a, buffer.bytes);
  CHECK(io(lun, Op::kWrite, 0, buffer.at, buffer.bytes) == 300 * 1024);
  CHECK(io(lun, Op::kWrite, 4096, buffer.at, buffer.bytes) == -EINVAL);
  CHECK(io(lun, Op::kRead, 300 * kKiB, buffer.at, 4096) == -EINVAL);
  CHECK(io(lun, Op::kRead, UINT64_MAX - 4095, buffer.at, 4096) == -EINVAL);
  CHECK(refused(file.path, named("db", 0), "exists") == -EEXIST);
  lun->close();
  lun = must(file.path, named("db", 0, false));
  memset(buffer.at, 0, buffer.bytes);
  CHECK(io(lun, Op::kRead, 0, buffer.at, buffer.bytes) == 300 * 1024);
  CHECK(std::string(buffer.at, buffer.bytes) == std::string(buffer.bytes, 0x5a));
  lun->close();
  CHECK(refused(file.path, named("nobody", 0, false), "lunar lun list") == -ENOENT);
  CHECK(refused(file.path, named("a/b"), "not a name") == -EINVAL);
  CHECK(refused(file.path, named("big", kTiB), "remain") == -ENOSPC);
  CHECK(refused(file.path, named("big", UINT64_MAX), "more than") == -ENOSPC);
}

TEST_CASE("virtual: exclusive and shared owners keep each other out") {
  LunFile file(kBytes);
  must(file.path, named("x", kExtent))->close();
  VirtualOptions shared = named("x", 0, false), alone = shared;
  shared.exclusive = false;
  VirtualLun* one = must(file.path, shared);
  VirtualLun* two = must(file.path, shared);
  CHECK(refused(file.path, alone, "in use") == -EBUSY);
  ErrorText why;
  CHECK(two->set_size(3 * kExtent, &why) == 0);
  CHECK(one->used_bytes() == kExtent);
  CHECK(one->refresh() == 0);
  CHECK(one->used_bytes() == 3 * kExtent);
  CHECK(one->set_size(0, &why) == -EBUSY);
  CHECK(one->physical().remove("x", &why) == -EBUSY);
  two->close();
  CHECK(one->physical().remove("x", &why) == -EBUSY);
  CHECK(one->set_size(kExtent, &why) == 0);
  one->close();
  one = must(file.path, alone);
  CHECK(refused(file.path, shared, "exclusively") == -EBUSY);
  one->close();
}

TEST_CASE("virtual: a scratch LUN grows as it is asked to and goes with its owner") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, {});
  CHECK(lun->growable());
  const uint64_t most = lun->size_bytes();
  CHECK(most > 14 * kMiB);
  CHECK(lun->used_bytes() == 0);
  CHECK(lun->reserve(DeviceOffset{0}, kMiB) == 0);
  CHECK(lun->used_bytes() >= kMiB);
  CHECK(lun->reserve(DeviceOffset{kMiB}, kMiB) == 0);
  Buffer buffer(kMiB);
  CHECK(io(lun, Op::kWrite, kMiB, buffer.at, buffer.bytes) == 1024 * 1024);
  CHECK(lun->reserve(DeviceOffset{0}, most) == 0);
  CHECK(lun->reserve(DeviceOffset{0}, most + 1) == -ENOSPC);
  CHECK(lun->size_bytes() == most);
  PhysicalLun* watcher = nullptr;
  ErrorText why;
  REQUIRE(open_physical(file.path.c_str(), Format::kNever, &watcher, &why) == 0);
  PhysicalLunInfo info;
  CHECK(watcher->info(&info) == 0);
  CHECK(info.free_bytes == 0);
  VirtualLunInfo list[4];
  CHECK(watcher->list(list, 4, 0) == 1);
  CHECK(list[0].in_use);
  CHECK(list[0].name[0] == 0);
  lun->release(DeviceOffset{2 * kMiB}, most - 2 * kMiB);
  CHECK(lun->used_bytes() == 2 * kMiB);
  lun->close();
  CHECK(watcher->list(list, 4, 0) == 0);
  CHECK(watcher->info(&info) == 0);
  CHECK(info.free_bytes == info.usable_bytes);
  watcher->close();
}

TEST_CASE("virtual: a small reserve after a large one is had without a change") {
  LunFile file(64 * kMiB);
  VirtualLun* lun = must(file.path, {});
  PhysicalLunInfo before, after;
  CHECK(lun->reserve(DeviceOffset{0}, 32 * kMiB) == 0);
  CHECK(lun->physical().info(&before) == 0);
  for (unsigned i = 0; i < 4; ++i)
    CHECK(lun->reserve(DeviceOffset{(32 + i / 2) * kMiB}, kMiB / 2) == 0);
  CHECK(lun->physical().info(&after) == 0);
  CHECK(after.sequence - before.sequence == 1);
  lun->close();
}

TEST_CASE("virtual: a former owner's data is never read through a zeroed LUN") {
  for (bool discard : {true, false}) {
    // without discard more than what is written at once: extents are staged
    const uint64_t bytes = 80 * kMiB;
    std::vector<char> device(bytes);
    const auto open = [&](const VirtualOptions& options) {
      ErrorText why;
      PhysicalLun* physical = nullptr;
      REQUIRE(PhysicalLun::open(new MemoryDevice(device.data(), bytes, {discard, 128 * kKiB, "m"}),
                                Format::kIfBlank, &physical, &why) == 0);
      VirtualLun* lun = nullptr;
      const int status = VirtualLun::open(physical, options, &lun, &why);
      INFO(why.text);
      REQUIRE(status == 0);
      return lun;
    };
    VirtualLun* lun = open({});
    PhysicalLunInfo info;
    REQUIRE(lun->physical().info(&info) == 0);
    lun->close();
    memset(device.data() + 2 * kMiB, 0x77, bytes - 4 * kMiB);
    lun = open(named("all", info.usable_bytes));
    CHECK(zeros(lun, 0, info.usable_bytes));
    // Grows again over its own former space, in the middle of an extent.
    ErrorText why;
    Buffer buffer(128 * kKiB);
    memset(buffer.at, 1, buffer.bytes);
    REQUIRE(lun->set_size(20 * kKiB, &why) == 0);
    REQUIRE(lun->set_size(8 * kMiB, &why) == 0);
    for (unsigned i = 0; i < 64; ++i)
      REQUIRE(io(lun, Op::kWrite, i * buffer.bytes, buffer.at, buffer.bytes) > 0);
    REQUIRE(lun->set_size(20 * kKiB, &why) == 0);
    REQUIRE(lun->set_size(24 * kKiB, &why) == 0);
    CHECK(zeros(lun, 20 * kKiB, 4096));
    REQUIRE(lun->set_size(60 * kMiB, &why) == 0);
    CHECK(zeros(lun, 20 * kKiB, 60 * kMiB - 20 * kKiB));
    CHECK_FALSE(zeros(lun, 16 * kKiB, 4096));
    CHECK(lun->physical().info(&info) == 0);
    CHECK(info.luns == 1);
    CheckReport report;
    CHECK(lun->physical().check(false, &report) == 0);
    CHECK(report.problems == 0);
    lun->close();
  }
}

TEST_CASE("virtual: sizes are atomic, and running out changes nothing") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, named("x"));
  ErrorText why;
  const uint64_t room = lun->remaining_bytes();
  CHECK(lun->set_size(room + 4096, &why) == -ENOSPC);
  CHECK(strstr(why.text, "remain"));
  CHECK(lun->used_bytes() == 0);
  CHECK(lun->set_size(5000, &why) == 0);
  CHECK(lun->used_bytes() == 8192);
  CHECK(lun->remaining_bytes() == room - 8192);
  CHECK(lun->set_size(room, &why) == 0);
  CHECK(lun->remaining_bytes() == 0);
  CHECK(refused(file.path, named("y", 4096), "remain") == -ENOSPC);
  CHECK(lun->set_size(0, &why) == 0);
  CHECK(lun->remaining_bytes() == room);
  lun->close();
}

TEST_CASE("virtual: a scratch LUN lives as long as any forked owner") {
  LunFile file(kBytes);
  int ready[2], go[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(go) == 0);
  const pid_t owner = fork();
  REQUIRE(owner >= 0);
  if (owner == 0) {  // makes the LUN, forks a daemon twice, is killed
    VirtualLun* lun = nullptr;
    ErrorText why;
    if (open_virtual(file.path.c_str(), {}, &lun, &why) < 0 ||
        lun->reserve(DeviceOffset{0}, kMiB) < 0)
      _exit(1);
    static char stamp[4096] __attribute__((aligned(4096)));
    memset(stamp, 0x42, sizeof stamp);
    if (io(lun, Op::kWrite, 0, stamp, 4096) != 4096) _exit(1);
    if (fork() == 0) {
      if (fork() == 0) {
        close(ready[0]);
        close(go[1]);
        char byte = 'd';
        if (write(ready[1], &byte, 1) != 1) _exit(1);
        if (read(go[0], &byte, 1) != 1) _exit(1);
        // Goes on with it: reads, grows.
        memset(stamp, 0, sizeof stamp);
        byte = io(lun, Op::kRead, 0, stamp, 4096) == 4096 && stamp[100] == 0x42 &&
                       lun->reserve(DeviceOffset{0}, 2 * kMiB) == 0 &&
                       io(lun, Op::kWrite, kMiB, stamp, 4096) == 4096
                   ? 'y'
                   : 'n';
        if (write(ready[1], &byte, 1) != 1) _exit(1);
        if (read(go[0], &byte, 1) < 0) _exit(1);
        _exit(0);
      }
      _exit(0);
    }
    pause();
    _exit(0);
  }
  close(ready[1]);
  close(go[0]);
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  kill(owner, SIGKILL);
  REQUIRE(waitpid(owner, nullptr, 0) == owner);
  PhysicalLun* watcher = nullptr;
  ErrorText why;
  REQUIRE(open_physical(file.path.c_str(), Format::kNever, &watcher, &why) == 0);
  PhysicalLunInfo info;
  CHECK(watcher->info(&info) == 0);
  CHECK(info.luns == 1);
  REQUIRE(write(go[1], "g", 1) == 1);
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(byte == 'y');
  CHECK(watcher->info(&info) == 0);
  CHECK(info.usable_bytes - info.free_bytes >= 2 * kMiB);
  close(go[1]);  // ends the daemon
  CHECK(read(ready[0], &byte, 1) == 0);
  for (int i = 0; i < 200 && info.luns; ++i) {
    sys::sleep_ns(5'000'000);
    CHECK(watcher->info(&info) == 0);
  }
  CHECK(info.luns == 0);
  CHECK(info.free_bytes == info.usable_bytes);
  watcher->close();
  close(ready[0]);
}

TEST_CASE("virtual: a forked child that closes it takes nothing away") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, {});
  REQUIRE(lun->reserve(DeviceOffset{0}, kMiB) == 0);
  Buffer buffer(4096);
  memset(buffer.at, 0x17, 4096);
  REQUIRE(io(lun, Op::kWrite, 0, buffer.at, 4096) == 4096);
  const pid_t child = fork();
  if (child == 0) {
    lun->close();
    VirtualLun* other = nullptr;
    ErrorText why;
    _exit(open_virtual(file.path.c_str(), {}, &other, &why) < 0 ||
          other->reserve(DeviceOffset{0}, 15 * kMiB) != -ENOSPC);
  }
  int how = 0;
  REQUIRE(waitpid(child, &how, 0) == child);
  CHECK(how == 0);
  VirtualLunInfo list[4];
  CHECK(lun->physical().list(list, 4, 0) == 2);  // the child's own is dead, and free again
  CHECK(lun->reserve(DeviceOffset{0}, 2 * kMiB) == 0);
  CHECK(io(lun, Op::kRead, 0, buffer.at, 4096) == 4096);
  CHECK(buffer.at[4095] == 0x17);
  lun->close();
}

// The counts of threads inside are copied by fork; the threads are not.
TEST_CASE("virtual: a forked child shrinks it while threads of the parent are inside a read") {
  VirtualLun* lun = must("sim:16m,latency_us=100000", {});
  REQUIRE(lun->reserve(DeviceOffset{0}, 2 * kMiB) == 0);
  Buffer one(4096), two(4096);
  std::optional<Attached> context(lun);
  const iovec part = {two.at, 4096};
  const Command command = command_of(Op::kRead, 0, &part, 1);
  std::atomic<bool> inside{false};
  std::thread reader([&] {
    inside = true;
    (void)io(lun, Op::kRead, 0, one.at, 4096);
  });
  while (!inside) sys::sleep_ns(1'000'000);
  sys::sleep_ns(20'000'000);
  REQUIRE((*context)->submit(&command, 1) == 1);
  const pid_t child = fork();
  if (child == 0) {
    ErrorText why;
    _exit(lun->set_size(kMiB, &why) == 0 ? 0 : 1);
  }
  int how = 0;
  REQUIRE(waitpid(child, &how, 0) == child);
  CHECK(how == 0);
  reader.join();
  context.reset();
  lun->close();
}

TEST_CASE("virtual: hold makes another description an owner") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, {});
  REQUIRE(lun->reserve(DeviceOffset{0}, kMiB) == 0);
  const int fd = open(file.path.c_str(), O_RDWR);
  REQUIRE(lun->share_lock(0, fd) == 0);
  lun->close();
  PhysicalLun* watcher = nullptr;
  ErrorText why;
  REQUIRE(open_physical(file.path.c_str(), Format::kNever, &watcher, &why) == 0);
  VirtualLunInfo list[2];
  CHECK(watcher->list(list, 2, 0) == 1);
  PhysicalLunInfo info;
  CHECK(watcher->info(&info) == 0);
  CHECK(info.luns == 1);
  close(fd);
  CHECK(watcher->info(&info) == 0);
  CHECK(info.luns == 0);
  watcher->close();
}

// A loop device and a second node of it.
struct TwoNodes {
  LunFile file{kBytes};
  Loop loop{file.path};
  std::string second = file.path + ".node";
  struct stat status{};
  bool made = !loop.name.empty() && stat(loop.name.c_str(), &status) == 0 &&
              mknod(second.c_str(), S_IFBLK | 0600, status.st_rdev) == 0;
  ~TwoNodes() { unlink(second.c_str()); }
};

TEST_CASE("virtual: two nodes of one device are one device") {
  TwoNodes nodes;
  if (nodes.loop.name.empty()) LUNAR_SKIP("loop", "no free loop device");
  if (!nodes.made) LUNAR_SKIP("root", "mknod needs root");
  const std::string &first = nodes.loop.name, &second = nodes.second;
  ErrorText why;
  VirtualLun* lun = must(first, named("db", 4 * kMiB));
  PhysicalLun* other = nullptr;
  CHECK(open_physical(second.c_str(), Format::kForce, &other, &why) == -EBUSY);
  REQUIRE(open_physical(second.c_str(), Format::kNever, &other, &why) == 0);
  CHECK(other->remove("db", &why) == -EBUSY);
  VirtualLunInfo seen;
  REQUIRE(other->list(&seen, 1, 0) == 1);
  CHECK(seen.in_use);
  // A scratch LUN that was made through one node is not dead for the other.
  VirtualLun* scratch = must(first, named("", 2 * kMiB));
  REQUIRE(other->list(&seen, 1, 1) == 1);
  CHECK(seen.in_use);
  PhysicalLunInfo info;
  REQUIRE(other->info(&info) == 0);
  CHECK(info.luns == 2);
  scratch->close();
  lun->close();
  CHECK(other->remove("db", &why) == 0);
  other->close();
}

TEST_CASE("virtual: a scratch LUN that takes a whole device excludes its second node") {
  TwoNodes nodes;
  if (nodes.loop.name.empty()) LUNAR_SKIP("loop", "no free loop device");
  if (!nodes.made) LUNAR_SKIP("root", "mknod needs root");
  const std::string &first = nodes.loop.name, &second = nodes.second;
  ErrorText why;
  PhysicalLun* other = nullptr;
  REQUIRE(
      system(("dd if=/dev/zero of=" + first + " bs=1M count=16 conv=fsync status=none").c_str()) ==
      0);
  Device* whole = nullptr;
  REQUIRE(device_open(first.c_str(), {}, &whole, &why) == 0);
  CHECK(open_physical(second.c_str(), Format::kForce, &other, &why) == -EBUSY);
  device_close(whole);
  // A process that may open the device may lock it.
  char path[64];
  snprintf(path, sizeof path, "/dev/shm/lunar-node-b%u:%u", major(nodes.status.st_rdev),
           minor(nodes.status.st_rdev));
  struct stat lock;
  REQUIRE(stat(path, &lock) == 0);
  CHECK((lock.st_mode & 0777) == (nodes.status.st_mode & 0666));
  CHECK(lock.st_gid == nodes.status.st_gid);
  CHECK(lock.st_size == 0);
  // A file of a user without rights to the device does not keep root out, and holds nothing.
  const auto comes_in = [&] {
    REQUIRE(open_physical(first.c_str(), Format::kIfBlank, &other, &why) == 0);
    other->close();
    REQUIRE(lstat(path, &lock) == 0);
    CHECK(S_ISREG(lock.st_mode));
    CHECK(lock.st_uid == 0);
    CHECK((lock.st_mode & 07) == 0);
  };
  REQUIRE(
      system(("dd if=/dev/zero of=" + first + " bs=1M count=16 conv=fsync status=none").c_str()) ==
      0);
  const int squatted = open(path, O_RDWR);
  REQUIRE(fchown(squatted, 65534, 65534) == 0);
  REQUIRE(fchmod(squatted, 0666) == 0);
  REQUIRE(sys::lock_range(squatted, sys::RangeLock::kExclusive, 0, 0) == 0);
  comes_in();
  close(squatted);
  for (const char* squat : {"ln -s /etc/passwd ", "mkdir ", "mkfifo "}) {
    REQUIRE(unlink(path) == 0);
    REQUIRE(system((squat + std::string(path) + " && chown -h 65534:65534 " + path).c_str()) == 0);
    comes_in();
  }
  REQUIRE(system("rm -rf /dev/shm/lunar-refused-*") == 0);
}

// A user who may open the node by name (setfacl) may lock it; no other user can.
TEST_CASE("virtual: the lock file of a node with an ACL has that ACL") {
  if (geteuid() != 0) LUNAR_SKIP("root", "loop devices need root");
  LunFile file(kBytes);
  Loop loop(file.path);
  if (loop.name.empty()) LUNAR_SKIP("loop", "no free loop device");
  struct {
    uint32_t version = 2;
    struct {
      uint16_t tag, perm;
      uint32_t id;
    } entries[5] = {{1, 6, UINT32_MAX},
                    {2, 6, 65534},
                    {4, 6, UINT32_MAX},
                    {16, 6, UINT32_MAX},
                    {32, 0, UINT32_MAX}};  // u::rw- u:65534:rw- g::rw- m::rw- o::---
  } acl;
  if (setxattr(loop.name.c_str(), "system.posix_acl_access", &acl, sizeof acl, 0) != 0)
    LUNAR_SKIP("acl", "no ACLs on /dev");
  VirtualLun* lun = must(loop.name, named("db", 4 * kMiB));
  struct stat status, lock;
  REQUIRE(stat(loop.name.c_str(), &status) == 0);
  char path[64];
  snprintf(path, sizeof path, "/dev/shm/lunar-node-b%u:%u", major(status.st_rdev),
           minor(status.st_rdev));
  REQUIRE(stat(path, &lock) == 0);
  CHECK((lock.st_mode & 07) == 0);
  const auto may_open = [&](uid_t user) {
    const pid_t child = fork();
    if (child == 0)
      _exit(setgroups(0, nullptr) == 0 && setgid(user) == 0 && setuid(user) == 0 &&
                    open(path, O_RDWR) >= 0
                ? 0
                : 1);
    int how = 0;
    return waitpid(child, &how, 0) == child && how == 0;
  };
  CHECK(may_open(65534));
  CHECK_FALSE(may_open(65533));
  lun->close();
  // The group's bits of such a mode are the mask: what the group may is in the ACL.
  REQUIRE(unlink(path) == 0);
  acl.entries[2].perm = 0;
  REQUIRE(setxattr(loop.name.c_str(), "system.posix_acl_access", &acl, sizeof acl, 0) == 0);
  must(loop.name, named("db", 0, false))->close();
  decltype(acl) given;
  REQUIRE(getxattr(path, "system.posix_acl_access", &given, sizeof given) == sizeof given);
  CHECK(memcmp(&given, &acl, sizeof acl) == 0);
  // Another node gave all users the right to lock.
  REQUIRE(unlink(path) == 0);
  REQUIRE(removexattr(loop.name.c_str(), "system.posix_acl_access") == 0);
  const mode_t before = status.st_mode & 0777;
  REQUIRE(chmod(loop.name.c_str(), 0666) == 0);
  must(loop.name, named("db", 0, false))->close();
  CHECK(may_open(65533));
  REQUIRE(setxattr(loop.name.c_str(), "system.posix_acl_access", &acl, sizeof acl, 0) == 0);
  must(loop.name, named("db", 0, false))->close();
  CHECK(may_open(65533));
  CHECK(may_open(65534));
  CHECK(removexattr(loop.name.c_str(), "system.posix_acl_access") == 0);
  CHECK(chmod(loop.name.c_str(), before) == 0);
  CHECK(unlink(path) == 0);
}

TEST_CASE("virtual: many threads, each with an opening of its own, on one file") {
  LunFile file(kBytes);
  must(file.path, named("first"))->close();
  std::atomic<int> failed{0};
  in_parallel(4u, [&](unsigned t) {
    ErrorText why;
    for (unsigned i = 0; i < 6; ++i) {
      const std::string name = "t" + std::to_string(t);
      VirtualLun* lun = nullptr;
      if (open_virtual(file.path.c_str(), named(name.c_str(), (1 + i) * kExtent), &lun, &why) < 0) {
        ++failed;
        continue;
      }
      if (lun->set_size((2 + i) * kExtent, &why) < 0 || lun->set_size(kExtent, &why) < 0) ++failed;
      lun->close();
      PhysicalLun* physical = nullptr;
      if (open_physical(file.path.c_str(), Format::kNever, &physical, &why) < 0 ||
          physical->remove(name.c_str(), &why) < 0)
        ++failed;
      if (physical) physical->close();
    }
  });
  CHECK(failed == 0);
  PhysicalLun* watcher = nullptr;
  ErrorText why;
  REQUIRE(open_physical(file.path.c_str(), Format::kNever, &watcher, &why) == 0);
  CheckReport report;
  CHECK(watcher->check(false, &report) == 0);
  CHECK(report.problems == 0);
  VirtualLunInfo list[4];
  CHECK(watcher->list(list, 4, 0) == 1);
  watcher->close();
}
