// SPDX-License-Identifier: Apache-2.0
// The slot allocator: charging, placement (log first, then the emptiest segments), retirement, and
// that no slot ever has two owners, against a model and under threads. LUNAR_SEED=N replays a run.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "pager/account/slot_allocator.h"
#include "superpipe/registry.h"
#include "sys/log.h"
#include "tests/catch.h"
#include "tests/support/lun_device.h"
#include "tests/support/meanwhile.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

struct Lun {
  Device* device = nullptr;
  SlotAllocator lun;
  explicit Lun(const char* uri, uint32_t page_bytes = 4096) {
    ErrorText why;
    REQUIRE(device_open(uri, {}, &device, &why) == 0);
    REQUIRE(lun.open(device, DeviceOffset{0}, device->size_bytes(), page_bytes) == 0);
  }
  ~Lun() {
    lun.close();
    device_close(device);
  }
};

std::vector<uint32_t> take(SlotAllocator& lun, uint32_t want, unsigned max_runs = 64) {
  std::vector<SlotRun> runs(max_runs);
  const unsigned count = lun.alloc(want, runs.data(), max_runs);
  std::vector<uint32_t> slots;
  for (unsigned i = 0; i < count; ++i) {
    for (uint32_t j = 0; j < runs[i].count; ++j) slots.push_back(runs[i].first.value + j);
  }
  return slots;
}

}  // namespace

TEST_CASE("slots of a fresh LUN come in one run, one after the other") {
  Lun scratch("sim:64m");
  REQUIRE(scratch.lun.charge(4000) == 0);
  SlotRun runs[4];
  uint32_t expected = 0;
  for (uint32_t want : {1u, 10u, 64u, 100u, 300u}) {
    REQUIRE(scratch.lun.alloc(want, runs, 4) == 1);
    CHECK(runs[0].first.value == expected);
    CHECK(runs[0].count == want);
    CHECK(scratch.lun.offset_of(runs[0].first).value == uint64_t{expected} * 4096);
    expected += want;
  }
  CHECK(scratch.lun.used_slots() == expected);
  CHECK(scratch.lun.validate());
}

TEST_CASE("a LUN too small, or larger than its device, is refused") {
  Device* device = nullptr;
  ErrorText why;
  REQUIRE(device_open("sim:64m", {}, &device, &why) == 0);
  SlotAllocator lun;
  CHECK(lun.open(device, DeviceOffset{0}, 64 * 4096, 4096) == -EINVAL);
  CHECK(lun.open(device, DeviceOffset{0}, 64 * kMiB, 1000) == -EINVAL);
  CHECK(lun.open(device, DeviceOffset{kMiB}, 64 * kMiB, 4096) == -ENOSPC);
  CHECK(lun.open(device, DeviceOffset{kMiB}, 63 * kMiB, 4096) == 0);
  CHECK(lun.offset_of(Slot{1}).value == kMiB + 4096);
  lun.close();
  device_close(device);
}

TEST_CASE("a charge beyond the capacity is ENOMEM and charges nothing") {
  Lun scratch("sim:64m");
  const uint64_t capacity = scratch.lun.capacity_slots();
  CHECK(capacity < 64 * kMiB / 4096);  // the cleaning reserve cannot be charged
  CHECK(scratch.lun.charge(capacity + 1) == -ENOMEM);
  CHECK(scratch.lun.charge(UINT64_MAX) == -ENOMEM);
  CHECK(scratch.lun.charged_slots() == 0);
  CHECK(scratch.lun.charge(capacity) == 0);
  CHECK(scratch.lun.charge(1) == -ENOMEM);
  CHECK(scratch.lun.charge_fast(1) == -ENOMEM);
  scratch.lun.uncharge(1);
  CHECK(scratch.lun.charge_fast(1) == 0);
  CHECK(scratch.lun.validate());
}

