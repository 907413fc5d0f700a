// SPDX-License-Identifier: Apache-2.0
// See value_lookup.h.
#include "value_lookup.h"

#include <cstring>
#include <initializer_list>

#include "collection_probe.h"
#include "pager/page_view.h"
#include "pager/pager.h"
#include "stream_lookup.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

constexpr unsigned kNodesMax = 128;  // of a skip list, followed one by one
// if the command reads at least an eighth of a sorted set, all of it is looked up
constexpr uint64_t kWorthAll = 8;
constexpr uint64_t kRunBytesMax = 256 << 10;
constexpr uint64_t kScannedMax = 512;  // buckets of one SCAN command

// Turns the indexes of a range (negative ones count from the end) into [first, last] of `count`
// elements. False: the range is empty.
bool clip(int64_t* first, int64_t* last, int64_t count) {
  if (*first < 0) *first += count;
  if (*last < 0) *last += count;
  if (*first < 0) *first = 0;
  if (*last >= count) *last = count - 1;
  return *first <= *last;
}

bool indexes(const Command& command, unsigned at, bool only_one, int64_t* first, int64_t* last) {
  const unsigned second = only_one ? at : at + 1;
  return second < command.kept && signed_number(command.argument[at], first) &&
         signed_number(command.argument[second], last);
}

bool is_end(Slice text) {
  for (const char* word : {"-INF", "+INF", "INF", "-", "+"})
    if (same_word(text, word)) return true;
  return false;
}

}  // namespace

bool ValueLookup::work(unsigned units) {
  missing_.work(units);
  return missing_.units != 0;
}

// Requests missing pages of a large value in runs.
bool ValueLookup::bytes(const char* at, uint64_t bytes) {
  const uint64_t page = sys::page_bytes();
  if (bytes == 0) return true;
  if (reinterpret_cast<uintptr_t>(at) / page ==
      (reinterpret_cast<uintptr_t>(at) + bytes - 1) / page)
    return lookup_.have(at, bytes);
  const PageSpan pages = PageSpan::of(at, bytes);
  const uint64_t number = reinterpret_cast<uintptr_t>(at) / page;  // of the first page
  uint64_t run = 0;                                                // pages
  bool all = true;
  auto end_run = [&](uint64_t end) {
    if (run != 0) missing_.add(pages.begin + (end - run) * page, run * page);
    run = 0;
  };
  for (uint64_t i = 0; i < pages.count; ++i) {
    if ((number + i) % 8 == 0) (void)work(1);
    if (enough() && run == 0) {
      ++lookup_.misses;
      return false;
    }
    const PageView one = pages.at(i);
    if (!one.cold()) {
      if (one.resident()) lookup_.note_use(one);
      end_run(i);
      continue;
    }
    all = false;
    ++lookup_.misses;
    if (++run * page >= kRunBytesMax || missing_.bytes + run * page >= missing_.bytes_max ||
        missing_.units == 0)
      end_run(i + 1);
  }
  end_run(pages.count);
  return all;
}

// Looks up the bytes `first` to `last` of a string.
bool ValueLookup::text(const char* text, uint64_t first, uint64_t last) {
  if (!lookup_.have(text - 1, 1)) return false;
  const unsigned header = sds_header(static_cast<uint8_t>(text[-1]));
  if (header == 0) return true;
  if (!lookup_.have(text - header, header)) return false;
  const uint64_t length = sds_length(text) + 1;
  if (last >= length) last = length - 1;
  return first > last || bytes(text + first, last - first + 1);
}

bool ValueLookup::string(const ObjectView& object, const Command& command, Reach reach,
                         unsigned argument) {
  int64_t first = 0, last = -1;
  if (reach != Reach::kBytes) return text(object.pointer);
  if (!indexes(command, argument + 1, false, &first, &last)) return true;
  if (!lookup_.have(object.pointer - 1, 1)) return false;
  const unsigned header = sds_header(static_cast<uint8_t>(object.pointer[-1]));
  if (header == 0 || !lookup_.have(object.pointer - header, header)) return header == 0;
  if (!clip(&first, &last, static_cast<int64_t>(sds_length(object.pointer)))) return true;
  return text(object.pointer, static_cast<uint64_t>(first), static_cast<uint64_t>(last));
}

