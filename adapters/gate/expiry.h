// SPDX-License-Identifier: Apache-2.0
// Active expiry of cold keys. The server's own cycle goes through the tables of expiries, 20 keys
// and more at a time, and frees due keys: one fault for each cold string, 30 ms without serving its
// clients. The gate switches the server's cycle off while any key close ahead of it is due, and
// does its work in turns:
//
//   table of expiries   ...│ window │ window │ window │ window │      (a window: kWindow buckets,
//                                                                     one request)
//                          ▲ the server's cursor
//   each window             look up what is due ─► fetch what is missing ─► expire
//
// The same order, cursor and function for each key: counters, notifications, deletes sent to
// replicas and the append-only file are the server's. The same end: a table whose last window had
// at most a tenth of due keys is left alone for a tenth of a second. A turn takes kTurnNs, then
// clients get twice as long.
//
// Nothing happens on a replica, while clients are paused, in Valkey's import mode, while fields of
// hashes expire (Redis 8.0: the same cycle of the server frees those), and after DEBUG
// SET-ACTIVE-EXPIRE 0. The gate sees that command, because it switches the server's setting off
// only where the cycle might run and no command does: from the end of a round of events to the next
// wait for events.
//
// Threading: as ahead.h.
#pragma once
#include <cstdint>

namespace lunar::redis {

// False: not for this server.
bool expiry_start();
// Pre: in a turn. True: there is work that is waiting only for its time.
bool expiry_turn(uint64_t now);
// Restores the server's setting, because commands may come.
void expiry_open();
// Called when no command will come before the next wait. True: the server's own cycle is switched
// off.
bool expiry_shut();
bool expiry_is_shut();  // expiry_open is still to be called
// Called when a client that may do so is about to switch active expiry on or off. After a command
// that blocks, this may run where the gate's setting cannot be distinguished from the client's:
// then expiry is left to the server until its setting has been off, and is on again.
void expiry_wished(bool on);
// Whether the server lets any client do that.
bool expiry_takes_wishes();
// Whether keys are due, so that the server's cycle must be off.
bool expiry_works();

}  // namespace lunar::redis
