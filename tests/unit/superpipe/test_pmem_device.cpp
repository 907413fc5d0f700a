// SPDX-License-Identifier: Apache-2.0
// Mapped memory as a device: what is accepted, contents against a model (delegated and not), no
// wake-up lost, fork.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
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
#include "tests/support/devices_by_uri.h"
#include "tests/support/seed.h"

using namespace lunar;
using lunar_test::disk_directory;
using lunar_test::has;
using lunar_test::kRaw;
using lunar_test::kReadOnly;
using lunar_test::refused;

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
  uint64_t blocks() const {
    struct stat status;
    REQUIRE(stat(path.c_str(), &status) == 0);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }
  uint64_t size() const {
    struct stat status;
    REQUIRE(stat(path.c_str(), &status) == 0);
    return static_cast<uint64_t>(status.st_size);
  }
};

struct Closer {
  void operator()(Device* device) const { device_close(device); }
};
using Opened = std::unique_ptr<Device, Closer>;

Opened opened(const std::string& uri, const DeviceOptions& options = kRaw) {
  return Opened(lunar_test::opened(uri, options));
}

Command command_of(Op op, uint64_t at, const iovec* part, uint64_t length = 0, uint64_t tag = 0) {
  Command command;
  command.op = op;
  command.offset = DeviceOffset{at};
  command.iov = part;
  command.iov_count = part ? 1 : 0;
  command.length = length;
  command.tag = tag;
  return command;
}

int64_t io(Device* device, Op op, uint64_t at, void* buffer, size_t bytes) {
  const iovec part = {buffer, bytes};
  return device->transfer(command_of(op, at, op == Op::kDiscard ? nullptr : &part, bytes));
}

struct Attached {
  Device* device;
  Context* context = nullptr;
  explicit Attached(Device* on, unsigned depth = 256, bool shared = false) : device(on) {
    ContextOptions options;
    options.depth = depth;
    options.shared = shared;
    REQUIRE(device->attach(options, &context) == 0);
  }
  ~Attached() { device->detach(context); }
  Context* operator->() const { return context; }
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

// Catch's own macros are for one thread.
#define MUST(condition) \
  if (!(condition)) return #condition

#ifdef __SANITIZE_THREAD__
constexpr unsigned kSlower = 6;
#else
constexpr unsigned kSlower = 1;
#endif

// Random commands on a context, several in flight, each on a place that no other in flight touches;
// every byte checked. "", or what did not hold.
std::string against_model(Device* device, unsigned rounds, uint64_t seed, uint64_t base,
                          uint64_t span) {
  std::mt19937_64 random(seed);
  constexpr unsigned kPlaces = 16;
  const uint64_t place = span / kPlaces;
  std::vector<char> model(span, 0);
  std::vector<std::vector<char>> buffers(kPlaces, std::vector<char>(place));
  Context* context = nullptr;
  ContextOptions options;
  options.depth = kPlaces;
  MUST(device->attach(options, &context) == 0);
  MUST(io(device, Op::kDiscard, base, nullptr, span) == 0);
  for (unsigned round = 0; round < rounds / kSlower; ++round) {
    Command commands[kPlaces];
    iovec parts[kPlaces][2];
    uint64_t at[kPlaces], bytes[kPlaces];
    for (unsigned i = 0; i < kPlaces; ++i) {
      at[i] = i * place + random() % (place / 2);
      bytes[i] = 1 + random() % (place / 2);
      const uint64_t cut = random() % (bytes[i] + 1);
      parts[i][0] = {buffers[i].data(), cut};
      parts[i][1] = {buffers[i].data() + cut, bytes[i] - cut};
      const uint64_t which = random() % 8;
      commands[i] = command_of(which < 4   ? Op::kRead
                               : which < 7 ? Op::kWrite
                                           : Op::kDiscard,
                               base + at[i], parts[i], bytes[i], i);
      commands[i].iov_count = 2;
      if (commands[i].op == Op::kWrite) {
        for (uint64_t k = 0; k < bytes[i]; ++k) buffers[i][k] = static_cast<char>(random());
        memcpy(&model[at[i]], buffers[i].data(), bytes[i]);
      } else if (commands[i].op == Op::kDiscard) {
        memset(&model[at[i]], 0, bytes[i]);
      }
    }
    MUST(context->submit(commands, kPlaces) == static_cast<int>(kPlaces));
    uint64_t seen = 0;
    while (context->in_flight()) {
      Response out[5];
      const int n = context->wait(out, 5, -1);
      MUST(n > 0);
      for (int k = 0; k < n; ++k) {
        const auto i = static_cast<unsigned>(out[k].tag);
        MUST((seen >> i & 1) == 0);
        seen |= uint64_t{1} << i;
        MUST(out[k].result ==
             (commands[i].op == Op::kDiscard ? 0 : static_cast<int64_t>(bytes[i])));
        if (commands[i].op == Op::kRead)
          MUST(memcmp(buffers[i].data(), &model[at[i]], bytes[i]) == 0);
      }
    }
    MUST(seen == (uint64_t{1} << kPlaces) - 1);
  }
  std::vector<char> all(span);
  MUST(io(device, Op::kRead, base, all.data(), span) == static_cast<int64_t>(span));
  MUST(all == model);
  device->detach(context);
  return "";
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
  const Opened memory = opened("pmem:" + shm.path), on_disk = opened("pmem:" + plain.path);
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
    const Opened lun = opened("pmem:" + file.path, {});
    CHECK(lun->growable());
    CHECK(has(refused("pmem:" + file.path), "in use"));
    CHECK(lun->reserve(DeviceOffset{0}, kMiB) == 0);
    CHECK(file.size() == kScratchDataOffset + kMiB);
    char out[4096], in[4096];
    memset(out, 7, sizeof out);
    CHECK(io(lun.get(), Op::kWrite, kMiB - 4096, out, sizeof out) == 4096);
    CHECK(io(lun.get(), Op::kRead, kMiB - 4096, in, sizeof in) == 4096);
    CHECK(memcmp(in, out, sizeof in) == 0);
    // Beyond what was reserved there is nothing to store to; that must be an answer, not a signal.
    CHECK(io(lun.get(), Op::kWrite, 8 * kMiB, out, sizeof out) == -ENOSPC);
    CHECK(io(lun.get(), Op::kRead, 8 * kMiB, in, sizeof in) == -EIO);
    CHECK(lun->reserve(DeviceOffset{lun->size_bytes()}, 4096) == -ENOSPC);
  }
  CHECK(file.size() == sizeof(ScratchHeader));
  int successor = -1;
  {
    const Opened again = opened("pmem:" + file.path, {});
    CHECK(again->growable());
    successor = sys::open_again(again->fd(0));
    CHECK(again->share_lock(0, successor) == 0);
  }
  CHECK(has(refused("pmem:" + file.path), "in use"));  // by the description that a child would have
  close(successor);
  const Opened after = opened("pmem:" + file.path, {});
}

