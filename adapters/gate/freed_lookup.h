// SPDX-License-Identifier: Apache-2.0
// Looks up what a command reads of a value that it only frees: of a string the byte before its
// text, which tells where its memory starts; of a collection the pointers to the memory of its
// parts. The allocator itself reads nothing of freed memory.
//
// Lists, hash tables, sets and sorted sets are read up to a bound, as the main thread frees them;
// what UNLINK hands to another thread is not. Threading: as key_lookup.h.
#pragma once
#include "lookup_steps.h"

namespace lunar::redis {

// What `command` wants of its key number `nth`: Wants::kObject, kValue, kFreed or kFreedLater,
// never one that depends on other arguments.
Wants wants_of_key(const CommandKeys& keys, const Command& command, unsigned nth);

// Whether the command takes keys, or members that it names, out of their table.
bool takes_out(const CommandKeys& keys, Wants wants);

// later: a collection that is large is freed by another thread.
void look_up_freed(KeyLookup& lookup, const ObjectView& object, bool later);

}  // namespace lunar::redis
