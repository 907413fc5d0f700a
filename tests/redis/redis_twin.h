// SPDX-License-Identifier: Apache-2.0
// What the parts of the twin test share: one command with the way its reply is compared, replies as
// trees, the generator of random commands.
// Threading: one thread. May not be used by code that ships.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/e2e/e2e.h"

namespace e2e {

// How a reply is compared. RESP3's own sets and maps are unordered under any of these.
enum class Order {
  kAsIs,
  kUnordered,  // elements in the order of a hash table
  kPairs,      // the same, two by two
  kScan,       // [cursor, elements in any order]
  kScanPairs,  // [cursor, pairs in any order]
  kDeep,       // arrays in any order, at all depths
  kLength,     // only its length (a payload that holds a hash table)
};

struct Step {
  Words words;
  Order order = Order::kAsIs;
};
using Batch = std::vector<Step>;

struct Tree {
  char type = 0;     // RESP's first byte
  std::string text;  // of what is not an aggregate
  std::vector<Tree> items;
  bool null = false;
};

// The reply at `at`, which is moved behind it. Throws when there is none. RESP2 and RESP3.
Tree parse_reply(const std::string& bytes, size_t* at);
// A text that is equal for equal replies.
std::string canonical(const Tree& reply, Order order);
// A command or reply for people: what is long is cut.
std::string shown(const Words& words);
std::string shown(const std::string& text);

// The scripts that EVAL, EVALSHA and EVAL_RO run, and how many keys each wants.
struct Script {
  const char* text;
  unsigned keys;
  bool writes;
};
extern const std::vector<Script> kScripts;
std::string library(uint64_t version);  // for FUNCTION LOAD REPLACE: twin_put, twin_get, twin_move

constexpr unsigned kClients = 8, kKeysEach = 560;  // keys a client and type
// Numbers, strings, bitmaps, HLL, lists, hashes, sets, sorted sets, those of one score, streams,
// geo.
constexpr char kTypes[] = "nsbplhtzyxg";

// Random commands on the keys of one client. The seed decides all.
class Commands {
 public:
  explicit Commands(uint64_t seed) : random_(seed) {}
  uint64_t pick(uint64_t n) { return random_() % n; }
  bool one_in(uint64_t n) { return pick(n) == 0; }
  std::string text(size_t bytes);

  void set_client(unsigned client) { client_ = client; }
  void set_time_ms(int64_t now) { now_ms_ = now; }
  void set_script_digests(std::vector<std::string> digests) { digests_ = std::move(digests); }

  std::string key(char type);
  std::string any_key() { return key(kTypes[pick(sizeof(kTypes) - 1)]); }
  // A fresh value at a key: DEL and what makes it, of compact or of large encoding.
  Batch fill(const std::string& key, char type);
  Step any();
  // What a client sends before it listens. SELECT first; MULTI and WATCH now and then.
  Batch batch(unsigned client);
  std::string deadline(char form);  // an argument of EX, PX, EXAT or PXAT: 's', 'm', 'S', 'M'

 private:
  Step numbers();
  Step strings();
  Step bitmaps();
  Step hyperloglogs();
  Step lists();
  Step hashes();
  Step sets();
  Step sorted_sets();
  Step sorted_set_ranges();
  Step lexical_ranges();
  Step streams();
  Step stream_groups();
  Step geo();
  Step keyspace();
  Step expiry();
  Step sorts();
  Step scripts();

  std::string number(int64_t low, int64_t high);  // seldom something else
  std::string member(const std::string& of = "");
  std::string score();
  std::string stream_id();
  std::string place(bool longitude);
  template <class... Texts>
  std::string one_of(Texts... texts) {
    const char* const all[] = {texts...};
    return all[pick(sizeof...(texts))];
  }

  std::mt19937_64 random_;
  unsigned client_ = 0;
  int64_t now_ms_ = 0;
  std::vector<std::string> digests_;
};

}  // namespace e2e
