// SPDX-License-Identifier: Apache-2.0
// Checks that collections are laid out like the views of lookup_steps.h. It reads the first
// collections of each kind by a system call that fails on a wild pointer, and compares facts that
// are stored in two places. If one does not fit, lookups no longer enter collections of that kind
// (they still look up the object), and the log has one line.
//
// Threading: any; the results are atomic. Allocates nothing. A probe may have to wait for a page, a
// few times in the life of a server.
#pragma once
#include "layout.h"

namespace lunar::redis {

constexpr unsigned kProbesEach = 8;

// Checks a collection once. True: it fits, or is of none of those kinds.
[[nodiscard]] bool collection_fits(Keyspace keyspace, const ObjectView& object);
// The same, with the result remembered per kind. pre: the object can be read.
bool collection_known(Keyspace keyspace, const ObjectView& object);

}  // namespace lunar::redis
