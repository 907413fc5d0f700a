// SPDX-License-Identifier: Apache-2.0
// A device on a file of the host: an unlinked file created in a directory, a regular file given by
// path, or a block device. All are opened with O_DIRECT; contexts are io_uring rings, or those of
// call_context.h if the host refuses io_uring.
//
// fua is RWF_DSYNC, also for a vector. A discarded range becomes zeros in a file, which keeps its
// space (FALLOC_FL_ZERO_RANGE); a block device gets WRITE ZEROES. The result of a command is the
// count that the kernel moved: a read across the end of the file is short and is not continued.
// Threading: does not change after open, except the descriptor (reopen), which is atomic.
#pragma once
#include <atomic>

#include <sys/stat.h>

#include "superpipe/node_device.h"
#include "superpipe/ring/call_context.h"
#include "superpipe/ring/sync_context.h"

namespace lunar {

class FileDevice final : public NodeDevice {
 public:
  // `path` may carry the "file:" prefix in `uri`, which is only kept for messages.
  [[nodiscard]] static int open(const char* uri, const char* path, const DeviceOptions& options,
                                Device** out, ErrorText* why);
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  bool join(JoinedFiles* files) const override;
  [[nodiscard]] int attach_joined(const JoinedFiles& files, const ContextOptions& options,
                                  Context** out) override;
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  // A file given by path serves a whole process tree.
  bool growable() const override { return growable_ && !cut_at_close_; }
  [[nodiscard]] int64_t transfer(const Command& command) override {
    return transfer_on(fd(), place(), command);
  }
  uint32_t io_align() const override { return io_align_; }
  Capabilities capabilities() const override;
  const char* kind() const override { return block_ ? "block" : "file"; }
  void close() override;
  void forget() override;

 private:
  int open_raw(const char* path, const struct stat& status, const DeviceOptions& options,
               ErrorText* why);
  int open_directory(const char* path, const DeviceOptions& options, ErrorText* why);
  int open_regular(const char* path, const DeviceOptions& options, ErrorText* why);
  int open_block(const char* path, uint64_t rdev, const DeviceOptions& options, ErrorText* why);
  int check_file_system(const char* path, uint64_t* free_bytes, ErrorText* why);
  int learn_alignment(const char* path, ErrorText* why);
  int check_size(uint64_t want_bytes, ErrorText* why) const;
  bool can_discard() const;
  JoinedFiles::Place place() const { return {data_offset_, block_ ? size_bytes_ : 0}; }
  Fua fua() const;

  CallPool calls_;  // used if io_uring is refused
  uint32_t io_align_ = 4096;
  bool block_ = false;
  bool raw_ = false;
  bool growable_ = false;
  bool cut_at_close_ = false;                // a file given by path that was empty at first
  mutable std::atomic<uint32_t> probed_{0};  // cached capabilities(): see there
};

}  // namespace lunar
