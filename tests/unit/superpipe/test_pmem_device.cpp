// SPDX-License-Identifier: Apache-2.0
// Mapped memory as a device: what is accepted, who copies and when, no lost wake-up, fork.
// device_conformance tests the behaviour that all devices share.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/host_guard.h"
#include "superpipe/pmem/pmem_device.h"
#include "superpipe/registry.h"
#include "superpipe/signature.h"
#include "sys/file.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar_test;

namespace {

struct File {
  std::string path;
  explicit File(const std::string& directory, uint64_t bytes = 0)
      : path(directory + "/lunar-test-pmem-XXXXXX") {
    const int fd = mkstemp(path.data());
    REQUIRE(fd >= 0);
    REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    close(fd);
  }
  ~File() { unlink(path.c_str()); }
  struct stat status() const {
    struct stat out;
    REQUIRE(stat(path.c_str(), &out) == 0);
    return out;
  }
  uint64_t blocks() const { return static_cast<uint64_t>(status().st_blocks) * 512; }
  uint64_t size() const { return static_cast<uint64_t>(status().st_size); }
};

unsigned threads_named(const char* name) {
  unsigned found = 0;
  FILE* list = popen(("grep -lx " + std::string(name) + " /proc/" + std::to_string(getpid()) +
                      "/task/*/comm 2>/dev/null")
                         .c_str(),
                     "r");
  char text[256];
  while (fgets(text, sizeof text, list)) ++found;
  pclose(list);
  return found;
}

}  // namespace

TEST_CASE("pmem: what it cannot take is refused in one line") {
  File shm("/dev/shm", kMiB * 4), plain(disk_directory(), kMiB * 4), empty("/dev/shm");
  CHECK(has(refused("pmem:"), "no path"));
  CHECK(has(refused("pmem:/dev/shm/there-is-no-such-file"), "no such file"));
  CHECK(has(refused("pmem:" + shm.path + ",delegate=perhaps"), "auto, on or off"));
  CHECK(has(refused("pmem:" + shm.path + ",colour=red"), "known: delegate"));
  CHECK(has(refused("pmem:" + shm.path + ","), "unknown setting"));
  CHECK(has(refused("pmem:/dev/shm"), "neither"));
  CHECK(has(refused("pmem:/dev/null"), "not a DAX device"));
  CHECK(has(refused("pmem:" + plain.path), "give file:"));
  CHECK(has(refused("pmem:" + empty.path, kRaw), "empty"));
  std::ofstream(shm.path) << "somebody's data";
  CHECK(has(refused("pmem:" + shm.path), "not Lunar's"));
  CHECK(std::string(std::istreambuf_iterator<char>(std::ifstream(shm.path).rdbuf()), {}) ==
        "somebody's data");
}

TEST_CASE("pmem: capabilities say what the device is") {
  File shm("/dev/shm", kMiB * 4), plain(disk_directory(), kMiB * 4);
  const Opened memory = hold("pmem:" + shm.path), on_disk = hold("pmem:" + plain.path);
  CHECK(memory->capabilities().polled);
  CHECK(memory->capabilities().discard);
  CHECK(memory->capabilities().memory_align == 1);
  CHECK_FALSE(memory->capabilities().persistent);
  CHECK(on_disk->capabilities().persistent);
  CHECK(std::string(memory->kind()) == "pmem");
  CHECK(memory->size_bytes() == kMiB * 4);
  CHECK(std::string(static_cast<PmemDevice*>(memory.get())->durability()) == "memory");
}

TEST_CASE(
    "pmem: a blank file becomes a scratch LUN, one owner at a time, and grows and is cut like a "
    "file") {
  File file("/dev/shm");
  {
    const Opened lun = hold("pmem:" + file.path, {});
    CHECK(lun->growable());
    CHECK(has(refused("pmem:" + file.path), "in use"));
    CHECK(lun->reserve(DeviceOffset{0}, kMiB) == 0);
    CHECK(file.size() == kScratchDataOffset + kMiB);
    char out[4096], in[4096];
    memset(out, 7, sizeof out);
    CHECK(io(lun.get(), Op::kWrite, kMiB - 4096, out, sizeof out) == 4096);
    CHECK(io(lun.get(), Op::kRead, kMiB - 4096, in, sizeof in) == 4096);
    CHECK(memcmp(in, out, sizeof in) == 0);
    // A store beyond the reserved space must get an answer, not a signal.
    CHECK(io(lun.get(), Op::kWrite, 8 * kMiB, out, sizeof out) == -ENOSPC);
    CHECK(io(lun.get(), Op::kRead, 8 * kMiB, in, sizeof in) == -EIO);
    CHECK(lun->reserve(DeviceOffset{lun->size_bytes()}, 4096) == -ENOSPC);
  }
  CHECK(file.size() == sizeof(ScratchHeader));
  int successor = -1;
  {
    const Opened again = hold("pmem:" + file.path, {});
    CHECK(again->growable());
    successor = sys::open_again(again->fd(0));
    CHECK(again->share_lock(0, successor) == 0);
  }
  CHECK(has(refused("pmem:" + file.path), "in use"));  // by the description that a child would have
  close(successor);
  const Opened after = hold("pmem:" + file.path, {});
}

