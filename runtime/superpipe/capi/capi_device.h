// SPDX-License-Identifier: Apache-2.0
// A disk behind IBM's CAPI Flash adapter, through IBM's own library:
// capi:/dev/sgN[,lib=/path/libcflsh_block-0.so]. Each context has its own chunk and issues
// cblk_aread and cblk_awrite; transfer() uses the device's chunk. Without the hardware or the
// library open fails with -ENODEV.
//
// Blocks have 4096 bytes. A forked child attaches its own chunks, and opens one for its transfers
// at the first of them. No discard: unmapped blocks need not read as zeros (release() unmaps). The
// library may allocate and lock as it likes, so this is not for the fault path. Scratch use is
// refused unless the head is zeros or a former scratch LUN's. The node is opened here too: the
// locks of ownership.h are taken on it, and it is used for flushes (SYNCHRONIZE CACHE; fdatasync
// for a file that stands in for the disk), because the library has none. So fua is the write
// followed by such a flush. No virtual LUNs (-ENOTSUP): a disk has one node per port, and locks on
// one are not visible through the other.
// Threading: does not change after open.
#pragma once
#include <atomic>

#include "superpipe/capi/capi_library.h"
#include "superpipe/device.h"
#include "superpipe/device_files.h"

namespace lunar {

class CapiDevice final : public Device {
 public:
  [[nodiscard]] static int open(const char* uri, const DeviceOptions& options, Device** out,
                                ErrorText* why);
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  void detach(Context* context) override;
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  uint64_t size_bytes() const override { return size_bytes_; }
  bool growable() const override { return false; }
  [[nodiscard]] int64_t transfer(const Command& command) override;
  uint32_t io_align() const override { return 4096; }
  Capabilities capabilities() const override;
  const char* name() const override { return name_; }
  const char* kind() const override { return "capi"; }
  unsigned fd_count() const override { return files_.count(); }
  int fd(unsigned i) const override { return files_.fd(i); }
  void reopen(unsigned i, int fd) override { files_.set(i, fd); }
  unsigned lock_count() const override { return files_.lock_count(); }
  [[nodiscard]] int share_lock(unsigned i, int fd) override { return files_.share_lock(i, fd); }
  void close() override;

  const CapiLibrary& library() const { return library_; }
  // 0; -errno; 1: a read that begins beyond the end.
  int check(const Command& command) const;
  int flush() const;  // blocking. 0 or -errno
  size_t blocks_max() const { return blocks_max_; }
  uint64_t first_block() const { return data_offset_ / 4096; }

 private:
  int open_node(const char* uri, const DeviceOptions& options, ErrorText* why);
  int open_chunk(const char* uri, const DeviceOptions& options, ErrorText* why);
  int take_as_scratch(const char* path, ErrorText* why);
  int64_t move_data(const Command& command);
  int chunk();  // the chunk for transfers of this process; kNull with errno set

  CapiLibrary library_;
  DeviceFiles files_;
  const char* name_ = nullptr;
  const char* path_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint64_t data_offset_ = 0;
  size_t blocks_max_ = 0;  // of one command
  // pid << 32 | the device's own chunk; a forked child opens another.
  std::atomic<uint64_t> chunk_{0};
  bool read_only_ = false;
  bool unmap_ = false;
  std::atomic<int> contexts_{0};
};

}  // namespace lunar
