// SPDX-License-Identifier: Apache-2.0
// An atomic image after torn writes at every sector, a power loss at every step, rot, failed
// writes, and by readers of other kinds.
#include <cstring>
#include <string>
#include <vector>

#include "lun/raw_io.h"
#include "lun/volume/atomic_image.h"
#include "superpipe/registry.h"
#include "superpipe/sim/sim_device.h"
#include "tests/catch.h"

using namespace lunar;

namespace {

constexpr uint64_t kBody = 9000, kSlot = 12288, kSector = 512;

ImageSpec spec_of(char kind = 'T') {
  ImageSpec spec;
  memcpy(spec.magic, "TestImg", 7);
  spec.magic[7] = kind;
  memset(spec.uuid, 7, sizeof spec.uuid);
  spec.super_checksum = 99;
  spec.body_bytes = kBody;
  spec.slot_bytes = kSlot;
  return spec;
}

ImagePlaces places_of(unsigned copies) { return {copies, {4096, 64 * kKiB}}; }

// A body that repeats one number.
struct Same final : ImageValidator {
  const char* fault(const media::ImageHeader&, const char* body) override {
    return memcmp(body, body + 8, kBody - 8) == 0 ? nullptr : "two numbers";
  }
};

struct Bed {
  Device* device = nullptr;
  AtomicImage images;
  Same validator;
  unsigned copies;
  explicit Bed(unsigned count, const char* more = "", const ImageSpec& spec = spec_of())
      : copies(count) {
    static int names = 0;
    open(("sim:1m,name=image" + std::to_string(++names) + more).c_str(), spec);
  }
  void open(const char* uri, const ImageSpec& spec) {
    DeviceOptions options;
    options.scratch = false;
    ErrorText why;
    const int status = device_open(uri, options, &device, &why);
    INFO(why.text);
    REQUIRE(status == 0);
    REQUIRE(images.prepare(device, spec, places_of(copies), &validator) == 0);
  }
  ~Bed() {
    images.release();
    device_close(device);
  }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;
  SimDevice& sim() const { return *static_cast<SimDevice*>(device); }
  char* slot(unsigned i) const {
    return sim().memory() + places_of(copies).offset[i / 2] + i % 2 * kSlot;
  }
  int change(uint64_t value) {
    for (uint64_t i = 0; i < kBody / 8; ++i) memcpy(images.body() + i * 8, &value, 8);
    return images.commit();
  }
  uint64_t value() const {
    uint64_t out;
    memcpy(&out, images.body(), 8);
    return out;
  }
  int load(Repair repair = Repair::kOne, SlotReport* report = nullptr) {
    SlotReport unsaid;
    return images.load(repair, report ? report : &unsaid);
  }
};

}  // namespace

TEST_CASE("atomic image: what was committed is what is loaded, and all slots are in form") {
  for (unsigned copies : {1u, 2u}) {
    Bed bed(copies);
    CHECK(bed.load() == -EBADMSG);  // nothing is there
    REQUIRE(bed.images.format() == 0);
    CHECK(bed.images.sequence() == 2);
    CHECK(bed.value() == 0);
    for (uint64_t value = 1; value <= 7; ++value) {
      REQUIRE(bed.change(value) == 0);
      SlotReport report;
      REQUIRE(bed.load(Repair::kNo, &report) == 0);
      CHECK(bed.value() == value);
      CHECK(bed.images.sequence() == value + 2);
      CHECK(report.bad == 0);
    }
  }
}

// A change from `old` to `fresh` is stopped while each slot in turn is written, at each sector: its
// head, its tail, or all but a hole is written.
TEST_CASE(
    "atomic image: a write torn at any sector leaves the image before it or the one after it") {
  for (unsigned copies : {1u, 2u}) {
    Bed bed(copies);
    REQUIRE(bed.images.format() == 0);
    REQUIRE(bed.change(10) == 0);
    std::vector<char> before(bed.sim().memory(), bed.sim().memory() + kMiB);
    REQUIRE(bed.change(11) == 0);
    const std::vector<char> after(bed.sim().memory(), bed.sim().memory() + kMiB);
    unsigned old = 0, fresh = 0;
    const auto check_image = [&](bool second) {
      SlotReport report;
      REQUIRE(bed.load(Repair::kOne, &report) == 0);
      REQUIRE((bed.value() == 10 || bed.value() == 11));
      if (second) REQUIRE(bed.value() == 11);  // the first copy was durable
      ++(bed.value() == 10 ? old : fresh);
      if (copies == 2) {
        REQUIRE(bed.load(Repair::kNo, &report) == 0);
        REQUIRE(report.bad == 0);  // it was repaired
      }
      const uint64_t next = bed.value() + 100;
      REQUIRE(bed.change(next) == 0);
      REQUIRE(bed.load(Repair::kNo, &report) == 0);
      REQUIRE(bed.value() == next);
      REQUIRE(report.bad == 0);
    };
    for (unsigned copy = 0; copy < copies; ++copy) {
      const uint64_t at = places_of(copies).offset[copy] + bed.images.sequence() % 2 * kSlot;
      for (uint64_t sector = 0; sector <= kSlot / kSector; ++sector) {
        for (int how = 0; how < 3; ++how) {
          memcpy(bed.sim().memory(), before.data(), kMiB);
          for (uint64_t i = 0; i < kSlot / kSector; ++i) {
            const bool lands = how == 0 ? i < sector : how == 1 ? i >= sector : i != sector;
            if (lands)
              memcpy(bed.sim().memory() + at + i * kSector, after.data() + at + i * kSector,
                     kSector);
          }
          check_image(copy == 1);
        }
      }
      memcpy(before.data() + at, after.data() + at, kSlot);
    }
    CHECK(old > 20);
    CHECK(fresh > 1);
  }
}

