// SPDX-License-Identifier: Apache-2.0
// Whether a device behaves as superpipe/device.h says, whatever it is:
//
//   device_conformance URI [--keep|--scratch|--no-ring]
//                            OVERWRITES the first 24 MiB of URI (and its last blocks), and formats
//                            a stripe. --keep: only opens and shows it; --scratch: opens it as a
//                            scratch LUN, twice (refused when it holds data); --no-ring: io_uring
//                            is refused, and contexts are tested twice: calls are made by the
//                            caller, and by threads
//
// A line a part, then `ok`; or the first thing that was wrong, and 1. LUNAR_SEED=N replays. 2: the
// arguments, or the device could not be opened. Run by hand and in virtual machines (tests/vm) on
// hardware that a test host seldom has; on what any host has: by tools/test.
// Threading: one thread, but for the parts that say otherwise.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "lun/compose.h"
#include "superpipe/device.h"
#include "superpipe/registry.h"
#include "sys/thread.h"
#include "tests/support/cases.h"
#include "tests/support/device_model.h"
#include "tests/support/meanwhile.h"
#include "tests/support/refused_calls.h"
#include "tests/support/seed.h"

#ifdef __SANITIZE_THREAD__
// Forked children of a program with threads start threads of their own here.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

using namespace lunar;

namespace {

constexpr uint64_t kAreaBytes = 24 * kMiB;
constexpr uint64_t kModelBytes = 8 * kMiB;
constexpr size_t kPage = 4096;

const char* part_name = "";
bool delegate = false;  // of contexts: ContextOptions::delegate

struct Memory {
  char* base;
  size_t bytes;
  explicit Memory(size_t want) : bytes(want) {
    base = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base != MAP_FAILED, "out of memory");
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
    REQUIRE(taken == 1, "submit gave %d", taken);
    Response response;
    int got;
    do got = context->wait(&response, 1, 30'000'000'000);
    while (got == -EINTR);
    REQUIRE(got == 1, "wait gave %d within 30 s, for %s at %lu of %u parts, the first of %zu bytes",
            got, command.op == Op::kRead ? "a read" : "another", command.offset.value,
            command.iov_count, command.iov ? command.iov->iov_len : 0);
    REQUIRE(response.tag == command.tag, "a response with another tag");
    return response.result;
  }
  void write(uint64_t offset, const char* memory, size_t bytes) const {
    const iovec part = {const_cast<char*>(memory), bytes};
    const int64_t moved = run(command_of(Op::kWrite, offset, &part, 1, 77));
    REQUIRE(moved == static_cast<int64_t>(bytes), "write of %zu at %lu gave %ld", bytes, offset,
            moved);
  }
  void read(uint64_t offset, char* memory, size_t bytes) const {
    const iovec part = {memory, bytes};
    const int64_t moved = run(command_of(Op::kRead, offset, &part, 1, 78));
    REQUIRE(moved == static_cast<int64_t>(bytes), "read of %zu at %lu gave %ld", bytes, offset,
            moved);
  }
};

struct Attached {
  Device* device;
  Context* context = nullptr;
  explicit Attached(Device* of, ContextOptions options = {}) : device(of) {
    options.delegate = delegate;
    const int status = of->attach(options, &context);
    REQUIRE(status == 0, "%s", errno_name(status));
  }
  ~Attached() { device->detach(context); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;
  Context* operator->() const { return context; }
};

// Other processes and other opens have another memory of that name.
bool is_own_memory(const std::string& uri) {
  return uri.find("sim:") != std::string::npos || uri.find("mem:") == 0;
}

Device* open_device(const std::string& uri, bool read_only = false, bool scratch = false) {
  DeviceOptions options;
  options.scratch = scratch;
  options.claim = Claim::kWhole;
  options.read_only = read_only;
  Device* device = nullptr;
  ErrorText why;
  const Format format = read_only ? Format::kNever : Format::kForce;  // of a stripe, and for a name
  if (const size_t name = uri.find('#'); name != std::string::npos) {
    VirtualOptions named;
    named.name = &uri[name + 1];
    named.create = true;
    named.size_bytes = kAreaBytes + 4 * kMiB;
    PhysicalLun* physical = nullptr;
    VirtualLun* lun = nullptr;
    if (physical_open(uri.substr(0, name).c_str(), format, &physical, &why) == 0 &&
        VirtualLun::open(physical, named, &lun, &why) == 0)
      return lun;
    printf("cannot open: %s\n", why.text);
    exit(2);
  }
  const int status = scratch ? device_open(uri.c_str(), options, &device, &why)
                             : raw_open(uri.c_str(), options, format, &device, &why);
  if (status == 0) return device;
  printf("cannot open: %s\n", why.text);
  exit(2);
}

void show(Device* device) {
  const Capabilities can = device->capabilities();
  printf(
      "%s (%s): %s, align %u; discard %d, window %d, polled %d, persistent %d, fua %s, transfer "
      "%s, memory align %u\n",
      device->name(), device->kind(), format_size(device->size_bytes()).text, device->io_align(),
      can.discard, can.window, can.polled, can.persistent, fua_text(can.fua),
      format_size(can.transfer_bytes_max).text, can.memory_align);
}

// ---- parts --------------------------------------------------------------------------------------

void sizes(Device* device, const Way& way) {
  const uint32_t align = device->io_align();
  REQUIRE(align == 512 || align == 4096, "io_align %u", align);
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
      REQUIRE(memcmp(in.base, out.base, bytes) == 0, "%zu bytes at %lu came back different", bytes,
              offset);
      REQUIRE(static_cast<unsigned char>(in.base[bytes]) == 0xee, "a read went beyond its buffer");
    }
  }
  const uint64_t last = round_down(device->size_bytes(), align) - align;
  way.write(last, out.base, align);
  way.read(last, in.base, align);
  REQUIRE(memcmp(in.base, out.base, align) == 0, "the last block came back different");
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
      REQUIRE(moved == static_cast<int64_t>(total), "write of %u parts gave %ld for %zu", n, moved,
              total);
      memcpy(model.data(), memory, bytes);
      memset(memory, 0, bytes);
      moved = way.run(command_of(Op::kRead, 3 * kPage, parts.data(), n, 6));
      REQUIRE(moved == static_cast<int64_t>(total), "read of %u parts gave %ld for %zu", n, moved,
              total);
      for (const iovec& part : parts) {
        const auto* at = static_cast<char*>(part.iov_base);
        REQUIRE(memcmp(at, model.data() + (at - memory), part.iov_len) == 0,
                "a part of %u came back different", n);
      }
    }
  }
}

