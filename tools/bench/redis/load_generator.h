// SPDX-License-Identifier: Apache-2.0
// The clients of `lunar bench redis`: one thread, some dozens of connections, epoll.
//
//   per connection:  write `pipeline` requests -> read and check their replies -> again
//
// A closed loop: a connection sends when it has all its replies. Latency is from the write of a
// batch to the reading of the reply, so it holds the time that replies wait for this thread when it
// is the busy part; its own CPU is measured, so that this shows. With a rate, connections send by
// the clock, and latency is from the moment a request was due (a stall counts for all the requests
// it held up). With groups, the rate is that of group 0, and group 1 a closed loop. Threading: one
// thread. May not be used by runtime/ (it allocates).
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
  double rate = 0;  // batches a second, of the connections of group 0 together; 0: closed loop
  double warm_seconds = 0;
  double seconds = 0;  // measured; 0: until is_over(), or until nothing is left to send
  // The next request of a connection; false: it has none any more.
  std::function<bool(unsigned connection, Request* request)> next;
  std::function<bool()> is_over;                      // asked after every round of replies
  std::function<void()> on_start, on_end;             // at the borders of the measured time
  std::function<void(uint64_t replies)> on_progress;  // some times a second
};

struct LoadCounts {
  std::array<Histogram, 2> latencies;  // of each group, within the measured time
  uint64_t reads = 0;                  // of these replies (both groups), those to reads
  uint64_t mismatches = 0;             // also outside it
  std::string first_mismatch;
  double seconds = 0, cpu_s = 0;  // measured time; CPU this thread used in it
};

class LoadGenerator {
 public:
  // Connects to 127.0.0.1, connection i to port i modulo their number. Throws std::runtime_error.
  LoadGenerator(const std::vector<uint16_t>& ports, unsigned connections, Dataset& data);
  ~LoadGenerator();
  LoadGenerator(const LoadGenerator&) = delete;
  LoadGenerator& operator=(const LoadGenerator&) = delete;

  // Throws std::runtime_error when the server is gone or silent for a minute, Interrupted when the
  // user is impatient.
  LoadCounts run(const LoadPlan& plan);

 private:
  struct Connection;
  void connect_all(const std::vector<uint16_t>& ports, unsigned count);
  void send_batch(Connection& who, const LoadPlan& plan);
  void flush(Connection& who);
  void receive(Connection& who, const LoadPlan& plan, LoadCounts* counts);
  void take(Connection& who, const redisReply& reply, uint64_t now, LoadCounts* counts);
  void serve(const LoadPlan& plan, LoadCounts* counts);  // one round of epoll
  // Sends what is due; when the next will be.
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
