// SPDX-License-Identifier: Apache-2.0
// write_errors CASE: the space that failed writes cost a LUN. A place is given up only for its own
// failure, neither for that of another place in the same write nor while every write fails. In each
// case all content is right.
//
//   transient    one write in some fails, whatever its place; the log is not flooded
//   outage       for a while every write fails
//   bad-places   some places never take a write
//   late         a write takes 11.5 s (--long: two take 13 s): each time a line says that threads
// wait
//
// LUNAR_SEED=N replays the device's faults. Threading: main, and for the outage a thread that
// writes.
#include <algorithm>
#include <string>

#include "pager/state/state.h"
#include "superpipe/sim/sim_device.h"
#include "tests/support/test_tier.h"

namespace {

constexpr uint64_t kMemory = 64 * tier::kMega, kSim = 512 * tier::kMega;
constexpr uint64_t kPasses = 4;

char* g_base = nullptr;
std::atomic<uint64_t> g_progress{0};

uint64_t page_bytes() { return lunar_page_bytes(); }
uint64_t pages() { return kMemory / page_bytes(); }

lunar::SimDevice& device() {
  return static_cast<lunar::SimDevice&>(*lunar::pager_state().luns.devices[0]);
}
uint64_t errors() { return device().counters().write_errors.load(); }
uint64_t retired() {
  const auto& state = lunar::pager_state();
  return state.luns.slots[state.luns.own].retired_slots();
}

void start(const std::string& faults, const std::string& log = "/dev/null") {
  const std::string uri =
      "sim:" + std::to_string(kSim) + ",seed=" + std::to_string(tier::run_seed()) + faults;
  tier::start_tier(kMemory / 4, 4 * kMemory, uri.c_str(), ("log_file=" + log).c_str());
  g_base = tier::new_region(kMemory);
}

void write_all(uint64_t version) {
  for (uint64_t page = 0; page < pages(); ++page, g_progress.fetch_add(1))
    tier::stamp_write(g_base + page * page_bytes(), page_bytes(), page, version);
}

void check_all(uint64_t version) {
  for (uint64_t page = 0; page < pages(); ++page, g_progress.fetch_add(1))
    REQUIRE(tier::stamp_holds(g_base + page * page_bytes(), page_bytes(), page, version),
            "page %lu does not hold version %lu", page, version);
}

std::string make_log() {
  char log[] = "/tmp/lunar-write-errors-XXXXXX";
  const int fd = mkstemp(log);
  REQUIRE(fd >= 0);
  close(fd);
  return log;
}

// The number of lines of the log with `text`; *last_line is the last of them. The log is deleted.
unsigned lines_with(const char* text, const std::string& log, std::string* last_line) {
  FILE* file = fopen(log.c_str(), "r");
  REQUIRE(file != nullptr, "%s: %s", log.c_str(), strerror(errno));
  unsigned lines = 0;
  char line[512];
  while (fgets(line, sizeof line, file) != nullptr) {
    if (strstr(line, text) == nullptr) continue;
    ++lines;
    *last_line = line;
  }
  fclose(file);
  unlink(log.c_str());
  return lines;
}

void transient() {
  const std::string log = make_log();
  start(",write_error=20", log);
  for (uint64_t version = 1; version <= kPasses; ++version) write_all(version);
  check_all(kPasses);
  printf("%lu writes, %lu failed, %lu places given up\n", device().counters().writes.load(),
         errors(), retired());
  REQUIRE(errors() > 20, "only %lu writes failed", errors());
  std::string last;
  const unsigned lines = lines_with("trying again", log, &last);
  REQUIRE(lines > 0 && lines <= 10 && last.find("further ones are not shown") != std::string::npos,
          "%u lines for %lu writes that failed", lines, errors());
  REQUIRE(retired() <= errors(), "%lu places are given up for %lu failed writes", retired(),
          errors());
}

void outage() {
  start("");
  write_all(1);
  const uint64_t before = errors();
  device().set_failing(false, true);
  std::thread writer([] { write_all(2); });
  while (errors() < before + 1000) usleep(1000);
  device().set_failing(false, false);
  writer.join();
  check_all(2);
  write_all(3);
  check_all(3);
  printf("%lu writes failed, %lu places given up\n", errors(), retired());
  REQUIRE(retired() == 0, "%lu places are given up though the device takes all writes again",
          retired());
}

void bad_places() {
  start(",bad=100");
  uint64_t bad = 0, first = 0;
  for (uint64_t page = 0; page < kSim / 4096; ++page) bad += device().bad_place(page);
  for (uint64_t version = 1; version <= kPasses; ++version) {
    const uint64_t before = errors();
    write_all(version);
    if (version == 1) first = errors() - before;
  }
  check_all(kPasses);
  printf("%lu writes failed, %lu in the first pass; %lu of %lu bad places given up\n", errors(),
         first, retired(), bad);
  REQUIRE(retired() > 20, "only %lu places are given up", retired());
  REQUIRE(retired() <= bad * 4096 / page_bytes(), "%lu places are given up, and %lu are bad",
          retired(), bad);
}

void late() {
  const std::string log = make_log();
  const bool again = lunar_test::has_option("--long");
  start(again ? ",stall=0,stall_us=13000000,stalls=2" : ",stall=0,stall_us=11500000", log);
  // until the log reaches its first slot again, which no read may reach before
  for (uint64_t version = 1; version <= 8; ++version) {
    REQUIRE(lunar_discard(g_base, kMemory) == 0);
    write_all(version);
  }
  check_all(8);
  std::string line;
  REQUIRE(lines_with("have waited for DRAM for 1", log, &line) == (again ? 2 : 1) &&
              line.find("the LUN is slow") != std::string::npos,
          "%s", line.c_str());
}

void watched(void (*run)()) {
  const tier::Watchdog watchdog(g_progress, 30);
  run();
  REQUIRE(tier::validate(), "the page table does not add up");
}

}  // namespace

TEST_CASE("transient") { watched(transient); }
TEST_CASE("outage") { watched(outage); }
TEST_CASE("bad-places") { watched(bad_places); }
TEST_CASE("late") { watched(late); }
