// SPDX-License-Identifier: Apache-2.0
// The implementation of PhysicalLun, for virtual_lun.cpp: entries and extents. Each call makes one
// change under the metadata lock.
//
//   Session    takes the mutex and the metadata lock, reads and repairs the newest image; the
//              change is made in place in image(), then commit()
//
// Order within a change: steps that the new image relies on (zeros, space in a file system) come
// before its commit; discarding extents that the old image used comes after it; all under the lock.
// Threading: as physical_lun.h. A forked child may continue to use what it inherited.
#pragma once
#include <atomic>

#include "lun/raw_io.h"
#include "lun/volume/lun_locks.h"
#include "lun/volume/metadata_store.h"
#include "lun/volume/physical_lun.h"
#include "sys/thread.h"

namespace lunar {

constexpr unsigned kNoEntry = UINT32_MAX;
constexpr char kExistsAlready[] =
    "LUN %s#%s: exists already; choose another name, or `lunar lun resize` it";
constexpr char kUnknownData[] = "unknown data";  // device_content(): foreign, of unknown kind

inline uint64_t extents_for(uint64_t bytes, const Geometry& geometry) {
  return bytes / geometry.extent_bytes + (bytes % geometry.extent_bytes != 0);
}

// A virtual LUN, as recorded by its owner.
struct OwnedLun {
  unsigned index = kNoEntry;
  uint8_t uuid[16] = {};
  bool scratch = false;
  bool exclusive = true;
  bool zeroed = true;
  uint64_t size_bytes = 0;
  uint64_t extents = 0;
  uint64_t limit_bytes = 0;              // size and free space at open
  std::atomic<uint32_t>* map = nullptr;  // indexed by position; geometry().extent_count entries
  VirtualLunInfo info;
};

struct NewLun {
  const char* name = "";
  LunType type = LunType::kBlocks;
  uint64_t size_bytes = 0;
};

class PhysicalLunImpl final : public PhysicalLun {
 public:
  static int make(Device* raw, Format format, PhysicalLunImpl** out, ErrorText* why);
  void close() override;
  void forget();  // Device::forget, of its device too
  [[nodiscard]] int info(PhysicalLunInfo* out) override;
  [[nodiscard]] int list(VirtualLunInfo* out, unsigned max, unsigned first) override;
  [[nodiscard]] int remove(const char* name, ErrorText* why) override;
  [[nodiscard]] int check(bool repair, CheckReport* report) override;
  [[nodiscard]] int end(ErrorText* why) override;
  Device* device() override { return raw_; }

  const Geometry& geometry() const { return store_.geometry(); }
  // Each fills in lun->size_bytes, extents, map and info on success.
  [[nodiscard]] int create(const NewLun& wanted, OwnedLun* lun, ErrorText* why);
  // Waits for the locks of a killed owner (LockWait).
  [[nodiscard]] int open_named(const char* name, LunType type, OwnedLun* lun, ErrorText* why);
  [[nodiscard]] int grow(uint64_t bytes, OwnedLun* lun, ErrorText* why);  // to `bytes` at least
  [[nodiscard]] int shrink(uint64_t bytes, OwnedLun* lun, ErrorText* why);
  [[nodiscard]] int refresh(OwnedLun* lun);
  [[nodiscard]] int free_bytes(uint64_t* out);  // dead scratch LUNs are freed first
  // At close: frees a scratch LUN if this was its last owner.
  void abandon(const OwnedLun& lun);
  // Notes that this process uses it (lun_locks.h), until close().
  [[nodiscard]] int join(const OwnedLun& lun) { return locks_.join(lun.index); }
  bool is_used(const OwnedLun& lun) { return locks_.used(lun.index) != 0; }
  [[nodiscard]] int share_lock(int fd, const OwnedLun& lun) {
    return LunLocks::share_lock(fd, lun.index, lun.exclusive);
  }

 private:
  class Session;
  friend class Session;

