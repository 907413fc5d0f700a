// SPDX-License-Identifier: Apache-2.0
// The cluster slot of a key: CRC-16 (XMODEM) of the key, or of the part between its first `{` and
// the next `}`, modulo 16384.
// Threading: none; constant data.
#pragma once
#include <cstdint>

#include "resp.h"

namespace lunar::redis {

unsigned key_slot(Slice key);

}  // namespace lunar::redis
