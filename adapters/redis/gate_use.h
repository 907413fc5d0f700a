// SPDX-License-Identifier: Apache-2.0
// The input gate as the module sees it; an open gate where a build has none. Threading: see gate.h.
#pragma once
#if __has_include("gate.h")
#include "gate.h"
#else
#include <errno.h>

#include <cstdint>

#include "base/error.h"

namespace lunar::redis {

struct GateOptions {};
struct GateCounters {
  bool open = true;
  uint64_t overlapped_reads = 0;
};
inline int gate_start(const GateOptions&, ErrorText* why) { return why->set(-ENOSYS, "this build has none"); }
inline GateCounters gate_counters() { return {}; }

}  // namespace lunar::redis
#endif
