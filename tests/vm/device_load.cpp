// SPDX-License-Identifier: Apache-2.0
// Load on a device while its paths come and go:
//
//   device_load URI SECONDS     OVERWRITES the first 32 MiB of URI (a raw URI of lun/compose.h:
//                               paths:A;B and the like)
//
// Four threads, each with a context of its own (an eighth of the commands go by transfer()
// instead), write stamped blocks of their own part, read them back and compare. Prints `running`
// once every thread has done some, then at the end a line a path, and `N I/Os, E failed`; any
// failed I/O, wrong content, or a thread that made no progress in the last second is FAIL and 1.
// LUNAR_SEED=N replays. Threading: as said.
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "lun/compose.h"
#include "lun/raid/path_device.h"
#include "superpipe/device.h"
#include "sys/thread.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

constexpr size_t kBlock = 4096;
constexpr unsigned kThreads = 4, kDepth = 8;
constexpr uint64_t kBlocksOfThread = 32 * kMiB / kBlock / kThreads;

Device* device = nullptr;
std::atomic<bool> stop{false};
std::atomic<uint64_t> failed{0}, wrong{0};
std::atomic<uint64_t> done[kThreads];

struct Lane {  // one command in flight
  char* memory;
  iovec part;
  uint64_t block;
  bool write;
};

struct Worker {
  unsigned index;
  std::mt19937_64 random;
  Context* context = nullptr;
  char* memory = nullptr;
  Lane lanes[kDepth];
  std::vector<uint32_t> version = std::vector<uint32_t>(kBlocksOfThread);  // 0: never written
  std::vector<bool> busy = std::vector<bool>(kBlocksOfThread);

  uint64_t stamp(uint64_t block, size_t word) const {
    return ((index + 1) * 0x9e3779b97f4a7c15u) ^ (block << 40) ^ (uint64_t{version[block]} << 12) ^
           word;
  }
  void fill(const Lane& lane) {
    auto* words = reinterpret_cast<uint64_t*>(lane.memory);
    for (size_t i = 0; i < kBlock / 8; ++i) words[i] = stamp(lane.block, i);
  }
  bool holds(const Lane& lane) const {
    const auto* words = reinterpret_cast<const uint64_t*>(lane.memory);
    for (size_t i = 0; i < kBlock / 8; ++i)
      if (words[i] != stamp(lane.block, i)) return false;
    return true;
  }

  Command next(unsigned tag) {
    Lane& lane = lanes[tag];
    do lane.block = random() % kBlocksOfThread;
    while (busy[lane.block]);
    busy[lane.block] = true;
    lane.write = version[lane.block] == 0 || random() % 2 == 0;
    if (lane.write) {
      ++version[lane.block];
      fill(lane);
    } else
      memset(lane.memory, 0, kBlock);
    lane.part = {lane.memory, kBlock};
    Command command;
    command.op = lane.write ? Op::kWrite : Op::kRead;
    command.offset = DeviceOffset{(index * kBlocksOfThread + lane.block) * kBlock};
    command.iov = &lane.part;
    command.iov_count = 1;
    command.tag = tag;
    return command;
  }
  void finish(unsigned tag, int64_t result) {
    Lane& lane = lanes[tag];
    busy[lane.block] = false;
    if (result != static_cast<int64_t>(kBlock)) {
      if (failed.fetch_add(1) < 5)
        printf("%s of block %llu gave %lld (%s)\n", lane.write ? "write" : "read",
               static_cast<unsigned long long>(lane.block), static_cast<long long>(result),
               result < 0 ? strerror(static_cast<int>(-result)) : "short");
      version[lane.block] = 0;  // what it holds now is not known
    } else if (!lane.write && !holds(lane)) {
      if (wrong.fetch_add(1) < 5)
        printf("block %llu holds something else\n", static_cast<unsigned long long>(lane.block));
    }
    done[index].fetch_add(1);
  }

  void run() {
    ContextOptions options;
    options.depth = kDepth;
    if (const int error = device->attach(options, &context); error < 0) {
      printf("attach: %s\n", strerror(-error));
      failed.fetch_add(1);
      return;
    }
    memory = static_cast<char*>(
        mmap(nullptr, kDepth * kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    unsigned idle[kDepth], idle_count = 0;
    for (unsigned i = 0; i < kDepth; ++i) {
      lanes[i].memory = memory + i * kBlock;
      idle[idle_count++] = i;
    }
    while (!stop.load() || idle_count < kDepth) {
      while (!stop.load() && idle_count > 0) {
        const unsigned tag = idle[--idle_count];
        const Command command = next(tag);
        if (random() % 8 == 0)
          finish(tag, device->transfer(command)), idle[idle_count++] = tag;
        else if (context->submit(&command, 1) != 1)
          finish(tag, -EAGAIN), idle[idle_count++] = tag;
        if (idle_count > 0 && random() % 4 == 0) break;
      }
      Response responses[kDepth];
      const int got = context->wait(responses, kDepth, 100'000'000);
      for (int i = 0; i < got; ++i) {
        finish(static_cast<unsigned>(responses[i].tag), responses[i].result);
        idle[idle_count++] = static_cast<unsigned>(responses[i].tag);
      }
      if (got < 0 && got != -EINTR) {
        printf("wait: %s\n", strerror(-got));
        failed.fetch_add(1);
        break;
      }
    }
    device->detach(context);
    munmap(memory, kDepth * kBlock);
  }
};

void show_paths() {
  PathInfo paths[8];
  const int n = device_paths(device, paths, 8);
  for (int i = 0; i < n; ++i)
    printf("path %s %s %s: %llu I/Os, %llu errors, %llu failovers\n", paths[i].name,
           paths[i].connection, paths[i].status, static_cast<unsigned long long>(paths[i].ios),
           static_cast<unsigned long long>(paths[i].errors),
           static_cast<unsigned long long>(paths[i].failovers));
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
  std::vector<Worker> workers(kThreads);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    workers[i].index = i;
    workers[i].random.seed(seed + i);
    threads.emplace_back([&workers, i] { workers[i].run(); });
  }
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
  printf("%llu I/Os, %llu failed, %llu wrong\n", static_cast<unsigned long long>(total),
         static_cast<unsigned long long>(failed.load()),
         static_cast<unsigned long long>(wrong.load()));
  if (failed.load() || wrong.load() || still > 0) {
    puts(still > 0 ? "FAIL: a thread stands still" : "FAIL");
    return 1;
  }
  puts("ok");
}
