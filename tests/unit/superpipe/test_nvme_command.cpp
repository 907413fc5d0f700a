// SPDX-License-Identifier: Apache-2.0
// NVMe without a device: identify data becomes limits, commands are cut into pieces that cover them
// once and in order, refusals name the device to give instead.
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "superpipe/device.h"
#include "superpipe/nvme/nvme_command.h"
#include "superpipe/registry.h"
#include "tests/catch.h"
#include "tests/support/devices_by_uri.h"
#include "tests/support/seed.h"

using namespace lunar;
using lunar_test::has;
using lunar_test::kRaw;
using lunar_test::refused;

namespace {

struct Identify {
  uint8_t name_space[4096] = {}, controller[4096] = {};
  Identify() {
    const uint64_t blocks = 1 << 20;
    memcpy(name_space, &blocks, sizeof blocks);
    name_space[26] = 1;            // the second format
    name_space[128 + 4 + 2] = 12;  // of 4096 bytes
    name_space[33] = 9;            // deallocated blocks read as zeros, DEAC
    controller[77] = 5;            // 128 KiB
    controller[520] = 4 | 8;       // deallocate, write zeroes
  }
  int examine(NvmeGeometry* out, const char** reason) const {
    return nvme_geometry(name_space, controller, out, reason);
  }
};

}  // namespace

TEST_CASE("nvme: identify data gives block size, limits and what may be discarded") {
  Identify data;
  NvmeGeometry geometry;
  const char* reason = nullptr;
  REQUIRE(data.examine(&geometry, &reason) == 0);
  CHECK(geometry.block_shift == 12);
  CHECK(geometry.blocks == 1 << 20);
  CHECK(geometry.piece_bytes_max == 128 * 1024);
  CHECK((geometry.write_zeroes && geometry.deallocate && geometry.deallocate_zeroed));
  data.controller[77] = 0;  // no limit
  data.controller[520] = 0;
  data.name_space[33] = 0;
  REQUIRE(data.examine(&geometry, &reason) == 0);
  CHECK(geometry.piece_bytes_max == 1024 * 1024);
  CHECK_FALSE((geometry.write_zeroes || geometry.deallocate || geometry.deallocate_zeroed));
  data.name_space[128 + 4] = 8;  // metadata
  CHECK(data.examine(&geometry, &reason) == -ENOTSUP);
  CHECK(has(reason, "metadata"));
  data.name_space[128 + 4] = 0;
  data.name_space[128 + 4 + 2] = 14;
  CHECK(data.examine(&geometry, &reason) == -ENOTSUP);
}

TEST_CASE("nvme: a command that the namespace cannot do is answered without it") {
  NvmeGeometry geometry;
  geometry.block_shift = 12;
  geometry.blocks = 100;
  alignas(4096) static char page[8192];
  iovec part = {page, 4096};
  Command command;
  command.iov = &part;
  command.iov_count = 1;
  CHECK(nvme_check(geometry, 0, command) == 0);
  CHECK(nvme_check(geometry, 100 * 4096, command) == kNothingToRead);
  command.offset = DeviceOffset{99 * 4096};
  CHECK(nvme_check(geometry, 0, command) == 0);
  part.iov_len = 8192;
  CHECK(nvme_check(geometry, 0, command) == -EINVAL);
  command.op = Op::kWrite;
  CHECK(nvme_check(geometry, 0, command) == -ENOSPC);
  part.iov_len = 512;
  CHECK(nvme_check(geometry, 0, command) == -EINVAL);
  command.offset = DeviceOffset{512};
  CHECK(nvme_check(geometry, 0, command) == -EINVAL);
  command.op = Op::kDiscard;
  command.offset = DeviceOffset{0};
  command.length = 4096;
  CHECK(nvme_check(geometry, 0, command) == -EOPNOTSUPP);
  geometry.write_zeroes = true;
  CHECK(nvme_check(geometry, 0, command) == 0);
  geometry.read_only = true;
  CHECK(nvme_check(geometry, 0, command) == -EBADF);
  geometry.read_only = false;
  command.length = 101 * 4096;
  CHECK(nvme_check(geometry, 0, command) == -EINVAL);
}

TEST_CASE("nvme: fua is a bit of each piece of a write, and of nothing else") {
  Identify data;
  NvmeGeometry geometry;
  const char* reason = nullptr;
  REQUIRE(data.examine(&geometry, &reason) == 0);
  CHECK_FALSE(geometry.volatile_cache);
  data.controller[525] = 1;
  REQUIRE(data.examine(&geometry, &reason) == 0);
  CHECK(geometry.volatile_cache);
  constexpr uint32_t kFua = 1u << 30;
  std::vector<char> memory(1 << 20);
  const iovec part = {memory.data(), memory.size()};
  for (Op op : {Op::kWrite, Op::kRead, Op::kDiscard, Op::kFlush}) {
    for (bool fua : {true, false}) {
      Command command;
      command.op = op;
      command.iov = &part;
      command.iov_count = 1;
      command.length = memory.size();
      command.fua = fua;
      NvmeProgress progress;
      unsigned pieces = 0;
      do {
        sys::NvmeCommand piece;
        nvme_piece(geometry, 0, command, &progress, &piece);
        CHECK(((piece.cdw12 & kFua) != 0) == (fua && op == Op::kWrite));
        if (op == Op::kWrite) CHECK((piece.cdw12 & 0xffff) == 128 * 1024 / 4096 - 1);
        ++pieces;
      } while (!nvme_advance(command, &progress));
      if (op == Op::kWrite) CHECK(pieces == 8);
    }
  }
}

