// SPDX-License-Identifier: Apache-2.0
// std::pmr containers on tiered memory: a pool resource over lunar::resource() keeps small strings
// together, a vector of doubles grows larger than DRAM, and a Region is used as an array through a
// span.
//
//   pmr [DRAM_MIB]     default: 64 MiB of DRAM, about 250 MiB of data
#include <lunar/lunar.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory_resource>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

std::string text_of(std::uint64_t key) {
  return "record " + std::to_string(key) +
         std::string(40 + key % 50, static_cast<char>('a' + key % 26));
}

bool strings() {
  std::pmr::unsynchronized_pool_resource pool(lunar::resource());
  std::pmr::unordered_map<std::uint64_t, std::pmr::string> map(&pool);
  constexpr std::uint64_t kCount = 400000;
  for (std::uint64_t key = 0; key < kCount; ++key) map.emplace(key, text_of(key));
  for (std::uint64_t key = 0; key < kCount; key += 7)
    if (auto found = map.find(key);
        found == map.end() || std::string_view(found->second) != text_of(key))
      return false;
  return map.size() == kCount;
}

bool numbers() {
  std::pmr::vector<double> vector(lunar::resource());
  constexpr std::size_t kCount = 8u << 20;  // 64 MiB, and twice that while it grows
  for (std::size_t i = 0; i < kCount; ++i) vector.push_back(static_cast<double>(i) * 0.5);
  double sum = 0;
  for (double number : vector) sum += number;
  return sum == 0.5 * (static_cast<double>(kCount) * static_cast<double>(kCount - 1) / 2);
}

bool array() {
  lunar::Region region(96u << 20);
  std::span<std::uint32_t> words = region.as<std::uint32_t>();
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = static_cast<std::uint32_t>(i * 2654435761u);
  lunar::Region moved = std::move(region);
  constexpr std::size_t kStep = 16384;
  for (std::size_t i = 0; i < words.size(); i += kStep) {
    auto part = words.subspan(i, kStep);
    if (lunar::prefetch(part) < 0) return false;
    for (std::size_t j = 0; j < kStep; ++j)
      if (part[j] != static_cast<std::uint32_t>((i + j) * 2654435761u)) return false;
  }
  lunar::ScopedPin pin(words.first(1024));
  // NOLINTNEXTLINE(bugprone-use-after-move): a region that was moved from is empty
  return moved.bytes() == 96u << 20 && !region && moved.discard() == 0 &&
         words[words.size() - 1] == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint64_t dram = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 64) << 20;
  try {
    lunar::Tier tier({.dram_bytes = dram, .lun_bytes = 1u << 30, .lun = {}, .options = {}});
    const bool good[] = {strings(), numbers(), array()};
    const lunar_stats stats = lunar::stats();
    std::printf(
        "strings %s, numbers %s, array %s; peak %llu MiB resident of %llu, %llu pages evicted\n",
        good[0] ? "right" : "WRONG", good[1] ? "right" : "WRONG", good[2] ? "right" : "WRONG",
        static_cast<unsigned long long>(stats.resident_peak_bytes >> 20),
        static_cast<unsigned long long>(dram >> 20),
        static_cast<unsigned long long>(stats.evictions));
    return good[0] && good[1] && good[2] && stats.resident_peak_bytes <= dram && stats.evictions > 0
               ? 0
               : 1;
  } catch (const lunar::Error& error) {
    std::fprintf(stderr, "pmr: %s\n", error.what());
    return error.code() == EPERM || error.code() == ENOSYS ? 77 : 1;
  }
}
