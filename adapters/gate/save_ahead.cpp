// SPDX-License-Identifier: Apache-2.0
// See save_ahead.h.
#include "save_ahead.h"

#include "base/units.h"
#include "bucket_walk.h"
#include "lunar/lunar.h"
#include "pager/pager.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar::redis {
namespace {

constexpr unsigned kGroup = 256;      // buckets with about one key each
constexpr unsigned kTableGroup = 32;  // buckets of up to 7 keys
constexpr unsigned kRoundsMax = 24;
constexpr unsigned kMarkersMax = SkippedPages::kMax / 2;
constexpr unsigned kSpansMax = 16;         // small tables that are read together
constexpr uint64_t kSpansMembers = 1024;   // members of these tables together
constexpr unsigned kCollectionsMax = 128;  // collections noted before they are read
constexpr unsigned kNodesGroup = 48;       // nodes of a list
constexpr uint64_t kLookNs = 300000, kLookSlowlyNs = 5000000, kLookSlowlyAfterNs = 1000000000;
constexpr uint64_t kPatienceNs = 4000000000;  // for the saver to reach a marker
// kPacePatienceNs: the saver's, until a marker is ahead
constexpr uint64_t kPaceNs = 20000, kPacePatienceNs = 1000000000;

// The last marker, for the saver: while its page has not changed, the saver is behind the reader.
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

// The pages brought in ahead of the saver, and the saver's progress.
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
  // Makes the page a marker: when the saver reaches it, it has used all pages brought in before.
  // False: the page cannot be a marker, or there are enough.
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
  // Waits until more pages may be brought in, or `stop`. If the saver is ahead, its markers may
  // have been evicted again and look unreached: after kPatienceNs they are given up.
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
      if (markers_.page[i].is_still(before_[i])) continue;  // false also if it was evicted again
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

// Buckets that are read together.
struct Span {
  const char* first = nullptr;
  unsigned count = 0;
  Holds holds = Holds::kObjects;
  uint64_t done[kGroup / 64] = {};
  bool is_done(unsigned i) const { return (done[i / 64] >> (i % 64) & 1) != 0; }
};

struct SaveAhead {
  const ServerLayout* layout = nullptr;
  Lead lead;
  NonresidentRanges missing{};
  std::atomic<bool> stop{false};
  std::atomic<bool> reading{false};  // the saver must stay behind
  bool running = false;              // there is a thread for save_ahead_stop to join
  pthread_t thread{};
  bool stopped() const { return stop.load(std::memory_order_relaxed); }

