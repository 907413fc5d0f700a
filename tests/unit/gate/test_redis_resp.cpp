// SPDX-License-Identifier: Apache-2.0
// The parser of the input gate: every split point of a pipeline, hostile lengths, inline commands;
// and the table of keys.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "adapters/gate/command_keys.h"
#include "adapters/gate/key_slot.h"
#include "adapters/gate/resp.h"
#include "tests/catch.h"

using namespace lunar::redis;
using Words = std::vector<std::string>;

namespace {

std::string multibulk(const Words& words) {
  std::string text = "*" + std::to_string(words.size()) + "\r\n";
  for (const auto& w : words) text += "$" + std::to_string(w.size()) + "\r\n" + w + "\r\n";
  return text;
}

Words words_of(const Command& command) {
  Words words;
  for (unsigned i = 0; i < command.kept; ++i)
    words.emplace_back(command.argument[i].data, command.argument[i].bytes);
  return words;
}

Parse parse(const std::string& text, Command* out) {
  // nothing behind it: a sanitizer sees a read past the end
  const std::vector<char> exact(text.begin(), text.end());
  Parse result = parse_command(exact.data(), exact.size(), out);
  for (unsigned i = 0; i < out->kept; ++i)
    out->argument[i].data = text.data() + (out->argument[i].data - exact.data());
  return result;
}

Words keys_of(const Words& words) {
  static Command command;
  const std::string text = multibulk(words);
  REQUIRE(parse(text, &command) == Parse::kCommand);
  const CommandKeys* keys = find_command_keys(command.argument[0]);
  if (keys == nullptr) return {"(unknown)"};
  Words found;
  for_each_key(*keys, command, [&](unsigned i) {
    found.emplace_back(command.argument[i].data, command.argument[i].bytes);
  });
  return found;
}

}  // namespace

TEST_CASE("a pipeline is cut into its commands at every split point") {
  const std::vector<Words> commands = {{"GET", "a"},
                                       {"SET", "key:1", std::string("\r\n*3\r\n\0x", 8)},
                                       {"ping"},
                                       {"MGET", "", "b", "c"}};
  std::string text;
  std::vector<size_t> ends;
  for (const auto& c : commands) {
    text += c.size() == 1 ? c[0] + "\r\n" : multibulk(c);
    ends.push_back(text.size());
  }
  static Command command;
  for (size_t split = 1; split <= text.size(); ++split) {
    // The bytes so far give all commands that end in them; then more bytes are needed, and never
    // more than the command has.
    size_t at = 0, n = 0;
    while (at < split) {
      const Parse result = parse(text.substr(at, split - at), &command);
      if (result == Parse::kMore) {
        CHECK(command.bytes > split - at);
        CHECK(command.bytes <= ends[n] - at);
        break;
      }
      REQUIRE(result == Parse::kCommand);
      const std::string rest = text.substr(at, split - at);
      REQUIRE(parse(rest, &command) == Parse::kCommand);
      CHECK(words_of(command) == commands[n]);
      at += command.bytes;
      CHECK(at == ends[n++]);
    }
    CHECK(n == static_cast<size_t>(
                   std::count_if(ends.begin(), ends.end(), [&](size_t e) { return e <= split; })));
  }
}

TEST_CASE("hostile lengths are left to the server") {
  static Command command;
  for (const char* text :
       {"*-1\r\n", "*+1\r\n", "*01\r\n", "*1x\r\n", "*\r\n", "*1\rx", "*99999999999999999999\r\n",
        "*2000000\r\n", "*1\r\n+3\r\n", "*1\r\n$-1\r\n", "*1\r\n$999999999999\r\n", "*1\r\n$\r\n",
        "*1\r\n$18446744073709551615\r\n", "*11111111111111111111111111111111111111111"})
    CHECK(parse(text, &command) == Parse::kBad);
  // Large but allowed: more is needed, and how much is told.
  CHECK(parse("*2\r\n$3\r\nGET\r\n$536870912\r\nabc", &command) == Parse::kMore);
  CHECK(command.bytes == 13 + 12 + 536870912ull + 2);
  CHECK(parse("*0\r\n", &command) == Parse::kCommand);
  CHECK(command.count == 0);
  CHECK(command.bytes == 4);
}

