// SPDX-License-Identifier: Apache-2.0
// The stats file. Its only writer is the pager's thread for it.
#include "stats/export.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sys/file.h"
#include "sys/mem.h"
#include "sys/memory_copy.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kPeriodNs = 1000000000, kBusyPeriodNs = 100000000;

struct StatsFile {
  lunar_stats_file_header header;
  lunar_stats stats;
};

StatsFile* g_file = nullptr;
void (*g_read)(lunar_stats*) = nullptr;
uint32_t g_owner = 0;  // the copy of the memory whose counters the file shows (sys/memory_copy.h)

// Writes by system call: if the file has become shorter, a store to a mapping would raise SIGBUS.
void write_stats(const lunar_stats& stats) {
  static uint64_t sequence = 0;
  const uint64_t now = sys::now_ns(), changing = sequence + 1, changed = sequence += 2;
  StatsFile& file = *g_file;
  if (sys::poke(&file.header.sequence, &changing, sizeof changing) < 0) return;
  (void)sys::poke(&file.stats, &stats, sizeof stats);
  (void)sys::poke(&file.header.updated_ns, &now, sizeof now);
  (void)sys::poke(&file.header.sequence, &changed, sizeof changed);
}

}  // namespace

int stats_file_open(const char* path, void (*read)(lunar_stats*)) {
  int fd = sys::open_file(path, O_RDWR | O_CREAT, 0644);
  if (fd < 0) return fd;
  StatsFile fresh{};
  memcpy(fresh.header.magic, "LUNARST1", 8);
  fresh.header.stats_bytes = sizeof(lunar_stats);
  fresh.header.pid = static_cast<uint32_t>(getpid());
  int64_t rc = sys::write_at(fd, &fresh, sizeof fresh, 0);
  void* memory = nullptr;
  if (rc == static_cast<int64_t>(sizeof fresh))
    rc = sys::map(nullptr, sizeof fresh, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0, &memory);
  else if (rc >= 0)
    rc = -EIO;
  sys::close_file(fd);
  if (rc < 0) return static_cast<int>(rc);
  g_file = static_cast<StatsFile*>(memory);
  g_read = read;
  g_owner = sys::memory_copy();
  return 0;
}

bool stats_file_is_open() { return g_file != nullptr && g_owner == sys::memory_copy(); }

void stats_file_run(void*) {
  for (uint64_t before = 0;;) {
    lunar_stats stats{};
    g_read(&stats);
    write_stats(stats);
    const uint64_t changes = stats.faults + stats.evictions;
    sys::sleep_ns(changes == before ? kPeriodNs : kBusyPeriodNs);
    before = changes;
  }
}

}  // namespace lunar
