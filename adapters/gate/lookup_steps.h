// SPDX-License-Identifier: Apache-2.0
// The steps of a lookup (key_lookup.h), which are also used to look up whole values
// (value_lookup.h) and whole buckets (bucket_walk.h).
//
// Threading: one lookup per thread. Other threads may read the same structures, but not change
// them. Allocates nothing.
#pragma once
#include "chains.h"
#include "key_lookup.h"
#include "pager/page_view.h"

namespace lunar::redis {

// The empty buckets that the server's dictRehash skips at most for each bucket that it moves.
inline constexpr unsigned kEmptyBucketsMax = 10;

struct QuicklistNodeView {
  QuicklistNodeView *previous, *next;
  const char* entry;
  uint64_t bytes;
  uint32_t marks;  // low half: elements
  unsigned count() const { return marks & 0xffff; }
};
struct QuicklistView {
  QuicklistNodeView *head, *tail;
  uint64_t count, nodes;
};
struct SkiplistNodeView {
  const char* member;
  double score;
  const SkiplistNodeView *previous, *next;  // next: of the lowest level
};
struct SkiplistView {
  const SkiplistNodeView *header, *tail;
  uint64_t length;
  int32_t levels;
};
struct ZsetView {
  void* members;  // DictView or TableView
  const SkiplistView* skiplist;
};
constexpr size_t kStreamBytes = 64;
constexpr size_t kNodeBytes = 40;  // of a skip list's node: member, score, lowest links

// The kind of entries of a table (Valkey).
enum class Entries : uint8_t { kObjects, kTexts, kNodes };

// The cursor of the next bucket in the order of SCAN, in which the highest bit of `mask` counts
// first. 0: there is none.
uint64_t next_scanned(uint64_t cursor, uint64_t mask);

// Pages that must not be fetched.
struct SkippedPages {
  static constexpr unsigned kMax = 64;
  unsigned count = 0;
  PageView page[kMax];
  bool has(PageView one) const {
    for (unsigned i = 0; i < count; ++i)
      if (page[i] == one) return true;
    return false;
  }
};

// Pages that were checked in this look, so that pieces in one page cost one check and are recorded
// once.
struct PagesSeen {
  static constexpr unsigned kSlots = 256;
  uintptr_t page[kSlots] = {};  // twice its number, plus 1 if it is resident
  uintptr_t& slot(uintptr_t number) { return page[number % kSlots]; }
};

struct KeyLookup {
  const ServerLayout& layout;
  NonresidentRanges* missing;
  unsigned misses = 0;  // steps that lacked something; 0: all memory is resident
  // pages that do not count as missing, though they cannot be read now
  const SkippedPages* skipped = nullptr;
  // skips tables that are being rehashed, where a search of another thread may move entries
  bool settled_only = false;
  PagesSeen* seen = nullptr;  // value_lookup.h
  // the command removes the found entry, whose place Valkey fills from the end of the chain
  bool removes = false;
  static constexpr unsigned kUsedMax = 32;
  PageView used[kUsedMax];  // the first resident pages that the lookup relies on, each once
  unsigned used_count = 0;

  bool resident(const void* address, size_t bytes);
  // Acquire: after the end of a rehash is seen, the table that it left is seen as well.
  bool unsettled(const int64_t& rehash_index) const {
    return settled_only && __atomic_load_n(&rehash_index, __ATOMIC_ACQUIRE) != -1;
  }
  void note_use(PageView page);
  void count_uses();

  // Whether the bytes can be read now. If not, they are recorded as missing.
  bool have(const void* address, size_t bytes);
  // have() as an argument for chains.h.
  auto haver() {
    return [this](const void* address, size_t bytes) { return have(address, bytes); };
  }
  bool have_most(const char* at, uint64_t bytes);  // the first kValueBytesMax of them
  bool have_text(const char* text);
  // The node of a skip list that holds this score, to which a sorted set's dictionary points.
  bool have_node_of(const void* score) {
    return have(static_cast<const char*>(score) - offsetof(SkiplistNodeView, score), kNodeBytes);
  }
  // Redis 8.0: the name of a field, with the expiry before it.
  bool have_field(const char* field);
  // Valkey: the value of a field whose name can be read.
  bool have_field_value(const char* field);
  static bool value_is_apart(const char* field);  // pre: the byte before it can be read
  // Follows a chain of entries, or of buckets, to `key`. True: all memory that a search reads is
  // resident.
  bool find_in_chain(EntryView* entry, Slice key, bool fields, EntryView** found);
  bool find_in_chain(const BucketView* bucket, Slice key, uint8_t hash, Entries entries,
                     const void** found);
  // The entry of `key`. nullptr: there is none, or memory is missing (then misses has grown).
  // fields: the keys are names of fields (Redis 8.0).
  EntryView* find(DictView* dict, Slice key, bool fields = false);
  void chain_end(const BucketView* bucket);
  // The same for a table.
  const void* find(TableView* table, Slice key, Entries entries);
  // Whether this server's dictionaries have fields of hashes that are not plain strings.
  bool has_fields() const { return layout.keyspace() == Keyspace::kDicts; }
  // The key inside an object. nullptr: the object has none, or memory is missing.
  const char* key_inside(const ObjectView* object);
  // The value of `key` in `store` (keys or expiries of a database); for keys that is an object.
  // nullptr: as for find.
  const void* look_up(const void* store, Slice key);
  // The size of a listpack or set of integers. False: its header is missing.
  bool packed_bytes(const ObjectView& object, uint64_t* out);
  // Looks up all of a value that is one string, listpack or set of integers. False: it is none.
  bool compact(const ObjectView& object);
  // Looks up the top level of a value, and the members that the command names.
  void value_of(const ObjectView& object, const Command& command, const CommandKeys& keys);
  // Looks up the memory that the server reads to move bucket b of a table that changes its size.
  void moved_bucket(const TableView& table, uint64_t b, Entries entries);
  void list_end(QuicklistNodeView* node);

 private:
  bool miss(const void* address, size_t bytes);
  void moved_by(DictView* dict, unsigned searches, bool fields);
  void moved_by(const TableView& table, unsigned searches, Entries entries);
  void member(DictView* members, Slice name, unsigned type, bool fields);
  void member(TableView* members, Slice name, unsigned type, Entries entries);
  void members_of(void* members, const Command& command, const CommandKeys& keys, unsigned type);
};

}  // namespace lunar::redis
