// SPDX-License-Identifier: Apache-2.0
// Content after a power loss: writes with fua and flushed writes stay, through every device and
// composite. Others may be lost, and on simulated media with a cache they are.
#include <algorithm>
#include <optional>
#include <sstream>

#include "lun/volume/virtual_lun.h"
#include "superpipe/registry.h"
#include "superpipe/sim/sim_backing.h"
#include "tests/support/loop_device.h"
#include "tests/unit/lun/composite.h"

using namespace lunar;
using namespace composite;

namespace {

constexpr uint64_t kKept = 200 * kKiB;  // more than one chunk, one extent

// A device whose every backing device loses its power at once.
struct Bed {
  Device* device = nullptr;
  std::vector<Device*> media;  // a handle on each, from its name

  std::string sim_uri(const char* more = "") {
    const std::string uri = named("8m", fresh()) + ",cache=2m";
    Device* handle = nullptr;
    ErrorText why;
    REQUIRE(device_open(uri.c_str(), kRaw, &handle, &why) == 0);
    media.push_back(handle);
    return uri + more;
  }
  VirtualLun* carve(const std::string& uri, const char* name, uint64_t bytes) {
    PhysicalLun* physical = nullptr;
    ErrorText why;
    REQUIRE(PhysicalLun::open(open(uri), Format::kIfBlank, &physical, &why) == 0);
    VirtualOptions options;
    options.name = name;
    options.create = true;
    options.size_bytes = bytes;
    VirtualLun* lun = nullptr;
    const int status = VirtualLun::open(physical, options, &lun, &why);
    INFO(why.text);
    REQUIRE(status == 0);
    return lun;
  }
  // faults: settings of the last device; others: of the first, where there are two.
  explicit Bed(const std::string& kind, const char* faults = "", const char* others = "") {
    if (kind == "sim") device = open(sim_uri(faults));
    if (kind == "stripe") {
      const std::string first = sim_uri(others), second = sim_uri(faults);
      device = open("stripe:" + first + ";" + second);
    }
    if (kind == "paths") {
      const std::string one = sim_uri(faults);
      device = open("paths:" + one + ";" + one);
    }
    if (kind == "stripe over paths") {
      const std::string a = sim_uri(others), b = sim_uri(faults);
      device = open("stripe:(paths:" + a + ";" + a + ");(paths:" + b + ";" + b + ")");
    }
    if (kind == "virtual") device = carve(sim_uri(faults), "a", kMiB);
    if (kind == "virtual, in pieces") {
      const std::string uri = sim_uri(faults);
      VirtualLun *one = carve(uri, "a", 64 * kKiB), *other = carve(uri, "b", 64 * kKiB);
      ErrorText why;
      for (unsigned i = 2; i <= 16; ++i) {
        REQUIRE(one->set_size(i * 64 * kKiB, &why) == 0);
        REQUIRE(other->set_size(i * 64 * kKiB, &why) == 0);
      }
      other->close();
      device = one;
    }
    REQUIRE(device);
  }
  ~Bed() {
    device_close(device);
    for (Device* one : media) device_close(one);
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;
  void power_loss(uint64_t seed = 0) {
    for (Device* one : media) sim(one).backing().cut_power(seed);
    for (Device* one : media) sim(one).backing().restore_power();
  }
};

constexpr const char* kKinds[] = {
    "sim", "stripe", "paths", "stripe over paths", "virtual", "virtual, in pieces"};

struct Way {
  Device* device;
  std::optional<Attached> context;
  Way(Device* of, bool by_context) : device(of) {
    if (by_context) context.emplace(of);
  }
  int64_t run(const Command& command) const {
    return context ? one(*context, command) : device->transfer(command);
  }
  int64_t write(uint64_t offset, char value, uint64_t bytes, bool fua) const {
    std::vector<char> data(bytes, value);
    const iovec parts[2] = {
        {data.data(), bytes / 2 / kPage * kPage},
        {data.data() + bytes / 2 / kPage * kPage, bytes - bytes / 2 / kPage * kPage}};
    const bool two = parts[0].iov_len > 0;
    Command command = command_of(Op::kWrite, offset, two ? parts : parts + 1, two ? 2 : 1);
    command.fua = fua;
    return run(command);
  }
  int64_t flush() const { return run(command_of(Op::kFlush, 0, nullptr, 0)); }
};

// How many of the bytes equal `value`.
uint64_t count_of(Device* device, uint64_t offset, uint64_t bytes, char value) {
  std::vector<char> in(bytes, '?');
  REQUIRE(io(device, Op::kRead, offset, in.data(), bytes) == static_cast<int64_t>(bytes));
  return static_cast<uint64_t>(std::count(in.begin(), in.end(), value));
}

}  // namespace

TEST_CASE("durability: a write with fua survives a power loss, one without does not") {
  for (const char* kind : kKinds) {
    for (bool by_context : {true, false}) {
      INFO(kind << (by_context ? ", by a context" : ", by transfer"));
      Bed bed(kind);
      CHECK(bed.device->capabilities().fua == Fua::kWriteThrough);
      {
        const Way way(bed.device, by_context);
        CHECK(way.write(0, 'a', kPage, false) == kPage);
        CHECK(way.write(32 * kKiB, 'k', kKept, true) == static_cast<int64_t>(kKept));
        CHECK(way.write(512 * kKiB, 'b', kPage, false) == kPage);
        CHECK(count_of(bed.device, 512 * kKiB, kPage, 'b') == kPage);
      }
      bed.power_loss();
      CHECK(count_of(bed.device, 32 * kKiB, kKept, 'k') == kKept);
      CHECK(count_of(bed.device, 0, kPage, 'a') == 0);
      CHECK(count_of(bed.device, 512 * kKiB, kPage, 'b') == 0);
    }
  }
}

TEST_CASE("durability: what completed before a flush was submitted survives it") {
  for (const char* kind : kKinds) {
    for (bool by_context : {true, false}) {
      INFO(kind << (by_context ? ", by a context" : ", by transfer"));
      Bed bed(kind);
      {
        const Way way(bed.device, by_context);
        CHECK(way.write(0, 'x', kKept, false) == static_cast<int64_t>(kKept));
        CHECK(way.write(kPage, 'y', kPage, false) == kPage);  // over a part of it
        CHECK(way.flush() == 0);
        CHECK(way.write(kPage, 'z', kPage, false) == kPage);
      }
      bed.power_loss();
      CHECK(count_of(bed.device, 0, kKept, 'x') == kKept - kPage);
      CHECK(count_of(bed.device, kPage, kPage, 'y') == kPage);
    }
  }
}

TEST_CASE("durability: a flush covers what other contexts and transfers completed") {
  for (const char* kind : kKinds) {
    INFO(kind);
    Bed bed(kind);
    {
      const Way one(bed.device, true), two(bed.device, true), none(bed.device, false);
      CHECK(one.write(0, '1', kKept, false) == static_cast<int64_t>(kKept));
      CHECK(none.write(256 * kKiB, '0', kKept, false) == static_cast<int64_t>(kKept));
      CHECK(two.flush() == 0);
    }
    bed.power_loss();
    CHECK(count_of(bed.device, 0, kKept, '1') == kKept);
    CHECK(count_of(bed.device, 256 * kKiB, kKept, '0') == kKept);
  }
}

TEST_CASE("durability: a flush says nothing of what was in flight when it was submitted") {
  for (const char* kind : {"sim", "stripe", "virtual"}) {
    INFO(kind);
    Bed bed(kind);
    std::vector<char> page(kPage, 'f');
    const iovec part = {page.data(), kPage};
    const Command commands[2] = {command_of(Op::kWrite, 0, &part, 1),
                                 command_of(Op::kFlush, 0, nullptr, 0)};
    {
      const Attached context(bed.device);
      REQUIRE(context->submit(commands, 2) == 2);
      Response response;
      for (int i = 0; i < 2; ++i) {
        REQUIRE(context->wait(&response, 1, -1) == 1);
        CHECK(response.result >= 0);
      }
    }
    bed.power_loss();
    CHECK(count_of(bed.device, 0, kPage, 'f') == 0);
  }
}

TEST_CASE("durability: a flush fails when one member's fails") {
  for (const char* kind : kKinds) {
    if (strncmp(kind, "virtual", 7) == 0) continue;  // its metadata would not come to be
    for (bool by_context : {true, false}) {
      INFO(kind << (by_context ? ", by a context" : ", by transfer"));
      Bed bed(kind);
      for (Device* one : bed.media) sim(one).set_failing(false, false);
      const Way way(bed.device, by_context);
      CHECK(way.write(0, 'x', kKept, false) == static_cast<int64_t>(kKept));
      Device* last = bed.media.back();
      sim(last).backing().cut_power_at(1, 0);
      CHECK(way.flush() == -EIO);
      sim(last).backing().restore_power();
      CHECK(way.flush() == 0);
    }
  }
}

TEST_CASE("sim: a flush that fails or is lost makes nothing durable") {
  for (const char* fault : {",flush_error=1", ",lost_flush=1"}) {
    Bed bed("sim", fault);
    const Way way(bed.device, false);
    CHECK(way.write(0, 'x', kPage, false) == kPage);
    CHECK(way.flush() == (fault[1] == 'f' ? -EIO : 0));
    CHECK(sim(bed.device).counters().flushes == 1);
    bed.power_loss();
    CHECK(count_of(bed.device, 0, kPage, 'x') == 0);
  }
}

TEST_CASE("sim: a power loss keeps, loses and tears what was not flushed, at sectors") {
  unsigned whole = 0, lost = 0, torn = 0;
  for (uint64_t run = 1; run <= 300; ++run) {
    Bed bed("sim");
    const Way way(bed.device, false);
    CHECK(way.write(0, 'o', kPage, true) == kPage);
    CHECK(way.write(0, 'n', kPage, false) == kPage);
    bed.power_loss(seed() + run);
    const uint64_t fresh_bytes = count_of(bed.device, 0, kPage, 'n');
    REQUIRE(fresh_bytes + count_of(bed.device, 0, kPage, 'o') == kPage);
    for (uint64_t at = 0; at < kPage; at += 512)
      REQUIRE(count_of(bed.device, at, 512, 'n') % 512 == 0);
    ++(fresh_bytes == kPage ? whole : fresh_bytes == 0 ? lost : torn);
  }
  CHECK(whole > 50);
  CHECK(lost > 50);
  CHECK(torn > 50);
}

TEST_CASE("sim: without a cache a power loss takes only what was under way") {
  Device* device = open(named("1m", fresh()));
  CHECK(device->capabilities().fua == Fua::kFree);
  const Way way(device, false);
  CHECK(way.write(0, 'a', kPage, false) == kPage);
  sim(device).backing().cut_power_at(2, 0);
  CHECK(way.write(kPage, 'b', kPage, false) == kPage);
  CHECK(way.write(2 * kPage, 'c', kPage, true) == -EIO);
  CHECK(way.write(3 * kPage, 'd', kPage, false) == -EIO);  // there is no power
  CHECK(way.flush() == -EIO);
  sim(device).backing().restore_power();
  CHECK(count_of(device, 0, kPage, 'a') == kPage);
  CHECK(count_of(device, kPage, kPage, 'b') == kPage);
  CHECK(count_of(device, 2 * kPage, kPage, 'c') == 0);
  CHECK(way.write(3 * kPage, 'd', kPage, false) == kPage);
  device_close(device);
}

TEST_CASE("sim: a command from before a power loss does not come through after it") {
  Device* device = open(named("1m", fresh()) + ",cache=64k,latency_us=1000");
  std::optional<Attached> holder(device);
  Context* context = *holder;
  std::vector<char> page(kPage, 'l');
  const iovec part = {page.data(), kPage};
  Command command = command_of(Op::kWrite, 0, &part, 1);
  command.fua = true;
  REQUIRE(context->submit(&command, 1) == 1);
  sim(device).backing().cut_power(1);
  sim(device).backing().restore_power();
  Response response;
  REQUIRE(context->wait(&response, 1, -1) == 1);
  CHECK(response.result == -EIO);
  CHECK(count_of(device, 0, kPage, 'l') == 0);
  holder.reset();
  device_close(device);
}

// Random writes, discards, flushes and fua writes of sectors against what may be there: a sector
// holds what was last made durable, or anything that was written to it since.
TEST_CASE("sim: histories of a cache against a model") {
  std::mt19937_64 random(seed());
  for (int run = 0; run < 200; ++run) {
    constexpr uint64_t kSectors = 64;
    Device* device = open(named("64k", fresh()) + ",cache=" + (run % 2 ? "4k" : "1m"));
    std::vector<std::vector<char>> may(kSectors, std::vector<char>(1, '\0'));
    const Way way(device, false);
    for (int step = 0; step < 60; ++step) {
      const uint64_t first = random() % kSectors,
                     count = 1 + random() % std::min<uint64_t>(20, kSectors - first);
      const char value = static_cast<char>(1 + step);
      const uint64_t kind = random() % 8;
      if (kind == 0) {
        REQUIRE(way.flush() == 0);
        for (auto& sector : may) sector.erase(sector.begin(), sector.end() - 1);
        continue;
      }
      std::vector<char> data(count * 512, value);
      const iovec part = {data.data(), data.size()};
      Command command = command_of(kind == 1 ? Op::kDiscard : Op::kWrite, first * 512, &part, 1);
      command.length = count * 512;
      command.fua = kind == 2;
      REQUIRE(device->transfer(command) == (kind == 1 ? 0 : static_cast<int64_t>(data.size())));
      for (uint64_t i = first; i < first + count; ++i) {
        if (kind == 2) may[i].clear();
        may[i].push_back(kind == 1 ? '\0' : value);
      }
    }
    sim(device).backing().cut_power(seed() + static_cast<uint64_t>(run) + 1);
    sim(device).backing().restore_power();
    for (uint64_t i = 0; i < kSectors; ++i) {
      const char* at = sim(device).memory() + i * 512;
      REQUIRE(std::count(at, at + 512, *at) == 512);
      REQUIRE(std::find(may[i].begin(), may[i].end(), *at) != may[i].end());
    }
    device_close(device);
  }
}

// By the disk's own count: each durable write asks a disk without FUA for a flush, other writes do
// not.
TEST_CASE("durability: fua of a block device and of a file reaches the disk") {
  if (geteuid() != 0) LUNAR_SKIP("root", "loop devices need root");
  const MemberFiles files("", 16 * kMiB);
  const lunar_test::Loop loop(files.paths[0]);
  if (loop.name.empty()) LUNAR_SKIP("loop", "no free loop device");
  const auto flushes = [&] {
    const std::string line =
        lunar_test::output_of("cut -c1- /sys/block/" + loop.name.substr(5) + "/stat");
    unsigned long long field[17] = {};
    std::istringstream words(line);
    for (auto& one : field) words >> one;
    return field[15];
  };
  Device* device = open(loop.name);
  CHECK(device->capabilities().fua == Fua::kFlush);  // it has no FUA, and flushes instead
  const lunar_test::Pages pages(16);
  const iovec one_part[1] = {{pages.base, pages.bytes}},
              two[2] = {{pages.base, kPage}, {pages.page(8), kPage}};
  {
    const Attached ring(device),
        window(device, {.buffer = pages.base, .buffer_bytes = pages.bytes});
    for (Context* context : {static_cast<Context*>(nullptr), ring.context, window.context}) {
      for (uint32_t count : {1u, 2u}) {
        Command command = command_of(Op::kWrite, 0, count == 1 ? one_part : two, count);
        const auto bytes = static_cast<int64_t>(count == 1 ? pages.bytes : 2 * kPage);
        for (const bool fua : {false, true}) {
          const auto before = flushes();
          command.fua = fua;
          CHECK((context ? one(context, command) : device->transfer(command)) == bytes);
          CHECK((flushes() > before) == fua);
        }
      }
    }
  }
  device_close(device);
}
