// SPDX-License-Identifier: Apache-2.0
// The one instance of the counters.
#include "stats/counters.h"

namespace lunar {

Counters& counters() {
  static constinit Counters instance;
  return instance;
}

}  // namespace lunar
