// SPDX-License-Identifier: Apache-2.0
// The physical LUN: what it opens, formats and refuses, and what it survives.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "lun/volume/lun_locks.h"
#include "lun/volume/metadata_image.h"
#include "lun/volume/physical_lun.h"
#include "lun/volume/virtual_lun.h"
#include "lun_in_memory.h"
#include "superpipe/registry.h"
#include "sys/thread.h"
#include "tests/catch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

using namespace lunar;
using lunar_test::MemoryDevice;

namespace {

constexpr uint64_t kBytes = 8 * kMiB;

struct Medium : lunar_test::LunInMemory {
  explicit Medium(uint64_t bytes = kBytes) : LunInMemory(bytes) {}
  media::Superblock& backup() { return *reinterpret_cast<media::Superblock*>(memory.data() + memory.size() - 4096); }
};

// A file of its own in the current directory's file system; unlinked at the end.
struct TempFile {
  std::string path;
  explicit TempFile(uint64_t bytes = kBytes) {
    char name[] = "./lun-test-XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    close(fd);
    path = name;
  }
  ~TempFile() { unlink(path.c_str()); }
  PhysicalLun* open(Format format, int expected = 0, ErrorText* why = nullptr) const {
    ErrorText unsaid;
    DeviceOptions options;
    options.scratch = false;
    Device* raw = nullptr;
    PhysicalLun* lun = nullptr;
    int status = device_open(path.c_str(), options, &raw, why ? why : &unsaid);
    if (status == 0) status = PhysicalLun::open(raw, format, &lun, why ? why : &unsaid);
    INFO((why ? why : &unsaid)->text);
    CHECK(status == expected);
    return lun;
  }
};

void make(Medium& medium, const char* name, uint64_t bytes) {
  VirtualOptions options;
  options.name = name;
  options.create = true;
  options.size_bytes = bytes;
  VirtualLun* lun = nullptr;
  const int status = VirtualLun::open(medium.must(), options, &lun, &medium.why);
  INFO(medium.why.text);
  REQUIRE(status == 0);
  lun->close();
}

unsigned problems(PhysicalLun* lun, bool repair = false) {
  CheckReport report;
  REQUIRE(lun->check(repair, &report) == 0);
  CHECK(report.extents_lost == 0);
  CHECK(report.extents_double == 0);
  return report.problems;
}

}  // namespace

TEST_CASE("geometry: fits every size of device and is read back as it was made") {
  for (uint64_t bytes : {4 * kMiB, 4 * kMiB + 512, 5 * kMiB + 4096, 63 * kMiB, 64 * kMiB, kGiB + 12345 * 512, 64 * kGiB, 65 * kGiB, kTiB, 16 * kTiB}) {
    Geometry g, back;
    REQUIRE(geometry_for(bytes, &g) == 0);
    INFO("device " << bytes << " extent " << g.extent_bytes << " x " << g.extent_count);
    CHECK(g.extent_count <= kExtentsMax);
    CHECK(g.extent_count * g.extent_bytes >= bytes / 2);
    CHECK(g.extent_bytes == (bytes < 64 * kMiB ? 64 * kKiB : bytes <= 64 * kGiB ? kMiB : g.extent_bytes));
    CHECK(g.data_offset + g.extent_count * g.extent_bytes <= g.back_offset);
    media::Superblock super;
    const uint8_t uuid[16] = {1};
    superblock_make(g, uuid, 0, &super);
    CHECK(superblock_look(super) == SuperState::kValid);
    CHECK(superblock_geometry(super, bytes, &back) == 0);
    CHECK(back.slot_offset(3) == g.slot_offset(3));
    CHECK(superblock_geometry(super, bytes - 4096, &back) == -ENOSPC);
  }
  Geometry g;
  CHECK(geometry_for(4 * kMiB - 1, &g) == -ENOSPC);
}

