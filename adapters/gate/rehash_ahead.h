// SPDX-License-Identifier: Apache-2.0
// Moves the entries of a database from its old hash table to the new one in the server's place, as
// far as they are in DRAM.
//
// One added key makes the server double a table. It then moves one bucket per command, and in its
// cron as many as a millisecond allows, a hundred at a time; each entry and key of a cold table is
// a fault. Fetching buckets ahead of the server does not help: its cron moves those within the
// millisecond, and takes faults on the cold ones after them. So the gate pauses the server's rehash
// (by the counter that the server's iterators use):
//
//   inside read():  next buckets ─► those whose entries and keys are resident, up to the first
//                                │  that are not:
//                                │  MovingTable::move
//                                └► what is missing is fetched; no client waits for it
//
// A table moves as fast as its entries come in, at reads and in turns (ahead.h); until then lookups
// search both tables, as always. The counter is one higher while the server's cron and small
// commands run, so that a rehash which begins is paused before the next cron. The gate does not
// raise it where any number of keys may be added before the next read: for scripts, EXEC, unknown
// commands and those that were not looked up, while other threads may have the server's lock, and
// for small tables. There the server moves a bucket a command as ever; else a script that adds a
// million keys would put them all into the chains of a table of a thousand slots. (A table of 2^20
// slots has room for that.) FLUSHDB sets the counter to zero, and the gate raises it again. While
// other code has the counter higher, nothing is moved. A bucket that has not come in after
// kPatienceNs is moved with its faults. When keys are added faster than buckets come in (a quarter
// more keys than the new table has slots), buckets are moved with their faults, more than keys are
// added.
//
// Redis 8.0 keeps a list of the tables that are moving. Its cron asks the first one to move until a
// millisecond is over, and would spin on a paused one, which answers at once. So the gate clears
// the setting activerehashing for the cron while it moves a table, at the last event of a round,
// and sets it before the next wait. If the setting is clear after the commands, a client cleared
// it. Servers with a dictionary for each cluster slot are left alone, because those dictionaries
// are small.
//
// Valkey 8.1 has such a list and setting too. Its tables are not paused, as a paused table also
// keeps holes in chains of buckets: commands move a bucket each, the cron is kept off, and the gate
// fetches ahead of both and moves MovingTable::kTableStep buckets at a time when all of them are
// in.
//
// Threading: the main thread, inside read(), in turns, and before epoll_wait() with the server's
// lock. Allocates nothing.
#pragma once
#include "fetcher.h"
#include "layout.h"
#include "moving_table.h"

namespace lunar::redis {

class RehashAhead {
 public:
  void start(const ServerLayout& layout);  // no effect if the server has another layout
  // `watching`: if false, the server does it itself again. `fetcher`: requests what is missing.
  void look(const ServerLayout& layout, bool watching, Fetcher* fetcher);
  // Lets the server rehash itself until it is paused again. Not `all`: except the largest tables.
  void lift(const ServerLayout& layout, bool all = false);
  void pause_again(const ServerLayout& layout);
  bool to_lift() const { return paused_count_ != 0 && !lifted_; }
  bool lifted() const { return lifted_; }
  bool moves() const { return moving_ >= 0; }
  bool pauses() const { return paused_count_ != 0; }
  void shut_cron();
  void open_cron();
  bool cron_is_shut() const { return cron_shut_; }
  bool shuts_cron() const { return moves() && cron_moves_ != nullptr; }

 private:
  struct Paused {
    MovingTable table;  // never dereferenced from here: it may be freed
    int database;       // where it was last seen
    bool up;            // the gate has raised its counter
    uint64_t used;      // number of keys when it was last checked
  };
  static constexpr unsigned kPausedMax = 64, kEvery = 8;
  Paused* pause(int database, MovingTable table);
  bool still_there(const ServerLayout& layout, Paused* paused_one) const;
  void forget_dead(const ServerLayout& layout);
  void keep_pace(MovingTable table, Paused* paused_one);
  // true: it moves
  bool look_at(const ServerLayout& layout, int database, void* store, Fetcher* fetcher);
  unsigned ready(KeyLookup* lookup, MovingTable table);
  void move(MovingTable table, unsigned buckets, bool whole);

  bool works_ = false;
  Mover mover_;
  int* cron_moves_ = nullptr;  // the server's setting, where it has to be cleared
  bool cron_shut_ = false;
  Paused paused_[kPausedMax] = {};
  unsigned paused_count_ = 0, reads_ = 0;
  bool lifted_ = false;
  int turn_ = 0;
  int moving_ = -1;  // a database one of whose tables moves
  uint64_t not_before_ns_ = 0, stuck_since_ns_ = 0;
  Share share_;  // counts what is under way
};

}  // namespace lunar::redis
