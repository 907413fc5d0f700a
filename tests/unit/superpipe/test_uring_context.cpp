// SPDX-License-Identifier: Apache-2.0
// Behaviour of ring contexts alone and of call contexts alone. device_conformance tests the rest.
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "superpipe/registry.h"
#include "superpipe/ring/call_context.h"
#include "superpipe/ring/sync_context.h"
#include "superpipe/ring/uring_context.h"
#include "sys/file.h"
#include "sys/proc.h"
#include "sys/thread.h"
#include "tests/catch.h"
#include "tests/support/device_io.h"
#include "tests/support/devices_by_uri.h"

using namespace lunar;

namespace {

using lunar_test::command_of;
using lunar_test::kPage;
using lunar_test::one;
using lunar_test::Pages;
constexpr size_t kFileBytes = 8 * kMiB;

// Whether the kernel counts more pinned memory for this process than it should.
bool pins_unaccounted() {
  char text[4096];
  if (sys::read_text("/proc/self/status", text, sizeof text) < 0) return true;
  const char* line = strstr(text, "VmPin:");
  return !line || strtoull(line + 6, nullptr, 10) * 1024 > sys::own_pinned_bytes();
}

// A file, and rings on it.
struct File {
  DeviceFiles files;
  JoinedFiles joined;
  File() {
    files.set(0, sys::open_unlinked(lunar_test::disk_directory(), O_RDWR | O_DIRECT));
    REQUIRE(fd() >= 0);
    REQUIRE(sys::allocate_space(fd(), 0, kFileBytes) == 0);
    joined.add(files, {});
  }
  ~File() { sys::close_file(fd()); }
  int fd() const { return files.file(); }
  OwnedContext* attach(const ContextOptions& options = {}) const {
    OwnedContext* context = nullptr;
    return UringContext::create(joined, options, &context) == 0 ? context : nullptr;
  }
};

}  // namespace

