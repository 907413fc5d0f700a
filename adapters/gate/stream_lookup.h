// SPDX-License-Identifier: Apache-2.0
// Looks up streams: a radix tree from ids (16 bytes, the high one first) to listpacks of entries.
//
//   stream ─► radix tree ─► node: flags and size, bytes of the key, padding, children, value
//
// The layout is trusted after a check: a tree that the server itself has made (raxNew, raxInsert,
// streamNew) must return the values that were put in. Without that, only the top level of a stream
// is looked up.
//
// Threading: as key_lookup.h. The check allocates with the server's malloc.
#pragma once
#include "lookup_steps.h"

namespace lunar::redis {

struct RaxView {
  const unsigned char* head;
  uint64_t elements, nodes;
};
struct StreamView {
  const RaxView* tree;
  uint64_t length;
};
class ValueLookup;

// Called once, on the main thread inside read().
void stream_lookup_check();
// Looks up the part of the stream that the command reads. True: it is in DRAM, or is left to
// faults. cursor->at: the number of listpacks that need not be checked again.
bool stream_lookup(ValueLookup& whole, KeyLookup& lookup, const StreamView* stream,
                   const Command& command, const CommandKeys& keys, unsigned argument,
                   LookupCursor* cursor);

}  // namespace lunar::redis
