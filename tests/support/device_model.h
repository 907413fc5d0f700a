// SPDX-License-Identifier: Apache-2.0
// DeviceModel: random commands on an area of a device, by a context and by transfer(). Several are
// in flight, never on the same blocks. Each result is checked against a model in memory.
// Threading: one thread a model; several models on areas of their own. May not: be used by code
// that ships.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "superpipe/device.h"

namespace lunar_test {

// Aligned for direct I/O.
template <class T>
struct PageAllocator {
  using value_type = T;
  T* allocate(size_t n) {
    return static_cast<T*>(aligned_alloc(4096, (n * sizeof(T) + 4095) / 4096 * 4096));
  }
  void deallocate(T* memory, size_t) { free(memory); }
  bool operator==(const PageAllocator&) const { return true; }
};
using PageVector = std::vector<char, PageAllocator<char>>;

class DeviceModel {
 public:
  // Offsets and lengths are multiples of `unit`.
  DeviceModel(lunar::Device* device, uint64_t first, uint64_t bytes, uint64_t seed,
              lunar::ContextOptions options = {.depth = 16}, size_t unit = 4096)
      : device_(device),
        first_(first),
        unit_(unit),
        random_(seed),
        model_(bytes, 0),
        busy_(bytes / unit, 0),
        slots_(options.depth) {
    if (device->attach(options, &context_) != 0) abort();  // no test's macros: it may be a thread's
  }
  ~DeviceModel() { device_->detach(context_); }
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;

  // Zeros the area, so that the model holds.
  void clear() {
    PageVector zeros(kPiece, 0);
    for (uint64_t at = 0; at < model_.size(); at += kPiece)
      if (!transfer(lunar::Op::kWrite, at, zeros.data())) ++errors;
  }
  // `count` commands of at most `largest` units each. A failed command is counted and leaves the
  // model as it was.
  void run(unsigned count, unsigned largest, unsigned transfer_one_in = 8) {
    for (unsigned i = 0; i < count; ++i) {
      if (random_() % transfer_one_in == 0)
        blocking(largest);
      else if (!issue(largest))
        collect(true);
      if (random_() % 4 == 0) collect(false);
    }
    while (context_->in_flight()) collect(true);
  }
  // Reads the whole area through the device. True if it equals the model.
  bool verify() {
    PageVector in(kPiece);
    for (uint64_t at = 0; at < model_.size(); at += kPiece)
      if (!transfer(lunar::Op::kRead, at, in.data()) ||
          memcmp(in.data(), model_.data() + at, piece(at)) != 0)
        return false;
    return true;
  }
  // clear(), run() with commands of up to 12 KiB and of up to 1.2 MB, verify().
  bool holds(unsigned count) {
    clear();
    run(count, static_cast<unsigned>(3 * 4096 / unit_));
    run(count / 3, static_cast<unsigned>(300 * 4096 / unit_));
    return errors == 0 && wrong == 0 && verify();
  }
  unsigned errors = 0, wrong = 0, done = 0;

