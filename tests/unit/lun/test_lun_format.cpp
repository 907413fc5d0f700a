// SPDX-License-Identifier: Apache-2.0
// The format and its other versions: feature bits, types, images of the first version, and how its
// readers take present images. Looking writes nothing. check() counts problems in impossible
// images.
#include <errno.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/xxh3.h"
#include "lun/volume/metadata_image.h"
#include "lun/volume/physical_lun.h"
#include "lun/volume/virtual_lun.h"
#include "lun_in_memory.h"
#include "old_lun_image.h"
#include "tests/catch.h"

using namespace lunar;

namespace {

constexpr Format kAll[] = {Format::kNever, Format::kIfBlank, Format::kRepair, Format::kLook,
                           Format::kCheck};

struct FormatBed : lunar_test::LunInMemory {
  std::vector<lunar_test::DeviceEvent> events;  // of the last open
  explicit FormatBed(std::vector<char> bytes) : LunInMemory(std::move(bytes)) { record = &events; }
  // With two named LUNs, x (64 KiB) and y (128 KiB).
  FormatBed() : FormatBed(std::vector<char>(4 * kMiB)) {
    make("x", 64 * kKiB, Format::kIfBlank);
    make("y", 128 * kKiB);
  }
  FormatBed(const FormatBed&) = delete;
  FormatBed& operator=(const FormatBed&) = delete;
  using LunInMemory::open;
  int open(const VirtualOptions& options, VirtualLun** out, Format format = Format::kNever) {
    return VirtualLun::open(must(format), options, out, &why);
  }
  media::ImageHeader& header(unsigned i) { return *reinterpret_cast<media::ImageHeader*>(slot(i)); }
  unsigned newest() { return header(0).sequence > header(1).sequence ? 0 : 1; }
  // The newest image as change(image) makes it, in both its slots, with right checksums.
  template <class Change>
  void forge(Change change) {
    const Geometry g = geometry();
    const unsigned place = newest();
    const MetadataImage image{slot(place), &g};
    change(image);
    image_seal(image, LunIdentity(super()));
    memcpy(slot(place + 2), slot(place), g.image_bytes);
  }
  void set_feature(uint64_t bits) {
    forge([&](const MetadataImage& image) { image.header().features = bits; });
  }
  std::vector<std::string> names(Format format) {
    PhysicalLun* lun = must(format);
    VirtualLunInfo list[8];
    const int n = lun->list(list, 8, 0);
    lun->close();
    std::vector<std::string> out;
    for (int i = 0; i < n; ++i) out.push_back(list[i].name);
    return out;
  }
  CheckReport check(Format format, std::string* lines = nullptr) {
    PhysicalLun* lun = must(format);
    CheckReport report;
    std::string unused;
    report.argument = lines ? lines : &unused;
    report.line = [](void* to, const char* text) {
      *static_cast<std::string*>(to) += std::string(text) + "\n";
    };
    REQUIRE(lun->check(false, &report) == 0);
    lun->close();
    return report;
  }
};

// How many of the four images are whole for a reader of the first version. The rules are written
// anew from that version.
unsigned first_version_accepts(const std::vector<char>& bed) {
  const auto word = [&](uint64_t at) {
    uint64_t out;
    memcpy(&out, bed.data() + at, 8);
    return out;
  };
  const auto half = [&](uint64_t at) { return static_cast<uint32_t>(word(at)); };
  const auto zero = [&](uint64_t from, uint64_t to) {
    for (; from < to; ++from)
      if (bed[from]) return false;
    return true;
  };
  if (memcmp(bed.data(), "LunarPhysLUN\r\n\x1a", 16) != 0 || half(16) != 1 || half(20) != 4096)
    return 0;
  if (word(4088) != XXH3_64bits(bed.data(), 4088) || !zero(108, 4088)) return 0;
  const uint64_t image = word(64), entries = half(104), body = entries * 128 + word(56) * 8;
  unsigned accepted = 0;
  for (const uint64_t at : {word(72), word(72) + image, word(88), word(88) + image}) {
    const char* start = bed.data() + at;
    bool good =
        memcmp(start, "LunImage", 8) == 0 && half(at + 8) == 1 && half(at + 12) == 128 &&
        memcmp(start + 16, bed.data() + 24, 16) == 0 && word(at + 120) == XXH3_64bits(start, 120) &&
        word(at + 64) == word(4088) && zero(at + 72, at + 120) && word(at + 40) == body &&
        word(at + 48) == XXH3_64bits(start + 128, body) && zero(at + 128 + body, at + image);
    for (uint64_t i = 0, entry = at + 128; good && i < entries; ++i, entry += 128)
      good = (half(entry) & ~3u) == 0 && zero(entry + 96, entry + 128);
    accepted += good;
  }
  return accepted;
}

}  // namespace