// Looks up the entries of one bucket: members, and their values or nodes.
bool ValueLookup::chain(EntryView* entry, unsigned type) {
  bool all = true;
  const bool fields = type == kHash && lookup_.has_fields();
  const bool entries = for_each_entry(entry, lookup_.haver(), [&](const ChainEntry& one) {
    (void)work(4);
    if (!(fields ? lookup_.have_field(one.key) : text(one.key))) all = false;
    const auto* value = static_cast<const char*>(one.value);
    if (type == kHash && value != nullptr && !text(value)) all = false;
    if (type == kSortedSet && value != nullptr && !lookup_.have_node_of(value)) all = false;
    return true;
  });
  return entries && all;
}

bool ValueLookup::dict(DictView* dict, unsigned type) {
  if (!lookup_.have(dict, sizeof *dict)) return false;
  const uint64_t first = dict->table[0] == nullptr ? 0 : uint64_t{1} << dict->exponent[0];
  const uint64_t end = first + (dict->table[1] == nullptr ? 0 : uint64_t{1} << dict->exponent[1]);
  uint64_t at = cursor_.at, whole_to = end;
  // the buckets before it are empty
  if (dict->rehash_index > 0 && at < static_cast<uint64_t>(dict->rehash_index))
    at = static_cast<uint64_t>(dict->rehash_index);
  for (; at < end && !enough(); ++at) {
    (void)work(1);
    EntryView** slot = at < first ? dict->table[0] + at : dict->table[1] + (at - first);
    if (lookup_.have(slot, sizeof *slot) ? chain(*slot, type) : false) continue;
    if (at < whole_to) whole_to = at;
  }
  if (at >= end && whole_to == end) return true;
  cursor_.at = whole_to < at ? whole_to : at;
  return false;
}

// Looks up the buckets that a scan reads from its cursor on, in its order (next_scanned).
bool ValueLookup::scanned(DictView* dict, const Command& command, unsigned argument,
                          unsigned type) {
  if (!lookup_.have(dict, sizeof *dict) || argument + 1 >= command.kept) return false;
  uint64_t count = 10, from = 0;
  for (unsigned i = argument + 2; i + 1 < command.kept; ++i)
    if (const int n = small_number(command.argument[i + 1]);
        n > 0 && same_word(command.argument[i], "COUNT"))
      count = static_cast<uint64_t>(n);
  if (count >= dict->used[0] + dict->used[1]) return this->dict(dict, type);
  if (dict->table[0] == nullptr || dict->table[1] != nullptr) return true;
  const Slice cursor = command.argument[argument + 1];
  for (size_t i = 0; i < cursor.bytes && i < 20; ++i)
    from = from * 10 + static_cast<uint64_t>(cursor.data[i] - '0');
  const uint64_t mask = (uint64_t{1} << dict->exponent[0]) - 1;
  bool all = true;
  for (uint64_t n = 0; n < count && n < kScannedMax && !enough(); ++n) {
    EntryView** slot = dict->table[0] + (from & mask);
    if (!lookup_.have(slot, sizeof *slot) || !chain(*slot, type)) all = false;
    from = next_scanned(from, mask);
    if (from == 0) break;
  }
  return all;
}

// Looks up an entry of a set, hash or sorted set of Valkey.
bool ValueLookup::entry(const void* entry, unsigned type) {
  if (type == kSortedSet) {
    const auto* node = static_cast<const SkiplistNodeView*>(entry);
    return lookup_.have(node, sizeof *node) && text(node->member);
  }
  const auto* name = static_cast<const char*>(entry);
  return type == kHash ? lookup_.have_text(name) && lookup_.have_field_value(name) : text(name);
}

bool ValueLookup::table(TableView* table, unsigned type) {
  if (!lookup_.have(table, sizeof *table)) return false;
  const uint64_t first = table->table[0] == nullptr ? 0 : uint64_t{1} << table->exponent[0];
  const uint64_t end = first + (table->table[1] == nullptr ? 0 : uint64_t{1} << table->exponent[1]);
  uint64_t at = cursor_.at, whole_to = end;
  for (; at < end && !enough(); ++at) {
    const BucketView* bucket = at < first ? table->table[0] + at : table->table[1] + (at - first);
    bool all = true;
    const auto have = [&](const void* address, size_t bytes) {
      (void)work(8);
      return lookup_.have(address, bytes);
    };
    const bool buckets = for_each_place(bucket, have, [&](const BucketView& in, unsigned place) {
      if (!entry(in.entries[place], type)) all = false;
      return true;
    });
    if ((!buckets || !all) && at < whole_to) whole_to = at;
  }
  if (at >= end && whole_to == end) return true;
  cursor_.at = whole_to < at ? whole_to : at;
  return false;
}

