// SPDX-License-Identifier: Apache-2.0
// The simulated device: its faults are counted, follow the seed, and are of the kind that their
// names say.
#include <unistd.h>

#include <bit>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "superpipe/registry.h"
#include "superpipe/sim/sim_device.h"
#include "sys/thread.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"

using namespace lunar;
using namespace lunar_test;

namespace {

struct Sim {
  Opened device;
  Attached context;
  explicit Sim(const std::string& uri)
      : device(hold(uri, {})), context(device.get(), {.depth = 64}) {}
  SimDevice& sim() const { return *static_cast<SimDevice*>(device.get()); }
  int64_t io(Op op, uint64_t page, void* buffer, size_t bytes = kPage) const {
    return lunar_test::io(device.get(), op, page * kPage, buffer, bytes, context);
  }
};

}  // namespace

TEST_CASE("sim: bad settings are named in one line") {
  CHECK(has(refused("sim:"), "size"));
  CHECK(has(refused("sim:12q"), "size"));
  CHECK(has(refused("sim:1m,colour=3"), "colour"));
  CHECK(has(refused("sim:1m,seed=abc"), "seed"));
  CHECK(has(refused("sim:1m,torn=-1"), "torn"));
  CHECK(has(refused("sim:1m,errno=0"), "errno is 1 to 4095"));
  CHECK(has(refused("sim:1m,errno=4096"), "errno is 1 to 4095"));
  CHECK(has(refused("sim:1m,"), "unknown setting"));
}

TEST_CASE("sim: one in P reads and writes fail, and a failed write changes nothing") {
  Sim sim("sim:1m,seed=5,read_error=10,write_error=20");
  std::vector<char> page(kPage);
  unsigned read_errors = 0, write_errors = 0;
  std::vector<char> held(256, 0);
  for (int i = 0; i < 20000; ++i) {
    const auto at = static_cast<size_t>(i % 256);
    const char value = static_cast<char>(i);
    memset(page.data(), value, kPage);
    if (sim.io(Op::kWrite, at, page.data()) == -EIO)
      ++write_errors;
    else
      held[at] = value;
    if (sim.io(Op::kRead, at, page.data()) == -EIO)
      ++read_errors;
    else
      REQUIRE(page[kPage - 1] == held[at]);
  }
  CHECK(read_errors == sim.sim().counters().read_errors);
  CHECK(write_errors == sim.sim().counters().write_errors);
  CHECK(read_errors > 1700);
  CHECK(read_errors < 2300);
  CHECK(write_errors > 800);
  CHECK(write_errors < 1200);
}

TEST_CASE("sim: the error of failed I/O can be chosen") {
  Sim sim("sim:1m,read_error=1,write_error=1,errno=110");
  std::vector<char> page(kPage);
  CHECK(sim.io(Op::kRead, 0, page.data()) == -ETIMEDOUT);
  CHECK(sim.io(Op::kWrite, 0, page.data()) == -ETIMEDOUT);
}

TEST_CASE("sim: a run replays from its seed") {
  const auto fates = [](const char* uri) {
    Sim sim(uri);
    std::string text;
    std::vector<char> page(kPage);
    for (unsigned i = 0; i < 500; ++i)
      text += sim.io(Op::kRead, i % 256, page.data()) < 0 ? 'e' : '.';
    return text;
  };
  CHECK(fates("sim:1m,seed=1,read_error=5") == fates("sim:1m,seed=1,read_error=5"));
  CHECK(fates("sim:1m,seed=1,read_error=5") != fates("sim:1m,seed=2,read_error=5"));
}

TEST_CASE("sim: a torn write keeps only its first sectors and reports success") {
  Sim sim("sim:1m,torn=1");
  std::vector<char> page(kPage, 'n'), in(kPage);
  for (unsigned i = 0; i < 200; ++i) {
    CHECK(sim.io(Op::kWrite, i, page.data()) == kPage);
    CHECK(sim.io(Op::kRead, i, in.data()) == kPage);
    const size_t landed = strnlen(in.data(), kPage);
    CHECK(landed % 512 == 0);
    CHECK(landed < kPage);
    for (size_t at = landed; at < kPage; ++at) REQUIRE(in[at] == 0);
  }
  CHECK(sim.sim().counters().torn == 200);
}

TEST_CASE("sim: a misdirected write lands at another page and reports success") {
  Sim sim("sim:1m,misdirect=1");
  std::vector<char> page(kPage, 'n');
  CHECK(sim.io(Op::kWrite, 7, page.data()) == kPage);
  unsigned at = 0, places = 0;
  for (unsigned i = 0; i < 256; ++i) {
    if (memcmp(sim.sim().memory() + i * kPage, page.data(), kPage) == 0) at = i, ++places;
  }
  CHECK(places == 1);
  CHECK(at != 7);
  CHECK(sim.sim().counters().misdirected == 1);
}

TEST_CASE("sim: a corrupt read differs in one bit, also across a vector") {
  Sim sim("sim:1m,corrupt=1");
  std::vector<uint8_t> in(3 * kPage);
  for (int i = 0; i < 100; ++i) {
    const iovec parts[3] = {
        {in.data(), kPage}, {in.data() + kPage, kPage}, {in.data() + 2 * kPage, kPage}};
    Command command;
    command.iov = parts;
    command.iov_count = 3;
    REQUIRE(sim.context->submit(&command, 1) == 1);
    Response response;
    REQUIRE(sim.context->wait(&response, 1, -1) == 1);
    CHECK(response.result == 3 * kPage);
    int bits = 0;
    for (uint8_t byte : in) bits += std::popcount(byte);
    CHECK(bits == 1);
  }
}

TEST_CASE("sim: completions come after the latency, and not before") {
  Sim sim("sim:1m,latency_us=2000");
  std::vector<char> page(kPage);
  const uint64_t start = sys::now_ns();
  CHECK(sim.io(Op::kRead, 0, page.data()) == kPage);
  CHECK(sys::now_ns() - start >= 2'000'000);
  CHECK(sim.context->usual_latency_ns() >= 2'000'000);
}

TEST_CASE("sim: wait serves watched descriptors and timeouts while I/O is in flight") {
  Sim sim("sim:1m,latency_us=300000");
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::vector<char> page(kPage);
  const iovec part = {page.data(), kPage};
  Command command;
  command.iov = &part;
  command.iov_count = 1;
  command.tag = 1;
  REQUIRE(sim.context->submit(&command, 1) == 1);
  REQUIRE(sim.context->watch(ends[0], 2) == 0);
  Response response[4];
  CHECK(sim.context->wait(response, 4, 1'000'000) == 0);
  REQUIRE(write(ends[1], "x", 1) == 1);
  REQUIRE(sim.context->wait(response, 4, -1) == 1);
  CHECK(response[0].tag == 2);
  REQUIRE(sim.context->wait(response, 4, -1) == 1);
  CHECK(response[0].tag == 1);
  CHECK(sim.context->wait(response, 4, -1) == 0);  // nothing in flight, nothing watched
  close(ends[0]);
  close(ends[1]);
}
