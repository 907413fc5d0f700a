// SPDX-License-Identifier: Apache-2.0
// How far the lookup of a command's values (value_lookup.h) is, between two looks at it: numbers, never addresses.
#pragma once
#include <cstdint>

namespace lunar::redis {

struct LookupCursor {
  unsigned key = 0;                            // of the command's keys: those before are done
  uint64_t at = 0;                             // buckets, list nodes, listpacks of its value that were resident
  unsigned char id[16] = {};                   // stream: of the last of these
  uint64_t bytes = 0, bytes_max = UINT64_MAX;  // asked for so far, for the command; where it ends
  unsigned idle = 0;                           // looks that found nothing missing, and were too short
  bool counted = false;                        // as one for which something was missing, or it is not counted at all
  // A long lookup: it has got somewhere, or has asked for more than one that does not go through values does.
  bool far() const { return key != 0 || at != 0 || bytes > 64 << 10; }
  bool begun() const { return bytes != 0 || at != 0 || key != 0; }
};

}  // namespace lunar::redis
