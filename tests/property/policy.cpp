// SPDX-License-Identifier: Apache-2.0
// policy: on a zipf(0.99) trace the pager reads less from the LUN than a FIFO of the whole budget
// would.
//
// Idea. One thread plays the trace on a region of four times the budget; the same trace runs
// through a simulated FIFO of budget/page pages (more than the pager can hold resident: frames and
// tables come out of its budget). Misses are pages read from the LUN, read-ahead included.
//   policy [--accesses N]; LUNAR_SEED=N replays.
#include <math.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/test_tier.h"

namespace {

constexpr uint64_t kMemory = 128 * tier::kMega, kDram = kMemory / 4;
constexpr uint64_t kWarm = 150'000;

// Draws ranks by a table of cumulated weights. The ranks of pages are shuffled.
class Zipf {
 public:
  Zipf(uint64_t count, double theta, tier::Random& random) : cumulated_(count), page_of_(count) {
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i)
      cumulated_[i] = sum += 1 / pow(static_cast<double>(i + 1), theta);
    for (double& c : cumulated_) c /= sum;
    for (uint64_t i = 0; i < count; ++i) page_of_[i] = i;
    for (uint64_t i = count - 1; i > 0; --i) std::swap(page_of_[i], page_of_[random.below(i + 1)]);
  }
  uint64_t draw(tier::Random& random) const {
    double u = static_cast<double>(random.next() >> 11) * 0x1p-53;
    auto at = std::lower_bound(cumulated_.begin(), cumulated_.end(), u) - cumulated_.begin();
    return page_of_[std::min<uint64_t>(static_cast<uint64_t>(at), page_of_.size() - 1)];
  }

 private:
  std::vector<double> cumulated_;
  std::vector<uint64_t> page_of_;
};

class Fifo {
 public:
  Fifo(uint64_t capacity, uint64_t pages) : ring_(capacity, ~uint64_t{0}), in_(pages, false) {}
  bool miss(uint64_t page) {
    if (in_[page]) return false;
    uint64_t& place = ring_[next_++ % ring_.size()];
    if (place != ~uint64_t{0}) in_[place] = false;
    place = page;
    in_[page] = true;
    return true;
  }

 private:
  std::vector<uint64_t> ring_;
  std::vector<bool> in_;
  uint64_t next_ = 0;
};

}  // namespace

TEST_CASE("policy") {
  const uint64_t seed = tier::run_seed(), accesses = lunar_test::option("--accesses", 150'000);
  tier::start_tier(kDram, 4 * kMemory);
  size_t page = lunar_page_bytes();
  uint64_t pages = kMemory / page;
  char* base = tier::new_region(kMemory);
  tier::Random random(seed);
  Zipf zipf(pages, 0.99, random);
  Fifo fifo(kDram / page, pages);
  std::vector<uint32_t> versions(pages, 1);
  for (uint64_t i = 0; i < pages; ++i) tier::stamp_write(base + i * page, page, i, 1);
  std::atomic<uint64_t> done{0};
  tier::Watchdog watchdog(done, 60);
  uint64_t fifo_misses = 0;
  lunar_stats before{};
  for (uint64_t i = 0; i < kWarm + accesses; ++i, ++done) {
    if (i == kWarm) {
      before = tier::stats();
      fifo_misses = 0;
    }
    uint64_t at = zipf.draw(random);
    fifo_misses += fifo.miss(at);
    auto* word = reinterpret_cast<volatile uint64_t*>(base + at * page);
    if (i % 10 < 3)
      tier::stamp_write(base + at * page, page, at, ++versions[at]);
    else
      REQUIRE(tier::stamp_holds(base + at * page, 64, at, versions[at]), "page %lu is wrong (%lx)",
              at, *word);
  }
  lunar_stats after = tier::stats();
  uint64_t misses = after.major_faults + after.prefetched - before.major_faults - before.prefetched;
  const auto count = static_cast<double>(accesses);
  printf(
      "zipf(0.99), %lu accesses, %lu pages: pager read %lu pages (hit ratio %.2f %%; second "
      "chances %lu), FIFO of the whole budget %lu (%.2f %%)\n",
      accesses, pages, misses, 100.0 - 100.0 * static_cast<double>(misses) / count,
      after.second_chances - before.second_chances, fifo_misses,
      100.0 - 100.0 * static_cast<double>(fifo_misses) / count);
  REQUIRE(misses * 100 < fifo_misses * 93, "hardly better than FIFO");
}
