// SPDX-License-Identifier: Apache-2.0
// Every crash leaves the metadata whole. Random histories of changes to a physical LUN are recorded
// write by write; then the device is put together as a crash could have left it, and opened:
//
//   torn     all writes up to one, that one only in part: some of its 512-byte sectors, a prefix or
//            any
//   lost     only some of the writes since the last flush that had no fua, each perhaps torn
//            (a device's cache keeps no order)
//   twice    a crash in the recovery from a crash
//
// The LUN must open and check clean. It must be in the state that was acknowledged last or in the
// one that was being made: whole, with the content that was flushed, and zeros where a LUN grew.
//   lun_crash [--histories N] [--variants N] [--every N: crashes at each Nth write];
//   LUNAR_SEED= replays.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "lun/volume/metadata_image.h"
#include "lun/volume/virtual_lun.h"
#include "tests/support/cases.h"
#include "tests/support/device_io.h"
#include "tests/support/lun_device.h"
#include "tests/support/lun_file.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar_test;

namespace {

constexpr uint64_t kBytes = 4 * kMiB, kBlock = 4096, kSector = 512, kExtent = 64 * kKiB;
using Kind = DeviceEvent::Kind;

using Blocks = std::vector<uint64_t>;         // a LUN: what each block holds; 0: zeros
using State = std::map<std::string, Blocks>;  // the named LUNs

struct Step {
  State after;
  bool formatted = true;
  // a write of data was under way: sectors of this block may be old or new
  std::string data_lun;
  uint64_t data_block = 0;
};

void fill(char* sector, uint64_t stamp, uint64_t block, unsigned index) {
  uint64_t words[kSector / 8];
  for (uint64_t i = 0; i < kSector / 8; ++i)
    words[i] = stamp == 0 ? 0 : stamp * 0x9e3779b97f4a7c15 ^ block << 20 ^ index << 8 ^ i;
  memcpy(sector, words, kSector);
}

bool holds(const char* sector, uint64_t stamp, uint64_t block, unsigned index) {
  char expected[kSector];
  fill(expected, stamp, block, index);
  return memcmp(sector, expected, kSector) == 0;
}

class History {
 public:
  explicit History(uint64_t seed)
      : random_(seed),
        discard_(seed % 3 != 0),
        device_(kBytes),
        copy_(kBytes),
        block_(static_cast<char*>(aligned_alloc(4096, kBlock))) {}
  ~History() {
    for (MemoryDevice* raw : raws_) delete raw;
    free(block_);
  }
  void make(unsigned operations);
  uint64_t crash_everywhere(unsigned variants);

 private:
  uint64_t below(uint64_t n) { return next_random(&random_) % n; }
  PhysicalLun* open(char* memory, Format format, std::vector<DeviceEvent>* record,
                    std::vector<DeviceEvent>* undo = nullptr);
  VirtualLun* open_lun(const std::string& name, bool create, uint64_t bytes, bool zeroed);
  void acknowledge(Step step);
  void operation();
  void write_data(const std::string& name);
  void scratch();
  void check_result(size_t acknowledged, bool data_too);
  bool matches(const State& state, const std::vector<VirtualLunInfo>& list) const;
  void check_data(const Step& step, const State& before);
  void apply(const DeviceEvent& event, Left how, std::vector<DeviceEvent>* undo);
  void crash_at(size_t event, unsigned variant);

