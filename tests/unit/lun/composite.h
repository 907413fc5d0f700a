// SPDX-License-Identifier: Apache-2.0
// What the tests of composite devices share: opening, and random I/O through a context against a
// model in memory.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lun/compose.h"
#include "lun/raid/composite_context.h"
#include "superpipe/sim/sim_device.h"
#include "sys/file.h"
#include "tests/catch.h"
#include "tests/support/seed.h"

namespace composite {

using namespace lunar;
constexpr size_t kPage = 4096;

inline uint64_t seed() { return tier::run_seed(); }

inline DeviceOptions raw() {
  DeviceOptions options;
  options.scratch = false;
  return options;
}

inline Device* open(const std::string& uri, Format format = Format::kIfBlank) {
  Device* device = nullptr;
  ErrorText why;
  const int status = raw_open(uri.c_str(), raw(), format, &device, &why);
  INFO(why.text);
  REQUIRE(status == 0);
  return device;
}

// The line of a refusal; status by *error.
inline std::string refusal(const std::string& uri, int* error = nullptr,
                           Format format = Format::kNever) {
  Device* device = nullptr;
  ErrorText why;
  const int status = raw_open(uri.c_str(), raw(), format, &device, &why);
  CHECK(status < 0);
  CHECK(device == nullptr);
  CHECK(std::string(why.text).find('\n') == std::string::npos);
  if (error) *error = status;
  return why.text;
}

inline SimDevice& sim(Device* device) {
  REQUIRE(strcmp(device->kind(), "sim") == 0);
  return *static_cast<SimDevice*>(device);
}
inline Device* member(Device* device, unsigned i) {
  return static_cast<CompositeDevice*>(device)->member(i);
}

// A fresh name for memory, so that tests do not meet.
inline std::string fresh() {
  static unsigned count = 0;
  return "t" + std::to_string(++count);
}
inline std::string named(const std::string& size, const std::string& name) {
  return "sim:" + size + ",name=" + name;
}

// Two files with space, and the URI of a device of them. Gone at the end, or at forget().
struct MemberFiles {
  std::string paths[2], uri;
  MemberFiles(const std::string& scheme, uint64_t bytes) : uri(scheme) {
    const char* given = getenv("LUNAR_TEST_DIR");
    for (unsigned i = 0; i < 2; ++i) {
      paths[i] = std::string(given ? given : "/var/tmp") + "/lunar-members-" +
                 std::to_string(getpid()) + "-" + fresh();
      const int fd = sys::open_file(paths[i].c_str(), O_RDWR | O_CREAT, 0600);
      REQUIRE(fd >= 0);
      REQUIRE(sys::allocate_space(fd, 0, bytes) == 0);
      sys::close_file(fd);
      uri += (i ? ";" : "") + paths[i];
    }
  }
  ~MemberFiles() { forget(); }
  MemberFiles(const MemberFiles&) = delete;
  MemberFiles& operator=(const MemberFiles&) = delete;
  void forget() const {
    for (const std::string& path : paths) unlink(path.c_str());
  }
};

// One blocking command of whole pages.
inline int64_t io(Device* device, Op op, uint64_t page, void* buffer, size_t bytes = kPage) {
  const iovec part = {buffer, bytes};
  Command command;
  command.op = op;
  command.offset = DeviceOffset{page * kPage};
  command.iov = &part;
  command.iov_count = 1;
  return device->transfer(command);
}

// Where direct I/O may go.
template <class T>
struct PageAllocator {
  using value_type = T;
  T* allocate(size_t n) {
    return static_cast<T*>(aligned_alloc(kPage, (n * sizeof(T) + kPage - 1) / kPage * kPage));
  }
  void deallocate(T* memory, size_t) { free(memory); }
  bool operator==(const PageAllocator&) const { return true; }
};
using PageVector = std::vector<char, PageAllocator<char>>;

// Random commands on [first, first + bytes) of a device through one context, checked against a
// model. One thread each.
class Exerciser {
 public:
  Exerciser(Device* device, uint64_t first, uint64_t bytes, uint64_t seed, bool shared = false)
      : device_(device), first_(first), random_(seed), model_(bytes, 0), busy_(bytes / kPage, 0) {
    ContextOptions options;
    options.depth = kDepth;
    options.shared = shared;
    if (device->attach(options, &context_) != 0) abort();  // in threads: Catch's macros are for one
    slots_.resize(kDepth);
  }
  ~Exerciser() { device_->detach(context_); }

  // Zeros the area, so that the model holds.
  void clear() {
    for (uint64_t at = 0; at < model_.size(); at += kMiB) {
      PageVector zeros(std::min<uint64_t>(kMiB, model_.size() - at), 0);
      const iovec part = {zeros.data(), zeros.size()};
      Command command;
      command.op = Op::kWrite;
      command.offset = DeviceOffset{first_ + at};
      command.iov = &part;
      command.iov_count = 1;
      if (device_->transfer(command) != static_cast<int64_t>(zeros.size())) ++errors;
    }
  }
  // `count` commands; largest: pages of one. Counts failures in `errors` (their ranges are then
  // read again to learn).
  void run(unsigned count, unsigned largest, unsigned transfer_one_in = 8) {
    for (unsigned i = 0; i < count; ++i) {
      if (random_() % transfer_one_in == 0)
        blocking(largest);
      else if (!issue(largest))
        collect(true);
      if (random_() % 4 == 0) collect(false);
    }
    drain();
  }
  void drain() {
    while (flying_) collect(true);
  }
  // Everything, read through the device. True when equal to the model.
  bool verify() {
    PageVector in(256 * kPage);
    for (uint64_t at = 0; at < model_.size(); at += in.size()) {
      const size_t bytes = std::min<uint64_t>(in.size(), model_.size() - at);
      const iovec part = {in.data(), bytes};
      Command command;
      command.op = Op::kRead;
      command.offset = DeviceOffset{first_ + at};
      command.iov = &part;
      command.iov_count = 1;
      if (device_->transfer(command) != static_cast<int64_t>(bytes)) return false;
      if (memcmp(in.data(), model_.data() + at, bytes) != 0) return false;
    }
    return true;
  }
  unsigned errors = 0, wrong = 0, done = 0;
  const std::vector<char>& model() const { return model_; }

