// SPDX-License-Identifier: Apache-2.0
// The command table of a chunk against a model: random issues, completions, fetches, late ends and orphans.
#include "cblk/command_table.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "cblk/wait_queue.h"
#include "tests/catch.h"

namespace {

using lunar::cblk::CommandTable;
using lunar::cblk::Entry;
using lunar::cblk::kNone;

struct Table {
  explicit Table(uint32_t count) : memory(CommandTable::bytes_of(count) + 64) {
    auto at = reinterpret_cast<uintptr_t>(memory.data());
    table.init(memory.data() + (64 - at % 64) % 64, count);
  }
  std::vector<char> memory;
  CommandTable table;
};

uint32_t issue(CommandTable& table, uint64_t sequence) {
  const uint32_t index = table.take_free();
  if (index == kNone) return index;
  table[index].io = {};
  table[index].sequence = sequence;
  table[index].state.store(Entry::kActive);
  table.enter_fetchable(index);
  table.append_backlog(index);
  return index;
}

}  // namespace

TEST_CASE("every command is given once, and again when it is released") {
  Table t(5);
  std::vector<uint32_t> all;
  for (uint32_t i; (i = t.table.take_free()) != kNone;) all.push_back(i);
  std::sort(all.begin(), all.end());
  CHECK(all == std::vector<uint32_t>{0, 1, 2, 3, 4});
  CHECK_FALSE(t.table.any_free());
  const uint32_t life = t.table[3].life;
  CHECK(t.table.release(3));
  CHECK(t.table[3].life == life + 1);
  CHECK(t.table.take_free() == 3);
}

TEST_CASE("a lost command is an orphan until it is released again") {
  Table t(1);
  const uint32_t index = issue(t.table, 0);
  t.table.take_backlog_after(kNone);
  t.table[index].lost = true;
  t.table.move_to_done(index);
  t.table.leave_fetchable(index);
  CHECK_FALSE(t.table.release(index));
  CHECK(t.table[index].is(Entry::kOrphaned));
  CHECK_FALSE(t.table.any_free());
  uint32_t found;
  CHECK(t.table.find_tag(static_cast<int>(index), false, &found) == -ENOMSG);
  t.table[index].lost = false;
  CHECK(t.table.release(index));
  CHECK(t.table.any_free());
}

TEST_CASE("of equal tags the oldest is found, also one that no call fetches") {
  Table t(4);
  uint32_t index[3], found;
  for (uint32_t i = 0; i < 3; ++i) {
    index[i] = t.table.take_free();
    Entry& entry = t.table[index[i]];
    entry.io = {};
    entry.io.has_user_tag = true;
    entry.io.user_tag = 77;
    entry.sequence = i;
    entry.state.store(Entry::kActive);
    if (i != 0) t.table.enter_fetchable(index[i]);
  }
  REQUIRE(t.table.find_tag(77, true, &found) == 0);
  CHECK(found == index[1]);
  for (uint32_t i : {1u, 2u}) {
    t.table.move_to_done(index[i]);
    t.table.leave_fetchable(index[i]);
    t.table.release(index[i]);
  }
  REQUIRE(t.table.find_tag(77, true, &found) == 0);
  CHECK(found == index[0]);
  CHECK(t.table.find_tag(static_cast<int>(index[0]), false, &found) == -EINVAL);  // it has a tag of the caller's
  CHECK(t.table.find_tag(78, true, &found) == -EINVAL);
  CHECK(t.table.find_tag(4, false, &found) == -EINVAL);
  CHECK(t.table.find_tag(-1, false, &found) == -EINVAL);
}

