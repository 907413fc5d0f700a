// SPDX-License-Identifier: Apache-2.0
// Reads the log in its order: see log_scan.h.
#include "kv/log_scan.h"

#include <errno.h>

#include <algorithm>
#include <new>

#include "sys/arena.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kBlockBytes = media::kBlockBytes, kShareOfBudget = 32, kShareMost = 8;
constexpr uint64_t kBucketsALock = 64;

}  // namespace

int LogScan::open(Store* store, unsigned marker, LogScan** out) {
  void* memory = map_private(sizeof(LogScan), ForkPolicy::kInherit);
  if (!memory) return -ENOMEM;
  auto* scan = new (memory) LogScan(store, marker);
  const int status = scan->prepare();
  if (status < 0)
    scan->close();
  else
    *out = scan;
  return status;
}

void LogScan::close() {
  store_->scans_[marker_].store(nullptr, std::memory_order_relaxed);
  if (context_) store_->device_->detach(context_);  // waits for what is being read
  if (memory_) unmap_private(memory_, slot_count_ * log_.segment_bytes());
  store_->budget_.give_back(charged_);
  unmap_private(this, sizeof(LogScan));
}

int LogScan::prepare() {
  const uint64_t segment = log_.segment_bytes(), limit = store_->budget_.limit();
  const uint64_t part = store_->device_->capabilities().transfer_bytes_max;
  if (2 * segment > limit / kShareMost || segment > part * kPartsMost) return -EOPNOTSUPP;
  slot_count_ =
      static_cast<unsigned>(std::clamp<uint64_t>(limit / kShareOfBudget / segment, 2, kSlotsMost));
  const uint64_t wanted = sizeof(LogScan) + slot_count_ * segment;
  if (!log_.take_memory(wanted)) return -ENOMEM;
  charged_ = wanted;
  memory_ = static_cast<char*>(map_private(slot_count_ * segment, ForkPolicy::kInherit));
  if (!memory_) return -ENOMEM;
  ContextOptions options;
  options.depth = static_cast<unsigned>(slot_count_ * ((segment + part - 1) / part));
  options.spin = false;
  options.shared = true;
  options.delegate = true;
  if (const int status = store_->device_->attach(options, &context_); status < 0) {
    context_ = nullptr;
    return status;
  }
  store_->scans_[marker_].store(context_, std::memory_order_relaxed);
  clear_marks();
  for (unsigned i = 0; i < slot_count_; ++i) {
    slots_[i].memory = memory_ + i * segment;
    begin(&slots_[i]);
  }
  return 0;
}

// Clears the marks that a former walk left. Buckets that splits add meanwhile come last.
void LogScan::clear_marks() {
  for (unsigned i = 0; i < 1u << store_->shard_bits_; ++i) {
    Shard& shard = store_->shards_[i];
    for (uint64_t number = 0, end = 1; number < end;) {
      MutexLock lock(shard.lock);
      end = shard.index.buckets();
      for (uint64_t last = std::min(number + kBucketsALock, end); number < last; ++number)
        shard.index.clear_marks(number, marker_);
    }
  }
}

bool LogScan::on_device_alone(uint64_t number) const {
  const SegmentState state = log_.state(number);
  return (state == SegmentState::kSealed || state == SegmentState::kDamaged) &&
         log_.live(number) != 0 && !log_.has_frame(number);
}

// Starts to read the next segment that is only on the device into a slot. After the last one the
// slot is no longer busy.
void LogScan::begin(Slot* slot) {
  slot->busy = slot->failed = false;
  while (next_segment_ < log_.segments() && !on_device_alone(next_segment_)) ++next_segment_;
  if (next_segment_ >= log_.segments()) return;
  const uint64_t number = next_segment_++, begin = number * log_.segment_bytes();
  slot->number = number;
  slot->life = log_.life(number);
  slot->used = std::min<uint64_t>(log_.used(number), log_.segment_bytes());
  slot->busy = true;
  const uint64_t bytes = round_up(slot->used, kBlockBytes);
  const uint64_t most = store_->device_->capabilities().transfer_bytes_max;
  Command commands[kPartsMost];
  unsigned parts = 0;
  for (uint64_t at = 0; at < bytes; at += most) {
    slot->parts[parts] = {slot->memory + at, std::min(most, bytes - at)};
    log_.read_command(begin + at, &slot->parts[parts], &commands[parts]);
    commands[parts].tag = static_cast<uint64_t>(slot - slots_) * kPartsMost + parts;
    ++parts;
  }
  const int taken = context_->submit(commands, parts);
  slot->left = taken > 0 ? static_cast<unsigned>(taken) : 0;
  slot->failed = slot->left != parts;
}

// Waits until a slot is read. False: the context cannot be used any more.
bool LogScan::wait_for(const Slot& slot) {
  while (slot.left != 0) {
    Response responses[kSlotsMost];
    const int count = context_->wait(responses, kSlotsMost, -1);
    if (count < 0 && count != -EINTR) return false;
    for (int i = 0; i < count; ++i) {
      Slot& one = slots_[responses[i].tag / kPartsMost];
      const iovec& part = one.parts[responses[i].tag % kPartsMost];
      if (responses[i].result != static_cast<int64_t>(part.iov_len)) one.failed = true;
      --one.left;
    }
  }
  return true;
}

// Takes the next records of a slot. The end of a damaged record is not known, so the rest of the
// slot is left out.
void LogScan::gather(const Slot& slot) {
  const uint64_t begin = slot.number * log_.segment_bytes();
  batch_at_ = batch_count_ = 0;
  while (at_ + sizeof(Record) <= slot.used && batch_count_ < kBatch) {
    const auto* record = reinterpret_cast<const Record*>(slot.memory + at_);
    if (!log_.sound(record, Address{(begin + at_) / kUnitBytes}, slot.life, slot.used - at_)) {
      at_ = slot.used;
      return;
    }
    at_ += record->span();
    const bool pair = record->type() == RecordType::kPair && !record->is_piece();
    if (!pair && (record->type() != RecordType::kLarge || record->pieces().hold_key)) continue;
    const uint64_t hash = store_->hash_of_record(record);
    store_->shard_of(hash).index.prefetch(hash);
    batch_[batch_count_++] = {record, hash};
  }
}

// Marks the entry of a record. An entry with its address leads to this record as long as the
// segment has not begun another life.
bool LogScan::take(const Found& found) {
  const Slot& slot = slots_[turn_];
  const auto at = static_cast<uint64_t>(reinterpret_cast<const char*>(found.record) - slot.memory);
  const Address address{(slot.number * log_.segment_bytes() + at) / kUnitBytes};
  Shard& shard = store_->shard_of(found.hash);
  MutexLock lock(shard.lock);
  return log_.life(slot.number) == slot.life && shard.index.mark(found.hash, address, marker_);
}

const Record* LogScan::next() {
  for (;;) {
    while (batch_at_ < batch_count_) {
      const Found& found = batch_[batch_at_++];
      if (take(found)) return found.record;
    }
    Slot& slot = slots_[turn_];
    if (opened_ && at_ + sizeof(Record) <= slot.used) {
      gather(slot);
      continue;
    }
    batch_at_ = batch_count_ = 0;
    if (opened_) {
      begin(&slot);
      turn_ = (turn_ + 1) % slot_count_;
    }
    const Slot& following = slots_[turn_];
    if (!following.busy || !wait_for(following)) return nullptr;
    opened_ = true;
    at_ = following.failed ? following.used : log_.first_at(following.number);
  }
}

}  // namespace lunar::kv
