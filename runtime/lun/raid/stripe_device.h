// SPDX-License-Identifier: Apache-2.0
// A stripe: RAID 0 over 2 to 8 devices. Chunk c is on member c % N at c / N * chunk, so the part of
// a command that belongs to one member is always contiguous there. A large command therefore goes
// to all members at once, as one command each (two if its vector has more than 256 entries).
//
//   offset   0     64k    128k   192k   256k
//            │ c0  │ c1   │ c2   │ c3   │ ...       members: 0: c0 c2 ..   1: c1 c3 ..
//
// Over members with labels (data at kMemberDataOffset of each), or over scratch devices (no labels,
// data at 0). Threading: as for every device.
#pragma once
#include "base/error.h"
#include "lun/raid/composite_context.h"
#include "superpipe/context_pool.h"

namespace lunar {

constexpr uint64_t kStripeChunkBytes = 64 * kKiB;

class StripeDevice final : public CompositeDevice {
 public:
  // Takes ownership of the members: they are closed with the stripe, or at once on failure.
  // member_bytes: of each, from data_offset on; rounded down to chunks. chunk_bytes: a multiple of
  // 4096. 0 or -errno.
  [[nodiscard]] static int create(const char* name, Device* const* members, unsigned count,
                                  uint64_t data_offset, uint64_t member_bytes, Device** out,
                                  ErrorText* why, uint64_t chunk_bytes = kStripeChunkBytes);
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  bool growable() const override { return growable_; }
  [[nodiscard]] int64_t transfer(const Command& command) override;
  const char* kind() const override { return "stripe"; }
  void close() override;
  void forget() override;

 private:
  [[nodiscard]] int start(CompositeContext* context, CompositeParent* parent) override;
  bool child_done(CompositeContext* context, CompositeParent* parent, CompositeChild* child,
                  int64_t result) override;
  void finish(CompositeContext* context, CompositeParent* parent) override;
  void start_large(CompositeContext* context, CompositeParent* parent);
  int64_t transfer_in_turn(const Command& command, uint64_t bytes);
  // The part of [offset, offset + length) on a member: one piece (length 0: none).
  void piece_of(unsigned member, uint64_t offset, uint64_t length, uint64_t* at,
                uint64_t* bytes) const;

  ContextPool pool_;  // for blocking commands that several members take part in
  uint64_t data_offset_ = 0;
  uint64_t chunk_bytes_ = kStripeChunkBytes;
  bool growable_ = false;
};

}  // namespace lunar
