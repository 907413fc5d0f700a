// SPDX-License-Identifier: Apache-2.0
// See key_memory.h.
#include "key_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "elf/program_got.h"
#include "gate/layout.h"
#include "sys/mem.h"
#include "tier.h"

namespace lunar::redis {
namespace {

// The head of an open key.
struct OpenKey {
  Context* context;
  void* database;
  const ObjectView* name;
  ObjectView* value;
};

// Encodings 3 and 4 are of servers older than those supported.
const char* const kEncodingNames[] = {"raw",     "int",       "hashtable", "unknown",
                                      "unknown", "ziplist",   "intset",    "skiplist",
                                      "embstr",  "quicklist", "stream",    "listpack"};
constexpr size_t kStringHeadMax = 17;  // header bytes of an sds string

bool g_known = false;
unsigned g_reference_bit = 0;              // the lowest bit of the reference count
size_t (*g_usable_size)(void*) = nullptr;  // the server's malloc_usable_size

void add(KeyMemory* memory, const void* address, size_t bytes) {
  if (address == nullptr || bytes == 0 || memory->count == kPiecesMax) return;
  bool tiered = tier().is_tiered(address) != 0;
  memory->pieces[memory->count++] = {address, bytes};
  if (!tiered) return;
  lunar_range& place = memory->pieces[memory->tiered++];
  lunar_range& last = memory->pieces[memory->count - 1];
  lunar_range swapped = place;
  place = last;
  last = swapped;
}

void add_block(KeyMemory* memory, const void* block) {
  add(memory, block, block == nullptr ? 0 : g_usable_size(const_cast<void*>(block)));
}

void describe(const ObjectView* object, KeyMemory* memory) {
  const unsigned encoding = object->encoding();
  memory->encoding = encoding < sizeof(kEncodingNames) / sizeof(kEncodingNames[0])
                         ? kEncodingNames[encoding]
                         : "unknown";
  add_block(memory, object);
  switch (encoding) {
    case kInt:
    case kEmbedded:
      memory->whole = true;
      break;
    case kRaw: {
      // The string's length lies in memory that must not be touched; the allocator knows the size
      // of the block.
      const char* text = object->pointer;
      add(memory, text - kStringHeadMax, g_usable_size(const_cast<char*>(text - 1)));
      memory->whole = true;
      break;
    }
    case kZiplist:
    case kIntset:
    case kListpack:
      add_block(memory, object->pointer);
      memory->whole = true;
      break;
    case kHashTable:
    case kSkiplist:
    case kQuicklist:
    case kStream:
      add_block(memory, object->pointer);
      break;
    default:
      break;  // the object only
  }
}

}  // namespace

bool key_memory_check(Context* context) {
  char probe[200];
  memset(probe, 'p', sizeof(probe));
  String* name = g_api.CreateString(context, "lunar:probe of a key that is not there", 38);
  String* value = g_api.CreateString(context, probe, sizeof(probe));
  const auto* object = reinterpret_cast<const ObjectView*>(value);
  size_t length = 0;
  g_usable_size = reinterpret_cast<size_t (*)(void*)>(program_calls("malloc_usable_size"));
  constexpr unsigned kValkeyBit = 2;
  g_reference_bit = object->references == 1 ? 0 : kValkeyBit;
  g_known = g_usable_size != nullptr && object->type() == kString && object->encoding() == kRaw &&
            object->references == 1u << g_reference_bit &&
            object->pointer == g_api.StringPtrLen(value, &length) && length == sizeof(probe);
  // A missing key has no handle when it is opened for reading. Opened for writing it has one, and
  // nothing is created.
  constexpr int kOpenWrite = 1 << 1;
  Key* key = g_known ? g_api.OpenKey(context, name, kOpenRead | kOpenWrite) : nullptr;
  const auto* open = reinterpret_cast<const OpenKey*>(key);
  g_known = key != nullptr && open->name == reinterpret_cast<const ObjectView*>(name) &&
            open->value == nullptr;
  if (key != nullptr) g_api.CloseKey(key);
  g_api.FreeString(context, value);
  g_api.FreeString(context, name);
  return g_known;
}

bool key_memory_known() { return g_known; }

KeyBlock* key_memory_block(const String* name, Key* key) {
  const auto* open = reinterpret_cast<const OpenKey*>(key);
  if (!g_known || open->name != reinterpret_cast<const ObjectView*>(name) || open->value == nullptr)
    return nullptr;
  const ObjectView& object = *open->value;
  const unsigned encoding = object.encoding();
  const bool string = object.type() == kString, raw = string && encoding == kRaw;
  const bool compact =
      !string && (encoding == kZiplist || encoding == kIntset || encoding == kListpack);
  if (object.references >> g_reference_bit != 1 || object.pointer == nullptr || !(raw || compact))
    return nullptr;
  return reinterpret_cast<KeyBlock*>(open->value);
}

void* key_block_inside(const KeyBlock& block) {
  return const_cast<char*>(reinterpret_cast<const ObjectView&>(block).pointer);
}

size_t key_block_head(const KeyBlock& block) {
  const auto& object = reinterpret_cast<const ObjectView&>(block);
  if (object.encoding() != kRaw) return 0;
  const unsigned head = sds_header(static_cast<uint8_t>(object.pointer[-1]));
  return head == 0 ? SIZE_MAX : head;
}

void key_block_set(KeyBlock& block, void* inside) {
  reinterpret_cast<ObjectView&>(block).pointer = static_cast<const char*>(inside);
}

KeyMemory key_memory(Context* context, String* name) {
  KeyMemory memory;
  Key* key = g_api.OpenKey(context, name, kOpenRead | kOpenNoTouch);
  if (key == nullptr) return memory;
  memory.found = true;
  const auto* open = reinterpret_cast<const OpenKey*>(key);
  if (g_known && open->value != nullptr) describe(open->value, &memory);
  g_api.CloseKey(key);
  return memory;
}

void key_memory_resident(const KeyMemory& memory, uint64_t* bytes, uint64_t* resident) {
  const size_t page = sys::page_bytes();
  *bytes = *resident = 0;
  lunar_range pieces[kPiecesMax];
  std::copy_n(memory.pieces, memory.tiered, pieces);
  for (unsigned i = 0; i < memory.tiered; ++i)  // in the order of addresses
    for (unsigned j = i + 1; j < memory.tiered; ++j)
      if (pieces[j].address < pieces[i].address) std::swap(pieces[i], pieces[j]);
  uintptr_t counted = 0;  // end of the pages counted so far: pieces may share one
  for (unsigned i = 0; i < memory.tiered; ++i) {
    const auto first = reinterpret_cast<uintptr_t>(pieces[i].address);
    const uintptr_t start = std::max(first / page * page, counted),
                    end = std::max(round_up(first + pieces[i].bytes, page), start);
    counted = end;
    uint8_t present[256];
    for (uintptr_t at = start; at < end;) {
      size_t pages = (end - at) / page < sizeof(present) ? (end - at) / page : sizeof(present);
      if (sys::present_pages(reinterpret_cast<const void*>(at), pages, present) < 0) return;
      for (size_t p = 0; p < pages; ++p) *resident += present[p] != 0 ? page : 0;
      *bytes += pages * page;
      at += pages * page;
    }
  }
}

}  // namespace lunar::redis