// Changes with a power loss at the nth write or flush, and another one during the recovery.
TEST_CASE("atomic image: a power loss at any step keeps what was acknowledged") {
  for (const char* cache : {"", ",cache=64k", ",cache=4k"}) {
    for (unsigned copies : {1u, 2u}) {
      for (uint64_t seed = 1; seed <= 12; ++seed) {
        for (uint64_t step = 1;; ++step) {
          INFO("cache '" << cache << "', " << copies << " copies, seed " << seed << ", step "
                         << step);
          Bed bed(copies, cache);
          REQUIRE(bed.images.format() == 0);
          SimBacking& backing = bed.sim().backing();
          backing.cut_power_at(step, seed);
          uint64_t acknowledged = 0, tried = 0;
          while (backing.powered() && tried < 6) {
            if (bed.change(++tried) == 0) acknowledged = tried;
          }
          const bool cut = !backing.powered();
          backing.restore_power();
          if (cut && seed % 2) {
            backing.cut_power_at(1, seed + 1);  // while it repairs, where it does
            (void)bed.load();
            backing.restore_power();
          }
          backing.cut_power_at(0, 0);
          REQUIRE(bed.load() == 0);
          REQUIRE((bed.value() == acknowledged || bed.value() == tried));
          REQUIRE(bed.change(77) == 0);
          backing.cut_power(seed);
          backing.restore_power();
          REQUIRE(bed.load() == 0);
          REQUIRE(bed.value() == 77);
          if (!cut) break;
        }
      }
    }
  }
}

// A process was killed after its write and before it was durable. The next one reads the image from
// the cache and builds on it.
TEST_CASE(
    "atomic image: what a killed process left in the cache is durable before the next change goes "
    "over its "
    "predecessor") {
  for (unsigned copies : {1u, 2u}) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      Bed bed(copies, ",cache=256k");
      REQUIRE(bed.images.format() == 0);
      REQUIRE(bed.change(1) == 0);
      for (uint64_t i = 0, value = 2; i < kBody / 8; ++i)
        memcpy(bed.images.body() + i * 8, &value, 8);
      bed.images.header().previous = bed.images.header().checksum;
      ++bed.images.header().sequence;
      image_seal(spec_of(), bed.images.image());
      REQUIRE(raw_io(bed.device, Op::kWrite,
                     places_of(copies).offset[0] + bed.images.sequence() % 2 * kSlot,
                     bed.images.image(), kSlot) == 0);
      REQUIRE(bed.load() == 0);
      REQUIRE(bed.value() == 2);
      bed.sim().backing().cut_power_at(1, seed);
      CHECK(bed.change(3) == -EIO);
      bed.sim().backing().restore_power();
      REQUIRE(bed.load() == 0);
      REQUIRE((bed.value() == 2 || bed.value() == 3));
    }
  }
}

TEST_CASE(
    "atomic image: what a commit leaves that was interrupted between its copies is told from "
    "damage") {
  Bed bed(2);
  REQUIRE(bed.images.format() == 0);
  REQUIRE(bed.change(5) == 0);
  REQUIRE(bed.images.sequence() % 2 == 1);  // so it lies in slots 1 and 3, as the next but one will
  const std::vector<char> before(bed.slot(3), bed.slot(3) + kSlot);
  REQUIRE(bed.change(6) == 0);
  REQUIRE(bed.change(7) == 0);
  const unsigned second = 3;
  memcpy(bed.slot(second), before.data(), kSlot);
  SlotReport report;
  REQUIRE(bed.load(Repair::kNo, &report) == 0);
  CHECK(bed.value() == 7);
  CHECK(report.bad == 1u << second);
  CHECK(report.older == report.bad);
  bed.slot(second)[40] ^= 1;
  REQUIRE(bed.load(Repair::kNo, &report) == 0);
  CHECK(report.older == 0);
  CHECK(report.bad == 1u << second);
}

