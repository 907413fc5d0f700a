// SPDX-License-Identifier: Apache-2.0
// See save_ahead.h.
#include "save_ahead.h"

#include "base/units.h"
#include "lunar/lunar.h"
#include "pager/pager.h"
#include "sys/thread.h"
#include "walk_steps.h"

namespace lunar::redis {
namespace {

constexpr unsigned kGroup = 256;         // buckets
constexpr unsigned kRoundsMax = 24;
constexpr unsigned kMarkersMax = PassedOver::kMax / 2;
constexpr unsigned kBigMax = 64;         // large objects of a group that are gone through
constexpr unsigned kListNodesMax = 256;  // of a list, looked at in one round
constexpr uint64_t kLookNs = 300000, kLookSlowlyNs = 5000000, kLookSlowlyAfterNs = 1000000000;

enum class Holds { kObjects, kFields, kScores };   // what the values of a dictionary are

// What was brought in, and how far the saver is.
class Lead {
 public:
  void start(uint64_t pages_max) { max_ = pages_max; }
  const PassedOver& passed_over() const { return markers_; }
  void brought_in(uint64_t pages) { total_ += pages; }
  // Everything brought in before is used up when the saver gets here. False: this page cannot be a marker, or there are enough.
  bool mark(const void* address) {
    const AtomicPageWord* word = page_word_of(address);
    const PageWord seen = word->load(std::memory_order_relaxed);
    if (markers_.count == kMarkersMax || seen.state() != PageState::kEvicted) return false;
    before_[markers_.count] = seen.raw;
    at_[markers_.count] = total_;
    markers_.word[markers_.count++] = word;
    return true;
  }
  // Waits until there may be more.
  void wait() {
    const uint64_t since = sys::now_ns();
    for (;;) {
      look();
      if (markers_.count == 0 || (total_ - reached_ < max_ && markers_.count < kMarkersMax)) return;
      sys::sleep_ns(sys::now_ns() - since < kLookSlowlyAfterNs ? kLookNs : kLookSlowlyNs);
    }
  }

 private:
  void look() {
    unsigned last = 0;
    for (unsigned i = 0; i < markers_.count; ++i) {
      if (markers_.word[i]->load(std::memory_order_relaxed).raw == before_[i]) continue;   // evicted anew, it has another time
      reached_ = at_[i];
      last = i + 1;
    }
    if (last == 0) return;
    markers_.count -= last;
    for (unsigned i = 0; i < markers_.count; ++i) {
      markers_.word[i] = markers_.word[i + last];
      before_[i] = before_[i + last];
      at_[i] = at_[i + last];
    }
  }

  PassedOver markers_;
  uint64_t before_[kMarkersMax] = {}, at_[kMarkersMax] = {};
  uint64_t total_ = 0, reached_ = 0, max_ = 0;
};

struct Big {
  DictView* dict;
  Holds holds;
};

struct SaveAhead {
  const ServerLayout* layout = nullptr;
  Lead lead;
  Missing missing{};

