// SPDX-License-Identifier: Apache-2.0
// The steps of a lookup (key_lookup.h), for traversals of other kinds: whole buckets instead of one
// key (save_ahead.cpp).
//
// Threading: one lookup a thread. Other threads may read the same structures, none may change them.
// Allocates nothing.
#pragma once
#include "key_lookup.h"
#include "pager/page_view.h"

namespace lunar::redis {

// How many empty buckets the server's dictRehash skips at most, for each bucket that it is to move.
inline constexpr unsigned kEmptyBucketsMax = 10;

enum Encoding : unsigned {
  kRaw = 0,
  kInt = 1,
  kHashTable = 2,
  kZiplist = 5,
  kIntset = 6,
  kSkiplist = 7,
  kEmbedded = 8,
  kQuicklist = 9,
  kStream = 10,
  kListpack = 11,
};

// Dictionaries without values (sets of Redis 8) mark what they point to: a key itself (always odd,
// or 2), an entry without value (4).
struct Marked {
  uintptr_t raw;
  bool is_key() const { return (raw & 3) != 0; }
  bool is_without_value() const { return (raw & 7) == 4; }
  uintptr_t address() const { return (raw & 1) != 0 ? raw : raw & ~uintptr_t{7}; }
};

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
};
struct ZsetView {
  void* members;  // DictView or TableView
  const void* skiplist;
};
constexpr unsigned kString = 0, kSortedSet = 3, kHash = 4;  // types
constexpr size_t kStreamBytes = 64, kSkiplistBytes = 32;

// entries; a longer chain of colliding keys is left to the server
constexpr unsigned kChainMax = 64;

// What the entries of a table lead to (Valkey).
enum class Entries : uint8_t { kObjects, kTexts, kNodes };

// Pages that are not to be fetched.
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

// Pages that were checked in this look, so that neighbours cost one check and are recorded once.
struct PagesSeen {
  static constexpr unsigned kSlots = 256;
  uintptr_t page[kSlots] = {};  // twice its number, plus 1 if it is resident
  uintptr_t& slot(uintptr_t number) { return page[number % kSlots]; }
};

struct KeyLookup {
  const ServerLayout& layout;
  NonresidentRanges* missing;
  unsigned misses = 0;  // times that a step lacked something; 0: all of it is resident
  // what is in them is no miss, though it cannot be read now
  const SkippedPages* skipped = nullptr;
  // skips tables that are being rehashed: a search of another thread may be moving entries
  bool settled_only = false;
  PagesSeen* seen = nullptr;  // value_lookup.h
  bool removes = false;  // what is found is taken out: Valkey fills its place from the end of the
                         // chain of buckets
  static constexpr unsigned kUsedMax = 32;
  PageView used[kUsedMax];  // the first resident pages, each once
  unsigned used_count = 0;

  bool resident(const void* address, size_t bytes);
  // Acquire: a rehash that has ended is seen with the table it left.
  bool unsettled(const int64_t& rehash_index) const {
    return settled_only && __atomic_load_n(&rehash_index, __ATOMIC_ACQUIRE) != -1;
  }
  void note_use(PageView page);
  void count_uses();

  // Whether the bytes can be read now; if not, they are a miss.
  bool have(const void* address, size_t bytes);
  bool have_most(const char* at, uint64_t bytes);  // the first kValueBytesMax of them
  bool have_text(const char* text);
  // Redis 8.0: the name of a field, with the expiry before it.
  bool have_field(const char* field);
  // Valkey: the value of a field whose name can be read.
  bool have_field_value(const char* field);
  static bool value_is_apart(const char* field);  // pre: the byte before it can be read
  // Follows a chain of entries, or of buckets, to `key`. True: all of it that a search reads is
  // resident.
  bool chain(EntryView* entry, Slice key, bool fields, EntryView** found);
  bool chain(const BucketView* bucket, Slice key, uint8_t hash, Entries entries,
             const void** found);
  // nullptr: there is none, or it is not known yet (then it is a miss). fields: its keys are names
  // of fields (Redis 8.0).
  EntryView* find(DictView* dict, Slice key, bool fields = false);
  void chain_end(const BucketView* bucket);
  // The entry of `key` in a table. nullptr likewise.
  const void* find(TableView* table, Slice key, Entries entries);
  // Whether fields of hashes are not plain strings in this server's dictionaries.
  bool has_fields() const { return layout.keyspace() == Keyspace::kDicts; }
  // The key inside an object. nullptr: it has none, or it is missing.
  const char* key_inside(const ObjectView* object);
  // What `store` (keys or expiries of a database) has for `key`: of keys an object. nullptr
  // likewise.
  const void* look_up(const void* store, Slice key);
  // The size of a listpack or set of integers. False: its header is missing.
  bool packed_bytes(const ObjectView& object, uint64_t* out);
  // All of a value that is one string, listpack or set of integers. False: it is something else.
  bool compact(const ObjectView& object);
  // The top level of a value, and the members that the command names.
  void value_of(const ObjectView& object, const Command& command, const CommandKeys& keys);
  // What the server reads to move bucket b of a table to another size.
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
