// SPDX-License-Identifier: Apache-2.0
// Figures of this process in /proc/self/status. Threading: any.
#pragma once
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace lunar_test {

// "VmRSS", "RssAnon", ...: in KiB; 0 if there is none.
inline size_t status_kib(const char* field) {
  const size_t length = strlen(field);
  size_t kib = 0;
  char line[256];
  FILE* status = fopen("/proc/self/status", "r");
  while (status != nullptr && fgets(line, sizeof line, status) != nullptr)
    if (strncmp(line, field, length) == 0 && line[length] == ':')
      kib = strtoul(line + length + 1, nullptr, 10);
  if (status != nullptr) fclose(status);
  return kib;
}

}  // namespace lunar_test