TEST_CASE("physical: blank is formatted only when asked, and then opens") {
  Medium medium;
  CHECK(medium.open(Format::kNever) == -ENODEV);
  CHECK(medium.says("lunar lun create"));
  CHECK(medium.memory == std::vector<char>(kBytes));
  PhysicalLun* lun = medium.must(Format::kIfBlank);
  PhysicalLunInfo info;
  CHECK(lun->info(&info) == 0);
  CHECK(info.version == 1);
  CHECK(info.extent_bytes == 64 * kKiB);
  CHECK(info.free_bytes == info.usable_bytes);
  CHECK(info.luns == 0);
  CHECK(problems(lun) == 0);
  lun->close();
  CHECK(medium.open(Format::kNever) == 0);
  CHECK(medium.open(Format::kIfBlank) == 0);
}

TEST_CASE("physical: too small, foreign, wrong version: refused with a line, and nothing is touched") {
  Medium small(4 * kMiB - 512);
  CHECK(small.open(Format::kForce) == -ENOSPC);
  CHECK(small.says("4 MiB"));
  Medium foreign;
  foreign.memory[60000] = 1;
  const std::vector<char> before = foreign.memory;
  for (Format format : {Format::kNever, Format::kIfBlank, Format::kRepair}) {
    CHECK(foreign.open(format) == -EEXIST);
    CHECK(foreign.says("unknown data"));
  }
  CHECK(foreign.memory == before);
  memcpy(foreign.memory.data(), "LunarMember", 11);
  CHECK(foreign.open(Format::kIfBlank) == -EEXIST);
  CHECK(foreign.says("member"));
  CHECK(foreign.open(Format::kForce) == 0);
  CHECK(foreign.memory[60000] == 0);

  for (bool sealed : {true, false}) {
    Medium other;
    REQUIRE(other.open(Format::kIfBlank) == 0);
    for (media::Superblock* super : {&other.super(), &other.backup()}) {
      super->version = 2;
      if (sealed) super->checksum = XXH3_64bits(super, offsetof(media::Superblock, checksum));
    }
    const std::vector<char> newer = other.memory;
    for (Format format : {Format::kNever, Format::kIfBlank, Format::kRepair}) {
      CHECK(other.open(format) == -EPROTONOSUPPORT);
      CHECK(other.says("version 2"));
    }
    CHECK(other.memory == newer);
  }
}

TEST_CASE("physical: a device smaller than it was is refused; a larger one opens") {
  Medium medium;
  REQUIRE(medium.open(Format::kIfBlank) == 0);
  medium.memory.resize(kBytes - 4096);
  CHECK(medium.open(Format::kNever) == -ENOSPC);
  CHECK(medium.says("was 8 MiB"));
  medium.memory.resize(kBytes);
  CHECK(medium.open(Format::kNever) == 0);   // its backup superblock is written again
  medium.memory.resize(2 * kBytes);
  CHECK(medium.open(Format::kNever) == 0);
}

TEST_CASE("physical: superblock copies mend each other") {
  Medium medium;
  REQUIRE(medium.open(Format::kIfBlank) == 0);
  make(medium, "kept", 100 * kKiB);
  const std::vector<char> sound = medium.memory;
  medium.memory[100] ^= 1;   // in the primary: its magic stands
  PhysicalLun* lun = medium.must();
  PhysicalLunInfo info;
  CHECK(lun->info(&info) == 0);
  CHECK(info.repaired);
  lun->close();
  CHECK(medium.memory == sound);
  medium.backup().uuid[3] ^= 1;
  CHECK(medium.open(Format::kNever) == 0);
  CHECK(medium.memory == sound);
  // Erased: only by name.
  memset(medium.memory.data(), 0, 4096);
  CHECK(medium.open(Format::kNever) == -EBADMSG);
  CHECK(medium.says("--repair"));
  CHECK(medium.open(Format::kIfBlank) == -EBADMSG);
  CHECK(medium.open(Format::kRepair) == 0);
  CHECK(medium.memory == sound);
  medium.super().checksum ^= 1;
  medium.backup().checksum ^= 1;
  CHECK(medium.open(Format::kNever) == -EBADMSG);
}

