// SPDX-License-Identifier: Apache-2.0
// See collection_probe.h.
#include "collection_probe.h"

#include <atomic>

#include "stream_lookup.h"
#include "sys/log.h"

namespace lunar::redis {
namespace {

constexpr unsigned kKinds = 16;  // encodings
constexpr uint8_t kWrong = 0xff;
constinit std::atomic<uint8_t> g_looks[kKinds] = {};

// Two tables: a size each, and slots that can be read.
bool tables_fit(const int8_t* exponent, const void* first, const void* second) {
  const void* slot;
  for (int t = 0; t < 2; ++t) {
    const void* at = t == 0 ? first : second;
    if (exponent[t] < -1 || exponent[t] > 40 || (exponent[t] == -1) != (at == nullptr) ||
        (at != nullptr && !peek(at, &slot)))
      return false;
  }
  return true;
}

// The number of members of a dictionary or a table; UINT64_MAX: it is neither.
uint64_t members_of(Keyspace keyspace, const void* at) {
  if (keyspace == Keyspace::kTables) {
    TableView table;
    if (!peek(at, &table) || table.type == nullptr ||
        !tables_fit(table.exponent, table.table[0], table.table[1]) || table.rehash_index < -1)
      return UINT64_MAX;
    return table.used[0] + table.used[1];
  }
  DictView dict;
  if (!peek(at, &dict) || dict.type == nullptr ||
      !tables_fit(dict.exponent, dict.table[0], dict.table[1]) || dict.rehash_index < -1)
    return UINT64_MAX;
  return dict.used[0] + dict.used[1];
}

bool list_fits(const void* at) {
  QuicklistView list;
  QuicklistNodeView first, last;
  if (!peek(at, &list) || list.nodes == 0 || list.count < list.nodes || !peek(list.head, &first) ||
      !peek(list.tail, &last))
    return false;
  if (first.previous != nullptr || last.next != nullptr ||
      (list.nodes == 1) != (list.head == list.tail))
    return false;
  if (first.count() == 0 || first.bytes == 0) return false;
  uint32_t bytes = 0;  // the first word of a listpack
  // not compressed; a listpack
  const bool plain = (first.marks >> 16 & 3) == 1 && (first.marks >> 18 & 3) == 2;
  return !plain || (sys::peek(first.entry, &bytes, sizeof bytes) == 0 && bytes == first.bytes);
}

bool sorted_set_fits(Keyspace keyspace, const void* at) {
  ZsetView zset;
  SkiplistView list;
  return peek(at, &zset) && peek(zset.skiplist, &list) && list.header != nullptr &&
         list.tail != nullptr && list.length != 0 && list.levels >= 1 && list.levels <= 64 &&
         members_of(keyspace, zset.members) == list.length;
}

bool stream_fits(const void* at) {
  StreamView stream;
  RaxView tree;
  return peek(at, &stream) && peek(stream.tree, &tree) && tree.head != nullptr && tree.nodes >= 1 &&
         tree.elements <= tree.nodes && (stream.length == 0) == (tree.elements == 0);
}

}  // namespace

bool collection_fits(Keyspace keyspace, const ObjectView& object) {
  const uint64_t members =
      object.encoding() == kHashTable ? members_of(keyspace, object.pointer) : 0;
  switch (object.encoding()) {
    case kHashTable:
      return members != UINT64_MAX && members != 0;
    case kSkiplist:
      return sorted_set_fits(keyspace, object.pointer);
    case kQuicklist:
      return list_fits(object.pointer);
    case kStream:
      return stream_fits(object.pointer);
    default:
      return true;
  }
}

bool collection_known(Keyspace keyspace, const ObjectView& object) {
  std::atomic<uint8_t>& looks = g_looks[object.encoding() % kKinds];
  const uint8_t seen = looks.load(std::memory_order_relaxed);
  if (__builtin_expect(seen >= kProbesEach, 1)) return seen != kWrong;
  if (collection_fits(keyspace, object)) {
    looks.store(static_cast<uint8_t>(seen + 1), std::memory_order_relaxed);
    return true;
  }
  looks.store(kWrong, std::memory_order_relaxed);
  constexpr const char* kNames[kKinds] = {
      "", "", "hashes and sets", "", "", "", "", "sorted sets", "", "lists", "streams"};
  log_warning(
      "the input gate looks no further into %s: this server lays them out in a way that is not "
      "known here",
      kNames[object.encoding() % kKinds]);
  return false;
}

}  // namespace lunar::redis
