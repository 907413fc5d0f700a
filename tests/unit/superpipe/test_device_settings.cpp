// SPDX-License-Identifier: Apache-2.0
// Devices by URI: settings, capabilities as the host has them, refusals in one line; contexts
// shared by threads, vectors in the window, many in flight.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "superpipe/device.h"
#include "superpipe/registry.h"
#include "superpipe/ring/uring_context.h"
#include "sys/file.h"
#include "sys/thread.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"
#include "tests/support/stderr_of.h"

using namespace lunar;
using namespace lunar_test;

namespace {

int open_rings() {
  int rings = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    rings += std::filesystem::read_symlink(file.path(), gone).string().find("[io_uring]") !=
             std::string::npos;
  }
  return rings;
}

void round_trip(Device* device, const ContextOptions& options = {}) {
  Context* context = nullptr;
  REQUIRE(device->attach(options, &context) == 0);
  Pages pages(2);
  memset(pages.page(0), 'r', kPage);
  const iovec out = {pages.page(0), kPage}, in = {pages.page(1), kPage};
  CHECK(one(context, command_of(Op::kWrite, 3, &out, 1, 1)) == kPage);
  CHECK(one(context, command_of(Op::kFlush, 0, nullptr, 0, 2)) == 0);
  CHECK(one(context, command_of(Op::kRead, 3, &in, 1, 3)) == kPage);
  CHECK(memcmp(pages.page(0), pages.page(1), kPage) == 0);
  device->detach(context);
}

// Threads that share one context: the lock around submit and reap, await outside. Each writes pages
// of its own and reads them back; a response may be reaped by another thread.
void share(Device* device) {
  constexpr unsigned kThreads = 6, kRounds = 150;
  ContextOptions options;
  options.shared = true;
  options.depth = 8;
  Context* context = nullptr;
  // by a thread that is gone when it is used
  std::thread([&] { REQUIRE(device->attach(options, &context) == 0); }).join();
  std::mutex mutex;
  std::atomic<int64_t> done[kThreads] = {};
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  const uint64_t deadline = sys::now_ns() + 30'000'000'000;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Pages pages(2);
      for (unsigned round = 0; round < kRounds; ++round) {
        for (Op op : {Op::kWrite, Op::kRead}) {
          char* page = pages.page(op == Op::kRead);
          if (op == Op::kWrite) memset(page, static_cast<int>(t * 31 + round), kPage);
          const iovec part = {page, kPage};
          const Command command = command_of(op, t * 7 + round % 7, &part, 1, t);
          done[t] = -2000;
          bool submitted = false;
          while (!submitted || done[t] == -2000) {
            if (sys::now_ns() > deadline) {
              ++wrong;
              return;
            }
            {
              const std::lock_guard<std::mutex> lock(mutex);
              if (!submitted) submitted = context->submit(&command, 1) == 1;
              Response responses[8];
              const int n = context->reap(responses, 8);
              for (int i = 0; i < n; ++i) done[responses[i].tag] = responses[i].result;
            }
            if (done[t] == -2000) (void)context->await(2'000'000);
          }
          wrong += done[t] != static_cast<int64_t>(kPage);
        }
        wrong += memcmp(pages.page(0), pages.page(1), kPage) != 0;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(context->in_flight() == 0);
  device->detach(context);
}

}  // namespace

TEST_CASE("device uri: an unknown scheme names the known ones, bad settings name theirs") {
  Directory directory;
  const std::string disk = directory.disk("disk", kMiB);
  CHECK(has(refused("floppy:/dev/fd0", kRaw, -EINVAL), "known: file, nvme, pmem, capi, mem, sim"));
  CHECK(has(refused("file:" + disk + ",speed=on", kRaw, -EINVAL), "known: sqpoll"));
  // of earlier versions
  CHECK(has(refused("file:" + disk + ",iopoll=on", kRaw, -EINVAL), "iopoll"));
  CHECK(has(refused("file:" + disk + ",sqpoll=perhaps", kRaw, -EINVAL), "auto, on or off"));
  CHECK(has(refused("file:" + disk + "x", kRaw, -ENOENT), "no such file"));
  // a bare path has no settings
  CHECK(has(refused(disk + ",sqpoll=on", kRaw, -ENOENT), "no such file"));
  CHECK(has(refused("file:" + std::string(5000, 'x'), kRaw, -ENAMETOOLONG), "too long"));
}