TEST_CASE("more arguments than are kept are counted and skipped") {
  Words words{"MGET"};
  for (unsigned i = 0; i < 2 * kArgumentsKept; ++i) words.push_back("k" + std::to_string(i));
  const std::string text = multibulk(words);
  static Command command;
  REQUIRE(parse(text, &command) == Parse::kCommand);
  CHECK(command.bytes == text.size());
  CHECK(command.count == 2 * kArgumentsKept + 1);
  CHECK(command.kept == kArgumentsKept);
  CHECK(keys_of(words).size() == kArgumentsKept - 1);
  // the server has taken more than are kept
  REQUIRE(parse_rest("$1\r\na\r\n", 7, 2 * kArgumentsKept, 1, -1, &command) == Parse::kCommand);
  CHECK(command.count == 2 * kArgumentsKept + 1);
  CHECK(command.kept == kArgumentsKept);
}

TEST_CASE("arguments that name members are found") {
  auto first = [](const Words& words) -> std::string {
    static Command command;
    const std::string text = multibulk(words);
    REQUIRE(parse(text, &command) == Parse::kCommand);
    const CommandKeys* keys = find_command_keys(command.argument[0]);
    REQUIRE(keys != nullptr);
    const unsigned i = first_member(*keys, command);
    return i == 0 ? "(none)" : i >= command.kept ? "(not there)" : words[i];
  };
  CHECK(first({"HGETALL", "h"}) == "(none)");
  CHECK(first({"HMGET", "h", "a", "b"}) == "a");
  CHECK(first({"SMOVE", "s", "t", "m"}) == "m");
  CHECK(first({"HTTL", "h", "FIELDS", "2", "a", "b"}) == "a");
  CHECK(first({"HPEXPIRE", "h", "100", "NX", "fields", "1", "a"}) == "a");
  CHECK(first({"HGETEX", "h", "EX", "100", "FIELDS", "1", "a"}) == "a");
  CHECK(first({"HSETEX", "h", "FNX", "FIELDS", "1", "a", "value"}) == "a");
  CHECK(first({"HGETDEL", "h", "FIELDS"}) == "(not there)");
  CHECK(first({"HTTL", "h", "1", "a"}) == "(not there)");
}

TEST_CASE("inline commands") {
  static Command command;
  std::string text = "  GET \t key:1 \r\n";
  REQUIRE(parse(text, &command) == Parse::kCommand);
  CHECK(words_of(command) == Words{"GET", "key:1"});
  CHECK(command.bytes == text.size());
  text = "\r\n";
  REQUIRE(parse(text, &command) == Parse::kCommand);
  CHECK(command.count == 0);
  text = "x\n";
  REQUIRE(parse(text, &command) == Parse::kCommand);
  CHECK(command.bytes == 2);
  CHECK(parse("GET \"a b\"\r\n", &command) == Parse::kBad);
  CHECK(parse("GET a", &command) == Parse::kMore);
  CHECK(parse(std::string(kInlineMax, 'x'), &command) == Parse::kBad);
}

TEST_CASE("random bytes never read past their end or loop") {
  std::mt19937 random(4711);
  static const char kAlphabet[] = "*$0123456789\r\n\rGETx\" ";
  static Command command;
  for (int i = 0; i < 20000; ++i) {
    std::string text(1 + random() % 40, ' ');
    for (char& c : text) c = kAlphabet[random() % (sizeof kAlphabet - 1)];
    const Parse result = parse(text, &command);
    if (result == Parse::kCommand) {
      CHECK(command.bytes >= 1);
      CHECK(command.bytes <= text.size());
    } else if (result == Parse::kMore) {
      CHECK(command.bytes > text.size());
    }
  }
}