// Random commands against a model, by contexts of several threads at once.
void random_work(Device* device, unsigned threads, unsigned depth) {
  const uint64_t seed = tier::run_seed();
  lunar_test::in_parallel(threads, [&](unsigned t) {
    const ContextOptions options = {.depth = depth, .delegate = delegate};
    lunar_test::DeviceModel model(device, t * kModelBytes / threads, kModelBytes / threads,
                                  seed + t, options, device->io_align());
    model.clear();
    model.run(4 * depth + 200, static_cast<unsigned>(64 * kKiB / device->io_align()));
    REQUIRE(model.errors == 0 && model.wrong == 0 && model.verify(),
            "%u of %u went wrong, %u reads came back different", model.errors, model.done,
            model.wrong);
  });
}

void discard(Device* device, const Way& way) {
  Memory memory(2 * kMiB);
  fill(memory.base, kMiB, 99);
  way.write(kMiB, memory.base, kMiB);
  Command command = command_of(Op::kDiscard, kMiB + 64 * kKiB, nullptr, 0, 3);
  command.length = 256 * kKiB;
  const int64_t result = way.run(command);
  // A block device whose queue is not shown (no /sys) says that it cannot, and may nevertheless.
  const bool unknown = strcmp(device->kind(), "block") == 0 && result == 0;
  if (!device->capabilities().discard && !unknown) {
    REQUIRE(result < 0, "discard gave %ld, and the device says that it cannot", result);
    return;
  }
  REQUIRE(result == 0, "discard gave %s", errno_name(static_cast<int>(result)));
  way.read(kMiB, memory.base + kMiB, kMiB);
  for (size_t at = 0; at < kMiB; at += 8) {
    uint64_t was, is;
    memcpy(&was, memory.base + at, 8);
    memcpy(&is, memory.base + kMiB + at, 8);
    const bool inside = at >= 64 * kKiB && at < 320 * kKiB;
    REQUIRE(is == (inside ? 0 : was), "byte %zu %s", at,
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
      REQUIRE(moved == static_cast<int64_t>(length), "a durable write of %zu gave %ld", length,
              moved);
      memset(in.base, 0, length);
      way.read(6 * kMiB, in.base, length);
      REQUIRE(memcmp(in.base, memory, length) == 0, "a durable write of %zu came back different",
              length);
    }
  }
  REQUIRE(way.run(command_of(Op::kFlush, 0, nullptr, 0)) == 0, "flush failed");
}