TEST_CASE("format: an image of the first version opens, and is changed as that version would") {
  FormatBed bed(lunar_test::old_image());
  REQUIRE(first_version_accepts(bed.memory) == 4);
  CHECK(bed.names(Format::kLook) ==
        std::vector<std::string>{"alpha", "beta"});  // the scratch LUN's owner is gone
  CHECK(bed.memory == lunar_test::old_image());
  const CheckReport report = bed.check(Format::kCheck);
  CHECK((report.problems == 0 && report.extents_used == 3));  // as info() has it
  PhysicalLun* lun = bed.must(Format::kNever);
  PhysicalLunInfo info;
  REQUIRE(lun->info(&info) == 0);
  CHECK((info.luns == 2 && info.version == 1 &&
         info.free_bytes == info.usable_bytes - 3 * info.extent_bytes));
  CHECK(info.features == 0);
  lun->close();
  CHECK(bed.make("gamma", 100 * kKiB) == 0);
  CHECK(first_version_accepts(bed.memory) == 4);
}

TEST_CASE(
    "format: what uses no feature bit and no type is the first version's to read; what does, it "
    "takes for damaged") {
  FormatBed bed;
  CHECK(first_version_accepts(bed.memory) == 4);
  FormatBed other;
  other.set_feature(1);
  // the older of two generations: the first version's --repair does not go back to it
  CHECK(first_version_accepts(other.memory) == 2);
  REQUIRE(bed.make("kv", 64 * kKiB, Format::kNever, LunType::kKeyValue) == 0);
  CHECK(first_version_accepts(bed.memory) == 2);
  REQUIRE(bed.make("z", 64 * kKiB) == 0);
  CHECK(first_version_accepts(bed.memory) == 0);
}

TEST_CASE(
    "format: an unknown feature is refused by number, whatever is asked but "
    "formatting") {
  FormatBed bed;
  bed.set_feature(0x4000);
  std::vector<char> before = bed.memory;
  for (const bool whole : {false, true}) {  // first the newest of two generations, then all
    if (whole) {
      const Geometry g = bed.geometry();
      const unsigned older = bed.newest() ^ 1;
      const MetadataImage image{bed.slot(older), &g};
      image.header().features = 0x4000;
      image_seal(image, LunIdentity(bed.super()));
      memcpy(bed.slot(older + 2), bed.slot(older), g.image_bytes);
      before = bed.memory;
    }
    for (const Format format : kAll) {
      CHECK(bed.open(format) == -EPROTONOSUPPORT);
      CHECK(bed.says("features 0x4000 that this Lunar does not know"));
    }
    CHECK(bed.memory == before);
  }
  CHECK(bed.open(Format::kForce) == 0);
  CHECK(bed.open(Format::kNever) == 0);
}

TEST_CASE(
    "format: an older version that has it open changes nothing once a newer one uses what it does "
    "not know") {
  FormatBed bed;
  PhysicalLun* lun = bed.must(Format::kNever);
  bed.set_feature(2);
  const std::vector<char> before = bed.memory;
  CHECK(lun->remove("x", &bed.why) == -EPROTONOSUPPORT);
  CHECK(bed.says("features 0x2"));
  CHECK(bed.memory == before);
  lun->close();
}

