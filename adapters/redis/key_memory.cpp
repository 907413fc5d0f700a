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

// The head of an object (robj).
struct Object {
  unsigned type : 4, encoding : 4, lru : 24;
  unsigned references;  // Valkey: above two bits that say what follows the object
  void* value;
};
// The head of an open key.
struct OpenKey {
  Context* context;
  void* database;
  Object* name;
  Object* value;
};

enum Encoding : unsigned {
  kRaw = 0,
  kInteger = 1,
  kHashTable = 2,
  kZipMap = 3,
  kLinkedList = 4,
  kZipList = 5,
  kIntSet = 6,
  kSkipList = 7,
  kEmbedded = 8,
  kQuickList = 9,
  kStream = 10,
  kListPack = 11,
};
const char* const kEncodingNames[] = {"raw",        "int",       "hashtable", "zipmap",
                                      "linkedlist", "ziplist",   "intset",    "skiplist",
                                      "embstr",     "quicklist", "stream",    "listpack"};
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

void add_block(KeyMemory* memory, void* block) {
  add(memory, block, block == nullptr ? 0 : g_usable_size(block));
}

void describe(const Object* object, KeyMemory* memory) {
  memory->encoding = object->encoding < sizeof(kEncodingNames) / sizeof(kEncodingNames[0])
                         ? kEncodingNames[object->encoding]
                         : "unknown";
  add_block(memory, const_cast<Object*>(object));
  switch (object->encoding) {
    case kInteger:
    case kEmbedded:
      memory->whole = true;
      break;
    case kRaw: {
      // The string's length lies in memory that must not be touched; the allocator knows the size
      // of the block.
      char* text = static_cast<char*>(object->value);
      add(memory, text - kStringHeadMax, g_usable_size(text - 1));
      memory->whole = true;
      break;
    }
    case kZipMap:
    case kZipList:
    case kIntSet:
    case kListPack:
      add_block(memory, object->value);
      memory->whole = true;
      break;
    case kHashTable:
    case kSkipList:
    case kQuickList:
    case kStream:
      add_block(memory, object->value);
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
  const auto* object = reinterpret_cast<const Object*>(value);
  size_t length = 0;
  g_usable_size = reinterpret_cast<size_t (*)(void*)>(program_calls("malloc_usable_size"));
  constexpr unsigned kValkeyBit = 2;
  g_reference_bit = object->references == 1 ? 0 : kValkeyBit;
  g_known = g_usable_size != nullptr && object->type == 0 && object->encoding == kRaw &&
            object->references == 1u << g_reference_bit &&
            object->value == g_api.StringPtrLen(value, &length) && length == sizeof(probe);
  // A missing key has no handle when it is opened for reading. Opened for writing it has one, and
  // nothing is created.
  constexpr int kOpenWrite = 1 << 1;
  Key* key = g_known ? g_api.OpenKey(context, name, kOpenRead | kOpenWrite) : nullptr;
  const auto* open = reinterpret_cast<const OpenKey*>(key);
  g_known =
      key != nullptr && open->name == reinterpret_cast<Object*>(name) && open->value == nullptr;
  if (key != nullptr) g_api.CloseKey(key);
  g_api.FreeString(context, value);
  g_api.FreeString(context, name);
  return g_known;
}

bool key_memory_known() { return g_known; }

KeyBlock* key_memory_block(const String* name, Key* key) {
  const auto* open = reinterpret_cast<const OpenKey*>(key);
  if (!g_known || open->name != reinterpret_cast<const Object*>(name) || open->value == nullptr)
    return nullptr;
  const Object& object = *open->value;
  constexpr unsigned kString = 0;
  const bool text = object.type == kString && object.encoding == kRaw;
  const bool compact =
      object.type != kString &&
      (object.encoding == kZipList || object.encoding == kIntSet || object.encoding == kListPack);
  if (object.references >> g_reference_bit != 1 || object.value == nullptr || !(text || compact))
    return nullptr;
  return reinterpret_cast<KeyBlock*>(open->value);
}

void* key_block_inside(const KeyBlock& block) {
  return reinterpret_cast<const Object&>(block).value;
}

size_t key_block_head(const KeyBlock& block) {
  const auto& object = reinterpret_cast<const Object&>(block);
  if (object.encoding != kRaw) return 0;
  const unsigned head = sds_header(static_cast<const uint8_t*>(object.value)[-1]);
  return head == 0 ? SIZE_MAX : head;
}

void key_block_set(KeyBlock& block, void* inside) {
  reinterpret_cast<Object&>(block).value = inside;
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
