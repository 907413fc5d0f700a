// SPDX-License-Identifier: Apache-2.0
// Active expiry of cold keys. The server's own cycle goes through the tables of expiries, 20 keys and more at a time,
// and frees due keys: one fault for each cold string, 30 ms without serving its clients. The gate switches the server's
// cycle off while any key close ahead of it is due, and does its work in turns:
//
//   table of expiries   ...│ window │ window │ window │ window │      (buckets of kWindow places, a request each)
//                          ▲ the server's cursor
//   each window             look up what is due ─► fetch what is missing ─► expire
//
// The same order, cursor and function for each key: counters, notifications, deletes sent to replicas and the
// append-only file are the server's. The same end: a table whose last window had at most a tenth of due keys is left
// alone for a tenth of a second. A turn takes kTurnNs, then clients get twice as long.
//
// Nothing happens on a replica, while clients are paused, in Valkey's import mode, while fields of hashes expire (Redis
// 8.0: the same cycle of the server frees those), and after DEBUG SET-ACTIVE-EXPIRE 0. The gate sees that command,
// because it switches the server's setting off only where the cycle might run and no command does: from the end of a
// round of events to the next wait for events.
//
// Threading: as ahead.h.
#pragma once
#include <cstdint>

namespace lunar::redis {

// False: not this server.
bool expiry_start();
// Pre: in a turn. True: there is work that waits for nothing but its time.
bool expiry_turn(uint64_t now);
// The server's setting is its own again: commands may come.
void expiry_open();
// No command will come before the next wait. True: the server's own cycle is off.
bool expiry_shut();
bool expiry_is_shut();  // it has yet to be opened
// A client that may do so is about to say whether there shall be any. Behind a command that blocks this runs where our
// own setting cannot be told from its: expiry is the server's alone until its setting has been off, and is on again.
void expiry_wished(bool on);
// Whether the server lets any client say so.
bool expiry_takes_wishes();
// Keys are due: its cycle is to be off.
bool expiry_works();

}  // namespace lunar::redis
