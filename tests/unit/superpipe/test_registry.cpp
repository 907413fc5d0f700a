// SPDX-License-Identifier: Apache-2.0
// Devices by URI: capabilities as the host has them, refusals in one line; vectors in the window,
// and what happens without descriptors.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "superpipe/device.h"
#include "superpipe/registry.h"
#include "superpipe/ring/uring_context.h"
#include "sys/file.h"
#include "sys/thread.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"
#include "tests/support/stderr_of.h"

using namespace lunar;
using namespace lunar_test;

namespace {

int open_rings() {
  int rings = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    rings += std::filesystem::read_symlink(file.path(), gone).string().find("[io_uring]") !=
             std::string::npos;
  }
  return rings;
}

void round_trip(Device* device) {
  const Attached context(device);
  const Pages pages(2);
  memset(pages.page(0), 'r', kPage);
  CHECK(io(device, Op::kWrite, 3 * kPage, pages.page(0), kPage, context) == kPage);
  CHECK(io(device, Op::kRead, 3 * kPage, pages.page(1), kPage, context) == kPage);
  CHECK(memcmp(pages.page(0), pages.page(1), kPage) == 0);
}

}  // namespace

TEST_CASE("device uri: an unknown scheme names the known ones; a path is taken as it is") {
  Directory directory;
  const std::string disk = directory.disk("disk", kMiB);
  CHECK(has(refused("floppy:/dev/fd0", kRaw, -EINVAL), "known: file, nvme, pmem, capi, mem, sim"));
  CHECK(has(refused("file:" + disk + "x", kRaw, -ENOENT), "no such file"));
  CHECK(has(refused("file:" + disk + ",speed=on", kRaw, -ENOENT), "disk,speed=on"));
  (void)refused("file:" + std::string(5000, 'x'), kRaw, -ENAMETOOLONG);
  CHECK(has(refused("capi:" + std::string(5000, 'x'), kRaw, -ENAMETOOLONG), "too long"));
  device_close(opened("file:" + directory.disk("odd,speed=on", kMiB), kRaw));
}

TEST_CASE("device uri: capi without hardware says what is missing") {
  CHECK(has(refused("capi:/dev/sg99", kRaw, -ENODEV), "IBM's libcflsh_block"));
  CHECK(has(refused("capi:/dev/sg99,lib=block.so", kRaw, -ENODEV), "absolute path"));
}

TEST_CASE("file capabilities are those of the host") {
  Directory directory;
  const std::string disk = directory.disk("disk", kMiB);
  Device* device = opened(disk, kRaw);
  const Capabilities can = device->capabilities();
  CHECK(can.persistent);
  CHECK(can.discard);  // ext4, xfs, btrfs, tmpfs
  struct stat status;
  REQUIRE(stat(disk.c_str(), &status) == 0);
  CHECK(status.st_size == kMiB);
  CHECK(static_cast<uint64_t>(status.st_blocks) * 512 >= kMiB);  // the probe made no hole
  device_close(device);
  device = opened(disk, kReadOnly);
  CHECK_FALSE(device->capabilities().discard);  // read-only
  device_close(device);
}

TEST_CASE("a read-only block device is refused by that name, and can be read") {
  if (geteuid() != 0) LUNAR_SKIP("root", "loop devices need root");
  Directory directory;
  const std::string disk = directory.disk("disk", 4 * kMiB), told = directory.path + "/name";
  std::string loop;
  if (system(("losetup -r -f --show " + disk + " >" + told + " 2>/dev/null").c_str()) == 0)
    std::ifstream(told) >> loop;
  if (loop.empty()) LUNAR_SKIP("loop", "no free loop device");
  CHECK(has(refused(loop, kRaw, -EROFS), "read-only"));
  CHECK(has(refused(loop, {}, -EROFS), "read-only"));
  Device* device = opened(loop, kReadOnly);
  CHECK_FALSE(device->capabilities().discard);
  device_close(device);
  CHECK(system(("losetup -d " + loop).c_str()) == 0);
}

TEST_CASE(
    "rings: a vector in a registered buffer is taken where the kernel says so, one outside is "
    "refused") {
  sys::Uring ring;
  if (ring.init({}) < 0) LUNAR_SKIP("io_uring", "refused on this host");
  if (!ring.fixed_vectors()) {  // before Linux 6.15
    ring.destroy();
    return;
  }
  Directory directory;
  const int fd = sys::open_file(directory.disk("disk", kMiB).c_str(), O_RDWR | O_DIRECT);
  REQUIRE(fd >= 0);
  Pages window(8), other(1);
  const iovec whole = {window.base, window.bytes};
  REQUIRE(ring.register_buffers(&whole, 1) == 0);
  const iovec good[] = {{window.page(5), kPage}, {window.page(1), kPage}},
              bad[] = {{window.page(5), kPage}, {other.base, kPage}};
  memset(window.page(5), 'x', kPage);
  memset(window.page(1), 'y', kPage);
  const auto run = [&](bool read, const iovec* parts) {
    CHECK((read ? ring.queue_readv(fd, false, parts, 2, 0, 0, 7)
                : ring.queue_writev(fd, false, parts, 2, 0, 0, 7)));
    CHECK(ring.submit_and_wait(5'000'000'000) == 0);
    sys::Cqe done;
    return ring.reap(&done, 1, true) == 1 ? done.result : -1000;
  };
  CHECK(run(false, good) == 2 * kPage);
  memset(window.base, 0, window.bytes);
  CHECK(run(true, good) == 2 * kPage);
  CHECK(*window.page(5) == 'x');
  CHECK(*window.page(1) == 'y');
  CHECK(run(true, bad) == -EFAULT);
  ring.destroy();
  sys::close_file(fd);
}

TEST_CASE(
    "a lack of descriptors is told as such; contexts that may fail do, and the next one has a "
    "ring") {
  if (sys::uring_probe() < 0) LUNAR_SKIP("io_uring", "refused on this host");
  Directory directory;
  Device* device = opened(directory.disk("disk", kMiB), kRaw);
  const std::string said = lunar_test::stderr_of([&] {
    rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) _exit(1);
    const rlim_t before = files.rlim_cur;
    files.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) _exit(2);
    ContextOptions may_fail, may_not;
    may_fail.delegate = may_fail.shared = true;
    Context *first = nullptr, *second = nullptr;
    for (int i = 0; i < 2; ++i)  // told once
      if (device->attach(may_fail, &first) != -EMFILE) _exit(3);
    if (device->attach(may_not, &second) != 0) _exit(4);
    files.rlim_cur = before;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || device->attach(may_fail, &first) != 0) _exit(5);
    if (open_rings() != 1) _exit(6);
    Pages page(1);
    const iovec part = {page.base, kPage};
    for (Context* context : {first, second})
      if (one(context, command_of(Op::kRead, 0, &part, 1, 1)) != int64_t{kPage}) _exit(7);
    fprintf(stderr, "all is well\n");
  });
  INFO(said);
  CHECK(has(said, "all is well"));
  CHECK(has(said, "too many open files (EMFILE)"));
  CHECK(has(said, "ulimit -n"));
  CHECK(said.find("no ring") == said.rfind("no ring"));
  CHECK(said.find("io_uring_disabled") == std::string::npos);
  device_close(device);
}
