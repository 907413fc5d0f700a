// SPDX-License-Identifier: Apache-2.0
// MemoryDevice: a raw Device over memory that outlives it, so that a device can be opened many
// times. It can record its writes, refuse to discard, fail, wait. For the tests of lun/ and kv/.
// Threading: transfer, mark and snapshot by any thread; the rest while no other thread uses it.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

#include "superpipe/device.h"
#include "superpipe/sim/device_copy.h"
#include "superpipe/sim/sim_device.h"

namespace lunar_test {

struct DeviceEvent {
  enum class Kind : uint8_t { kWrite, kDiscard, kFlush, kMark } kind;
  uint64_t offset = 0, length = 0;
  std::vector<char> bytes;  // of a write
  unsigned mark = 0;        // kMark: what the test noted
  bool fua = false;         // of a write
};

struct MemoryShape {
  bool discard = true;
  uint64_t transfer_bytes_max = 16u << 20;
  const char* name = "memory:";
};

class MemoryDevice : public lunar::Device {
 public:
  using Shape = MemoryShape;
  MemoryDevice(char* memory, uint64_t bytes, Shape shape = {})
      : memory_(memory), bytes_(bytes), shape_(shape) {}
  std::vector<DeviceEvent>* record = nullptr;
  std::vector<DeviceEvent>* undo = nullptr;  // what was there before each write and discard
  int64_t fail_after = -1;  // so many writes and flushes succeed, then they end with -EIO
  uint64_t unreadable = 0;  // a block: reads of it end with -EIO. 0: none
  // Called with each command, without the lock. 0: the command goes on; otherwise it is the
  // command's result.
  std::function<int64_t(const lunar::Command&)> before;
  uint64_t reads = 0, read_bytes = 0, written_bytes = 0;  // what was transferred
  bool closed = false;
  static constexpr uint64_t kBlockBytes = 4096;

  int attach(const lunar::ContextOptions&, lunar::Context**) override { return -EOPNOTSUPP; }
  void detach(lunar::Context*) override {}
  int reserve(lunar::DeviceOffset offset, uint64_t length) override {
    return offset.value > bytes_ || length > bytes_ - offset.value ? -ENOSPC : 0;
  }
  void release(lunar::DeviceOffset offset, uint64_t length) override {
    lunar::Command command;
    command.op = lunar::Op::kDiscard;
    command.offset = offset;
    command.length = length;
    (void)transfer(command);
  }
  // Only while the device is not open.
  void move_to(char* memory, uint64_t bytes) {
    memory_ = memory;
    bytes_ = bytes;
  }
  uint64_t size_bytes() const override { return bytes_; }
  bool growable() const override { return false; }
  int64_t transfer(const lunar::Command& command) override {
    if (before)
      if (const int64_t status = before(command); status != 0) return status;
    const std::lock_guard guard(lock_);
    const int64_t moved = carry_out(command);
    if (moved > 0 && command.op == lunar::Op::kRead)
      ++reads, read_bytes += static_cast<uint64_t>(moved);
    if (moved > 0 && command.op == lunar::Op::kWrite) written_bytes += static_cast<uint64_t>(moved);
    return moved;
  }
  // Into the record, if there is one.
  void mark(unsigned mark, uint64_t offset = 0, uint64_t length = 0) {
    const std::lock_guard guard(lock_);
    if (record) record->push_back({DeviceEvent::Kind::kMark, offset, length, {}, mark});
  }
  std::vector<char> snapshot() {
    const std::lock_guard guard(lock_);
    return {memory_, memory_ + bytes_};
  }
  uint32_t io_align() const override { return 512; }
  lunar::Capabilities capabilities() const override {
    lunar::Capabilities out;
    out.discard = shape_.discard;
    out.transfer_bytes_max = shape_.transfer_bytes_max;
    return out;
  }
  const char* name() const override { return shape_.name; }
  const char* kind() const override { return "memory"; }
  unsigned fd_count() const override { return 0; }
  int fd(unsigned) const override { return -1; }
  void reopen(unsigned, int) override {}
  void close() override { closed = true; }

