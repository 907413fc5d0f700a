// SPDX-License-Identifier: Apache-2.0
// See walk.h.
#include "walk.h"

#include <cstring>

#include "pager/evictor.h"
#include "pager/pager.h"
#include "pager/region.h"
#include "walk_steps.h"

namespace lunar::redis {
namespace {

constexpr unsigned kChainMax = 64;   // a longer chain of colliding keys is left to the server

void mark_used(AtomicPageWord& word, PageWord seen) {
  if (seen.heat() >= kHeatFault || seen.state() != PageState::kResident) return;
  (void)word.compare_exchange_strong(seen, seen.with_heat(kHeatFault), std::memory_order_relaxed);
}

// Whether touching the bytes needs no I/O. Pages outside regions count as resident, as do those never written.
bool resident(const void* address, size_t bytes) {
  const Region* region = region_find(address);
  if (region == nullptr) return true;
  const size_t page = page_bytes();
  const auto start = static_cast<uint64_t>(static_cast<const char*>(address) - region->base);
  for (uint64_t p = start / page; p <= (start + bytes - 1) / page && p < region->pages; ++p) {
    const PageWord seen = region->words[p].load(std::memory_order_relaxed);
    const PageState state = seen.state();
    if (state == PageState::kEvicted || state == PageState::kInFrame || state == PageState::kBusy) return false;
    mark_used(region->words[p], seen);
  }
  return true;
}

}  // namespace

const AtomicPageWord* page_word_of(const void* address) {
  const Region* region = region_find(address);
  return region == nullptr ? nullptr : &region->words[static_cast<uint64_t>(static_cast<const char*>(address) - region->base) / page_bytes()];
}

bool Walk::have(const void* address, size_t bytes) {
  if (resident(address, bytes)) return true;
  complete = false;
  if (passed_over == nullptr || !passed_over->has(page_word_of(address))) missing->add(address, bytes);
  return false;
}

bool Walk::have_text(const char* text) {
  if (!have(text - 1, 1)) return false;
  const unsigned header = sds_header(static_cast<uint8_t>(text[-1]));
  if (header == 0 || !have(text - header, header)) return false;
  uint64_t length = sds_length(text);
  return have(text - header, header + (length < kValueBytesMax ? length : kValueBytesMax) + 1);
}

bool Walk::chain(EntryView* entry, Slice key, EntryView** found) {
  for (unsigned n = 0; entry != nullptr && n < kChainMax; ++n, entry = entry->next) {
    if (!have(entry, sizeof *entry) || !have_text(entry->key)) return false;
    if (sds_length(entry->key) == key.bytes && memcmp(entry->key, key.data, key.bytes) == 0) {
      *found = entry;
      return true;
    }
  }
  return true;
}

EntryView* Walk::find(DictView* dict, Slice key) {
  if (dict == nullptr || !have(dict, sizeof *dict) || dict->used[0] + dict->used[1] == 0) return nullptr;
  const uint64_t hash = layout.hash(key);
  EntryView* found = nullptr;
  for (int t = 0; t < 2 && found == nullptr && dict->table[t] != nullptr; ++t) {
    EntryView** slot = dict->table[t] + (hash & ((uint64_t{1} << dict->exponent[t]) - 1));
    if (!have(slot, sizeof *slot) || !chain(*slot, key, &found)) return nullptr;
  }
  return found;
}

void Walk::members_of(DictView* dict, const Command& command, const CommandKeys& keys, bool values) {
  if (keys.member == 0 || !have(dict, sizeof *dict)) return;
  for (unsigned i = static_cast<unsigned>(keys.member); i < command.kept && !missing->full(); i += static_cast<unsigned>(keys.member_step)) {
    EntryView* entry = find(dict, command.argument[i]);
    if (entry != nullptr && values && entry->value != nullptr) (void)have_text(static_cast<const char*>(entry->value));
  }
}

void Walk::list_end(QuicklistNodeView* node) {
  if (node == nullptr || !have(node, sizeof *node)) return;
  (void)have(node->entry, node->bytes == 0 ? 1 : node->bytes < kValueBytesMax ? node->bytes : kValueBytesMax);
}

bool Walk::compact(const ObjectView& object) {
  const char* at = object.pointer;
  switch (object.encoding()) {
    case kRaw:
    case kEmbedded: (void)have_text(at); return true;
    case kListpack:
    case kZiplist: {
      uint32_t bytes;
      if (!have(at, sizeof bytes)) return true;
      memcpy(&bytes, at, sizeof bytes);
      (void)have(at, bytes == 0 ? 1 : bytes < kValueBytesMax ? bytes : kValueBytesMax);
      return true;
    }
    case kIntset: {
      uint32_t header[2];
      if (!have(at, sizeof header)) return true;
      memcpy(header, at, sizeof header);
      const uint64_t bytes = sizeof header + uint64_t{header[0]} * header[1];
      (void)have(at, bytes < kValueBytesMax ? bytes : kValueBytesMax);
      return true;
    }
    default: return false;
  }
}

void Walk::value_of(const ObjectView* object, const Command& command, const CommandKeys& keys, bool first_key) {
  const char* at = object->pointer;
  if (at == nullptr || compact(*object)) return;
  switch (object->encoding()) {
    case kHashTable: {
      auto* dict = reinterpret_cast<DictView*>(const_cast<char*>(at));
      if (have(dict, sizeof *dict) && first_key) members_of(dict, command, keys, object->type() == 4);
      break;
    }
    case kSkiplist: {
      const auto* zset = reinterpret_cast<const ZsetView*>(at);
      if (!have(zset, sizeof *zset) || !have(zset->skiplist, kSkiplistBytes) || !first_key) return;
      members_of(zset->members, command, keys, false);
      break;
    }
    case kQuicklist: {
      const auto* list = reinterpret_cast<const QuicklistView*>(at);
      if (!have(list, 40)) return;
      list_end(list->head);
      if (list->tail != list->head) list_end(list->tail);
      break;
    }
    case kStream: (void)have(at, kStreamBytes); break;
    default: break;
  }
}

void Missing::add(const void* address, size_t bytes) {
  if (!full()) range[count++] = {address, bytes};
}

bool walk_command(const ServerLayout& layout, const DatabaseView& database, const CommandKeys& keys, const Command& command,
                  Missing* missing) {
  Walk walk{layout, missing};
  unsigned nth = 0;
  for_each_key(keys, command, [&](unsigned argument) {
    const bool first = nth++ == 0;
    if (missing->full()) {
      walk.complete = false;
      return;
    }
    const Slice key = command.argument[argument];
    (void)walk.find(database.expires, key);
    const EntryView* entry = walk.find(database.keys, key);
    if (entry == nullptr) return;
    const auto* object = static_cast<const ObjectView*>(entry->value);
    if (walk.have(object, sizeof *object) && keys.wants == Wants::kValue) walk.value_of(object, command, keys, first);
  });
  return walk.complete;
}

}  // namespace lunar::redis