TEST_CASE("nvme: pieces cover a command once, in order, within the limits") {
  std::mt19937 random(static_cast<unsigned>(tier::run_seed()));
  std::vector<char> memory(8 << 20);
  for (int round = 0; round < 3000; ++round) {
    NvmeGeometry geometry;
    geometry.nsid = 7;
    geometry.block_shift = random() % 2 ? 9 : 12;
    geometry.blocks = uint64_t{1} << 40 >> geometry.block_shift;
    geometry.piece_bytes_max = 4096u << random() % 8;
    geometry.piece_parts_max = 1 + random() % 64;
    geometry.write_zeroes = true;
    geometry.deallocate_zeroed = random() % 2;
    geometry.zeroes_bytes_max = random() % 2 ? 0 : 4096 + random() % (16 << 20);
    const uint64_t zeroes_max =
        geometry.zeroes_bytes_max ? geometry.zeroes_bytes_max : geometry.piece_bytes_max;
    const uint64_t block = uint64_t{1} << geometry.block_shift,
                   data_offset = random() % 2 ? kMiB : 0;
    Command command;
    command.op = static_cast<Op>(random() % 3);
    command.offset =
        DeviceOffset{(uint64_t{random()} << 6) % (geometry.blocks - (64 << 20) / block) * block %
                     (uint64_t{1} << 39)};
    std::vector<iovec> parts(1 + random() % 40);
    std::vector<char*> expected;  // address of each block's memory
    for (iovec& part : parts) {
      part.iov_base = memory.data() + random() % 1000 * 4096;
      part.iov_len = (1 + random() % (random() % 8 ? 8 : 200)) * block;
      for (size_t at = 0; at < part.iov_len; at += block)
        expected.push_back(static_cast<char*>(part.iov_base) + at);
    }
    if (command.op == Op::kDiscard) command.length = (1 + random() % 200000) * block;
    command.iov = parts.data();
    command.iov_count = static_cast<uint32_t>(parts.size());
    REQUIRE(nvme_check(geometry, data_offset, command) == 0);
    NvmeProgress progress;
    uint64_t next = (data_offset + command.offset.value) / block, seen = 0;
    bool finished = false, right = true;
    while (!finished) {
      sys::NvmeCommand piece;
      nvme_piece(geometry, data_offset, command, &progress, &piece);
      const uint64_t count = (piece.cdw12 & 0xffff) + 1;
      right &= (uint64_t{piece.cdw11} << 32 | piece.cdw10) == next &&
               count * block == progress.piece && piece.nsid == 7;
      if (command.op == Op::kDiscard) {
        right &= progress.piece <= zeroes_max && piece.opcode == 8 &&
                 (piece.cdw12 >> 25 & 1) == geometry.deallocate_zeroed && !piece.data;
      } else {
        right &= piece.opcode == (command.op == Op::kRead ? 2 : 1) &&
                 progress.piece <= geometry.piece_bytes_max;
        const auto* vector = static_cast<const iovec*>(piece.data);
        const iovec single = {const_cast<void*>(piece.data), piece.data_bytes};
        const uint32_t parts_now = piece.vector ? piece.data_bytes : 1;
        right &= parts_now <= geometry.piece_parts_max;
        uint64_t at = seen;
        for (uint32_t i = 0; i < parts_now; ++i) {
          const iovec& part = piece.vector ? vector[i] : single;
          for (size_t b = 0; b < part.iov_len; b += block, ++at)
            right &= at < expected.size() && expected[at] == static_cast<char*>(part.iov_base) + b;
        }
        right &= at == seen + count;
      }
      next += count;
      seen += count;
      finished = nvme_advance(command, &progress);
      REQUIRE(right);
    }
    CHECK(seen == (command.op == Op::kDiscard ? command.length / block : expected.size()));
    CHECK(progress.done == seen * block);
  }
}

TEST_CASE("nvme: failures become errno") {
  Command command;
  CHECK(nvme_failure("nvme:test", command, {}, 0x4080) ==
        -EINVAL);                                                 // LBA out of range, do not retry
  CHECK(nvme_failure("nvme:test", command, {}, 0x0281) == -EIO);  // unrecovered read error
  CHECK(nvme_failure("nvme:test", command, {}, 0x0020) == -EROFS);
  CHECK(nvme_failure("nvme:test", command, {}, 0x0370) == -EIO);  // the path is gone
  CHECK(nvme_failure("nvme:test", command, {}, -EINTR) == -EIO);
  CHECK(nvme_failure("nvme:test", command, {}, -ENOMEM) == -ENOMEM);
}

TEST_CASE("nvme: other devices are refused, a block device with the name to give instead") {
  CHECK(has(refused("nvme:/dev/ng99n99", kRaw, -ENOENT), "no such device"));
  CHECK(has(refused("nvme:/dev/null", kRaw, -EINVAL), "/dev/ngXnY"));
  CHECK(has(refused("nvme:/var/tmp", kRaw, -EINVAL), "/dev/ngXnY"));
  if (geteuid() != 0) LUNAR_SKIP("root", "mknod needs root");
  char folder[] = "/var/tmp/lunar-test-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  for (const char* name : {"/nvme3n12", "/nvme3n12p2"}) {
    const std::string node = std::string(folder) + name;
    if (mknod(node.c_str(), S_IFBLK | 0600, makedev(7, 250)) == 0)
      CHECK(has(refused("nvme:" + node, kRaw, -EINVAL), "nvme:/dev/ng3n12 "));
    unlink(node.c_str());
  }
  rmdir(folder);
}
