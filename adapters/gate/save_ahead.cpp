// SPDX-License-Identifier: Apache-2.0
// See save_ahead.h.
#include "save_ahead.h"

#include "base/units.h"
#include "lookup_steps.h"
#include "lunar/lunar.h"
#include "pager/pager.h"
#include "sys/thread.h"

namespace lunar::redis {
namespace {

constexpr unsigned kGroup = 256;      // buckets of one key or so
constexpr unsigned kTableGroup = 32;  // buckets of up to 7 keys
constexpr unsigned kRoundsMax = 24;
constexpr unsigned kMarkersMax = SkippedPages::kMax / 2;
constexpr unsigned kBigMax = 64;         // large objects of a group that are gone through
constexpr unsigned kListNodesMax = 256;  // of a list, looked at in one round
constexpr uint64_t kLookNs = 300000, kLookSlowlyNs = 5000000, kLookSlowlyAfterNs = 1000000000;
constexpr uint64_t kPatienceNs = 4000000000;                       // for the saver to get to a marker
constexpr uint64_t kPaceNs = 20000, kPacePatienceNs = 1000000000;  // of the saver, for a marker to be set

// what the values of a dictionary are; what a table has
enum class Holds { kObjects, kFields, kScores, kKeyedObjects };

// The last marker, as the saver sees it: as long as its page is what it was, the saver is behind the reader.
struct LastMarker {
  std::atomic<PageView> page{};
  std::atomic<uint64_t> before{0};
  bool ahead() const {
    const PageView at = page.load(std::memory_order_acquire);
    return at && at.is_still(before.load(std::memory_order_relaxed));
  }
  void set(PageView at, uint64_t mark) {
    page.store(PageView(), std::memory_order_relaxed);
    before.store(mark, std::memory_order_release);
    page.store(at, std::memory_order_release);
  }
};

// What was brought in, and how far the saver is.
class Lead {
 public:
  void start(uint64_t pages_max) {
    markers_.count = 0;
    total_ = reached_ = 0;
    max_ = pages_max;
  }
  const LastMarker& last() const { return last_; }
  void forget_last() { last_.set(PageView(), 0); }
  const SkippedPages& skipped() const { return markers_; }
  void brought_in(uint64_t pages) { total_ += pages; }
  // Everything brought in before is used up when the saver gets here. False: this page cannot be a marker, or there are
  // enough.
  bool mark(const void* address) {
    const PageView page = page_view(address);
    const uint64_t mark = page.evicted_mark();
    if (markers_.count == kMarkersMax || mark == 0) return false;
    before_[markers_.count] = mark;
    at_[markers_.count] = total_;
    markers_.page[markers_.count++] = page;
    last_.set(page, mark);
    return true;
  }
  // Waits until there may be more, or `stop`. A saver that got ahead has left its markers behind, and they may be
  // evicted again: they are given up.
  void wait(const std::atomic<bool>& stop) {
    const uint64_t since = sys::now_ns();
    for (;;) {
      look();
      if (stop.load(std::memory_order_relaxed) || markers_.count == 0 ||
          (total_ - reached_ < max_ && markers_.count < kMarkersMax))
        return;
      if (sys::now_ns() - since > kPatienceNs) {
        reached_ = total_;
        markers_.count = 0;
        return;
      }
      sys::sleep_ns(sys::now_ns() - since < kLookSlowlyAfterNs ? kLookNs : kLookSlowlyNs);
    }
  }

 private:
  void look() {
    unsigned last = 0;
    for (unsigned i = 0; i < markers_.count; ++i) {
      if (markers_.page[i].is_still(before_[i])) continue;  // evicted anew, it has another time
      reached_ = at_[i];
      last = i + 1;
    }
    if (last == 0) return;
    markers_.count -= last;
    for (unsigned i = 0; i < markers_.count; ++i) {
      markers_.page[i] = markers_.page[i + last];
      before_[i] = before_[i + last];
      at_[i] = at_[i + last];
    }
  }

