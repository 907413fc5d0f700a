// SPDX-License-Identifier: Apache-2.0
// Memory of this process as a device: mem:[SIZE][,limit=SIZE]. For content that ends with the
// process. (For memory that outlives it, use pmem: on a file of tmpfs or hugetlbfs; for memory with
// faults, sim:.)
//
//   base_ │ zeros at first, read and written      │ address space only                         │
//         0                              size_bytes() ── grow() ──►                         limit
//
// It grows at its end and never moves, so an address from map() is valid until close(). SIZE is the
// size at open (default: 0). limit is the maximum size (default: the RAM of the host), and costs
// only address space. A page costs DRAM from its first store on, or from reserve(). A forked child
// has its own copy, as of any memory.
// There is no file and no lock: no other process can see it. Not for scratch LUNs (-ENOTSUP),
// because pages would go from DRAM to DRAM.
// Threading: any thread; grow() is allowed during I/O. I/O and in-place stores are unordered: the
// caller separates them. Contexts carry out a command at submit, on the caller's thread. Allocates
// nothing after open.
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "sys/thread.h"

namespace lunar {

class MemDevice final : public CountedDevice {
 public:
  [[nodiscard]] static int open(const char* uri, const DeviceOptions& options, Device** out,
                                ErrorText* why);
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  [[nodiscard]] int grow(uint64_t bytes) override;
  void* map(DeviceOffset offset, uint64_t bytes) override;
  uint64_t size_bytes() const override { return size_.load(std::memory_order_acquire); }
  bool growable() const override { return false; }
  [[nodiscard]] int64_t transfer(const Command& command) override;
  uint32_t io_align() const override { return 512; }
  Capabilities capabilities() const override;
  const char* name() const override { return name_; }
  const char* kind() const override { return "mem"; }
  void close() override;

 private:
  bool inside(uint64_t at, uint64_t bytes) const {
    const uint64_t size = size_bytes();
    return at <= size && bytes <= size - at;
  }

  const char* name_ = nullptr;
  char* base_ = nullptr;
  uint64_t limit_ = 0;
  std::atomic<uint64_t> size_{0};
  bool read_only_ = false;
  sys::Mutex growing_;
};

}  // namespace lunar
