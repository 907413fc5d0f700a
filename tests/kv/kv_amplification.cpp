// SPDX-License-Identifier: Apache-2.0
// Write amplification, by counts: uniform overwrites of a store on a device that is so full; bytes that sets and
// cleaning wrote over those that sets did. By (u - 1) / ln u = f and 1 / (1 - u), u being what lives of the segment
// that is emptied, a log that empties the one with the fewest live records has 2.7 at 80%, 1.9 at 70%, 1.5 at 60%.
// A store that is kept has less, as it holds back what a younger saved state frees. One thread waits for no room, in
// either: it cleans ahead.
//   kv_amplification [--turns N] [--segment-kib N] [--dram-mib N]; LUNAR_SEED= replays.
// Threading: one thread.
#include <vector>

#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

constexpr uint64_t kLogBytes = 64 * kMiB, kValueBytes = 992, kRecordBytes = 1024;

struct Shape {
  uint64_t segment_bytes, dram_bytes, turns;
};

double amplification(unsigned percent, Contents contents, const Shape& shape) {
  const uint64_t turns = shape.turns;
  std::vector<char> memory(kLogBytes);
  lunar_test::MemoryDevice device(memory.data(), memory.size());
  StoreOptions options;
  options.device = &device;
  options.log_bytes = 0;
  options.segment_bytes = shape.segment_bytes;
  options.dram_bytes = shape.dram_bytes;
  options.expected_keys = 1 << 16;
  options.contents = contents;
  Store* store = open_store(options);
  const uint64_t keys = store->bytes_allocated() / kRecordBytes * percent / 100;
  Random random(tier::run_seed());
  std::string value;
  const auto set = [&](uint64_t key) {
    fill(&value, key, random.next(), kValueBytes);
    if (store->set({&key, sizeof key}, bytes_of(value)) != 0) fail("set");
  };
  for (uint64_t key = 0; key < keys; ++key) set(key);
  for (uint64_t i = 0; i < 3 * keys; ++i) set(random.below(keys));  // until it is as it will stay
  const uint64_t cleaned = store->cleaned_bytes(), waits = store->waits_for_room();
  for (uint64_t i = 0; i < turns * keys; ++i) set(random.below(keys));
  const double out =
      1 + static_cast<double>(store->cleaned_bytes() - cleaned) / static_cast<double>(turns * keys * kRecordBytes);
  const uint64_t waited = store->waits_for_room() - waits, filled = turns * keys * kRecordBytes / shape.segment_bytes;
  printf("%llu of %llu segments waited for; ", static_cast<unsigned long long>(waited),
         static_cast<unsigned long long>(filled));
  if (waited > filled / 100) fail("a set waits for room");
  check_store(store);
  store->close();
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const Shape shape = {argument(argc, argv, "--segment-kib", 64) * kKiB, argument(argc, argv, "--dram-mib", 4) * kMiB,
                       argument(argc, argv, "--turns", 3)};
  const struct {
    unsigned percent;
    double most;
    Contents contents = Contents::kScratch;
  } goals[] = {{50, 1.4}, {60, 1.7}, {70, 2.2}, {80, 3.2}, {70, 2.5, Contents::kNew}, {80, 4.0, Contents::kNew}};
  for (const auto& [percent, most, contents] : goals) {
    const double found = amplification(percent, contents, shape);
    printf("%s, %u%% full: write amplification %.2f, at most %.1f\n", contents == Contents::kNew ? "kept" : "scratch",
           percent, found, most);
    if (found > most) fail("too much is written");
  }
  return 0;
}
