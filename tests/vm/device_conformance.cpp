// SPDX-License-Identifier: Apache-2.0
// Whether a device behaves as superpipe/device.h says, whatever it is:
//
//   device_conformance URI [--keep|--scratch]    OVERWRITES the first 24 MiB of URI (and its last
//                                                blocks). --keep: only opens and shows it;
//                                                --scratch: opens it as a scratch LUN, twice
//                                                (refused when it holds data)
//
// A line a part, then `ok`; or `FAIL`, the first thing that was wrong, and 1. LUNAR_SEED=N replays.
// 2: the arguments, or the device could not be opened. Run by hand and in virtual machines
// (tests/vm) on hardware that a test host seldom has; on files, loop devices and sim: by
// tools/test.
// Threading: one thread, but for the parts that say otherwise.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "superpipe/device.h"
#include "superpipe/registry.h"
#include "sys/thread.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

constexpr uint64_t kAreaBytes = 24 * kMiB;
constexpr uint64_t kModelBytes = 8 * kMiB;
constexpr size_t kPage = 4096;

const char* part_name = "";
std::mt19937_64 random_numbers;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  printf("FAIL %s: %s\n", part_name, text);
  fflush(stdout);
  _exit(1);
}

#define EXPECT(condition, ...)           \
  do {                                   \
    if (!(condition)) fail(__VA_ARGS__); \
  } while (0)