TEST_CASE(
    "contexts of calls: submit does not wait for I/O, several calls are made at once, and a wait "
    "ends before they do") {
  Device* device = lunar_test::opened("sim:1m,latency_us=100000", lunar_test::kRaw);
  CallPool calls;
  ContextOptions options;
  options.depth = 32;
  options.delegate = true;
  for (const bool shared : {false, true}) {
    options.shared = shared;
    OwnedContext* context = nullptr;
    REQUIRE(calls.attach(device, options, &context) == 0);
    Pages pages(32);
    iovec parts[32];
    Command commands[32];
    for (size_t i = 0; i < 32; ++i) {
      parts[i] = {pages.page(i), kPage};
      commands[i] = command_of(Op::kRead, i * kPage, &parts[i], 1, i);
    }
    const uint64_t start = sys::now_ns();
    REQUIRE(context->submit(commands, 32) == 32);
    Response responses[32];
    CHECK(context->wait(responses, 32, 1'000'000) == 0);
    CHECK(sys::now_ns() - start < 90'000'000);
    unsigned done = 0;
    while (done < 32) {
      if (shared) {
        const int status = context->await(-1);
        REQUIRE((status == 0 || status == -EINTR));
      }
      const int n = shared ? context->reap(responses, 32) : context->wait(responses, 32, -1);
      REQUIRE(n >= 0);
      for (int i = 0; i < n; ++i) CHECK(responses[i].result == kPage);
      done += static_cast<unsigned>(n);
    }
    CHECK(sys::now_ns() - start < 1'600'000'000);  // one after the other: 3.2 s
    CHECK(calls.pool().threads() > 1);
    context->release();
  }
  calls.destroy();
  device_close(device);
}

TEST_CASE("uring contexts go on when every descriptor of the thread's table is closed") {
  if (sys::uring_probe() < 0) LUNAR_SKIP("io_uring", "refused on this host");
  const File file;
  int64_t result = 0;
  std::thread thread([&] {
    OwnedContext* context = file.attach();
    if (!context || unshare(CLONE_FILES) != 0) return;
    sys::close_all_but(nullptr, 0);
    Pages pages(1);
    const iovec part = {pages.base, kPage};
    result = one(context, command_of(Op::kRead, kPage, &part, 1, 1));
    const int other = sys::make_eventfd();  // takes a number that was ours
    context->release();
    if (fcntl(other, F_GETFD) < 0) result = -1;  // and stays open
  });
  thread.join();
  CHECK(result == kPage);
}

TEST_CASE("uring contexts learn the usual latency and come and go without end") {
  if (sys::uring_probe() < 0) LUNAR_SKIP("io_uring", "refused on this host");
  const File file;
  Pages pages(1);
  const iovec part = {pages.base, kPage};
  for (int i = 0; i < 40; ++i) {  // more than a thread can have registered at once
    OwnedContext* context = file.attach();
    REQUIRE(context);
    CHECK(context->usual_latency_ns() == 0);
    CHECK(one(context, command_of(Op::kRead, 0, &part, 1, 1)) == kPage);
    CHECK(context->usual_latency_ns() > 0);
    context->release();
  }
}

TEST_CASE("uring: the kernel never counts more registered memory than is known to be ours") {
  Pages pages(64);
  if (sys::uring_probe() < 0 || sys::uring_probe_window(pages.base, pages.bytes) < 0)
    LUNAR_SKIP("io_uring", "refused on this host, or no memory may be registered");
  const File file;
  const uint64_t before = sys::own_pinned_bytes();
  ContextOptions options;
  options.buffer = pages.base;
  options.buffer_bytes = pages.bytes;
  const iovec part = {pages.base, kPage};
  unsigned unaccounted = 0;
  for (int i = 0; i < 40; ++i) {
    unaccounted += sys::uring_probe_window(pages.base, kPage) < 0 || pins_unaccounted();
    OwnedContext* context = file.attach(options);
    REQUIRE(context);
    CHECK(one(context, command_of(Op::kRead, 0, &part, 1, 1)) == kPage);
    CHECK(sys::own_pinned_bytes() == before + pages.bytes);
    unaccounted += pins_unaccounted();
    context->release();
    unaccounted += pins_unaccounted();
  }
  CHECK(unaccounted == 0);
  CHECK(sys::own_pinned_bytes() == before);
}

// A ring with registered memory in the descriptor table of a thread of its own, until `done`.
struct ServiceRing {
  sys::Uring ring;
  Pages pages{4};
  std::atomic<int> made{0};  // 1; -1: not possible
  std::atomic<bool> done{false};
  static void run(void* argument) {
    auto& self = *static_cast<ServiceRing*>(argument);
    const iovec window = {self.pages.base, self.pages.bytes};
    const bool made = self.ring.init({}) == 0 && self.ring.register_buffers(&window, 1) == 0;
    self.made.store(made ? 1 : -1);
    while (!self.done.load()) sys::sleep_ns(1000000);
    self.ring.destroy();
  }
};

int open_rings() {
  int rings = 0;
  for (int fd = 0; fd < 256; ++fd) {
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    char target[64] = {};
    rings += readlink(link.c_str(), target, sizeof target - 1) > 0 &&
             strstr(target, "[io_uring]") != nullptr;
  }
  return rings;
}

TEST_CASE(
    "uring: a forked child has no pins of its parent's, and its rings stay open when a thread's is "
    "forgotten") {
  if (sys::uring_probe() < 0) LUNAR_SKIP("io_uring", "refused on this host");
  ServiceRing service;
  sys::ThreadSpec spec;
  spec.run = ServiceRing::run;
  spec.argument = &service;
  spec.unshare_files = true;
  pthread_t thread;
  REQUIRE(sys::thread_start(spec, &thread) == 0);
  while (service.made.load() == 0) sys::sleep_ns(100000);
  const bool possible = service.made.load() == 1;
  io_uring_params parameters{};
  // the program's: takes the number that the thread's has in its table
  const int own = static_cast<int>(syscall(SYS_io_uring_setup, 4u, &parameters));
  const bool made = own >= 0;
  int status = -1;
  if (possible && made) {
    CHECK(sys::own_pinned_bytes() >= service.pages.bytes);
    const pid_t child = fork();
    if (child == 0) {
      const int before = open_rings();
      const bool pins = sys::own_pinned_bytes() != 0;
      service.ring.destroy();
      _exit(pins                                    ? 1
            : before == 0 || open_rings() != before ? 2
            : sys::own_pinned_bytes() != 0          ? 3
                                                    : 0);
    }
    REQUIRE(waitpid(child, &status, 0) == child);
  }
  if (made) close(own);
  service.done.store(true);
  sys::thread_end(thread);
  if (!possible) LUNAR_SKIP("io_uring", "no memory may be registered");
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(WIFEXITED(status));
}
