// SPDX-License-Identifier: Apache-2.0
// The physical LUN: what it opens, formats and refuses, and what it survives.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/xxh3.h"
#include "lun/volume/lun_locks.h"
#include "lun/volume/metadata_image.h"
#include "lun/volume/physical_lun.h"
#include "lun/volume/virtual_lun.h"
#include "lun_in_memory.h"
#include "superpipe/registry.h"
#include "sys/proc.h"
#include "sys/thread.h"
#include "tests/catch.h"
#include "tests/support/lun_file.h"

using namespace lunar;
using lunar_test::MemoryDevice;

namespace {

constexpr uint64_t kBytes = 8 * kMiB;

struct FormatBed : lunar_test::LunInMemory {
  explicit FormatBed(uint64_t bytes = kBytes) : LunInMemory(bytes) {}
  media::Superblock& backup() {
    return *reinterpret_cast<media::Superblock*>(memory.data() + memory.size() - 4096);
  }
};

struct TempFile : lunar_test::LunFile {
  TempFile() : LunFile(kBytes) {}
  PhysicalLun* open(Format format, int expected = 0, ErrorText* why = nullptr) const {
    ErrorText unsaid;
    PhysicalLun* lun = nullptr;
    const int status = lunar_test::open_physical(path.c_str(), format, &lun, why ? why : &unsaid);
    INFO((why ? why : &unsaid)->text);
    CHECK(status == expected);
    return lun;
  }
};

unsigned problems(PhysicalLun* lun, bool repair = false) {
  CheckReport report;
  REQUIRE(lun->check(repair, &report) == 0);
  CHECK(report.extents_lost == 0);
  CHECK(report.extents_double == 0);
  return report.problems;
}

}  // namespace