TEST_CASE("pmem: a file of fixed size keeps it, and a raw one is not touched by opening") {
  File file("/dev/shm", 4 * kMiB);
  {
    const Opened raw = opened("pmem:" + file.path);
    CHECK(file.blocks() == 0);
  }
  const Opened lun = opened("pmem:" + file.path, {});
  CHECK_FALSE(lun->growable());
  CHECK(lun->size_bytes() == 3 * kMiB);
}

TEST_CASE("pmem: read-only media are not written") {
  File file("/dev/shm", kMiB);
  char page[4096] = {};
  const Opened lun = opened("pmem:" + file.path, kReadOnly);
  CHECK(io(lun.get(), Op::kWrite, 0, page, sizeof page) == -EROFS);
  CHECK(io(lun.get(), Op::kDiscard, 0, nullptr, sizeof page) == -EROFS);
  CHECK(io(lun.get(), Op::kRead, 0, page, sizeof page) == 4096);
  CHECK_FALSE(lun->capabilities().discard);
}

TEST_CASE("pmem: beyond the end: short reads, no writes") {
  File file("/dev/shm", kMiB);
  const Opened lun = opened("pmem:" + file.path);
  std::vector<char> two(8192, 1);
  CHECK(io(lun.get(), Op::kRead, kMiB - 4096, two.data(), 8192) == 4096);
  CHECK(io(lun.get(), Op::kRead, kMiB, two.data(), 8192) == 0);
  CHECK(io(lun.get(), Op::kRead, UINT64_MAX - 4095, two.data(), 8192) == 0);
  CHECK(io(lun.get(), Op::kWrite, kMiB - 4096, two.data(), 8192) == -ENOSPC);
  CHECK(io(lun.get(), Op::kWrite, UINT64_MAX - 4095, two.data(), 8192) == -ENOSPC);
  CHECK(io(lun.get(), Op::kDiscard, kMiB - 4096, nullptr, 8192) == -EINVAL);
  CHECK(io(lun.get(), Op::kDiscard, 4096, nullptr, UINT64_MAX) == -EINVAL);
  CHECK(io(lun.get(), Op::kFlush, 0, nullptr, 0) == 0);
}

