// SPDX-License-Identifier: Apache-2.0
// LUNs on files and block devices: what is accepted, what is refused and why. A refusal changes
// nothing.
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lun/compose.h"
#include "superpipe/device.h"
#include "superpipe/device_files.h"
#include "superpipe/registry.h"
#include "superpipe/signature.h"
#include "sys/file.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"
#include "tests/support/loop_device.h"

using namespace lunar;
using namespace lunar_test;

namespace {

std::string contents_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void round_trip(Device* device, char fill) {
  REQUIRE(device->reserve(DeviceOffset{0}, kMiB) == 0);
  const Attached context(device);
  const Pages pages(2);
  memset(pages.page(0), fill, kPage);
  CHECK(io(device, Op::kWrite, 2 * kPage, pages.page(0), kPage, context) == kPage);
  CHECK(io(device, Op::kRead, 2 * kPage, pages.page(1), kPage, context) == kPage);
  CHECK(memcmp(pages.page(0), pages.page(1), kPage) == 0);
}

struct stat status_of(const std::string& path) {
  struct stat status;
  REQUIRE(stat(path.c_str(), &status) == 0);
  return status;
}

}  // namespace

TEST_CASE("a directory gives an unlinked, reserved, growable LUN and leaves nothing behind") {
  Directory directory;
  Device* device = opened(directory.path);
  CHECK(std::string(device->kind()) == "file");
  CHECK(device->name() == directory.path);
  CHECK(device->growable());
  CHECK(device->size_bytes() > kMiB);
  round_trip(device, 'd');
  struct stat status;
  REQUIRE(fstat(device->fd(0), &status) == 0);
  CHECK(status.st_nlink == 0);
  CHECK(status.st_blocks * 512 >= static_cast<blkcnt_t>(kMiB));  // not sparse
  CHECK((fcntl(device->fd(0), F_GETFL) & O_DIRECT) != 0);
  CHECK(rmdir(directory.path.c_str()) == 0);  // empty all along
  device_close(device);
}

TEST_CASE("memory file systems are refused by name") {
  struct statfs status;
  if (statfs("/dev/shm", &status) != 0 || status.f_type != 0x01021994)
    LUNAR_SKIP("tmpfs", "/dev/shm is none here");
  CHECK(has(refused("/dev/shm"), "tmpfs"));
  const char* path = "/dev/shm/lunar-test-file";
  std::ofstream(path) << "";
  CHECK(has(refused(path), "tmpfs"));
  CHECK(has(refused(std::string("file:") + path), "tmpfs"));
  unlink(path);
}

TEST_CASE("missing paths, odd files and empty names are refused with what to do") {
  Directory directory;
  CHECK(has(refused(directory.path + "/nothing"), "no such file"));
  CHECK(has(refused("/dev/null"), "neither a directory"));
  CHECK(has(refused(""), "empty name"));
  CHECK(has(refused(directory.file("f") + "/below"), "no such file"));
}

TEST_CASE("a LUN larger than the free space is refused at open") {
  Directory directory;
  CHECK(has(refused(directory.path, {.want_bytes = uint64_t{1} << 60}), "free"));
  CHECK(has(refused(directory.file("small", "", 4 * kMiB), {.want_bytes = 16 * kMiB}), "wanted"));
}

