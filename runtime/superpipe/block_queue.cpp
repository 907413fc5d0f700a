// SPDX-License-Identifier: Apache-2.0
// See block_queue.h.
#include "superpipe/block_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include <atomic>
#include <initializer_list>

#include "base/format.h"
#include "sys/file.h"

namespace lunar {

int64_t block_queue_value(uint64_t rdev, const char* attribute) {
  char path[160], text[64];
  for (const char* disk : {"", "/.."}) {
    format_to(path, sizeof path, "/sys/dev/block/%u:%u%s/queue/%s", major(rdev), minor(rdev), disk,
              attribute);
    if (sys::read_text(path, text, sizeof text) > 0) return strtoll(text, nullptr, 10);
  }
  return -ENOENT;
}

namespace {

Fua ask_fua(uint64_t rdev) {
  char path[160], text[32];
  for (const char* disk : {"", "/.."}) {
    format_to(path, sizeof path, "/sys/dev/block/%u:%u%s/queue/write_cache", major(rdev),
              minor(rdev), disk);
    if (sys::read_text(path, text, sizeof text) <= 0) continue;
    if (strncmp(text, "write through", 13) == 0) return Fua::kFree;
    return block_queue_value(rdev, "fua") > 0 ? Fua::kWriteThrough : Fua::kFlush;
  }
  return Fua::kFlush;
}

}  // namespace

// Each open calls this, mostly for the same disk, so the last answer is cached.
Fua block_fua(uint64_t rdev) {
  static std::atomic<uint64_t> last{UINT64_MAX};  // number and answer
  const uint64_t known = last.load(std::memory_order_relaxed);
  if (known >> 2 == rdev) return static_cast<Fua>(known & 3);
  const Fua fua = ask_fua(rdev);
  last.store(rdev << 2 | static_cast<uint64_t>(fua), std::memory_order_relaxed);
  return fua;
}

bool block_read_only(uint64_t rdev) {
  char path[96], text[8];
  format_to(path, sizeof path, "/sys/dev/block/%u:%u/ro", major(rdev), minor(rdev));
  return sys::read_text(path, text, sizeof text) > 0 && text[0] == '1';
}

}  // namespace lunar