TEST_CASE("pmem: a file of fixed size keeps it, and a raw one is not touched by opening") {
  File file("/dev/shm", 4 * kMiB);
  {
    const Opened raw = hold("pmem:" + file.path);
    CHECK(file.blocks() == 0);
  }
  const Opened lun = hold("pmem:" + file.path, {});
  CHECK_FALSE(lun->growable());
  CHECK(lun->size_bytes() == 3 * kMiB);
}

TEST_CASE("pmem: a discard zeros any bytes, and a file keeps its space, also at a release") {
  const File file("/dev/shm", 8 * kMiB);
  const Opened lun = hold("pmem:" + file.path);
  std::vector<char> all(8 * kMiB, 5), want = all;
  const auto bytes = static_cast<int64_t>(all.size());
  REQUIRE(io(lun.get(), Op::kWrite, 0, all.data(), all.size()) == bytes);
  const uint64_t full = file.blocks();
  REQUIRE(io(lun.get(), Op::kDiscard, 100, nullptr, 6 * kMiB) == 0);
  memset(want.data() + 100, 0, 6 * kMiB);
  lun->release(DeviceOffset{0}, 8 * kMiB);  // its owner gave that space
  CHECK(file.blocks() == full);
  REQUIRE(io(lun.get(), Op::kRead, 0, all.data(), all.size()) == bytes);
  CHECK(all == want);
}

