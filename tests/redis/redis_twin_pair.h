// SPDX-License-Identifier: Apache-2.0
// The two servers of the twin test, tiered and plain, under one clock that stands still: started,
// asked the same, compared, stopped and started again.
// Threading: one thread. Every wait ends. May not be used by code that ships.
#pragma once
#include <memory>

#include "redis_gate.h"
#include "redis_twin.h"

namespace e2e {

constexpr unsigned kConnections = kClients + 3;  // those behind kClients wait in blocking commands

// The time that frozen_clock.c tells.
class Clock {
 public:
  explicit Clock(const std::string& path);
  ~Clock();
  Clock(const Clock&) = delete;
  int64_t ms() const { return *us_ / 1000; }
  void set_ms(int64_t now) { *us_ = now * 1000; }

 private:
  volatile int64_t* us_;
};

struct TwinSetup {
  std::string module, clock_library;  // no module: both are plain
  uint64_t cap_mib = 16;
  bool gate = true;
};

class Twins {
 public:
  Twins(const Scratch& scratch, const TwinSetup& setup, Commands& commands);

  // Starts both with further arguments and connects.
  void start(const Words& further);
  void stop();
  Server& tiered() { return *servers_[0]; }
  Server& plain() { return *servers_[1]; }
  // One more tiered server of the same clock.
  std::unique_ptr<Server> another(const std::string& name, const Words& further);
  // It lived above its budget: evicted and read from its LUN, without an error.
  void check_result(const Server& server, const std::string& name);

  // The batch of connection i to both servers, all of them before any reply is read. Throws where
  // replies differ.
  std::vector<Tree> exchange(const std::vector<Batch>& batches);
  Tree ask(unsigned connection, const Step& step);
  void send(unsigned connection, const Batch& batch);
  // Replies to the batch: those of the tiered server, equal to the plain one's.
  std::vector<Tree> receive(unsigned connection, const Batch& batch);
  // To both, on connections of their own, for what is no part of the comparison.
  void tell(const Words& words);

  std::string digest();  // DEBUG DIGEST of both; throws when they differ
  void wait_until_both(const std::string& field, uint64_t value);
  int64_t ms() const { return clock_.ms(); }
  void set_ms(int64_t now);
  void advance_ms(int64_t by) { set_ms(ms() + by); }
  uint64_t sent() const { return sent_; }

 private:
  Words arguments_of(const std::string& name, bool tiered) const;
  std::string path_;
  TwinSetup setup_;
  Commands& commands_;
  Clock clock_;
  std::unique_ptr<Server> servers_[2];
  std::vector<Wire> wires_[2];
  uint64_t sent_ = 0;
};

std::string digest_of(const Server& server);

// Scenes of several connections one after the other, on both servers (redis_twin_scenes.cpp).
void random_scene(Twins& twins, Commands& commands);
// All databases by SCAN: what has expired is gone after it.
void scan_all(Twins& twins);
// Loads the scripts; a server that was started again has forgotten them.
void load_scripts(Twins& twins, Commands& commands);

}  // namespace e2e
