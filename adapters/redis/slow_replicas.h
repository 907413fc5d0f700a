// SPDX-License-Identifier: Apache-2.0
// Ends replicas whose stream takes LUN space that data needs. The server keeps one stream for all
// replicas, from the place where the slowest one is:
//
//   backlog of the server │◄────── what the slowest replica has not taken ──────►│ end of it
//                         │                     │◄─ what the next one has not ──►│
//
// So the slowest replica alone determines what the stream takes, and ending any other one frees
// nothing. It is ended alone; the next one comes when the server has freed what was kept for the
// first, if that is still too much.
//
// A replica that has not acknowledged anything since its synchronization began still receives or
// loads the data set; it cannot take the stream. If it were ended, it would begin again, and again.
// So it is spared while bytes go to it or come from it, even if data is evicted for its stream;
// client-output-buffer-limit still bounds that.
//
// Threading: the server's main thread, outside of commands (one may be such a replica's own).
#pragma once
#include <cstddef>
#include <cstdint>

#include "module_abi.h"
#include "space.h"

namespace lunar::redis {

// Ends one replica at most. Pre: space is short, and the server would evict data.
void slow_replicas_end(Context* context, const Space& space);

// What CLIENT LIST says about a replica.
struct ReplicaLine {
  uint64_t id = 0, lag = 0;  // lag: bytes of the stream that it has not taken
  int fd = -1;
  bool syncing = false;
};
// Takes the first line from the `length` bytes at *text, and moves both behind it. False: there is
// none.
bool take_replica_line(const char** text, size_t* length, ReplicaLine* out);

}  // namespace lunar::redis
