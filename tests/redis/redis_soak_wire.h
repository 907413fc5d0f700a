// SPDX-License-Identifier: Apache-2.0
// A connection of the soak test: made anew after each end of the server, to the test's own server
// only, and quiet while the test compares.
//
// Threading: a thread each; run() until told to stop. What it shares with the others is in Board.
#pragma once
#include "redis_soak_board.h"

namespace e2e {

class SoakWire {
 protected:
  using Reply = lunar::tools::Reply;

  explicit SoakWire(Board& board) : board_(board) {}
  ~SoakWire() { hang_up(); }
  SoakWire(const SoakWire&) = delete;

  // Calls step() over and over while there is a connection, and reconnect() (false: none) while
  // there is none.
  template <class Reconnect, class Step>
  void run(Reconnect reconnect, Step step) {
    while (!board_.stop.load()) {
      board_.busy.fetch_add(1);
      const bool worked = !board_.pause.load() && (connection_ != nullptr || reconnect());
      if (worked) step();
      board_.busy.fetch_sub(1);
      if (!worked) usleep(20'000);
    }
    hang_up();
  }

  // To the server that the board names. False: there is none.
  bool connect() {
    uint16_t port;
    std::string directory;
    {
      const std::lock_guard hold(board_.lock);
      port = board_.port;
      directory = board_.directory;
    }
    if (port == 0) return false;
    hang_up();
    port_ = port;
    connection_ = redisConnectWithTimeout("127.0.0.1", port, timeval{5, 0});
    if (connection_ == nullptr || connection_->err != 0) {
      hang_up();
      return false;
    }
    (void)redisSetTimeout(connection_, timeval{kReplySecondsMax, 0});
    send({"CONFIG", "GET", "dir"});
    const Reply r = receive();
    const bool ours = r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
                      plain_text(r->element[1]) == directory;
    if (!ours) hang_up();
    return ours;
  }

  // nullptr: the connection is lost (and hung up).
  Reply receive() {
    void* raw = nullptr;
    if (redisGetReply(connection_, &raw) != REDIS_OK || raw == nullptr) {
      if (connection_->err == REDIS_ERR_IO && errno == EAGAIN)
        board_.fail(fmt::format("a client has had no reply for {} s", kReplySecondsMax));
      hang_up();
      return nullptr;
    }
    return Reply(static_cast<redisReply*>(raw));
  }

  void send(const Words& words) {
    std::vector<const char*> text;
    std::vector<size_t> size;
    for (const std::string& word : words) {
      text.push_back(word.data());
      size.push_back(word.size());
    }
    (void)redisAppendCommandArgv(connection_, static_cast<int>(words.size()), text.data(),
                                 size.data());
  }

  void hang_up() {
    if (connection_ != nullptr) redisFree(connection_);
    connection_ = nullptr;
  }

  static std::string plain_text(const redisReply* r) {
    switch (r->type) {
      case REDIS_REPLY_INTEGER:
        return std::to_string(r->integer);
      case REDIS_REPLY_NIL:
        return "";
      case REDIS_REPLY_ARRAY:
        return fmt::format("an array of {}", r->elements);
      default:
        return std::string(r->str, static_cast<size_t>(r->len));
    }
  }
  static std::string brief(const std::string& text) {
    return text.size() <= 100 ? text
                              : fmt::format("{}... ({} bytes)", text.substr(0, 100), text.size());
  }

  Board& board_;
  redisContext* connection_ = nullptr;
  uint16_t port_ = 0;  // of it
};

}  // namespace e2e
