// SPDX-License-Identifier: Apache-2.0
// The memory of a device object, followed by the texts that it keeps: one private mapping, which is
// unmapped when the device closes. A program opens and closes devices as often as it likes, and the
// arena never frees anything.
//
//   { total bytes | the object | texts }
//
// Threading: open and close, any thread. Not for the fault path.
#pragma once
#include <cstddef>
#include <cstring>
#include <new>

#include "base/units.h"
#include "sys/arena.h"

namespace lunar {

constexpr size_t kDeviceHead = 64;

// *texts: room for `text_bytes` zero bytes. nullptr: no memory.
template <class Kind>
[[nodiscard]] Kind* device_new(size_t text_bytes, char** texts) {
  const size_t object = kDeviceHead + round_up(sizeof(Kind), 64), bytes = object + text_bytes;
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return nullptr;
  memcpy(memory, &bytes, sizeof bytes);
  *texts = memory + object;
  return new (memory + kDeviceHead) Kind;
}

// The same, with a copy of the device's name in *kept.
template <class Kind>
[[nodiscard]] Kind* device_new(const char* name, const char** kept) {
  char* texts = nullptr;
  const size_t length = strlen(name) + 1;
  Kind* device = device_new<Kind>(length, &texts);
  if (device) *kept = static_cast<const char*>(memcpy(texts, name, length));
  return device;
}

// `device`: as returned by device_new() (close() of a kind passes `this`), or nullptr. Its
// resources must be released before.
inline void device_free(void* device) {
  if (!device) return;
  char* memory = static_cast<char*>(device) - kDeviceHead;
  size_t bytes;
  memcpy(&bytes, memory, sizeof bytes);
  unmap_private(memory, bytes);
}

}  // namespace lunar
