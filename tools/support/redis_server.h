// SPDX-License-Identifier: Apache-2.0
// A redis-server of a demo's, bench's or test's own: the distribution's binary, a free loopback
// port, files in a directory of the caller's; under `lunar run` or plain. And one connection to it.
// Threading: one thread an object. May not be used by runtime/ (it allocates).
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
  std::string cgroup_procs;          // "" or the group it joins
  bool saves = true;                 // redis' default save points stay on
  std::vector<std::string> further;  // arguments after ours ("--loadmodule", ...)
};

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

class RedisServer {
 public:
  // Starts it and waits until it answers. Throws std::runtime_error with the end of its log.
  explicit RedisServer(const ServerSetup& setup);
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  pid_t pid() const { return process_.pid(); }
  uint16_t port() const { return port_; }
  // One command of plain words; throws on a lost connection or an error reply.
  Reply command(const std::vector<std::string>& words);
  // How long a reply may take before the server counts as stuck; 60 at start.
  void set_patience(int seconds);
  // Queue now, collect later (pipelining); `receive` gives the oldest one's reply.
  void send(const std::vector<std::string>& words);
  Reply receive();
  // A field of INFO, "" when it is not there.
  std::string info(const std::string& section, const std::string& field);
  // SHUTDOWN NOSAVE, then waits. What it wrote to standard error is in DIRECTORY/NAME.err.
  void shut_down();
  // Last lines of its log and standard error, for messages.
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