TEST_CASE("a directory or file that may not be written is refused") {
  if (geteuid() == 0) {  // root may write anything: ask as nobody, in a child
    Directory directory;
    const std::string file = directory.file("held");
    REQUIRE(chmod(directory.path.c_str(), 0755) == 0);
    const pid_t child = fork();
    if (child == 0) {
      if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
      Device* device = nullptr;
      ErrorText why;
      bool good = device_open(directory.path.c_str(), {}, &device, &why) == -EACCES &&
                  strstr(why.text, "permission");
      good &=
          device_open(file.c_str(), {}, &device, &why) == -EACCES && strstr(why.text, "permission");
      _exit(good ? 0 : 2);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  } else {
    CHECK(has(refused("/etc"), "permission"));
  }
}

TEST_CASE("a file that holds data is refused and not touched") {
  Directory directory;
  const std::string text(100000, 'q');
  const std::string zeros(65535, '\0');
  for (const std::string& contents :
       {text, std::string("x"), zeros.substr(0, 5000) + "x", zeros + "x"}) {
    const std::string path = directory.file("data", contents);
    CHECK(has(refused(path), "holds data"));
    CHECK(contents_of(path) == contents);
  }
  // A header of Lunar with other data behind it does not count as Lunar's.
  const std::string path = directory.file("mixed");
  device_close(opened(path));
  std::ofstream(path, std::ios::binary | std::ios::app) << "precious";
  CHECK(has(refused(path), "holds data"));
}

TEST_CASE("an empty file grows, and is cut again by its next owner") {
  Directory directory;
  const std::string path = directory.file("lun");
  Device* device = opened("file:" + path);
  CHECK_FALSE(device->growable());  // by others of its tree: it is theirs too
  round_trip(device, 'e');
  CHECK(status_of(path).st_size == static_cast<off_t>(2 * kMiB));  // the first MiB is the header's
  device_close(device);
  CHECK(status_of(path).st_size == 4096);
  // An owner that was killed leaves its space: the next open takes it back.
  REQUIRE(truncate(path.c_str(), 64 * kMiB) == 0);
  device = opened(path);
  CHECK_FALSE(device->growable());  // by others of its tree: it is theirs too
  CHECK(status_of(path).st_size == 4096);
  round_trip(device, 'f');
  device_close(device);
  const std::string head = contents_of(path);
  CHECK(head.substr(0, 15) == "LunarScratchLUN");
}

TEST_CASE("a file with a size keeps it, and does not grow beyond it") {
  Directory directory;
  const std::string path = directory.file("lun", "", 16 * kMiB);
  for (int i = 0; i < 2; ++i) {
    Device* device = opened(path);
    CHECK_FALSE(device->growable());
    CHECK(device->size_bytes() == 15 * kMiB);
    CHECK(device->reserve(DeviceOffset{0}, 15 * kMiB) == 0);
    CHECK(device->reserve(DeviceOffset{4096}, 15 * kMiB) == -ENOSPC);
    round_trip(device, 's');
    device_close(device);
    CHECK(status_of(path).st_size == static_cast<off_t>(16 * kMiB));
  }
}

TEST_CASE("a changed header is not taken for one of ours") {
  Directory directory;
  const std::string path = directory.file("lun", "", 16 * kMiB);
  device_close(opened(path));
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(100) << "z";
  CHECK(has(refused(path), "holds data"));
}

TEST_CASE("one file is one owner's at a time, and its children's") {
  Directory directory;
  const std::string path = directory.file("lun");
  Device* device = opened(path);
  CHECK(has(refused(path), "in use"));
  // The lock belongs to the open file: it outlives the process that took it while a child has the
  // file.
  const pid_t child = fork();
  if (child == 0) {
    close(open("/dev/null", O_RDONLY));
    _exit(0);  // a child that leaves does not take the lock along
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK(has(refused(path), "in use"));
  device_close(device);
  device_close(opened(path));
}

// A child whose program had closed the inherited descriptor gets a description of its own, which
// hold() makes an owner.
TEST_CASE(
    "another description of the file keeps the lock when the first is gone, against every other "
    "claim") {
  Directory directory;
  const std::string path = directory.file("lun", "", 8 << 20);
  Device* device = opened(path);
  const auto refused_by_all = [&] {
    CHECK(has(refused(path), "in use"));
    PhysicalLun* physical = nullptr;
    ErrorText why;
    CHECK(physical_open(path.c_str(), Format::kForce, &physical, &why) == -EBUSY);
    CHECK(has(why.text, "as a whole"));
  };
  const int successor = sys::open_again(device->fd(0));
  REQUIRE(successor >= 0);
  REQUIRE(device->share_lock(0, successor) == 0);
  device_close(device);
  refused_by_all();
  close(successor);
  device_close(opened(path));
}

TEST_CASE(
    "a file or device in another use is refused as a scratch LUN, and the line names the use") {
  Directory directory;
  const std::string path = directory.file("lun", "", 8 << 20);
  const auto open_raw = [&](Claim claim, Device** out, ErrorText* why) {
    return device_open(path.c_str(), {.scratch = false, .claim = claim}, out, why);
  };
  Device *first = nullptr, *second = nullptr;
  ErrorText why;
  for (const auto& [claim, other, words] :
       {std::tuple{Claim::kParts, Claim::kWhole, "virtual LUNs"},
        std::tuple{Claim::kWhole, Claim::kParts, "cblk_open"}}) {
    REQUIRE(open_raw(claim, &first, &why) == 0);
    CHECK(has(refused(path), words));
    CHECK(open_raw(other, &second, &why) == -EBUSY);
    CHECK(has(why.text, words));
    REQUIRE(open_raw(claim, &second, &why) == 0);
    device_close(second);
    REQUIRE(open_raw(Claim::kForced, &second, &why) == 0);  // checks no owner, and is seen
    device_close(first);
    CHECK(open_raw(Claim::kParts, &first, &why) == -EBUSY);
    CHECK(has(why.text, "cblk_open"));
    device_close(second);
  }
  Device* alone = opened(path);
  CHECK(open_raw(Claim::kWhole, &first, &why) == -EBUSY);
  CHECK(has(why.text, "alone"));
  REQUIRE(open_raw(Claim::kLook, &first, &why) == 0);
  CHECK(first->share_lock(0, first->fd(0)) == 0);  // nothing to hold
  device_close(first);
  device_close(alone);
}

TEST_CASE("a file is asked for signatures beyond its head, as devices are") {
  Directory directory;
  const std::string path = directory.file("disk", "", 8 << 20);
  const int fd = open(path.c_str(), O_RDWR);
  REQUIRE(pwrite(fd, "\x5e\xf1\xab\x2f", 4, 2 << 20) == 4);  // VMFS: two MiB of zeros, then this
  close(fd);
  CHECK(has(refused(path), "holds VMFS"));
}

TEST_CASE("block devices: an empty one is used, one that holds something or is held is refused") {
  if (geteuid() != 0) LUNAR_SKIP("root", "loop devices need root");
  Directory directory;
  const std::string file = directory.file("disk", "", 32 * kMiB);
  Loop loop(file);
  if (loop.name.empty()) LUNAR_SKIP("loop", "no free loop device");
  for (int i = 0; i < 2; ++i) {  // the second time it carries our header
    Device* device = opened(loop.name);
    CHECK(std::string(device->kind()) == "block");
    CHECK_FALSE(device->growable());
    CHECK(device->size_bytes() == 31 * kMiB);
    CHECK(device->reserve(DeviceOffset{0}, 31 * kMiB) == 0);
    CHECK(device->reserve(DeviceOffset{0}, 32 * kMiB) == -ENOSPC);
    round_trip(device, 'b');
    CHECK(has(refused(loop.name), "in use"));
    const int successor = sys::open_again(device->fd(0));
    CHECK(device->share_lock(0, successor) == 0);
    device_close(device);
    CHECK(has(refused(loop.name), "in use"));
    close(successor);
  }
  REQUIRE(system(("mkfs.ext4 -q -F " + loop.name + " >/dev/null 2>&1").c_str()) == 0);
  const auto zero_head = [&] {
    REQUIRE(system(("dd if=/dev/zero of=" + loop.name + " bs=64k count=1 conv=fsync status=none")
                       .c_str()) == 0);
  };
  const std::string before = contents_of(file);
  CHECK(has(refused(loop.name), "ext4"));
  CHECK(contents_of(file) == before);
  const std::string mount_point = directory.path + "/mnt";
  REQUIRE(mkdir(mount_point.c_str(), 0700) == 0);
  if (system(("mount " + loop.name + " " + mount_point + " 2>/dev/null").c_str()) == 0) {
    CHECK(has(refused(loop.name), "mounted on"));
    REQUIRE(system(("umount " + mount_point).c_str()) == 0);
  } else {
    printf("skip: mount: no file system can be mounted here\n");
  }
  REQUIRE(system(("wipefs -qa " + loop.name).c_str()) == 0);
  zero_head();
  REQUIRE(system(("mkswap -q " + loop.name + " >/dev/null 2>&1").c_str()) == 0);
  CHECK(has(refused(loop.name), "swap"));
  zero_head();
  REQUIRE(system(("printf junk | dd of=" + loop.name + " bs=1 seek=20000 conv=fsync status=none")
                     .c_str()) == 0);
  CHECK(has(refused(loop.name), "unknown data"));
}

namespace {

// Discards a part of a device of `bytes`, as transfer() and a context do: the part is zeros, and
// blocks() stays at `full` at least.
template <class Blocks>
void discard_keeps_space(Device* device, uint64_t bytes, uint64_t full, const Blocks& blocks) {
  const Pages pages(1);
  char* page = pages.base;
  for (const bool by_context : {false, true}) {
    memset(page, 7, kPage);
    for (uint64_t at = 0; at < bytes; at += kMiB)
      REQUIRE(io(device, Op::kWrite, at, page) == kPage);
    std::optional<Attached> context;
    if (by_context) context.emplace(device);
    CHECK(io(device, Op::kDiscard, kMiB, nullptr, 6 * kMiB + 512,
             context ? context->context : nullptr) == 0);
    for (uint64_t at = 0; at < bytes; at += kMiB) {
      REQUIRE(io(device, Op::kRead, at, page) == kPage);
      // 512 bytes of the last page
      const bool first = at >= kMiB && at <= 7 * kMiB, rest = first && at < 7 * kMiB;
      CHECK((page[0] == (first ? 0 : 7) && page[511] == (first ? 0 : 7) &&
             page[512] == (rest ? 0 : 7)));
    }
    CHECK(blocks() >= full);  // the file system's own records of extents count too
  }
}

// The same for a file that is formatted, gets a LUN of zeros that shrinks and is removed, and gets
// it again.
template <class Blocks>
void virtual_life_keeps_space(const std::string& path, uint64_t full, const Blocks& blocks) {
  ErrorText why;
  for (int round = 0; round < 2; ++round) {
    PhysicalLun* physical = nullptr;
    REQUIRE(physical_open(path.c_str(), round ? Format::kNever : Format::kForce, &physical, &why) ==
            0);
    VirtualOptions options;
    options.name = "one";
    options.create = true;
    options.size_bytes = 8 * kMiB;
    VirtualLun* lun = nullptr;
    REQUIRE(VirtualLun::open(physical, options, &lun, &why) == 0);
    CHECK(lun->set_size(4 * kMiB, &why) == 0);
    CHECK(lun->set_size(8 * kMiB, &why) == 0);
    Command all;
    all.op = Op::kDiscard;
    all.length = 8 * kMiB;
    CHECK(lun->transfer(all) == 0);
    device_close(lun);
    CHECK(blocks() >= full);
    REQUIRE(physical_open(path.c_str(), Format::kNever, &physical, &why) == 0);
    CHECK(physical->remove("one", &why) == 0);
    physical->close();
    CHECK(blocks() >= full);
  }
}

}  // namespace

TEST_CASE(
    "file: a discard zeros, and the file keeps the space that was reserved, by each way; so does a "
    "virtual LUN's "
    "life") {
  const Directory directory;
  const std::string path = directory.file("reserved", "", 0);
  constexpr uint64_t kBytes = 16 * kMiB;
  const int made = sys::open_file(path.c_str(), O_RDWR);
  REQUIRE(made >= 0);
  REQUIRE(sys::allocate_space(made, 0, kBytes) == 0);
  const auto blocks = [&] {
    struct stat status;
    REQUIRE(fsync(made) == 0);  // delayed allocation
    REQUIRE(fstat(made, &status) == 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  };
  const uint64_t full = blocks();
  REQUIRE(full >= kBytes);
  Device* device = opened(path, kRaw);
  if (!device->capabilities().discard) {
    device_close(device);
    close(made);
    LUNAR_SKIP("zero-range", "this file system has no FALLOC_FL_ZERO_RANGE");
  }
  struct fiemap beyond = {};
  beyond.fm_start = kBytes;
  beyond.fm_length = UINT64_MAX - kBytes;
  if (ioctl(made, FS_IOC_FIEMAP, &beyond) == 0)
    CHECK(beyond.fm_mapped_extents == 0);  // asking leaves nothing behind
  discard_keeps_space(device, kBytes, full, blocks);
  device_close(device);
  virtual_life_keeps_space(path, full, blocks);
  close(made);
}
