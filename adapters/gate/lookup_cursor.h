// SPDX-License-Identifier: Apache-2.0
// The progress of the lookup of a command's values (value_lookup.h), kept between two looks as
// numbers, never as addresses.
#pragma once
#include <cstdint>

namespace lunar::redis {

struct LookupCursor {
  unsigned key = 0;           // the number of the command's keys that are done
  uint64_t at = 0;            // resident buckets, list nodes or listpacks of the next key's value
  unsigned char id[16] = {};  // stream: the id of the last of these listpacks
  uint64_t bytes = 0, bytes_max = UINT64_MAX;  // requested so far for the command; the limit
  unsigned idle = 0;                           // looks that ended early with nothing missing
  bool counted = false;                        // counted as cold already, or must not be counted
  // Whether this is a long lookup: it has made progress in values, or has requested more than a
  // lookup of keys does.
  bool far() const { return key != 0 || at != 0 || bytes > 64 << 10; }
  bool begun() const { return bytes != 0 || at != 0 || key != 0; }
};

}  // namespace lunar::redis
