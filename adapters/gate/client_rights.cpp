// SPDX-License-Identifier: Apache-2.0
// See client_rights.h.
#include "client_rights.h"

#include <errno.h>

#include <cstring>

#include "base/format.h"
#include "base/host_guard.h"
#include "server_fields.h"

namespace lunar::redis {

struct UserView {
  const char* name;  // sds
  uint32_t flags;
  void* passwords;
  struct List {
    struct Node {
      Node *previous, *next;
      const struct Selector {
        uint32_t flags;
      }* selector;
    }* first;
  }* selectors;  // the user's own rights come first
};

namespace {

constexpr uint32_t kRoot = 1, kAllKeys = 2, kAllCommands = 4;  // flags of a selector
constexpr size_t kAskedBytesMax = 64 * 1024;  // of a command that the server checks
constexpr int kAllowed = 0;                   // REDISMODULE_OK

struct Server {
  int (*auth_required)(const ClientView*);
  const UserView* const* default_user;
  const UserView* (*user_by_name)(const char*, size_t);
  ModuleText* (*make_text)(void* context, const char*, size_t);
  void (*free_text)(void* context, ModuleText*);
  ModuleUser* (*get_user)(ModuleText* name);
  ModuleUser* (*make_user)(const char* name);
  int (*give_rights)(ModuleUser*, const char*);
  void (*free_user)(ModuleUser*);
  int (*may_run)(ModuleUser*, ModuleText**, int);
  int (*may_use)(ModuleUser*, ModuleText*, int flags);
};
constinit Server g_server{};
constinit bool g_offset_known = false;  // a client's user was found where it is expected
constinit ModuleText* g_arguments[kArgumentsKept];

template <class F>
bool module_call(bool valkey, const char* name, F* out, ErrorText* why) {
  char full[64];
  format_to(full, sizeof(full), "%s_%s", valkey ? "VM" : "RM", name);
  return find_export(full, out, why);
}

const UserView* user_of(ModuleUser* handle) {
  return *reinterpret_cast<const UserView* const*>(handle);
}

// Reads the flags of a user by a pointer that may be wild. False: it is no user.
bool peek_flags(const UserView* user, uint32_t* flags) {
  UserView view;
  UserView::List list;
  UserView::List::Node node;
  UserView::List::Node::Selector selector;
  if (!peek(user, &view) || !peek(view.selectors, &list) || !peek(list.first, &node) ||
      !peek(node.selector, &selector) || (selector.flags & kRoot) == 0)
    return false;
  *flags = selector.flags;
  return true;
}

bool may_do_all(const UserView* user) {
  constexpr uint32_t kAll = kRoot | kAllKeys | kAllCommands;
  const auto* first = user->selectors->first;
  return first != nullptr && (first->selector->flags & kAll) == kAll;
}

bool named(const UserView* user) {
  return g_server.user_by_name(user->name, sds_length(user->name)) == user;
}

// Whether this is a user; the pointer may be wild.
bool is_user(const UserView* user) {
  UserView view;
  uint32_t flags;
  char end = 1;
  uint8_t header = 0;
  if (user == *g_server.default_user) return true;
  if (!peek_flags(user, &flags) || !peek(user, &view) || !peek(view.name - 1, &header) ||
      sds_header(header) == 0 || !peek(view.name - sds_header(header), &end))
    return false;
  const uint64_t length = sds_length(view.name);
  return length < 4096 && peek(view.name + length, &end) && end == 0 && named(user);
}

// True: the server's own answer about GET for a user is `wanted`, or it has no command of that name
// (rename-command).
bool says_of_get(ModuleUser* handle, bool wanted) {
  ModuleText* arguments[2] = {g_server.make_text(nullptr, "GET", 3),
                              g_server.make_text(nullptr, "lunar", 5)};
  errno = 0;
  const bool may = g_server.may_run(handle, arguments, 2) == kAllowed;
  const bool unknown = !may && errno == ENOENT;
  for (ModuleText* text : arguments) g_server.free_text(nullptr, text);
  return may == wanted || unknown;
}

bool shows(ModuleUser* handle, const char* rights, uint32_t wanted, bool get) {
  uint32_t flags = 0;
  if (rights[0] != '\0' && g_server.give_rights(handle, rights) != kAllowed) return false;
  return peek_flags(user_of(handle), &flags) && (flags & (kAllKeys | kAllCommands)) == wanted &&
         may_do_all(user_of(handle)) == (wanted == (kAllKeys | kAllCommands)) &&
         says_of_get(handle, get);
}

}  // namespace

Rights::~Rights() {
  if (handle != nullptr) g_server.free_user(handle);
}

bool rights_find_symbols(bool valkey, ErrorText* why) {
  HostGuard guard;
  Server& s = g_server;
  return find_export("authRequired", &s.auth_required, why) &&
         find_export("DefaultUser", &s.default_user, why) &&
         find_export("ACLGetUserByName", &s.user_by_name, why) &&
         module_call(valkey, "CreateString", &s.make_text, why) &&
         module_call(valkey, "FreeString", &s.free_text, why) &&
         module_call(valkey, "GetModuleUserFromUserName", &s.get_user, why) &&
         module_call(valkey, "CreateModuleUser", &s.make_user, why) &&
         module_call(valkey, "SetModuleUserACL", &s.give_rights, why) &&
         module_call(valkey, "FreeModuleUser", &s.free_user, why) &&
         module_call(valkey, "ACLCheckCommandPermissions", &s.may_run, why) &&
         module_call(valkey, "ACLCheckKeyPermissions", &s.may_use, why);
}

int rights_check(ErrorText* why) {
  ModuleUser* user = g_server.make_user("lunar");
  const bool right =
      user != nullptr && shows(user, "", 0, false) && shows(user, "allkeys", kAllKeys, false) &&
      shows(user, "allcommands", kAllKeys | kAllCommands, true) &&
      shows(user, "-get", kAllKeys, false) &&
      shows(user, "allcommands", kAllKeys | kAllCommands, true) &&
      shows(user, "resetkeys", kAllCommands, false) && shows(user, "~lun*", kAllCommands, true);
  if (user != nullptr) g_server.free_user(user);
  return right ? 0 : (why->set(-ENOTSUP, "its users look different"), -1);
}

void rights_of(const ServerLayout& layout, const ClientView& client, Rights* out) {
  const auto* user = static_cast<const UserView*>(layout.user_of(client));
  if (user == nullptr || g_server.auth_required(&client) != 0) return;
  if (!g_offset_known && !(g_offset_known = is_user(user))) return;
  if (user != *g_server.default_user && !named(user))
    return;  // made by a module, or not the server's any more
  out->user = user;
  out->all = may_do_all(user);
}

bool rights_allow(Rights* rights, const CommandKeys* keys, const Command& command) {
  if (rights->all) return true;
  if (command.count != command.kept || command.bytes > kAskedBytesMax) return false;
  if (rights->handle == nullptr) {
    const char* name = rights->user->name;
    ModuleText* text = g_server.make_text(nullptr, name, sds_length(name));
    rights->handle = g_server.get_user(text);
    g_server.free_text(nullptr, text);
  }
  if (rights->handle == nullptr || user_of(rights->handle) != rights->user) return false;
  for (unsigned i = 0; i < command.kept; ++i)
    g_arguments[i] =
        g_server.make_text(nullptr, command.argument[i].data, command.argument[i].bytes);
  bool may =
      g_server.may_run(rights->handle, g_arguments, static_cast<int>(command.kept)) == kAllowed;
  if (keys != nullptr)
    for_each_key(*keys, command, [&](unsigned argument) {
      may = may && g_server.may_use(rights->handle, g_arguments[argument], 0) == kAllowed;
    });
  for (unsigned i = 0; i < command.kept; ++i) g_server.free_text(nullptr, g_arguments[i]);
  return may;
}

bool changes_rights(const Command& command) {
  const Slice name = command.argument[0];
  return same_word(name, "AUTH") || same_word(name, "RESET") || same_word(name, "ACL") ||
         (same_word(name, "HELLO") && command.count > 2) ||
         (same_word(name, "CONFIG") && command.count > 3);
}

}  // namespace lunar::redis