  int open_locked(Format format, ErrorText* why);
  int open_without_head(Format format, SuperState state, const media::Superblock& super,
                        const media::Superblock* backup, ErrorText* why);
  int format_now(ErrorText* why);
  int restore_super(const media::Superblock& from, uint64_t offset);
  int damaged(const char* what, ErrorText* why);
  int take_geometry(const media::Superblock& super, ErrorText* why);
  int refuse_contents(Format format, bool backup, ErrorText* why);
  int refuse_blank(Format format, ErrorText* why);
  int refuse_end(ErrorText* why);

  media::LunEntry* entries() { return store_.image().entries(); }
  media::ExtentOwner* extents() { return store_.image().extents(); }
  bool used(unsigned index) { return (entries()[index].flags & media::kEntryUsed) != 0; }
  bool is_named(unsigned index) {
    return used(index) && !(entries()[index].flags & media::kEntryScratch);
  }
  unsigned find(const char* name);
  unsigned free_entry();
  uint64_t free_extents();
  int reclaim();  // frees dead scratch LUNs in one commit. 0 or -errno
  int ours(const OwnedLun& lun, ErrorText* why);  // -ESTALE: the entry is another LUN's now
  int make_room(uint64_t count, ErrorText* why);  // -ENOSPC: there are fewer free extents
  unsigned add_entry(bool scratch, const NewLun& wanted, uint64_t size_bytes);
  // Assigns free extents to the end of a LUN.
  // pre: there are that many
  void assign(unsigned index, uint64_t count);
  bool dead(unsigned index);  // a scratch LUN without an owner
  void free_entry_of(unsigned index);
  uint64_t order(unsigned index);  // fills order_ by position; returns how many
  int prepare_extents(const uint32_t* list, uint64_t count, bool zeroed, bool named);
  int zero_slack(unsigned index, uint64_t to_bytes);
  bool is_quick(uint64_t count, bool zeroed) const;
  void discard_freed(uint64_t from, uint64_t count);  // of order_
  void publish(OwnedLun* lun);
  int create_quick(const NewLun& wanted, OwnedLun* lun, ErrorText* why);
  int stage(uint64_t count, OwnedLun* staged, ErrorText* why);
  int grow_staged(uint64_t count, uint64_t bytes, OwnedLun* lun, ErrorText* why);
  int take_over(const OwnedLun& staged, uint64_t bytes, OwnedLun* lun, ErrorText* why);
  int adopt_name(const NewLun& wanted, OwnedLun* lun, ErrorText* why);
  int prepare_staged(const OwnedLun& staged, uint64_t count, bool zeroed, bool named);
  void describe(unsigned index, VirtualLunInfo* out);
  uint64_t dead_extents();
  Repair to_look() const {  // for a session that does not change the LUNs
    return looks_ ? Repair::kNo : Repair::kOne;
  }
  int try_named(const char* name, LunType type, OwnedLun* lun, unsigned* entry, ErrorText* why);
  int explain(int err, const SlotReport& report, const char* advice, ErrorText* why);
  int check_super(bool repair, CheckReport* report);
  void count_extents(CheckReport* report);

  Device* raw_ = nullptr;
  LunLocks locks_;
  MetadataStore store_;
  sys::Mutex mutex_;
  std::atomic<uint32_t> copy_{0};  // of the memory in which the lock is (sys/memory_copy.h)
  uint32_t* order_ = nullptr;
  size_t mapping_bytes_ = 0, order_bytes_ = 0;
  uint64_t created_s_ = 0;
  // The LUNs that the owner of this object has open. They are never dead.
  unsigned own_ = kNoEntry, staged_ = kNoEntry;
  bool repaired_ = false;
  bool looks_ = false;  // Format::kLook: nothing may be written
  unsigned damaged_ = 0;
};

// With Repair::kNo nothing may be changed. Any other value fails with -EROFS if the LUN was opened
// with Format::kLook.
class PhysicalLunImpl::Session {
 public:
  Session(PhysicalLunImpl* lun, Repair repair, ErrorText* why);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  int status() const { return status_; }
  const SlotReport& report() const { return report_; }

 private:
  PhysicalLunImpl* lun_;
  SlotReport report_;
  int status_ = 0;
};

// The path in the name of a device, for messages; -ENOENT: the name has no path.
[[nodiscard]] int device_path(Device* raw, char* path, size_t size);

}  // namespace lunar
