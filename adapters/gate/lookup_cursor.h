// SPDX-License-Identifier: Apache-2.0
// The progress of the lookup of a command's values (value_lookup.h) between two looks: numbers,
// never addresses.
#pragma once
#include <cstdint>

namespace lunar::redis {

struct LookupCursor {
  unsigned key = 0;           // of the command's keys: those before are done
  uint64_t at = 0;            // buckets, list nodes, listpacks of its value that were resident
  unsigned char id[16] = {};  // stream: of the last of these
  uint64_t bytes = 0, bytes_max = UINT64_MAX;  // requested so far for the command; the limit
  unsigned idle = 0;     // looks that found nothing missing, and were too short
  bool counted = false;  // counted as one for which something was missing, or not to be counted
  // A long lookup: it has made progress, or has requested more than a lookup does that does not go
  // through values.
  bool far() const { return key != 0 || at != 0 || bytes > 64 << 10; }
  bool begun() const { return bytes != 0 || at != 0 || key != 0; }
};

}  // namespace lunar::redis
