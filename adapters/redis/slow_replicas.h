// SPDX-License-Identifier: Apache-2.0
// Ends replicas whose stream takes LUN space that data needs. The server keeps one stream for all
// replicas, from the position of the slowest one on:
//
//   backlog of the server │◄─────── not received by the slowest replica ────────►│ its end
//                         │                     │◄─ not received by the next ───►│
//
// So the slowest replica alone determines the size of the stream, and ending any other one frees
// nothing. One replica is ended at a time. If the stream is still too large when the server has
// freed that replica's part, the next one is ended.
//
// A replica that has acknowledged nothing since its synchronization began still receives or loads
// the data set, and cannot receive the stream yet. If it were ended, it would begin again and
// again. So it is spared while bytes go to it or come from it, even if data is evicted for its
// stream; client-output-buffer-limit still bounds the stream.
//
// Threading: the server's main thread, outside of commands (one may be such a replica's own).
#pragma once
#include "module_abi.h"
#include "space.h"

namespace lunar::redis {

// Ends one replica at most. Pre: space is short, and the server would evict data.
void slow_replicas_end(Context* context, const Space& space);

}  // namespace lunar::redis