  void databases();
  void dictionary(DictView* dict, Holds holds, const DatabaseView* database);
  void group(EntryView** first, unsigned count, Holds holds, const DatabaseView* database, Big* big, unsigned* big_count);
  bool bucket(EntryView** slot, Holds holds, const DatabaseView* database, bool* at_value);
  void object(Walk& walk, const ObjectView* object);
  void list(Walk& walk, QuicklistNodeView* node);
  void fetch();
};

constinit SaveAhead g_ahead;

void SaveAhead::fetch() {
  if (missing.count == 0) return;
  (void)pager_prefetch(missing.range, missing.count);
  for (unsigned i = 0; i < missing.count; ++i) lead.brought_in(missing.range[i].bytes / page_bytes() + 1);
  missing.count = 0;
}

void SaveAhead::list(Walk& walk, QuicklistNodeView* node) {
  for (unsigned n = 0; node != nullptr && n < kListNodesMax && !missing.full(); ++n) {
    walk.list_end(node);
    if (!walk.have(node, sizeof *node)) return;
    node = node->next;
  }
}

void SaveAhead::object(Walk& walk, const ObjectView* object) {
  const char* at = object->pointer;
  if (at == nullptr || walk.compact(*object)) return;
  if (object->encoding() == kHashTable) {
    (void)walk.have(at, sizeof(DictView));
  } else if (object->encoding() == kSkiplist) {
    const auto* zset = reinterpret_cast<const ZsetView*>(at);
    if (walk.have(zset, sizeof *zset) && walk.have(zset->skiplist, kSkiplistBytes)) (void)walk.have(zset->members, sizeof(DictView));
  } else if (object->encoding() == kQuicklist) {
    const auto* quicklist = reinterpret_cast<const QuicklistView*>(at);
    if (walk.have(quicklist, 40)) list(walk, quicklist->head);
  } else if (object->encoding() == kStream) {
    (void)walk.have(at, kStreamBytes);
  }
}

// Notes what is missing. True: nothing that is to be fetched. *at_value: the last of it belongs to a value.
bool SaveAhead::bucket(EntryView** slot, Holds holds, const DatabaseView* database, bool* at_value) {
  const unsigned before = missing.count;
  Walk walk{*layout, &missing, true, &lead.passed_over()};
  if (!walk.have(slot, sizeof *slot)) return missing.count == before;
  unsigned n = 0;
  for (EntryView* entry = *slot; entry != nullptr && n < 64 && !missing.full(); ++n, entry = entry->next) {
    if (const Marked marked{reinterpret_cast<uintptr_t>(entry)}; marked.is_key() || marked.has_no_value()) {   // of a set
      if (marked.is_key()) (void)walk.have_text(reinterpret_cast<const char*>(marked.address()));
      break;
    }
    if (!walk.have(entry, sizeof *entry)) break;
    if (walk.have_text(entry->key) && database != nullptr) (void)walk.look_up(database->expires, {entry->key, sds_length(entry->key)});
    const char* value = static_cast<const char*>(entry->value);
    if (value == nullptr) continue;
    const unsigned at = missing.count;
    if (holds == Holds::kFields) (void)walk.have_text(value);
    if (holds == Holds::kScores) (void)walk.have(value - 8, 40);   // the skip list's node: its member, score and links
    if (holds == Holds::kObjects && walk.have(value, sizeof(ObjectView))) {
      object(walk, reinterpret_cast<const ObjectView*>(value));
      *at_value = missing.count > at;
    }
  }
  return missing.count == before;
}

void SaveAhead::group(EntryView** first, unsigned count, Holds holds, const DatabaseView* database, Big* big, unsigned* big_count) {
  uint64_t done[kGroup / 64] = {};
  bool marked = false;
  for (unsigned round = 0, left = count; round < kRoundsMax && left != 0; ++round) {
    for (unsigned i = 0; i < count; ++i) {
      if ((done[i / 64] >> (i % 64) & 1) != 0) continue;
      bool at_value = false;
      if (bucket(first + i, holds, database, &at_value)) {
        done[i / 64] |= uint64_t{1} << (i % 64);
        --left;
      } else if (at_value && !marked && missing.count != 0) {
        marked = lead.mark(missing.range[missing.count - 1].address);
        if (marked) --missing.count;
      }
      if (missing.full()) fetch();
    }
    fetch();
  }
  if (holds != Holds::kObjects) return;
  for (unsigned i = 0; i < count && *big_count < kBigMax; ++i) {
    Missing ignored;
    ignored.count = 0;
    Walk walk{*layout, &ignored};
    if (!walk.have(first + i, sizeof *first)) continue;
    for (EntryView* entry = first[i]; entry != nullptr && walk.have(entry, sizeof *entry) && *big_count < kBigMax; entry = entry->next) {
      const auto* object = static_cast<const ObjectView*>(entry->value);
      if (object == nullptr || !walk.have(object, sizeof *object) || object->pointer == nullptr) continue;
      const bool known = object->type() != kHash || layout->keyspace() == Keyspace::kDict;   // later ones keep fields in another form
      if (object->encoding() == kHashTable && known)
        big[(*big_count)++] = {reinterpret_cast<DictView*>(const_cast<char*>(object->pointer)), Holds::kFields};
      if (object->encoding() == kSkiplist && walk.have(object->pointer, sizeof(ZsetView)))
        big[(*big_count)++] = {static_cast<DictView*>(reinterpret_cast<const ZsetView*>(object->pointer)->members), Holds::kScores};
    }
  }
}

void SaveAhead::dictionary(DictView* dict, Holds holds, const DatabaseView* database) {
  Big big[kBigMax];
  for (int t = 0; t < 2 && dict->table[t] != nullptr; ++t) {
    const uint64_t slots = uint64_t{1} << dict->exponent[t];
    for (uint64_t at = 0; at < slots; at += kGroup) {
      lead.wait();
      unsigned big_count = 0;
      group(dict->table[t] + at, static_cast<unsigned>(slots - at < kGroup ? slots - at : kGroup), holds, database, big, &big_count);
      for (unsigned i = 0; i < big_count; ++i) dictionary(big[i].dict, big[i].holds, nullptr);
    }
  }
}

void SaveAhead::databases() {
  lunar_stats stats{};
  stats.struct_size = sizeof stats;
  (void)lunar_get_stats(&stats);
  const uint64_t pages = stats.dram_budget_bytes / page_bytes() / 64;
  lead.start(pages < 256 ? 256 : pages > 2048 ? 2048 : pages);
  for (int i = 0; const DatabaseView* database = layout->database(i); ++i) {
    if (layout->keyspace() == Keyspace::kDict) {
      dictionary(static_cast<DictView*>(database->keys), Holds::kObjects, database);
      continue;
    }
    const auto* store = static_cast<const DictStoreView*>(database->keys);
    for (int64_t d = 0; store->dicts != nullptr && d < store->count; ++d)
      if (store->dicts[d] != nullptr) dictionary(store->dicts[d], Holds::kObjects, database);
  }
}

void run(void*) { g_ahead.databases(); }

}  // namespace

void save_ahead_start(const ServerLayout& layout) {
  if (!pager_armed() || layout.keyspace() == Keyspace::kTables) return;
  g_ahead.layout = &layout;
  pthread_t thread;
  sys::ThreadSpec spec;
  spec.name = "lunar-ahead";
  spec.run = run;
  spec.program_files = true;
  (void)sys::thread_start(spec, &thread);
}

}  // namespace lunar::redis
