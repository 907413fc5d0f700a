// SPDX-License-Identifier: Apache-2.0
// A std::map larger than DRAM: the only change is its allocator. A range of it is walked in order, then looked up at
// random; every value is checked.
//
//   bigmap [ENTRIES [DRAM_MIB]]     default: 1,500,000 entries (about 200 MiB), 64 MiB of DRAM
#include <lunar/lunar.hpp>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>

namespace {

struct Value {
  std::uint64_t words[8];
};

Value value_of(std::uint64_t key) {
  Value value;
  for (std::uint64_t i = 0; i < 8; ++i) value.words[i] = key * 0x9E3779B97F4A7C15u + i;
  return value;
}

bool right(std::uint64_t key, const Value& value) {
  const Value wanted = value_of(key);
  for (int i = 0; i < 8; ++i)
    if (value.words[i] != wanted.words[i]) return false;
  return true;
}

using Map = std::map<std::uint64_t, Value, std::less<>, lunar::allocator<std::pair<const std::uint64_t, Value>>>;

int run(std::uint64_t entries, std::uint64_t dram) {
  lunar::Tier tier({.dram_bytes = dram, .lun_bytes = entries * 512, .lun = {}, .options = {}});
  Map map;
  for (std::uint64_t key = 0; key < entries; ++key) map.emplace_hint(map.end(), key, value_of(key));

  std::uint64_t seen = 0;
  for (const auto& [key, value] : map)
    if (key != seen++ || !right(key, value))
      return std::fprintf(stderr, "bigmap: entry %llu is wrong\n", static_cast<unsigned long long>(key)), 1;
  if (seen != entries) return std::fprintf(stderr, "bigmap: %llu entries\n", static_cast<unsigned long long>(seen)), 1;

  std::mt19937_64 random(42);
  for (int i = 0; i < 5000; ++i) {
    std::uint64_t key = random() % entries;
    auto found = map.find(key);
    if (found == map.end() || !right(key, found->second))
      return std::fprintf(stderr, "bigmap: look-up of %llu\n", static_cast<unsigned long long>(key)), 1;
  }
  const lunar_stats stats = lunar::stats();
  std::printf("%llu entries, %llu MiB of DRAM: peak %llu MiB resident, %llu MiB on the LUN, %llu pages evicted\n",
              static_cast<unsigned long long>(entries), static_cast<unsigned long long>(dram >> 20),
              static_cast<unsigned long long>(stats.resident_peak_bytes >> 20),
              static_cast<unsigned long long>(stats.evicted_bytes >> 20),
              static_cast<unsigned long long>(stats.evictions));
  return stats.resident_peak_bytes <= dram && stats.evictions > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1500000,
               (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 64) << 20);
  } catch (const lunar::Error& error) {
    std::fprintf(stderr, "bigmap: %s\n", error.what());
    return error.code() == EPERM || error.code() == ENOSYS ? 77 : 1;
  }
}