TEST_CASE("geometry: fits every size of device and is read back as it was made") {
  for (uint64_t bytes : {4 * kMiB, 4 * kMiB + 512, 5 * kMiB + 4096, 63 * kMiB, 64 * kMiB,
                         kGiB + 12345 * 512, 64 * kGiB, 65 * kGiB, kTiB, 16 * kTiB}) {
    Geometry g, back;
    REQUIRE(geometry_for(bytes, &g) == 0);
    INFO("device " << bytes << " extent " << g.extent_bytes << " x " << g.extent_count);
    CHECK(g.extent_count <= kExtentsMax);
    CHECK(g.extent_count * g.extent_bytes >= bytes / 2);
    CHECK(g.extent_bytes == (bytes < 64 * kMiB    ? 64 * kKiB
                             : bytes <= 64 * kGiB ? kMiB
                                                  : g.extent_bytes));
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
  FormatBed bed;
  CHECK(bed.open(Format::kNever) == -ENODEV);
  CHECK(bed.says("lunar lun create"));
  CHECK(bed.memory == std::vector<char>(kBytes));
  PhysicalLun* lun = bed.must(Format::kIfBlank);
  PhysicalLunInfo info;
  CHECK(lun->info(&info) == 0);
  CHECK(info.version == 1);
  CHECK(info.extent_bytes == 64 * kKiB);
  CHECK(info.free_bytes == info.usable_bytes);
  CHECK(info.luns == 0);
  CHECK(problems(lun) == 0);
  lun->close();
  CHECK(bed.open(Format::kNever) == 0);
  CHECK(bed.open(Format::kIfBlank) == 0);
}

TEST_CASE(
    "physical: too small, foreign, wrong version: refused with a line, and nothing is touched") {
  FormatBed small(4 * kMiB - 512);
  CHECK(small.open(Format::kForce) == -ENOSPC);
  CHECK(small.says("4 MiB"));
  FormatBed foreign;
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
    FormatBed other;
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
  FormatBed bed;
  REQUIRE(bed.open(Format::kIfBlank) == 0);
  bed.memory.resize(kBytes - 4096);
  CHECK(bed.open(Format::kNever) == -ENOSPC);
  CHECK(bed.says("was 8 MiB"));
  bed.memory.resize(kBytes);
  CHECK(bed.open(Format::kNever) == 0);  // its backup superblock is written again
  bed.memory.resize(2 * kBytes);
  CHECK(bed.open(Format::kNever) == 0);
}

TEST_CASE("physical: superblock copies repair each other") {
  FormatBed bed;
  REQUIRE(bed.open(Format::kIfBlank) == 0);
  REQUIRE(bed.make("kept", 100 * kKiB) == 0);
  const std::vector<char> sound = bed.memory;
  bed.memory[100] ^= 1;  // in the primary: its magic stands
  PhysicalLun* lun = bed.must();
  PhysicalLunInfo info;
  CHECK(lun->info(&info) == 0);
  CHECK(info.repaired);
  lun->close();
  CHECK(bed.memory == sound);
  bed.backup().uuid[3] ^= 1;
  CHECK(bed.open(Format::kNever) == 0);
  CHECK(bed.memory == sound);
  // An erased superblock is repaired only if --repair asks for it.
  memset(bed.memory.data(), 0, 4096);
  CHECK(bed.open(Format::kNever) == -EBADMSG);
  CHECK(bed.says("--repair"));
  CHECK(bed.open(Format::kIfBlank) == -EBADMSG);
  CHECK(bed.open(Format::kRepair) == 0);
  CHECK(bed.memory == sound);
  bed.super().checksum ^= 1;
  bed.backup().checksum ^= 1;
  CHECK(bed.open(Format::kNever) == -EBADMSG);
}

TEST_CASE("physical: one damaged image is repaired, two are refused, proven ones repaired") {
  FormatBed bed;
  REQUIRE(bed.open(Format::kIfBlank) == 0);
  REQUIRE(bed.make("a", 100 * kKiB) == 0);
  REQUIRE(bed.make("b", 100 * kKiB) == 0);
  const std::vector<char> sound = bed.memory;
  for (unsigned first = 0; first < 4; ++first) {
    bed.memory = sound;
    bed.slot(first)[5000] ^= 4;
    PhysicalLun* lun = bed.must();
    CHECK(problems(lun) == 1);
    lun->close();
    CHECK(bed.memory == sound);
    for (unsigned second = first + 1; second < 4; ++second) {
      bed.memory = sound;
      bed.slot(first)[5000] ^= 4;
      bed.slot(second)[200] ^= 1;
      const std::vector<char> damaged = bed.memory;
      CHECK(bed.open(Format::kNever) == -EBADMSG);
      CHECK(bed.says("checksum"));
      CHECK(bed.open(Format::kIfBlank) == -EBADMSG);
      CHECK(bed.memory == damaged);
      const bool proven = (first ^ second) != 2;
      CHECK(bed.open(Format::kRepair) == (proven ? 0 : -EBADMSG));
      CHECK(bed.memory == (proven ? sound : damaged));
    }
  }
}

TEST_CASE("physical: valid checksums over nonsense are refused") {
  FormatBed bed;
  REQUIRE(bed.open(Format::kIfBlank) == 0);
  REQUIRE(bed.make("a", 200 * kKiB) == 0);
  REQUIRE(bed.make("b", 100 * kKiB) == 0);
  const std::vector<char> sound = bed.memory;
  const Geometry g = bed.geometry();
  const LunIdentity identity(bed.super());
  std::vector<uint64_t> room(g.image_bytes / 8);
  const auto check_result = [&](auto&& change) {
    bed.memory = sound;
    const char* newest = bed.slot(0);
    for (unsigned i = 1; i < 2; ++i) {
      if (reinterpret_cast<const media::ImageHeader*>(bed.slot(i))->sequence >
          reinterpret_cast<const media::ImageHeader*>(newest)->sequence)
        newest = bed.slot(i);
    }
    memcpy(room.data(), newest, g.image_bytes);
    MetadataImage image{reinterpret_cast<char*>(room.data()), &g};
    change(image);
    image_seal(image, identity);
    const unsigned place = image.header().sequence % 2;
    memcpy(bed.slot(place), room.data(), g.image_bytes);
    memcpy(bed.slot(place + 2), room.data(), g.image_bytes);
    return bed.open(Format::kNever);
  };
  CHECK(check_result([](MetadataImage&) {}) == 0);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].extents = 3; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].extents = UINT64_MAX; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].size_bytes = 257 * 1024; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].size_bytes = 1000; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].flags |= 4; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].flags = 0; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].reserved[3] = 1; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].name[0] = '/'; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].name[0] = 'b'; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[0].name[20] = 'b'; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.entries()[5].created_s = 1; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.extents()[0].lun = 9; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.extents()[0].lun = UINT32_MAX; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.extents()[0].position = 1; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.extents()[0].position = UINT32_MAX; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.extents()[60].position = 1; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.header().previous ^= 1; }) == -EBADMSG);
  CHECK(check_result([](MetadataImage& i) { i.header().sequence += 2; }) == -EBADMSG);
}