  SkippedPages markers_;
  LastMarker last_;
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
  NonresidentRanges missing{};
  std::atomic<bool> stop{false};
  std::atomic<bool> reading{false};  // the saver keeps behind
  bool running = false;              // a thread that save_ahead_stop joins
  pthread_t thread{};
  bool stopped() const { return stop.load(std::memory_order_relaxed); }

  void databases();
  void database(const DatabaseView& database);
  void dictionary(DictView* dict, Holds holds, const DatabaseView* database);
  void buckets(const char* first, uint64_t count, Holds holds, const DatabaseView* database);
  void group(const char* first, unsigned count, Holds holds, const DatabaseView* database);
  void note_big(EntryView* const* first, unsigned count, Big* big, unsigned* big_count);
  bool bucket(const char* slot, Holds holds, const DatabaseView* database, bool* at_value);
  void entries(KeyLookup& lookup, EntryView* const* slot, Holds holds, const DatabaseView* database, bool* at_value);
  void keyed_objects(KeyLookup& lookup, const BucketView* bucket, const DatabaseView& database, bool* at_value);
  void object(KeyLookup& lookup, const ObjectView* object);
  void list(KeyLookup& lookup, QuicklistNodeView* node);
  void fetch();
};

constinit SaveAhead g_ahead;

void SaveAhead::fetch() {
  if (missing.count == 0) return;
  (void)pager_prefetch(missing.range, missing.count);
  for (unsigned i = 0; i < missing.count; ++i) lead.brought_in(missing.range[i].bytes / page_bytes() + 1);
  missing.count = 0;
}

void SaveAhead::list(KeyLookup& lookup, QuicklistNodeView* node) {
  for (unsigned n = 0; node != nullptr && n < kListNodesMax && !missing.full() && !stopped(); ++n) {
    lookup.list_end(node);
    if (!lookup.have(node, sizeof *node)) return;
    node = node->next;
  }
}

void SaveAhead::object(KeyLookup& lookup, const ObjectView* object) {
  const char* at = object->pointer;
  if (at == nullptr || lookup.compact(*object)) return;
  if (object->encoding() == kHashTable) {
    (void)lookup.have(at, sizeof(DictView));
  } else if (object->encoding() == kSkiplist) {
    const auto* zset = reinterpret_cast<const ZsetView*>(at);
    if (lookup.have(zset, sizeof *zset) && lookup.have(zset->skiplist, kSkiplistBytes))
      (void)lookup.have(zset->members, sizeof(DictView));
  } else if (object->encoding() == kQuicklist) {
    const auto* quicklist = reinterpret_cast<const QuicklistView*>(at);
    if (lookup.have(quicklist, 40)) list(lookup, quicklist->head);
  } else if (object->encoding() == kStream) {
    (void)lookup.have(at, kStreamBytes);
  }
}

// The key is resident as far as have_text() looks; of a child that does other things than save, it may be no text any
// more.
void look_up_expiry(KeyLookup& lookup, const DatabaseView& database, const char* key) {
  if (const uint64_t bytes = sds_length(key); bytes <= kValueBytesMax)
    (void)lookup.look_up(database.expires, {key, bytes});
}

void SaveAhead::entries(KeyLookup& lookup, EntryView* const* slot, Holds holds, const DatabaseView* database,
                        bool* at_value) {
  if (!lookup.have(slot, sizeof *slot)) return;
  unsigned n = 0;
  for (EntryView* entry = *slot; entry != nullptr && n < kChainMax && !missing.full(); ++n, entry = entry->next) {
    if (!lookup.have(entry, sizeof *entry)) break;
    if (lookup.have_text(entry->key) && database != nullptr) look_up_expiry(lookup, *database, entry->key);
    const char* value = static_cast<const char*>(entry->value);
    if (value == nullptr) continue;
    const unsigned at = missing.count;
    if (holds == Holds::kFields) (void)lookup.have_text(value);
    // the skip list's node: its member, score and links
    if (holds == Holds::kScores) (void)lookup.have(value - 8, 40);
    if (holds == Holds::kObjects && lookup.have(value, sizeof(ObjectView))) {
      object(lookup, reinterpret_cast<const ObjectView*>(value));
      *at_value = missing.count > at;
    }
  }
}

void SaveAhead::keyed_objects(KeyLookup& lookup, const BucketView* bucket, const DatabaseView& database,
                              bool* at_value) {
  for (unsigned n = 0; bucket != nullptr && n < kChainMax && !missing.full(); ++n) {
    if (!lookup.have(bucket, sizeof *bucket)) return;
    for (unsigned i = 0; i < bucket->places() && !missing.full(); ++i) {
      if (!bucket->holds(i)) continue;
      const auto* at = static_cast<const ObjectView*>(bucket->entries[i]);
      const char* key = lookup.key_inside(at);
      if (key == nullptr) continue;
      if (at->has_expiry()) look_up_expiry(lookup, database, key);
      const unsigned before = missing.count;
      object(lookup, at);
      *at_value = missing.count > before;
    }
    bucket = bucket->next();
  }
}

// Notes what is missing. True: nothing that is to be fetched. *at_value: the last of it belongs to a value.
bool SaveAhead::bucket(const char* slot, Holds holds, const DatabaseView* database, bool* at_value) {
  const unsigned before = missing.count;
  KeyLookup lookup{*layout, &missing, true, &lead.skipped(), true};
  if (holds == Holds::kKeyedObjects)
    keyed_objects(lookup, reinterpret_cast<const BucketView*>(slot), *database, at_value);
  else
    entries(lookup, reinterpret_cast<EntryView* const*>(slot), holds, database, at_value);
  return missing.count == before;
}

constexpr size_t stride(Holds holds) { return holds == Holds::kKeyedObjects ? sizeof(BucketView) : sizeof(EntryView*); }

void SaveAhead::group(const char* first, unsigned count, Holds holds, const DatabaseView* database) {
  uint64_t done[kGroup / 64] = {};
  bool marked = false;
  for (unsigned round = 0, left = count; round < kRoundsMax && left != 0; ++round) {
    for (unsigned i = 0; i < count && !stopped(); ++i) {
      if ((done[i / 64] >> (i % 64) & 1) != 0) continue;
      bool at_value = false;
      if (bucket(first + i * stride(holds), holds, database, &at_value)) {
        done[i / 64] |= uint64_t{1} << (i % 64);
        --left;
      } else if (at_value && !marked && missing.count != 0) {
        marked = lead.mark(missing.range[missing.count - 1].address);
        if (marked) --missing.count;
      }
      if (missing.full()) fetch();
    }
    if (stopped()) return;
    fetch();
  }
}

// Large objects of a group whose members are known: hashes and sets of 7.0, sorted sets of 8.0 too.
void SaveAhead::note_big(EntryView* const* first, unsigned count, Big* big, unsigned* big_count) {
  for (unsigned i = 0; i < count && *big_count < kBigMax; ++i) {
    NonresidentRanges ignored;
    ignored.count = 0;
    KeyLookup lookup{*layout, &ignored};
    if (!lookup.have(first + i, sizeof *first)) continue;
    for (EntryView* entry = first[i]; entry != nullptr && lookup.have(entry, sizeof *entry) && *big_count < kBigMax;
         entry = entry->next) {
      const auto* object = static_cast<const ObjectView*>(entry->value);
      if (object == nullptr || !lookup.have(object, sizeof *object) || object->pointer == nullptr) continue;
      if (object->encoding() == kHashTable && layout->keyspace() == Keyspace::kDict)
        big[(*big_count)++] = {reinterpret_cast<DictView*>(const_cast<char*>(object->pointer)), Holds::kFields};
      if (object->encoding() == kSkiplist && lookup.have(object->pointer, sizeof(ZsetView)))
        big[(*big_count)++] = {static_cast<DictView*>(reinterpret_cast<const ZsetView*>(object->pointer)->members),
                               Holds::kScores};
    }
  }
}

void SaveAhead::buckets(const char* first, uint64_t count, Holds holds, const DatabaseView* database) {
  Big big[kBigMax];
  const unsigned step = holds == Holds::kKeyedObjects ? kTableGroup : kGroup;
  for (uint64_t at = 0; at < count && !stopped(); at += step) {
    lead.wait(stop);
    const char* start = first + at * stride(holds);
    const auto n = static_cast<unsigned>(count - at < step ? count - at : step);
    group(start, n, holds, database);
    unsigned big_count = 0;
    if (holds == Holds::kObjects) note_big(reinterpret_cast<EntryView* const*>(start), n, big, &big_count);
    for (unsigned i = 0; i < big_count; ++i) dictionary(big[i].dict, big[i].holds, nullptr);
  }
}

void SaveAhead::dictionary(DictView* dict, Holds holds, const DatabaseView* database) {
  for (int t = 0; t < 2 && dict->table[t] != nullptr; ++t)
    buckets(reinterpret_cast<const char*>(dict->table[t]), uint64_t{1} << dict->exponent[t], holds, database);
}

void SaveAhead::database(const DatabaseView& database) {
  if (database.keys == nullptr) return;
  if (layout->keyspace() == Keyspace::kDict)
    return dictionary(static_cast<DictView*>(database.keys), Holds::kObjects, &database);
  if (layout->keyspace() == Keyspace::kDicts) {
    const auto* store = static_cast<const DictStoreView*>(database.keys);
    for (int64_t i = 0; i < store->count; ++i)
      if (store->dicts[i] != nullptr) dictionary(store->dicts[i], Holds::kObjects, &database);
    return;
  }
  const auto* store = static_cast<const TableStoreView*>(database.keys);
  for (int i = 0; i < store->count; ++i)
    for (int t = 0; t < 2 && store->tables[i] != nullptr; ++t)
      if (const TableView* table = store->tables[i]; table->table[t] != nullptr)
        buckets(reinterpret_cast<const char*>(table->table[t]), uint64_t{1} << table->exponent[t], Holds::kKeyedObjects,
                &database);
}

void SaveAhead::databases() {
  lunar_stats stats{};
  stats.struct_size = sizeof stats;
  (void)lunar_get_stats(&stats);
  const uint64_t pages = stats.dram_budget_bytes / page_bytes() / 64;
  lead.start(pages < 256 ? 256 : pages > 2048 ? 2048 : pages);
  for (int i = 0; const DatabaseView* one = stopped() ? nullptr : layout->database(i); ++i) database(*one);
}

bool anything_cold() {
  lunar_stats stats{};
  stats.struct_size = sizeof stats;
  return lunar_get_stats(&stats) != 0 || stats.evicted_bytes != 0;
}

void run(void*) {
  g_ahead.databases();
  g_ahead.reading.store(false, std::memory_order_release);
}

}  // namespace

void save_ahead_start(const ServerLayout& layout) {
  if (!pager_active() || !anything_cold()) return;  // else the saver would only wait for a reader that finds nothing
  SaveAhead& a = g_ahead;
  a.layout = &layout;
  a.missing.count = 0;
  a.stop.store(false, std::memory_order_relaxed);
  sys::ThreadSpec spec;
  spec.name = "lunar-ahead";
  spec.run = run;
  spec.program_files = true;
  a.lead.forget_last();
  a.reading.store(true, std::memory_order_relaxed);
  a.running = sys::thread_start(spec, &a.thread) == 0;
  if (!a.running) a.reading.store(false, std::memory_order_relaxed);
}

void save_ahead_keep_behind() {
  SaveAhead& a = g_ahead;
  if (!a.reading.load(std::memory_order_acquire) || a.lead.last().ahead()) return;
  const uint64_t since = sys::now_ns();
  while (a.reading.load(std::memory_order_acquire) && !a.lead.last().ahead()) {
    // not begun again
    if (sys::now_ns() - since > kPacePatienceNs) return a.reading.store(false, std::memory_order_relaxed);
    sys::sleep_ns(kPaceNs);
  }
}

void save_ahead_stop() {
  SaveAhead& a = g_ahead;
  if (!a.running) return;
  a.stop.store(true, std::memory_order_relaxed);
  a.reading.store(false, std::memory_order_relaxed);
  sys::thread_end(a.thread);
  a.running = false;
}

}  // namespace lunar::redis
