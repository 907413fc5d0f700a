// SPDX-License-Identifier: Apache-2.0
// Metadata that rotted, was mixed up or forged is never believed. Sound images of a physical LUN,
// and some that a crash left, are changed at random and opened:
//
// - bits, runs of bytes, sectors and blocks swapped or copied, also from other moments of the same
//   LUN's life
// - fields of superblocks, headers, entries and the extent table, with every checksum made right
// - devices that shrank or grew
//
// Each image is refused with a line, or opens as exactly what was acknowledged (repaired: byte for
// byte). Where whole slots of other moments were put in, another acknowledged moment may result,
// because image N + 1 in one slot is what a crash leaves. For the same reason the test does not
// forge an image whose second copy is not sound, or both copies alike.
//   lun_fuzz [--count N] [--first N]; LUNAR_SEED= replays; a failing image is number N of its seed.
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/xxh3.h"
#include "lun/volume/metadata_image.h"
#include "lun/volume/virtual_lun.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"
#include "tests/support/lun_file.h"
#include "tests/support/seed.h"
#include "tests/support/slowness.h"

using namespace lunar;
using namespace lunar_test;

namespace {

constexpr uint64_t kBytes = 4 * kMiB, kSector = 512;

struct Base {
  std::vector<char> front, back;  // what is in use of both ends
  // ends that an opened one may have
  std::vector<std::pair<std::vector<char>, std::vector<char>>> accepted;
};

uint64_t random_state;
uint64_t below(uint64_t n) { return next_random(&random_state) % n; }

Geometry geometry;
uint64_t front_bytes, back_bytes;
std::vector<char> device(kBytes);
std::vector<Base> bases;
volatile uint64_t image_number;
bool other_moments;  // what is of another moment was put in
bool forged;

void hung(int) {
  char text[96];
  const size_t length =
      format_to(text, sizeof text, "FAILED: image %lu or one of the 255 before it hangs\n",
                static_cast<unsigned long>(image_number));
  (void)!write(1, text, length);
  abort();
}

int open_device(uint64_t bytes, Format format, PhysicalLun** out, ErrorText* why) {
  alignas(MemoryDevice) static char place[sizeof(MemoryDevice)];
  return PhysicalLun::open(new (place) MemoryDevice(device.data(), bytes), format, out, why);
}

std::pair<std::vector<char>, std::vector<char>> ends() {
  return {std::vector<char>(device.begin(), device.begin() + static_cast<long>(front_bytes)),
          std::vector<char>(device.end() - static_cast<long>(back_bytes), device.end())};
}

void load(const std::pair<std::vector<char>, std::vector<char>>& from) {
  memcpy(device.data(), from.first.data(), front_bytes);
  memcpy(device.data() + kBytes - back_bytes, from.second.data(), back_bytes);
}

char* slot(unsigned i) { return device.data() + geometry.slot_offset(i); }

PhysicalLun* must_open() {
  PhysicalLun* lun = nullptr;
  ErrorText why;
  if (open_device(kBytes, Format::kIfBlank, &lun, &why) < 0) FAIL(why.text);
  return lun;
}

void change(unsigned step) {
  static const char* const names[] = {"a", "bb", "c.c", "database-1", "e_e"};
  VirtualOptions options;
  options.name = names[step % 5];
  ErrorText why;
  options.create = true;
  options.size_bytes = below(9) * 48 * kKiB;
  VirtualLun* lun = nullptr;
  const int status = VirtualLun::open(must_open(), options, &lun, &why);
  if (status == 0) {
    lun->close();
    return;
  }
  PhysicalLun* physical = must_open();
  if (below(2) && physical->remove(options.name, &why) == 0) return physical->close();
  options.create = false;
  if (VirtualLun::open(physical, options, &lun, &why) < 0) FAIL(why.text);
  if (lun->set_size(below(9) * 48 * kKiB, &why) < 0) FAIL(why.text);
  lun->close();
}

// States of one life, at rest and in the middle of a change.
void make_bases() {
  must_open()->close();
  if (superblock_geometry(*reinterpret_cast<const media::Superblock*>(device.data()), kBytes,
                          &geometry) < 0)
    FAIL("geometry");
  front_bytes = geometry.front_offset + 2 * geometry.image_bytes;
  back_bytes = kBytes - geometry.back_offset;
  for (unsigned i = 0; i < 12; ++i) {
    const auto before = ends();
    change(i);
    const auto after = ends();
    bases.push_back({after.first, after.second, {after}});
    if (i % 3 == 0)
      // the back is still to be written
      bases.push_back({after.first, before.second, {before, after}});
  }
}

uint64_t place() {  // somewhere in what is in use
  const uint64_t at = below(front_bytes + back_bytes);
  return at < front_bytes ? at : kBytes - back_bytes + (at - front_bytes);
}

uint64_t room_at(uint64_t at) { return at < front_bytes ? front_bytes - at : kBytes - at; }

void seal_header(media::ImageHeader* header) {
  header->checksum = XXH3_64bits(header, offsetof(media::ImageHeader, checksum));
}

uint64_t odd_value(uint64_t now) {
  const uint64_t values[] = {0,
                             now + 1,
                             now - 1,
                             now + 2,
                             now * 2,
                             ~uint64_t{0},
                             uint64_t{1} << below(64),
                             next_random(&random_state)};
  return values[below(8)];
}

template <class T>
void put_odd(T* field) {
  *field = static_cast<T>(odd_value(*field));
}

void forge_super() {
  auto* super = reinterpret_cast<media::Superblock*>(device.data() +
                                                     (below(2) ? 0 : geometry.backup_offset()));
  uint64_t* const fields[] = {&super->device_bytes, &super->extent_bytes, &super->extent_count,
                              &super->image_bytes,  &super->front_offset, &super->data_offset,
                              &super->back_offset,  &super->created_s};
  const std::function<void()> changes[] = {
      [&] { put_odd(&super->version); },
      [&] { put_odd(&super->entry_count); },
      [&] { super->uuid[below(16)] ^= static_cast<uint8_t>(1 + below(255)); },
      [&] { super->data_offset += (below(9) - 4) * 64 * kKiB; },
      [&] { super->reserved[below(sizeof super->reserved)] = 1; },
      [&] { put_odd(fields[below(8)]); },
  };
  changes[below(std::size(changes))]();
  super->checksum = XXH3_64bits(super, offsetof(media::Superblock, checksum));
  if (below(3) == 0) memcpy(device.data() + geometry.backup_offset(), super, sizeof *super);
}

// Changes one copy of one image, with right checksums.
void forge_image() {
  MetadataImage image{slot(static_cast<unsigned>(below(4))), &geometry};
  media::LunEntry& entry = image.entries()[below(below(2) ? 6 : geometry.entry_count)];
  media::ExtentOwner& one = image.extents()[below(geometry.extent_count)];
  media::ExtentOwner& two = image.extents()[below(geometry.extent_count)];
  media::ImageHeader& header = image.header();
  const std::function<void()> changes[] = {
      [&] { put_odd(&entry.size_bytes); },
      [&] { put_odd(&entry.extents); },
      [&] { put_odd(&entry.flags); },
      [&] { entry.name[below(32)] = static_cast<char>(below(256)); },
      [&] { put_odd(&one.lun); },
      [&] { put_odd(&one.position); },
      [&] { std::swap(one, two); },
      [&] { one = two; },
      [&] { entry = image.entries()[below(6)]; },
      [&] { put_odd(&header.sequence); },
      [&] { put_odd(&header.body_bytes); },
      [&] { put_odd(&header.previous); },
      [&] { header.sequence += 2; },
      [&] { put_odd(&header.version); },
  };
  changes[below(std::size(changes))]();
  header.body_checksum = XXH3_64bits(image.entries(), image.body_bytes());
  seal_header(&header);
}

void mutate(bool may_forge) {
  const uint64_t at = place(), other = place();
  uint64_t choice = below(10);
  if (choice == 9 && !may_forge) choice = 8;
  other_moments |= choice == 5 || choice == 6;
  forged |= choice == 9;
  switch (choice) {
    case 0:
    case 1:
      device[at] ^= static_cast<char>(1 << below(8));
      break;
    case 2: {
      uint64_t length = 1 + below(700);
      if (length > room_at(at)) length = room_at(at);
      for (uint64_t i = 0; i < length; ++i)
        device[at + i] = static_cast<char>(next_random(&random_state));
      break;
    }
    case 3:
    case 4: {  // sectors or blocks change places, or one is copied
      const uint64_t unit = below(2) ? kSector : 4096, from = at / unit * unit,
                     to = other / unit * unit;
      std::vector<char> keep(device.begin() + static_cast<long>(to),
                             device.begin() + static_cast<long>(to + unit));
      memmove(device.data() + to, device.data() + from, unit);
      if (below(2)) memcpy(device.data() + from, keep.data(), unit);
      break;
    }
    case 5: {  // a sector of another moment
      const Base& source = bases[below(bases.size())];
      const uint64_t from = at / kSector * kSector;
      memcpy(device.data() + from,
             from < front_bytes ? source.front.data() + from
                                : source.back.data() + (from - (kBytes - back_bytes)),
             kSector);
      break;
    }
    case 6: {  // a slot of another moment
      const Base& source = bases[below(bases.size())];
      const auto i = static_cast<unsigned>(below(4));
      const uint64_t from = geometry.slot_offset(i);
      memcpy(
          slot(i),
          i < 2 ? source.front.data() + from : source.back.data() + (from - (kBytes - back_bytes)),
          geometry.image_bytes);
      break;
    }
    case 7:
      memset(device.data() + at, 0, room_at(at) < 9000 ? room_at(at) : below(9000));
      break;
    case 8:
      forge_super();
      break;
    default:
      forge_image();
      break;
  }
}

}  // namespace

