// SPDX-License-Identifier: Apache-2.0
// Virtual LUNs: life and death, size, and the data path against a model.
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "lun/virtual_impl.h"
#include "sys/thread.h"
#include "tests/catch.hpp"
#include "tests/support/lun_device.hpp"
#include "tests/support/lun_file.hpp"

using namespace lunar;
using namespace lunar_test;

namespace {

constexpr uint64_t kBytes = 16 * kMiB, kExtent = 64 * kKiB;

VirtualOptions named(const char* name, uint64_t bytes = 0, bool create = true) {
  VirtualOptions options;
  options.name = name;
  options.create = create;
  options.size_bytes = bytes;
  return options;
}

VirtualLun* must(const std::string& uri, const VirtualOptions& options) {
  VirtualLun* lun = nullptr;
  ErrorText why;
  const int status = open_virtual(uri.c_str(), options, &lun, &why);
  INFO(why.text);
  REQUIRE(status == 0);
  return lun;
}

int refused(const std::string& uri, const VirtualOptions& options, const char* word) {
  VirtualLun* lun = nullptr;
  ErrorText why;
  const int status = open_virtual(uri.c_str(), options, &lun, &why);
  INFO(why.text);
  CHECK(lun == nullptr);
  CHECK(strstr(why.text, word));
  return status;
}

int64_t io(Device* device, Op op, uint64_t offset, void* buffer, uint64_t bytes) {
  const iovec part = {buffer, bytes};
  Command command;
  command.op = op;
  command.offset = DeviceOffset{offset};
  command.iov = &part;
  command.iov_count = 1;
  command.length = bytes;
  return device->transfer(command);
}

// Page-aligned memory.
struct Buffer {
  char* at;
  size_t bytes;
  explicit Buffer(size_t n) : at(static_cast<char*>(map_private(n, ForkPolicy::kInherit))), bytes(n) { REQUIRE(at); }
  ~Buffer() { unmap_private(at, bytes); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

bool zeros(Device* device, uint64_t offset, uint64_t bytes) {
  constexpr uint64_t kPiece = 64 * kKiB;
  Buffer buffer(kPiece);
  bool all = true;
  for (uint64_t at = 0; at < bytes; at += kPiece) {
    const uint64_t part = bytes - at < kPiece ? bytes - at : kPiece;
    REQUIRE(io(device, Op::kRead, offset + at, buffer.at, part) == static_cast<int64_t>(part));
    all &= bytes_are_zero(buffer.at, part);
  }
  return all;
}

// Two LUNs that grew in turn: their extents are not neighbours.
void interleave(const std::string& uri, VirtualLun* lun, unsigned extents) {
  VirtualLun* other = must(uri, named("other"));
  ErrorText why;
  for (unsigned i = 1; i <= extents; ++i) {
    REQUIRE(lun->set_size(i * kExtent, &why) == 0);
    if (i % 3) REQUIRE(other->set_size(i * kExtent, &why) == 0);
  }
  other->close();
}

// Random reads, writes, discards and flushes through a context, many in flight, against a copy in memory.
void against_model(VirtualLun* lun, unsigned depth, unsigned rounds, uint64_t seed) {
  const uint64_t size = lun->used_bytes(), align = lun->io_align() < 4096 ? 4096 : lun->io_align();
  std::vector<char> model(size);
  ContextOptions options;
  options.depth = depth;
  Context* context = nullptr;
  REQUIRE(lun->attach(options, &context) == 0);
  constexpr unsigned kSlots = 24, kParts = 40;
  constexpr uint64_t kMost = 640 * kKiB;
  Buffer memory(kSlots * kMost);
  struct Slot {
    Command command;
    iovec parts[kParts];
    uint64_t length = 0;
    bool busy = false;
  };
  std::vector<Slot> slots(kSlots);
  uint64_t state = seed, done = 0;
  const auto overlaps = [&](uint64_t offset, uint64_t length) {
    for (const Slot& slot : slots) {
      if (slot.busy && offset < slot.command.offset.value + slot.length && slot.command.offset.value < offset + length) return true;
    }
    return false;
  };
  const auto settle = [&](const Response& response) {
    Slot& slot = slots.at(response.tag);
    REQUIRE(slot.busy);
    slot.busy = false;
    ++done;
    const uint64_t at = slot.command.offset.value;
    if (slot.command.op == Op::kRead || slot.command.op == Op::kWrite) REQUIRE(response.result == static_cast<int64_t>(slot.length));
    else REQUIRE(response.result == 0);
    if (slot.command.op == Op::kRead) REQUIRE(memcmp(model.data() + at, memory.at + response.tag * kMost, slot.length) == 0);
  };
  for (unsigned round = 0; round < rounds;) {
    const unsigned index = static_cast<unsigned>(next_random(&state) % kSlots);
    Slot& slot = slots[index];
    const uint64_t length = next_random(&state) % 4 ? align * (1 + next_random(&state) % 4) : align * (1 + next_random(&state) % (kMost / align));
    const uint64_t offset = next_random(&state) % ((size - length) / align + 1) * align;
    if (!slot.busy && !overlaps(offset, length)) {
      char* at = memory.at + index * kMost;
      slot.command = {};
      slot.command.tag = index;
      slot.command.op = next_random(&state) % 20 == 0 ? Op::kDiscard : next_random(&state) % 2 ? Op::kWrite : Op::kRead;
      if (next_random(&state) % 50 == 0) slot.command.op = Op::kFlush;
      slot.length = slot.command.op == Op::kFlush ? 0 : length;
      slot.command.offset = DeviceOffset{offset};
      slot.command.length = slot.length;
      slot.command.iov = slot.parts;
      for (uint64_t cut = 0; cut < length; ++slot.command.iov_count) {
        uint64_t part = align * (1 + next_random(&state) % 32);
        if (slot.command.iov_count + 1 == kParts || part > length - cut) part = length - cut;
        slot.parts[slot.command.iov_count] = {at + cut, part};
        cut += part;
      }
      if (slot.command.op == Op::kWrite) {
        for (uint64_t i = 0; i < length; i += 8) {
          const uint64_t word = next_random(&state);
          memcpy(at + i, &word, 8);
        }
      }
      const int taken = context->submit(&slot.command, 1);
      if (taken == 1) {
        ++round;
        slot.busy = true;
        if (slot.command.op == Op::kWrite) memcpy(model.data() + offset, at, length);
        if (slot.command.op == Op::kDiscard) memset(model.data() + offset, 0, length);
        if (next_random(&state) % 3) continue;
      } else {
        REQUIRE(taken == -EAGAIN);
        REQUIRE(context->in_flight() > 0);
      }
    }
    Response responses[8];
    const int n = context->wait(responses, 8, 1'000'000'000);
    REQUIRE(n >= 0);
    for (int i = 0; i < n; ++i) settle(responses[i]);
  }
  Response response;
  while (context->in_flight()) {
    REQUIRE(context->wait(&response, 1, -1) == 1);
    settle(response);
  }
  REQUIRE(done == rounds);
  lun->detach(context);
  for (uint64_t at = 0; at < size; at += kMost) {
    const uint64_t length = size - at < kMost ? size - at : kMost;
    REQUIRE(io(lun, Op::kRead, at, memory.at, length) == static_cast<int64_t>(length));
    REQUIRE(memcmp(memory.at, model.data() + at, length) == 0);
  }
}

}  // namespace

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
  CHECK(refused(file.path, named("a/b"), "no name") == -EINVAL);
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
  for (unsigned i = 0; i < 4; ++i) CHECK(lun->reserve(DeviceOffset{(32 + i / 2) * kMiB}, kMiB / 2) == 0);
  CHECK(lun->physical().info(&after) == 0);
  CHECK(after.sequence - before.sequence == 1);
  lun->close();
}

TEST_CASE("virtual: what a former owner wrote is never read through a zeroed LUN") {
  for (bool discard : {true, false}) {
    const uint64_t bytes = 80 * kMiB;   // without discard more than what is written at once: extents are set aside
    std::vector<char> medium(bytes);
    const auto open = [&](const VirtualOptions& options) {
      ErrorText why;
      PhysicalLun* physical = nullptr;
      REQUIRE(PhysicalLun::open(new MemoryDevice(medium.data(), bytes, {discard, 128 * kKiB, "m"}), Format::kIfBlank, &physical, &why) == 0);
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
    memset(medium.data() + 2 * kMiB, 0x77, bytes - 4 * kMiB);
    lun = open(named("all", info.usable_bytes));
    CHECK(zeros(lun, 0, info.usable_bytes));
    // Growing again over what it had itself, in the middle of an extent.
    ErrorText why;
    Buffer buffer(128 * kKiB);
    memset(buffer.at, 1, buffer.bytes);
    REQUIRE(lun->set_size(20 * kKiB, &why) == 0);
    REQUIRE(lun->set_size(8 * kMiB, &why) == 0);
    for (unsigned i = 0; i < 64; ++i) REQUIRE(io(lun, Op::kWrite, i * buffer.bytes, buffer.at, buffer.bytes) > 0);
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

TEST_CASE("virtual: commands over scattered extents, against a model") {
  const uint64_t seed = 20260;
  SECTION("simulated") {
    VirtualLun* lun = must("sim:16m", named("x"));
    ErrorText why;
    REQUIRE(lun->set_size(8 * kMiB, &why) == 0);
    against_model(lun, 64, 4000, seed);
    lun->close();
  }
  for (unsigned depth : {1u, 3u, 64u}) {
    DYNAMIC_SECTION("file, depth " << depth) {
      LunFile file(kBytes);
      VirtualLun* lun = must(file.path, named("x"));
      interleave(file.path, lun, 40);
      against_model(lun, depth, 600, seed + depth);
      lun->close();
    }
  }
  SECTION("file, through a transform") {
    const XorTransform transform(99);
    LunFile file(kBytes);
    VirtualOptions options = named("x");
    options.transform = &transform;
    VirtualLun* lun = must(file.path, options);
    interleave(file.path, lun, 40);
    CHECK(lun->io_align() == 4096);
    CHECK(lun->capabilities().transfer_bytes_max == kMiB);
    against_model(lun, 64, 600, seed);
    lun->close();
  }
}

TEST_CASE("virtual: a command of 5 MiB is cut into as many pieces as it takes") {
  LunFile file(32 * kMiB);
  VirtualLun* lun = must(file.path, named("x"));
  interleave(file.path, lun, 100);
  Buffer out(5 * kMiB), in(5 * kMiB);
  uint64_t state = 5;
  for (size_t i = 0; i < out.bytes; i += 8) {
    const uint64_t word = next_random(&state);
    memcpy(out.at + i, &word, 8);
  }
  Context* context = nullptr;
  ContextOptions options;
  options.depth = 2;
  REQUIRE(lun->attach(options, &context) == 0);
  std::vector<iovec> parts(256);
  for (Op op : {Op::kWrite, Op::kRead}) {
    Buffer& buffer = op == Op::kWrite ? out : in;
    for (size_t i = 0; i < 256; ++i) parts[i] = {buffer.at + i * 20 * kKiB, 20 * kKiB};
    Command command;
    command.op = op;
    command.offset = DeviceOffset{4096};
    command.iov = parts.data();
    command.iov_count = 256;
    REQUIRE(context->submit(&command, 1) == 1);
    Response response;
    REQUIRE(context->wait(&response, 1, -1) == 1);
    CHECK(response.result == 5 * 1024 * 1024);
  }
  CHECK(memcmp(in.at, out.at, in.bytes) == 0);
  for (size_t i = 0; i < 256; ++i) parts[i] = {in.at + i * 20 * kKiB, 20 * kKiB};
  memset(in.at, 0, in.bytes);
  Command command;
  command.op = Op::kRead;
  command.offset = DeviceOffset{4096};
  command.iov = parts.data();
  command.iov_count = 256;
  CHECK(lun->transfer(command) == 5 * 1024 * 1024);
  CHECK(memcmp(in.at, out.at, in.bytes) == 0);
  lun->detach(context);
  lun->close();
}

TEST_CASE("virtual: refused commands are answered in order, watches and waits work") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, named("x", 4 * kExtent));
  Context* context = nullptr;
  REQUIRE(lun->attach({}, &context) == 0);
  Buffer buffer(8192);
  iovec part = {buffer.at, 4096};
  Command commands[5] = {};
  for (unsigned i = 0; i < 5; ++i) {
    commands[i].tag = 100 + i;
    commands[i].iov = &part;
    commands[i].iov_count = 1;
  }
  commands[1].offset = DeviceOffset{4 * kExtent};
  commands[2].offset = DeviceOffset{100};
  commands[3].iov_count = 0;
  commands[4].iov = nullptr;
  CHECK(context->submit(commands, 5) == 5);
  CHECK(context->in_flight() == 5);
  int seen = 0;
  Response responses[8];
  while (context->in_flight()) {
    const int n = context->wait(responses, 8, -1);
    REQUIRE(n > 0);
    for (int i = 0; i < n; ++i, ++seen) CHECK(responses[i].result == (responses[i].tag == 100 ? 4096 : -EINVAL));
  }
  CHECK(seen == 5);
  CHECK(context->wait(responses, 8, -1) == 0);
  const int fd = eventfd(0, EFD_NONBLOCK);
  CHECK(context->watch(fd, uint64_t{1} << 63 | 3) == 0);
  CHECK(context->watch(fd, 77) == 0);
  CHECK(context->wait(responses, 8, 1'000'000) == 0);
  CHECK(context->reap(responses, 8) == 0);
  const uint64_t one = 1;
  REQUIRE(write(fd, &one, 8) == 8);
  REQUIRE(context->wait(responses, 8, -1) == 1);
  CHECK(responses[0].tag == 77);
  CHECK(context->wait(responses, 8, -1) == 0);
  close(fd);
  lun->detach(context);
  lun->close();
}

TEST_CASE("virtual: shrinking waits for commands in flight") {
  VirtualLun* lun = must("sim:16m,latency_us=30000", named("x"));
  ErrorText why;
  REQUIRE(lun->set_size(8 * kExtent, &why) == 0);
  Context* context = nullptr;
  REQUIRE(lun->attach({}, &context) == 0);
  Buffer buffer(4096);
  iovec part = {buffer.at, 4096};
  Command command;
  command.iov = &part;
  command.iov_count = 1;
  command.offset = DeviceOffset{7 * kExtent};
  REQUIRE(context->submit(&command, 1) == 1);
  std::atomic<bool> shrunk{false};
  std::thread other([&] {
    ErrorText unsaid;
    if (lun->set_size(kExtent, &unsaid) == 0) shrunk = true;
  });
  sys::sleep_ns(300'000'000);
  CHECK_FALSE(shrunk.load());
  Response response;
  REQUIRE(context->wait(&response, 1, -1) == 1);
  CHECK(response.result == 4096);
  other.join();
  CHECK(shrunk.load());
  REQUIRE(context->submit(&command, 1) == 1);
  REQUIRE(context->wait(&response, 1, -1) == 1);
  CHECK(response.result == -EINVAL);
  lun->detach(context);
  lun->close();
}

TEST_CASE("virtual: a cipher's LUN opens with its key only") {
  const XorTransform key(1), wrong(2);
  LunFile file(kBytes);
  VirtualOptions options = named("x", kExtent);
  options.cipher_id = 7;
  CHECK(refused(file.path, options, "without its key") == -ENOKEY);
  options.transform = &key;
  VirtualLun* lun = must(file.path, options);
  CHECK(lun->info().cipher_id == 7);
  Buffer buffer(4096);
  memset(buffer.at, 0x31, 4096);
  CHECK(io(lun, Op::kWrite, 8192, buffer.at, 4096) == 4096);
  CHECK(zeros(lun, 0, 8192));
  lun->close();
  options = named("x", 0, false);
  CHECK(refused(file.path, options, "give its key") == -ENOKEY);
  options.transform = &wrong;
  CHECK(refused(file.path, options, "not its key") == -EKEYREJECTED);
  options.transform = &key;
  lun = must(file.path, options);
  memset(buffer.at, 0, 4096);
  CHECK(io(lun, Op::kRead, 8192, buffer.at, 4096) == 4096);
  CHECK(std::string(buffer.at, 4096) == std::string(4096, 0x31));
  lun->close();
  // The medium has not seen it.
  const int fd = open(file.path.c_str(), O_RDONLY);
  std::string all(kBytes, 0);
  REQUIRE(pread(fd, all.data(), all.size(), 0) == static_cast<ssize_t>(kBytes));
  close(fd);
  CHECK(all.find(std::string(64, 0x31)) == std::string::npos);
}

TEST_CASE("virtual: a scratch LUN lives as long as any forked owner") {
  LunFile file(kBytes);
  int ready[2], go[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(go) == 0);
  const pid_t owner = fork();
  REQUIRE(owner >= 0);
  if (owner == 0) {   // makes the LUN, forks a daemon twice, is killed
    VirtualLun* lun = nullptr;
    ErrorText why;
    if (open_virtual(file.path.c_str(), {}, &lun, &why) < 0 || lun->reserve(DeviceOffset{0}, kMiB) < 0) _exit(1);
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
        byte = io(lun, Op::kRead, 0, stamp, 4096) == 4096 && stamp[100] == 0x42 && lun->reserve(DeviceOffset{0}, 2 * kMiB) == 0 &&
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
  close(go[1]);   // ends the daemon
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

TEST_CASE("virtual: hold makes another description an owner") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, {});
  REQUIRE(lun->reserve(DeviceOffset{0}, kMiB) == 0);
  const int fd = open(file.path.c_str(), O_RDWR);
  REQUIRE(lun->hold(0, fd) == 0);
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

TEST_CASE("virtual: many threads, each with an opening of its own, on one file") {
  LunFile file(kBytes);
  must(file.path, named("first"))->close();
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
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
        if (open_physical(file.path.c_str(), Format::kNever, &physical, &why) < 0 || physical->remove(name.c_str(), &why) < 0) ++failed;
        if (physical) physical->close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
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
