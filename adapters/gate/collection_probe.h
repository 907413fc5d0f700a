// SPDX-License-Identifier: Apache-2.0
// Checks that collections are laid out as the views of lookup_steps.h have them: it reads the first
// ones of each kind that a lookup meets by system calls that fail on a wild pointer, and facts
// stored in two places must agree. If one does not fit, lookups stay out of that kind (its object
// is still looked up), with one line in the log.
//
// Threading: any; the results are atomic. Allocates nothing. A probe may have to wait for a page, a
// few times in the life of a server.
#pragma once
#include "layout.h"

namespace lunar::redis {

constexpr unsigned kProbesEach = 8;

// Checks a collection once. True: it fits; also for anything that is none of those kinds.
[[nodiscard]] bool collection_fits(Keyspace keyspace, const ObjectView& object);
// The same, with the result remembered. pre: the object can be read.
bool collection_known(Keyspace keyspace, const ObjectView& object);

}  // namespace lunar::redis