TEST_CASE(
    "format: a LUN is opened as the type it was made as; one of a later type is listed and "
    "removed") {
  FormatBed bed;
  REQUIRE(bed.make("kv", 64 * kKiB, Format::kNever, LunType::kKeyValue) == 0);
  VirtualOptions options;
  options.name = "kv";
  VirtualLun* lun = nullptr;
  CHECK(bed.open(options, &lun) == -EMEDIUMTYPE);
  CHECK(bed.says("a key/value store, not a LUN of plain blocks"));
  options.type = LunType::kKeyValue;
  REQUIRE(bed.open(options, &lun) == 0);
  CHECK(lun->info().type == LunType::kKeyValue);
  lun->close();
  options.name = "x";
  CHECK(bed.open(options, &lun) == -EMEDIUMTYPE);
  bed.forge([](const MetadataImage& image) { image.entries()[0].type = 77; });
  options.type = LunType::kBlocks;
  CHECK(bed.open(options, &lun) == -EMEDIUMTYPE);
  CHECK(bed.says("of a type not known here"));
  CHECK(bed.names(Format::kNever) == std::vector<std::string>{"x", "y", "kv"});
  PhysicalLun* physical = bed.must(Format::kNever);
  VirtualLunInfo list[4];
  REQUIRE(physical->list(list, 4, 0) == 3);
  CHECK((static_cast<uint32_t>(list[0].type) == 77 && list[2].type == LunType::kKeyValue &&
         list[1].type == LunType::kBlocks));
  CHECK(physical->remove("x", &bed.why) == 0);
  physical->close();
  CHECK(bed.check(Format::kNever).problems == 0);
}

TEST_CASE(
    "format: a LUN that an earlier version encrypted is listed and refused, the others open") {
  FormatBed bed;
  bed.forge([](const MetadataImage& image) {
    image.entries()[0].cipher_id = 7;
    memset(image.entries()[0].key_check, 0x5a, sizeof image.entries()[0].key_check);
  });
  VirtualOptions options;
  options.name = "x";
  VirtualLun* lun = nullptr;
  CHECK(bed.open(options, &lun) == -EOPNOTSUPP);
  CHECK(bed.says("encrypted it (cipher 7)"));
  options.name = "y";
  REQUIRE(bed.open(options, &lun) == 0);
  CHECK(lun->info().cipher_id == 0);
  lun->close();
  REQUIRE(bed.make("z", 64 * kKiB) == 0);  // a change keeps what the entry says
  PhysicalLun* physical = bed.must(Format::kNever);
  VirtualLunInfo list[4];
  REQUIRE(physical->list(list, 4, 0) == 3);
  CHECK((list[0].cipher_id == 7 && list[1].cipher_id == 0 && list[2].cipher_id == 0));
  const Geometry g = bed.geometry();
  const MetadataImage image{bed.slot(bed.newest()), &g};
  CHECK((image.entries()[0].cipher_id == 7 && image.entries()[0].key_check[15] == 0x5a));
  CHECK(physical->remove("x", &bed.why) == 0);
  physical->close();
  CHECK(bed.check(Format::kNever).problems == 0);
}