  void databases();
  void database(const DatabaseView& database);
  void table(const char* first, uint64_t count, Holds holds, const DatabaseView* database);
  void group(Span* spans, unsigned count, const DatabaseView* database);
  void collections_in(const Span& span);
  void collections(const Collection* some, unsigned count);
  void list(const QuicklistView* list);
  void fetch();
};

constinit SaveAhead g_ahead;

void SaveAhead::fetch() {
  if (missing.count == 0) return;
  (void)pager_prefetch(missing.range, missing.count);
  for (unsigned i = 0; i < missing.count; ++i)
    lead.brought_in(missing.range[i].bytes / sys::page_bytes() + 1);
  missing.clear();
}

// Fetches the missing pages of all spans, round after round. One page of a value is left out as the
// marker.
void SaveAhead::group(Span* spans, unsigned count, const DatabaseView* database) {
  bool marked = false, more = true;
  for (unsigned round = 0; round < kRoundsMax && more && !stopped(); ++round) {
    more = false;
    for (Span* span = spans; span < spans + count; ++span) {
      for (unsigned i = 0; i < span->count && !stopped(); ++i) {
        if (span->is_done(i)) continue;
        bool at_value = false;
        const unsigned before = missing.count;
        KeyLookup lookup{*layout, &missing, 0, &lead.skipped(), true};
        if (bucket_there(lookup, span->first + i * bucket_bytes(span->holds), span->holds, database,
                         &at_value)) {
          span->done[i / 64] |= uint64_t{1} << (i % 64);
          continue;
        }
        more = true;
        if (at_value && !marked && missing.count > before) {
          marked = lead.mark(missing.range[missing.count - 1].address);
          if (marked) --missing.count;
        }
        if (missing.full()) fetch();
      }
    }
    fetch();
  }
}

void SaveAhead::list(const QuicklistView* list) {
  for (QuicklistNodeView* node = list->head; node != nullptr && !stopped();) {
    lead.wait(stop);
    bool marked = false;
    QuicklistNodeView* next = node;
    for (unsigned round = 0; round < kRoundsMax && !stopped(); ++round) {
      KeyLookup lookup{*layout, &missing, 0, &lead.skipped(), true};
      QuicklistNodeView* at = node;
      for (unsigned n = 0; at != nullptr && n < kNodesGroup && lookup.have(at, sizeof *at);
           ++n, at = at->next) {
        const unsigned before = missing.count;
        lookup.list_end(at);
        if (!marked && missing.count > before) {
          marked = lead.mark(missing.range[missing.count - 1].address);
          if (marked) --missing.count;
        }
      }
      fetch();
      if (lookup.misses != 0) continue;
      next = at;
      break;
    }
    if (next == node) return;  // no progress
    node = next;
  }
}

// Reads small tables together, and large ones one by one.
void SaveAhead::collections(const Collection* some, unsigned count) {
  Span spans[kSpansMax];
  unsigned n = 0;
  uint64_t members = 0;
  auto flush = [&] {
    if (n == 0) return;
    lead.wait(stop);
    group(spans, n, nullptr);
    n = 0;
    members = 0;
  };
  for (unsigned i = 0; i < count && !stopped(); ++i) {
    const Collection& one = some[i];
    if (one.holds == Holds::kListNodes) {
      flush();
      list(static_cast<const QuicklistView*>(one.at));
      continue;
    }
    const auto* dict = static_cast<const DictView*>(one.at);
    const auto* in_buckets = static_cast<const TableView*>(one.at);
    for (int t = 0; t < 2; ++t) {
      const void* first =
          in_tables(one.holds) ? static_cast<const void*>(in_buckets->table[t]) : dict->table[t];
      const int8_t exponent = in_tables(one.holds) ? in_buckets->exponent[t] : dict->exponent[t];
      if (first == nullptr || exponent < 0) continue;
      const uint64_t buckets = uint64_t{1} << exponent;
      if (buckets > (in_tables(one.holds) ? kTableGroup : kGroup)) {
        flush();
        table(static_cast<const char*>(first), buckets, one.holds, nullptr);
        continue;
      }
      spans[n++] = {static_cast<const char*>(first), static_cast<unsigned>(buckets), one.holds, {}};
      members += in_tables(one.holds) ? in_buckets->used[t] : dict->used[t];
      if (n == kSpansMax || members >= kSpansMembers) flush();
    }
  }
  flush();
}

void SaveAhead::collections_in(const Span& span) {
  Collection some[kCollectionsMax];
  unsigned count = 0;
  for (unsigned i = 0; i < span.count && !stopped(); ++i) {
    count = collections_of(*layout, span.first + i * bucket_bytes(span.holds), span.holds, some,
                           count, kCollectionsMax);
    if (count < kCollectionsMax - kChainMax && i + 1 < span.count) continue;
    collections(some, count);
    count = 0;
  }
}

void SaveAhead::table(const char* first, uint64_t count, Holds holds,
                      const DatabaseView* database) {
  const unsigned step = in_tables(holds) ? kTableGroup : kGroup;
  for (uint64_t at = 0; at < count && !stopped(); at += step) {
    lead.wait(stop);
    Span span{first + at * bucket_bytes(holds),
              static_cast<unsigned>(count - at < step ? count - at : step),
              holds,
              {}};
    group(&span, 1, database);
    if (database != nullptr) collections_in(span);
  }
}

void SaveAhead::database(const DatabaseView& database) {
  if (database.keys == nullptr) return;
  auto dictionary = [&](const DictView* dict) {
    for (int t = 0; t < 2 && dict->table[t] != nullptr; ++t)
      table(reinterpret_cast<const char*>(dict->table[t]), uint64_t{1} << dict->exponent[t],
            Holds::kObjects, &database);
  };
  if (layout->keyspace() == Keyspace::kDict)
    return dictionary(static_cast<const DictView*>(database.keys));
  if (layout->keyspace() == Keyspace::kDicts) {
    const auto* store = static_cast<const DictStoreView*>(database.keys);
    for (int64_t i = 0; i < store->count; ++i)
      if (store->dicts[i] != nullptr) dictionary(store->dicts[i]);
    return;
  }
  const auto* store = static_cast<const TableStoreView*>(database.keys);
  for (int i = 0; i < store->count; ++i)
    for (int t = 0; t < 2 && store->tables[i] != nullptr; ++t)
      if (const TableView* its = store->tables[i]; its->table[t] != nullptr)
        table(reinterpret_cast<const char*>(its->table[t]), uint64_t{1} << its->exponent[t],
              Holds::kKeyedObjects, &database);
}

void SaveAhead::databases() {
  lunar_stats stats{};
  stats.struct_size = sizeof stats;
  (void)lunar_get_stats(&stats);
  const uint64_t pages = stats.dram_budget_bytes / sys::page_bytes() / 64;
  lead.start(pages < 256 ? 256 : pages > 2048 ? 2048 : pages);
  for (int i = 0; const DatabaseView* one = stopped() ? nullptr : layout->database(i); ++i)
    database(*one);
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
  if (!pager_active() || !anything_cold())
    return;  // the saver must not wait for a reader that finds nothing
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
    // the saver does not wait again
    if (sys::now_ns() - since > kPacePatienceNs)
      return a.reading.store(false, std::memory_order_relaxed);
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