// Looks up the nodes of the elements `first` to `last`, which the server searches from the nearer
// end.
bool ValueLookup::list(const QuicklistView* list, int64_t first, int64_t last) {
  if (!lookup_.have(list, sizeof *list)) return false;
  const auto count = static_cast<int64_t>(list->count);
  if (!clip(&first, &last, count)) return true;
  const bool from_tail = first > (count - 1) / 2;
  const QuicklistNodeView* node = from_tail ? list->tail : list->head;
  int64_t begin = 0, end = count;  // the elements that the search has not passed yet
  for (;;) {
    if (node == nullptr)
      return true;  // a module changes the list in the meantime, or its layout is another one
    if (!lookup_.have(node, sizeof *node) || !work(1)) return false;
    const auto elements = static_cast<int64_t>(node->count());
    if (from_tail ? end - elements <= first : begin + elements > first) {
      if (from_tail) begin = end - elements;
      break;
    }
    from_tail ? end -= elements : begin += elements;
    node = from_tail ? node->previous : node->next;
  }
  bool all = true;
  for (uint64_t n = 0; node != nullptr && begin <= last; ++n) {
    if (!lookup_.have(node, sizeof *node) || !work(1)) return false;
    if (n >= cursor_.at) {
      if (enough()) return false;
      if (!bytes(node->entry, node->bytes)) all = false;
      if (all) cursor_.at = n + 1;
    }
    begin += static_cast<int64_t>(node->count());
    node = node->next;
  }
  return all;
}

// Looks up the first or last nodes of a skip list, with their members.
bool ValueLookup::nodes(const SkiplistView* list, uint64_t count, bool backward) {
  const SkiplistNodeView* node;
  if (!lookup_.have(list, sizeof *list)) return false;
  if (backward) {
    node = list->tail;
  } else {
    if (!lookup_.have(list->header, sizeof *node)) return false;
    node = list->header->next;
  }
  bool all = true;
  for (uint64_t n = 0; node != nullptr && n < count; ++n) {
    (void)work(4);
    if (!lookup_.have(node, sizeof *node)) return false;
    if (!text(node->member)) all = false;
    node = backward ? node->previous : node->next;
  }
  return all;
}

bool ValueLookup::sorted_set(const ZsetView* zset, const Command& command, Reach reach,
                             unsigned argument) {
  if (!lookup_.have(zset, sizeof *zset) || !lookup_.have(zset->skiplist, sizeof(SkiplistView)))
    return false;
  auto* members = static_cast<DictView*>(zset->members);
  const SkiplistView* list = zset->skiplist;
  const auto length = static_cast<int64_t>(list->length);
  bool all = reaches_all(reach);
  if (reach == Reach::kScan)
    return lookup_.layout.keyspace() == Keyspace::kTables ||
           scanned(members, command, argument, kSortedSet);
  int64_t first = 0, last = 0;
  const unsigned behind = argument + 3;
  const bool by_value = reach == Reach::kScores ||
                        has_word(command, behind, behind + 8, "BYSCORE") ||
                        has_word(command, behind, behind + 8, "BYLEX");
  if (!all && by_value)
    all = behind <= command.kept && is_end(command.argument[argument + 1]) &&
          is_end(command.argument[argument + 2]) && !has_word(command, behind, behind + 8, "LIMIT");
  else if (!all && indexes(command, argument + 1, false, &first, &last) &&
           clip(&first, &last, length)) {
    all = static_cast<uint64_t>(last - first + 1) * kWorthAll >= static_cast<uint64_t>(length);
    const bool backward =
        same_word(command.argument[0], "ZREVRANGE") || has_word(command, behind, behind + 8, "REV");
    if (!all && last < kNodesMax) return nodes(list, static_cast<uint64_t>(last + 1), backward);
    if (!all && length - first <= kNodesMax)
      return nodes(list, static_cast<uint64_t>(length - first), !backward);
  }
  if (!all) return true;
  if (!lookup_.have(list->header, sizeof(SkiplistNodeView))) return false;
  return lookup_.layout.keyspace() == Keyspace::kTables
             ? table(static_cast<TableView*>(zset->members), kSortedSet)
             : dict(members, kSortedSet);
}

