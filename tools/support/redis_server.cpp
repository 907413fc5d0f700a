// SPDX-License-Identifier: Apache-2.0
// See redis_server.h. Works with hiredis 0.14 and 1.x.
#include "tools/support/redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {

constexpr long kStartSecondsMax = 120;  // a server that loads a dump answers late
// Another program may take the port between free_port() and the server's bind.
constexpr int kPortAttempts = 5;
constexpr long kReplySecondsMax = 60;

// Scales a time limit for a slow (emulated) machine, as tests/support/watch.py does.
long scaled(long seconds) {
  const char* times = getenv("TEST_TIMEOUT_SCALE");
  return seconds * std::clamp(times != nullptr ? atol(times) : 1L, 1L, 9999L);
}

// A port of 127.0.0.1 that is free at this moment.
uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool got = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                   getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!got) throw std::runtime_error(fmt::format("no free port on 127.0.0.1: {}", strerror(error)));
  return ntohs(address.sin_port);
}

std::string last_lines(const std::string& path, size_t count) {
  const std::string text = read_text(path).value_or("");
  size_t at = text.size();
  for (size_t i = 0; i <= count && at != std::string::npos && at > 0; ++i)
    at = text.rfind('\n', at - 1);
  return trimmed(at == std::string::npos || at == 0 ? text : text.substr(at));
}

// Redis 7 refuses DEBUG without the option; older versions do not know the option.
bool has_debug_option(const std::string& binary) {
  FILE* pipe = popen((binary + " --version 2>/dev/null").c_str(), "re");
  if (pipe == nullptr) return true;
  char line[256] = "";
  if (fgets(line, sizeof line, pipe) == nullptr) line[0] = 0;
  pclose(pipe);
  const char* version = strstr(line, "v=");
  return version == nullptr || atoi(version + 2) >= 7;
}

}  // namespace

RedisServer::RedisServer(const ServerSetup& setup)
    : log_path_(setup.directory + "/" + setup.name + ".log"),
      error_path_(setup.directory + "/" + setup.name + ".err") {
  for (int attempt = 0;; ++attempt) {
    port_ = free_port();
    launch(setup);
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(scaled(kStartSecondsMax));
    while (process_.running() && std::chrono::steady_clock::now() < deadline) {
      check_interrupted();
      if (try_connect()) return;
      usleep(20'000);
    }
    const bool ended = !process_.running();
    process_.kill_and_wait();
    const std::string tail = log_tail();
    if (ended && attempt + 1 < kPortAttempts &&
        tail.find("Address already in use") != std::string::npos)
      continue;
    throw std::runtime_error(fmt::format("{} does not start: {}\n{}", setup.redis_server,
                                         ended ? process_.how_it_ended() : "no answer in time",
                                         tail));
  }
}

RedisServer::~RedisServer() {
  if (connection_ != nullptr) redisFree(connection_);
  process_.kill_and_wait();
}

void RedisServer::launch(const ServerSetup& setup) {
  std::vector<std::string> arguments = setup.wrapper;
  const std::vector<std::string> own{setup.redis_server,
                                     "--port",
                                     fmt::format("{}", port_),
                                     "--bind",
                                     "127.0.0.1",
                                     "--dir",
                                     setup.directory,
                                     "--dbfilename",
                                     setup.dump,
                                     "--logfile",
                                     log_path_,
                                     "--daemonize",
                                     "no"};
  arguments.insert(arguments.end(), own.begin(), own.end());
  if (has_debug_option(setup.redis_server))
    arguments.insert(arguments.end(), {"--enable-debug-command", "local"});
  if (!setup.saves) arguments.insert(arguments.end(), {"--save", ""});
  arguments.insert(arguments.end(), setup.further.begin(), setup.further.end());
  const int errors = open(error_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (errors < 0) throw std::runtime_error(fmt::format("{}: {}", error_path_, strerror(errno)));
  StartOptions options;
  options.standard_output = errors;
  options.standard_error = errors;
  options.cgroup_procs = setup.cgroup_procs;
  try {
    process_ = Process(arguments, options);
  } catch (...) {
    close(errors);
    throw;
  }
  close(errors);
}

bool RedisServer::try_connect() {
  connection_ = redisConnectWithTimeout("127.0.0.1", port_, timeval{1, 0});
  if (connection_ != nullptr && connection_->err == 0 &&
      redisSetTimeout(connection_, timeval{scaled(kReplySecondsMax), 0}) == REDIS_OK) {
    Reply reply(static_cast<redisReply*>(redisCommand(connection_, "PING")));
    if (reply && reply->type == REDIS_REPLY_STATUS)
      return true;  // -LOADING would be an error reply
  }
  if (connection_ != nullptr) redisFree(connection_);
  connection_ = nullptr;
  return false;
}

std::string RedisServer::log_tail() const {
  return trimmed(last_lines(error_path_, 12) + "\n" + last_lines(log_path_, 6));
}

void RedisServer::lost(const std::string& what) {
  check_interrupted();
  const bool late = connection_->err == REDIS_ERR_IO && errno == EAGAIN;
  process_.wait(2);
  throw std::runtime_error(
      fmt::format("redis-server: {}: {}; {}\n{}", what,
                  late                          ? "no reply in time"
                  : connection_->errstr[0] != 0 ? connection_->errstr
                                                : "no reply",
                  process_.running() ? "it still runs" : process_.how_it_ended(), log_tail()));
}

void RedisServer::set_patience(int seconds) {
  (void)redisSetTimeout(connection_, timeval{seconds, 0});
}

void RedisServer::send(const std::vector<std::string>& words) {
  std::vector<const char*> text;
  std::vector<size_t> size;
  for (const std::string& word : words) {
    text.push_back(word.data());
    size.push_back(word.size());
  }
  if (redisAppendCommandArgv(connection_, static_cast<int>(words.size()), text.data(),
                             size.data()) != REDIS_OK) {
    lost(words[0]);
  }
}

Reply RedisServer::receive() {
  void* raw = nullptr;
  if (redisGetReply(connection_, &raw) != REDIS_OK || raw == nullptr) lost("reply");
  Reply reply(static_cast<redisReply*>(raw));
  if (reply->type == REDIS_REPLY_ERROR) {
    throw std::runtime_error(fmt::format("redis-server answers: {}\n{}", reply->str, log_tail()));
  }
  return reply;
}

Reply RedisServer::command(const std::vector<std::string>& words) {
  send(words);
  return receive();
}

std::string RedisServer::info(const std::string& section, const std::string& field) {
  const Reply reply = command({"INFO", section});
  std::istringstream lines(std::string(reply->str, static_cast<size_t>(reply->len)));
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, field.size() + 1, field + ":") == 0)
      return trimmed(line.substr(field.size() + 1, line.find('\r') - field.size() - 1));
  }
  return {};
}

void RedisServer::shut_down() {
  // The server closes the connection without a reply.
  Reply ignored(static_cast<redisReply*>(redisCommand(connection_, "SHUTDOWN NOSAVE")));
  if (!process_.wait(30)) process_.kill_and_wait();
}

}  // namespace lunar::tools
