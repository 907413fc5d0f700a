// SPDX-License-Identifier: Apache-2.0
// Looks up the memory that a command reads of a value that it only frees. For a string that is the
// byte before its text, which says where the string's memory starts; for a collection, the pointers
// to its parts. The allocator itself does not read freed memory.
//
// Lists, hash tables, sets and sorted sets that the main thread frees are looked up, up to a bound.
// Values that UNLINK passes to another thread are not. Threading: as key_lookup.h.
#pragma once
#include "lookup_steps.h"

namespace lunar::redis {

// The memory that `command` needs of its key number `nth`: Wants::kObject, kValue, kFreed or
// kFreedLater.
Wants wants_of_key(const CommandKeys& keys, const Command& command, unsigned nth);

// Whether the command removes keys, or members that it names, from their table.
bool takes_out(const CommandKeys& keys, Wants wants);

// later: another thread frees large collections.
void look_up_freed(KeyLookup& lookup, const ObjectView& object, bool later);

}  // namespace lunar::redis
