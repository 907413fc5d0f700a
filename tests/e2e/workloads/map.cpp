// SPDX-License-Identifier: Apache-2.0
// std::map with N entries: inserted in windows (ascending, shuffled inside each), looked up, partly
// erased, walked. Prints checksums. Threading: one thread.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace {

constexpr uint64_t kWindow = 4096;

uint64_t shuffled(uint64_t first, uint64_t j) { return first + (j * 1549 + 77) % kWindow; }
uint64_t value(uint64_t key) { return key * 0x9E3779B97F4A7C15ull ^ key >> 7; }

}  // namespace

int main(int argc, char** argv) {
  const uint64_t count = argc > 1 ? strtoull(argv[1], nullptr, 10) : 100000;
  std::map<uint64_t, uint64_t> map;
  for (uint64_t first = 0; first < count; first += kWindow) {
    for (uint64_t j = 0; j < kWindow; ++j) map[shuffled(first, j)] = value(first + j);
  }
  uint64_t sum = 0;
  for (uint64_t first = 0; first < count; first += kWindow) {
    for (uint64_t j = 0; j < kWindow; ++j) {
      auto found = map.find(shuffled(first, j * 7 % kWindow));
      sum = sum * 31 + (found == map.end() ? 1 : found->second);
    }
  }
  printf("%zu %llx\n", map.size(), static_cast<unsigned long long>(sum));
  for (uint64_t first = 0; first < count; first += 3 * kWindow) {
    map.erase(map.lower_bound(first), map.lower_bound(first + kWindow / 2));
    map.insert({first, first});
  }
  uint64_t position = 0;
  for (const auto& [key, content] : map) {
    sum = sum * 31 + key + content;
    if (position++ % 10000 == 0)
      printf("%llu %llx\n", static_cast<unsigned long long>(key),
             static_cast<unsigned long long>(sum));
  }
  printf("%zu %llx\n", map.size(), static_cast<unsigned long long>(sum));
}