TEST_CASE("random histories give what a model gives") {
  constexpr uint32_t kCount = 37;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Table t(kCount);
    CommandTable& table = t.table;
    std::map<uint64_t, uint32_t> active, done;  // sequence, index
    std::deque<uint32_t> backlog;
    std::vector<uint32_t> in_ring;
    uint64_t next = 0;
    const auto any = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size - 1)(random); };
    for (int step = 0; step < 4000; ++step) {
      switch (any(5)) {
        case 0:
        case 1: {  // sequences of a group come out of order now and then
          const uint64_t sequence =
              any(8) == 0 && next > 3 && !active.count(next - 2) && !done.count(next - 2) ? next - 2 : next;
          ++next;
          const uint32_t index = issue(table, sequence);
          REQUIRE((index == kNone) == (active.size() + done.size() == kCount));
          if (index == kNone) break;
          active[sequence] = index;
          backlog.push_back(index);
          break;
        }
        case 2: {  // the ring takes one, not always the first
          if (backlog.empty()) break;
          const size_t at = any(4) == 0 ? any(backlog.size()) : 0;
          const uint32_t before = at == 0 ? kNone : backlog[at - 1];
          REQUIRE(table.backlog_after(before) == backlog[at]);
          REQUIRE(table.take_backlog_after(before) == backlog[at]);
          in_ring.push_back(backlog[at]);
          backlog.erase(backlog.begin() + static_cast<long>(at));
          break;
        }
        case 3: {  // a completion, or one in the backlog is late
          const bool late = any(6) == 0 && !backlog.empty();
          if (!late && in_ring.empty()) break;
          uint32_t index;
          if (late) {
            const size_t at = any(backlog.size());
            index = backlog[at];
            REQUIRE(table.take_from_backlog(index));
            backlog.erase(backlog.begin() + static_cast<long>(at));
          } else {
            const size_t at = any(in_ring.size());
            index = in_ring[at];
            in_ring.erase(in_ring.begin() + static_cast<long>(at));
            REQUIRE_FALSE(table.take_from_backlog(index));
          }
          table.move_to_done(index);
          done[table[index].sequence] = index;
          active.erase(table[index].sequence);
          break;
        }
        case 4: {  // a fetch
          if (done.empty()) break;
          auto one = done.begin();
          std::advance(one, any(2) == 0 ? 0 : any(done.size()));
          table.leave_fetchable(one->second);
          REQUIRE(table.release(one->second));
          done.erase(one);
          break;
        }
      }
      REQUIRE(table.backlog() == backlog.size());
      REQUIRE(table.backlog_after(kNone) == (backlog.empty() ? kNone : backlog.front()));
      REQUIRE(table.fetchable() == active.size() + done.size());
      REQUIRE(table.done() == done.size());
      REQUIRE(table.oldest_active() == (active.empty() ? kNone : active.begin()->second));
      REQUIRE(table.oldest_done() == (done.empty() ? kNone : done.begin()->second));
    }
    table.reset();
    CHECK(table.fetchable() == 0);
    for (uint32_t i = 0; i < kCount; ++i) REQUIRE(table.take_free() != kNone);
  }
}

TEST_CASE("a waiter leaves the list of its kind and of its command together") {
  using lunar::cblk::Waiter;
  using lunar::cblk::WaitQueue;
  WaitQueue queue;
  Waiter* of_command = nullptr;
  Waiter first(Waiter::kCommand, &of_command), second(Waiter::kCommand, &of_command), any(Waiter::kAny);
  for (Waiter* waiter : {&first, &second, &any}) queue.enqueue(waiter);
  queue.dequeue(&first);
  queue.dequeue(&first);  // once more: nothing
  CHECK(of_command == &second);
  CHECK(queue.first(Waiter::kCommand) == &second);
  queue.signal_list(&of_command);
  CHECK(of_command == nullptr);
  CHECK(queue.first(Waiter::kCommand) == nullptr);
  CHECK(second.signal.load() == 1);
  CHECK(first.signal.load() == 0);
  queue.signal_all(Waiter::kAny);
  CHECK(any.signal.load() == 1);
  queue.take_wakes().wake();
  queue.signal_one(Waiter::kAny);  // none is there
}
