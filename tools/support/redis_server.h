// SPDX-License-Identifier: Apache-2.0
// A private redis-server for the demo, a bench or a test, under `lunar run` or plain, with one
// connection to it. It listens on a free loopback port, and its files are in the caller's
// directory.
// Threading: one thread per object.
#pragma once
#include <hiredis/hiredis.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/support/process.h"

namespace lunar::tools {

struct ServerSetup {
  std::string redis_server;          // path of the binary
  std::vector<std::string> wrapper;  // "lunar run ... --", or empty
  std::string directory, name;       // files DIRECTORY/NAME.log, NAME.err
  std::string dump = "dump.rdb";
  std::string cgroup_procs;          // of the cgroup that it joins; "": none
  bool saves = true;                 // keep redis' default save points
  std::vector<std::string> further;  // more arguments ("--loadmodule", ...)
};

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

class RedisServer {
 public:
  // Starts the server and waits until it answers. Throws std::runtime_error with the end of its
  // log.
  explicit RedisServer(const ServerSetup& setup);
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  pid_t pid() const { return process_.pid(); }
  uint16_t port() const { return port_; }
  // Sends one command and returns the reply. Throws after a lost connection or an error reply.
  Reply command(const std::vector<std::string>& words);
  // Sets the longest time for a reply. It is 60 s at the start.
  void set_patience(int seconds);
  // Pipelining: send() queues a command; receive() returns the reply to the oldest one.
  void send(const std::vector<std::string>& words);
  Reply receive();
  // A field of INFO; "" if there is none.
  std::string info(const std::string& section, const std::string& field);
  // Sends SHUTDOWN NOSAVE and waits. Its standard error is in DIRECTORY/NAME.err.
  void shut_down();
  // The last lines of its log and standard error, for messages.
  std::string log_tail() const;

 private:
  [[noreturn]] void lost(const std::string& what);
  void launch(const ServerSetup& setup);
  bool try_connect();
  std::string log_path_, error_path_;
  Process process_;
  uint16_t port_ = 0;
  redisContext* connection_ = nullptr;
};

}  // namespace lunar::tools
