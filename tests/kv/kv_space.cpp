// SPDX-License-Identifier: Apache-2.0
// Space: the bytes of the device for each byte of keys and values in a full store, by the length of
// the values. The store is filled in one go, or its pairs are overwritten in random order at 80%
// full before it is filled. With large values the overhead is the heads of records, the ends of
// segments that are too short for a record, and the reserve for cleaning and states.
//   kv_space [--mib N] [--turns N] [--path FILE] [--kib N: that length alone | --all: more lengths]
// Threading: one thread.
#include <vector>

#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;
using lunar_test::text_option;

constexpr double kMost = 1.1;

// All lengths up to 1 MiB, short ones more often.
uint64_t mixed(uint64_t key) { return 1 + mix(key) % (kKiB << mix(key + 1) % 11); }

class Filled {
 public:
  Filled(const char* path, uint64_t bytes, uint64_t length) : bytes_(bytes), length_(length) {
    StoreOptions options;
    if (path) {
      options.device = open_device(path, bytes);
    } else {
      memory_.resize(bytes);
      // for the rest of the process
      options.device = new lunar_test::MemoryDevice(memory_.data(), bytes);
    }
    options.log_bytes = bytes;
    options.dram_bytes = 48 * kMiB;  // of smaller segments less would be lost
    options.contents = Contents::kNew;
    store_ = open_store(options);
  }
  ~Filled() { store_->close(); }
  Filled(const Filled&) = delete;
  Filled& operator=(const Filled&) = delete;

  int set(uint64_t key, uint64_t version) {
    fill(&value_, key, version, length_ ? length_ : mixed(key));
    return store_->set({&key, sizeof key}, bytes_of(value_));
  }
  // Until this share of the device is used, or the store is full.
  void fill_up(double share) {
    const double most = share * static_cast<double>(bytes_);
    for (; static_cast<double>(store_->bytes_actual()) < most; ++keys_) {
      const int status = set(keys_, 0);
      if (status == -ENOSPC) return;
      if (status != 0) FAIL("set: " + std::to_string(status));
    }
  }
  void overwrite(uint64_t turns, Random* random) {
    for (uint64_t i = 0; i < turns * keys_; ++i)
      if (const int status = set(random->below(keys_), i + 1); status != 0)
        FAIL("set: " + std::to_string(status));
  }
  void report(const char* how) {
    const double space = static_cast<double>(bytes_) / static_cast<double>(store_->bytes_actual());
    const double used =
        static_cast<double>(store_->bytes_in_use()) / static_cast<double>(store_->bytes_actual());
    printf("%4lu KiB%s, %s: %lu values, %.3f bytes of the device a byte, %.3f in use\n",
           length_ / kKiB, length_ ? "" : " (mixed)", how, store_->count(), space, used);
    check_store(store_);
    REQUIRE(space <= kMost, "more than 1.1 bytes a byte");
  }

 private:
  uint64_t bytes_, length_, keys_ = 0;
  std::vector<char> memory_;
  std::string value_;
  Store* store_;
};

}  // namespace

TEST_CASE("kv-space") {
  const uint64_t bytes = option("--mib", 256) * kMiB, turns = option("--turns", 2);
  const char* path = text_option("--path");
  Random random(tier::run_seed());
  std::vector<uint64_t> lengths = {16 * kKiB, kMiB, 0};
  if (lunar_test::has_option("--all")) lengths.insert(lengths.end(), {64 * kKiB, 256 * kKiB});
  if (const uint64_t kib = option("--kib", 0)) lengths = {kib * kKiB};
  for (const uint64_t length : lengths) {
    {
      Filled store(path, bytes, length);
      store.fill_up(1);
      store.report("filled");
    }
    Filled store(path, bytes, length);
    store.fill_up(0.8);
    store.overwrite(turns, &random);
    store.fill_up(1);
    store.report("overwritten");
  }
}
