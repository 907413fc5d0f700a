// SPDX-License-Identifier: Apache-2.0
// Decides whether the gate may look up keys for a client: only if the server itself, asked at that
// moment, would let the client run the command on them. The gate remembers nothing between two
// reads, so it need not watch AUTH, HELLO, RESET, ACL and CONFIG: it uses the client's current
// user, and that user's current rights.
//
//   authRequired(client)            yes ──► nothing is looked up
//   client ─► user                  the default user, or the one that the server has under that
//                                   name; else nothing is looked up
//   user: all commands, all keys    two flags of its first selector: no further question (the price
//                                   of a read: one call, five loads)
//   else, a command at a time       RM_ACLCheckCommandPermissions, the server's own check, with the
//                                   command's arguments; and RM_ACLCheckKeyPermissions for the keys
//                                   that *our* table names, should the two differ
//
// The calls are symbols of the server (RM_: Redis, VM_: Valkey). rights_check makes a user and
// compares the flags before they are trusted.
//
// Threading: the server's main thread, inside read(). The server's checks allocate with its malloc.
#pragma once
#include "command_keys.h"
#include "layout.h"

namespace lunar::redis {

struct UserView;    // the server's user
struct ModuleUser;  // of the module ABI: its first word is the UserView*
struct ModuleText;  // of the module ABI: a string

// The rights of a client, for the duration of one read().
class Rights {
 public:
  Rights() = default;
  ~Rights();
  Rights(const Rights&) = delete;
  Rights& operator=(const Rights&) = delete;
  bool none() const { return user == nullptr; }
  const UserView* user = nullptr;  // nullptr: nothing may be looked up
  bool all = false;                // every command on every key
  ModuleUser* handle = nullptr;    // made for the first check
};

// Finds the symbols. False: *why says which is missing.
[[nodiscard]] bool rights_find_symbols(bool valkey, ErrorText* why);
// Makes a user, gives it rights, and compares. 0, or -1 with *why: the server's users look
// different. Main thread, inside read().
[[nodiscard]] int rights_check(ErrorText* why);
// pre: rights_check has returned 0.
void rights_of(const ServerLayout& layout, const ClientView& client, Rights* out);
// Whether the command may run, including its keys. keys: nullptr if it has none. pre:
// !rights->none().
[[nodiscard]] bool rights_allow(Rights* rights, const CommandKeys* keys, const Command& command);
// Whether the client may be another user after this command in the same input.
[[nodiscard]] bool changes_rights(const Command& command);

}  // namespace lunar::redis