TEST_CASE("charge_fast lives on reserved space only") {
  Lun scratch("sim:1g");
  CHECK(scratch.lun.charge_fast(1) == -EAGAIN);
  CHECK(take(scratch.lun, 1).empty());  // no space behind any slot yet
  CHECK(scratch.lun.charge(1) == 0);
  CHECK(scratch.lun.charge_fast(100) == 0);
  CHECK(scratch.lun.charge_fast(scratch.lun.capacity_slots() / 2) == -EAGAIN);
  CHECK(scratch.lun.charged_slots() == 101);
}

TEST_CASE("everything charged can be allocated, and the cleaning reserve on top") {
  Lun scratch("sim:64m");
  REQUIRE(scratch.lun.charge(scratch.lun.capacity_slots()) == 0);
  const auto slots = take(scratch.lun, UINT32_MAX);
  CHECK(slots.size() == 64 * kMiB / 4096);
  CHECK(std::set<uint32_t>(slots.begin(), slots.end()).size() == slots.size());
  CHECK(take(scratch.lun, 1).empty());
  CHECK(scratch.lun.validate());
}

TEST_CASE("whole free segments are used before fragments") {
  Lun scratch("sim:64m");
  REQUIRE(scratch.lun.charge(scratch.lun.capacity_slots()) == 0);
  const auto slots = take(scratch.lun, UINT32_MAX);
  for (uint32_t slot : slots) {
    if (slot / 64 == 100 || slot / 64 == 200 || slot % 7 == 0) scratch.lun.release(Slot{slot});
  }
  SlotRun runs[8];
  REQUIRE(scratch.lun.alloc(128, runs, 8) == 2);
  CHECK(runs[0].count == 64);
  CHECK(runs[1].count == 64);
  CHECK(std::set<uint32_t>{runs[0].first.value, runs[1].first.value} ==
        std::set<uint32_t>{6400, 12800});
  CHECK(take(scratch.lun, 50).size() == 50);  // now the fragments
  CHECK(scratch.lun.validate());
}

TEST_CASE("without whole segments the emptiest of the window is used first") {
  Lun scratch("sim:64m");
  REQUIRE(scratch.lun.charge(scratch.lun.capacity_slots()) == 0);
  const auto slots = take(scratch.lun, UINT32_MAX);
  for (uint32_t segment = 0; segment < 64 * kMiB / 4096 / 64; ++segment) {
    const uint32_t freed = segment % 64 == 40 ? 50 : 3;
    for (uint32_t i = 0; i < freed; ++i) scratch.lun.release(Slot{segment * 64 + i});
  }
  const auto got = take(scratch.lun, 50);
  REQUIRE(got.size() == 50);
  CHECK(got.front() / 64 % 64 == 40);
  CHECK(got.back() / 64 == got.front() / 64);
}

TEST_CASE("a caller with room for one run gets a long one while there are any") {
  Lun scratch("sim:64m");
  REQUIRE(scratch.lun.charge(10000) == 0);
  const auto slots = take(scratch.lun, 62);
  const auto blocker = take(scratch.lun, 66, 2);
  for (uint32_t slot : slots) scratch.lun.release(Slot{slot});
  SlotRun run;
  for (int i = 0; i < 20; ++i) {
    REQUIRE(scratch.lun.alloc(64, &run, 1) == 1);
    CHECK(run.count == 64);
  }
}

TEST_CASE("a retired slot is never handed out again and lowers the capacity") {
  Lun scratch("sim:8m");
  const uint64_t before = scratch.lun.capacity_slots();
  REQUIRE(scratch.lun.charge(before - 1) == 0);
  const auto first = take(scratch.lun, 1);
  scratch.lun.retire(Slot{first[0]});
  CHECK(scratch.lun.retired_slots() == 1);
  CHECK(scratch.lun.used_slots() == 0);
  CHECK(scratch.lun.capacity_slots() == before - 1);
  CHECK(scratch.lun.charge(1) == -ENOMEM);
  const auto rest = take(scratch.lun, UINT32_MAX);
  CHECK(std::count(rest.begin(), rest.end(), first[0]) == 0);
  CHECK(scratch.lun.validate());
}