TEST_CASE("physical: names, removal and listing") {
  FormatBed bed;
  REQUIRE(bed.open(Format::kIfBlank) == 0);
  for (const char* name : {"a", "A.b_c-9", "0123456789012345678901234567890"})
    REQUIRE(bed.make(name, 0) == 0);
  PhysicalLun* lun = bed.must();
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

TEST_CASE(
    "physical: a format that holds no named LUN is ended, and a kill between any two writes leaves "
    "what is as good as "
    "blank") {
  for (const bool discard : {false, true}) {
    FormatBed bed;
    REQUIRE(bed.open(Format::kIfBlank) == 0);
    REQUIRE(bed.make("", 300 * kKiB) == 0);  // a scratch LUN, whose owner is gone
    const std::vector<char> before = bed.memory;
    const Geometry geometry = bed.geometry();
    lunar_test::MemoryShape shape;
    shape.discard = discard;
    const auto end = [&](int64_t fail_after) {
      MemoryDevice* device = bed.raw(shape);
      PhysicalLun* lun = nullptr;
      int status = PhysicalLun::open(device, Format::kEnd, &lun, &bed.why);
      device->fail_after = fail_after;
      if (status == 0) {
        status = lun->end(&bed.why);
        lun->close();
      }
      return status;
    };
    bool ended = false;
    for (int64_t writes = 0; !ended; ++writes) {
      INFO("discard " << discard << " writes " << writes);
      REQUIRE(writes < 1000);
      bed.memory = before;
      ended = end(writes) == 0;
      const std::vector<char> left = bed.memory;
      CHECK((left == before) == (writes == 0));
      CHECK(bed.open(Format::kNever) == (writes == 0 ? 0 : -ENODEV));
      CHECK(bed.open(Format::kIfBlank) == 0);  // formatted anew
      CHECK(bed.open(Format::kNever) == 0);
      bed.memory = left;
      const int again = end(-1);
      // blank where only the last flush failed
      CHECK(again == (bytes_are_zero(left.data(), sizeof(media::Superblock)) ? -ENODEV : 0));
      CHECK(std::vector<char>(bed.memory.begin(),
                              bed.memory.begin() + static_cast<long>(geometry.data_offset)) ==
            std::vector<char>(geometry.data_offset));
      CHECK(std::vector<char>(bed.memory.begin() + static_cast<long>(geometry.back_offset),
                              bed.memory.end()) ==
            std::vector<char>(kBytes - geometry.back_offset));
    }
  }
}

TEST_CASE("physical: what outlives its owners, or is not understood, is not ended") {
  FormatBed bed;
  REQUIRE(bed.open(Format::kIfBlank) == 0);
  REQUIRE(bed.make("keep", 300 * kKiB) == 0);
  REQUIRE(bed.make("too", 300 * kKiB) == 0);
  std::vector<char> before = bed.memory;
  const auto end = [&] {
    PhysicalLun* lun = bed.must(Format::kEnd);
    const int status = lun->end(&bed.why);
    lun->close();
    return status;
  };
  CHECK(end() == -EBUSY);
  CHECK(bed.says("keep (and 1 more)"));
  CHECK(bed.says("lunar lun remove 'memory:#keep'"));
  CHECK(bed.memory == before);
  for (const char* name : {"keep", "too"}) {
    PhysicalLun* lun = bed.must();
    REQUIRE(lun->remove(name, &bed.why) == 0);
    lun->close();
  }
  before = bed.memory;
  for (unsigned i = 0; i < 4;
       ++i) {  // one out of form is what a crash leaves; more may be anything
    bed.memory = before;
    bed.slot(i)[5000] ^= 4;
    CHECK(end() == 0);
    bed.memory = before;
    bed.slot(i)[5000] ^= 4;
    bed.slot(i ^ 1)[5000] ^= 4;
    CHECK(bed.open(Format::kEnd) == -EBADMSG);
  }
}

TEST_CASE("physical: a failing device is an error, never a lie") {
  for (int64_t writes = 0; writes < 12; ++writes) {
    FormatBed bed;
    REQUIRE(bed.open(Format::kIfBlank) == 0);
    MemoryDevice* raw = bed.raw();
    PhysicalLun* lun = nullptr;
    REQUIRE(PhysicalLun::open(raw, Format::kNever, &lun, &bed.why) == 0);
    raw->fail_after = writes;
    VirtualOptions options;
    options.name = "x";
    options.create = true;
    options.size_bytes = 100 * kKiB;
    VirtualLun* made = nullptr;
    const int status = VirtualLun::open(lun, options, &made, &bed.why);
    if (made) made->close();
    lun = bed.must();
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
  ErrorText why;
  int ready[2], over[2];
  REQUIRE((pipe(ready) == 0 && pipe(over) == 0));
  const pid_t holder = fork();
  if (holder == 0) {
    Device* raw = nullptr;
    LunLocks locks;
    if (device_open(file.path.c_str(), {.scratch = false}, &raw, &why) < 0) _exit(1);
    locks.init(raw);
    if (locks.lock_metadata(false, &why) < 0) _exit(1);
    if (fork() == 0) {
      char byte = 'c';
      close(over[1]);
      (void)!write(ready[1], &byte, 1);
      (void)!read(over[0], &byte, 1);  // lives until the LUN has been opened next to it
      _exit(0);
    }
    close(over[1]);
    pause();
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  kill(holder, SIGKILL);
  int how = 0;
  REQUIRE(waitpid(holder, &how, 0) == holder);
  CHECK(WIFSIGNALED(how));
  PhysicalLun* lun = file.open(Format::kNever);
  REQUIRE(lun);
  lun->close();
  for (const int fd : {ready[0], ready[1], over[0], over[1]}) close(fd);
}

TEST_CASE("physical: the locks' descriptors are not taken for the program's") {
  TempFile file;
  file.open(Format::kIfBlank)->close();
  ErrorText why;
  Device* raw = nullptr;
  REQUIRE(device_open(file.path.c_str(), {.scratch = false}, &raw, &why) == 0);
  sys::note_own_descriptor(raw->fd(0), true);
  LunLocks locks;
  locks.init(raw);
  int which = -1;
  const auto program_may_pin = [&] { return sys::descriptors_may_pin("/proc/self/fd", &which); };
  REQUIRE(program_may_pin() == sys::Pinning::kNo);
  REQUIRE(locks.lock_metadata(false, &why) == 0);
  CHECK(program_may_pin() == sys::Pinning::kNo);
  const int held = sys::next_own_descriptor(raw->fd(0) + 1);
  REQUIRE(held >= 0);
  const pid_t child = fork();
  if (child == 0) _exit(sys::is_own_descriptor(held) ? 1 : 0);  // it was closed there
  int how = 0;
  REQUIRE(waitpid(child, &how, 0) == child);
  CHECK(how == 0);
  const int kept = dup(held), other = open("/dev/null", O_RDONLY);
  REQUIRE(dup2(other, held) == held);  // the program takes the number
  const pid_t second = fork();
  if (second == 0) _exit(fcntl(held, F_GETFD) < 0 ? 1 : 0);  // its own file is there
  REQUIRE(waitpid(second, &how, 0) == second);
  CHECK(how == 0);
  REQUIRE(dup2(kept, held) == held);
  close(kept);
  close(other);
  locks.unlock_metadata();
  CHECK_FALSE(sys::is_own_descriptor(held));
  const int before = raw->fd(0);
  REQUIRE(locks.renew() == 0);
  CHECK(program_may_pin() == sys::Pinning::kNo);
  CHECK(sys::is_own_descriptor(raw->fd(0)));
  CHECK((raw->fd(0) == before || !sys::is_own_descriptor(before)));
  sys::note_own_descriptor(raw->fd(0), false);
  CHECK(program_may_pin() == sys::Pinning::kYes);
  device_close(raw);
}

TEST_CASE("physical: a file opened for reading is refused") {
  TempFile file;
  file.open(Format::kIfBlank)->close();
  const DeviceOptions options = {.scratch = false, .read_only = true};
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