TEST_CASE("device uri: capi without hardware says what is missing") {
  CHECK(has(refused("capi:/dev/sg99", kRaw, -ENODEV), "IBM's libcflsh_block"));
  CHECK(has(refused("capi:/dev/sg99,lib=block.so", kRaw, -ENODEV), "absolute path"));
}

TEST_CASE("device uri: a file whose name looks like a setting is opened by its name") {
  Directory directory;
  const std::string odd = directory.disk("disk,sqpoll=on", kMiB);
  Device* device = opened("file:" + odd, kRaw);
  CHECK(device->size_bytes() == kMiB);
  round_trip(device);
  device_close(device);
  device = opened(odd, kRaw);
  device_close(device);
}

TEST_CASE("device uri: auto settings never fail, and what they choose works") {
  Directory directory;
  const std::string disk = directory.disk("disk", kMiB);
  for (const char* settings : {",sqpoll=auto", ",sqpoll=off", ""}) {
    INFO(settings);
    Device* device = opened("file:" + disk + settings, kRaw);
    round_trip(device);
    device_close(device);
  }
}

TEST_CASE("file capabilities are those of the host, and sqpoll=on holds or says why not") {
  Directory directory;
  const std::string disk = directory.disk("disk", kMiB);
  Device* device = opened(disk, kRaw);
  const Capabilities can = device->capabilities();
  CHECK(can.persistent);
  CHECK(can.discard);  // ext4, xfs, btrfs, tmpfs
  struct stat status;
  REQUIRE(stat(disk.c_str(), &status) == 0);
  CHECK(status.st_size == kMiB);
  CHECK(static_cast<uint64_t>(status.st_blocks) * 512 >= kMiB);  // the probe made no hole
  device_close(device);
  const std::string uri = "file:" + disk + ",sqpoll=on";
  if (can.sqpoll) {
    device = opened(uri, kRaw);
    round_trip(device);
    device_close(device);
  } else {
    CHECK(has(refused(uri, kRaw), "sqpoll=on"));
  }
  device = opened(disk, kReadOnly);
  CHECK_FALSE(device->capabilities().discard);  // read-only
  Pages pages(1);
  const iovec part = {pages.base, kPage};
  CHECK(device->transfer(command_of(Op::kRead, 0, &part, 1, 0)) == kPage);
  CHECK(device->transfer(command_of(Op::kWrite, 0, &part, 1, 0)) == -EBADF);
  device_close(device);
}

TEST_CASE("a read-only block device is refused by that name, and can be read") {
  if (geteuid() != 0) LUNAR_SKIP("root", "loop devices need root");
  Directory directory;
  const std::string disk = directory.disk("disk", 4 * kMiB), told = directory.path + "/name";
  std::string loop;
  if (system(("losetup -r -f --show " + disk + " >" + told + " 2>/dev/null").c_str()) == 0)
    std::ifstream(told) >> loop;
  if (loop.empty()) LUNAR_SKIP("loop", "no free loop device");
  CHECK(has(refused(loop, kRaw, -EROFS), "read-only"));
  CHECK(has(refused(loop, {}, -EROFS), "read-only"));
  Device* device = opened(loop, kReadOnly);
  CHECK_FALSE(device->capabilities().discard);
  device_close(device);
  CHECK(system(("losetup -d " + loop).c_str()) == 0);
}

TEST_CASE("shared contexts: threads submit and reap in turn and sleep in await") {
  Directory directory;
  const std::string disk = directory.disk("disk", kMiB);
  for (const std::string& uri :
       {disk, "file:" + disk + ",sqpoll=auto", std::string("sim:1m,latency_us=30")}) {
    INFO(uri);
    Device* device = opened(uri, kRaw);
    share(device);
    device_close(device);
  }
}

