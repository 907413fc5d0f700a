// SPDX-License-Identifier: Apache-2.0
// The input gate of a Redis server that `lunar run` started.
#pragma once

namespace lunar::preload {

// At start, when the tier exists. Does nothing unless the program is a redis-server.
void server_gate_start();

}  // namespace lunar::preload