// Commands read data that was stored in place, and the reverse. A device without such access gives
// no address.
void in_place(Device* device, const Way& way) {
  auto* at = static_cast<char*>(device->map(DeviceOffset{kPage}, kPage));
  const bool mem = strcmp(device->kind(), "mem") == 0;
  REQUIRE((at != nullptr) == mem, "map gave %p", static_cast<void*>(at));
  const uint64_t size = device->size_bytes();
  REQUIRE(device->map(DeviceOffset{size}, 1) == nullptr &&
              device->map(DeviceOffset{UINT64_MAX}, 2) == nullptr,
          "map gave what lies outside");
  if (!mem) {
    REQUIRE(device->grow(size + kMiB) == -EOPNOTSUPP, "a device of one size grew");
    return;
  }
  Memory memory(2 * kPage);
  fill(memory.base, kPage, 31);
  way.write(kPage, memory.base, kPage);
  REQUIRE(memcmp(at, memory.base, kPage) == 0, "a write is not seen in place");
  fill(at, kPage, 32);
  fill(memory.base, kPage, 32);
  way.read(kPage, memory.base + kPage, kPage);
  REQUIRE(memcmp(memory.base, memory.base + kPage, kPage) == 0,
          "what was stored in place is not read");
  REQUIRE(device->grow(size + kMiB) == 0 && device->size_bytes() == size + kMiB, "it did not grow");
  REQUIRE(device->map(DeviceOffset{kPage}, kPage) == at, "it moved");
  way.read(size, memory.base, kPage);
  for (size_t i = 0; i < kPage; ++i) REQUIRE(memory.base[i] == 0, "what it grew by is not zeros");
}

void space(Device* device, const Way& way) {
  Memory memory(2 * kMiB);
  fill(memory.base, kMiB, 7);
  way.write(4 * kMiB, memory.base, kMiB);
  device->release(DeviceOffset{4 * kMiB + 128 * kKiB}, 128 * kKiB);
  way.read(4 * kMiB, memory.base + kMiB, kMiB);
  REQUIRE(memcmp(memory.base, memory.base + kMiB, 128 * kKiB) == 0 &&
              memcmp(memory.base + 256 * kKiB, memory.base + kMiB + 256 * kKiB, 768 * kKiB) == 0,
          "release touched its neighbours");
  REQUIRE(device->reserve(DeviceOffset{0}, kAreaBytes) == 0, "reserve of what is there failed");
  if (!device->growable())
    REQUIRE(device->reserve(DeviceOffset{device->size_bytes()}, kMiB) == -ENOSPC,
            "reserve beyond the end did not give ENOSPC");
}

void outside(Device* device, const Way& way) {
  Memory memory(2 * kPage);
  const uint64_t size = round_down(device->size_bytes(), kPage);
  const iovec part = {memory.base, 2 * kPage};
  int64_t result = way.run(command_of(Op::kRead, size + kMiB, &part, 1));
  REQUIRE(result <= 0, "read beyond the end gave %ld", result);
  result = way.run(command_of(Op::kRead, size - kPage, &part, 1));
  REQUIRE(result < static_cast<int64_t>(2 * kPage), "read across the end gave all of it");
  constexpr uint64_t kFar = UINT64_MAX - kPage + 1;
  for (const Op op : {Op::kRead, Op::kWrite}) {
    result = way.run(command_of(op, kFar, &part, 1));
    REQUIRE(result < (op == Op::kRead), "at the far end of numbers: %ld", result);
  }
  if (strcmp(device->kind(), "file") != 0) {  // a file grows
    result = way.run(command_of(Op::kWrite, size + kMiB, &part, 1));
    REQUIRE(result < 0, "write beyond the end gave %ld", result);
    for (const uint64_t bytes : {2 * uint64_t{kPage}, kFar}) {
      Command over = command_of(Op::kDiscard, size - kPage, nullptr, 0);
      over.length = bytes;
      result = way.run(over);
      const bool block = strcmp(device->kind(), "block") == 0;
      REQUIRE((block && (result == 0 || result == -EINVAL)) ||
                  result == (device->capabilities().discard ? -EINVAL : -EOPNOTSUPP),
              "a discard of %lu across the end gave %ld", bytes, result);
    }
    result = way.run(command_of(Op::kWrite, size - kPage, &part, 1));
    REQUIRE(result < static_cast<int64_t>(2 * kPage), "write across the end gave all of it");
  }
  if (device->capabilities().memory_align > 1) {
    const iovec crooked = {memory.base, 100};
    result = way.run(command_of(Op::kWrite, 0, &crooked, 1));
    REQUIRE(result < 0, "a write of 100 bytes gave %ld", result);
  }
}

