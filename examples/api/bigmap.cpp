// SPDX-License-Identifier: Apache-2.0
// A std::map larger than DRAM. The only change is its allocator. The program walks a range of the
// map in order, then looks up random keys, and checks every value.
//
//   bigmap [ENTRIES [DRAM_MIB]]     default: 1,500,000 entries (about 200 MiB), 64 MiB of DRAM
#include <lunar/lunar.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

using Map = std::map<std::uint64_t, Value, std::less<>,
                     lunar::allocator<std::pair<const std::uint64_t, Value>>>;

int run(std::uint64_t entries, std::uint64_t dram) {
  // The LUN must be at least as large as the DRAM.
  lunar::Tier tier(
      {.dram_bytes = dram, .lun_bytes = std::max(entries * 512, dram), .lun = {}, .options = {}});
  Map map;
  for (std::uint64_t key = 0; key < entries; ++key) map.emplace_hint(map.end(), key, value_of(key));

  std::uint64_t seen = 0;
  for (const auto& [key, value] : map)
    if (key != seen++ || !right(key, value))
      return std::fprintf(stderr, "bigmap: entry %llu is wrong\n",
                          static_cast<unsigned long long>(key)),
             1;
  if (seen != entries)
    return std::fprintf(stderr, "bigmap: %llu entries\n", static_cast<unsigned long long>(seen)), 1;

  std::mt19937_64 random(42);
  for (int i = 0; i < 5000; ++i) {
    std::uint64_t key = random() % entries;
    auto found = map.find(key);
    if (found == map.end() || !right(key, found->second))
      return std::fprintf(stderr, "bigmap: look-up of %llu\n",
                          static_cast<unsigned long long>(key)),
             1;
  }
  const lunar_stats stats = lunar::stats();
  std::printf(
      "%llu entries, %llu MiB of DRAM: peak %llu MiB resident, %llu MiB on the LUN, %llu pages "
      "evicted\n",
      static_cast<unsigned long long>(entries), static_cast<unsigned long long>(dram >> 20),
      static_cast<unsigned long long>(stats.resident_peak_bytes >> 20),
      static_cast<unsigned long long>(stats.evicted_bytes >> 20),
      static_cast<unsigned long long>(stats.evictions));
  if (stats.evictions == 0)
    return std::fputs("bigmap: nothing was evicted; give more ENTRIES\n", stderr), 1;
  if (stats.resident_peak_bytes > dram)
    return std::fputs("bigmap: the budget was passed\n", stderr), 1;
  return 0;
}

// Parses a whole number above 0. Returns 0 if it is not one.
std::uint64_t number_of(const char* text) {
  constexpr std::uint64_t kMost = 1u << 30;
  char* end;
  const std::uint64_t number = std::strtoull(text, &end, 10);
  return end != text && *end == '\0' && text[0] != '-' && number <= kMost ? number : 0;
}

int usage(int code) {
  std::fputs("usage: bigmap [ENTRIES [DRAM_MIB]]     default: 1500000 entries, 64 MiB of DRAM\n",
             code == 0 ? stdout : stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return usage(0);
  const std::uint64_t entries = argc > 1 ? number_of(argv[1]) : 1500000,
                      dram_mib = argc > 2 ? number_of(argv[2]) : 64;
  if (argc > 3 || entries == 0 || dram_mib == 0) return usage(2);
  try {
    return run(entries, dram_mib << 20);
  } catch (const lunar::Error& error) {
    std::fprintf(stderr, "bigmap: %s\n", error.what());
    return error.code() == EPERM || error.code() == ENOSYS ? 77 : 1;
  } catch (const std::exception& error) {  // std::bad_alloc: the map does not fit on the LUN
    std::fprintf(stderr, "bigmap: %s\n", error.what());
    return 1;
  }
}
