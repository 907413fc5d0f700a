// SPDX-License-Identifier: Apache-2.0
// The places of bodies: see body_table.h.
// Threading: as there.
#include "kv/body_table.h"

#include <sys/mman.h>

#include "sys/arena.h"
#include "sys/mem.h"

namespace lunar::kv {
namespace {

constexpr unsigned kBlockAt = kAddressBits, kBlocksAt = kBlockAt + 8, kUnitsAt = kBlocksAt + 3;
constexpr uint64_t kAddressMask = (uint64_t{1} << kAddressBits) - 1;

}  // namespace

void BodyTable::open(Budget* budget) {
  uint64_t most = sizeof(Line) << kBitsMin;
  while (most * 2 <= budget->limit() / kShareOfBudget) most *= 2;
  if (!budget->take(bytes())) return;
  lines_ = static_cast<Line*>(map_private(most, ForkPolicy::kInherit));
  if (!lines_) return budget->give_back(bytes());
  bytes_most_ = most;
  budget_ = budget;
}

void BodyTable::close() {
  if (lines_) unmap_private(lines_, bytes_most_);
  lines_ = nullptr;
}

BodyTable::Line& BodyTable::line_of(Address address, unsigned bits) const {
  const uint64_t hash = address.value * 0x9e3779b97f4a7c15;
  return lines_[hash >> 32 & ((uint64_t{1} << bits) - 1)];
}

BodyTable::Entry* BodyTable::entry_of(Line& line, Address address) {
  for (Entry& entry : line.entries)
    if ((entry.packed.load(std::memory_order_relaxed) & kAddressMask) == address.value)
      return &entry;
  return nullptr;
}

bool BodyTable::find(Address address, BodyPlace* out) {
  if (!lines_) return false;
  const unsigned bits = bits_.load(std::memory_order_relaxed);
  const Entry* entry = nullptr;
  unsigned at = bits + 1;
  while (!entry && at > kBitsMin) entry = entry_of(line_of(address, --at), address);
  if (!entry) return false;
  const uint64_t packed = entry->packed.load(std::memory_order_relaxed);
  out->checksum = entry->checksum.load(std::memory_order_relaxed);
  out->block = packed >> kBlockAt & 0xff;
  out->blocks = static_cast<uint32_t>(packed >> kBlocksAt & (kBlocksMost - 1)) + 1;
  out->units = static_cast<uint32_t>(packed >> kUnitsAt);
  if (at != bits) note(address, *out);
  return true;
}

void BodyTable::note(Address address, const BodyPlace& place) {
  if (!lines_ || place.blocks == 0 || place.blocks > kBlocksMost || place.units > kUnitsMost)
    return;
  Line& line = line_of(address, bits_.load(std::memory_order_relaxed));
  Entry* entry = entry_of(line, address);
  if (!entry) entry = entry_of(line, Address{});
  if (!entry) {
    entry = &line.entries[place.checksum % kEntries];
    pushed_out_.fetch_add(1, std::memory_order_relaxed);
  }
  entry->checksum.store(place.checksum, std::memory_order_relaxed);
  entry->packed.store(address.value | uint64_t{place.block} << kBlockAt |
                          (place.blocks - uint64_t{1}) << kBlocksAt |
                          uint64_t{place.units} << kUnitsAt,
                      std::memory_order_relaxed);
}

void BodyTable::forget(Address address) {
  if (!lines_) return;
  for (unsigned at = kBitsMin; at <= bits_.load(std::memory_order_relaxed); ++at)
    if (Entry* entry = entry_of(line_of(address, at), address))
      entry->packed.store(0, std::memory_order_relaxed);
}

bool BodyTable::grow() {
  const sys::Locked lock(lock_);
  if (!may_grow() || !budget_->take(bytes())) return false;
  bits_.fetch_add(1, std::memory_order_relaxed);
  pushed_out_.store(0, std::memory_order_relaxed);
  return true;
}

// A reader in the upper half finds only empty lines there from now on. For writers: see
// body_table.h.
bool BodyTable::shrink() {
  const sys::Locked lock(lock_);
  const unsigned bits = bits_.load(std::memory_order_relaxed);
  if (!lines_ || bits == kBitsMin) return false;
  bits_.store(bits - 1, std::memory_order_relaxed);
  pushed_out_.store(0, std::memory_order_relaxed);
  (void)sys::advise(lines_ + (uint64_t{1} << (bits - 1)), bytes(), MADV_DONTNEED);
  budget_->give_back(bytes());
  return true;
}

}  // namespace lunar::kv
