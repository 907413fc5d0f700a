// SPDX-License-Identifier: Apache-2.0
// Growing. A scratch store takes more of its device while it is open. A persistent store takes the
// rest of a place that became larger by grow_place(), while no other thread uses it.
//
//   before  │ super │ roots │ 0 .. n-1 │ roots │        the roots behind lie where segment n begins
//   after   │ super │ roots │ 0 .. n-1 │ n │ n+1 .. m-1 │ roots │
//
// Order of grow_place(): a state of m segments, outside the segments that the last state refers to
// and outside n; the new roots behind; one of the roots in front; the superblocks, one after the
// other; the other root in front. A crash before the first superblock leaves the old store, a later
// crash the new one. In both cases one front root does not count, and the open repairs it from its
// copy.
// Threading: as in store.h.
#include <errno.h>

#include <algorithm>
#include <new>

#include "base/format.h"
#include "kv/store.h"
#include "kv/store_head.h"
#include "sys/log.h"

namespace lunar::kv {

// The first `held` of the new segments are reserved.
int Log::add_segments(uint64_t more, uint64_t held) {
  const uint64_t count = count_;
  const int status =
      device_->reserve(DeviceOffset{device_offset_}, (count + more) << segment_bits_);
  if (status < 0) return status;
  for (uint64_t i = count; i < count + more; ++i) new (&segments_[i]) Segment;
  for (uint64_t i = count; i < count + held; ++i)
    segments_[i].state.store(SegmentState::kReserved, std::memory_order_relaxed);
  MutexLock guard(mutex_);
  count_.store(count + more, std::memory_order_release);
  free_.fetch_add(more - held, std::memory_order_relaxed);
  return 0;
}

int Log::grow(uint64_t segments) {
  constexpr uint64_t kAskAgainNs = 1'000'000'000;
  const uint64_t left = count_most_ - count_, quarter = count_ / 4;
  if (segments > left || sys::now_ns() < grow_again_at_) return -ENOSPC;
  int status = -ENOSPC;
  if (quarter > segments) status = add_segments(std::min(quarter, left), 0);
  if (status == -ENOSPC) status = add_segments(segments, 0);
  if (status < 0) grow_again_at_ = sys::now_ns() + kAskAgainNs;
  return status;
}

// If most of the log is live, cleaning costs more than taking free space of the device.
bool Store::grows_before_cleaning() const {
  return log_.may_grow() && log_.bytes_live() > log_.bytes() / 8 * 5;
}

// Returns -ENOSPC. Logs one line, the first time.
int Store::refuse_as_full() {
  if (full_said_.exchange(true, std::memory_order_relaxed)) return -ENOSPC;
  const char* advice =
      !device_      ? "give it more DRAM (LUNAR_KV_DRAM) or a larger size"
      : persistent_ ? "close it and make it larger (lunar kv grow)"
      : log_.may_grow()
          ? "end what else is on the device, which has no more space, or give a larger one"
          : "give a larger size (LUNAR_KV_SIZE) or device";
  log_warning("key/value store %s%s: full: %s of pairs in %s; delete pairs, or %s",
              device_ ? "on " : "in DRAM", device_ ? device_->name() : "",
              format_size(bytes_actual()).text, format_size(log_.bytes()).text, advice);
  return -ENOSPC;
}

int Store::grow_place() {
  if (!persistent_ || read_only_ || log_.commits()) return -EINVAL;
  const uint64_t around = media::kHeadBytes + media::kTailBytes, size = device_->size_bytes();
  const uint64_t log_bytes = std::min(size > around ? size - around : 0, kLogBytesMax);
  const uint64_t count = log_bytes >> super_.segment_bits;
  if (count <= log_.segments()) return -ENODATA;
  if (count > log_.segments_most()) return -ENOMEM;
  if (const int status = flush(); status < 0) return status;
  MutexLock guard(cleaning_);
  media::Superblock super = super_;
  super.segment_count = count;
  super.back_offset = media::kHeadBytes + (count << super.segment_bits);
  super.device_bytes = super.back_offset + media::kTailBytes;
  superblock_seal(&super);
  const uint64_t last = root_.sequence() % 2;  // the slot in front that counts until then
  int status = device_->reserve(DeviceOffset{0}, super.device_bytes);
  if (status == 0) status = log_.add_segments(count - log_.segments(), 1);
  if (status < 0) return status;
  root_.release();
  status = root_.prepare(device_, root_spec(super), {1, {super.back_offset}}, nullptr);
  if (status == 0) status = root_.format();
  if (status == 0) status = save();
  if (status == 0) status = root_.commit();  // the same again: both slots have it
  if (status == 0) status = root_copy_to_front(device_, super, 1 - last);
  if (status == 0) status = superblock_replace(device_, super);
  if (status == 0) status = root_copy_to_front(device_, super, last);
  if (status == 0) super_ = super;
  return status;
}

}  // namespace lunar::kv