TEST_CASE("physical: one damaged image is mended, two are refused, proven ones repaired") {
  Medium medium;
  REQUIRE(medium.open(Format::kIfBlank) == 0);
  make(medium, "a", 100 * kKiB);
  make(medium, "b", 100 * kKiB);
  const std::vector<char> sound = medium.memory;
  for (unsigned first = 0; first < 4; ++first) {
    medium.memory = sound;
    medium.slot(first)[5000] ^= 4;
    PhysicalLun* lun = medium.must();
    CHECK(problems(lun) == 1);
    lun->close();
    CHECK(medium.memory == sound);
    for (unsigned second = first + 1; second < 4; ++second) {
      medium.memory = sound;
      medium.slot(first)[5000] ^= 4;
      medium.slot(second)[200] ^= 1;
      const std::vector<char> damaged = medium.memory;
      CHECK(medium.open(Format::kNever) == -EBADMSG);
      CHECK(medium.says("checksum"));
      CHECK(medium.open(Format::kIfBlank) == -EBADMSG);
      CHECK(medium.memory == damaged);
      const bool proven = (first ^ second) != 2;
      CHECK(medium.open(Format::kRepair) == (proven ? 0 : -EBADMSG));
      CHECK(medium.memory == (proven ? sound : damaged));
    }
  }
}

TEST_CASE("physical: valid checksums over nonsense are refused") {
  Medium medium;
  REQUIRE(medium.open(Format::kIfBlank) == 0);
  make(medium, "a", 200 * kKiB);
  make(medium, "b", 100 * kKiB);
  const std::vector<char> sound = medium.memory;
  const Geometry g = medium.geometry();
  const LunIdentity identity(medium.super());
  std::vector<uint64_t> room(g.image_bytes / 8);
  const auto judge = [&](auto&& change) {
    medium.memory = sound;
    const char* newest = medium.slot(0);
    for (unsigned i = 1; i < 2; ++i) {
      if (reinterpret_cast<const media::ImageHeader*>(medium.slot(i))->sequence > reinterpret_cast<const media::ImageHeader*>(newest)->sequence)
        newest = medium.slot(i);
    }
    memcpy(room.data(), newest, g.image_bytes);
    MetadataImage image{reinterpret_cast<char*>(room.data()), &g};
    change(image);
    image_seal(image, identity);
    const unsigned place = image.header().sequence % 2;
    memcpy(medium.slot(place), room.data(), g.image_bytes);
    memcpy(medium.slot(place + 2), room.data(), g.image_bytes);
    return medium.open(Format::kNever);
  };
  CHECK(judge([](MetadataImage&) {}) == 0);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].extents = 3; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].extents = UINT64_MAX; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].size_bytes = 257 * 1024; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].size_bytes = 1000; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].flags |= 4; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].flags = 0; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].reserved[3] = 1; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].name[0] = '/'; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].name[0] = 'b'; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[0].name[20] = 'b'; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.entries()[5].created_s = 1; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.extents()[0].lun = 9; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.extents()[0].lun = UINT32_MAX; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.extents()[0].position = 1; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.extents()[0].position = UINT32_MAX; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.extents()[60].position = 1; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.header().previous ^= 1; }) == -EBADMSG);
  CHECK(judge([](MetadataImage& i) { i.header().sequence += 2; }) == -EBADMSG);
}

TEST_CASE("physical: names, removal and listing") {
  Medium medium;
  REQUIRE(medium.open(Format::kIfBlank) == 0);
  for (const char* name : {"a", "A.b_c-9", "0123456789012345678901234567890"}) make(medium, name, 0);
  PhysicalLun* lun = medium.must();
  VirtualLunInfo list[8];
  CHECK(lun->list(list, 8, 0) == 3);
  CHECK(std::string(list[1].name) == "A.b_c-9");
  CHECK_FALSE(list[1].in_use);
  CHECK(lun->list(list, 8, 1) == 2);
  CHECK(lun->list(list, 1, 0) == 1);
  ErrorText why;
  CHECK(lun->remove("nobody", &why) == -ENOENT);
  CHECK(lun->remove("", &why) == -EINVAL);
  CHECK(lun->remove("A.b_c-9", &why) == 0);
  CHECK(lun->remove("A.b_c-9", &why) == -ENOENT);
  CHECK(lun->list(list, 8, 0) == 2);
  lun->close();
  for (const char* name : {"", "-a", ".a", "a/b", "a b", "01234567890123456789012345678901"}) {
    CHECK_FALSE(lun_name_legal(name));
  }
}

