// SPDX-License-Identifier: Apache-2.0
// Counts the words of text files in a store, through lunar/kv.hpp. The store may be persistent;
// another run then adds to it.
//
//   kv_words [--place PLACE [--durable]] FILE...
//     --place PLACE  a file or device that is blank, or has this program's store; default: memory
//     --durable      makes each count durable at once; without it, all counts at the end
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <lunar/kv.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kv = lunar::kv;

namespace {

constexpr std::string_view kTotal = "\n";  // not a word: the key of the total

int fail(const std::string& what, std::error_code why) {
  std::fprintf(stderr, "kv_words: %s: %s\n", what.c_str(), why.message().c_str());
  return 1;
}

// Adds to the number of a key. A missing key counts as 0.
std::error_code add(kv::Store& store, std::string_view key, unsigned long more) {
  const kv::Result<std::string> before = store.get(key);
  if (!before && before.error() != kv::not_found) return before.error();
  return store.set(key, std::to_string(std::stoul(before.value_or("0")) + more)).error();
}

std::error_code count_words(kv::Store& store, std::istream& text) {
  unsigned long words = 0;
  for (std::string word; text >> word;) {
    std::ranges::transform(word, word.begin(), [](unsigned char letter) {
      return static_cast<char>(std::tolower(letter));
    });
    if (const std::error_code why = add(store, word, 1)) return why;
    ++words;
  }
  return add(store, kTotal, words);
}

// The sum over all words must be the total of this run and earlier ones.
int report(const kv::Store& store) {
  std::vector<std::pair<unsigned long, std::string>> words;
  unsigned long sum = 0;
  kv::Keys keys = store.keys();
  for (std::string_view key : keys) {
    if (key == kTotal) continue;
    const kv::Result<std::string> count = store.get(key);
    if (!count) return fail(std::string(key), count.error());
    words.emplace_back(std::stoul(*count), key);
    sum += words.back().first;
  }
  if (keys.error()) return fail("keys", keys.error());
  if (std::to_string(sum) != store.get(kTotal).value_or(""))
    return fail("the sum", std::make_error_code(std::errc::bad_message));
  std::ranges::sort(words, std::greater());
  std::printf("kv_words: %lu words, %zu different ones", sum, words.size());
  for (std::size_t i = 0; i < words.size() && i < 3; ++i)
    std::printf("%s %s (%lu)", i == 0 ? ":" : ",", words[i].second.c_str(), words[i].first);
  std::printf("\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  kv::Options options;
  int at = 1;
  if (argc > 2 && std::strcmp(argv[1], "--place") == 0) {
    options.place = argv[2];
    options.contents = kv::Contents::keep;
    at = 3;
    if (argc > at && std::strcmp(argv[at], "--durable") == 0) {
      options.durability = kv::Durability::each;
      ++at;
    }
  }
  if (at >= argc || argv[at][0] == '-') {
    std::fprintf(stderr, "usage: kv_words [--place PLACE [--durable]] FILE...\n");
    return 2;
  }
  kv::Result<kv::Store> store = kv::Store::open(options);
  if (!store) return fail("opening the store", store.error());
  for (; at < argc; ++at) {
    std::ifstream file(argv[at]);
    if (!file) return fail(argv[at], {errno, std::generic_category()});
    if (const std::error_code why = count_words(*store, file)) return fail(argv[at], why);
  }
  if (const int result = report(*store); result != 0) return result;
  const kv::Result<void> closed = store->close();
  return closed ? 0 : fail("closing the store", closed.error());
}
