// SPDX-License-Identifier: Apache-2.0
// Contexts on a file: the ring, the synchronous one and the one whose calls threads make must
// behave alike. Every case runs on all of them where io_uring is allowed, on the latter two
// elsewhere.
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

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

// Whether the kernel counts more pinned memory of this process than it should.
bool pins_unaccounted() {
  char text[4096];
  if (sys::read_text("/proc/self/status", text, sizeof text) < 0) return true;
  const char* line = strstr(text, "VmPin:");
  return !line || strtoull(line + 6, nullptr, 10) * 1024 > sys::own_pinned_bytes();
}

enum class Kind { kRing, kSync, kCalls };

// A file, and contexts of one kind on it.
struct File {
  DeviceFiles files;
  JoinedFiles joined;
  Kind kind;
  mutable CallPool calls;
  explicit File(Kind wanted) : kind(wanted) {
    files.set(0, sys::open_unlinked(lunar_test::disk_directory(), O_RDWR | O_DIRECT));
    REQUIRE(fd() >= 0);
    REQUIRE(sys::allocate_space(fd(), 0, kFileBytes) == 0);
    joined.add(files, 0, true);
  }
  ~File() {
    calls.destroy();
    sys::close_file(fd());
  }
  int fd() const { return files.file(); }
  OwnedContext* attach(ContextOptions options = {}) const {
    OwnedContext* context = nullptr;
    options.delegate = kind == Kind::kCalls;
    const int status = kind == Kind::kRing ? UringContext::create(joined, options, &context)
                                           : calls.attach(joined, options, &context);
    return status == 0 ? context : nullptr;
  }
};

std::vector<Kind> kinds() {
  if (sys::uring_probe() < 0) {
    std::printf("skip: io_uring: refused on this host; only the other contexts are tested\n");
    return {Kind::kSync, Kind::kCalls};
  }
  return {Kind::kRing, Kind::kSync, Kind::kCalls};
}

}  // namespace

TEST_CASE("contexts: single buffers in and out of the window, and vectors, come back as written") {
  for (const Kind kind : kinds()) {
    File file(kind);
    Pages window(16), outside(16);
    ContextOptions options;
    options.buffer = window.base;
    options.buffer_bytes = window.bytes;
    OwnedContext* context = file.attach(options);
    REQUIRE(context);
    for (size_t i = 0; i < 16; ++i) memset(window.page(i), static_cast<int>('a' + i), kPage);
    iovec parts[16];
    for (size_t i = 0; i < 16; ++i) parts[i] = {window.page(15 - i), kPage};
    CHECK(one(context, command_of(Op::kWrite, 0, parts, 16, 1)) == 16 * kPage);
    const iovec whole = {outside.base, outside.bytes};
    CHECK(one(context, command_of(Op::kRead, 0, &whole, 1, 2)) == 16 * kPage);
    for (size_t i = 0; i < 16; ++i) CHECK(memcmp(outside.page(i), window.page(15 - i), kPage) == 0);
    const iovec fixed = {window.page(3), kPage};
    CHECK(one(context, command_of(Op::kRead, 0, &fixed, 1, 3)) == kPage);
    CHECK(*window.page(3) == 'p');
    CHECK(one(context, command_of(Op::kWrite, 9, &fixed, 1, 4)) == kPage);
    CHECK(one(context, command_of(Op::kFlush, 0, nullptr, 0, 5)) == 0);
    const iovec back = {outside.page(0), kPage};
    CHECK(one(context, command_of(Op::kRead, 9, &back, 1, 6)) == kPage);
    CHECK(*outside.page(0) == 'p');
    // A buffer that only begins inside the window is not one of its own.
    const iovec astride = {window.page(15), kPage};
    CHECK(one(context, command_of(Op::kRead, 0, &astride, 1, 7)) == kPage);
    context->release();
  }
}

