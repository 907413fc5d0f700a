// SPDX-License-Identifier: Apache-2.0
// What the soak's clients and its main thread share: where the server is, whether a reply may be an
// error, what failed. And what a server says of its space, for the message of a failure: an OOM
// reply is right or wrong by these figures.
//
// Threading: Board is locked, or atomic; the others are any thread's.
#pragma once
#include <atomic>
#include <mutex>
#include <string>

#include "redis_tiered.h"

namespace e2e {

constexpr int kReplySecondsMax = 120;

// Where the server is, and what is known of it. Written by the test's main thread, but for
// failures.
struct Board {
  std::mutex lock;
  uint16_t port = 0;               // 0: there is none to talk to
  std::string directory;           // its working directory: proof that it is ours
  std::atomic<bool> lossy{false};  // its LUN loses pages: error replies are allowed
  std::atomic<bool> stop{false};
  std::atomic<bool> pause{false};  // no client begins anything
  std::atomic<unsigned> busy{0};   // clients that are at work
  std::atomic<unsigned> failures{0};
  void fail(const std::string& text) {
    const std::lock_guard hold(lock);
    if (failures.fetch_add(1) < 10) fmt::print("FAIL: {}\n", text);
    stop.store(true);
  }
};

// While this lives no client begins anything, and all have their replies.
class Quiet {
 public:
  explicit Quiet(Board& board) : board_(board) {
    board_.pause.store(true);
    wait_until("the end of the clients' work", [this] { return board_.busy.load() == 0; });
  }
  ~Quiet() { board_.pause.store(false); }
  Quiet(const Quiet&) = delete;

 private:
  Board& board_;
};

inline std::string field_of(const std::string& info, const std::string& name) {
  const size_t at = info.find("\r\n" + name + ":");
  return at == std::string::npos
             ? "?"
             : info.substr(at + name.size() + 3, info.find('\r', at + 2) - at - name.size() - 3);
}

// The LUN's space, and what maxmemory is compared with, in MiB; "" when there is no answer.
inline std::string space_line(uint16_t port) {
  redisContext* connection = redisConnectWithTimeout("127.0.0.1", port, timeval{5, 0});
  std::string info;
  if (connection != nullptr && connection->err == 0) {
    (void)redisSetTimeout(connection, timeval{5, 0});
    const lunar::tools::Reply reply(
        static_cast<redisReply*>(redisCommand(connection, "INFO EVERYTHING")));
    if (reply && reply->str != nullptr) info.assign(reply->str, reply->len);
  }
  if (connection != nullptr) redisFree(connection);
  if (info.empty()) return "";
  std::string line = "space: " + field_of(info, "lunar_space_state");
  for (const char* name :
       {"lunar_lun_size_bytes", "lunar_committed_bytes", "lunar_lun_free_bytes",
        "lunar_lun_forked_bytes", "lunar_lun_used_bytes", "lunar_lun_holes_bytes",
        "lunar_maxmemory_follows_at_bytes", "lunar_maxmemory_ceiling_bytes", "maxmemory",
        "used_memory", "used_memory_peak", "mem_not_counted_for_evict", "mem_clients_normal"})
    line += fmt::format(", {} {:.1f}", name, strtod(field_of(info, name).c_str(), nullptr) / kMiB);
  for (const char* name :
       {"lunar_write_errors", "lunar_read_errors", "lunar_forks", "lunar_last_resort_allocations",
        "lunar_packed_values", "lunar_packing_passes", "rdb_bgsave_in_progress",
        "aof_rewrite_in_progress"})
    line += fmt::format(", {} {}", name, field_of(info, name));
  return line;
}

}  // namespace e2e
