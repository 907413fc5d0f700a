// SPDX-License-Identifier: Apache-2.0
// A device of memory with faults on request:
// sim:SIZE[,seed=N][,latency_us=N][,read_error=P][,write_error=P][,bad=P][,flush_error=P][,torn=P]
// [,misdirect=P][,corrupt=P][,lost_flush=P][,stall=PAGE][,stall_us=N][,stalls=N][,errno=N]
// [,cache=SIZE][,name=X], P = one in P I/Os (0: never). Devices with the same name share one
// memory, for as long as the process lives: they are several paths to one backing device, or it
// outlives its sim: device. All of one name have one size.
//
//   read_error, write_error   the command fails with -errno (a number; default EIO); a failed write
//                             leaves the backing device as it was
//   bad                       one page (4 KiB) in P, always the same ones: each write to it fails
//                             like this
//   torn                      only the first sectors (512 bytes) of a write are written; success is
//                             reported
//   misdirect                 a write goes to another page, and its own page stays as it was;
//                             success is reported
//   corrupt                   a read returns one flipped bit; the stored data are sound
//   flush_error               a flush fails with -errno, and makes nothing durable
//   lost_flush                the same, but success is reported
//   cache                     size of a volatile cache, whose content a power loss may take
//                             (cut_power(); sim_backing.h). Without a cache all that completes
//                             survives. A flush makes durable what completed before it was
//                             submitted, and nothing that was in flight then
//   stall, stall_us, stalls   the first I/O (the first N) that begins at page `stall` (4 KiB) takes
//                             stall_us longer; commands that its context got later complete after
//                             it
//
// The fault of I/O number n is a hash of (seed, n), so a run with one thread is reproducible. Data
// move when a completion is delivered, in order of its due time. Contexts share only the memory,
// the I/O number and the counters. Threading: as for every device. Submit, reap, wait, watch do not
// allocate.
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "superpipe/sim/sim_backing.h"

namespace lunar {

struct SimFaults {
  uint64_t seed = 1;
  uint64_t latency_us = 0;
  uint64_t stall = 0, stall_us = 0, stalls = 1;
  uint64_t read_error = 0, write_error = 0, bad = 0, torn = 0, misdirect = 0, corrupt = 0,
           flush_error = 0, lost_flush = 0;
  uint64_t error = 5;  // of read_error and write_error: EIO
};

struct SimCounters {
  std::atomic<uint64_t> reads{0}, writes{0}, flushes{0};
  std::atomic<uint64_t> read_errors{0}, write_errors{0}, torn{0}, misdirected{0}, corrupted{0},
      flush_errors{0}, lost_flushes{0};
};

class SimDevice final : public CountedDevice {
 public:
  [[nodiscard]] static int open(const char* uri, const DeviceOptions& options, Device** out,
                                ErrorText* why);
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset, uint64_t) override {}
  uint64_t size_bytes() const override { return size_bytes_; }
  bool growable() const override { return false; }
  [[nodiscard]] int64_t transfer(const Command& command) override;
  uint32_t io_align() const override { return 512; }
  Capabilities capabilities() const override;
  const char* name() const override { return name_; }
  const char* kind() const override { return "sim"; }
  void close() override;

  char* memory() const { return backing_->memory(); }
  SimBacking& backing() const {  // its power is that of all devices with the name
    return *backing_;
  }
  const SimFaults& faults() const { return faults_; }
  SimCounters& counters() { return counters_; }
  // Makes all reads, or all writes (and discards, flushes), fail with -EIO from now on. Any thread.
  void set_failing(bool reads, bool writes) {
    failing_reads_.store(reads, std::memory_order_release);
    failing_writes_.store(writes, std::memory_order_release);
  }
  bool failing(bool read) const {
    return (read ? failing_reads_ : failing_writes_).load(std::memory_order_acquire);
  }
  // The duration of this I/O.
  uint64_t latency_ns(const Command& command) {
    const bool stalls = faults_.stall_us && command.offset.value == faults_.stall * 4096 &&
                        command.op != Op::kFlush &&
                        stalled_.fetch_add(1, std::memory_order_relaxed) < faults_.stalls;
    return (faults_.latency_us + (stalls ? faults_.stall_us : 0)) * 1000;
  }
  bool bad_place(uint64_t page) const;
  uint64_t next_io() { return next_io_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const char* name_ = nullptr;
  SimBacking* backing_ = nullptr;
  uint64_t size_bytes_ = 0;
  SimFaults faults_;
  SimCounters counters_;
  std::atomic<uint64_t> next_io_{0};
  std::atomic<uint64_t> stalled_{0};
  std::atomic<bool> failing_reads_{false}, failing_writes_{false};
};

}  // namespace lunar