TEST_CASE("contexts: a full ring takes fewer, and each taken command gets one response") {
  for (const Kind kind : kinds()) {
    File file(kind);
    Pages pages(64);
    ContextOptions options;
    options.depth = 12;  // not a power of two
    OwnedContext* context = file.attach(options);
    REQUIRE(context);
    iovec parts[64];
    Command commands[64];
    for (size_t i = 0; i < 64; ++i) {
      parts[i] = {pages.page(i), kPage};
      commands[i] = command_of(Op::kWrite, i, &parts[i], 1, 100 + i);
    }
    std::multiset<uint64_t> tags;
    unsigned next = 0;
    while (tags.size() < 64) {
      const int taken = next < 64 ? context->submit(commands + next, 64 - next) : 0;
      REQUIRE(taken >= 0);
      next += static_cast<unsigned>(taken);
      CHECK(context->in_flight() <= 12);
      if (next < 64) {
        CHECK(taken == 12);
        CHECK(context->submit(commands + next, 1) == -EAGAIN);
      }
      while (context->in_flight()) {
        Response responses[64];
        const int n = context->wait(responses, 64, -1);
        REQUIRE(n > 0);
        for (int i = 0; i < n; ++i) {
          CHECK(responses[i].result == static_cast<int64_t>(kPage));
          tags.insert(responses[i].tag);
        }
      }
    }
    CHECK(std::set<uint64_t>(tags.begin(), tags.end()).size() == 64);
    CHECK(context->in_flight() == 0);
    context->release();
  }
}

TEST_CASE("contexts: errors come back as responses") {
  for (const Kind kind : kinds()) {
    File file(kind);
    Pages pages(1);
    OwnedContext* context = file.attach();
    const iovec crooked = {pages.base, 100};  // O_DIRECT wants whole sectors
    CHECK(one(context, command_of(Op::kWrite, 0, &crooked, 1, 1)) == -EINVAL);
    const iovec beyond = {pages.base, kPage};
    CHECK(one(context, command_of(Op::kRead, kFileBytes / kPage + 5, &beyond, 1, 2)) == 0);
    context->release();
  }
}

TEST_CASE("contexts: wait returns at once without work, and on time without completions") {
  for (const Kind kind : kinds()) {
    File file(kind);
    OwnedContext* context = file.attach();
    Response response;
    CHECK(context->wait(&response, 1, -1) == 0);
    int ends[2];
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
    REQUIRE(context->watch(ends[0], 7) == 0);
    const uint64_t start = sys::now_ns();
    CHECK(context->wait(&response, 1, 20'000'000) == 0);
    CHECK(sys::now_ns() - start >= 19'000'000);
    CHECK(context->wait(&response, 1, 0) == 0);
    CHECK(context->in_flight() == 0);
    context->release();
    close(ends[0]);
    close(ends[1]);
  }
}