TEST_CASE("the keys of commands") {
  CHECK(keys_of({"get", "a"}) == Words{"a"});
  CHECK(keys_of({"MGET", "a", "b", "c"}) == Words{"a", "b", "c"});
  CHECK(keys_of({"MSET", "a", "1", "b", "2"}) == Words{"a", "b"});
  CHECK(keys_of({"BLPOP", "a", "b", "0"}) == Words{"a", "b"});
  CHECK(keys_of({"EVAL", "return 1", "2", "a", "b", "x"}) == Words{"a", "b"});
  CHECK(keys_of({"EVAL", "return 1", "-2", "a"}).empty());
  CHECK(keys_of({"EVAL", "return 1", "99", "a"}) == Words{"a"});
  CHECK(keys_of({"EVAL"}).empty());
  CHECK(keys_of({"ZUNIONSTORE", "d", "2", "a", "b", "WEIGHTS", "1", "2"}) == Words{"d", "a", "b"});
  CHECK(keys_of({"XREAD", "COUNT", "2", "streams", "a", "b", "0", "0"}) == Words{"a", "b"});
  CHECK(keys_of({"XREADGROUP", "GROUP", "STREAMS", "secret", "STREAMS", "a", ">"}) == Words{"a"});
  CHECK(keys_of({"XREAD", "COUNT"}).empty());
  CHECK(keys_of({"BITOP", "AND", "d", "a", "b"}) == Words{"d", "a", "b"});
  CHECK(keys_of({"OBJECT", "ENCODING", "a"}) == Words{"a"});
  CHECK(keys_of({"GET"}).empty());
  CHECK(keys_of({"CONFIG", "GET", "x"}) == Words{"(unknown)"});
  CHECK(keys_of({"NOSUCHCOMMANDNOSUCHCOMMANDNOSUCH"}) == Words{"(unknown)"});
}

TEST_CASE("the cluster slot of a key is that of its tag") {
  auto slot = [](const std::string& key) { return key_slot({key.data(), key.size()}); };
  CHECK(slot("123456789") == (0x31C3 & 16383));  // CRC-16/XMODEM's check value
  CHECK(slot("") == 0);
  CHECK(slot("{user1000}.following") == slot("user1000"));
  CHECK(slot("foo{bar}{zap}") == slot("bar"));
  CHECK(slot("foo{{bar}}zap") == slot("{bar"));
  CHECK(slot("foo{}{bar}") != slot("bar"));  // an empty tag is none
  CHECK(slot("foo{bar") != slot("bar"));
}

TEST_CASE("the rest of a command is parsed wherever its first part ends") {
  const Words words = {"SET", "key:1", std::string("\r\n$3\r\n\0x", 8), "", "PX"};
  static Command command;
  for (unsigned taken = 0; taken < words.size(); ++taken) {
    const Words left(words.begin() + taken, words.end());
    const std::string with_star = multibulk(left),
                      headed = with_star.substr(with_star.find('\n') + 1);
    for (const bool header :
         {true, false}) {  // the server has read the next argument's header, or not
      const std::string text = header ? headed : headed.substr(headed.find('\n') + 1);
      const int64_t bulk = header ? -1 : static_cast<int64_t>(left[0].size());
      for (size_t cut = 0; cut < text.size(); ++cut) {
        const std::vector<char> exact(text.begin(), text.begin() + static_cast<long>(cut));
        REQUIRE(parse_rest(exact.data(), exact.size(), taken, static_cast<unsigned>(left.size()),
                           bulk, &command) == Parse::kMore);
        REQUIRE(command.bytes > cut);
        REQUIRE(command.bytes <= text.size());
      }
      const std::string behind = text + "*1\r\n$4\r\nPING\r\n";
      for (unsigned i = 0; i < taken; ++i) command.argument[i] = {words[i].data(), words[i].size()};
      REQUIRE(parse_rest(behind.data(), behind.size(), taken, static_cast<unsigned>(left.size()),
                         bulk, &command) == Parse::kCommand);
      REQUIRE(command.bytes == text.size());
      REQUIRE(command.count == words.size());
      REQUIRE(words_of(command) == words);
    }
  }
}
