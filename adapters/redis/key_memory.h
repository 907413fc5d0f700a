// SPDX-License-Identifier: Apache-2.0
// Finds the memory of a key's value. The open key leads to its object, and the object to its
// memory:
//   strings, and values in one piece (listpack, intset)   everything
//   hash tables, skip lists, quick lists, streams         the object and its top structure only:
//                                                         nodes and elements are not walked
// The module API does not include the server's structures. The two that are used here (an open key,
// an object) are checked at load on probes.
//
// Threading: the server's main thread. A lookup touches the dictionary entry of the key, as any
// command does, but not the value.
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
  unsigned count = 0, tiered = 0;       // pieces; tiered ones
};

// Checks the layouts. Called before the functions below. False: they are not known.
bool key_memory_check(Context* context);
bool key_memory_known();
KeyMemory key_memory(Context* context, String* name);

// Counts the bytes of the pages that the tiered pieces cover, and those of pages in DRAM.
void key_memory_resident(const KeyMemory& memory, uint64_t* bytes, uint64_t* resident);

// A value that is one block to which only its object points: it may be moved (compaction.h).
struct KeyBlock;
// The block of an open key. nullptr: its value is not one block, or others use it as well.
KeyBlock* key_memory_block(const String* name, Key* key);
// An address in the block; does not touch the value.
void* key_block_inside(const KeyBlock& block);
// The offset of that address from the block's start; reads the value. SIZE_MAX: it is not known.
size_t key_block_head(const KeyBlock& block);
// Sets that address after the block was moved.
void key_block_set(KeyBlock& block, void* inside);

}  // namespace lunar::redis