// Reads of a page each, and how their responses come.
struct Reads {
  Memory memory;
  std::vector<iovec> parts;
  std::vector<Command> commands;
  explicit Reads(unsigned count, size_t bytes = kPage)
      : memory(count * bytes), parts(count), commands(count) {
    for (unsigned i = 0; i < count; ++i) {
      parts[i] = {memory.base + i * bytes, bytes};
      commands[i] = command_of(Op::kRead, i * kPage, &parts[i], 1, i);
    }
  }
};

void full_ring(Device* device) {
  constexpr unsigned kDepth = 12;  // not a power of two
  const Attached context(device, {.depth = kDepth});
  const Reads reads(64);
  std::multiset<uint64_t> tags;
  Response responses[64];
  for (unsigned next = 0; next < 64;) {
    const unsigned left = 64 - next;
    const int taken = context->submit(&reads.commands[next], left);
    REQUIRE(taken == static_cast<int>(std::min(kDepth, left)), "%d of %u", taken, left);
    next += static_cast<unsigned>(taken);
    if (left >= kDepth) REQUIRE(context->submit(&reads.commands[0], 1) == -EAGAIN);
    while (context->in_flight() > 0) {
      const int n = context->wait(responses, 64, 30'000'000'000);
      REQUIRE(n > 0, "wait gave %d", n);
      for (int i = 0; i < n; ++i) {
        REQUIRE(responses[i].result == kPage);
        tags.insert(responses[i].tag);
      }
    }
  }
  REQUIRE(tags.size() == 64 && std::set<uint64_t>(tags.begin(), tags.end()).size() == 64);
  REQUIRE(context->wait(responses, 64, -1) == 0, "nothing is in flight");
  REQUIRE(context->reap(responses, 64) == 0, "nothing is in flight");
  for (const unsigned depth : {0u, 4097u}) {
    Context* none = nullptr;
    REQUIRE(device->attach({.depth = depth}, &none) == -EINVAL, "a depth of %u", depth);
  }
}

// Lists of a few reads: each is answered once, whether their thread waits for it or looks again and
// again, and also if it sleeps before it does.
void small_lists(Device* device, bool shared) {
  constexpr int64_t kPatience = 30'000'000'000;
  std::mt19937_64 random(tier::run_seed());
  const Attached context(device, {.depth = 8, .shared = shared});
  Reads reads(8, 16 * kPage);
  for (unsigned round = 0; round < (device->capabilities().instant ? 6000u : 200u); ++round) {
    const auto n = static_cast<unsigned>(1 + random() % 8);
    for (unsigned i = 0; i < n; ++i) reads.parts[i].iov_len = kPage << random() % 5;
    REQUIRE(context->submit(reads.commands.data(), n) == static_cast<int>(n));
    if (random() % 64 == 0) usleep(static_cast<useconds_t>(random() % 200));
    const uint64_t how = random() % 3, start = sys::now_ns();
    Response out[8];
    for (unsigned got = 0; got < n;) {
      int k = 0;
      if (shared && how == 0) {
        const int status = context->await(kPatience);
        REQUIRE(status == 0 || status == -EINTR, "%s", errno_name(status));
      }
      if (!shared && how == 0) {
        k = context->wait(out, 8, kPatience);
        REQUIRE(k > 0 || k == -EINTR, "%s", errno_name(k));
      } else {
        k = context->reap(out, 8);
        REQUIRE(k >= 0, "%s", errno_name(k));
      }
      got += static_cast<unsigned>(k > 0 ? k : 0);
      REQUIRE(got <= n, "%u responses to %u commands", got, n);
    }
    REQUIRE(context->in_flight() == 0);
    REQUIRE(sys::now_ns() - start < kPatience, "nothing woke it");
  }
}

struct Pipe {
  int ends[2];
  Pipe() { REQUIRE(pipe2(ends, O_NONBLOCK) == 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void tell() const { REQUIRE(write(ends[1], "x", 1) == 1); }
};

// submit() and wait() in one: for a batch, for all when fewer are on their way, and not past its
// time; a watch counts as one.
void exchange(Device* device) {
  const Attached context(device, {.depth = 12});
  Reads reads(64, 48 * kPage);
  std::mt19937_64 random(tier::run_seed());
  for (iovec& part : reads.parts) part.iov_len = (1 + random() % 48) * kPage;
  std::multiset<uint64_t> tags;
  Response done[64];
  unsigned taken = 99;
  for (unsigned next = 0; tags.size() < 64;) {
    const auto left = static_cast<unsigned>(64 - tags.size());
    const int got =
        context->exchange(&reads.commands[next % 64], 64 - next, &taken, done, 64, 5, -1);
    REQUIRE(taken <= 12 && got >= static_cast<int>(std::min(left, 5u)), "%u, %d", taken, got);
    next += taken;
    for (int i = 0; i < got; ++i) {
      REQUIRE(done[i].result == static_cast<int64_t>(reads.parts[done[i].tag].iov_len));
      tags.insert(done[i].tag);
    }
  }
  REQUIRE(context->in_flight() == 0);
  REQUIRE(std::set<uint64_t>(tags.begin(), tags.end()).size() == 64);
  REQUIRE(context->exchange(reads.commands.data(), 3, &taken, done, 64, 12, -1) == 3);
  REQUIRE(context->exchange(nullptr, 0, &taken, done, 64, 5, -1) == 0 && taken == 0);
  const Pipe pipe;
  REQUIRE(context->watch(pipe.ends[0], 500) == 0);
  const uint64_t start = sys::now_ns();
  REQUIRE(context->exchange(nullptr, 0, &taken, done, 64, 5, 20'000'000) == 0);
  REQUIRE(sys::now_ns() - start >= 19'000'000, "it returned before its time");
  pipe.tell();
  REQUIRE(context->exchange(reads.commands.data(), 1, &taken, done, 64, 2, 10'000'000'000) == 2);
  REQUIRE(taken == 1);
}

void watches(Device* device) {
  const Attached context(device);
  const Way way{device, context.context};
  Memory memory(kPage);
  const Pipe pipes[5];
  Response out[4];
  const auto is = [&](int got, uint64_t tag) {
    REQUIRE(got == 1 && out[0].tag == tag, "%d, the first of tag %lu", got, out[0].tag);
    REQUIRE((out[0].result & POLLIN) != 0);
  };
  way.read(0, memory.base, kPage);  // before the first watch
  for (unsigned i = 0; i < 4; ++i) REQUIRE(context->watch(pipes[i].ends[0], 500 + i) == 0);
  REQUIRE(context->watch(pipes[4].ends[0], 504) == -EBUSY, "four fit");
  REQUIRE(context->watch(pipes[1].ends[0], 511) == 0, "again, by another tag");
  way.read(0, memory.base, kPage);
  const uint64_t start = sys::now_ns();
  REQUIRE(context->wait(out, 4, 20'000'000) == 0, "there is nothing");
  REQUIRE(sys::now_ns() - start >= 19'000'000, "wait returned before its time");
  REQUIRE(context->wait(out, 4, 0) == 0, "there is nothing");
  pipes[1].tell();
  is(context->wait(out, 4, 10'000'000'000), 511);
  REQUIRE(context->wait(out, 4, 5'000'000) == 0, "it is over, though the byte is still there");
  REQUIRE(context->watch(pipes[1].ends[0], 521) == 0);
  int got = 0;
  for (int i = 0; i < 100000 && got == 0; ++i) {
    got = context->reap(out, 4);
    if (got == 0) usleep(100);
  }
  is(got, 521);
  std::thread([&] {
    usleep(20000);
    pipes[2].tell();
  }).detach();
  is(context->wait(out, 4, -1), 502);  // it sleeps
  const Reads reads(64);
  REQUIRE(context->submit(reads.commands.data(), 64) == 64);
  pipes[3].tell();
  unsigned fired = 0;
  for (unsigned seen = 0; seen < 65;) {
    const int n = context->wait(out, 4, 30'000'000'000);
    REQUIRE(n > 0 || n == -EINTR, "%s", errno_name(n));
    for (int i = 0; i < n; ++i, ++seen) fired += out[i].tag == 503;
  }
  REQUIRE(fired == 1 && context->in_flight() == 0);
}

// Threads on one shared context: the lock around submit and reap, await outside.
void shared_context(Device* device) {
  constexpr unsigned kThreads = 6, kRounds = 60;
  std::optional<Attached> context;  // by a thread that is gone when it is used
  std::thread([&] { context.emplace(device, ContextOptions{.depth = 16, .shared = true}); }).join();
  std::mutex mutex;
  std::atomic<int64_t> done[kThreads] = {};
  constexpr int64_t kNotYet = -100000;
  lunar_test::in_parallel(kThreads, [&](unsigned t) {
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
          REQUIRE(sys::now_ns() < deadline, "a command did not come back");
          {
            const std::lock_guard<std::mutex> lock(mutex);
            if (!submitted) submitted = (*context)->submit(&command, 1) == 1;
            Response responses[16];
            const int n = (*context)->reap(responses, 16);
            for (int i = 0; i < n; ++i) done[responses[i].tag] = responses[i].result;
          }
          if (done[t] == kNotYet) (void)(*context)->await(2'000'000);
        }
        REQUIRE(done[t] == static_cast<int64_t>(kPage), "a command gave %ld", done[t].load());
      }
      REQUIRE(memcmp(memory.base, memory.base + kPage, kPage) == 0, "a page came back different");
    }
  });
  REQUIRE((*context)->in_flight() == 0);
}

void descriptors(Device* device) {
  Memory memory(2 * kPage);
  const Way plain{device, nullptr};
  fill(memory.base, kPage, 4711);
  plain.write(0, memory.base, kPage);
  for (unsigned i = 0; i < device->fd_count(); ++i) {
    const int old = device->fd(i), other = fcntl(old, F_DUPFD_CLOEXEC, 100);
    REQUIRE(other >= 0, "no descriptor");
    device->reopen(i, other);
    close(old);
    REQUIRE(device->fd(i) == other, "reopen did not replace the descriptor");
  }
  plain.read(0, memory.base + kPage, kPage);
  REQUIRE(memcmp(memory.base, memory.base + kPage, kPage) == 0,
          "a page came back different after reopen");
  if (strcmp(device->kind(), "capi") == 0) {
    const int node = device->fd(0);
    device->reopen(0, -1);
    REQUIRE(plain.run(command_of(Op::kFlush, 0, nullptr, 0)) < 0,
            "a flush does not reach the node");
    device->reopen(0, node);
  }
  if (is_own_memory(device->name()) || strcmp(device->kind(), "capi") == 0)
    return;  // not IBM's way
  const pid_t child = fork();
  if (child == 0) {
    Attached attached(device);
    const Way way{device, attached.context};
    way.read(0, memory.base + kPage, kPage);
    REQUIRE(memcmp(memory.base, memory.base + kPage, kPage) == 0,
            "a forked child reads something else");
    fill(memory.base, kPage, 4712);
    way.write(0, memory.base, kPage);
    _exit(0);
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0, "the forked child failed");
  fill(memory.base, kPage, 4712);
  plain.read(0, memory.base + kPage, kPage);
  REQUIRE(memcmp(memory.base, memory.base + kPage, kPage) == 0,
          "what a forked child wrote is not there");
}

void read_only(const std::string& uri) {
  Device* device = open_device(uri, true);
  Memory memory(kPage);
  const Way plain{device, nullptr};
  plain.read(0, memory.base, kPage);
  const iovec part = {memory.base, kPage};
  REQUIRE(plain.run(command_of(Op::kWrite, 0, &part, 1)) < 0,
          "a device opened read-only was written");
  {
    Attached attached(device);
    const Way way{device, attached.context};
    way.read(0, memory.base, kPage);
    REQUIRE(way.run(command_of(Op::kWrite, 0, &part, 1)) < 0,
            "a device opened read-only was written");
  }
  REQUIRE(!device->capabilities().discard, "a device opened read-only can discard");
  Command discard = command_of(Op::kDiscard, 0, nullptr, 0);
  discard.length = kPage;
  REQUIRE(plain.run(discard) < 0, "a device opened read-only discards");
  device_close(device);
}

void scratch_use(const std::string& uri) {
  for (int i = 0; i < 2; ++i) {  // the second time it carries our header
    Device* device = open_device(uri, false, true);
    show(device);
    REQUIRE(device->size_bytes() >= kMiB && device->reserve(DeviceOffset{0}, kMiB) == 0,
            "no space");
    {
      Memory memory(2 * kPage);
      const Attached attached(device);
      for (const Way& way : {Way{device, attached.context}, Way{device, nullptr}}) {
        fill(memory.base, kPage, 12);
        way.write(0, memory.base, kPage);
        way.read(0, memory.base + kPage, kPage);
        REQUIRE(memcmp(memory.base, memory.base + kPage, kPage) == 0, "a page came back different");
      }
    }
    device_close(device);
  }
}

template <class Function>
void part(const char* name, Function run) {
  part_name = name;
  const uint64_t start = sys::now_ns();
  run();
  printf("  %-40s %lu ms\n", name, (sys::now_ns() - start) / 1'000'000);
  fflush(stdout);
}

void all_parts(const std::string& uri) {
  Device* device = open_device(uri);
  show(device);
  part_name = "size";
  REQUIRE(device->size_bytes() >= kAreaBytes + 2 * kMiB, "%s is too small, 26 MiB are needed",
          format_size(device->size_bytes()).text);
  const Way plain{device, nullptr};
  part("transfer: sizes", [&] { sizes(device, plain); });
  Memory window(4 * kMiB), other(4 * kMiB);
  part("transfer: vectors", [&] { vectors(device, plain, other.base, other.bytes); });
  part("transfer: discard", [&] { discard(device, plain); });
  part("transfer: flush",
       [&] { REQUIRE(plain.run(command_of(Op::kFlush, 0, nullptr, 0)) == 0, "flush failed"); });
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
      REQUIRE(memcmp(window.base, window.base + 2 * kMiB, 2 * kMiB) == 0, "came back different");
      const iovec astride = {window.base + window.bytes - kPage, kPage};
      REQUIRE(way.run(command_of(Op::kRead, 0, &astride, 1)) == kPage,
              "the window's last page failed");
    });
    part("context: discard", [&] { discard(device, way); });
    part("context: flush",
         [&] { REQUIRE(way.run(command_of(Op::kFlush, 0, nullptr, 0)) == 0, "flush failed"); });
    part("context: durable writes", [&] { fua(device, way, other.base, other.bytes); });
    part("context: durable writes in the window",
         [&] { fua(device, way, window.base, window.bytes); });
    part("context: in place", [&] { in_place(device, way); });
    part("context: outside", [&] { outside(device, way); });
    part("context: space", [&] { space(device, way); });
  }
  part("random work", [&] { random_work(device, 1, 16); });
  part("random work, 128 at a time", [&] { random_work(device, 1, 128); });
  part("random work of four threads", [&] { random_work(device, 4, 16); });
  part("a full ring", [&] { full_ring(device); });
  part("small lists", [&] { small_lists(device, false); });
  part("small lists, shared", [&] { small_lists(device, true); });
  part("exchange", [&] { exchange(device); });
  part("watches", [&] { watches(device); });
  part("a shared context", [&] { shared_context(device); });
  part("descriptors and fork", [&] { descriptors(device); });
  device_close(device);
  if (!is_own_memory(uri) && uri.find('#') == std::string::npos)
    part("read-only", [&] { read_only(uri); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string uri = argc > 1 ? argv[1] : "", option = argc > 2 ? argv[2] : "";
  const bool known =
      option.empty() || option == "--keep" || option == "--scratch" || option == "--no-ring";
  if (uri.empty() || argc > 3 || !known) {
    fprintf(stderr,
            "usage: device_conformance URI [--keep|--scratch|--no-ring]    (without --keep URI IS "
            "OVERWRITTEN)\n");
    return 2;
  }
  lunar_test::g_at_failure = [] { fprintf(stderr, "FAIL %s\n", part_name); };
  (void)tier::run_seed();  // printed first
  if (option == "--no-ring" && !refuse_calls({SYS_io_uring_setup}))
    SKIP("seccomp", strerror(errno));
  if (option == "--scratch") {
    scratch_use(uri);
  } else if (option == "--keep") {
    Device* device = open_device(uri);
    show(device);
    device_close(device);
  } else {
    all_parts(uri);
    delegate = true;
    if (option == "--no-ring") all_parts(uri);
  }
  printf("ok\n");
  return 0;
}