TEST_CASE("lun-fuzz") {
  const uint64_t count = option("--count", 20'000), first = option("--first", 0);
  const uint64_t seed = tier::run_seed();
  random_state = seed;
  make_bases();
  signal(SIGPROF, hung);
  lunar_test::g_at_failure = [] {
    fprintf(stderr, "image %lu\n", static_cast<unsigned long>(image_number));
  };
  uint64_t opened = 0, repaired = 0;
  std::map<int, uint64_t> refused;
  for (uint64_t n = first; n < first + count; ++n) {
    image_number = n;
    random_state = seed * 0x2545f4914f6cdd1d + n;
    if (n % 256 == 0) {  // by CPU time, as the machine may be busy; what blocks, the runner ends
      const itimerval cpu = {{0, 0}, {tier::scaled(20), 0}};
      setitimer(ITIMER_PROF, &cpu, nullptr);
    }
    const Base& base = bases[below(bases.size())];
    load({base.front, base.back});
    other_moments = forged = false;
    const uint64_t mutations = 1 + below(3);
    for (uint64_t left = mutations; left; --left) {
      const bool first_one = left == mutations;
      mutate(first_one && base.accepted.size() == 1);
      if (forged) break;
    }
    uint64_t bytes = kBytes;
    if (below(50) == 0)
      bytes = below(2) ? kBytes - kSector * below(100) : kBytes - 4096 * below(900);
    const Format format = below(8) == 0   ? Format::kRepair
                          : below(3) == 0 ? Format::kIfBlank
                                          : Format::kNever;
    PhysicalLun* lun = nullptr;
    ErrorText why;
    const int status = open_device(bytes, format, &lun, &why);
    if (status < 0) {
      REQUIRE(!lun && why.text[0] && !strchr(why.text, '\n'), "refused without one line");
      ++refused[status];
      continue;
    }
    ++opened;
    const auto now = ends();
    bool right = false;
    for (const auto& accepted : base.accepted) right |= now == accepted;
    if (!right && other_moments) {
      for (const Base& moment : bases) {
        for (const auto& accepted : moment.accepted) right |= now == accepted;
      }
    }
    REQUIRE(right, "opened as something that was not acknowledged");
    PhysicalLunInfo info;
    REQUIRE(lun->info(&info) >= 0, "info");
    repaired += info.repaired;
    CheckReport report;
    REQUIRE(lun->check(false, &report) >= 0 && report.problems == report.repaired, "check");
    lun->close();
  }
  printf("%lu images: %lu opened as they were (%lu repaired)", count, opened, repaired);
  for (const auto& [status, times] : refused) printf(", %lu %s", times, errno_name(status));
  printf("\n");
}