TEST_CASE(
    "pmem: discard zeros, and a file keeps its space; what is made for one process gives it back "
    "by release") {
  File file("/dev/shm", 8 * kMiB);
  const Opened lun = opened("pmem:" + file.path);
  std::vector<char> all(8 * kMiB, 5), want = all;
  REQUIRE(io(lun.get(), Op::kWrite, 0, all.data(), all.size()) == static_cast<int64_t>(all.size()));
  const uint64_t full = file.blocks();
  REQUIRE(io(lun.get(), Op::kDiscard, 100, nullptr, 6 * kMiB) == 0);
  memset(want.data() + 100, 0, 6 * kMiB);
  CHECK(file.blocks() == full);
  lun->release(DeviceOffset{0}, 8 * kMiB);  // its owner gave that space
  CHECK(file.blocks() == full);
  REQUIRE(io(lun.get(), Op::kRead, 0, all.data(), all.size()) == static_cast<int64_t>(all.size()));
  CHECK(all == want);
  CHECK(io(lun.get(), Op::kFlush, 0, nullptr, 0) == 0);
  REQUIRE(io(lun.get(), Op::kWrite, kMiB, want.data() + 7 * kMiB, kMiB) ==
          static_cast<int64_t>(kMiB));
  REQUIRE(io(lun.get(), Op::kRead, kMiB, all.data(), kMiB) == static_cast<int64_t>(kMiB));
  CHECK(memcmp(all.data(), want.data() + 7 * kMiB, kMiB) == 0);
}

TEST_CASE("pmem: random commands against a model, delegated or not, on memory and on a disk") {
  const char* delegate = GENERATE("on", "off", "auto");
  File shm("/dev/shm", 16 * kMiB), plain(disk_directory(), 2 * kMiB);
  const std::string setting = std::string(",delegate=") + delegate;
  const Opened memory = opened("pmem:" + shm.path + setting),
               on_disk = opened("pmem:" + plain.path + setting);
  CHECK(against_model(memory.get(), 40, tier::run_seed(), 3 * kMiB + 512, 4 * kMiB).empty());
  CHECK(against_model(memory.get(), 300, tier::run_seed() + 1, 512, 256 * kKiB).empty());
  CHECK(against_model(on_disk.get(), 12, tier::run_seed() + 2, 4096, kMiB).empty());
}

