// SPDX-License-Identifier: Apache-2.0
// A device of mapped memory: pmem:PATH[,delegate=auto|on|off]. An I/O is a copy. PATH is
//
//   /dev/daxX.Y                       mapped whole; a write completes when its cache lines are on
//                                     stable storage
//   a file on a DAX file system       the same, mapped with MAP_SYNC
//   /dev/pmemN (any DAX block device) mapped; made durable by msync of the written range
//   a file on tmpfs or hugetlbfs      memory: nothing to flush, the content ends with the host
//                                     (capability persistent = false)
//   a file on a disk                  raw only, by msync. A scratch LUN there is refused, because
//                                     file: is better
//
// Lists of I/Os may be handed to delegate threads (delegate.h), so that submit returns at once:
// `on` always, `off` never, `auto` if a submit call carries kDelegateBytesMin or more. Blank files
// grow as they are reserved, like those of file:.
//
// Holes. A store to a page for which the file system has no space raises SIGBUS. So the device
// keeps track, in chunks, of what is backed (at open from SEEK_HOLE, later from reserve and its own
// writes), and asks the kernel for the rest (MADV_POPULATE_WRITE) before it stores: a full file
// system is -ENOSPC. The data path uses addresses only: it works even after the program has closed
// all its descriptors.
// The copying thread still gets SIGBUS for a poisoned line (an error of the device), for a file
// that another process truncates, and on a full file system for a hole that another process punched
// into a chunk known as backed. No handler is installed.
//
// Threading: does not change after open, except the bitmap (atomic words); any thread. transfer and
// contexts allocate nothing.
#pragma once
#include <sys/stat.h>

#include <atomic>

#include "superpipe/node_device.h"
#include "superpipe/pmem/pmem_copy.h"
#include "superpipe/ring/delegate.h"

namespace lunar {

enum class Delegate : uint8_t { kAuto, kOn, kOff };

class PmemDevice final : public NodeDevice {
 public:
  // A hand-over costs the caller a wake-up (10-20 us in a virtual machine), and another CPU starts
  // 25-40 us later: below this size a copy by the caller is done sooner (lists of 32 KiB reads that
  // are waited for, delegated against not: 256 KiB 0.78x, 512 KiB 1.08x, 1 MiB 1.26x).
  static constexpr uint64_t kDelegateBytesMin = 512 * kKiB;

  // `path`: with its settings, after "pmem:".
  [[nodiscard]] static int open(const char* uri, const char* path, const DeviceOptions& options,
                                Device** out, ErrorText* why);
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  bool growable() const override { return growable_; }
  [[nodiscard]] int64_t transfer(const Command& command) override {
    return carry_out(command, false);
  }
  uint32_t io_align() const override { return 512; }
  Capabilities capabilities() const override;
  const char* kind() const override { return "pmem"; }
  void close() override;

  // Whether a submit call of that many bytes goes to delegates. Starts them on demand, but not from
  // threads of the runtime (HostGuard), because a fault must not create threads.
  bool delegates(uint64_t bytes);
  // As transfer(). foreign: called by a thread that will not use the data next (a delegate).
  int64_t carry_out(const Command& command, bool foreign);
  Delegate delegate() const { return delegate_; }
  DelegatePool& pool() { return pool_; }
  // How a write becomes durable, for messages: "clwb", "msync", "memory".
  const char* durability() const;

 private:
  enum class Sync : uint8_t { kNone, kLines, kMsync };

  // pmem_open.cpp
  int open_uri(const char* uri, const char* path, const DeviceOptions& options, ErrorText* why);
  int parse_settings(const char* uri, const char* path, char* clean, size_t size, ErrorText* why);
  int open_regular(const char* path, const DeviceOptions& options, ErrorText* why);
  int open_block(const char* path, const struct stat& status, const DeviceOptions& options,
                 ErrorText* why);
  int open_character(const char* path, const struct stat& status, const DeviceOptions& options,
                     ErrorText* why);
  int open_backing(const char* path, const DeviceOptions& options, ErrorText* why);
  int size_raw(const char* path, const struct stat& status, ErrorText* why);
  int size_scratch(const char* path, const struct stat& status, bool grown, uint64_t free_bytes,
                   ErrorText* why);
  int map(const char* path, uint64_t bytes, bool memory, const DeviceOptions& options,
          ErrorText* why);
  int take_scratch(const char* path, ErrorText* why);
  int make_bitmap(bool all);
  void find_backed(uint64_t file_bytes);
  void abandon();

  // pmem_device.cpp
  int64_t read(const Command& command, bool foreign);
  int64_t write(const Command& command);
  int discard(uint64_t at, uint64_t length);
  int zero(uint64_t at, uint64_t length);
  int prepare(uint64_t at, uint64_t bytes, bool write);
  int settle(uint64_t at, uint64_t bytes);
  bool punch(uint64_t at, uint64_t bytes);
  bool backed(uint64_t chunk) const {
    return backed_[chunk / 64].load(std::memory_order_relaxed) >> chunk % 64 & 1;
  }
  void set_backed(uint64_t chunk) {
    backed_[chunk / 64].fetch_or(uint64_t{1} << chunk % 64, std::memory_order_relaxed);
  }
  void clear_backed(uint64_t chunk) {
    backed_[chunk / 64].fetch_and(~(uint64_t{1} << chunk % 64), std::memory_order_relaxed);
  }

  char* map_ = nullptr;                      // the device from its first byte
  uint64_t map_bytes_ = 0;                   // whole pages
  char* data_ = nullptr;                     // device offset 0
  uint64_t chunk_bytes_ = 64 * kKiB;         // power of two
  uint64_t page_bytes_ = 4096;               // of the mapping
  std::atomic<uint64_t>* backed_ = nullptr;  // one bit per chunk of the mapping
  size_t backed_bytes_ = 0;                  // of that bitmap
  std::atomic<bool> punched_{false};         // holes that kFlush must make durable
  Sync sync_ = Sync::kNone;
  pmem::Flush flush_ = pmem::Flush::kNone;
  Delegate delegate_ = Delegate::kAuto;
  bool raw_ = false;
  bool regular_ = false;
  bool growable_ = false;
  bool cut_at_close_ = false;
  DelegatePool pool_;
};

}  // namespace lunar