  uint64_t random_;
  bool discard_;                     // a device without: zeros are written, also for what is staged
  std::vector<char> device_, copy_;  // as it went; as a crash left it
  std::vector<DeviceEvent> events_;
  std::vector<Step> steps_;
  size_t flushed_ = 0;  // events before this are in copy_
  uint64_t stamp_ = 0, images_ = 0;
  std::string where_, said_;
  int last_ = 0;
  std::vector<MemoryDevice*> raws_;
  std::vector<DeviceEvent>*undo_ = nullptr, *recovery_ = nullptr;
  char* block_;
};

PhysicalLun* History::open(char* memory, Format format, std::vector<DeviceEvent>* record,
                           std::vector<DeviceEvent>* undo) {
  auto* raw = new MemoryDevice(memory, kBytes, {discard_, 1 * kMiB, "memory:"});
  raws_.push_back(raw);
  raw->record = record;
  raw->undo = undo;
  PhysicalLun* lun = nullptr;
  ErrorText why;
  last_ = PhysicalLun::open(raw, format, &lun, &why);
  if (last_ < 0) said_ = why.text;
  return lun;
}

VirtualLun* History::open_lun(const std::string& name, bool create, uint64_t bytes, bool zeroed) {
  PhysicalLun* physical = open(device_.data(), Format::kIfBlank, &events_);
  REQUIRE(physical, "open: %s", said_.c_str());
  VirtualOptions options;
  options.name = name.c_str();
  options.create = create;
  options.size_bytes = bytes;
  options.zeroed = zeroed;
  VirtualLun* lun = nullptr;
  ErrorText why;
  const int status = VirtualLun::open(physical, options, &lun, &why);
  REQUIRE(status >= 0 || status == -ENOSPC, "open LUN: %s", why.text);
  return lun;
}

void History::acknowledge(Step step) {
  events_.push_back({Kind::kMark, 0, 0, {}, static_cast<unsigned>(steps_.size())});
  steps_.push_back(std::move(step));
}

void History::write_data(const std::string& name) {
  Step step = steps_.back();
  step.data_lun.clear();
  Blocks& blocks = step.after[name];
  if (blocks.empty()) return;
  const uint64_t block = below(blocks.size());
  const uint64_t stamp = ++stamp_;
  for (unsigned i = 0; i < kBlock / kSector; ++i) fill(block_ + i * kSector, stamp, block, i);
  VirtualLun* lun = open_lun(name, false, 0, true);
  REQUIRE(io(lun, Op::kWrite, block * kBlock, block_) == kBlock, "write: %s", name.c_str());
  REQUIRE(io(lun, Op::kFlush, 0, nullptr, 0) == 0, "flush: %s", name.c_str());
  lun->close();
  blocks[block] = stamp;
  step.data_lun = name;
  step.data_block = block;
  acknowledge(step);
}

// A LUN without a name that overwrites what others had. Sometimes it is left behind, as by kill -9.
void History::scratch() {
  Step step = steps_.back();
  step.data_lun.clear();
  VirtualLun* lun = open_lun("", false, 0, below(2) == 0);
  if (lun->reserve(DeviceOffset{0}, (1 + below(8)) * kExtent) == 0) {
    memset(block_, 0xee, kBlock);
    for (uint64_t at = 0; at < lun->used_bytes(); at += 7 * kBlock)
      REQUIRE(io(lun, Op::kWrite, at, block_) == kBlock, "scratch");
    if (below(3) == 0) lun->release(DeviceOffset{0}, lun->used_bytes());
  }
  if (below(2))
    lun->physical().close();  // no word of farewell (its own memory stays: a few of them a history)
  else
    lun->close();
  acknowledge(step);
}

void History::operation() {
  const char* const names[] = {"a", "b", "c", "d", "e"};
  const std::string name = names[below(5)];
  Step step = steps_.back();
  step.data_lun.clear();
  const bool there = step.after.count(name) != 0;
  const uint64_t blocks = below(3) ? below(60) : below(5) * (kExtent / kBlock);
  const uint64_t choice = below(10);
  if (choice == 0) return scratch();
  if (!there) {
    VirtualLun* lun = open_lun(name, true, blocks * kBlock, true);
    if (lun) {
      lun->close();
      step.after[name] = Blocks(blocks);
    }
  } else if (choice < 4) {
    return write_data(name);
  } else if (choice < 6) {
    PhysicalLun* physical = open(device_.data(), Format::kIfBlank, &events_);
    ErrorText why;
    REQUIRE(physical && physical->remove(name.c_str(), &why) >= 0, "remove: %s", why.text);
    physical->close();
    step.after.erase(name);
  } else {
    VirtualLun* lun = open_lun(name, false, 0, true);
    ErrorText why;
    const int status = lun->set_size(blocks * kBlock, &why);
    REQUIRE(status >= 0 || status == -ENOSPC, "resize: %s", why.text);
    if (status == 0) step.after[name].resize(blocks);
    lun->close();
  }
  acknowledge(step);
}

void History::make(unsigned operations) {
  // Data of former owners, in places without a signature.
  memset(device_.data() + 64 * kKiB, 0xdd, kBytes - 64 * kKiB);
  copy_ = device_;
  Step nothing;
  nothing.formatted = false;
  acknowledge(nothing);
  PhysicalLun* lun = open(device_.data(), Format::kIfBlank, &events_);
  REQUIRE(lun, "format: %s", said_.c_str());
  lun->close();
  acknowledge({});
  for (unsigned i = 0; i < operations; ++i) operation();
}

void History::apply(const DeviceEvent& event, Left how, std::vector<DeviceEvent>* undo) {
  leave_of(event, how, &copy_, [this](uint64_t n) { return below(n); }, undo);
}

bool History::matches(const State& state, const std::vector<VirtualLunInfo>& list) const {
  if (list.size() != state.size()) return false;
  for (const VirtualLunInfo& info : list) {
    const auto found = state.find(info.name);
    if (found == state.end() || found->second.size() * kBlock != info.size_bytes) return false;
  }
  return true;
}

// Checks the content of each LUN. before: the acknowledged state; a later write of data may be
// there or not.
void History::check_data(const Step& step, const State& before) {
  for (const auto& [name, blocks] : step.after) {
    if (blocks.empty()) continue;
    PhysicalLun* physical = open(copy_.data(), Format::kNever, nullptr, undo_);
    VirtualOptions options;
    options.name = name.c_str();
    VirtualLun* lun = nullptr;
    ErrorText why;
    REQUIRE(physical && VirtualLun::open(physical, options, &lun, &why) >= 0,
            "open after a crash: %s", (where_ + why.text).c_str());
    for (uint64_t block = 0; block < blocks.size(); ++block) {
      REQUIRE(io(lun, Op::kRead, block * kBlock, block_) == kBlock, "read after a crash: %s",
              (where_ + name).c_str());
      const bool open_question = step.data_lun == name && step.data_block == block;
      const auto old = before.find(name);
      for (unsigned i = 0; i < kBlock / kSector; ++i) {
        const char* sector = block_ + i * kSector;
        if (holds(sector, blocks[block], block, i)) continue;
        if (open_question && old != before.end() && holds(sector, old->second[block], block, i))
          continue;
        REQUIRE(false, "content: %s",
                (where_ + "LUN " + name + " block " + std::to_string(block) + " sector " +
                 std::to_string(i))
                    .c_str());
      }
    }
    lun->close();
  }
}

void History::check_result(size_t acknowledged, bool data_too) {
  ++images_;
  const Step& done = steps_[acknowledged];
  const bool more = acknowledged + 1 < steps_.size();
  PhysicalLun* lun = open(copy_.data(), Format::kNever, recovery_, undo_);
  if (!lun) {
    // Before the primary superblock is written the device is blank, or has half-written images
    // behind a blank head.
    if (!done.formatted && (last_ == -ENODEV || last_ == -EEXIST || last_ == -EBADMSG)) return;
    REQUIRE(false, "does not open: %s", (where_ + said_).c_str());
  }
  PhysicalLunInfo info;
  REQUIRE(lun->info(&info) >= 0, "info: %s", where_.c_str());
  std::vector<VirtualLunInfo> list(16);
  list.resize(static_cast<size_t>(lun->list(list.data(), 16, 0)));
  CheckReport report;
  if (lun->check(false, &report) < 0 || report.problems != report.repaired || report.extents_lost ||
      report.extents_double)
    REQUIRE(false, "check: %s", where_.c_str());
  lun->close();
  const Step* is = nullptr;
  // The newer state first: if both look the same, content decides (a write under way may have
  // arrived or not).
  if (more && matches(steps_[acknowledged + 1].after, list)) is = &steps_[acknowledged + 1];
  const bool old_too = matches(done.after, list);
  REQUIRE(is || old_too, "neither what was acknowledged nor what was being made: %s",
          where_.c_str());
  if (is && old_too && is->data_lun.empty()) is = nullptr;
  Step as_acknowledged = done;
  as_acknowledged.data_lun.clear();
  if (data_too) check_data(is ? *is : as_acknowledged, done.after);
  lun = open(copy_.data(), Format::kNever, nullptr, undo_);
  CheckReport again;
  REQUIRE(lun && lun->check(false, &again) >= 0 && again.problems == 0,
          "not clean after recovery: %s", where_.c_str());
  lun->close();
}

void History::crash_at(size_t event, unsigned variant) {
  std::vector<DeviceEvent> undo, recovery;
  undo_ = &undo;
  recovery_ = nullptr;
  size_t acknowledged = 0;
  for (size_t i = 0; i < event; ++i) {
    if (events_[i].kind == Kind::kMark) acknowledged = events_[i].mark;
  }
  where_ = "event " + std::to_string(event) + " of " + std::to_string(events_.size()) +
           ", variant " + std::to_string(variant) + ", after step " + std::to_string(acknowledged) +
           ": ";
  const bool lost = variant % 2 == 1;
  for (size_t i = flushed_; i <= event; ++i) {
    if (events_[i].fua && i < event) {
      apply(events_[i], Left::kAll, &undo);  // it was acknowledged as durable
    } else if (lost) {
      if (below(2)) apply(events_[i], static_cast<Left>(below(3)), &undo);
    } else {
      apply(events_[i],
            i < event      ? Left::kAll
            : variant == 0 ? Left::kPrefix
                           : Left::kAnySectors,
            &undo);
    }
  }
  const bool twice = below(6) == 0;
  if (twice) {
    std::vector<DeviceEvent> second;
    recovery_ = &recovery;
    undo_ = &second;
    check_result(acknowledged, false);
    roll_back(&second, &copy_);
    recovery_ = nullptr;
    undo_ = &undo;
    if (!recovery.empty()) {
      const size_t until = below(recovery.size());
      for (size_t i = 0; i < until; ++i) apply(recovery[i], Left::kAll, &undo);
      apply(recovery[until], Left::kAnySectors, &undo);
    }
  }
  check_result(acknowledged, below(3) == 0);
  roll_back(&undo, &copy_);
  for (MemoryDevice* raw : raws_) delete raw;
  raws_.clear();
}

uint64_t History::crash_everywhere(unsigned variants) {
  for (MemoryDevice* raw : raws_) delete raw;
  raws_.clear();
  const uint64_t every = option("--every", 4);
  uint64_t writes = below(every);
  for (size_t i = 0; i < events_.size(); ++i) {
    const Kind kind = events_[i].kind;
    if ((kind == Kind::kWrite || kind == Kind::kDiscard) && writes++ % every == 0) {
      for (unsigned variant = 0; variant < variants; ++variant) crash_at(i, variant);
    }
    if (kind != Kind::kFlush) continue;
    for (; flushed_ < i; ++flushed_) apply(events_[flushed_], Left::kAll, nullptr);
  }
  return images_;
}

}  // namespace

TEST_CASE("lun-crash") {
  const auto histories = static_cast<unsigned>(option("--histories", 60)),
             variants = static_cast<unsigned>(option("--variants", 3));
  const uint64_t seed = tier::run_seed();
  uint64_t images = 0;
  for (unsigned i = 0; i < histories; ++i) {
    History history(seed * 1000003 + i);
    history.make(14);
    images += history.crash_everywhere(variants);
    if (i % 100 == 99) {
      printf("%u histories, %lu images\n", i + 1, images);
      fflush(stdout);
    }
  }
  printf("%u histories, %lu crash images opened: whole\n", histories, images);
}