TEST_CASE("physical: a format that holds no named LUN is ended, and a kill between any two writes leaves what is as good as blank") {
  for (const bool discard : {false, true}) {
    Medium medium;
    REQUIRE(medium.open(Format::kIfBlank) == 0);
    make(medium, "", 300 * kKiB);   // a scratch LUN, whose owner is gone
    const std::vector<char> before = medium.memory;
    const Geometry geometry = medium.geometry();
    lunar_test::MemoryShape shape;
    shape.discard = discard;
    const auto end = [&](int64_t fail_after) {
      MemoryDevice* device = medium.raw(shape);
      PhysicalLun* lun = nullptr;
      int status = PhysicalLun::open(device, Format::kEnd, &lun, &medium.why);
      device->fail_after = fail_after;
      if (status == 0) {
        status = lun->end(&medium.why);
        lun->close();
      }
      return status;
    };
    bool ended = false;
    for (int64_t writes = 0; !ended; ++writes) {
      INFO("discard " << discard << " writes " << writes);
      REQUIRE(writes < 1000);
      medium.memory = before;
      ended = end(writes) == 0;
      const std::vector<char> left = medium.memory;
      CHECK((left == before) == (writes == 0));
      CHECK(medium.open(Format::kNever) == (writes == 0 ? 0 : -ENODEV));
      CHECK(medium.open(Format::kIfBlank) == 0);   // formatted anew
      CHECK(medium.open(Format::kNever) == 0);
      medium.memory = left;
      const int again = end(-1);
      CHECK(again == (bytes_are_zero(left.data(), sizeof(media::Superblock)) ? -ENODEV : 0));   // blank where only the last flush failed
      CHECK(std::vector<char>(medium.memory.begin(), medium.memory.begin() + static_cast<long>(geometry.data_offset)) ==
            std::vector<char>(geometry.data_offset));
      CHECK(std::vector<char>(medium.memory.begin() + static_cast<long>(geometry.back_offset), medium.memory.end()) ==
            std::vector<char>(kBytes - geometry.back_offset));
    }
  }
}

TEST_CASE("physical: what outlives its owners, or is not understood, is not ended") {
  Medium medium;
  REQUIRE(medium.open(Format::kIfBlank) == 0);
  make(medium, "keep", 300 * kKiB);
  make(medium, "too", 300 * kKiB);
  std::vector<char> before = medium.memory;
  const auto end = [&] {
    PhysicalLun* lun = medium.must(Format::kEnd);
    const int status = lun->end(&medium.why);
    lun->close();
    return status;
  };
  CHECK(end() == -EBUSY);
  CHECK(medium.says("keep (and 1 more)"));
  CHECK(medium.says("lunar lun remove 'memory:#keep'"));
  CHECK(medium.memory == before);
  for (const char* name : {"keep", "too"}) {
    PhysicalLun* lun = medium.must();
    REQUIRE(lun->remove(name, &medium.why) == 0);
    lun->close();
  }
  before = medium.memory;
  for (unsigned i = 0; i < 4; ++i) {   // one out of form is what a crash leaves; more may be anything
    medium.memory = before;
    medium.slot(i)[5000] ^= 4;
    CHECK(end() == 0);
    medium.memory = before;
    medium.slot(i)[5000] ^= 4;
    medium.slot(i ^ 1)[5000] ^= 4;
    CHECK(medium.open(Format::kEnd) == -EBADMSG);
  }
  const Geometry geometry = [&] {
    medium.memory = before;
    return medium.geometry();
  }();
  for (unsigned i = 0; i < 4; ++i) {   // compatible features of a later version: it may keep what is not an entry
    const MetadataImage image{medium.slot(i), &geometry};
    image.header().features_compatible = 1;
    image.header().checksum = XXH3_64bits(&image.header(), offsetof(media::ImageHeader, checksum));
  }
  for (unsigned i = 0; i < 4; ++i) {   // each names the one before it
    const MetadataImage image{medium.slot(i), &geometry}, other{medium.slot(i ^ 1), &geometry};
    if (image.header().sequence != other.header().sequence + 1) continue;
    image.header().previous = other.header().checksum;
    image.header().checksum = XXH3_64bits(&image.header(), offsetof(media::ImageHeader, checksum));
  }
  REQUIRE(medium.open(Format::kNever) == 0);
  before = medium.memory;
  CHECK(end() == -EROFS);
  CHECK(medium.memory == before);
}

