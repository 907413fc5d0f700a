// SPDX-License-Identifier: Apache-2.0
// A mirror: every member has everything. 2 to 4 members with labels.
//
//   write   goes to every member that is not failed, answered when all have; who fails it is out before the answer
//           (mirror_state.h says how, and why no process reads there any more)
//   read    from the preferred member, the lowest in sync, so that all readers see one copy; on an error from the next in sync.
//           What could be read elsewhere is written again where it could not, by the service thread; where that fails too, the
//           member is out
//   back    the service thread asks failed members again (1 s, 2 s, 4 s .. 5 min); one that answers is written to, copied to
//           region by region while I/O goes on, compared, and in sync again. Copying takes at most half of the time while there
//           is other I/O, and holds up writes to 1/64 of the device for one region (256 KiB) at a time
//
// Where no member in sync takes a write, the error is the caller's, and the copy that counts afterwards is the preferred one's
// (the others are out, unless all refused before they touched the medium). A discard that some members refuse is written there as
// zeros; one that all refuse is -EOPNOTSUPP. What moves nothing is done at once.
// A mirror just formatted copies its first member to the others.
//
// Opened read-only it follows those who write, and mends nothing.
//
// Threading: as every device. After an I/O error the thread that reaps it writes labels (blocking). The service thread belongs
// to the process that opened the mirror; forked children rely on it, or on another process'.
#pragma once
#include <pthread.h>

#include "base/error.h"
#include "lun/compose.h"
#include "lun/fan_out.h"
#include "lun/mirror_state.h"
#include "sys/thread.h"

namespace lunar {

class MirrorDevice final : public FanDevice {
 public:
  // Takes the set's members over: closed with the mirror, or at once on failure. uris: kept, not copied. missing: bit a member
  // the URI says is lost. 0 or -errno.
  [[nodiscard]] static int open(const char* name, MemberSet* set, const char* const* uris, uint32_t missing, Format format,
                                bool read_only, Device** out, ErrorText* why);
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  [[nodiscard]] int64_t transfer(const Command& command) override;
  const char* kind() const override { return "mirror"; }
  [[nodiscard]] int hold(unsigned i, int fd) override;
  void close() override;

  void describe(unsigned member, PathInfo* out) const;
  // Waits until all members that are there are in sync. 0 or -ETIME.
  [[nodiscard]] int wait_in_sync(uint64_t timeout_ns);
  MirrorState& state() { return state_; }
  void set_probe_interval(uint64_t ns) { probe_ns_.store(ns, std::memory_order_relaxed); }   // for tests: the first of its kind

 private:
  [[nodiscard]] int start(FanContext* context, FanParent* parent) override;
  bool child_done(FanContext* context, FanParent* parent, FanChild* child, int64_t result) override;
  void finish(FanContext* context, FanParent* parent) override;
  int attached(FanContext* context) override;
  void detaching(FanContext* context) override;

  uint32_t writable() const;                              // bit a member that writes go to
  unsigned reader(uint32_t tried) const;                  // count_: none left
  struct Outcome {
    uint32_t good = 0, bad = 0, refused = 0;              // bit a member; refused: of the bad ones
    int64_t error = 0;                                    // of a bad one, of those that did not refuse if there is one
    void add(uint32_t bit, bool took, int64_t result);
  };
  int64_t settle_write(const Command& command, uint64_t bytes, Outcome outcome);
  bool write_zeros(unsigned member, uint64_t offset, uint64_t length);
  int64_t read_now(const Command& command, uint64_t bytes);
  int64_t write_now(const Command& command, uint64_t bytes);
  int transfer_slot();

  // ---- the service thread: mirror_resync.cpp ----
  struct Repair {
    uint64_t offset, bytes;
    unsigned member;
  };
  static constexpr unsigned kRepairsMax = 64;
  void want_repair(uint32_t members, uint64_t offset, uint64_t bytes);
  bool next_repair(Repair* out);
  static void serve(void* self);
  void serve();
  bool look_after();
  void repair(const Repair& what);
  void try_again(unsigned member);
  [[nodiscard]] int resync(unsigned member);
  [[nodiscard]] int copy_region(unsigned member, uint64_t offset, bool force, bool* differed);
  void step_back(uint64_t took_ns);
  int64_t move(unsigned member, Op op, uint64_t offset, void* buffer, uint64_t bytes);
  uint64_t foreground() const;

  MirrorState state_;
  const char* uri_[kFanMembersMax] = {};
  bool read_only_ = false, discard_ = false;
  std::atomic<uint64_t> transfer_slot_{0};                // pid << 32 | slot + 1
  sys::SpinLock repairs_lock_;
  Repair repairs_[kRepairsMax];
  unsigned repairs_first_ = 0, repairs_count_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> probe_ns_{1'000'000'000};
  uint64_t next_try_ns_[kMirrorMembersMax] = {}, backoff_ns_[kMirrorMembersMax] = {}, well_since_ns_[kMirrorMembersMax] = {};   // the service thread's
  char* buffer_ = nullptr;                                // two regions; the service thread's
  pthread_t thread_{};
  bool thread_runs_ = false;
  int pid_ = 0;
};

}  // namespace lunar
