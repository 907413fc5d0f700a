// SPDX-License-Identifier: Apache-2.0
// Counts the anonymous memory in DRAM outside the tier, by kind: all of /proc/self/smaps except for
// the pager's memory. The cost is a walk of the page tables (milliseconds per GiB).
//
// Threading: the thread that ends the process, also in a signal handler's _exit: allocates nothing,
// reads through a small buffer.
#include "untiered.h"

#include <errno.h>
#include <string.h>

#include "base/format.h"
#include "base/units.h"
#include "pager/pager.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/mem.h"

namespace lunar::preload {
namespace {

constexpr unsigned kMappingsMax = 65536;  // further mappings are not counted

uint64_t number(const char** at, int base) {
  uint64_t value = 0;
  for (;; ++*at) {
    const char c = **at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
    if (digit >= base) return value;
    value = value * static_cast<unsigned>(base) + static_cast<unsigned>(digit);
  }
}

// A mapping in smaps, and the figure that counts its anonymous pages outside of the tier.
struct SmapsMapping {
  char* begin = nullptr;
  char* end = nullptr;
  uint64_t* outside = nullptr;  // nullptr: not counted
};

// Reads the first line of a mapping: "start-end perms offset device inode path". Private maps of
// /dev/zero are anonymous memory.
SmapsMapping mapping_of(UntieredMemory* memory, const char* line) {
  const char* at = line;
  const uint64_t start = number(&at, 16), end = *at == '-' ? number(&++at, 16) : 0;
  if (end <= start) return {};
  const char* path = strpbrk(at, "/[");
  at += strnlen(at, strlen(" rwxp "));
  const bool own = number(&at, 16) >> kOwnMapsShift == kOwnMapsMark;  // part of the budget
  uint64_t* outside = &memory->map_bytes;                             // [stack], [anon:...]
  if (path != nullptr && strncmp(path, "[heap]", 6) == 0) outside = &memory->brk_bytes;
  if (path != nullptr && path[0] == '/' && strncmp(path, "/dev/zero", 9) != 0)
    outside = &memory->file_bytes;
  return {reinterpret_cast<char*>(start), reinterpret_cast<char*>(end), own ? nullptr : outside};
}

uint64_t present_bytes(const char* begin, const char* end) {
  const size_t page = sys::page_bytes();
  uint8_t present[256];
  uint64_t pages = 0;
  for (size_t n; begin < end; begin += n * page) {
    n = static_cast<size_t>(end - begin) / page;
    if (n > sizeof present) n = sizeof present;
    if (sys::present_pages(begin, n, present) < 0) return pages * page;
    for (size_t i = 0; i < n; ++i) pages += present[i] != 0;
  }
  return pages * page;
}

// The kernel shows tiered memory and memory next to it as one mapping where they are alike.
void count_anonymous(UntieredMemory* memory, const SmapsMapping& mapping, uint64_t bytes) {
  uint64_t outside = 0;
  bool tiered = false;
  for (char *at = mapping.begin, *stop; at < mapping.end; at = stop) {
    stop = region_boundary(at, mapping.end);
    if (region_find(at) != nullptr)
      tiered = true;
    else
      outside += at == mapping.begin && stop == mapping.end ? bytes : present_bytes(at, stop);
  }
  if (outside > bytes || !tiered) outside = bytes;
  if (mapping.outside != nullptr) *mapping.outside += outside;
  memory->tiered_bytes += bytes - outside;
}

}  // namespace

int untiered_memory(UntieredMemory* out) {
  *out = {};
  char line[128];
  SmapsMapping mapping;
  unsigned mappings = 0;
  const int rc = sys::each_line("/proc/self/smaps", line, sizeof line, [&](const char* text) {
    if (strncmp(text, "Anonymous:", 10) == 0) {
      const char* at = text + 10 + strspn(text + 10, " ");
      if (const uint64_t bytes = number(&at, 10) * 1024; bytes != 0)
        count_anonymous(out, mapping, bytes);
    } else if ((text[0] >= '0' && text[0] <= '9') || (text[0] >= 'a' && text[0] <= 'f')) {
      if (mappings == kMappingsMax) return false;
      mapping = mapping_of(out, text);
      ++mappings;
    }
    return true;
  });
  if (mappings != 0) return 0;
  return rc < 0 ? rc : -EIO;
}

void untiered_describe(const UntieredMemory& memory, char* out, size_t size) {
  format_to(out, size,
            "%s of %s of anonymous memory in DRAM were outside the tier (brk %s, maps and stacks "
            "%s, data of files %s)",
            format_size(memory.outside_bytes()).text,
            format_size(memory.outside_bytes() + memory.tiered_bytes).text,
            format_size(memory.brk_bytes).text, format_size(memory.map_bytes).text,
            format_size(memory.file_bytes).text);
}

}  // namespace lunar::preload
