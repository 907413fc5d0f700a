// SPDX-License-Identifier: Apache-2.0
// Load on a device while its paths come and go:
//
//   device_load URI SECONDS     OVERWRITES the first 32 MiB of URI (a raw URI of lun/compose.h:
//                               paths:A;B and the like)
//
// Four threads, each with a context of its own, write and read a part of their own and compare with
// a model (tests/support/device_model.h). Prints `running` once every thread has done some, then at
// the end a line a path, and `N I/Os, E failed`; any failed I/O, wrong content, or a thread that
// made no progress in the last second is FAIL and 1. LUNAR_SEED=N replays. Threading: as said.
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "lun/compose.h"
#include "lun/raid/path_device.h"
#include "superpipe/device.h"
#include "sys/thread.h"
#include "tests/support/device_model.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

constexpr unsigned kThreads = 4;
constexpr uint64_t kBytesOfThread = 32 * kMiB / kThreads;

Device* device = nullptr;
std::atomic<bool> stop{false};
std::atomic<uint64_t> failed{0}, wrong{0};
std::atomic<uint64_t> done[kThreads];

void work(unsigned index, uint64_t seed) {
  lunar_test::DeviceModel model(device, index * kBytesOfThread, kBytesOfThread, seed + index,
                                {.depth = 8});
  model.clear();
  while (!stop.load()) {
    model.run(50, 1);
    done[index].store(model.done);
  }
  failed.fetch_add(model.errors);
  wrong.fetch_add(model.wrong + !model.verify());
}

void show_paths() {
  PathInfo paths[8];
  const int n = device_paths(device, paths, 8);
  for (int i = 0; i < n; ++i)
    printf("path %s %s %s: %lu I/Os, %lu errors, %lu failovers\n", paths[i].name,
           paths[i].connection, paths[i].status, paths[i].ios, paths[i].errors, paths[i].failovers);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: device_load URI SECONDS\n");
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const uint64_t seed = tier::run_seed();
  DeviceOptions options;
  options.scratch = false;
  ErrorText why;
  if (raw_open(argv[1], options, Format::kNever, &device, &why) < 0) {
    printf("cannot open: %s\n", why.text);
    return 2;
  }
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(work, i, seed);
  const uint64_t end = sys::now_ns() + strtoull(argv[2], nullptr, 10) * 1'000'000'000;
  uint64_t before[kThreads] = {};
  unsigned still = 0;
  for (bool said = false; sys::now_ns() < end;) {
    sleep(1);
    bool all = true, one_stands = false;
    for (unsigned i = 0; i < kThreads; ++i) {
      all &= done[i].load() != 0;
      one_stands |= done[i].load() == before[i];
      before[i] = done[i].load();
    }
    still = one_stands ? still + 1 : 0;
    if (all && !said) said = printf("running\n") > 0;
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  show_paths();
  device_close(device);
  uint64_t total = 0;
  for (const std::atomic<uint64_t>& one : done) total += one.load();
  printf("%lu I/Os, %lu failed, %lu wrong\n", total, failed.load(), wrong.load());
  if (failed.load() || wrong.load() || still > 0) {
    puts(still > 0 ? "FAIL: a thread stands still" : "FAIL");
    return 1;
  }
  puts("ok");
}
