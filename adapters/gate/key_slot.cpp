// SPDX-License-Identifier: Apache-2.0
// See key_slot.h.
#include "key_slot.h"

#include <array>
#include <cstring>

namespace lunar::redis {
namespace {

constexpr std::array<uint16_t, 256> kTable = [] {
  std::array<uint16_t, 256> table{};
  for (unsigned i = 0; i < 256; ++i) {
    unsigned crc = i << 8;
    for (int bit = 0; bit < 8; ++bit) crc = crc << 1 ^ ((crc & 0x8000) != 0 ? 0x1021 : 0);
    table[i] = static_cast<uint16_t>(crc);
  }
  return table;
}();

}  // namespace

unsigned key_slot(Slice key) {
  const char* open = static_cast<const char*>(memchr(key.data, '{', key.bytes));
  if (open != nullptr) {
    const size_t behind = key.bytes - static_cast<size_t>(open + 1 - key.data);
    const char* close = static_cast<const char*>(memchr(open + 1, '}', behind));
    if (close != nullptr && close != open + 1)
      key = {open + 1, static_cast<size_t>(close - open - 1)};
  }
  unsigned crc = 0;
  for (size_t i = 0; i < key.bytes; ++i)
    crc = (crc << 8 & 0xFFFF) ^ kTable[(crc >> 8 ^ static_cast<unsigned char>(key.data[i])) & 255];
  return crc & 16383;
}

}  // namespace lunar::redis
