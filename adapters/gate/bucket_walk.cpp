// SPDX-License-Identifier: Apache-2.0
// See bucket_walk.h.
#include "bucket_walk.h"

#include "collection_probe.h"

namespace lunar::redis {
namespace {

constexpr unsigned kListNodesMax = 2;  // of a list, looked at with its key

void list(KeyLookup& lookup, QuicklistNodeView* node) {
  for (unsigned n = 0; node != nullptr && n < kListNodesMax && !lookup.missing->full(); ++n) {
    lookup.list_end(node);
    if (!lookup.have(node, sizeof *node)) return;
    node = node->next;
  }
}

// Whether the last piece that is missing is one that every walk reads: a save goes through a sorted
// set by its skip list, a digest by its table.
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
    (void)lookup.have(zset->skiplist, kSkiplistBytes);
    (void)lookup.have(zset->members, sizeof(DictView));
    return false;
  } else if (object->encoding() == kQuicklist) {
    const auto* quicklist = reinterpret_cast<const QuicklistView*>(at);
    if (lookup.have(quicklist, sizeof *quicklist) && quicklist->nodes <= kListNodesMax)
      list(lookup, quicklist->head);
  } else if (object->encoding() == kStream) {
    (void)lookup.have(at, kStreamBytes);
  }
  return lookup.missing->count > before;
}

// The key is resident as far as have_text() looks; of a child that does other things than save, it
// may be no text any more.
void look_up_expiry(KeyLookup& lookup, const DatabaseView& database, const char* key) {
  if (const uint64_t bytes = sds_length(key); bytes <= kValueBytesMax)
    (void)lookup.look_up(database.expires, {key, bytes});
}

void objects(KeyLookup& lookup, EntryView* const* slot, const DatabaseView& database,
             bool* at_value) {
  if (!lookup.have(slot, sizeof *slot)) return;
  unsigned n = 0;
  for (EntryView* entry = *slot; entry != nullptr && n < kChainMax && !lookup.missing->full();
       ++n, entry = entry->next) {
    *at_value = false;
    if (!lookup.have(entry, sizeof *entry)) break;
    if (lookup.have_text(entry->key)) look_up_expiry(lookup, database, entry->key);
    const auto* object = static_cast<const ObjectView*>(entry->value);
    if (object == nullptr || !lookup.have(object, sizeof *object)) continue;
    *at_value = look_at_object(lookup, object);
  }
}

void keyed_objects(KeyLookup& lookup, const BucketView* bucket, const DatabaseView& database,
                   bool* at_value) {
  for (unsigned n = 0; bucket != nullptr && n < kChainMax && !lookup.missing->full(); ++n) {
    *at_value = false;
    if (!lookup.have(bucket, sizeof *bucket)) return;
    for (unsigned i = 0; i < bucket->places() && !lookup.missing->full(); ++i) {
      if (!bucket->holds(i)) continue;
      *at_value = false;
      const auto* at = static_cast<const ObjectView*>(bucket->entries[i]);
      const char* key = lookup.key_inside(at);
      if (key == nullptr) continue;
      if (at->has_expiry()) look_up_expiry(lookup, database, key);
      *at_value = look_at_object(lookup, at);
    }
    bucket = bucket->next();
  }
}

void members(KeyLookup& lookup, EntryView* const* slot, Holds holds, bool* at_value) {
  if (!lookup.have(slot, sizeof *slot)) return;
  const EntryView* entry = *slot;
  for (unsigned n = 0; entry != nullptr && n < kChainMax && !lookup.missing->full(); ++n) {
    const Marked marked{reinterpret_cast<uintptr_t>(entry)};
    const bool no_value = marked.is_without_value();
    const auto* at = reinterpret_cast<const EntryView*>(marked.address());
    *at_value = false;
    if (!marked.is_key() && !lookup.have(at, no_value ? 16 : sizeof *at)) return;
    const unsigned before = lookup.missing->count;
    const char* name = marked.is_key() ? reinterpret_cast<const char*>(at) : at->key;
    const auto* value = marked.is_key() || no_value ? nullptr : static_cast<const char*>(at->value);
    (void)(holds == Holds::kFieldPairs ? lookup.have_field(name) : lookup.have_text(name));
    if (value != nullptr && (holds == Holds::kPairs || holds == Holds::kFieldPairs))
      (void)lookup.have_text(value);
    // the skip list's node: its member, score and links
    if (value != nullptr && holds == Holds::kScores) (void)lookup.have(value - 8, 40);
    *at_value = lookup.missing->count > before;
    entry = marked.is_key() ? nullptr
            : no_value      ? static_cast<const EntryView*>(at->value)
                            : at->next;
  }
}

void table_members(KeyLookup& lookup, const BucketView* bucket, Holds holds, bool* at_value) {
  for (unsigned n = 0; bucket != nullptr && n < kChainMax && !lookup.missing->full(); ++n) {
    *at_value = false;
    if (!lookup.have(bucket, sizeof *bucket)) return;
    for (unsigned i = 0; i < bucket->places() && !lookup.missing->full(); ++i) {
      if (!bucket->holds(i)) continue;
      const unsigned before = lookup.missing->count;
      const auto* text = static_cast<const char*>(bucket->entries[i]);
      if (holds == Holds::kNodes) {
        const auto* node = static_cast<const SkiplistNodeView*>(bucket->entries[i]);
        if (lookup.have(node, sizeof *node)) (void)lookup.have_text(node->member);
      } else if (lookup.have_text(text) && holds == Holds::kTableFields) {
        (void)lookup.have_field_value(text);
      }
      *at_value = lookup.missing->count > before;
    }
    bucket = bucket->next();
  }
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
    const auto* bucket = reinterpret_cast<const BucketView*>(slot);
    for (unsigned n = 0; bucket != nullptr && n < kChainMax && lookup.have(bucket, sizeof *bucket);
         ++n) {
      for (unsigned i = 0; i < bucket->places(); ++i)
        if (bucket->holds(i)) add(bucket->entries[i]);
      bucket = bucket->next();
    }
    return count;
  }
  const auto* first = reinterpret_cast<EntryView* const*>(slot);
  if (!lookup.have(first, sizeof *first)) return count;
  for (const EntryView* entry = *first;
       entry != nullptr && count < max && lookup.have(entry, sizeof *entry); entry = entry->next)
    add(entry->value);
  return count;
}

}  // namespace lunar::redis
