// SPDX-License-Identifier: Apache-2.0
// Locks of the virtual LUNs of a device that was opened for Claim::kParts: byte ranges beyond those of
// superpipe/ownership.h, on the same files; of a stripe and paths on the first member's.
//
//   2^62 + 0           metadata    exclusive (shared for reading), on a description of its own that lives as long as
//                                  the lock
//          + 1         parts       ownership.h's: shared by every open. A forced format checks for others first
//          + 64 + 2i   owner       shared by the owners of LUN i, on the device's own description: forked children
//                      inherit it,
//          + 65 + 2i   exclusive   shared too, by owners who want to be the only ones. Both are tested, never taken
//                      exclusively
//          + 4096 + i  user        shared by each process that uses LUN i, on a description of its own that its
//                      children do not keep: so processes that own a LUN together by fork see each other
//
// All decisions (test, then take) happen under the metadata lock. Forked children must not share it, else parent and
// child would both have it: so it opens the files again each time, which also suits threads with their own descriptor
// table. A child forked meanwhile closes its copy (an atfork handler); an explicit unlock drops the lock for every
// copy.
//
// No other process and no other PhysicalLun sees a device without a descriptor (sim:): every lock succeeds. Where /proc
// is missing or the file may not be opened again, the metadata lock is taken on the device's own description; forked
// children may then not change anything (-EACCES).
// Threading: the caller locks.
#pragma once
#include "superpipe/device.h"
#include "superpipe/device_files.h"
#include "sys/file.h"

namespace lunar {

class LunLocks {
 public:
  void init(Device* device);
  // Waits up to 10 s. shared: only to look; a device opened for reading will do. 0, -EBUSY, -EROFS (opened for reading
  // only), -errno; all but 0 with *why.
  [[nodiscard]] int lock_metadata(bool shared, ErrorText* why);
  void unlock_metadata();
  // Whether this is the only open. Pre: metadata lock held.
  [[nodiscard]] int alone();
  [[nodiscard]] int own(unsigned index, bool exclusive);
  void disown(unsigned index);
  // Whether others (not this description) own LUN `index`, or do so exclusively: 1, 0, or -errno.
  [[nodiscard]] int owned(unsigned index);
  [[nodiscard]] int owned_exclusively(unsigned index);
  // Whether any description does, this one included. Pre: metadata lock held. (Where it has no description of its own,
  // as owned().)
  [[nodiscard]] int owned_by_any(unsigned index);
  // This process uses LUN `index`, which its forked children may come to use as well; fine where it does already. 0 or
  // -errno.
  [[nodiscard]] int join(unsigned index);
  void part();  // fine when it does not
  // Whether another process does: 1, 0, or -errno.
  [[nodiscard]] int used(unsigned index);
  // `fd`, another description of one of the files, becomes an owner too.
  [[nodiscard]] static int share_lock(int fd, unsigned index, bool exclusive);
  // Ends this process' ownership of everything, unless a forked child shares it: the device goes on with new
  // descriptions. 0 or -errno (nothing changed).
  [[nodiscard]] int renew();

 private:
  bool none() const { return device_->lock_count() == 0; }
  int open_metadata();
  void close_metadata();
  Device* device_ = nullptr;
  int metadata_fd_[kLockFilesMax] = {-1, -1};  // while it is held
  unsigned metadata_count_ = 0;
  bool own_files_ = false;  // these are descriptions of their own
  int opener_ = 0;          // pid
  int user_fd_ = -1;        // of user_, whose children have closed their copies
  int user_ = 0;            // pid
};

}  // namespace lunar