TEST_CASE("format: looking writes nothing, at whatever damage and whatever the dead left") {
  const FormatBed sound(lunar_test::old_image());  // with a dead scratch LUN
  struct Damage {
    const char* what;
    unsigned problems;
    bool listed;
    void (*make)(FormatBed&);
  };
  const Damage damages[] = {
      {"none", 0, true, [](FormatBed&) {}},
      {"a torn image", 1, true, [](FormatBed& m) { m.slot(1)[5000] ^= 4; }},
      {"an image that is one behind", 1, true,
       [](FormatBed& m) {
         memcpy(m.slot(m.newest() + 2), m.slot(m.newest() ^ 1), m.geometry().image_bytes);
       }},
      {"the superblock", 1, true, [](FormatBed& m) { m.memory[100] ^= 1; }},
      {"its copy", 1, true, [](FormatBed& m) { m.memory[m.memory.size() - 4000] ^= 1; }},
      {"two images", 2, false, [](FormatBed& m) { m.slot(0)[200] ^= 1, m.slot(1)[200] ^= 1; }},
      {"all images", 1, false,
       [](FormatBed& m) {
         for (unsigned i = 0; i < 4; ++i) m.slot(i)[200] ^= 1;
       }},
  };
  for (const Damage& damage : damages) {
    INFO(damage.what);
    FormatBed bed(sound.memory);
    damage.make(bed);
    const std::vector<char> before = bed.memory;
    CHECK(bed.open(Format::kLook) == (damage.listed ? 0 : -EBADMSG));
    if (damage.listed) {
      CHECK(bed.names(Format::kLook) == std::vector<std::string>{"alpha", "beta"});
      PhysicalLun* lun = bed.must(Format::kLook);
      PhysicalLunInfo info;
      CHECK(lun->info(&info) == 0);
      CHECK((info.luns == 2 && info.damaged == damage.problems && !info.repaired));
      CHECK(info.free_bytes == info.usable_bytes - 3 * info.extent_bytes);
      lun->close();
    }
    std::string lines;
    const CheckReport report = bed.check(Format::kCheck, &lines);
    INFO(lines);
    CHECK((report.problems == damage.problems && report.repaired == 0));
    CHECK((lines.find("fatal") != std::string::npos) == !damage.listed);
    CHECK((lines.find("its owners are gone") != std::string::npos) == damage.listed);
    CHECK(bed.events.empty());  // of the last: not a write, not a discard, not a flush
    CHECK(bed.memory == before);
  }
}

TEST_CASE(
    "format: check counts the extents that are lost, owned twice and missing, in images whose "
    "checksums are right") {
  struct Forgery {
    const char* what;
    uint64_t used, lost, twice, missing;
    void (*make)(const MetadataImage&);
  };
  // x has extent 0, y extents 1 and 2.
  const Forgery forgeries[] = {
      {"none", 3, 0, 0, 0, [](const MetadataImage&) {}},
      {"an extent of a LUN that is not there", 3, 1, 0, 0,
       [](const MetadataImage& i) { i.extents()[9] = {40, 0}; }},
      {"extents of no entry", 3, 2, 0, 0,
       [](const MetadataImage& i) { i.extents()[9] = {UINT32_MAX, 0}, i.extents()[10] = {65, 1}; }},
      {"extents beyond an end", 3, 2, 0, 0,
       [](const MetadataImage& i) { i.extents()[9] = {1, 1}, i.extents()[10] = {2, UINT32_MAX}; }},
      {"an extent given twice", 3, 0, 1, 0,
       [](const MetadataImage& i) { i.extents()[9] = {2, 1}; }},
      {"twice, and one missing", 2, 0, 1, 1,
       [](const MetadataImage& i) { i.extents()[2] = {2, 0}; }},
      {"a missing one", 2, 0, 0, 1, [](const MetadataImage& i) { i.extents()[1] = {0, 0}; }},
      {"an entry of more than there is", 1, 2, 0, 0,
       [](const MetadataImage& i) { i.entries()[1].extents = UINT64_MAX; }},
      {"entries of more than there is together", 1, 2, 0, 0,
       [](const MetadataImage& i) { i.entries()[1].extents = i.geometry->extent_count; }},
      {"a LUN that is gone", 2, 1, 0, 0,
       [](const MetadataImage& i) { memset(&i.entries()[0], 0, sizeof(media::LunEntry)); }},
  };
  for (const Forgery& forgery : forgeries) {
    INFO(forgery.what);
    FormatBed bed;
    bed.forge(forgery.make);
    const std::vector<char> before = bed.memory;
    std::string lines;
    const CheckReport report = bed.check(Format::kCheck, &lines);
    INFO(lines);
    const bool sound = forgery.lost + forgery.twice + forgery.missing == 0;
    CHECK((lines.find("fatal") == std::string::npos) == sound);
    CHECK(report.extents_used == forgery.used);
    CHECK(report.extents_lost == forgery.lost);
    CHECK(report.extents_double == forgery.twice);
    CHECK(report.extents_missing == forgery.missing);
    CHECK(report.extents_free + report.extents_used + report.extents_lost + report.extents_double ==
          bed.geometry().extent_count);
    CHECK(bed.open(Format::kNever) == (sound ? 0 : -EBADMSG));
    CHECK(bed.memory == before);
  }
}