TEST_CASE("pmem: a shared context: some submit, others await") {
  const bool on = GENERATE(true, false);
  File file("/dev/shm", kMiB);
  const Opened lun = hold("pmem:" + file.path + (on ? ",delegate=on" : ",delegate=off"));
  const Attached context(lun.get(), {.depth = 64, .shared = true});
  constexpr unsigned kTotal = 10000;
  std::mutex lock;
  std::atomic<unsigned> submitted{0}, reaped{0};
  std::vector<char> buffer(kTotal * 512);
  std::vector<iovec> parts(kTotal);
  for (unsigned i = 0; i < kTotal; ++i) parts[i] = {buffer.data() + i * 512, 512};
  std::vector<std::thread> threads;
  std::atomic<int> worst{0};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (submitted < kTotal) {
        bool taken = false;
        {
          const std::lock_guard hold(lock);
          if (submitted < kTotal) {
            const Command command = command_of(Op::kRead, 0, &parts[submitted], 1);
            taken = context->submit(&command, 1) == 1;
          }
          if (taken) ++submitted;
        }
        if (!taken) std::this_thread::yield();
      }
    });
    threads.emplace_back([&] {
      Response out[16];
      while (reaped < kTotal) {
        // at the end no thread comes to help
        const int status = context->await(submitted < kTotal ? 1'000'000'000 : -1);
        if (status != 0) worst = status;  // -ETIME too: a wake-up was lost
        const std::lock_guard hold(lock);
        const int n = context->reap(out, 16);
        if (n > 0) reaped += static_cast<unsigned>(n);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(worst == 0);
  CHECK(reaped == kTotal);
}

TEST_CASE(
    "pmem: delegates start with the first need, never from inside the runtime, and end with the "
    "device") {
  File file("/dev/shm", 4 * kMiB);
  std::vector<char> buffer(kMiB);
  const iovec part = {buffer.data(), buffer.size()};
  const Command large = command_of(Op::kRead, 0, &part, 1);
  Response out[4];
  {
    const Opened lun = hold("pmem:" + file.path);
    auto& pool = static_cast<PmemDevice*>(lun.get())->pool();
    Attached context(lun.get());
    const iovec page = {buffer.data(), 4096};
    const Command small = command_of(Op::kRead, 0, &page, 1);
    REQUIRE(context->submit(&small, 1) == 1);
    REQUIRE(context->wait(out, 4, -1) == 1);
    CHECK_FALSE(pool.started());
    {
      const HostGuard guard;
      REQUIRE(context->submit(&large, 1) == 1);
      CHECK(context->reap(out, 4) == 1);  // done by the caller
      CHECK_FALSE(pool.started());
    }
    REQUIRE(context->submit(&large, 1) == 1);
    CHECK(pool.started());
    REQUIRE(context->wait(out, 4, -1) == 1);
    CHECK(threads_named("lunar-delegate") == pool.threads());
  }
  CHECK(threads_named("lunar-delegate") == 0);
  const Opened off = hold("pmem:" + file.path + ",delegate=off");
  Attached context(off.get());
  REQUIRE(context->submit(&large, 1) == 1);
  CHECK(context->reap(out, 4) == 1);
  CHECK_FALSE(static_cast<PmemDevice*>(off.get())->pool().started());
}

#ifndef __SANITIZE_THREAD__  // which allows no new threads in a child of a process with threads
TEST_CASE("pmem: a forked child starts delegates of its own, and sees the same memory") {
  File file("/dev/shm", 4 * kMiB);
  const Opened lun = hold("pmem:" + file.path + ",delegate=on");
  Context* inherited = nullptr;
  REQUIRE(lun->attach({}, &inherited) == 0);
  std::vector<char> buffer(2 * kMiB, 3);
  const iovec part = {buffer.data(), buffer.size()};
  const Command command = command_of(Op::kWrite, 0, &part, 1);
  Response out[4];
  for (unsigned round = 0; round < 20; ++round) {
    REQUIRE(inherited->submit(&command, 1) == 1);  // perhaps half done at the fork
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto& pool = static_cast<PmemDevice*>(lun.get())->pool();
      if (pool.started()) _exit(1);
      lun->detach(inherited);  // what the parent's delegates were at is not waited for
      Context* own = nullptr;
      if (lun->attach({}, &own) != 0) _exit(2);
      const iovec mine = {buffer.data(), kMiB};
      const Command write = command_of(Op::kWrite, 2 * kMiB, &mine, 1);
      if (own->submit(&write, 1) != 1 || !pool.started()) _exit(3);
      unsigned got = 0;
      for (unsigned patience = 0; got == 0 && patience < 10000;
           ++patience) {  // by the child's delegates
        got = static_cast<unsigned>(own->reap(out, 4));
        usleep(1000);
      }
      if (got != 1 || out[0].result != static_cast<int64_t>(kMiB)) _exit(4);
      lun->detach(own);
      const_cast<Opened&>(lun).reset();
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    while (inherited->in_flight()) REQUIRE(inherited->wait(out, 4, -1) >= 0);
  }
  lun->detach(inherited);
  std::vector<char> seen(kMiB);
  REQUIRE(io(lun.get(), Op::kRead, 2 * kMiB, seen.data(), seen.size()) ==
          static_cast<int64_t>(kMiB));
  CHECK(seen == std::vector<char>(kMiB, 3));
}

#endif

TEST_CASE("pmem: raw media are shared between processes' devices") {
  File file("/dev/shm", kMiB);
  const Opened one = hold("pmem:" + file.path), other = hold("pmem:" + file.path);
  char out[512], in[512];
  memset(out, 9, sizeof out);
  CHECK(io(one.get(), Op::kWrite, 12345, out, sizeof out) == 512);  // any alignment
  CHECK(io(other.get(), Op::kRead, 12345, in, sizeof in) == 512);
  CHECK(memcmp(out, in, sizeof out) == 0);
}

TEST_CASE("pmem: copies that go through the cache move every byte, for every way of flushing") {
  std::mt19937_64 random(tier::run_seed());
  std::vector<char> from(8192), to(8192), want;
  for (char& byte : from) byte = static_cast<char>(random());
  const int best = static_cast<int>(pmem::flush_method());
  for (int method = best ? 1 : 0; method <= best && best <= static_cast<int>(pmem::Flush::kClwb);
       ++method) {
    for (unsigned i = 0; i < 3000; ++i) {
      const size_t at = random() % 200, source = random() % 200,
                   bytes = random() % (i % 10 ? 300 : 7000);
      for (char& byte : to) byte = static_cast<char>(i);
      want = to;
      memcpy(want.data() + at, from.data() + source, bytes);
      pmem::copy_through(static_cast<pmem::Flush>(method), to.data() + at, from.data() + source,
                         bytes);
      pmem::fence();
      REQUIRE(to == want);
    }
  }
}
