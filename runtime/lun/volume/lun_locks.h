// SPDX-License-Identifier: Apache-2.0
// Locks of the virtual LUNs of a device that was opened for Claim::kParts: byte ranges beyond those
// of superpipe/ownership.h, on the same files; for stripe: and paths: on the files of the first
// member.
//
//   2^62 + 0           metadata    exclusive (shared for reading), on a separate file description
//                                  that lives as long as the lock
//          + 1         parts       that of ownership.h: shared by every open. A forced format
//                                  checks for others first
//          + 64 + 2i   owner       shared by the owners of LUN i, on the device's file description,
//                                  which forked children inherit
//          + 65 + 2i   exclusive   also shared, by owners that want to be the only ones. Both are
//                                  tested, but never taken exclusively
//          + 4096 + i  user        shared by each process that uses LUN i, on a separate file
//                                  description that its children do not keep: so processes that own
//                                  a LUN together after a fork see each other
//
// All decisions (test, then take) are made under the metadata lock. Forked children must not share
// that lock, because parent and child would then both have it. So each lock operation opens the
// files again, which also works in threads with their own descriptor table. A child forked in the
// meantime closes its copy (an atfork handler); an explicit unlock releases the lock for every
// copy.
//
// A device without a descriptor (sim:) is visible to no other process and no other PhysicalLun:
// every lock succeeds. If there is no /proc, or the file cannot be opened again, the metadata lock
// is taken on the device's own description; forked children may then change nothing (-EACCES).
// Threading: the caller locks.
#pragma once
#include "superpipe/device.h"
#include "superpipe/device_files.h"
#include "sys/file.h"

namespace lunar {

class LunLocks {
 public:
  void init(Device* device);
  // Waits up to 10 s. shared: only for reading; then a device opened read-only is sufficient. 0,
  // -EBUSY, -EROFS (opened read-only), -errno; all but 0 with *why.
  [[nodiscard]] int lock_metadata(bool shared, ErrorText* why);
  void unlock_metadata();
  // Whether this is the only open.
  // pre: the metadata lock is held
  [[nodiscard]] int alone();
  [[nodiscard]] int own(unsigned index, bool exclusive);
  void disown(unsigned index);
  // Whether others (not this description) own LUN `index`, or own it exclusively: 1, 0, or -errno.
  [[nodiscard]] int owned(unsigned index);
  [[nodiscard]] int owned_exclusively(unsigned index);
  // Whether a process owns it. Otherwise only the kernel does, which has not yet ended the I/O of a
  // killed process.
  bool any_process_owns(unsigned index) const;
  // Whether any description owns it, this one included.
  // pre: the metadata lock is held. (If that lock is on the device's own description: as owned().)
  [[nodiscard]] int owned_by_any(unsigned index);
  // Notes that this process uses LUN `index`, which its forked children may also use. Does nothing
  // if it is noted already. 0 or -errno.
  [[nodiscard]] int join(unsigned index);
  void part();  // the reverse; does nothing if it is not noted
  // Whether another process uses it: 1, 0, or -errno.
  [[nodiscard]] int used(unsigned index);
  // Makes `fd`, another description of one of the files, a further owner.
  [[nodiscard]] static int share_lock(int fd, unsigned index, bool exclusive);
  // Ends this process' ownership of everything, unless a forked child shares it: the device
  // continues with new descriptions. 0 or -errno (nothing changed).
  [[nodiscard]] int renew();

 private:
  bool none() const { return device_->lock_count() == 0; }
  int open_metadata();
  void close_metadata();
  Device* device_ = nullptr;
  int metadata_fd_[kLockFilesMax] = {-1, -1};  // while the lock is held
  unsigned metadata_count_ = 0;
  bool own_files_ = false;  // metadata_fd_ are separate descriptions
  uint32_t opener_ = 0;     // sys::memory_copy() of the process that opened
  int user_fd_ = -1;  // of the process with memory copy user_; its children have closed theirs
  uint32_t user_ = 0;
};

}  // namespace lunar
