// SPDX-License-Identifier: Apache-2.0
// A virtual LUN: opening, size, and closing. See virtual_lun.h; its data path is in virtual_io.cpp.
// Threading: any; the size changes under sizes_. May not be used on the fault path.
#include "lun/volume/virtual_lun.h"

#include <errno.h>
#include <string.h>

#include <new>

#include "base/format.h"
#include "lun/volume/virtual_impl.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/memory_copy.h"

namespace lunar {
namespace {

constexpr uint64_t kDrainMaxNs = 5'000'000'000;
constexpr uint64_t kAheadPart = 16;  // a scratch LUN grows by a sixteenth of its size at least
constexpr size_t kSharedBytes = ExtentMap::kSharedCounts * sizeof(sys::PhaseCount);

}  // namespace

class VirtualLunImpl::SizeLock {
 public:
  explicit SizeLock(VirtualLunImpl* lun) : lock_(lun->sizes_) {
    lun->know_process();
    lock_.lock();
  }
  ~SizeLock() { lock_.unlock(); }
  SizeLock(const SizeLock&) = delete;
  SizeLock& operator=(const SizeLock&) = delete;

 private:
  sys::Mutex& lock_;
};

// Resets the locks in a forked child, because a thread of the parent may have held them.
void VirtualLunImpl::know_process() {
  const uint32_t copy = sys::memory_copy();
  if (copy_.exchange(copy) == copy) return;
  sizes_.reset_in_child();
  list_.reset_in_child();
}

int VirtualLun::open(PhysicalLun* physical, const VirtualOptions& options, VirtualLun** out,
                     ErrorText* why) {
  VirtualLunImpl* lun = nullptr;
  const int status =
      VirtualLunImpl::make(static_cast<PhysicalLunImpl*>(physical), options, &lun, why);
  *out = lun;
  return status;
}

int VirtualLunImpl::make(PhysicalLunImpl* physical, const VirtualOptions& options,
                         VirtualLunImpl** out, ErrorText* why) {
  *out = nullptr;
  const size_t head = round_up(sizeof(VirtualLunImpl), 4096);
  const size_t bytes =
      head + round_up(physical->geometry().extent_count * sizeof(std::atomic<uint32_t>), 4096);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  void* counts = memory ? map_private(kSharedBytes, ForkPolicy::kWipe) : nullptr;
  if (!counts) {
    if (memory) unmap_private(memory, bytes);
    physical->close();
    return why->set(-ENOMEM, "LUN: out of memory");
  }
  auto* lun = new (memory) VirtualLunImpl;
  lun->physical_ = physical;
  lun->base_ = physical->device();
  lun->places_ = reinterpret_cast<std::atomic<uint32_t>*>(memory + head);
  lun->places_bytes_ = bytes;
  lun->shared_ = static_cast<sys::PhaseCount*>(counts);  // zeros are what they begin with
  lun->copy_.store(sys::memory_copy());
  lun->lun_.map = lun->places_;
  const Geometry& geometry = physical->geometry();
  lun->map_.init(lun->places_, geometry.data_offset, geometry.extent_bytes);
  const int status = lun->start(options, why);
  if (status < 0) {
    physical->close();
    unmap_private(counts, kSharedBytes);
    unmap_private(memory, bytes);
    return status;
  }
  *out = lun;
  return 0;
}

int VirtualLunImpl::start(const VirtualOptions& options, ErrorText* why) {
  const bool scratch = *options.name == '\0';
  if (!scratch && !lun_name_legal(options.name))
    return why->set(-EINVAL,
                    "LUN %s: '%s' is not a name of a virtual LUN; 1 to 31 of A-Z a-z 0-9 . _ -, "
                    "not starting with . or -",
                    base_->name(), options.name);
  format_to(name_, sizeof name_, scratch ? "%s" : "%s#%s", base_->name(), options.name);
  lun_.exclusive = scratch || options.exclusive;
  lun_.zeroed = options.zeroed;
  int status;
  if (!scratch && !options.create) {
    status = physical_->open_named(options.name, options.type, &lun_, why);
  } else {
    if (options.size_bytes > uint64_t{1} << 60)
      return why->set(-ENOSPC, "LUN %s: a size of %s is more than any device has", name_,
                      format_size(options.size_bytes).text);
    NewLun wanted;
    wanted.name = options.name;
    wanted.type = options.type;
    wanted.size_bytes = round_up(options.size_bytes, 4096);
    status = physical_->create(wanted, &lun_, why);
  }
  if (status < 0) return status;
  status = options.joins ? physical_->join(lun_) : 0;
  if (status < 0 && status != -ENOENT) {  // without /proc a child can neither join it nor change it
    physical_->abandon(lun_);
    return why->set(status, "LUN %s: cannot be opened again for its locks: %s (%s)", name_,
                    errno_text(status), errno_name(status));
  }
  most_ = lun_.limit_bytes;
  scratch_ = lun_.scratch;
  info_ = lun_.info;
  map_.set_limit(lun_.size_bytes);
  return 0;
}

void VirtualLunImpl::close() {
  LUNAR_CHECK(context_count_.load(std::memory_order_acquire) == 0,
              "LUN closed with contexts attached");
  if (scratch_) physical_->abandon(lun_);
  physical_->close();
  unmap_private(shared_, kSharedBytes);
  unmap_private(this, places_bytes_);
}

void VirtualLunImpl::forget() {
  physical_->forget();
  unmap_private(shared_, kSharedBytes);
  unmap_private(this, places_bytes_);
}

int VirtualLunImpl::share_lock(unsigned i, int fd) {
  const int status = base_->share_lock(i, fd);
  return status < 0 || i >= base_->lock_count() ? status : physical_->share_lock(fd, lun_);
}

// pre: sizes_ held
int VirtualLunImpl::grow(uint64_t bytes, ErrorText* why) {
  const int status = physical_->grow(bytes, &lun_, why);
  if (status == 0) map_.set_limit(lun_.size_bytes);
  return status;
}

// Whether all readers that entered before the limit was lowered have left.
bool VirtualLunImpl::drained() {
  return map_.phases().drain(sys::now_ns() + kDrainMaxNs, [this](unsigned phase) {
    uint64_t inside = 0;
    for (unsigned i = 0; i < ExtentMap::kSharedCounts; ++i)
      inside += shared_[i].inside[phase].load(std::memory_order_seq_cst);
    list_.lock();
    for (VirtualContext* context = contexts_; context; context = context->next) {
      if (context->mine())  // others belong to the parent
        inside += context->phase_count().inside[phase].load(std::memory_order_seq_cst);
    }
    list_.unlock();
    return inside;
  });
}

// pre: sizes_ held
int VirtualLunImpl::shrink(uint64_t bytes, ErrorText* why) {
  const uint64_t before = map_.limit();
  map_.set_limit(bytes);
  if (!drained()) {
    map_.set_limit(before);
    return why->set(-EBUSY,
                    "LUN %s: cannot shrink: commands have been in flight for 5 s; reap them first",
                    name_);
  }
  const int status = physical_->shrink(bytes, &lun_, why);
  if (status == 0) return 0;
  // The size on the device counts. If it cannot be read, the limit stays low, because the extents
  // may already belong to another LUN.
  if (physical_->refresh(&lun_) == 0) map_.set_limit(lun_.size_bytes);
  return status;
}

int VirtualLunImpl::set_size(uint64_t bytes, ErrorText* why) {
  const SizeLock lock(this);
  if (bytes > uint64_t{1} << 60)
    return why->set(-ENOSPC, "LUN %s: a size of %s is more than any device has", name_,
                    format_size(bytes).text);
  bytes = round_up(bytes, 4096);
  const int status = physical_->refresh(&lun_);
  if (status < 0)
    return why->set(status, "LUN %s: cannot be resized: %s (%s)", name_, errno_text(status),
                    errno_name(status));
  map_.set_limit(lun_.size_bytes);
  asked_ = bytes;
  if (bytes > lun_.size_bytes) return grow(bytes, why);
  return bytes < lun_.size_bytes ? shrink(bytes, why) : 0;
}

uint64_t VirtualLunImpl::remaining_bytes() {
  const SizeLock lock(this);
  uint64_t free = 0;
  if (physical_->free_bytes(&free) < 0) return 0;
  const uint64_t extent = physical_->geometry().extent_bytes;
  return free + lun_.extents * extent - lun_.size_bytes;
}

int VirtualLunImpl::refresh() {
  const SizeLock lock(this);
  const int status = physical_->refresh(&lun_);
  if (status == 0) map_.set_limit(lun_.size_bytes);
  return status;
}

// Joins first, so that no other process lowers the size after refresh() has read it.
int VirtualLunImpl::join() {
  const int status = physical_->join(lun_);
  return status < 0 ? status : refresh();
}

int VirtualLunImpl::reserve(DeviceOffset offset, uint64_t length) {
  const uint64_t need = offset.value + length;
  if (need < length) return -ENOSPC;
  const SizeLock lock(this);
  if (need <= map_.limit()) {
    if (need > asked_) asked_ = need;
    return 0;
  }
  if (!scratch_ || need > uint64_t{1} << 60) return -ENOSPC;
  const uint64_t extent = physical_->geometry().extent_bytes;
  const uint64_t exact = round_up(need, extent),
                 step = map_.limit() + round_up(map_.limit() / kAheadPart, extent);
  ErrorText unsaid;
  int status = -ENOSPC;
  if (step > exact) status = grow(step, &unsaid);
  if (status == -ENOSPC) status = grow(exact, &unsaid);
  if (status == 0) asked_ = need;
  return status;
}

void VirtualLunImpl::release(DeviceOffset offset, uint64_t length) {
  {
    const SizeLock lock(this);
    const uint64_t limit = map_.limit();
    if (offset.value >= limit || length == 0) return;
    if (length > limit - offset.value) length = limit - offset.value;
    ErrorText unsaid;
    if (scratch_ && offset.value + length >= asked_ &&
        shrink(round_up(offset.value, 4096), &unsaid) == 0) {
      asked_ = map_.limit();
      return;
    }
  }
  Command command;
  command.op = Op::kDiscard;
  command.offset = DeviceOffset{round_up(offset.value, 4096)};
  const uint64_t end = round_down(offset.value + length, 4096);
  if (end <= command.offset.value) return;
  command.length = end - command.offset.value;
  (void)transfer(command);
}

Capabilities VirtualLunImpl::capabilities() const {
  Capabilities out = base_->capabilities();
  if (out.transfer_bytes_max > 16 * kMiB) out.transfer_bytes_max = 16 * kMiB;
  out.persistent &= !scratch_;
  return out;
}

}  // namespace lunar
