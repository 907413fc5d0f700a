// SPDX-License-Identifier: Apache-2.0
// Moves the entries of a database from its old hash table to the new one in the server's place, as far as they are in DRAM (Redis 7.0).
//
// One added key makes the server double a table. It then moves a bucket a command, and at the cron as many as a millisecond allows, a
// hundred at a time; each entry and key of a cold table is a fault. To fetch buckets ahead of it does not help: the cron moves those within the
// millisecond, and meets the cold ones behind them. So the server's rehash is paused (the counter that its own iterators use), and
//
//   inside read():  next buckets ─► those whose entries and keys are resident, up to the first that are not: dictRehash, the server's own
//                                └► what is missing is fetched; no client waits for it
//
// A table moves as fast as its entries come in while clients send anything; until it has, look-ups search both tables, as always. The counter
// is one higher all the time, so that a rehash which begins is paused before the next cron. FLUSHDB sets it to zero: it is set again.
// Not ours to undo, when somebody else has it higher: then nothing is moved. A bucket that cannot be had (kPatienceNs) is moved with its faults,
// and so are all when keys are added faster than they come in (a quarter more keys than the new table has slots).
//
// Threading: the main thread, inside read(). Allocates nothing.
#pragma once
#include "fetcher.h"
#include "layout.h"

namespace lunar::redis {

class RehashAhead {
 public:
  void start(const ServerLayout& layout);   // without effect where the server is laid out in another way
  // `watching`: else the server does it itself again. `fetcher`: what is missing is asked for.
  void look(const ServerLayout& layout, bool watching, Fetcher* fetcher);

 private:
  static constexpr unsigned kHeldMax = 64, kEvery = 8;
  bool pause(DictView* dict);
  void release(const ServerLayout& layout);
  bool look_at(const ServerLayout& layout, DictView* dict, Fetcher* fetcher);   // true: it moves
  unsigned ready(const ServerLayout& layout, DictView* dict, bool* whole, Missing* missing);
  void move(DictView* dict, unsigned buckets, bool whole);

  int (*rehash_)(DictView*, int) = nullptr;
  DictView* held_[kHeldMax] = {};   // paused by us; never followed from here
  unsigned held_count_ = 0, reads_ = 0;
  int turn_ = 0;
  int moving_ = -1;                 // a database one of whose tables moves
  uint64_t not_before_ns_ = 0, stuck_since_ns_ = 0;
  Share share_;                     // counts what is under way
};

}  // namespace lunar::redis
