// SPDX-License-Identifier: Apache-2.0
// The common part of devices on an open file or node: file:, nvme:, pmem:, capi:.
// Threading: does not change after open, except the descriptors (reopen), which are atomic.
#pragma once
#include "superpipe/context_base.h"
#include "superpipe/device_files.h"

namespace lunar {

class NodeDevice : public CountedDevice {
 public:
  uint64_t size_bytes() const override { return size_bytes_; }
  bool growable() const override { return false; }
  const char* name() const override { return name_; }
  unsigned fd_count() const override { return files_.count(); }
  int fd(unsigned i) const override { return files_.fd(i); }
  void reopen(unsigned i, int fd) override { files_.set(i, fd); }
  unsigned lock_count() const override { return files_.lock_count(); }
  [[nodiscard]] int share_lock(unsigned i, int fd) override { return files_.share_lock(i, fd); }

 protected:
  int fd() const { return files_.file(); }

  DeviceFiles files_;
  const char* name_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint64_t data_offset_ = 0;  // of offset 0 in the file or node
  bool read_only_ = false;
};

}  // namespace lunar
