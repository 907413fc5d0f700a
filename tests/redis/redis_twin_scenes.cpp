// SPDX-License-Identifier: Apache-2.0
// Scenes of the twin test: what needs several connections in a known order, or the whole database.
// See redis_twin_pair.h.
#include <set>

#include "redis_twin_pair.h"

namespace e2e {
namespace {

const std::string kZero = "0";

std::string client_key(Commands& commands, char type) {
  commands.set_client(static_cast<unsigned>(commands.pick(kClients)));
  return commands.key(type);
}

// Two or three clients wait in blocking commands, one after the other; what is then pushed goes to
// them in that order; who gets nothing times out when the clock moves.
void blocked(Twins& twins, Commands& commands) {
  const std::string a = fmt::format("wait:{}", commands.pick(3)),
                    b = fmt::format("wait:{}", commands.pick(3));
  const unsigned form = static_cast<unsigned>(commands.pick(9));
  const bool stream = form >= 7, zset = form >= 4 && !stream;
  twins.ask(0, {{"DEL", a, b, "wait:to"}});
  if (stream)
    for (auto& k : {a, b}) twins.ask(0, {{"XGROUP", "CREATE", k, "g", "$", "MKSTREAM"}});
  const Words forms[] = {
      {"BLPOP", a, b, "1.5"},
      {"BRPOP", b, a, "2"},
      {"BLMOVE", a, "wait:to", "LEFT", "RIGHT", "1"},
      {"BLMPOP", "2", "2", a, b, "RIGHT", "COUNT", "2"},
      {"BZPOPMIN", a, b, "1"},
      {"BZPOPMAX", a, "1.5"},
      {"BZMPOP", "1", "2", b, a, "MIN", "COUNT", "2"},
      {"XREAD", "BLOCK", "1000", "STREAMS", a, b, "$", "$"},
      {"XREADGROUP", "GROUP", "g", "ann", "BLOCK", "1500", "COUNT", "1", "STREAMS", a, ">"}};
  const unsigned waiters = 2 + static_cast<unsigned>(commands.pick(2));
  std::vector<Batch> batches;
  for (unsigned w = 0; w < waiters; ++w) {
    // may run before the clock moves, or after
    const std::string behind = client_key(commands, 's');
    twins.ask(0, {{"PERSIST", behind}});
    batches.push_back({{forms[form]}, {{"GET", behind}}});
    twins.send(kClients + w, batches.back());
    twins.wait_until_both("blocked_clients", w + 1);
  }
  const std::string value = commands.text(commands.pick(3000));
  Batch push;
  if (stream)
    push = {{{"XADD", a, "*", "f", value}}, {{"XADD", b, "*", "f", "2"}}};
  else if (zset)
    push = {{{"ZADD", a, "1", "m", "2", value}}, {{"ZADD", b, "3", "n"}}};
  else
    push = {{{"RPUSH", a, value}}, {{"LPUSH", b, "2"}}};
  if (commands.one_in(3)) push.pop_back();
  switch (commands.pick(4)) {
    case 0:
      push.insert(push.begin(), {{"MULTI"}}), push.push_back({{"EXEC"}});
      break;
    case 1:
      push = {{{"EVAL", "for i = 1, 2 do redis.call('RPUSH', KEYS[1], ARGV[1] .. i) end return 1",
                "1", a, value}}};
      break;
    // unblocks lists
    case 2:
      push = {{{"DEL", a}}, {{"SORT", client_key(commands, 'l'), "ALPHA", "STORE", a}}};
      break;
    default:
      break;
  }
  (void)twins.exchange({push});
  twins.advance_ms(3000);
  for (unsigned w = 0; w < waiters; ++w) (void)twins.receive(kClients + w, batches[w]);
  (void)twins.exchange({{{{"TYPE", a}},
                         {{"TYPE", b}},
                         {{"LRANGE", "wait:to", "0", "-1"}},
                         {{"DEL", a, b, "wait:to"}}}});
}

// WATCH on one connection, a write or nothing on another, or time passes; then EXEC.
void watched(Twins& twins, Commands& commands) {
  commands.set_client(static_cast<unsigned>(commands.pick(kClients)));
  const std::string a = commands.any_key(), b = commands.any_key();
  if (commands.one_in(3)) twins.ask(1, {{"PEXPIRE", a, "50"}});
  twins.ask(0, {{"WATCH", a, b, "nothing"}});
  switch (commands.pick(5)) {
    case 0:
      twins.ask(1, {{"DEL", a}});
      break;
    case 1:
      twins.ask(1, {{"RENAME", b, a}});
      break;
    case 2:
      twins.advance_ms(100);
      break;
    case 3:
      (void)twins.exchange({{}, {commands.any(), commands.any()}});
      break;
    default:
      break;
  }
  const Step end{{commands.one_in(6) ? "DISCARD" : "EXEC"}};
  (void)twins.exchange({{{{"MULTI"}}, {{"EXISTS", a, b}}, commands.any(), {{"TYPE", b}}, end}});
}

// DUMP of one key; the tiered server's payload is given to both, under another name, with or
// without a deadline, whole or spoilt.
void dumped(Twins& twins, Commands& commands) {
  const char type = kTypes[commands.pick(sizeof(kTypes) - 1)];
  const std::string from = client_key(commands, type), to = commands.key(type);
  const Tree payload = twins.ask(2, {{"DUMP", from}, Order::kLength});
  if (payload.null) return;
  std::string bytes = payload.text;
  if (commands.one_in(10)) bytes[commands.pick(bytes.size())] ^= 1;
  Words words{"RESTORE", to, kZero, bytes};
  if (commands.one_in(2))
    words[2] = commands.deadline('m');
  else if (commands.one_in(2))
    words[2] = commands.deadline('M'), words.push_back("ABSTTL");
  if (!commands.one_in(4)) words.push_back("REPLACE");
  const Step values{{"DEBUG", "DIGEST-VALUE", to, from}};
  (void)twins.exchange(
      {{{words}, {{"TYPE", to}}, {{"OBJECT", "ENCODING", to}}, {{"PTTL", to}}, values}});
}

void swapped(Twins& twins, Commands& commands) {
  const unsigned c = static_cast<unsigned>(commands.pick(kClients));
  auto both = [&] {
    Batch batch = commands.batch(c), other = commands.batch((c + 1) % kClients);
    (void)twins.exchange({batch, other});
  };
  twins.ask(0, {{"SWAPDB", kZero, "1"}});
  both();
  twins.ask(3, {{"SWAPDB", kZero, "1"}});
  if (commands.one_in(3)) twins.ask(1, {{"SWAPDB", "1", "2"}});
  const Batch flushed{{{"SELECT", "3"}},     commands.any(), {{"DBSIZE"}},
                      {{"FLUSHDB", "SYNC"}}, {{"DBSIZE"}},   {{"SELECT", kZero}}};
  if (commands.one_in(8)) (void)twins.exchange({flushed});
}

void functions(Twins& twins, Commands& commands) {
  const uint64_t version = commands.pick(1000);
  switch (commands.pick(6)) {
    case 0:
      twins.ask(0, {{"FUNCTION", "LOAD", library(version)}});
      break;  // refused when it is there
    case 1:
      twins.ask(0, {{"FUNCTION", "DELETE", "twin"}});
      break;
    case 2: {
      const Tree payload = twins.ask(0, {{"FUNCTION", "DUMP"}});
      twins.ask(1, {{"FUNCTION", "FLUSH"}});
      twins.ask(0,
                {{"FUNCTION", "RESTORE", payload.text, commands.one_in(2) ? "APPEND" : "REPLACE"}});
      break;
    }
    default:
      twins.ask(0, {{"FUNCTION", "LOAD", "REPLACE", library(version)}});
  }
  twins.ask(2, {{"FUNCTION", "LIST", "WITHCODE"}, Order::kDeep});
  twins.ask(1, {{"FUNCTION", "STATS"}});
}

void described(Twins& twins, Commands& commands) {
  const std::string one_client =
      fmt::format("c{}:{}:7*", commands.pick(kClients), kTypes[commands.pick(sizeof(kTypes) - 1)]);
  (void)twins.exchange(
      {{{{"SELECT", kZero}}, {{"DBSIZE"}}, {{"KEYS", one_client}, Order::kUnordered}, {{"TIME"}}}});
}

// Each server by its own cursors: the keys it names, each once.
std::set<std::string> scanned(const Server& server, const std::string& database,
                              const Words& options, uint64_t* sent) {
  Wire wire(server.port());
  std::set<std::string> keys;
  std::string cursor = kZero;
  do {
    Words words{"SCAN", cursor, "COUNT", "2000"};
    words.insert(words.end(), options.begin(), options.end());
    wire.send_all(resp({"SELECT", database}) + resp(words) + resp({"PING", "<end>"}));
    const std::string bytes = wire.receive_until("$5\r\n<end>\r\n");
    size_t at = 0;
    (void)parse_reply(bytes, &at);
    const Tree reply = parse_reply(bytes, &at);
    if (reply.items.size() != 2)
      give_up(fmt::format("SCAN answers {}", shown(canonical(reply, Order::kAsIs))));
    for (auto& item : reply.items[1].items) keys.insert(item.text);
    cursor = reply.items[0].text;
    ++*sent;
  } while (cursor != kZero);
  return keys;
}

void scan(Twins& twins, const std::string& database, const Words& options) {
  uint64_t sent = 0;
  const auto a = scanned(twins.tiered(), database, options, &sent),
             b = scanned(twins.plain(), database, options, &sent);
  if (a != b)
    give_up(fmt::format("SCAN {} of database {}: {} keys tiered, {} plain", shown(options),
                        database, a.size(), b.size()));
}

}  // namespace

void scan_all(Twins& twins) {
  for (const char* database : {"0", "1", "2", "3"}) scan(twins, database, {});
}

void load_scripts(Twins& twins, Commands& commands) {
  std::vector<std::string> digests;
  for (auto& script : kScripts)
    digests.push_back(twins.ask(0, {{"SCRIPT", "LOAD", script.text}}).text);
  commands.set_script_digests(std::move(digests));
}

void random_scene(Twins& twins, Commands& commands) {
  for (unsigned c = 0; c < 4; ++c) twins.ask(c, {{"SELECT", kZero}});
  switch (commands.pick(20)) {
    case 0:
    case 1:
    case 2:
      return blocked(twins, commands);
    case 3:
    case 4:
    case 5:
    case 6:
      return watched(twins, commands);
    case 7:
    case 8:
    case 9:
    case 10:
    case 11:
      return dumped(twins, commands);
    case 12:
    case 13:
      return swapped(twins, commands);
    case 14:
    case 15:
      return functions(twins, commands);
    case 16:
      return described(twins, commands);
    case 17:
      if (!commands.one_in(4)) return;
      return scan(twins, "0",
                  commands.one_in(2) ? Words{"TYPE", "hash"} : Words{"MATCH", "c1:?:*5"});
    default:
      twins.advance_ms(static_cast<int64_t>(1 + commands.pick(2000)));
  }
}

}  // namespace e2e
