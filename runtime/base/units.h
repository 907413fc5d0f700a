// SPDX-License-Identifier: Apache-2.0
// Units and the strong number types of the runtime: page numbers, slots and device offsets cannot
// be mixed.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>

namespace lunar {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB, kTiB = 1024 * kGiB;

// A number that only mixes with its own kind.
template <class Tag, class Rep>
struct StrongNumber {
  Rep value{};
  constexpr StrongNumber() = default;
  constexpr explicit StrongNumber(Rep v) : value(v) {}
  constexpr auto operator<=>(const StrongNumber&) const = default;
};

// page within a region, from its start
using PageIndex = StrongNumber<struct PageIndexTag, uint64_t>;
using Slot = StrongNumber<struct SlotTag, uint32_t>;  // page-sized place on a virtual LUN
// bytes from the start of a device
using DeviceOffset = StrongNumber<struct DeviceOffsetTag, uint64_t>;

constexpr Slot kNoSlot{UINT32_MAX};

// Parses "512", "64k", "256M", "1.5g", "2t" (powers of 1024; an optional trailing "b" or "ib", any
// case). Returns 0; -EINVAL for anything else, -ERANGE above 2^63-1. `*bytes` is untouched on
// failure.
[[nodiscard]] int parse_size(const char* text, uint64_t* bytes);
// Parses the first `length` letters of `text`.
[[nodiscard]] int parse_size(const char* text, size_t length, uint64_t* bytes);

// "700:1:2424164": exactly `count` decimal numbers, colons between them. False for anything else
// (also numbers above 2^64-1); `out` is then undefined. text: may be nullptr.
[[nodiscard]] bool parse_numbers(const char* text, uint64_t* out, unsigned count);
// Parses the decimal number that begins at `p` and returns its end; nullptr: there is none, or it
// is above 2^64-1.
[[nodiscard]] const char* parse_digits(const char* p, uint64_t* out);

// "1.5 GiB", "512 B": at most 12 characters and a NUL; rounded to a tenth of the unit.
struct SizeText {
  char text[16];
};
SizeText format_size(uint64_t bytes);

constexpr uint64_t round_up(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}
constexpr uint64_t round_down(uint64_t value, uint64_t step) { return value / step * step; }

}  // namespace lunar
