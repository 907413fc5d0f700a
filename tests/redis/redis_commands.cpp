// SPDX-License-Identifier: Apache-2.0
// The gate's table of commands (adapters/gate/command_keys.cpp) against COMMAND of every server
// that is installed, the module's own commands included: a command with keys that the table does
// not have is a failure, as are keys that the server sees elsewhere (COMMAND GETKEYS on a sample of
// each). A new command is noticed by the first run with its server.
//
//   redis_commands MODULE
//
// Threading: one thread. May not: leave files or processes behind.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "adapters/gate/command_keys.h"
#include "tests/support/cases.h"
#include "tools/support/redis_server.h"

namespace {

using namespace lunar::redis;
using lunar::tools::RedisServer;
using lunar::tools::ServerSetup;
using Words = std::vector<std::string>;

// Commands with keys that have no business in the table. The server marks channels itself.
struct Exception {
  const char *name, *reason;
};
constexpr Exception kExceptions[] = {
    {"pfdebug", "debugging"},
};

std::string upper_case(std::string text) {
  for (char& c : text) c = static_cast<char>(toupper(static_cast<unsigned char>(c)));
  return text;
}

const redisReply& field(const redisReply& command, size_t n) {
  static const redisReply kNone{};
  return n < command.elements ? *command.element[n] : kNone;
}

bool has_flag(const redisReply& flags, const char* name) {
  for (size_t i = 0; i < flags.elements; ++i)
    if (strcmp(flags.element[i]->str, name) == 0) return true;
  return false;
}

// A map comes as names and values in turn.
const redisReply* entry_of(const redisReply& map, const char* name) {
  for (size_t i = 0; i + 1 < map.elements; i += 2)
    if (map.element[i]->type != REDIS_REPLY_ARRAY && strcmp(map.element[i]->str, name) == 0)
      return map.element[i + 1];
  return nullptr;
}

bool has_keys(const redisReply& command) {
  const redisReply& specs = field(command, 8);
  bool channels = false;
  for (size_t i = 0; i < specs.elements; ++i) {
    const redisReply* flags = entry_of(*specs.element[i], "flags");
    if (flags == nullptr || !has_flag(*flags, "not_key")) return true;
    channels = true;
  }
  return !channels &&
         (field(command, 3).integer != 0 || has_flag(field(command, 2), "movablekeys"));
}

// Commands that have the shape of the table's entry; the keys in them are k1, k2...
std::vector<Words> samples(const CommandKeys& keys, const Words& name, int64_t arity) {
  const size_t least = static_cast<size_t>(arity < 0 ? -arity : arity);
  auto filled = [&](Words words, size_t bytes) {
    while (words.size() < bytes) words.push_back(std::to_string(words.size()));
    return words;
  };
  auto keyed = [](Words words, unsigned n) {
    for (unsigned i = 1; i <= n; ++i) words.push_back(fmt::format("k{}", i));
    return words;
  };
  std::vector<Words> list;
  const auto first = static_cast<size_t>(keys.first);
  Words head = filled(name, first);
  switch (keys.form) {
    case KeyForm::kRange:
      list.push_back(filled(
          name,
          std::max(least, keys.last < 0 && arity < 0 ? first + 4u * static_cast<size_t>(keys.step) +
                                                           static_cast<size_t>(-keys.last - 1)
                          : keys.last > 0
                              ? static_cast<size_t>(keys.last) + 1  // some modules' arity is -1
                              : 0)));
      break;
    case KeyForm::kCounted:
      head.push_back("2");
      for (unsigned i = 1; i <= 2; ++i) {
        const size_t words = head.size() + static_cast<size_t>(keys.step);
        head = filled(keyed(std::move(head), 1), words);
      }
      list.push_back(filled(head, std::max(least, head.size() + 1)));
      break;
    case KeyForm::kStreams:
      if (head.size() > 1) head[1] = "GROUP";
      head.push_back("STREAMS");
      list.push_back(filled(keyed(head, 2), head.size() + 4));
      break;
    case KeyForm::kStored:
      list.push_back(filled(name, std::max(least, static_cast<size_t>(keys.last))));
      list.push_back(keyed(list[0], 0));
      list.back().insert(list.back().end(), {"STORE", "k9"});
      break;
    case KeyForm::kMigrated:
      list.push_back(filled(name, least));
      list.push_back(list[0]);
      list.back()[first] = "";
      list.back().insert(list.back().end(), {"COPY", "KEYS", "k1", "k2"});
      break;
  }
  return list;
}

Words ours(const CommandKeys& keys, const Words& words) {
  static Command command;
  command = {};
  command.count = command.kept = static_cast<unsigned>(words.size());
  for (size_t i = 0; i < words.size(); ++i)
    command.argument[i] = {words[i].data(), words[i].size()};
  Words found;
  for_each_key(keys, command, [&](unsigned i) { found.push_back(words[i]); });
  std::sort(found.begin(), found.end());
  return found;
}

struct Checked {
  unsigned commands = 0, with_keys = 0, samples = 0, wrong = 0;
};

void check_command(RedisServer& server, const redisReply& command, Checked* done) {
  const std::string name = command.element[0]->str;
  const redisReply& inner = field(command, 9);
  for (size_t i = 0; i < inner.elements; ++i) check_command(server, *inner.element[i], done);
  ++done->commands;
  if (!has_keys(command)) return;
  for (const Exception& one : kExceptions)
    if (name == one.name) return;
  ++done->with_keys;
  const size_t bar = name.find('|');
  Words words = {upper_case(name.substr(0, bar))};
  if (bar != std::string::npos) words.push_back(upper_case(name.substr(bar + 1)));
  const CommandKeys* keys = find_command_keys({words[0].data(), words[0].size()});
  if (keys == nullptr) {
    fmt::print("the table does not have {}\n", name);
    ++done->wrong;
    return;
  }
  for (const Words& sample : samples(*keys, words, field(command, 1).integer)) {
    Words question = {"COMMAND", "GETKEYS"}, theirs;
    question.insert(question.end(), sample.begin(), sample.end());
    const auto reply = server.command(question);
    for (size_t i = 0; i < reply->elements; ++i)
      theirs.emplace_back(reply->element[i]->str, reply->element[i]->len);
    std::sort(theirs.begin(), theirs.end());
    const Words our = ours(*keys, sample);
    ++done->samples;
    if (our == theirs) continue;
    ++done->wrong;
    fmt::print("{}: we see", fmt::join(sample, " "));
    fmt::print(" {}; the server {}\n", fmt::join(our, " "), fmt::join(theirs, " "));
  }
}

Checked check_server(const std::string& place, const std::string& binary, const std::string& module,
                     unsigned nth) {
  ServerSetup setup;
  setup.redis_server = binary;
  setup.name = fmt::format("server{}", nth);
  setup.directory = place + "/" + setup.name;
  setup.saves = false;
  std::filesystem::create_directories(setup.directory);
  if (!module.empty())
    setup.further = {"--loadmodule", module,          "dram", "16mb",
                     "lun",          setup.directory, "size", "64mb"};
  RedisServer server(setup);
  const auto all = server.command({"COMMAND"});
  Checked done;
  for (size_t i = 0; i < all->elements; ++i) check_command(server, *all->element[i], &done);
  fmt::print("{}: {} commands, {} with keys, {} samples, {} wrong\n", binary, done.commands,
             done.with_keys, done.samples, done.wrong);
  return done;
}

// The server under test with the module; whatever else is installed without it: some builds take no
// modules. How many commands are wrong.
unsigned test(const std::string& place, const std::string& server, const std::string& module) {
  std::set<std::string> seen;
  unsigned nth = 0, wrong = 0;
  for (const std::string& binary :
       {server, std::string("/usr/bin/redis-server"), std::string("/usr/bin/valkey-server"),
        std::string("/usr/local/bin/redis-server"), std::string("/usr/local/bin/valkey-server")}) {
    std::error_code missing;
    const std::string real = std::filesystem::canonical(binary, missing).string();
    if (missing || !seen.insert(real).second) continue;
    const Checked done = check_server(place, binary, nth == 0 ? module : "", nth);
    if (done.with_keys <= 140 || done.samples < done.with_keys - done.wrong)
      throw std::runtime_error(binary + " tells of too few commands with keys");
    wrong += done.wrong;
    ++nth;
  }
  return wrong;
}

}  // namespace

int main(int, char** argv) {
  const char* given = getenv("LUNAR_REDIS_SERVER");
  const std::string server = given != nullptr && *given != 0 ? given : "/usr/bin/redis-server";
  if (access(server.c_str(), X_OK) != 0) SKIP("redis-server", server.c_str());
  std::string place = "/var/tmp/lunar-test-XXXXXX", error;
  REQUIRE(mkdtemp(place.data()) != nullptr);
  unsigned wrong = 0;
  try {
    wrong = test(place, server, std::filesystem::absolute(argv[1]));
  } catch (const std::exception& thrown) { error = thrown.what(); }
  std::filesystem::remove_all(place);
  if (error.find("userfaultfd") != std::string::npos && geteuid() != 0)
    SKIP("userfaultfd", error.c_str());
  if (!error.empty()) FAIL(error);
  REQUIRE(wrong == 0,
          "add them to adapters/gate/command_keys.cpp, or to the exceptions here with a "
          "reason");
  return 0;
}