 private:
  static constexpr uint64_t kPiece = 1 << 20;
  static constexpr size_t kPartsMax = 256;
  struct Slot {
    bool used = false;
    lunar::Op op = lunar::Op::kRead;
    uint64_t at = 0, units = 0;
    PageVector data;
    std::vector<iovec> parts;
  };
  uint64_t piece(uint64_t at) const { return std::min(kPiece, model_.size() - at); }
  bool transfer(lunar::Op op, uint64_t at, char* memory) {
    const iovec part = {memory, piece(at)};
    lunar::Command command;
    command.op = op;
    command.offset = lunar::DeviceOffset{first_ + at};
    command.iov = &part;
    command.iov_count = 1;
    return device_->transfer(command) == static_cast<int64_t>(part.iov_len);
  }
  bool pick(unsigned largest, Slot* slot) {
    for (int tries = 0; tries < 20; ++tries) {
      slot->units = 1 + random_() % largest;
      if (slot->units > busy_.size()) continue;
      slot->at = random_() % (busy_.size() - slot->units + 1);
      const auto begin = busy_.begin() + static_cast<long>(slot->at);
      const auto end = begin + static_cast<long>(slot->units);
      if (std::find(begin, end, 1) == end) return true;
    }
    return false;
  }
  bool prepare(Slot* slot, unsigned largest, lunar::Command* command) {
    using lunar::Op;
    if (!pick(largest, slot)) return false;
    const unsigned kind = static_cast<unsigned>(random_() % 16);
    slot->op = kind < 7    ? Op::kRead
               : kind < 14 ? Op::kWrite
               : kind < 15 ? Op::kDiscard
                           : Op::kFlush;
    if (slot->op == Op::kDiscard && !device_->capabilities().discard) slot->op = Op::kFlush;
    command->op = slot->op;
    command->offset = lunar::DeviceOffset{first_ + slot->at * unit_};
    const size_t bytes = slot->units * unit_;
    slot->data.resize(bytes);
    slot->parts.clear();
    if (slot->op == Op::kDiscard) command->length = bytes;
    if (slot->op != Op::kRead && slot->op != Op::kWrite) return true;
    for (size_t i = 0; slot->op == Op::kWrite && i < bytes; i += 8) {
      const uint64_t word = random_();
      memcpy(slot->data.data() + i, &word, 8);
    }
    for (size_t at = 0; at < bytes;) {
      size_t part = (1 + random_() % slot->units) * unit_;
      if (part > bytes - at || slot->parts.size() == kPartsMax - 1) part = bytes - at;
      slot->parts.push_back({slot->data.data() + at, part});
      at += part;
    }
    command->iov = slot->parts.data();
    command->iov_count = static_cast<uint32_t>(slot->parts.size());
    return true;
  }
  void apply(const Slot& slot, int64_t result) {
    using lunar::Op;
    ++done;
    const size_t bytes = slot.units * unit_;
    char* held = model_.data() + slot.at * unit_;
    const bool data = slot.op == Op::kRead || slot.op == Op::kWrite;
    if (result != (data ? static_cast<int64_t>(bytes) : 0)) {
      ++errors;
      return;
    }
    if (slot.op == Op::kRead && memcmp(held, slot.data.data(), bytes) != 0) ++wrong;
    if (slot.op == Op::kWrite) memcpy(held, slot.data.data(), bytes);
    if (slot.op == Op::kDiscard) memset(held, 0, bytes);
  }
  void hold(Slot* slot, bool used) {
    slot->used = used;
    std::fill_n(busy_.begin() + static_cast<long>(slot->at), slot->units, used);
  }
  bool issue(unsigned largest) {
    const auto slot = std::find_if(slots_.begin(), slots_.end(), [](Slot& s) { return !s.used; });
    lunar::Command command;
    if (slot == slots_.end() || !prepare(&*slot, largest, &command)) return false;
    command.tag = static_cast<uint64_t>(slot - slots_.begin());
    if (context_->submit(&command, 1) != 1) return false;
    hold(&*slot, true);
    return true;
  }
  void blocking(unsigned largest) {
    Slot slot;
    lunar::Command command;
    if (prepare(&slot, largest, &command)) apply(slot, device_->transfer(command));
  }
  void collect(bool wait) {
    if (context_->in_flight() == 0) return;
    lunar::Response out[8];
    const int n = wait ? context_->wait(out, 8, -1) : context_->reap(out, 8);
    for (int i = 0; i < n; ++i) {
      if (out[i].tag >= slots_.size() || !slots_[out[i].tag].used) abort();  // answered twice
      Slot& slot = slots_[out[i].tag];
      apply(slot, out[i].result);
      hold(&slot, false);
    }
  }

  lunar::Device* device_;
  lunar::Context* context_ = nullptr;
  uint64_t first_;
  size_t unit_;
  std::mt19937_64 random_;
  std::vector<char> model_;
  std::vector<char> busy_;  // units of commands in flight
  std::vector<Slot> slots_;
};

}  // namespace lunar_test
