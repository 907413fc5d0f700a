// SPDX-License-Identifier: Apache-2.0
// See bucket_walk.h.
#include "bucket_walk.h"

#include "collection_probe.h"

namespace lunar::redis {
namespace {

constexpr unsigned kListNodesMax = 2;  // a list of so few nodes is looked up with its key

void list_nodes(KeyLookup& lookup, QuicklistNodeView* node) {
  for (unsigned n = 0; node != nullptr && n < kListNodesMax && !lookup.missing->full(); ++n) {
    lookup.list_end(node);
    if (!lookup.have(node, sizeof *node)) return;
    node = node->next;
  }
}

// Looks up a value. True: the last missing piece is one that every walk reads. (A save goes through
// a sorted set by its skip list, a digest by its table.)
bool look_at_object(KeyLookup& lookup, const ObjectView* object) {
  const char* at = object->pointer;
  const unsigned before = lookup.missing->count;
  if (at == nullptr) return false;
  if (lookup.compact(*object)) return lookup.missing->count > before;
  if (object->encoding() == kHashTable) {
    (void)lookup.have(at, sizeof(DictView));
  } else if (object->encoding() == kSkiplist) {
    const auto* zset = reinterpret_cast<const ZsetView*>(at);
    if (!lookup.have(zset, sizeof *zset)) return lookup.missing->count > before;
    (void)lookup.have(zset->skiplist, sizeof(SkiplistView));
    (void)lookup.have(zset->members, sizeof(DictView));
    return false;
  } else if (object->encoding() == kQuicklist) {
    const auto* quicklist = reinterpret_cast<const QuicklistView*>(at);
    if (lookup.have(quicklist, sizeof *quicklist) && quicklist->nodes <= kListNodesMax)
      list_nodes(lookup, quicklist->head);
  } else if (object->encoding() == kStream) {
    (void)lookup.have(at, kStreamBytes);
  }
  return lookup.missing->count > before;
}

// pre: have_text() was true for the key. In a child that does not save, the key may have been
// freed; its length is then not trusted.
void look_up_expiry(KeyLookup& lookup, const DatabaseView& database, const char* key) {
  if (const uint64_t bytes = sds_length(key); bytes <= kValueBytesMax)
    (void)lookup.look_up(database.expires, {key, bytes});
}

// Each walk below goes on until the round's list is full. *at_value is about the last piece that is
// missing: false for an entry or a bucket.

void objects(KeyLookup& lookup, EntryView* const* slot, const DatabaseView& database,
             bool* at_value) {
  if (!lookup.have(slot, sizeof *slot)) return;
  const bool there = for_each_entry(*slot, lookup.haver(), [&](const ChainEntry& one) {
    *at_value = false;
    if (lookup.have_text(one.key)) look_up_expiry(lookup, database, one.key);
    const auto* object = static_cast<const ObjectView*>(one.value);
    if (object != nullptr && lookup.have(object, sizeof *object))
      *at_value = look_at_object(lookup, object);
    return !lookup.missing->full();
  });
  if (!there) *at_value = false;
}

void keyed_objects(KeyLookup& lookup, const BucketView* bucket, const DatabaseView& database,
                   bool* at_value) {
  const bool there =
      for_each_place(bucket, lookup.haver(), [&](const BucketView& in, unsigned place) {
        *at_value = false;
        const auto* object = static_cast<const ObjectView*>(in.entries[place]);
        if (const char* key = lookup.key_inside(object); key != nullptr) {
          if (object->has_expiry()) look_up_expiry(lookup, database, key);
          *at_value = look_at_object(lookup, object);
        }
        return !lookup.missing->full();
      });
  if (!there) *at_value = false;
}

void members(KeyLookup& lookup, EntryView* const* slot, Holds holds, bool* at_value) {
  if (!lookup.have(slot, sizeof *slot)) return;
  const bool there = for_each_entry(*slot, lookup.haver(), [&](const ChainEntry& one) {
    const unsigned before = lookup.missing->count;
    const auto* value = static_cast<const char*>(one.value);
    (void)(holds == Holds::kFieldPairs ? lookup.have_field(one.key) : lookup.have_text(one.key));
    if (value != nullptr && (holds == Holds::kPairs || holds == Holds::kFieldPairs))
      (void)lookup.have_text(value);
    if (value != nullptr && holds == Holds::kScores) (void)lookup.have_node_of(value);
    *at_value = lookup.missing->count > before;
    return !lookup.missing->full();
  });
  if (!there) *at_value = false;
}

void table_members(KeyLookup& lookup, const BucketView* bucket, Holds holds, bool* at_value) {
  const bool there =
      for_each_place(bucket, lookup.haver(), [&](const BucketView& in, unsigned place) {
        const unsigned before = lookup.missing->count;
        const auto* text = static_cast<const char*>(in.entries[place]);
        if (holds == Holds::kNodes) {
          const auto* node = static_cast<const SkiplistNodeView*>(in.entries[place]);
          if (lookup.have(node, sizeof *node)) (void)lookup.have_text(node->member);
        } else if (lookup.have_text(text) && holds == Holds::kTableFields) {
          (void)lookup.have_field_value(text);
        }
        *at_value = lookup.missing->count > before;
        return !lookup.missing->full();
      });
  if (!there) *at_value = false;
}

bool collection_of(const ServerLayout& layout, const ObjectView* object, Collection* out) {
  NonresidentRanges ignored;
  KeyLookup lookup{layout, &ignored};
  if (object == nullptr || !lookup.have(object, sizeof *object) || object->pointer == nullptr)
    return false;
  const bool tables = layout.keyspace() == Keyspace::kTables, hash = object->type() == kHash;
  *out = {object->pointer, Holds::kListNodes};
  switch (object->encoding()) {
    case kHashTable:
      if (tables)
        out->holds = hash ? Holds::kTableFields : Holds::kTableTexts;
      else
        out->holds = !hash                 ? Holds::kTexts
                     : lookup.has_fields() ? Holds::kFieldPairs
                                           : Holds::kPairs;
      break;
    case kSkiplist:
      if (!lookup.have(object->pointer, sizeof(ZsetView))) return false;
      *out = {reinterpret_cast<const ZsetView*>(object->pointer)->members,
              tables ? Holds::kNodes : Holds::kScores};
      break;
    case kQuicklist:
      if (!lookup.have(object->pointer, sizeof(QuicklistView)) ||
          reinterpret_cast<const QuicklistView*>(object->pointer)->nodes <= kListNodesMax)
        return false;
      break;
    default:
      return false;
  }
  return collection_known(layout.keyspace(), *object);
}

}  // namespace

bool bucket_there(KeyLookup& lookup, const char* slot, Holds holds, const DatabaseView* database,
                  bool* at_value) {
  if (holds == Holds::kObjects)
    objects(lookup, reinterpret_cast<EntryView* const*>(slot), *database, at_value);
  else if (holds == Holds::kKeyedObjects)
    keyed_objects(lookup, reinterpret_cast<const BucketView*>(slot), *database, at_value);
  else if (in_tables(holds))
    table_members(lookup, reinterpret_cast<const BucketView*>(slot), holds, at_value);
  else
    members(lookup, reinterpret_cast<EntryView* const*>(slot), holds, at_value);
  return lookup.misses == 0;
}

unsigned collections_of(const ServerLayout& layout, const char* slot, Holds holds, Collection* out,
                        unsigned count, unsigned max) {
  NonresidentRanges ignored;
  KeyLookup lookup{layout, &ignored};
  auto add = [&](const void* object) {
    if (count < max && collection_of(layout, static_cast<const ObjectView*>(object), out + count))
      ++count;
  };
  if (holds == Holds::kKeyedObjects) {
    (void)for_each_place(reinterpret_cast<const BucketView*>(slot), lookup.haver(),
                         [&](const BucketView& bucket, unsigned place) {
                           return add(bucket.entries[place]), count < max;
                         });
    return count;
  }
  const auto* first = reinterpret_cast<EntryView* const*>(slot);
  if (lookup.have(first, sizeof *first))
    (void)for_each_entry(*first, lookup.haver(),
                         [&](const ChainEntry& one) { return add(one.value), count < max; });
  return count;
}

}  // namespace lunar::redis
