// SPDX-License-Identifier: Apache-2.0
// See usable_memory.h.
#include "sys/usable_memory.h"

#include <string.h>

#include <algorithm>
#include <initializer_list>

#include "base/format.h"
#include "base/units.h"
#include "sys/file.h"
#include "sys/proc.h"

namespace lunar::sys {
namespace {

// In version 1 the limit of a group without one is a number near 2^63.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;
constexpr size_t kDirectorySize = 768;

bool has_word(const char* list, const char* word) {
  constexpr char kBetween[] = ", \n";
  for (const char* at = list + strspn(list, kBetween); *at != 0; at += strspn(at, kBetween)) {
    const size_t length = strcspn(at, kBetween);
    if (length == strlen(word) && memcmp(at, word, length) == 0) return true;
    at += length;
  }
  return false;
}

// Reads a file that consists of one number. False also for "max".
bool read_number(const char* directory, const char* name, uint64_t* out) {
  char path[kDirectorySize + 32], text[32];
  format_to(path, sizeof path, "%s/%s", directory, name);
  return read_text(path, text, sizeof text) > 0 && parse_digits(text, out) != nullptr;
}

// A line of mountinfo: ID PARENT MAJOR:MINOR ROOT MOUNT OPTIONS... - TYPE SOURCE SUPEROPTIONS
void read_mount(char* line, MemoryHierarchy* out) {
  char* after = strstr(line, " - ");
  if (after == nullptr) return;
  *after = 0;
  after += 3;
  const char *type = strsep(&after, " "), *source = strsep(&after, " ");
  const bool first = strcmp(type, "cgroup") == 0;
  if (source == nullptr || after == nullptr || (!first && strcmp(type, "cgroup2") != 0)) return;
  const char* words[5] = {};
  for (const char*& word : words) word = strsep(&line, " ");
  if (words[4] == nullptr) return;
  char path[320], text[256];
  const char* controllers = after;
  if (!first) {
    format_to(path, sizeof path, "%s/cgroup.controllers", words[4]);
    controllers = out->version == 0 && read_text(path, text, sizeof text) > 0 ? text : "";
  }
  if (!has_word(controllers, "memory")) return;
  out->version = first ? 1 : 2;
  format_to(out->root, sizeof out->root, "%s", words[3]);
  format_to(out->mount, sizeof out->mount, "%s", words[4]);
}

// The process' group below the root of the hierarchy, from "9:memory:/a/b" or "0::/a/b".
void own_group(const char* process, const MemoryHierarchy& hierarchy, char* group, size_t size) {
  char path[320], line[kDirectorySize];
  format_to(path, sizeof path, "%s/cgroup", process);
  *group = 0;
  (void)each_line(path, line, sizeof line, [&](char* at) {
    (void)strsep(&at, ":");
    const char* controllers = strsep(&at, ":");
    if (at == nullptr ||
        !(hierarchy.version == 1 ? has_word(controllers, "memory") : *controllers == 0))
      return true;
    const size_t root = strcmp(hierarchy.root, "/") == 0 ? 0 : strlen(hierarchy.root);
    const bool below = strncmp(at, hierarchy.root, root) == 0 && (at[root] == '/' || at[root] == 0);
    const char* name = below ? at + root : at;
    format_to(group, size, "%s", strcmp(name, "/") == 0 ? "" : name);
    return false;
  });
}

// The page cache of the group and of those below it.
uint64_t page_cache(const char* directory, bool second) {
  char path[kDirectorySize + 32], line[64];
  format_to(path, sizeof path, "%s/memory.stat", directory);
  uint64_t sum = 0;
  (void)each_line(path, line, sizeof line, [&](const char* at) {
    if (!second && strncmp(at, "total_", 6) != 0) return true;
    if (!second) at += 6;
    for (const char* key : {"active_file ", "inactive_file "}) {
      const size_t length = strlen(key);
      uint64_t bytes = 0;
      if (strncmp(at, key, length) == 0 && parse_digits(at + length, &bytes) != nullptr)
        sum += bytes;
    }
    return true;
  });
  return sum;
}

void count_group(const char* directory, UsableMemory* out) {
  const bool second = out->cgroup_version == 2;
  const char* limit_name = second ? "memory.max" : "memory.limit_in_bytes";
  uint64_t limit = 0, used = 0;
  if (!read_number(directory, limit_name, &limit) || limit >= kNoLimit) return;
  (void)read_number(directory, second ? "memory.current" : "memory.usage_in_bytes", &used);
  used -= std::min(used, page_cache(directory, second));
  out->bytes = std::min(out->bytes, limit - std::min(limit, used));
  if (limit >= out->limit_bytes) return;
  out->limit_bytes = limit;
  out->used_bytes = used;
  format_to(out->limit_file, sizeof out->limit_file, "%s/%s", directory, limit_name);
}

}  // namespace

MemoryHierarchy memory_hierarchy(const char* process) {
  MemoryHierarchy out;
  char path[320], line[1024];
  format_to(path, sizeof path, "%s/mountinfo", process);
  (void)each_line(path, line, sizeof line, [&](char* text) {
    read_mount(text, &out);
    return out.version != 1;
  });
  return out;
}

UsableMemory usable_memory(const char* process) {
  UsableMemory out;
  out.bytes = machine_memory_bytes("MemAvailable");
  const MemoryHierarchy hierarchy = memory_hierarchy(process);
  out.cgroup_version = hierarchy.version;
  if (hierarchy.version == 0) return out;
  char group[512], directory[kDirectorySize];
  own_group(process, hierarchy, group, sizeof group);
  format_to(directory, sizeof directory, "%s%s", hierarchy.mount, group);
  struct stat status;
  char* const mount_end = directory + strlen(hierarchy.mount);
  // The group is outside of what this process sees; the visible root is its own group.
  if (path_status(directory, &status) != 0) *mount_end = 0;
  for (;;) {
    count_group(directory, &out);
    char* slash = strrchr(directory, '/');
    if (slash == nullptr || slash < mount_end) return out;
    *slash = 0;
  }
}

}  // namespace lunar::sys
