// SPDX-License-Identifier: Apache-2.0
// Lanes of blocking I/O: many threads when the system refuses more rings.
#include "tests/catch.h"

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "../../support/lun_device.h"
#include "cblk/lanes.h"
#include "sys/thread.h"
#include "tests/support/meanwhile.h"

using namespace lunar;
using namespace lunar::cblk;

namespace {

// Contexts are a simulated device's, while there are any.
class FewContexts : public lunar_test::MemoryDevice {
 public:
  explicit FewContexts(const char* uri, int most) : MemoryDevice(nullptr, 1 << 20), left_(most) {
    ErrorText why;
    REQUIRE(SimDevice::open(uri, DeviceOptions{}, &sim_, &why) == 0);
  }
  ~FewContexts() override { sim_->close(); }
  int attach(const ContextOptions& options, Context** out) override {
    asked.fetch_add(1);
    return left_.fetch_sub(1) > 0 ? sim_->attach(options, out) : -EMFILE;
  }
  void detach(Context* context) override { sim_->detach(context); }
  int64_t transfer(const Command& command) override { return sim_->transfer(command); }
  void allow(int more) { left_.store(more); }
  std::atomic<int> asked{0};

 private:
  Device* sim_ = nullptr;
  std::atomic<int> left_;
};

struct Fixture {
  explicit Fixture(const char* uri, int most) : device(uri, most) {
    bounces.open(64);
    lanes->open(&device, &bounces, &cache, &late);
  }
  ~Fixture() {
    lanes->close();
    bounces.close();
  }
  int begin(char* block, bool may_wait, Underway* out) {
    Transfer transfer;
    transfer.blocks = 1;
    transfer.deadline_ns = sys::now_ns() + 5'000'000'000;
    transfer.buffer = block;
    return lanes->begin(transfer, &none, may_wait, false, out);
  }
  int64_t end(Underway* underway) {
    bool lost = false;
    return lanes->end(underway, &none, &lost);
  }
  int64_t read(char* block) {
    Underway underway;
    const int status = begin(block, true, &underway);
    return status < 0 ? status : end(&underway);
  }
  FewContexts device;
  BouncePool bounces;
  Cache cache;
  LateWrites late;
  Bounce none;
  std::unique_ptr<Lanes> lanes = std::make_unique<Lanes>();
};

}  // namespace

TEST_CASE("a crowd that waits for lanes does not ask for one more each time") {
  Fixture fixture("sim:1m,latency_us=300", 2);
  std::atomic<int> failed{0};
  auto threads = lunar_test::start_threads(8, [&] {
    std::array<char, 4096> block;
    for (int i = 0; i < 100; ++i) failed += fixture.read(block.data()) != 4096;
  });
  const uint64_t start = sys::now_ns();
  threads.clear();
  const uint64_t turns = (sys::now_ns() - start) / 20'000'000 + 1;
  REQUIRE(failed == 0);
  // two that were given, and a few that try in the same moment
  REQUIRE(fixture.device.asked.load() <= static_cast<int>(2 + 8 * turns));
  REQUIRE(fixture.device.asked.load() < 200);
}

TEST_CASE("a thread that waits for a stuck lane takes another as soon as there is one") {
  Fixture fixture("sim:1m", 1);
  std::array<char, 4096> stuck_block;
  Underway stuck;
  REQUIRE(fixture.begin(stuck_block.data(), true, &stuck) == 0);
  constexpr int kThreads = 8;
  std::atomic<int> read{0};
  auto threads = lunar_test::start_threads(kThreads, [&] {
    std::array<char, 4096> block;
    read += fixture.read(block.data()) == 4096;
  });
  const uint64_t start = sys::now_ns();
  sys::sleep_ns(200'000'000);
  // each may try as it comes; then one of them each 20 ms
  const uint64_t turns = (sys::now_ns() - start) / 20'000'000 + 1;
  const int asked = fixture.device.asked.load();
  fixture.device.allow(kThreads);
  threads.clear();
  REQUIRE(read == kThreads);
  REQUIRE(asked > 1);
  REQUIRE(asked <= static_cast<int>(1 + kThreads + turns));
  REQUIRE(fixture.end(&stuck) == 4096);
}

TEST_CASE("a child whose parent was refused a lane attaches its own") {
  Fixture fixture("sim:1m", 1);
  std::array<char, 4096> block;
  for (const int allowed : {0, 1}) {
    fixture.device.allow(1);
    Underway only, another;
    REQUIRE(fixture.begin(block.data(), true, &only) == 0);
    REQUIRE(fixture.begin(block.data(), false, &another) == -EAGAIN);
    REQUIRE(fixture.end(&only) == 4096);
    fixture.lanes->forget_in_child();
    fixture.device.allow(allowed);
    REQUIRE(fixture.read(block.data()) == (allowed ? 4096 : -EMFILE));
    fixture.lanes->forget_in_child();
  }
}