TEST_CASE(
    "uring contexts: 128 in flight bring every response, also with few in flight and with a "
    "watch") {
  if (sys::uring_probe() < 0) LUNAR_SKIP("io_uring", "refused on this host");
  Directory directory;
  Device* device = opened(directory.disk("disk", kMiB), kRaw);
  ContextOptions options;
  round_trip(device, options);
  Context* context = nullptr;
  REQUIRE(device->attach(options, &context) == 0);
  Pages pages(128);
  iovec parts[128];
  Command commands[128];
  for (unsigned i = 0; i < 128; ++i) {
    parts[i] = {pages.page(i), kPage};
    commands[i] = command_of(Op::kRead, i, &parts[i], 1, i);
  }
  for (int round = 0; round < 20; ++round) {
    REQUIRE(context->submit(commands, 128) == 128);
    unsigned got = 0;
    while (got < 128) {
      Response responses[64];
      const int n = context->wait(responses, 64, round % 2 ? -1 : 50'000);
      REQUIRE(n >= 0);
      for (int i = 0; i < n; ++i) CHECK(responses[i].result == kPage);
      got += static_cast<unsigned>(n);
    }
  }
  int ends[2];
  REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
  REQUIRE(context->watch(ends[0], 500) == 0);
  REQUIRE(context->submit(commands, 128) == 128);
  REQUIRE(write(ends[1], "x", 1) == 1);
  bool seen = false;
  for (unsigned got = 0; got < 129;) {
    Response responses[64];
    const int n = context->wait(responses, 64, -1);
    REQUIRE(n > 0);
    for (int i = 0; i < n; ++i) seen |= responses[i].tag == 500;
    got += static_cast<unsigned>(n);
  }
  CHECK(seen);
  close(ends[0]);
  close(ends[1]);
  device->detach(context);
  device_close(device);
}

TEST_CASE(
    "rings: a vector in a registered buffer is taken where the kernel says so, one outside is "
    "refused") {
  sys::Uring ring;
  if (ring.init({}) < 0) LUNAR_SKIP("io_uring", "refused on this host");
  if (!ring.fixed_vectors()) {  // before Linux 6.15
    ring.destroy();
    return;
  }
  Directory directory;
  const int fd = sys::open_file(directory.disk("disk", kMiB).c_str(), O_RDWR | O_DIRECT);
  REQUIRE(fd >= 0);
  Pages window(8), other(1);
  const iovec whole = {window.base, window.bytes};
  REQUIRE(ring.register_buffers(&whole, 1) == 0);
  const iovec good[] = {{window.page(5), kPage}, {window.page(1), kPage}},
              bad[] = {{window.page(5), kPage}, {other.base, kPage}};
  memset(window.page(5), 'x', kPage);
  memset(window.page(1), 'y', kPage);
  const auto run = [&](bool read, const iovec* parts) {
    CHECK((read ? ring.queue_readv(fd, false, parts, 2, 0, 0, 7)
                : ring.queue_writev(fd, false, parts, 2, 0, 0, 7)));
    CHECK(ring.submit_and_wait(5'000'000'000) == 0);
    sys::Cqe done;
    return ring.reap(&done, 1, true) == 1 ? done.result : -1000;
  };
  CHECK(run(false, good) == 2 * kPage);
  memset(window.base, 0, window.bytes);
  CHECK(run(true, good) == 2 * kPage);
  CHECK(*window.page(5) == 'x');
  CHECK(*window.page(1) == 'y');
  CHECK(run(true, bad) == -EFAULT);
  ring.destroy();
  sys::close_file(fd);
}

TEST_CASE(
    "a lack of descriptors is told as such; contexts that may fail do, and the next one has a "
    "ring") {
  if (sys::uring_probe() < 0) LUNAR_SKIP("io_uring", "refused on this host");
  Directory directory;
  Device* device = opened(directory.disk("disk", kMiB), kRaw);
  const std::string said = lunar_test::stderr_of([&] {
    rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) _exit(1);
    const rlim_t before = files.rlim_cur;
    files.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) _exit(2);
    ContextOptions may_fail, may_not;
    may_fail.delegate = may_fail.shared = true;
    Context *first = nullptr, *second = nullptr;
    for (int i = 0; i < 2; ++i)  // told once
      if (device->attach(may_fail, &first) != -EMFILE) _exit(3);
    if (device->attach(may_not, &second) != 0) _exit(4);
    files.rlim_cur = before;
    if (setrlimit(RLIMIT_NOFILE, &files) != 0 || device->attach(may_fail, &first) != 0) _exit(5);
    if (open_rings() != 1) _exit(6);
    Pages page(1);
    const iovec part = {page.base, kPage};
    for (Context* context : {first, second})
      if (one(context, command_of(Op::kRead, 0, &part, 1, 1)) != int64_t{kPage}) _exit(7);
    fprintf(stderr, "all is well\n");
  });
  INFO(said);
  CHECK(has(said, "all is well"));
  CHECK(has(said, "too many open files (EMFILE)"));
  CHECK(has(said, "ulimit -n"));
  CHECK(said.find("no ring") == said.rfind("no ring"));
  CHECK(said.find("io_uring_disabled") == std::string::npos);
  device_close(device);
}
