// SPDX-License-Identifier: Apache-2.0
// Where the value of a key lies. From the open key comes its object; from the object its memory:
//   strings, and values in one piece (listpack, intset)   everything
//   hash tables, skip lists, quick lists, streams         the object and its top structure only:
//                                                         nodes and elements are not walked
// The server's structures are not part of the module API: the two used (an open key, an object) are
// checked at load on probes.
//
// Threading: the server's main thread. Looking a key up touches its dictionary entry, as any
// command does; the value itself is not touched.
#pragma once
#include <cstdint>

#include "lunar/lunar.h"
#include "module_abi.h"

namespace lunar::redis {

constexpr unsigned kPiecesMax = 3;

struct KeyMemory {
  bool found = false;  // the key exists
  bool whole = false;  // the pieces are the whole value
  const char* encoding = "";
  lunar_range pieces[kPiecesMax] = {};  // tiered pieces first
  unsigned count = 0, tiered = 0;       // tiered: how many of them are
};

// Whether the layouts are what they must be. pre: before the others.
bool key_memory_check(Context* context);
bool key_memory_known();
KeyMemory key_memory(Context* context, String* name);

// Pages of the tiered pieces: bytes they cover, and how many of these are in DRAM.
void key_memory_resident(const KeyMemory& memory, uint64_t* bytes, uint64_t* resident);

// A value that is one block, which its object alone points to: it may be moved (compaction.h).
struct KeyBlock;
// an open key's. nullptr: its value is something else, or others use it too
KeyBlock* key_memory_block(const String* name, Key* key);
void* key_block_inside(const KeyBlock& block);  // some address in it; the value is not touched
// how far that is behind its start: reads it. SIZE_MAX: no such block
size_t key_block_head(const KeyBlock& block);
void key_block_set(KeyBlock& block, void* inside);  // where that address is now

}  // namespace lunar::redis
