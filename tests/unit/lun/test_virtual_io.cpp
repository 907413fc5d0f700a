// SPDX-License-Identifier: Apache-2.0
// The data path of virtual LUNs: against a model, while sizes change.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sys/thread.h"
#include "tests/support/device_model.h"
#include "tests/support/seed.h"
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

void against_model(VirtualLun* lun, unsigned depth, unsigned commands) {
  DeviceModel model(lun, 0, lun->used_bytes(), tier::run_seed(), {.depth = depth});
  model.run(commands, 160);
  CHECK(model.errors == 0);
  CHECK(model.wrong == 0);
  CHECK(model.verify());
}

}  // namespace

TEST_CASE("virtual: commands over scattered extents, against a model") {
  SECTION("simulated") {
    VirtualLun* lun = must("sim:16m", named("x"));
    ErrorText why;
    REQUIRE(lun->set_size(8 * kMiB, &why) == 0);
    against_model(lun, 64, 4000);
    lun->close();
  }
  for (unsigned depth : {1u, 3u, 64u}) {
    DYNAMIC_SECTION("file, depth " << depth) {
      LunFile file(kBytes);
      VirtualLun* lun = must(file.path, named("x"));
      interleave(file.path, lun, 40);
      against_model(lun, depth, 600);
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
  const auto run = [&](Op op, const Buffer& buffer, Context* context) {
    std::vector<iovec> parts(256);
    for (size_t i = 0; i < 256; ++i) parts[i] = {buffer.at + i * 20 * kKiB, 20 * kKiB};
    const Command command = command_of(op, 4096, parts.data(), 256);
    CHECK((context ? one(context, command) : lun->transfer(command)) == 5 * 1024 * 1024);
  };
  {
    const Attached context(lun, {.depth = 2});
    run(Op::kWrite, out, context);
    for (Context* way : {context.context, static_cast<Context*>(nullptr)}) {
      memset(in.at, 0, in.bytes);
      run(Op::kRead, in, way);
      CHECK(memcmp(in.at, out.at, in.bytes) == 0);
    }
  }
  lun->close();
}

TEST_CASE("virtual: refused commands are answered with the others") {
  LunFile file(kBytes);
  VirtualLun* lun = must(file.path, named("x", 4 * kExtent));
  Buffer buffer(4096);
  const iovec part = {buffer.at, 4096};
  Command commands[5];
  for (unsigned i = 0; i < 5; ++i) commands[i] = command_of(Op::kRead, 0, &part, 1, 100 + i);
  commands[1].offset = DeviceOffset{4 * kExtent};
  commands[2].offset = DeviceOffset{100};
  commands[3].iov_count = 0;
  commands[4].iov = nullptr;
  {
    const Attached context(lun);
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
  }
  lun->close();
}

TEST_CASE("virtual: shrinking waits for commands in flight") {
  VirtualLun* lun = must("sim:16m,latency_us=30000", named("x"));
  ErrorText why;
  REQUIRE(lun->set_size(8 * kExtent, &why) == 0);
  std::optional<Attached> holder(lun);
  Context* context = *holder;
  Buffer buffer(4096);
  const iovec part = {buffer.at, 4096};
  const Command command = command_of(Op::kRead, 7 * kExtent, &part, 1);
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
  CHECK(one(context, command) == -EINVAL);
  holder.reset();
  lun->close();
}
