// SPDX-License-Identifier: Apache-2.0
// Helpers of the pager's tests: a tier in this process, pages whose content names their place and
// version, a watchdog that shows the pager's state.
//
// Threading: start_tier and Watchdog by the main thread.
// May not: be used by code that ships.
#pragma once
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "lunar/lunar.h"
#include "pager/pager.h"
#include "tests/support/cases.h"
#include "tests/support/in_child.h"
#include "tests/support/meanwhile.h"
#include "tests/support/seed.h"
#include "tests/support/slowness.h"

namespace tier {

using lunar_test::expect_exit;
using lunar_test::fork_child;
using lunar_test::Meanwhile;

constexpr uint64_t kMega = 1 << 20;

inline const bool g_dumps_at_failure = [] {
  lunar_test::g_at_failure = [] {
    if (lunar::pager_created()) lunar::pager_dump(2);
    fflush(nullptr);
  };
  return true;
}();

inline double seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// lunar_init(). Ends the test if it fails; without userfaultfd or disk space the test skips.
inline void start_tier(uint64_t dram_bytes, uint64_t lun_bytes, const char* lun = nullptr,
                       const char* options = nullptr) {
  lunar_config config{};
  config.struct_size = sizeof config;
  config.dram_bytes = dram_bytes;
  config.lun_bytes = lun_bytes;
  config.lun = lun;
  config.options = options;
  int rc = lunar_init(&config);
  if (rc == 0) return;
  if (strncmp(lunar_error(), "userfaultfd:", 12) == 0) SKIP("userfaultfd", lunar_error());
  if (rc == -ENOSPC) SKIP("disk-space", lunar_error());
  fprintf(stderr, "lunar_init: %d %s\n", rc, lunar_error());
  _exit(1);
}

inline char* new_region(uint64_t bytes) {
  auto* base = static_cast<char*>(lunar_region_create(bytes));
  REQUIRE(base != nullptr);
  return base;
}

inline lunar_stats stats() {
  lunar_stats s{};
  s.struct_size = sizeof s;
  (void)lunar_get_stats(&s);
  return s;
}

// pager_validate() of a pager at rest, repeated because a read-ahead may still be under way.
inline bool validate() {
  for (int i = 0; i < 20; ++i) {
    if (lunar::pager_validate()) return true;
    usleep(50000);
  }
  return false;
}

// A page, or a part of one, is filled with words that name its key and version. Version 0 is zeros.
inline uint64_t stamp_base(uint64_t key, uint64_t version) {
  return mix(key * 0x100000001b3 + version) | 1;
}
inline void stamp_write(void* at, size_t bytes, uint64_t key, uint64_t version) {
  auto* word = static_cast<uint64_t*>(at);
  uint64_t value = stamp_base(key, version);
  if (version == 0)
    memset(at, 0, bytes);
  else
    for (size_t i = 0; i < bytes / 8; ++i) word[i] = value += 0x9e3779b97f4a7c15;
}
inline bool stamp_holds(const void* at, size_t bytes, uint64_t key, uint64_t version) {
  auto* word = static_cast<const uint64_t*>(at);
  uint64_t value = stamp_base(key, version), wrong = 0;
  if (version == 0)
    for (size_t i = 0; i < bytes / 8; ++i) wrong |= word[i];
  else
    for (size_t i = 0; i < bytes / 8; ++i) wrong |= word[i] ^ (value += 0x9e3779b97f4a7c15);
  return wrong == 0;
}

// Prints a line and a dump when `progress` has not moved for so many seconds. The test then stays
// until its runner examines and ends it at the time limit.
class Watchdog {
 public:
  Watchdog(const std::atomic<uint64_t>& progress, int seconds)
      : thread_(
            [this, &progress, limit_s = static_cast<int>(scaled(static_cast<unsigned>(seconds)))] {
              uint64_t last = progress.load();
              for (int still = 0; !stop_.load();) {
                usleep(100000);
                uint64_t now = progress.load();
                still = now == last ? still + 1 : 0;
                last = now;
                if (still < limit_s * 10) continue;
                fprintf(stderr, "no progress for %d s at %llu\n", limit_s,
                        static_cast<unsigned long long>(now));
                if (lunar::pager_created()) lunar::pager_dump(2);
                fflush(nullptr);
                for (;;) pause();
              }
            }) {}
  ~Watchdog() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tier
