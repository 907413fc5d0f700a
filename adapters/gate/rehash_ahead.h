// SPDX-License-Identifier: Apache-2.0
// Moves the entries of a database from its old hash table to the new one in the server's place,
// when they are in DRAM.
//
// When a table is full, the server doubles it. It then moves one bucket per command, and in its
// cron as many as it can in a millisecond, a hundred at a time; it takes a fault for each entry and
// key of a cold table. It does not help to fetch buckets ahead of the server: its cron moves those
// within the millisecond, and takes faults on the cold ones after them. So the gate pauses the
// server's rehash (by the counter that the server's iterators use):
//
//   inside read():  next buckets ─► resident entries and keys, up to the first missing one:
//                                │  MovingTable::move
//                                └► missing pages: fetched; no client waits for them
//
// A table moves as fast as its entries come in, at reads and in turns (ahead.h); until then lookups
// search both tables, as always. The counter is one higher while the server's cron and small
// commands run, so that a new rehash is paused before the next cron. The gate does not raise it
// where any number of keys may be added before the next read: for scripts, EXEC, unknown commands
// and commands that were not looked up, while other threads may have the server's lock, and for
// small tables. There the server moves one bucket per command as usual. Otherwise a script that
// adds a million keys would put them all into the chains of a table of a thousand slots. (A table
// of 2^20 slots has room for them.) FLUSHDB sets the counter to zero, and the gate raises it again.
// While other code keeps the counter higher, nothing is moved. A bucket that has not come in after
// kPatienceNs is moved with its faults. If keys are added faster than buckets come in (a quarter
// more keys than the new table has slots), more buckets are moved than keys are added, with their
// faults.
//
// Redis 8.0 keeps a list of the tables that are moving. Its cron moves the first one until a
// millisecond is over, and would spin on a paused one. So while the gate moves a table, it clears
// the setting activerehashing for the cron: at the last event of a round, until before the next
// wait. If the setting is clear after the commands, a client has cleared it. Servers with a
// dictionary for each cluster slot are left alone, because those dictionaries are small.
//
// Valkey 8.1 also has this list and setting. The gate does not pause its tables, because a paused
// table keeps holes in chains of buckets. There each command moves one bucket, the cron is kept
// off, and the gate fetches ahead and moves MovingTable::kTableStep buckets at a time when all of
// them are in DRAM.
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
  void start(const ServerLayout& layout);  // no effect on servers with a dictionary for each slot
  // Moves buckets that are in DRAM, and requests others from `fetcher`. watching: false: the server
  // rehashes alone again.
  void look(const ServerLayout& layout, bool watching, Fetcher* fetcher);
  // Ends the pauses until pause_again(): of all tables, or of all but the largest.
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
  // True: a table of `store` is moving.
  bool look_at(const ServerLayout& layout, int database, void* store, Fetcher* fetcher);
  unsigned ready(KeyLookup* lookup, MovingTable table);
  void move(MovingTable table, unsigned buckets, bool whole);

  bool works_ = false;
  Mover mover_;
  int* cron_moves_ = nullptr;  // the server's setting; nullptr: it need not be cleared
  bool cron_shut_ = false;
  Paused paused_[kPausedMax] = {};
  unsigned paused_count_ = 0, reads_ = 0;
  bool lifted_ = false;
  int turn_ = 0;
  int moving_ = -1;  // a database with a moving table
  uint64_t not_before_ns_ = 0, stuck_since_ns_ = 0;
  Share share_;  // counts requests in progress
};

}  // namespace lunar::redis