TEST_CASE("physical: a failing device is an error, never a lie") {
  for (int64_t writes = 0; writes < 12; ++writes) {
    Medium medium;
    REQUIRE(medium.open(Format::kIfBlank) == 0);
    MemoryDevice* raw = medium.raw();
    PhysicalLun* lun = nullptr;
    REQUIRE(PhysicalLun::open(raw, Format::kNever, &lun, &medium.why) == 0);
    raw->fail_after = writes;
    VirtualOptions options;
    options.name = "x";
    options.create = true;
    options.size_bytes = 100 * kKiB;
    VirtualLun* made = nullptr;
    const int status = VirtualLun::open(lun, options, &made, &medium.why);
    if (made) made->close();
    lun = medium.must();
    VirtualLunInfo list[2];
    const int there = lun->list(list, 2, 0);
    if (status == 0) CHECK(there == 1);
    if (there == 1) CHECK(list[0].size_bytes == 100 * kKiB);
    CHECK((status == 0 || status == -EIO));
    lun->close();
  }
}

TEST_CASE("physical: in a file, formatting what others have open is refused") {
  TempFile file;
  PhysicalLun* one = file.open(Format::kIfBlank);
  PhysicalLun* two = file.open(Format::kIfBlank);
  REQUIRE(one);
  REQUIRE(two);
  file.open(Format::kForce, -EBUSY);
  one->close();
  file.open(Format::kForce, -EBUSY);
  two->close();
  PhysicalLun* three = file.open(Format::kForce);
  REQUIRE(three);
  three->close();
}

TEST_CASE("physical: the metadata lock goes with its holder, not with a child forked meanwhile") {
  TempFile file;
  file.open(Format::kIfBlank)->close();
  DeviceOptions options;
  options.scratch = false;
  ErrorText why;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t holder = fork();
  if (holder == 0) {
    Device* raw = nullptr;
    LunLocks locks;
    if (device_open(file.path.c_str(), options, &raw, &why) < 0) _exit(1);
    locks.init(raw);
    if (locks.lock_metadata(false, &why) < 0) _exit(1);
    if (fork() == 0) {
      char byte = 'c';
      (void)!write(ready[1], &byte, 1);
      usleep(2'000'000);
      _exit(0);
    }
    pause();
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  kill(holder, SIGKILL);
  int how = 0;
  REQUIRE(waitpid(holder, &how, 0) == holder);
  CHECK(WIFSIGNALED(how));
  const uint64_t start = sys::now_ns();
  PhysicalLun* lun = file.open(Format::kNever);
  REQUIRE(lun);
  CHECK(sys::now_ns() - start < 1'000'000'000);
  lun->close();
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("physical: a file opened for reading is refused") {
  TempFile file;
  file.open(Format::kIfBlank)->close();
  DeviceOptions options;
  options.scratch = false;
  options.read_only = true;
  Device* raw = nullptr;
  ErrorText why;
  REQUIRE(device_open(file.path.c_str(), options, &raw, &why) == 0);
  PhysicalLun* lun = nullptr;
  CHECK(PhysicalLun::open(raw, Format::kNever, &lun, &why) == -EROFS);
}

TEST_CASE("physical: a scratch file of the plain kind and a file system are named") {
  TempFile file;
  Device* scratch = nullptr;
  ErrorText why;
  REQUIRE(device_open(file.path.c_str(), {}, &scratch, &why) == 0);
  file.open(Format::kIfBlank, -EBUSY, &why);
  device_close(scratch);
  file.open(Format::kIfBlank, -EEXIST, &why);
  CHECK(strstr(why.text, "scratch LUN"));
  const int fd = open(file.path.c_str(), O_RDWR);
  REQUIRE(ftruncate(fd, 0) == 0);
  REQUIRE(ftruncate(fd, kBytes) == 0);
  const char swap[] = "SWAPSPACE2";
  const uint32_t header[3] = {1, 2047, 0};
  REQUIRE(pwrite(fd, swap, 10, 4086) == 10);
  REQUIRE(pwrite(fd, header, sizeof header, 1024) == sizeof header);
  close(fd);
  file.open(Format::kIfBlank, -EEXIST, &why);
  CHECK(strstr(why.text, "swap"));
}
