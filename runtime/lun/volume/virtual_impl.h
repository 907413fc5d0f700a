// SPDX-License-Identifier: Apache-2.0
// The implementation of VirtualLun: see virtual_lun.h.
// Threading: as there. sizes_ is held while the size changes, list_ while a context is added or
// removed.
#pragma once
#include "lun/volume/extent_map.h"
#include "lun/volume/physical_impl.h"
#include "lun/volume/virtual_context.h"
#include "lun/volume/virtual_lun.h"

namespace lunar {

class VirtualLunImpl final : public VirtualLun {
 public:
  static int make(PhysicalLunImpl* physical, const VirtualOptions& options, VirtualLunImpl** out,
                  ErrorText* why);

  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  void detach(Context* context) override;
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  uint64_t size_bytes() const override { return scratch_ ? most_ : map_.limit(); }
  bool growable() const override { return scratch_; }
  [[nodiscard]] int64_t transfer(const Command& command) override;
  uint32_t io_align() const override { return base_->io_align(); }
  Capabilities capabilities() const override;
  const char* name() const override { return name_; }
  const char* kind() const override { return "virtual"; }
  unsigned fd_count() const override { return base_->fd_count(); }
  int fd(unsigned i) const override { return base_->fd(i); }
  void reopen(unsigned i, int fd) override { base_->reopen(i, fd); }
  unsigned lock_count() const override { return base_->lock_count(); }
  [[nodiscard]] int share_lock(unsigned i, int fd) override;
  void close() override;
  void forget() override;

  [[nodiscard]] int set_size(uint64_t bytes, ErrorText* why) override;
  [[nodiscard]] int join() override;
  bool is_joined_by_others() override { return physical_->is_used(lun_); }
  uint64_t used_bytes() const override { return map_.limit(); }
  uint64_t remaining_bytes() override;
  [[nodiscard]] int refresh() override;
  const VirtualLunInfo& info() const override { return info_; }
  PhysicalLun& physical() override { return *physical_; }

 private:
  class SizeLock;
  VirtualLunImpl() = default;
  int start(const VirtualOptions& options, ErrorText* why);
  int grow(uint64_t bytes, ErrorText* why);
  int shrink(uint64_t bytes, ErrorText* why);
  bool drained();
  void know_process();  // called before each lock of sizes_ or list_ that may be a child's first
  int64_t transfer_pieces(const Command& command, uint64_t length);

  PhysicalLunImpl* physical_ = nullptr;
  Device* base_ = nullptr;
  OwnedLun lun_;  // under sizes_, except what never changes
  VirtualLunInfo info_;
  bool scratch_ = false;
  ExtentMap map_;
  // ExtentMap::kSharedCounts counts; zeros in a forked child, because present readers are the
  // parent's
  sys::PhaseCount* shared_ = nullptr;
  sys::Mutex sizes_, list_;
  std::atomic<uint32_t> copy_{0};  // of the memory in which the locks are (sys/memory_copy.h)
  VirtualContext* contexts_ = nullptr;
  std::atomic<int> context_count_{0};
  std::atomic<uint32_t>* places_ = nullptr;
  size_t places_bytes_ = 0;
  uint64_t most_ = 0;   // of a scratch LUN: the size that it could reach, at open
  uint64_t asked_ = 0;  // the end of the reserved space; the size is ahead of it
  char name_[256] = {};
};

}  // namespace lunar
