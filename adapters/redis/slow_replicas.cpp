// SPDX-License-Identifier: Apache-2.0
// See slow_replicas.h.
#include "slow_replicas.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "sys/thread.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kStillNs = 5000000000;  // a replica that loads sends a byte every second

// What CLIENT LIST says about a replica.
struct ReplicaLine {
  uint64_t id = 0, lag = 0;  // lag: bytes of the stream that it has not received
  int fd = -1;
  bool syncing = false;
};

// The slowest replica, while it synchronizes.
struct Watched {
  uint64_t id = 0, moved = 0;  // bytes that it had taken or sent
  uint64_t since_ns = 0;       // when that last changed
};
Watched g_watched;

// The value after `name` (" NAME=") in a line, or nullptr.
const char* field_of(const char* line, size_t length, const char* name) {
  const void* at = memmem(line, length, name, strlen(name));
  return at == nullptr ? nullptr : static_cast<const char*>(at) + strlen(name);
}

uint64_t number_of(const char* line, size_t length, const char* name) {
  const char* at = field_of(line, length, name);
  return at == nullptr ? 0 : strtoull(at, nullptr, 10);
}

// The number of bytes that the other side's system has acknowledged, and that came from it. 0: not
// a TCP socket.
uint64_t bytes_moved(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

bool makes_progress(const ReplicaLine& replica) {
  const uint64_t moved = bytes_moved(replica.fd);
  const uint64_t now = sys::now_ns();
  if (replica.id != g_watched.id || moved != g_watched.moved) g_watched = {replica.id, moved, now};
  return now - g_watched.since_ns < kStillNs;
}

// Takes the first line from the `length` bytes at *text, and moves both past it. False: there is
// none.
bool take_replica_line(const char** text, size_t* length, ReplicaLine* out) {
  const char* line = *text;
  if (*length == 0) return false;
  const auto* end = static_cast<const char*>(memchr(line, '\n', *length));
  const size_t bytes = end == nullptr ? *length : static_cast<size_t>(end - line);
  *text += bytes + (end != nullptr);
  *length -= bytes + (end != nullptr);
  *out = {};
  if (bytes > 3 && memcmp(line, "id=", 3) == 0) out->id = strtoull(line + 3, nullptr, 10);
  out->lag = number_of(line, bytes, " omem=");
  out->fd = static_cast<int>(number_of(line, bytes, " fd="));
  const char* command = field_of(line, bytes, " cmd=");
  out->syncing =
      command != nullptr && (strncmp(command, "psync", 5) == 0 || strncmp(command, "sync", 4) == 0);
  return true;
}

bool find_slowest(Context* context, ReplicaLine* out) {
  Reply* reply = g_api.Call(context, "CLIENT", "ccc", "LIST", "TYPE", "replica");
  if (reply == nullptr) return false;
  size_t length = 0;
  const char* text = g_api.CallReplyType(reply) == kReplyString
                         ? g_api.CallReplyStringPtr(reply, &length)
                         : nullptr;
  bool found = false;
  for (ReplicaLine one; text != nullptr && take_replica_line(&text, &length, &one);)
    if (one.id != 0 && (!found || one.lag > out->lag)) *out = one, found = true;
  g_api.FreeCallReply(reply);
  return found;
}

}  // namespace

void slow_replicas_end(Context* context, const Space& space) {
  ReplicaLine slowest;
  // If the lag is less than the stream, the rest was kept for a replica that is gone, and is being
  // freed.
  if (!find_slowest(context, &slowest) || slowest.lag < space.streams) return;
  if (slowest.syncing && makes_progress(slowest)) return;
  char id[32];
  format_to(id, sizeof(id), "%llu", static_cast<unsigned long long>(slowest.id));
  g_api.Log(context, "warning",
            "LUN space runs short and the replica with client id %s has not taken %s: it is ended, "
            "so that no data is evicted for it; give a larger size, or lower "
            "client-output-buffer-limit replica",
            id, format_size(slowest.lag).text);
  Reply* reply = g_api.Call(context, "CLIENT", "ccc", "KILL", "ID", id);
  if (reply != nullptr) g_api.FreeCallReply(reply);
}

}  // namespace lunar::redis