bool ValueLookup::part(const ObjectView& object, const Command& command, const CommandKeys& keys,
                       unsigned argument) {
  const char* at = object.pointer;
  const bool some = reaches_all(keys.reach);
  switch (object.encoding()) {
    case kRaw:
      if (object.type() == kString) return string(object, command, keys.reach, argument);
      return true;
    case kEmbedded:
      return text(at);
    case kListpack:
    case kZiplist:
    case kIntset: {
      uint64_t size;
      return lookup_.packed_bytes(object, &size) && bytes(at, size);
    }
    case kHashTable: {
      const bool tables = lookup_.layout.keyspace() == Keyspace::kTables;
      if (!some && keys.reach != Reach::kScan) return true;
      if (tables)
        return !some || table(reinterpret_cast<TableView*>(const_cast<char*>(at)), object.type());
      auto* members = reinterpret_cast<DictView*>(const_cast<char*>(at));
      return some ? dict(members, object.type())
                  : scanned(members, command, argument, object.type());
    }
    case kSkiplist:
      return sorted_set(reinterpret_cast<const ZsetView*>(at), command, keys.reach, argument);
    case kQuicklist: {
      int64_t first = 0, last = -1;
      if (!some && !((keys.reach == Reach::kIndexes || keys.reach == Reach::kIndex) &&
                     indexes(command, argument + 1, keys.reach == Reach::kIndex, &first, &last)))
        return true;
      return list(reinterpret_cast<const QuicklistView*>(at), first, last);
    }
    case kStream:
      return stream_lookup(*this, lookup_, reinterpret_cast<const StreamView*>(at), command, keys,
                           argument, &cursor_);
    default:
      return true;
  }
}

bool ValueLookup::elements(const ObjectView& object, uint64_t* out) {
  const char* at = object.pointer;
  *out = 0;
  if (at == nullptr || !collection_known(lookup_.layout.keyspace(), object)) return true;
  switch (object.encoding()) {
    case kListpack: {
      uint16_t count;
      if (!lookup_.have(at, sizeof(uint32_t) + sizeof count)) return false;
      memcpy(&count, at + sizeof(uint32_t), sizeof count);
      *out = object.type() == kSortedSet ? count / 2 : count;
      return true;
    }
    case kIntset: {
      uint32_t header[2];
      if (!lookup_.have(at, sizeof header)) return false;
      memcpy(header, at, sizeof header);
      *out = header[1];
      return true;
    }
    case kSkiplist: {
      const auto* zset = reinterpret_cast<const ZsetView*>(at);
      if (!lookup_.have(zset, sizeof *zset) || !lookup_.have(zset->skiplist, sizeof(SkiplistView)))
        return false;
      *out = zset->skiplist->length;
      return true;
    }
    case kHashTable: {
      static_assert(offsetof(TableView, used) + sizeof(TableView::used) <= sizeof(DictView));
      if (!lookup_.have(at, sizeof(DictView))) return false;
      const uint64_t* used = lookup_.layout.keyspace() == Keyspace::kTables
                                 ? reinterpret_cast<const TableView*>(at)->used
                                 : reinterpret_cast<const DictView*>(at)->used;
      *out = used[0] + used[1];
      return true;
    }
    default:
      return true;  // another type: the command is an error
  }
}

void ValueLookup::value(const ObjectView& object, const Command& command, const CommandKeys& keys,
                        unsigned argument, unsigned nth) {
  const unsigned asked = missing_.count, misses = lookup_.misses;
  const uint64_t at = cursor_.at;
  const bool fresh = missing_.units == kLookUnits;
  const bool all = object.pointer == nullptr ||
                   !collection_known(lookup_.layout.keyspace(), object) ||
                   part(object, command, keys, argument);
  cursor_.bytes += missing_.bytes - bytes_before_;
  bytes_before_ = missing_.bytes;
  // It is done, or one look is too short for any progress.
  if (all || (fresh && missing_.count == asked && !missing_.full() && cursor_.at == at)) {
    cursor_.key = nth + 1;
    cursor_.at = 0;
    if (missing_.count == asked) lookup_.misses = misses;
    return;
  }
  ++lookup_.misses;
}

}  // namespace lunar::redis