TEST_CASE("slots of 64 KiB") {
  Lun scratch("sim:256m", 65536);
  REQUIRE(scratch.lun.charge(scratch.lun.capacity_slots()) == 0);
  CHECK(take(scratch.lun, UINT32_MAX).size() == 4096);
  CHECK(scratch.lun.offset_of(Slot{4095}).value == 255 * kMiB + 15 * 65536);
  CHECK(scratch.lun.page_bytes() == 65536);
}

TEST_CASE("the slots in use are copied bit by bit, and added to what is there") {
  Lun scratch("sim:64m");
  REQUIRE(scratch.lun.charge(1000) == 0);
  const auto slots = take(scratch.lun, 200);
  REQUIRE(slots.size() == 200);
  for (uint32_t slot : {slots[0], slots[63], slots[64], slots[199]})
    scratch.lun.release(Slot{slot});
  std::vector<uint64_t> words(scratch.lun.bitmap_words(), ~uint64_t{0});
  CHECK(words.size() == 64 * kMiB / 4096 / 64);
  scratch.lun.copy_used(words.data(), false);
  uint64_t bits = 0;
  for (uint32_t slot = 0; slot < words.size() * 64; ++slot) {
    const bool used = words[slot / 64] >> slot % 64 & 1;
    bits += used;
    const bool expected = slot >= slots[0] && slot <= slots[199] && slot != slots[0] &&
                          slot != slots[63] && slot != slots[64] && slot != slots[199];
    REQUIRE(used == expected);
  }
  CHECK(bits == scratch.lun.used_slots());
  Lun other("sim:64m");
  REQUIRE(other.lun.charge(10) == 0);
  REQUIRE(take(other.lun, 1) == std::vector<uint32_t>{0});
  other.lun.copy_used(words.data(), true);
  CHECK((words[0] & 1) == 1);  // added
  CHECK((words[0] & 2) == 2);  // and nothing taken away
}

TEST_CASE(
    "a LUN says that it runs short before a fast charge fails, and never when all of it is "
    "reserved") {
  Lun scratch("sim:1g");
  REQUIRE(scratch.lun.charge(1) == 0);
  CHECK_FALSE(scratch.lun.runs_short());
  while (scratch.lun.charge_fast(16) == 0) {
    const bool warned = scratch.lun.runs_short();
    if (!warned)
      CHECK(scratch.lun.charge_fast(16) == 0);  // as long as it says nothing, the next one succeeds
  }
  CHECK(scratch.lun.runs_short());
  REQUIRE(scratch.lun.charge(scratch.lun.capacity_slots() - scratch.lun.charged_slots()) == 0);
  CHECK_FALSE(scratch.lun.runs_short());
}

TEST_CASE("forgetting an ancestor's LUN gives none of it back") {
  // a release would be an error that is seen
  lunar_test::MemoryDevice device(nullptr, 64 * kMiB, {.discard = false});
  std::vector<lunar_test::DeviceEvent> events;
  SlotAllocator lun;
  REQUIRE(lun.open(&device, DeviceOffset{0}, 64 * kMiB, 4096) == 0);
  REQUIRE(lun.charge(100) == 0);
  device.record = &events;
  lun.forget();
  lun.forget();  // again: nothing is left
  CHECK(events.empty());
  CHECK(lun.device() == nullptr);
  CHECK(lun.open(&device, DeviceOffset{0}, 64 * kMiB, 4096) == 0);  // it can be opened anew
  lun.forget();
}

