// SPDX-License-Identifier: Apache-2.0
// The data path of virtual LUNs: against a model, while sizes change.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "sys/thread.h"
#include "tests/support/virtual_lun_fixture.h"

using namespace lunar;
using namespace lunar_test;

namespace {

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

// Random reads, writes, discards and flushes through a context, many in flight, against a copy in
// memory.
class AgainstModel {
 public:
  AgainstModel(VirtualLun* lun, unsigned depth, uint64_t seed)
      : lun_(lun),
        size_(lun->used_bytes()),
        align_(lun->io_align() < 4096 ? 4096 : lun->io_align()),
        state_(seed),
        model_(size_),
        memory_(kSlots * kMost),
        slots_(kSlots) {
    ContextOptions options;
    options.depth = depth;
    REQUIRE(lun->attach(options, &context_) == 0);
  }

  void run(unsigned rounds) {
    for (unsigned round = 0; round < rounds;) {
      const unsigned index = static_cast<unsigned>(random() % kSlots);
      const uint64_t length =
          random() % 4 ? align_ * (1 + random() % 4) : align_ * (1 + random() % (kMost / align_));
      const uint64_t offset = random() % ((size_ - length) / align_ + 1) * align_;
      if (!slots_[index].busy && !overlaps(offset, length)) {
        prepare(index, offset, length);
        if (submit(index)) {
          ++round;
          if (random() % 3) continue;
        }
      }
      Response responses[8];
      const int n = context_->wait(responses, 8, 1'000'000'000);
      REQUIRE(n >= 0);
      for (int i = 0; i < n; ++i) settle(responses[i]);
    }
    Response response;
    while (context_->in_flight()) {
      REQUIRE(context_->wait(&response, 1, -1) == 1);
      settle(response);
    }
    REQUIRE(done_ == rounds);
    lun_->detach(context_);
    compare_all();
  }

 private:
  static constexpr unsigned kSlots = 24, kParts = 40;
  static constexpr uint64_t kMost = 640 * kKiB;
  struct Slot {
    Command command;
    iovec parts[kParts];
    uint64_t length = 0;
    bool busy = false;
  };

  uint64_t random() { return next_random(&state_); }
  char* memory_of(uint64_t index) { return memory_.at + index * kMost; }

  bool overlaps(uint64_t offset, uint64_t length) const {
    for (const Slot& slot : slots_) {
      if (slot.busy && offset < slot.command.offset.value + slot.length &&
          slot.command.offset.value < offset + length)
        return true;
    }
    return false;
  }

  void prepare(unsigned index, uint64_t offset, uint64_t length) {
    Slot& slot = slots_[index];
    char* at = memory_of(index);
    slot.command = {};
    slot.command.tag = index;
    slot.command.op = random() % 20 == 0 ? Op::kDiscard : random() % 2 ? Op::kWrite : Op::kRead;
    if (random() % 50 == 0) slot.command.op = Op::kFlush;
    slot.length = slot.command.op == Op::kFlush ? 0 : length;
    slot.command.offset = DeviceOffset{offset};
    slot.command.length = slot.length;
    slot.command.iov = slot.parts;
    for (uint64_t cut = 0; cut < length; ++slot.command.iov_count) {
      uint64_t part = align_ * (1 + random() % 32);
      if (slot.command.iov_count + 1 == kParts || part > length - cut) part = length - cut;
      slot.parts[slot.command.iov_count] = {at + cut, part};
      cut += part;
    }
    if (slot.command.op != Op::kWrite) return;
    for (uint64_t i = 0; i < length; i += 8) {
      const uint64_t word = random();
      memcpy(at + i, &word, 8);
    }
  }

  // False: the context is full.
  bool submit(unsigned index) {
    Slot& slot = slots_[index];
    const int taken = context_->submit(&slot.command, 1);
    if (taken != 1) {
      REQUIRE(taken == -EAGAIN);
      REQUIRE(context_->in_flight() > 0);
      return false;
    }
    slot.busy = true;
    char* modelled = model_.data() + slot.command.offset.value;
    if (slot.command.op == Op::kWrite) memcpy(modelled, memory_of(index), slot.length);
    if (slot.command.op == Op::kDiscard) memset(modelled, 0, slot.length);
    return true;
  }

  void settle(const Response& response) {
    Slot& slot = slots_.at(response.tag);
    REQUIRE(slot.busy);
    slot.busy = false;
    ++done_;
    const uint64_t at = slot.command.offset.value;
    if (slot.command.op == Op::kRead || slot.command.op == Op::kWrite)
      REQUIRE(response.result == static_cast<int64_t>(slot.length));
    else
      REQUIRE(response.result == 0);
    if (slot.command.op == Op::kRead)
      REQUIRE(memcmp(model_.data() + at, memory_of(response.tag), slot.length) == 0);
  }

  void compare_all() {
    for (uint64_t at = 0; at < size_; at += kMost) {
      const uint64_t length = size_ - at < kMost ? size_ - at : kMost;
      REQUIRE(io(lun_, Op::kRead, at, memory_.at, length) == static_cast<int64_t>(length));
      REQUIRE(memcmp(memory_.at, model_.data() + at, length) == 0);
    }
  }

  VirtualLun* lun_;
  uint64_t size_, align_, state_, done_ = 0;
  std::vector<char> model_;
  Buffer memory_;
  std::vector<Slot> slots_;
  Context* context_ = nullptr;
};

void against_model(VirtualLun* lun, unsigned depth, unsigned rounds, uint64_t seed) {
  AgainstModel(lun, depth, seed).run(rounds);
}

}  // namespace

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
    for (int i = 0; i < n; ++i, ++seen)
      CHECK(responses[i].result == (responses[i].tag == 100 ? 4096 : -EINVAL));
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
