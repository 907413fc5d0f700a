// SPDX-License-Identifier: Apache-2.0
// Random histories of a kept store, crashed at each of their writes: what kv_crash_kept.cpp and
// kv_crash_durable.cpp share. Threading: one thread. May not: be used by code that ships.
#pragma once
#include <stdio.h>

#include <vector>

#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"
#include "tests/support/seed.h"

namespace kv_test {

// Goes through a recorded history: crash(i) at each write and discard, note(i) behind each event,
// land(i) for all that a flush has made durable. *landed: the events that have. How many crashes.
template <class Crash, class Note, class Land>
uint64_t crash_at_each_write(const std::vector<lunar_test::DeviceEvent>& events, size_t* landed,
                             Crash crash, Note note, Land land) {
  using Kind = lunar_test::DeviceEvent::Kind;
  uint64_t images = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const Kind kind = events[i].kind;
    if (kind == Kind::kWrite || kind == Kind::kDiscard) {
      crash(i);
      ++images;
    }
    note(i);
    if (kind != Kind::kFlush) continue;
    for (; *landed < i; ++*landed) land(*landed);
  }
  return images;
}

// --histories and --operations of each, by the seed of the run.
template <class History>
void run_histories(uint64_t histories, uint64_t operations, const char* proven) {
  histories = lunar_test::option("--histories", histories);
  operations = lunar_test::option("--operations", operations);
  const uint64_t seed = tier::run_seed();
  uint64_t images = 0;
  for (uint64_t i = 0; i < histories; ++i) {
    History history(seed * 1000003 + i);
    history.make(operations);
    images += history.crash_everywhere();
  }
  printf("%lu histories, %lu crash images opened: %s\n", histories, images, proven);
}

}  // namespace kv_test
