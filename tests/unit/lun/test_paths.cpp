// SPDX-License-Identifier: Apache-2.0
// Several paths to one device: which devices count as one, failover under load, probing, counters.
#include <errno.h>
#include <unistd.h>

#include "composite.h"
#include "lun/raid/path_device.h"
#include "sys/thread.h"
#include "tests/support/meanwhile.h"

using namespace lunar;
using namespace composite;

namespace {

std::vector<PathInfo> paths_of(Device* device) {
  std::vector<PathInfo> out(8);
  const int n = device_paths(device, out.data(), 8);
  REQUIRE(n >= 1);
  out.resize(static_cast<size_t>(n));
  return out;
}

}  // namespace

TEST_CASE("paths: only paths to the same device are taken for one device") {
  int error = 0;
  CHECK(has(refusal("paths:sim:4m;sim:4m", &error), "blank"));
  CHECK(error == -ENODATA);
  CHECK(has(refusal("paths:sim:4m;sim:4m", &error, Format::kIfBlank), "different devices"));
  CHECK(has(refusal("paths:sim:4m;sim:8m", &error), "different sizes"));
  const std::string a = named("4m", fresh());
  Device* device = open("paths:" + a + ";" + a + ",seed=2", Format::kNever);
  CHECK(device->size_bytes() == 4 * kMiB);
  CHECK(sim(member(device, 0)).memory()[0] == 0);
  device_close(device);
}

TEST_CASE("paths: files by their inode; one that is gone is Missing") {
  const MemberFiles files("", kMiB);
  const std::string& path = files.paths[0];
  const std::string other = path + "-link";
  REQUIRE(link(path.c_str(), other.c_str()) == 0);
  Device* device = open("paths:" + path + ";" + other, Format::kNever);
  CHECK(paths_of(device).size() == 2);
  CHECK(device->fd_count() == 2);
  device_close(device);
  unlink(other.c_str());
  device = open("paths:" + path + ";" + other, Format::kNever);
  auto list = paths_of(device);
  CHECK(std::string(list[0].status) == "Enabled");
  CHECK(list[0].primary);
  CHECK(list[0].connection == path);
  CHECK(std::string(list[1].status) == "Missing");
  unlink(path.c_str());
  PageVector page(kPage, 'x');
  CHECK(io(device, Op::kWrite, kPage, page.data()) == kPage);
  device_close(device);
  int error = 0;
  (void)refusal("paths:" + path + ";" + other, &error);
  CHECK(error == -ENXIO);
}

TEST_CASE(
    "paths: an error of the backing device is returned and marks no path; a failed path is left "
    "and used again") {
  const std::string a = named("4m", fresh());
  Device* device = open("paths:" + a + ";" + a, Format::kNever);
  static_cast<PathDevice*>(device)->set_probe_interval(20'000'000);
  SimDevice &one = sim(member(device, 0)), &two = sim(member(device, 1));
  std::vector<char> page(kPage, 'a');
  one.set_failing(true, true);
  two.set_failing(true, true);
  CHECK(io(device, Op::kWrite, 0, page.data()) == -EIO);
  auto list = paths_of(device);
  CHECK(std::string(list[0].status) == "Enabled");
  CHECK(std::string(list[1].status) == "Enabled");
  two.set_failing(false, false);
  CHECK(io(device, Op::kWrite, 0, page.data()) == kPage);
  list = paths_of(device);
  CHECK(std::string(list[0].status) == "Failed");
  CHECK_FALSE(list[0].primary);
  CHECK(list[1].primary);
  CHECK(list[0].failovers == 2);
  CHECK(list[0].errors == 2);
  CHECK(list[1].errors == 1);
  const uint64_t before = two.counters().writes;
  CHECK(io(device, Op::kWrite, 0, page.data()) == kPage);
  CHECK(two.counters().writes == before + 1);
  // Through a context: the probe runs meanwhile, and finds it well again.
  one.set_failing(false, false);
  sys::sleep_ns(30'000'000);
  {
    const Attached context(device);
    for (int i = 0; i < 3; ++i)
      CHECK(io(device, Op::kRead, 0, page.data(), kPage, context) == kPage);
  }
  list = paths_of(device);
  CHECK(std::string(list[0].status) == "Enabled");
  CHECK(list[0].primary);
  CHECK(io(device, Op::kRead, 4 * kMiB, page.data()) == -EINVAL);
  device_close(device);
}

TEST_CASE("paths: no I/O fails under load while one path works") {
  constexpr unsigned kThreads = 3;
  const std::string a = named("12m", fresh());
  Device* device =
      open("paths:" + a + ",latency_us=20;" + a + ",latency_us=30;" + a, Format::kNever);
  static_cast<PathDevice*>(device)->set_probe_interval(5'000'000);
  std::atomic<bool> stop{false};
  std::atomic<unsigned> runs[kThreads] = {};
  std::atomic<unsigned> errors{0}, wrong{0}, bad{0};
  auto threads = lunar_test::start_threads(kThreads, [&](unsigned t) {
    DeviceModel model(device, t * 4 * kMiB, 4 * kMiB, seed() + t);
    model.clear();
    while (!stop) {
      model.run(100, 40);
      ++runs[t];
    }
    if (!model.verify()) ++bad;
    errors += model.errors;
    wrong += model.wrong;
  });
  std::mt19937_64 random(seed());
  for (int round = 0; round < 12; ++round) {  // at least one works at any time
    const unsigned well = static_cast<unsigned>(random() % 3);
    sim(member(device, well)).set_failing(false, false);
    // All commands that failed before have ended when new failures begin.
    for (std::atomic<unsigned>& one : runs) {
      const unsigned before = one;
      for (int i = 0; i < 20000 && one < before + 2; ++i) sys::sleep_ns(1'000'000);
    }
    for (unsigned p = 0; p < 3; ++p)
      if (p != well) sim(member(device, p)).set_failing(random() % 2, random() % 2);
    sys::sleep_ns(20'000'000);
  }
  for (unsigned p = 0; p < 3; ++p) sim(member(device, p)).set_failing(false, false);
  stop = true;
  threads.clear();
  CHECK(errors == 0);
  CHECK(wrong == 0);
  CHECK(bad == 0);
  uint64_t failovers = 0, seen = 0, counted = 0;
  for (const PathInfo& path : paths_of(device)) {
    failovers += path.failovers;
    counted += path.errors;
  }
  for (unsigned p = 0; p < 3; ++p) {
    const SimCounters& counters = sim(member(device, p)).counters();
    seen += counters.read_errors + counters.write_errors;
  }
  CHECK(failovers > 0);
  CHECK(counted == seen);
  device_close(device);
}
