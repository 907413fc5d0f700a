// SPDX-License-Identifier: Apache-2.0
// Random histories of a kept store that crashes at its writes, for kv_crash_kept.cpp and
// kv_crash_durable.cpp. Threading: one thread. May not: be used by code that ships.
#pragma once
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"
#include "tests/support/seed.h"

namespace kv_test {

constexpr uint64_t kLengthMin = 8, kLengthMax = 1'600'000;  // of a value

// A recorded history, and the device as a crash leaves it. A value begins with its version.
class CrashHistory {
 public:
  CrashHistory(uint64_t seed, uint64_t bytes) : random_(seed), memory_(bytes), copy_(bytes) {
    for (char& byte : memory_) byte = static_cast<char>(random_.next());  // what former owners left
  }

 protected:
  using Event = lunar_test::DeviceEvent;

  static std::string name(uint64_t key) { return std::string(key % 40, 'k') + std::to_string(key); }
  [[noreturn]] void wrong(const std::string& what) { FAIL(where_ + what); }
  lunar::kv::Store* open(const lunar::kv::StoreOptions& options) {
    lunar::ErrorText why;
    lunar::kv::Store* store = nullptr;
    if (lunar::kv::Store::open(options, &store, &why) < 0)
      wrong(std::string("does not open: ") + why.text);
    return store;
  }
  static void make_value(std::string* out, uint64_t key, uint64_t version, uint64_t length) {
    fill(out, key, version, length);
    memcpy(out->data(), &version, sizeof version);
  }
  // The version of a value of `length` bytes in buffer_.
  uint64_t version_of(uint64_t key, uint64_t length) {
    uint64_t version;
    if (length < kLengthMin) wrong("a length of " + name(key) + " that was never set");
    memcpy(&version, buffer_.data(), sizeof version);
    make_value(&value_, key, version, length);
    if (memcmp(value_.data(), buffer_.data(), length) != 0) wrong("content of " + name(key));
    return version;
  }
  // Puts the part of an event that is left into copy_.
  void leave(const Event& event, lunar_test::Left how, std::vector<Event>* undo) {
    lunar_test::leave_of(event, how, &copy_, [this](uint64_t n) { return random_.below(n); }, undo);
  }
  // Puts what a crash at `event` leaves of the writes from `from` on into copy_. Not lost: all of
  // them, the last one torn. Lost: some of those that no flush followed, each perhaps torn.
  void crash(const std::vector<Event>& events, size_t from, size_t event, bool lost,
             std::vector<Event>* undo) {
    using lunar_test::Left;
    for (size_t i = from; i <= event && i < events.size(); ++i) {
      if (events[i].fua && i < event)
        leave(events[i], Left::kAll, undo);
      else if (!lost)
        leave(events[i], i < event ? Left::kAll : static_cast<Left>(1 + random_.below(2)), undo);
      else if (random_.below(2))
        leave(events[i], static_cast<Left>(random_.below(3)), undo);
    }
  }
  // Goes through the history. Calls at(i) at each --every'th write or discard, when copy_ holds
  // what was flushed before, and note(i) behind each event. Returns how many crashes there were.
  template <class At, class Note>
  uint64_t crash_at_writes(At at, Note note) {
    using Kind = Event::Kind;
    const uint64_t every = lunar_test::option("--every", 4);
    uint64_t writes = random_.below(every), crashes = 0;
    for (size_t i = 0; i < events_.size(); ++i) {
      const Kind kind = events_[i].kind;
      if ((kind == Kind::kWrite || kind == Kind::kDiscard) && writes++ % every == 0) {
        at(i);
        ++crashes;
      }
      note(i);
      if (kind != Kind::kFlush) continue;
      for (; flushed_ < i; ++flushed_) leave(events_[flushed_], lunar_test::Left::kAll, nullptr);
    }
    return crashes;
  }

  Random random_;
  std::vector<char> memory_, copy_;
  std::vector<Event> events_;
  size_t flushed_ = 0;  // events before this are in copy_
  std::string value_, buffer_ = std::string(kLengthMin + kLengthMax, 0), where_;
};

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
