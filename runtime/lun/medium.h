// SPDX-License-Identifier: Apache-2.0
// Whether two devices are one.
// Threading: blocking, any thread. Not for the fault path.
#pragma once
#include "superpipe/device.h"

namespace lunar {

// Whether they share a file, a device node or a simulated memory; any of theirs, when they consist of several.
bool same_medium(Device* a, Device* b);

}  // namespace lunar