struct Memory {
  char* base;
  size_t bytes;
  explicit Memory(size_t want) : bytes(want) {
    base = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT(base != MAP_FAILED, "out of memory");
  }
  ~Memory() { munmap(base, bytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

void fill(char* memory, size_t bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = (seed + at) * 0x9e3779b97f4a7c15u;
    memcpy(memory + at, &word, 8);
  }
}

Command command_of(Op op, uint64_t offset, const iovec* parts, uint32_t count, uint64_t tag = 0) {
  Command command;
  command.op = op;
  command.offset = DeviceOffset{offset};
  command.iov = parts;
  command.iov_count = count;
  command.tag = tag;
  return command;
}

// How a command is carried out: by a context, or without one.
struct Way {
  Device* device;
  Context* context;  // nullptr: transfer()
  int64_t run(const Command& command) const {
    if (!context) return device->transfer(command);
    const int taken = context->submit(&command, 1);
    EXPECT(taken == 1, "submit gave %d", taken);
    Response response;
    int got;
    do got = context->wait(&response, 1, 30'000'000'000);
    while (got == -EINTR);
    EXPECT(got == 1, "wait gave %d within 30 s, for %s at %llu of %u parts, the first of %zu bytes",
           got, command.op == Op::kRead ? "a read" : "another",
           static_cast<unsigned long long>(command.offset.value), command.iov_count,
           command.iov ? command.iov->iov_len : 0);
    EXPECT(response.tag == command.tag, "a response with another tag");
    return response.result;
  }
  void write(uint64_t offset, const char* memory, size_t bytes) const {
    const iovec part = {const_cast<char*>(memory), bytes};
    const int64_t moved = run(command_of(Op::kWrite, offset, &part, 1, 77));
    EXPECT(moved == static_cast<int64_t>(bytes), "write of %zu at %llu gave %lld", bytes,
           static_cast<unsigned long long>(offset), static_cast<long long>(moved));
  }
  void read(uint64_t offset, char* memory, size_t bytes) const {
    const iovec part = {memory, bytes};
    const int64_t moved = run(command_of(Op::kRead, offset, &part, 1, 78));
    EXPECT(moved == static_cast<int64_t>(bytes), "read of %zu at %llu gave %lld", bytes,
           static_cast<unsigned long long>(offset), static_cast<long long>(moved));
  }
};

struct Attached {
  Device* device;
  Context* context = nullptr;
  explicit Attached(Device* of, const ContextOptions& options = {}) : device(of) {
    const int status = of->attach(options, &context);
    EXPECT(status == 0, "attach gave %s", errno_name(status));
  }
  ~Attached() {
    if (context) device->detach(context);
  }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;
};

Device* open_device(const std::string& uri, bool read_only = false, bool scratch = false) {
  DeviceOptions options;
  options.scratch = scratch;
  options.claim = Claim::kWhole;
  options.read_only = read_only;
  Device* device = nullptr;
  ErrorText why;
  const int status = device_open(uri.c_str(), options, &device, &why);
  if (status == 0) return device;
  printf("cannot open: %s\n", why.text);
  exit(2);
}

void show(Device* device) {
  const Capabilities can = device->capabilities();
  printf(
      "%s (%s): %s, align %u; discard %d, window %d, sqpoll %d, polled %d, persistent %d, fua %s, "
      "transfer %s, memory align %u\n",
      device->name(), device->kind(), format_size(device->size_bytes()).text, device->io_align(),
      can.discard, can.window, can.sqpoll, can.polled, can.persistent, fua_text(can.fua),
      format_size(can.transfer_bytes_max).text, can.memory_align);
}

// ---- parts --------------------------------------------------------------------------------------

void sizes(Device* device, const Way& way) {
  const uint32_t align = device->io_align();
  EXPECT(align == 512 || align == 4096, "io_align %u", align);
  const uint64_t most = device->capabilities().transfer_bytes_max;
  std::vector<size_t> sizes = {align, kPage, 3 * kPage, 64 * kKiB, 1 * kMiB, 1 * kMiB + align};
  if (most >= 16 * kMiB) sizes.push_back(16 * kMiB);
  Memory out(17 * kMiB), in(17 * kMiB);
  for (size_t bytes : sizes) {
    for (uint64_t offset : {uint64_t{0}, uint64_t{align}, 5 * uint64_t{kPage}}) {
      fill(out.base, bytes, bytes + offset);
      way.write(offset, out.base, bytes);
      memset(in.base, 0xee, bytes + align);
      way.read(offset, in.base, bytes);
      EXPECT(memcmp(in.base, out.base, bytes) == 0, "%zu bytes at %llu came back different", bytes,
             static_cast<unsigned long long>(offset));
      EXPECT(static_cast<unsigned char>(in.base[bytes]) == 0xee, "a read went beyond its buffer");
    }
  }
  const uint64_t last = round_down(device->size_bytes(), align) - align;
  way.write(last, out.base, align);
  way.read(last, in.base, align);
  EXPECT(memcmp(in.base, out.base, align) == 0, "the last block came back different");
}

void vectors(Device* device, const Way& way, char* memory, size_t bytes) {
  const uint32_t align = device->io_align();
  std::vector<char> model(bytes);
  for (uint32_t count : {2u, 3u, 64u, 100u, 256u}) {
    for (size_t unit : {size_t{align}, size_t{kPage}}) {
      // Every second place of `memory`, from the back: parts that are no neighbours.
      std::vector<iovec> parts;
      size_t total = 0;
      char* place = memory + bytes;
      for (uint32_t i = 0; i < count; ++i) {
        const size_t length = unit * (1 + i % 2);
        if (place - memory < static_cast<ptrdiff_t>(length + unit)) break;
        place -= length + unit;
        parts.push_back({place, length});
        fill(place, length, i * 1000 + count);
        total += length;
      }
      const auto n = static_cast<uint32_t>(parts.size());
      int64_t moved = way.run(command_of(Op::kWrite, 3 * kPage, parts.data(), n, 5));
      EXPECT(moved == static_cast<int64_t>(total), "write of %u parts gave %lld for %zu", n,
             static_cast<long long>(moved), total);
      memcpy(model.data(), memory, bytes);
      memset(memory, 0, bytes);
      moved = way.run(command_of(Op::kRead, 3 * kPage, parts.data(), n, 6));
      EXPECT(moved == static_cast<int64_t>(total), "read of %u parts gave %lld for %zu", n,
             static_cast<long long>(moved), total);
      for (const iovec& part : parts) {
        const auto* at = static_cast<char*>(part.iov_base);
        EXPECT(memcmp(at, model.data() + (at - memory), part.iov_len) == 0,
               "a part of %u came back different", n);
      }
    }
  }
}

// Random reads and writes, several at a time and never over each other, by two contexts and
// without, against a model.
void random_work(Device* device, const ContextOptions& options, unsigned depth) {
  const uint32_t align = device->io_align();
  Attached one(device, options), two(device);
  std::vector<char> model(kModelBytes);
  Memory buffers(depth * 64 * kKiB), first(kModelBytes);
  const Way plain{device, nullptr};
  fill(first.base, kModelBytes, random_numbers());
  memcpy(model.data(), first.base, kModelBytes);
  for (uint64_t at = 0; at < kModelBytes; at += kMiB) plain.write(at, first.base + at, kMiB);
  struct Job {
    iovec part;
    Command command;
    uint64_t at;
  };
  std::vector<Job> jobs(depth);
  for (int round = 0; round < 60; ++round) {
    const uint64_t stride = kModelBytes / depth;
    std::vector<Command> commands[2];
    for (unsigned i = 0; i < depth; ++i) {
      Job& job = jobs[i];
      size_t bytes =
          (1 + random_numbers() % (random_numbers() % 4 ? 8 : 64 * kKiB / align)) * align;
      if (bytes > stride) bytes = stride;
      job.at = i * stride + random_numbers() % ((stride - bytes) / align + 1) * align;
      job.part = {buffers.base + i * 64 * kKiB, bytes};
      const Op op = random_numbers() % 2 ? Op::kRead : Op::kWrite;
      if (op == Op::kWrite) {
        fill(static_cast<char*>(job.part.iov_base), bytes, random_numbers());
        memcpy(model.data() + job.at, job.part.iov_base, bytes);
      }
      job.command = command_of(op, job.at, &job.part, 1, i);
      commands[random_numbers() % 2].push_back(job.command);
    }
    for (int which = 0; which < 2; ++which) {
      Context* context = which ? two.context : one.context;
      size_t sent = 0, got = 0;
      while (got < commands[which].size()) {
        if (sent < commands[which].size()) {
          const int taken = context->submit(commands[which].data() + sent,
                                            static_cast<unsigned>(commands[which].size() - sent));
          EXPECT(taken >= 0 || taken == -EAGAIN, "submit gave %s", errno_name(taken));
          if (taken > 0) sent += static_cast<size_t>(taken);
        }
        Response responses[32];
        const int n = context->wait(responses, 32, 30'000'000'000);
        EXPECT(n > 0 || n == -EINTR, "wait gave %d", n);
        for (int i = 0; i < n; ++i, ++got) {
          const Job& job = jobs[responses[i].tag];
          EXPECT(responses[i].result == static_cast<int64_t>(job.part.iov_len),
                 "%s of %zu at %llu gave %lld", job.command.op == Op::kRead ? "read" : "write",
                 job.part.iov_len, static_cast<unsigned long long>(job.at),
                 static_cast<long long>(responses[i].result));
          if (job.command.op == Op::kRead)
            EXPECT(memcmp(job.part.iov_base, model.data() + job.at, job.part.iov_len) == 0,
                   "a read of %zu at %llu came back different", job.part.iov_len,
                   static_cast<unsigned long long>(job.at));
        }
      }
      EXPECT(context->in_flight() == 0, "in_flight %u with every response taken",
             context->in_flight());
    }
  }
  for (uint64_t at = 0; at < kModelBytes; at += kMiB) plain.read(at, first.base + at, kMiB);
  EXPECT(memcmp(first.base, model.data(), kModelBytes) == 0,
         "the device holds something else at the end");
}

void discard(Device* device, const Way& way) {
  Memory memory(2 * kMiB);
  fill(memory.base, kMiB, 99);
  way.write(kMiB, memory.base, kMiB);
  Command command = command_of(Op::kDiscard, kMiB + 64 * kKiB, nullptr, 0, 3);
  command.length = 256 * kKiB;
  const int64_t result = way.run(command);
  if (!device->capabilities().discard) {
    EXPECT(result < 0, "discard gave %lld, and the device says that it cannot",
           static_cast<long long>(result));
    return;
  }
  EXPECT(result == 0, "discard gave %s", errno_name(static_cast<int>(result)));
  way.read(kMiB, memory.base + kMiB, kMiB);
  for (size_t at = 0; at < kMiB; at += 8) {
    uint64_t was, is;
    memcpy(&was, memory.base + at, 8);
    memcpy(&is, memory.base + kMiB + at, 8);
    const bool inside = at >= 64 * kKiB && at < 320 * kKiB;
    EXPECT(is == (inside ? 0 : was), "byte %zu %s", at,
           inside ? "was discarded and is not zero" : "was not to be discarded");
  }
}

// Durable writes are writes: of one part and of several, large ones too, and between others. What a
// power loss does to them only sim: can show (unit-durability).
void fua(Device* device, const Way& way, char* memory, size_t bytes) {
  const size_t most = bytes / 2 < kMiB ? bytes / 2 : kMiB;
  Memory in(most);
  for (size_t length : {size_t{device->io_align()}, kPage, 64 * kKiB, most}) {
    fill(memory, length, length + 1);
    for (uint32_t parts : {1u, 2u}) {
      const size_t half = parts == 2 ? round_up(length / 2, device->io_align()) : length;
      const iovec vector[2] = {{memory, half}, {memory + half, length - half}};
      Command command = command_of(Op::kWrite, 6 * kMiB, vector, half < length ? 2 : 1, 9);
      command.fua = true;
      const int64_t moved = way.run(command);
      EXPECT(moved == static_cast<int64_t>(length), "a durable write of %zu gave %lld", length,
             static_cast<long long>(moved));
      memset(in.base, 0, length);
      way.read(6 * kMiB, in.base, length);
      EXPECT(memcmp(in.base, memory, length) == 0, "a durable write of %zu came back different",
             length);
    }
  }
  EXPECT(way.run(command_of(Op::kFlush, 0, nullptr, 0)) == 0, "flush failed");
}

// What is stored in place is read by commands and the reverse; where there is no such access, no
// address is given.
void in_place(Device* device, const Way& way) {
  auto* at = static_cast<char*>(device->map(DeviceOffset{kPage}, kPage));
  const bool mem = strcmp(device->kind(), "mem") == 0;
  EXPECT((at != nullptr) == mem, "map gave %p", static_cast<void*>(at));
  const uint64_t size = device->size_bytes();
  EXPECT(device->map(DeviceOffset{size}, 1) == nullptr &&
             device->map(DeviceOffset{UINT64_MAX}, 2) == nullptr,
         "map gave what lies outside");
  if (!mem) {
    EXPECT(device->grow(size + kMiB) == -EOPNOTSUPP, "a device of one size grew");
    return;
  }
  Memory memory(2 * kPage);
  fill(memory.base, kPage, 31);
  way.write(kPage, memory.base, kPage);
  EXPECT(memcmp(at, memory.base, kPage) == 0, "a write is not seen in place");
  fill(at, kPage, 32);
  fill(memory.base, kPage, 32);
  way.read(kPage, memory.base + kPage, kPage);
  EXPECT(memcmp(memory.base, memory.base + kPage, kPage) == 0,
         "what was stored in place is not read");
  EXPECT(device->grow(size + kMiB) == 0 && device->size_bytes() == size + kMiB, "it did not grow");
  EXPECT(device->map(DeviceOffset{kPage}, kPage) == at, "it moved");
  way.read(size, memory.base, kPage);
  for (size_t i = 0; i < kPage; ++i) EXPECT(memory.base[i] == 0, "what it grew by is not zeros");
}

void space(Device* device, const Way& way) {
  Memory memory(2 * kMiB);
  fill(memory.base, kMiB, 7);
  way.write(4 * kMiB, memory.base, kMiB);
  device->release(DeviceOffset{4 * kMiB + 128 * kKiB}, 128 * kKiB);
  way.read(4 * kMiB, memory.base + kMiB, kMiB);
  EXPECT(memcmp(memory.base, memory.base + kMiB, 128 * kKiB) == 0 &&
             memcmp(memory.base + 256 * kKiB, memory.base + kMiB + 256 * kKiB, 768 * kKiB) == 0,
         "release touched its neighbours");
  EXPECT(device->reserve(DeviceOffset{0}, kAreaBytes) == 0, "reserve of what is there failed");
  if (!device->growable())
    EXPECT(device->reserve(DeviceOffset{device->size_bytes()}, kMiB) == -ENOSPC,
           "reserve beyond the end did not give ENOSPC");
}

void outside(Device* device, const Way& way) {
  Memory memory(2 * kPage);
  const uint64_t size = round_down(device->size_bytes(), kPage);
  const iovec part = {memory.base, 2 * kPage};
  int64_t result = way.run(command_of(Op::kRead, size + kMiB, &part, 1));
  EXPECT(result <= 0, "read beyond the end gave %lld", static_cast<long long>(result));
  result = way.run(command_of(Op::kRead, size - kPage, &part, 1));
  EXPECT(result < static_cast<int64_t>(2 * kPage), "read across the end gave all of it");
  if (strcmp(device->kind(), "file") != 0) {  // a file grows
    result = way.run(command_of(Op::kWrite, size + kMiB, &part, 1));
    EXPECT(result < 0, "write beyond the end gave %lld", static_cast<long long>(result));
    result = way.run(command_of(Op::kWrite, size - kPage, &part, 1));
    EXPECT(result < static_cast<int64_t>(2 * kPage), "write across the end gave all of it");
  }
  if (device->capabilities().memory_align > 1) {
    const iovec crooked = {memory.base, 100};
    result = way.run(command_of(Op::kWrite, 0, &crooked, 1));
    EXPECT(result < 0, "a write of 100 bytes gave %lld", static_cast<long long>(result));
  }
}

void full_ring(Device* device) {
  ContextOptions options;
  options.depth = 4;
  Attached attached(device, options);
  Memory memory(8 * kPage);
  iovec parts[8];
  Command commands[8];
  for (unsigned i = 0; i < 8; ++i) {
    parts[i] = {memory.base + i * kPage, kPage};
    commands[i] = command_of(Op::kRead, i * kPage, &parts[i], 1, i);
  }
  EXPECT(attached.context->submit(commands, 8) == 4, "a context of depth 4 did not take 4 of 8");
  EXPECT(attached.context->submit(commands, 1) == -EAGAIN, "a full context did not say EAGAIN");
  unsigned got = 0;
  Response responses[8];
  while (got < 4) {
    const int n = attached.context->wait(responses, 8, 30'000'000'000);
    EXPECT(n > 0, "wait gave %d", n);
    got += static_cast<unsigned>(n);
  }
  EXPECT(got == 4 && attached.context->in_flight() == 0, "more responses than commands");
  EXPECT(attached.context->wait(responses, 8, -1) == 0,
         "wait with nothing in flight did not return");
  EXPECT(attached.context->reap(responses, 8) == 0, "reap with nothing in flight gave something");
}

void watches(Device* device) {
  Attached attached(device);
  const Way way{device, attached.context};
  Memory memory(kPage);
  int ends[2];
  EXPECT(pipe2(ends, O_NONBLOCK) == 0, "no pipe");
  way.read(0, memory.base, kPage);  // before the first watch
  EXPECT(attached.context->watch(ends[0], 500) == 0, "watch failed");
  way.read(0, memory.base, kPage);
  Response response;
  const uint64_t start = sys::now_ns();
  EXPECT(attached.context->wait(&response, 1, 20'000'000) == 0,
         "wait gave something with nothing there");
  EXPECT(sys::now_ns() - start >= 19'000'000, "wait returned before its time");
  EXPECT(write(ends[1], "x", 1) == 1, "no pipe");
  EXPECT(attached.context->wait(&response, 1, 10'000'000'000) == 1 && response.tag == 500,
         "the watch did not fire");
  close(ends[0]);
  close(ends[1]);
}

// Threads on one shared context: the lock around submit and reap, await outside.
void shared_context(Device* device) {
  constexpr unsigned kThreads = 6, kRounds = 60;
  ContextOptions options;
  options.shared = true;
  options.depth = 16;
  Attached attached(device, options);
  Context* context = attached.context;
  std::mutex mutex;
  std::atomic<int64_t> done[kThreads] = {};
  constexpr int64_t kNotYet = -100000;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Memory memory(2 * kPage);
      const uint64_t deadline = sys::now_ns() + 120'000'000'000;
      for (unsigned round = 0; round < kRounds; ++round) {
        for (Op op : {Op::kWrite, Op::kRead}) {
          char* page = memory.base + (op == Op::kRead ? kPage : 0);
          if (op == Op::kWrite) fill(page, kPage, t * 1000 + round);
          const iovec part = {page, kPage};
          const Command command = command_of(op, (t * 64 + round % 50) * kPage, &part, 1, t);
          done[t] = kNotYet;
          for (bool submitted = false; !submitted || done[t] == kNotYet;) {
            EXPECT(sys::now_ns() < deadline, "a command did not come back");
            {
              const std::lock_guard<std::mutex> lock(mutex);
              if (!submitted) submitted = context->submit(&command, 1) == 1;
              Response responses[16];
              const int n = context->reap(responses, 16);
              for (int i = 0; i < n; ++i) done[responses[i].tag] = responses[i].result;
            }
            if (done[t] == kNotYet) (void)context->await(2'000'000);
          }
          EXPECT(done[t] == static_cast<int64_t>(kPage), "a command gave %lld",
                 static_cast<long long>(done[t].load()));
        }
        EXPECT(memcmp(memory.base, memory.base + kPage, kPage) == 0, "a page came back different");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT(context->in_flight() == 0, "in_flight is not 0 at the end");
}

void descriptors(Device* device) {
  Memory memory(2 * kPage);
  const Way plain{device, nullptr};
  fill(memory.base, kPage, 4711);
  plain.write(0, memory.base, kPage);
  for (unsigned i = 0; i < device->fd_count(); ++i) {
    const int old = device->fd(i), other = fcntl(old, F_DUPFD_CLOEXEC, 100);
    EXPECT(other >= 0, "no descriptor");
    device->reopen(i, other);
    close(old);
    EXPECT(device->fd(i) == other, "reopen did not replace the descriptor");
  }
  plain.read(0, memory.base + kPage, kPage);
  EXPECT(memcmp(memory.base, memory.base + kPage, kPage) == 0,
         "a page came back different after reopen");
  if (strcmp(device->kind(), "capi") == 0) {
    const int node = device->fd(0);
    device->reopen(0, -1);
    EXPECT(plain.run(command_of(Op::kFlush, 0, nullptr, 0)) < 0, "a flush does not reach the node");
    device->reopen(0, node);
  }
  // memory of its own, or not IBM's way
  if (strcmp(device->kind(), "sim") == 0 || strcmp(device->kind(), "mem") == 0 ||
      strcmp(device->kind(), "capi") == 0)
    return;
  const pid_t child = fork();
  if (child == 0) {
    Attached attached(device);
    const Way way{device, attached.context};
    way.read(0, memory.base + kPage, kPage);
    EXPECT(memcmp(memory.base, memory.base + kPage, kPage) == 0,
           "a forked child reads something else");
    fill(memory.base, kPage, 4712);
    way.write(0, memory.base, kPage);
    _exit(0);
  }
  int status = 1;
  EXPECT(waitpid(child, &status, 0) == child && status == 0, "the forked child failed");
  fill(memory.base, kPage, 4712);
  plain.read(0, memory.base + kPage, kPage);
  EXPECT(memcmp(memory.base, memory.base + kPage, kPage) == 0,
         "what a forked child wrote is not there");
}

void read_only(const std::string& uri) {
  Device* device = open_device(uri, true);
  Memory memory(kPage);
  const Way plain{device, nullptr};
  plain.read(0, memory.base, kPage);
  const iovec part = {memory.base, kPage};
  EXPECT(plain.run(command_of(Op::kWrite, 0, &part, 1)) < 0,
         "a device opened read-only was written");
  {
    Attached attached(device);
    const Way way{device, attached.context};
    way.read(0, memory.base, kPage);
    EXPECT(way.run(command_of(Op::kWrite, 0, &part, 1)) < 0,
           "a device opened read-only was written");
  }
  device_close(device);
}

void scratch_use(const std::string& uri) {
  for (int i = 0; i < 2; ++i) {  // the second time it carries our header
    Device* device = open_device(uri, false, true);
    show(device);
    EXPECT(device->size_bytes() >= kMiB && device->reserve(DeviceOffset{0}, kMiB) == 0, "no space");
    Memory memory(2 * kPage);
    Attached attached(device);
    for (const Way& way : {Way{device, attached.context}, Way{device, nullptr}}) {
      fill(memory.base, kPage, 12);
      way.write(0, memory.base, kPage);
      way.read(0, memory.base + kPage, kPage);
      EXPECT(memcmp(memory.base, memory.base + kPage, kPage) == 0, "a page came back different");
    }
    device->detach(attached.context);
    device_close(device);
    attached.context = nullptr;
  }
}

template <class Function>
void part(const char* name, Function run) {
  part_name = name;
  const uint64_t start = sys::now_ns();
  run();
  printf("  %-40s %llu ms\n", name,
         static_cast<unsigned long long>((sys::now_ns() - start) / 1'000'000));
  fflush(stdout);
}

void all_parts(const std::string& uri) {
  Device* device = open_device(uri);
  show(device);
  part_name = "size";
  EXPECT(device->size_bytes() >= kAreaBytes + 2 * kMiB, "%s is too small, 26 MiB are needed",
         format_size(device->size_bytes()).text);
  const Way plain{device, nullptr};
  part("transfer: sizes", [&] { sizes(device, plain); });
  Memory window(4 * kMiB), other(4 * kMiB);
  part("transfer: vectors", [&] { vectors(device, plain, other.base, other.bytes); });
  part("transfer: discard", [&] { discard(device, plain); });
  part("transfer: flush",
       [&] { EXPECT(plain.run(command_of(Op::kFlush, 0, nullptr, 0)) == 0, "flush failed"); });
  part("transfer: durable writes", [&] { fua(device, plain, other.base, other.bytes); });
  part("transfer: in place", [&] { in_place(device, plain); });
  part("transfer: outside", [&] { outside(device, plain); });
  ContextOptions options;
  options.buffer = window.base;
  options.buffer_bytes = window.bytes;
  for (bool spin : {true, false}) {
    options.spin = spin;
    Attached attached(device, options);
    const Way way{device, attached.context};
    part("context: sizes", [&] { sizes(device, way); });
    part("context: vectors", [&] { vectors(device, way, other.base, other.bytes); });
    part("context: vectors in the window",
         [&] { vectors(device, way, window.base, window.bytes); });
    part("context: one buffer in the window", [&] {
      fill(window.base, 2 * kMiB, 5);
      way.write(kPage, window.base, 2 * kMiB);
      way.read(kPage, window.base + 2 * kMiB, 2 * kMiB);
      EXPECT(memcmp(window.base, window.base + 2 * kMiB, 2 * kMiB) == 0, "came back different");
      const iovec astride = {window.base + window.bytes - kPage, kPage};
      EXPECT(way.run(command_of(Op::kRead, 0, &astride, 1)) == kPage,
             "the window's last page failed");
    });
    part("context: discard", [&] { discard(device, way); });
    part("context: flush",
         [&] { EXPECT(way.run(command_of(Op::kFlush, 0, nullptr, 0)) == 0, "flush failed"); });
    part("context: durable writes", [&] { fua(device, way, other.base, other.bytes); });
    part("context: durable writes in the window",
         [&] { fua(device, way, window.base, window.bytes); });
    part("context: in place", [&] { in_place(device, way); });
    part("context: outside", [&] { outside(device, way); });
    part("context: space", [&] { space(device, way); });
  }
  options.spin = true;
  part("random work", [&] { random_work(device, options, 16); });
  part("random work, 128 at a time", [&] { random_work(device, options, 128); });
  part("a full ring", [&] { full_ring(device); });
  part("watches", [&] { watches(device); });
  part("a shared context", [&] { shared_context(device); });
  part("descriptors and fork", [&] { descriptors(device); });
  device_close(device);
  if (uri.compare(0, 4, "sim:") != 0 && uri.compare(0, 4, "mem:") != 0)
    part("read-only", [&] { read_only(uri); });
}

}  // namespace

int main(int argc, char** argv) {
  const bool keep = argc == 3 && strcmp(argv[2], "--keep") == 0,
             scratch = argc == 3 && strcmp(argv[2], "--scratch") == 0;
  if (argc < 2 || argc > 3 || (argc == 3 && !keep && !scratch)) {
    fprintf(stderr,
            "usage: device_conformance URI [--keep|--scratch]    (without --keep URI IS "
            "OVERWRITTEN)\n");
    return 2;
  }
  const uint64_t seed = tier::run_seed();
  random_numbers.seed(seed);
  if (scratch) {
    scratch_use(argv[1]);
  } else if (keep) {
    Device* device = open_device(argv[1]);
    show(device);
    device_close(device);
  } else {
    all_parts(argv[1]);
  }
  printf("ok\n");
  return 0;
}
