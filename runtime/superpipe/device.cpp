// SPDX-License-Identifier: Apache-2.0
// Default implementations of Context, and names of capabilities.
// Threading: as device.h says.
#include "superpipe/device.h"

#include <errno.h>

#include "superpipe/wakeups.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kLookNs = 20'000;

}  // namespace

int Context::exchange(const Command* commands, unsigned n, unsigned* taken, Response* out,
                      unsigned max, unsigned least, int64_t timeout_ns) {
  const int submitted = n ? submit(commands, n) : 0;
  *taken = submitted > 0 ? static_cast<unsigned>(submitted) : 0;
  if (submitted < 0 && submitted != -EAGAIN) return submitted;
  if (least > max) least = max;
  const sys::TimeLimit limit(timeout_ns);
  unsigned got = 0;
  do {
    const int64_t left = limit.left();
    const int status = got < least ? wait(out + got, max - got, left) : reap(out + got, max - got);
    if (status < 0) return got ? static_cast<int>(got) : status;
    if (status == 0) break;  // the timeout, or no command is in flight
    got += static_cast<unsigned>(status);
  } while (got < least);
  return static_cast<int>(got);
}

// By default the waiting thread polls the context.
void Context::wakeups(Wakeups* out) { out->look_at(sys::now_ns() + kLookNs); }

const char* fua_text(Fua fua) {
  switch (fua) {
    case Fua::kFree:
      return "free";
    case Fua::kWriteThrough:
      return "write-through";
    case Fua::kFlush:
      return "flush";
  }
  return "";
}

}  // namespace lunar