TEST_CASE("pmem: threads with contexts of their own share the delegates and lose nothing") {
  File file("/dev/shm", 32 * kMiB);
  const Opened lun = opened("pmem:" + file.path + ",delegate=on");
  std::vector<std::thread> threads;
  std::string wrong[8];
  const uint64_t seed = tier::run_seed();
  for (unsigned t = 0; t < 8; ++t)
    threads.emplace_back(
        [&, t] { wrong[t] = against_model(lun.get(), 60, seed + 10 + t, t * 4 * kMiB, kMiB); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& what : wrong) CHECK(what.empty());
  CHECK(threads_named("lunar-delegate") >= 1);
}

TEST_CASE("pmem: every command of small lists is answered, however the delegates sleep and wake") {
  File file("/dev/shm", kMiB);
  const Opened lun = opened("pmem:" + file.path + ",delegate=on");
  std::mt19937_64 random(tier::run_seed());
  Attached context(lun.get(), 8);
  std::vector<char> buffer(8 * 4096);
  for (unsigned round = 0; round < 6000; ++round) {
    const auto n = static_cast<unsigned>(1 + random() % 8);
    Command commands[8];
    iovec parts[8];
    for (unsigned i = 0; i < n; ++i) {
      parts[i] = {buffer.data() + i * 4096, size_t{512} << random() % 4};
      commands[i] = command_of(Op::kRead, i * 4096, &parts[i], 0, i);
    }
    REQUIRE(context->submit(commands, n) == static_cast<int>(n));
    if (random() % 64 == 0) usleep(static_cast<useconds_t>(random() % 200));
    Response out[8];
    unsigned got = 0;
    // wait, await + reap, or neither helping nor sleeping.
    const uint64_t how = random() % 3;
    while (got < n) {
      int k = 0;
      if (how == 0) k = context->wait(out, 8, 10'000'000'000);
      if (how == 1 && context->await(10'000'000'000) == 0) k = context->reap(out, 8);
      if (how == 2) k = context->reap(out, 8);
      REQUIRE(k >= 0);
      if (how == 0) REQUIRE(k > 0);
      got += static_cast<unsigned>(k);
    }
    REQUIRE(got == n);
    REQUIRE(context->in_flight() == 0);
  }
}

TEST_CASE("pmem: a shared context: some submit, others await") {
  const bool on = GENERATE(true, false);
  File file("/dev/shm", kMiB);
  const Opened lun = opened("pmem:" + file.path + (on ? ",delegate=on" : ",delegate=off"));
  Attached context(lun.get(), 64, true);
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
            const Command command = command_of(Op::kRead, 0, &parts[submitted]);
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

TEST_CASE("pmem: the ring is full at its depth, and a watched descriptor is reported") {
  File file("/dev/shm", kMiB);
  const Opened lun = opened("pmem:" + file.path + ",delegate=on");
  Attached context(lun.get(), 4);
  char bytes[6][512];
  iovec parts[6];
  Command commands[6];
  for (unsigned i = 0; i < 6; ++i) {
    parts[i] = {bytes[i], 512};
    commands[i] = command_of(Op::kRead, 0, &parts[i], 0, i);
  }
  CHECK(context->submit(commands, 6) == 4);
  CHECK(context->submit(commands, 1) == -EAGAIN);
  Response out[6];
  unsigned got = 0;
  while (got < 4) {
    const int n = context->wait(out, 6, -1);
    REQUIRE(n > 0);
    got += static_cast<unsigned>(n);
  }
  CHECK(context->wait(out, 6, -1) == 0);  // nothing in flight, nothing watched
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  REQUIRE(context->watch(fd, 77) == 0);
  CHECK(context->wait(out, 6, 1'000'000) == 0);
  REQUIRE(eventfd_write(fd, 1) == 0);
  REQUIRE(context->wait(out, 6, -1) == 1);
  CHECK(out[0].tag == 77);
  CHECK((out[0].result & POLLIN) != 0);
  close(fd);
  Context* none = nullptr;
  ContextOptions bad;
  bad.depth = 0;
  CHECK(lun->attach(bad, &none) == -EINVAL);
  bad.depth = 4097;
  CHECK(lun->attach(bad, &none) == -EINVAL);
}

TEST_CASE(
    "pmem: delegates start with the first need, never from inside the runtime, and end with the "
    "device") {
  File file("/dev/shm", 4 * kMiB);
  std::vector<char> buffer(kMiB);
  const iovec part = {buffer.data(), buffer.size()};
  const Command large = command_of(Op::kRead, 0, &part);
  Response out[4];
  {
    const Opened lun = opened("pmem:" + file.path);
    auto& pool = static_cast<PmemDevice*>(lun.get())->pool();
    Attached context(lun.get());
    const iovec page = {buffer.data(), 4096};
    const Command small = command_of(Op::kRead, 0, &page);
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
  const Opened off = opened("pmem:" + file.path + ",delegate=off");
  Attached context(off.get());
  REQUIRE(context->submit(&large, 1) == 1);
  CHECK(context->reap(out, 4) == 1);
  CHECK_FALSE(static_cast<PmemDevice*>(off.get())->pool().started());
}

TEST_CASE("pmem: a list that is not waited for is done by the delegates alone") {
  File file("/dev/shm", 4 * kMiB);
  const Opened lun = opened("pmem:" + file.path + ",delegate=on");
  Attached context(lun.get());
  std::vector<char> buffer(16 * kMiB);
  iovec parts[16];
  Command commands[16];
  for (unsigned i = 0; i < 16; ++i) {
    parts[i] = {buffer.data() + i * kMiB, kMiB};
    commands[i] = command_of(Op::kRead, 0, &parts[i]);
  }
  for (unsigned round = 0; round < 20; ++round) {
    REQUIRE(context->submit(commands, 16) == 16);
    Response out[16];
    unsigned got = 0;
    for (unsigned patience = 0; got < 16 && patience < 10000; ++patience) {
      got += static_cast<unsigned>(context->reap(out, 16));
      if (got < 16) usleep(1000);
    }
    REQUIRE(got == 16);
  }
}

#ifndef __SANITIZE_THREAD__  // which allows no new threads in a child of a process with threads
TEST_CASE("pmem: a forked child starts delegates of its own, and sees the same memory") {
  File file("/dev/shm", 4 * kMiB);
  const Opened lun = opened("pmem:" + file.path + ",delegate=on");
  Context* inherited = nullptr;
  REQUIRE(lun->attach({}, &inherited) == 0);
  std::vector<char> buffer(2 * kMiB, 3);
  const iovec part = {buffer.data(), buffer.size()};
  const Command command = command_of(Op::kWrite, 0, &part);
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
      const Command write = command_of(Op::kWrite, 2 * kMiB, &mine);
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
  const Opened one = opened("pmem:" + file.path), other = opened("pmem:" + file.path);
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
