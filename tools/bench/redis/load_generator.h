// SPDX-License-Identifier: Apache-2.0
// The clients of `lunar bench redis`: one thread with dozens of connections, and epoll.
//
//   per connection:  write `pipeline` requests -> read and check their replies -> again
//
// In a closed loop, a connection sends when it has all its replies. Latency is the time from the
// write of a batch to the reading of the reply. It includes the time that replies wait for this
// thread, whose CPU time is therefore measured. With a rate, connections send by the clock, and
// latency begins when a request was due, so that a stall counts for all requests that it delayed.
// With two groups, only group 0 has the rate; group 1 is a closed loop.
// Threading: one thread.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/histogram.h"
#include "tools/bench/redis/dataset.h"

namespace lunar::tools {

struct LoadPlan {
  unsigned connections = 50, pipeline = 1;
  unsigned first_group = 0;  // connections of group 0; the others are group 1. 0: all are group 0
  double rate = 0;           // batches per second of all connections of group 0; 0: closed loop
  double warm_seconds = 0;
  double seconds = 0;  // measured time; 0: until is_over(), or until no request is left
  // Sets the next request of a connection. False: it has no more.
  std::function<bool(unsigned connection, Request* request)> next;
  std::function<bool()> is_over;                      // called after every round of replies
  std::function<void()> on_start, on_end;             // called around the measured time
  std::function<void(uint64_t replies)> on_progress;  // called a few times per second
};

struct LoadCounts {
  std::array<Histogram, 2> latencies;  // of each group, within the measured time
  uint64_t reads = 0;                  // replies to reads within it, of both groups
  uint64_t mismatches = 0;             // also outside of it
  std::string first_mismatch;
  double seconds = 0, cpu_s = 0;  // measured time; CPU time of this thread in it
};

class LoadGenerator {
 public:
  // Connects to 127.0.0.1: connection i to ports[i % ports.size()]. Throws std::runtime_error.
  LoadGenerator(const std::vector<uint16_t>& ports, unsigned connections, Dataset& data);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  // Throws std::runtime_error if the server has ended or is silent for a minute, and Interrupted.
  LoadCounts run(const LoadPlan& plan);

 private:
  struct Connection;
  void connect_all(const std::vector<uint16_t>& ports, unsigned count);
  void send_batch(Connection& who, const LoadPlan& plan);
  void flush(Connection& who);
  void receive(Connection& who, const LoadPlan& plan, LoadCounts* counts);
  void handle_reply(Connection& who, const redisReply& reply, uint64_t now, LoadCounts* counts);
  void serve(const LoadPlan& plan, LoadCounts* counts);  // one round of epoll
  // Sends the batches that are due. Returns the time of the next one.
  uint64_t send_due(const LoadPlan& plan, uint64_t now);

  Dataset& data_;
  int epoll_ = -1;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<char> buffer_;
  unsigned groups_first_ = 0;
  bool measuring_ = false, sending_ = false;
  size_t outstanding_ = 0;
  uint64_t replies_ = 0;
};

}  // namespace lunar::tools
