// SPDX-License-Identifier: Apache-2.0
// See key_lookup.h.
#include "key_lookup.h"

#include "freed_lookup.h"
#include "lookup_steps.h"
#include "pager/pager.h"
#include "sys/mem.h"
#include "value_lookup.h"

namespace lunar::redis {
namespace {

// The lookup of one command, key after key.
struct CommandLookup {
  const DatabaseView& database;
  const CommandKeys& keys;
  const Command& command;
  const LookupCursor* cursor;  // nullptr: the command comes after a cold one
  KeyLookup& lookup;
  ValueLookup& whole;
  bool wholly = false;                 // values are looked up as a whole,
  uint64_t elements_max = UINT64_MAX;  // up to so many elements
  unsigned nth = 0;                    // the next key

  // nullptr: the key has no object, or the object is missing.
  const ObjectView* object_of(unsigned argument) {
    const auto* object =
        static_cast<const ObjectView*>(lookup.look_up(database.keys, command.argument[argument]));
    return object != nullptr && lookup.have(object, sizeof *object) ? object : nullptr;
  }

  // If the command compares sets, the size of the smallest (or first) set bounds the size of those
  // that are looked up as a whole. False: that size is not known yet.
  bool bound_elements() {
    if (keys.reach != Reach::kSmallest && keys.reach != Reach::kLikeFirst) return true;
    unsigned n = 0, sources = 0;
    for_each_key(keys, command, [&](unsigned argument) {
      if (wants_of_key(keys, command, n++) != Wants::kValue || lookup.missing->full()) return;
      if (sources++ != 0 && keys.reach == Reach::kLikeFirst) return;
      uint64_t count = 0;
      if (const ObjectView* object = object_of(argument); object != nullptr)
        (void)whole.elements(*object, &count);
      if (count < elements_max) elements_max = count;
    });
    if (elements_max < UINT64_MAX / ValueLookup::kMuchLarger)
      elements_max *= ValueLookup::kMuchLarger;
    return lookup.misses == 0 && !lookup.missing->full();
  }

  void key(unsigned argument) {
    const unsigned n = nth++, misses = lookup.misses;
    if (lookup.missing->full()) {
      ++lookup.misses;
      return;
    }
    (void)lookup.look_up(database.expires, command.argument[argument]);
    const ObjectView* object = object_of(argument);
    const bool known = lookup.misses == misses;
    const Wants wants = wants_of_key(keys, command, n);
    if (object != nullptr && wants == Wants::kValue) return value(*object, argument, n);
    if ((object == nullptr || wants == Wants::kObject || freed(*object, wants, n)) && known)
      whole.pass(n);
  }

  // Whether all memory is in DRAM that freeing the value reads. Earlier looks have settled the keys
  // before the cursor; each look does at least one key.
  bool freed(const ObjectView& object, Wants wants, unsigned n) {
    if (cursor != nullptr && n < cursor->key) return true;
    const unsigned misses = lookup.misses;
    if (cursor != nullptr && lookup.missing->units == 0)
      ++lookup.misses;
    else
      look_up_freed(lookup, object, wants == Wants::kFreedLater);
    return lookup.misses == misses;
  }

  void value(const ObjectView& object, unsigned argument, unsigned n) {
    const bool as_a_whole = wholly && (n == 0 || keys.reach != Reach::kFirst);
    if (as_a_whole && whole.passed(n)) return;
    if (!as_a_whole || !whole.turn_of(n)) return lookup.value_of(object, command, keys);
    uint64_t count = 0;
    if (elements_max == UINT64_MAX || (whole.elements(object, &count) && count <= elements_max))
      return whole.value(object, command, keys, argument, n);
    lookup.value_of(object, command, keys);
    if (lookup.misses == 0) whole.pass(n);
  }
};

uint64_t page_of(uintptr_t address) { return address / sys::page_bytes(); }

}  // namespace

void NonresidentRanges::add(const void* address, size_t bytes) {
  if (full()) return;
  range[count++] = {address, bytes};
  const auto begin = reinterpret_cast<uintptr_t>(address);
  this->bytes += (page_of(begin + bytes - 1) - page_of(begin) + 1) * sys::page_bytes();
}

void NonresidentRanges::add_new(const void* address, size_t bytes, unsigned among) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (unsigned i = count > among ? count - among : 0; i < count; ++i) {
    const auto at = reinterpret_cast<uintptr_t>(range[i].address);
    if (page_of(at) <= page_of(begin) &&
        page_of(begin + bytes - 1) <= page_of(at + range[i].bytes - 1))
      return;
  }
  add(address, bytes);
}

bool look_up_command(const ServerLayout& layout, const DatabaseView& database,
                     const CommandKeys& keys, const Command& command, bool first_look,
                     LookupCursor* cursor, NonresidentRanges* missing) {
  KeyLookup lookup{layout, missing};
  LookupCursor nowhere;
  PagesSeen seen;
  ValueLookup whole(lookup, cursor == nullptr ? &nowhere : cursor);
  CommandLookup all{database, keys, command, cursor, lookup, whole};
  lookup.removes =
      layout.keyspace() == Keyspace::kTables && takes_out(keys, wants_of_key(keys, command, 0));
  if (cursor != nullptr && keys.reach != Reach::kTop) {
    lookup.seen = &seen;
    all.wholly = all.bound_elements();
  }
  for_each_key(keys, command, [&](unsigned argument) { all.key(argument); });
  if (lookup.misses == 0 && first_look) lookup.count_uses();
  return lookup.misses == 0;
}

}  // namespace lunar::redis