TEST_CASE("property: alloc and release agree with a model") {
  std::mt19937_64 random(tier::run_seed());
  Lun scratch("sim:16m");
  REQUIRE(scratch.lun.charge(scratch.lun.capacity_slots()) == 0);
  const uint32_t total = 16 * kMiB / 4096;
  std::vector<uint32_t> owned;
  std::vector<bool> taken(total);
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2) {
      const auto want = static_cast<uint32_t>(1 + random() % 200);
      const auto max_runs = static_cast<unsigned>(1 + random() % 64);
      const auto got = take(scratch.lun, want, max_runs);
      REQUIRE(got.size() <= want);
      if (got.empty()) REQUIRE(owned.size() == total);  // none only when there is none
      if (max_runs == 64 && want <= 64)
        REQUIRE(got.size() == std::min<size_t>(want, total - owned.size()));
      for (uint32_t slot : got) {
        REQUIRE_FALSE(taken[slot]);
        taken[slot] = true;
        owned.push_back(slot);
      }
    } else {
      for (uint64_t n = random() % 200; n && !owned.empty(); --n) {
        std::swap(owned[random() % owned.size()], owned.back());
        scratch.lun.release(Slot{owned.back()});
        taken[owned.back()] = false;
        owned.pop_back();
      }
    }
    REQUIRE(scratch.lun.used_slots() == owned.size());
    if (step % 1000 == 0) REQUIRE(scratch.lun.validate());
  }
  CHECK(scratch.lun.validate());
}

TEST_CASE("property: threads never own the same slot, and all come back") {
  const uint64_t base_seed = tier::run_seed();
  Lun scratch("sim:64m");
  REQUIRE(scratch.lun.charge(1000) == 0);
  const uint32_t total = 64 * kMiB / 4096;
  auto owner = std::make_unique<std::atomic<int>[]>(total);
  std::atomic<int> clashes{0}, failed_charges{0};
  lunar_test::in_parallel(4, [&](int t) {
    std::mt19937_64 random(base_seed + static_cast<uint64_t>(t));
    std::vector<uint32_t> owned;
    for (int step = 0; step < 20000; ++step) {
      const auto want = static_cast<uint32_t>(1 + random() % 128);
      if (owned.size() < 3000 && random() % 2) {
        if (scratch.lun.charge_fast(want) != 0 && scratch.lun.charge(want) != 0) {
          ++failed_charges;
          continue;
        }
        const auto got = take(scratch.lun, want);
        scratch.lun.uncharge(want - got.size());
        for (uint32_t slot : got) {
          if (owner[slot].exchange(t + 1) != 0) ++clashes;
          owned.push_back(slot);
        }
      } else {
        uint32_t given_back = 0;
        for (; given_back < want && !owned.empty(); ++given_back) {
          std::swap(owned[random() % owned.size()], owned.back());
          if (owner[owned.back()].exchange(0) != t + 1) ++clashes;
          scratch.lun.release(Slot{owned.back()});
          owned.pop_back();
        }
        scratch.lun.uncharge(given_back);
      }
    }
    for (uint32_t slot : owned) {
      owner[slot] = 0;
      scratch.lun.release(Slot{slot});
    }
    scratch.lun.uncharge(owned.size());
  });
  CHECK(clashes == 0);
  CHECK(failed_charges == 0);
  CHECK(scratch.lun.used_slots() == 0);
  CHECK(scratch.lun.charged_slots() == 1000);
  CHECK(scratch.lun.validate());
}

TEST_CASE("space of a LUN beyond 16 TiB is not used, and a line says so") {
  for (const uint64_t bytes : {kTiB, 20 * kTiB}) {
    lunar_test::MemoryDevice device(nullptr, bytes);  // no I/O reaches it
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    log_configure(LogLevel::kWarning, ends[1]);
    SlotAllocator lun;
    CHECK(lun.open(&device, DeviceOffset{0}, bytes, 4096) == 0);
    log_configure(LogLevel::kWarning, -1);
    close(ends[1]);
    char text[256] = {};
    const ssize_t length = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    INFO(text);
    if (bytes == kTiB)
      CHECK(length == 0);
    else
      CHECK((strstr(text, "16.0 TiB of its 20 TiB are used") &&
             strchr(text, '\n') == text + length - 1));
    lun.close();
  }
}