 private:
  static constexpr unsigned kDepth = 16;
  struct Slot {
    bool used = false;
    Op op = Op::kRead;
    uint64_t page = 0, pages = 0;
    PageVector data;
    std::vector<iovec> parts;
  };
  bool free_range(uint64_t page, uint64_t pages) const {
    for (uint64_t i = page; i < page + pages; ++i)
      if (busy_[i]) return false;
    return true;
  }
  bool pick(unsigned largest, uint64_t* page, uint64_t* pages) {
    for (int tries = 0; tries < 20; ++tries) {
      *pages = 1 + random_() % largest;
      if (*pages > busy_.size()) continue;
      *page = random_() % (busy_.size() - *pages + 1);
      if (free_range(*page, *pages)) return true;
    }
    return false;
  }
  Command prepare(Slot* slot, unsigned largest, bool* ok) {
    Command command;
    *ok = pick(largest, &slot->page, &slot->pages);
    const unsigned kind = static_cast<unsigned>(random_() % 16);
    slot->op = kind < 7    ? Op::kRead
               : kind < 14 ? Op::kWrite
               : kind < 15 ? Op::kDiscard
                           : Op::kFlush;
    if (slot->op == Op::kDiscard && !device_->capabilities().discard) slot->op = Op::kFlush;
    command.op = slot->op;
    command.offset = DeviceOffset{first_ + slot->page * kPage};
    const size_t bytes = slot->pages * kPage;
    slot->data.resize(bytes);
    slot->parts.clear();
    if (slot->op == Op::kDiscard) command.length = bytes;
    if (slot->op == Op::kRead || slot->op == Op::kWrite) {
      if (slot->op == Op::kWrite)
        for (size_t i = 0; i < bytes; i += 8) {
          const uint64_t word = random_();
          memcpy(slot->data.data() + i, &word, 8);
        }
      for (size_t at = 0; at < bytes;) {
        size_t part = (1 + random_() % slot->pages) * kPage;
        if (part > bytes - at || slot->parts.size() == kCompositeVectorMax - 1) part = bytes - at;
        slot->parts.push_back({slot->data.data() + at, part});
        at += part;
      }
      command.iov = slot->parts.data();
      command.iov_count = static_cast<uint32_t>(slot->parts.size());
    }
    return command;
  }
  void apply(const Slot& slot, int64_t result) {
    ++done;
    const size_t bytes = slot.pages * kPage;
    char* held = model_.data() + slot.page * kPage;
    const bool data = slot.op == Op::kRead || slot.op == Op::kWrite;
    if (result != (data ? static_cast<int64_t>(bytes) : 0)) {
      ++errors;
      return;
    }
    if (slot.op == Op::kRead && memcmp(held, slot.data.data(), bytes) != 0) ++wrong;
    if (slot.op == Op::kWrite) memcpy(held, slot.data.data(), bytes);
    if (slot.op == Op::kDiscard) memset(held, 0, bytes);
  }
  bool issue(unsigned largest) {
    unsigned index = 0;
    while (index < kDepth && slots_[index].used) ++index;
    if (index == kDepth) return false;
    Slot& slot = slots_[index];
    bool ok = false;
    Command command = prepare(&slot, largest, &ok);
    if (!ok) return false;
    command.tag = index;
    const int taken = context_->submit(&command, 1);
    if (taken != 1) return false;
    slot.used = true;
    for (uint64_t i = 0; i < slot.pages; ++i) busy_[slot.page + i] = 1;
    ++flying_;
    return true;
  }
  void blocking(unsigned largest) {
    Slot slot;
    bool ok = false;
    const Command command = prepare(&slot, largest, &ok);
    if (ok) apply(slot, device_->transfer(command));
  }
  void collect(bool wait) {
    if (!flying_) return;
    Response out[8];
    const int n = wait ? context_->wait(out, 8, -1) : context_->reap(out, 8);
    for (int i = 0; i < n; ++i) {
      Slot& slot = slots_[out[i].tag];
      apply(slot, out[i].result);
      for (uint64_t p = 0; p < slot.pages; ++p) busy_[slot.page + p] = 0;
      slot.used = false;
      --flying_;
    }
  }

  Device* device_;
  Context* context_ = nullptr;
  uint64_t first_;
  std::mt19937_64 random_;
  std::vector<char> model_;
  std::vector<char> busy_;  // pages of commands in flight
  std::vector<Slot> slots_;
  unsigned flying_ = 0;
};

}  // namespace composite