 private:
  int64_t carry_out(const lunar::Command& command);
  char* memory_;
  uint64_t bytes_;
  Shape shape_;
  std::mutex lock_;
};

// The part of a write or discard that a crash leaves. Below(n): a random number below n.
enum class Left : unsigned { kAll, kPrefix, kAnySectors };
template <class Below>
void leave_of(const DeviceEvent& event, Left how, std::vector<char>* image, Below below,
              std::vector<DeviceEvent>* undo) {
  constexpr uint64_t kSector = 512;
  if (event.kind != DeviceEvent::Kind::kWrite && event.kind != DeviceEvent::Kind::kDiscard) return;
  const auto begin = image->begin() + static_cast<long>(event.offset);
  if (undo)
    undo->push_back({DeviceEvent::Kind::kWrite, event.offset, event.length,
                     std::vector<char>(begin, begin + static_cast<long>(event.length)), 0});
  const uint64_t sectors = event.length / kSector,
                 prefix = how == Left::kPrefix ? below(sectors + 1) : sectors;
  for (uint64_t i = 0; i < prefix; ++i) {
    if (how == Left::kAnySectors && below(2)) continue;
    char* at = image->data() + event.offset + i * kSector;
    if (event.kind == DeviceEvent::Kind::kWrite)
      memcpy(at, event.bytes.data() + i * kSector, kSector);
    else
      memset(at, 0, kSector);
  }
}

inline void roll_back(std::vector<DeviceEvent>* undo, std::vector<char>* image) {
  for (; !undo->empty(); undo->pop_back())
    memcpy(image->data() + undo->back().offset, undo->back().bytes.data(), undo->back().length);
}

inline int64_t MemoryDevice::carry_out(const lunar::Command& command) {
  const uint64_t at = command.offset.value;
  uint64_t length = command.length;
  if (command.op == lunar::Op::kRead || command.op == lunar::Op::kWrite) {
    length = 0;
    for (uint32_t i = 0; i < command.iov_count; ++i) length += command.iov[i].iov_len;
    if (length > shape_.transfer_bytes_max) return -EINVAL;
  }
  if (command.op != lunar::Op::kFlush &&
      (at % 512 || length % 512 || at > bytes_ || length > bytes_ - at))
    return -EINVAL;
  if (command.op == lunar::Op::kDiscard && !shape_.discard) return -EOPNOTSUPP;
  if (command.op != lunar::Op::kRead && fail_after >= 0 && fail_after-- == 0) {
    fail_after = 0;
    return -EIO;
  }
  const bool touches = unreadable < at + length && at < unreadable + kBlockBytes;
  if (command.op == lunar::Op::kRead && unreadable != 0 && touches) return -EIO;
  uint64_t place = at;
  if (undo && (command.op == lunar::Op::kWrite || command.op == lunar::Op::kDiscard))
    undo->push_back({DeviceEvent::Kind::kWrite, at, length,
                     std::vector<char>(memory_ + at, memory_ + at + length), 0});
  switch (command.op) {
    case lunar::Op::kRead:
      for (uint32_t i = 0; i < command.iov_count; place += command.iov[i++].iov_len)
        lunar::copy_from_device(command.iov[i].iov_base, memory_ + place, command.iov[i].iov_len);
      return static_cast<int64_t>(length);
    case lunar::Op::kWrite:
      for (uint32_t i = 0; i < command.iov_count; place += command.iov[i++].iov_len)
        lunar::copy_to_device(memory_ + place, command.iov[i].iov_base, command.iov[i].iov_len);
      if (record)
        record->push_back({DeviceEvent::Kind::kWrite, at, length,
                           std::vector<char>(memory_ + at, memory_ + at + length), 0, command.fua});
      return static_cast<int64_t>(length);
    case lunar::Op::kDiscard:
      memset(memory_ + at, 0, length);
      if (record) record->push_back({DeviceEvent::Kind::kDiscard, at, length, {}, 0});
      return 0;
    case lunar::Op::kFlush:
      if (record) record->push_back({DeviceEvent::Kind::kFlush, 0, 0, {}, 0});
      return 0;
  }
  return -EINVAL;
}

}  // namespace lunar_test