TEST_CASE("atomic image: rot of one slot is repaired from the other copy, rot of two is refused") {
  Bed bed(2);
  REQUIRE(bed.images.format() == 0);
  REQUIRE(bed.change(5) == 0);
  const std::vector<char> sound(bed.sim().memory(), bed.sim().memory() + kMiB);
  for (unsigned i = 0; i < 4; ++i) {
    for (unsigned j = i; j < 4; ++j) {
      for (uint64_t place : {uint64_t{40}, uint64_t{5000}}) {
        memcpy(bed.sim().memory(), sound.data(), kMiB);
        bed.slot(i)[place] = static_cast<char>(bed.slot(i)[place] ^ 1);
        if (j != i) bed.slot(j)[place] = static_cast<char>(bed.slot(j)[place] ^ 1);
        SlotReport report;
        if (i == j) {
          REQUIRE(bed.load(Repair::kNo, &report) == 0);
          CHECK(report.bad == 1u << i);
          REQUIRE(bed.load(Repair::kOne, &report) == 0);
          CHECK(report.repaired == 1);
          CHECK(memcmp(bed.sim().memory(), sound.data(), kMiB) == 0);
        } else {
          CHECK(bed.load(Repair::kOne, &report) == -EBADMSG);
          CHECK(bed.images.commit() == -EIO);
          const bool each_parity = i % 2 != j % 2;
          const std::vector<char> damaged(bed.sim().memory(), bed.sim().memory() + kMiB);
          REQUIRE(bed.load(Repair::kSalvage, &report) == 0);
          CHECK(report.proven == each_parity);
          CHECK((bed.value() == 5 || !report.proven));
          CHECK(memcmp(bed.sim().memory(), damaged.data(), kMiB) == 0);
          CHECK(bed.load(Repair::kProven, &report) == (each_parity ? 0 : -EBADMSG));
          if (each_parity) CHECK(memcmp(bed.sim().memory(), sound.data(), kMiB) == 0);
        }
      }
    }
  }
  memcpy(bed.sim().memory(), sound.data(), kMiB);
  REQUIRE(bed.load() == 0);
  CHECK(bed.value() == 5);
}

TEST_CASE(
    "atomic image: sound checksums over nonsense, and images that do not follow each other, are "
    "refused") {
  Bed bed(1);
  REQUIRE(bed.images.format() == 0);
  REQUIRE(bed.change(5) == 0);
  REQUIRE(bed.load() == 0);
  bed.images.body()[100] ^= 1;  // not one number any more
  image_seal(spec_of(), bed.images.image());
  memcpy(bed.slot(1), bed.images.image(), kSlot);
  SlotReport report;
  REQUIRE(bed.load(Repair::kOne, &report) == 0);  // the one before it
  CHECK(bed.value() == 0);
  CHECK(std::string(report.what) == "two numbers");
  Bed other(1);
  REQUIRE(other.images.format() == 0);
  REQUIRE(other.change(5) == 0);
  other.images.header().previous ^= 1;
  image_seal(spec_of(), other.images.image());
  memcpy(other.slot(1), other.images.image(), kSlot);
  CHECK(other.load() == -EBADMSG);
}

TEST_CASE("atomic image: a change that cannot be written did not happen") {
  Bed bed(2);
  REQUIRE(bed.images.format() == 0);
  REQUIRE(bed.change(1) == 0);
  bed.sim().set_failing(false, true);
  CHECK(bed.change(2) == -EIO);
  bed.sim().set_failing(false, false);
  REQUIRE(bed.load() == 0);
  CHECK(bed.value() == 1);
  REQUIRE(bed.change(3) == 0);
  REQUIRE(bed.load() == 0);
  CHECK(bed.value() == 3);
  bed.sim().set_failing(true, true);
  CHECK(bed.change(4) == -EIO);
  CHECK_FALSE(bed.images.loaded());
  bed.sim().set_failing(false, false);
  CHECK(bed.images.commit() == -EIO);  // what was not read is no ground for a change
  REQUIRE(bed.load() == 0);
  CHECK(bed.value() == 3);
}

TEST_CASE(
    "atomic image: images of another kind are not its own, and of a later version as it says") {
  Bed bed(2);
  REQUIRE(bed.images.format() == 0);
  REQUIRE(bed.change(1) == 0);
  for (int what = 0; what < 4; ++what) {
    ImageSpec other = spec_of();
    if (what == 0) other.magic[7] = 'U';
    if (what == 1) other.uuid[3] = 1;
    if (what == 2) other.super_checksum = 98;
    if (what == 3) other.version = 2;
    AtomicImage images;
    REQUIRE(images.prepare(bed.device, other, places_of(2), nullptr) == 0);
    SlotReport report;
    CHECK(images.load(Repair::kOne, &report) == -EBADMSG);
    images.release();
  }
  bed.images.header().features = 16;
  REQUIRE(bed.images.commit() == 0);
  SlotReport refused;
  CHECK(bed.load(Repair::kNo, &refused) == -EPROTONOSUPPORT);
  CHECK(refused.unknown == 16);
}
