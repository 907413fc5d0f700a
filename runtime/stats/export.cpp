// SPDX-License-Identifier: Apache-2.0
// The stats file. One writer: the pager's housekeeping thread (and the exiting thread, after it).
#include "stats/export.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {
namespace {

struct StatsFile {
  StatsFileHeader header;
  lunar_stats stats;
};

StatsFile* g_file = nullptr;

}  // namespace

int stats_file_open(const char* path) {
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
  return 0;
}

void stats_file_write(const lunar_stats& stats) {
  if (g_file == nullptr || g_file->header.pid != static_cast<uint32_t>(getpid())) return;  // a forked child keeps out
  std::atomic_ref<uint64_t> sequence(g_file->header.sequence);
  sequence.fetch_add(1, std::memory_order_acq_rel);
  g_file->stats = stats;
  g_file->header.updated_ns = sys::now_ns();
  sequence.fetch_add(1, std::memory_order_release);
}

}  // namespace lunar
