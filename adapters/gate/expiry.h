// SPDX-License-Identifier: Apache-2.0
// Active expiry of cold keys. The server's own cycle goes through the tables of expiries, 20 keys
// and more at a time, and frees due keys: it takes one fault for each cold string, for up to 30 ms
// without serving clients. While a key close ahead of that cycle is due, the gate switches the
// cycle off and does its work in turns:
//
//   table of expiries   ...│ window │ window │ window │ window │      (a window: kWindow buckets,
//                                                                     one request)
//                          ▲ the server's cursor
//   each window             look up due keys ─► fetch missing pages ─► expire
//
// Order, cursor and the function called for each key are the server's, and so are counters,
// notifications and the deletes sent to replicas and the append-only file. The end of a cycle is
// also the same: a table whose last window had at most a tenth of due keys is left alone for a
// tenth of a second. A turn takes kTurnNs, then clients get twice as long.
//
// The gate does nothing on a replica, while clients are paused, in Valkey's import mode, while
// fields of hashes expire (in Redis 8.0 the same cycle frees those), and after DEBUG
// SET-ACTIVE-EXPIRE 0. It keeps the server's setting off only from the end of a round of events to
// the next wait for events, where the cycle might run but no command does; so it can tell that
// command's setting from its own.
//
// Threading: as ahead.h.
#pragma once
#include <cstdint>

namespace lunar::redis {

// False: not for this server.
bool expiry_start();
// pre: in a turn. True: there is work that waits only for its time.
bool expiry_turn(uint64_t now);
// Restores the server's setting. Called when commands may come.
void expiry_open();
// Called when no command will come before the next wait. True: the server's own cycle is switched
// off.
bool expiry_shut();
bool expiry_is_shut();  // expiry_open must still be called
// Called when a client is about to switch active expiry on or off by DEBUG. If a command blocks the
// server, that may happen while the setting is the gate's. So after `off`, expiry is left to the
// server until its setting has been off, and is on again.
void expiry_wished(bool on);
// Whether the server allows that command.
bool expiry_takes_wishes();
// Whether keys are due, so that the server's cycle must be off.
bool expiry_works();

}  // namespace lunar::redis