TEST_CASE(
    "contexts: exchange submits and waits for a batch, for all when fewer are on their way, and "
    "not past its time") {
  for (const Kind kind : kinds()) {
    File file(kind);
    Pages pages(64);
    ContextOptions options;
    options.depth = 12;
    OwnedContext* context = file.attach(options);
    REQUIRE(context);
    iovec parts[64];
    Command commands[64];
    for (size_t i = 0; i < 64; ++i) {
      parts[i] = {pages.page(i), kPage};
      commands[i] = command_of(i % 2 ? Op::kRead : Op::kWrite, i, &parts[i], 1, 100 + i);
    }
    std::multiset<uint64_t> tags;
    Response done[64];
    unsigned next = 0;
    while (tags.size() < 64) {
      unsigned taken = 99;
      const unsigned left = 64 - static_cast<unsigned>(tags.size());
      const int got = context->exchange(commands + next, 64 - next, &taken, done, 64, 5, -1);
      REQUIRE(taken <= 12);
      REQUIRE(got >= static_cast<int>(left < 5 ? left : 5));
      next += taken;
      for (int i = 0; i < got; ++i) {
        CHECK(done[i].result == kPage);
        tags.insert(done[i].tag);
      }
    }
    CHECK(context->in_flight() == 0);
    CHECK(std::set<uint64_t>(tags.begin(), tags.end()).size() == 64);
    unsigned taken = 99;
    CHECK(context->exchange(nullptr, 0, &taken, done, 64, 5, -1) ==
          0);  // nothing on its way: at once
    CHECK(taken == 0);
    int ends[2];
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
    REQUIRE(context->watch(ends[0], 7) == 0);
    const uint64_t start = sys::now_ns();
    CHECK(context->exchange(nullptr, 0, &taken, done, 64, 5, 20'000'000) == 0);
    CHECK(sys::now_ns() - start >= 19'000'000);
    REQUIRE(write(ends[1], "x", 1) == 1);
    CHECK(context->exchange(commands, 1, &taken, done, 64, 2, 2'000'000'000) ==
          2);  // the watch is one of them
    CHECK(taken == 1);
    close(ends[0]);
    close(ends[1]);
    context->release();
  }
}

TEST_CASE("contexts: a watch fires once, through wait and through reap, and four fit") {
  for (const Kind kind : kinds()) {
    File file(kind);
    OwnedContext* context = file.attach();
    int ends[5][2];
    for (auto& pair : ends) REQUIRE(pipe2(pair, O_NONBLOCK) == 0);
    for (unsigned i = 0; i < 4; ++i) CHECK(context->watch(ends[i][0], 10 + i) == 0);
    CHECK(context->watch(ends[4][0], 20) == -EBUSY);
    CHECK(context->watch(ends[1][0], 31) == 0);  // again: the tag changes
    REQUIRE(write(ends[1][1], "x", 1) == 1);
    Response responses[4];
    REQUIRE(context->wait(responses, 4, -1) == 1);
    CHECK(responses[0].tag == 31);
    CHECK((responses[0].result & POLLIN) != 0);
    CHECK(context->wait(responses, 4, 5'000'000) == 0);  // over, though the byte is still there
    CHECK(context->watch(ends[1][0], 32) == 0);
    int n = 0;
    for (int i = 0; i < 1000 && n == 0; ++i) {
      n = context->reap(responses, 4);
      if (n == 0) sys::sleep_ns(100'000);
    }
    REQUIRE(n == 1);
    CHECK(responses[0].tag == 32);
    context->release();
    for (auto& pair : ends) {
      close(pair[0]);
      close(pair[1]);
    }
  }
}

TEST_CASE("contexts: a sleeping wait is woken by a watched descriptor") {
  for (const Kind kind : kinds()) {
    File file(kind);
    OwnedContext* context = file.attach();
    int ends[2];
    REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
    REQUIRE(context->watch(ends[0], 5) == 0);
    std::thread writer([&] {
      sys::sleep_ns(20'000'000);
      (void)!write(ends[1], "x", 1);
    });
    Response response;
    CHECK(context->wait(&response, 1, -1) == 1);
    CHECK(response.tag == 5);
    writer.join();
    context->release();
    close(ends[0]);
    close(ends[1]);
  }
}

TEST_CASE("contexts: threads with contexts of their own do not disturb each other") {
  for (const Kind kind : kinds()) {
    File file(kind);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        OwnedContext* context = file.attach();
        if (!context) {
          ++wrong;
          return;
        }
        Pages pages(64);
        uint64_t words[2];
        iovec parts[32];
        Command commands[32];
        for (uint64_t round = 0; round < 20; ++round) {
          for (Op op : {Op::kWrite, Op::kRead}) {
            for (uint64_t i = 0; i < 32; ++i) {
              char* page = pages.page(op == Op::kWrite ? i : 32 + i);
              parts[i] = {page, kPage};
              commands[i] = command_of(op, t * 32 + i, &parts[i], 1, i);
              words[0] = t, words[1] = round * 100 + i;
              if (op == Op::kWrite) memcpy(page, words, sizeof words);
            }
            if (context->submit(commands, 32) != 32) ++wrong;
            Response responses[32];
            for (int got = 0, n = 0; got < 32; got += n) {
              n = context->wait(responses, 32, -1);
              if (n < 0) n = 0;
              for (int i = 0; i < n; ++i)
                wrong += responses[i].result != static_cast<int64_t>(kPage);
            }
          }
          for (uint64_t i = 0; i < 32; ++i)
            wrong += memcmp(pages.page(i), pages.page(32 + i), kPage) != 0;
        }
        context->release();
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE(
    "contexts of calls: submit does not wait for I/O, several calls are made at once, and a wait "
    "ends before they do") {
  DeviceOptions raw;
  raw.scratch = false;
  ErrorText why;
  Device* device = nullptr;
  REQUIRE(device_open("sim:1m,latency_us=100000", raw, &device, &why) == 0);
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
      commands[i] = command_of(Op::kRead, i, &parts[i], 1, i);
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
  File file(Kind::kRing);
  int64_t result = 0;
  std::thread thread([&] {
    OwnedContext* context = file.attach();
    if (!context || unshare(CLONE_FILES) != 0) return;
    sys::close_all_but(nullptr, 0);
    Pages pages(1);
    const iovec part = {pages.base, kPage};
    result = one(context, command_of(Op::kRead, 1, &part, 1, 1));
    const int other = sys::make_eventfd();  // takes a number that was ours
    context->release();
    if (fcntl(other, F_GETFD) < 0) result = -1;  // and stays open
  });
  thread.join();
  CHECK(result == kPage);
}

TEST_CASE("uring contexts learn the usual latency and come and go without end") {
  if (sys::uring_probe() < 0) LUNAR_SKIP("io_uring", "refused on this host");
  File file(Kind::kRing);
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
  File file(Kind::kRing);
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
