// SPDX-License-Identifier: Apache-2.0
// See block_queue.h.
#include "superpipe/block_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

#include <initializer_list>

#include "base/format.h"
#include "sys/file.h"

namespace lunar {

int64_t block_queue_value(uint64_t rdev, const char* attribute) {
  char path[160], text[64];
  for (const char* disk : {"", "/.."}) {
    format_to(path, sizeof path, "/sys/dev/block/%u:%u%s/queue/%s", major(rdev), minor(rdev), disk, attribute);
    if (sys::read_text(path, text, sizeof text) > 0) return strtoll(text, nullptr, 10);
  }
  return -ENOENT;
}

bool block_read_only(uint64_t rdev) {
  char path[96], text[8];
  format_to(path, sizeof path, "/sys/dev/block/%u:%u/ro", major(rdev), minor(rdev));
  return sys::read_text(path, text, sizeof text) > 0 && text[0] == '1';
}

}  // namespace lunar
