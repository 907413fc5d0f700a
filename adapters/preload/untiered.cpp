// SPDX-License-Identifier: Apache-2.0
// Logs once, when the process ends, how much anonymous memory in DRAM is outside the tier, and of what kind. From
// /proc/self/smaps, whose cost is that of the page tables (milliseconds a GiB).
//
// Threading: whichever thread ends the process, also in a signal handler's _exit: allocates nothing, reads through a
// small buffer.
#include "untiered.h"

#include <errno.h>
#include <string.h>

#include "base/format.h"
#include "base/units.h"
#include "pager/pager.h"
#include "sys/file.h"
#include "tiered_maps.h"

namespace lunar::preload {
namespace {

constexpr unsigned kMappingsMax = 65536;  // of a process that has more, the first ones

uint64_t number(const char** at, int base) {
  uint64_t value = 0;
  for (;; ++*at) {
    const char c = **at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
    if (digit >= base) return value;
    value = value * static_cast<unsigned>(base) + static_cast<unsigned>(digit);
  }
}

// Where the anonymous pages of a mapping count, by its first line in smaps:
// "start-end perms offset device inode   path".
uint64_t* place_of(UntieredMemory* memory, const char* line) {
  const char* at = line;
  const uint64_t start = number(&at, 16), end = *at == '-' ? number(&++at, 16) : 0;
  if (end <= start) return nullptr;
  if (region_find(reinterpret_cast<void*>(start)) != nullptr) return &memory->tiered_bytes;
  const char* path = strpbrk(at, "/[");
  if (path == nullptr) return end - start < kMapBytesMin ? &memory->small_map_bytes : &memory->large_map_bytes;
  if (strncmp(path, "[heap]", 6) == 0) return &memory->brk_bytes;
  if (strncmp(path, "/dev/zero", 9) == 0) return nullptr;                  // the runtime's own, part of the budget
  return path[0] == '/' ? &memory->file_bytes : &memory->large_map_bytes;  // [stack], [anon:...]
}

}  // namespace

int untiered_memory(UntieredMemory* out) {
  *out = {};
  char line[128];
  uint64_t* place = nullptr;
  unsigned mappings = 0;
  const int rc = sys::each_line("/proc/self/smaps", line, sizeof line, [&](const char* text) {
    if (strncmp(text, "Anonymous:", 10) == 0) {
      const char* at = text + 10 + strspn(text + 10, " ");
      if (place != nullptr) *place += number(&at, 10) * 1024;
    } else if ((text[0] >= '0' && text[0] <= '9') || (text[0] >= 'a' && text[0] <= 'f')) {
      if (mappings == kMappingsMax) return false;
      place = place_of(out, text);
      ++mappings;
    }
    return true;
  });
  if (mappings != 0) return 0;
  return rc < 0 ? rc : -EIO;
}

void untiered_describe(const UntieredMemory& memory, char* out, size_t size) {
  format_to(out, size,
            "%s of %s of anonymous memory in DRAM were outside the tier (brk %s, maps below 256 KiB %s, larger maps "
            "and stacks %s, data of files %s)",
            format_size(memory.outside_bytes()).text, format_size(memory.outside_bytes() + memory.tiered_bytes).text,
            format_size(memory.brk_bytes).text, format_size(memory.small_map_bytes).text,
            format_size(memory.large_map_bytes).text, format_size(memory.file_bytes).text);
}

}  // namespace lunar::preload
