// SPDX-License-Identifier: Apache-2.0
// The gate's probe of collections, on forged ones. Collections laid out as in a server fit. They do
// not fit when a word is moved, wild or contradicts the others.
#include <cstring>

#include "adapters/gate/collection_probe.h"
#include "adapters/gate/lookup_steps.h"
#include "tests/catch.h"

using namespace lunar::redis;

namespace {

ObjectView object(unsigned type, unsigned encoding, const void* at) {
  ObjectView view{};
  view.type_encoding_lru = type | encoding << 4;
  view.references = 1 << 2;
  view.pointer = static_cast<const char*>(at);
  return view;
}

struct Node {
  Node *previous, *next;
  const void* entry;
  uint64_t bytes;
  uint16_t elements;
  uint8_t encoding_container;
};
struct List {
  Node *head, *tail;
  uint64_t elements, nodes;
};

// Two nodes; each test changes one thing and puts it back.
struct ForgedList {
  uint32_t packed[2] = {sizeof(packed), 0};
  Node first{nullptr, &second, packed, sizeof(packed), 3, 1 | 2 << 2},
      second{&first, nullptr, packed, sizeof(packed), 3, 1 | 2 << 2};
  List list{&first, &second, 6, 2};
  bool fits(Keyspace keyspace = Keyspace::kDict) {
    return collection_fits(keyspace, object(1, kQuicklist, &list));
  }
};

struct ForgedDict {
  int type = 0;
  EntryView* slots[8] = {};
  DictView dict{&type, {slots, nullptr}, {5, 0}, -1, 0, {3, -1}};
};

template <class T, class Value, class Fits>
bool fits_with(T& place, Value other, Fits fits) {
  const T was = place;
  place = T(other);
  const bool result = fits();
  place = was;
  return result;
}

void* wild() { return reinterpret_cast<void*>(uintptr_t{0x7000'0000'0000} + 64); }

}  // namespace

TEST_CASE("probe: a list fits as servers have it only") {
  ForgedList forged;
  auto fits = [&] { return forged.fits(); };
  REQUIRE(fits());
  REQUIRE(forged.fits(Keyspace::kTables));
  CHECK_FALSE(fits_with(forged.list.head, static_cast<Node*>(wild()), fits));
  CHECK_FALSE(fits_with(forged.list.tail, nullptr, fits));
  CHECK_FALSE(fits_with(forged.list.tail, &forged.first, fits));
  CHECK_FALSE(fits_with(forged.list.nodes, 0, fits));
  CHECK_FALSE(fits_with(forged.list.nodes, 1, fits));
  CHECK_FALSE(fits_with(forged.list.nodes, 7, fits));  // more than elements
  CHECK_FALSE(fits_with(forged.first.previous, &forged.second, fits));
  CHECK_FALSE(fits_with(forged.second.next, &forged.first, fits));
  CHECK_FALSE(fits_with(forged.first.entry, wild(), fits));
  CHECK_FALSE(fits_with(forged.first.bytes, 9, fits));
  CHECK_FALSE(fits_with(forged.packed[0], 77, fits));
  CHECK_FALSE(fits_with(forged.first.elements, 0, fits));
  // compressed: not looked into
  CHECK(fits_with(forged.packed[0], 77,
                  [&] { return fits_with(forged.first.encoding_container, 2 | 2 << 2, fits); }));
  CHECK_FALSE(collection_fits(Keyspace::kDict, object(1, kQuicklist, wild())));
  CHECK_FALSE(collection_fits(Keyspace::kDict,
                              object(1, kQuicklist, reinterpret_cast<char*>(&forged.list) + 1)));
}

TEST_CASE("probe: a hash, a set and a sorted set") {
  ForgedDict forged;
  const auto hash = object(4, kHashTable, &forged.dict);
  auto fits = [&] { return collection_fits(Keyspace::kDicts, hash); };
  REQUIRE(fits());
  CHECK_FALSE(fits_with(forged.dict.used[0], 0, fits));
  CHECK_FALSE(fits_with(forged.dict.table[0], static_cast<EntryView**>(wild()), fits));
  CHECK_FALSE(fits_with(forged.dict.exponent[0], 90, fits));
  CHECK_FALSE(fits_with(forged.dict.exponent[1], 4, fits));
  CHECK_FALSE(fits_with(forged.dict.type, nullptr, fits));
  CHECK_FALSE(fits_with(forged.dict.rehash_index, -2, fits));
  const SkiplistNodeView node{};
  SkiplistView skiplist{&node, &node, 5, 3};
  ZsetView zset{&forged.dict, &skiplist};
  const auto sorted = object(3, kSkiplist, &zset);
  auto sorted_fits = [&] { return collection_fits(Keyspace::kDict, sorted); };
  REQUIRE(sorted_fits());
  CHECK_FALSE(fits_with(skiplist.length, 6, sorted_fits));
  CHECK_FALSE(fits_with(skiplist.levels, 0, sorted_fits));
  CHECK_FALSE(fits_with(skiplist.header, nullptr, sorted_fits));
  CHECK_FALSE(fits_with(zset.members, wild(), sorted_fits));
  // swapped
  CHECK_FALSE(fits_with(zset.members, static_cast<void*>(&skiplist), [&] {
    return fits_with(zset.skiplist, reinterpret_cast<SkiplistView*>(&forged.dict), sorted_fits);
  }));
  BucketView bucket{};
  TableView table{&forged, -1, {&bucket, nullptr}, {5, 0}, {0, -1}};
  zset.members = &table;
  CHECK(collection_fits(Keyspace::kTables, sorted));
  CHECK_FALSE(collection_fits(Keyspace::kDict, sorted));
}

TEST_CASE("probe: a stream") {
  struct {
    const void* head;
    uint64_t keys, nodes;
  } tree{&tree, 2, 9};
  struct {
    const void* tree;
    uint64_t length, rest[6];
  } stream{&tree, 70, {}};
  auto fits = [&] { return collection_fits(Keyspace::kDict, object(6, kStream, &stream)); };
  REQUIRE(fits());
  CHECK_FALSE(fits_with(stream.tree, wild(), fits));
  CHECK_FALSE(fits_with(stream.length, 0, fits));
  CHECK_FALSE(fits_with(tree.keys, 10, fits));
  CHECK_FALSE(fits_with(tree.nodes, 0, fits));
  CHECK_FALSE(fits_with(tree.head, nullptr, fits));
  tree.keys = stream.length = 0;  // all of it was trimmed away
  CHECK(fits());
}

TEST_CASE("probe: a kind that did not fit once is not probed again, other kinds are") {
  ForgedList forged;
  ForgedDict dict;
  const auto list = object(1, kQuicklist, &forged.list), hash = object(4, kHashTable, &dict.dict);
  CHECK(collection_known(Keyspace::kDict, list));
  forged.list.nodes = 0;
  CHECK_FALSE(collection_known(Keyspace::kDict, list));
  forged.list.nodes = 2;
  CHECK_FALSE(collection_known(Keyspace::kDict, list));
  for (unsigned i = 0; i < kProbesEach; ++i) CHECK(collection_known(Keyspace::kDict, hash));
  dict.dict.used[0] = 0;  // not looked at any more
  CHECK(collection_known(Keyspace::kDict, hash));
}
