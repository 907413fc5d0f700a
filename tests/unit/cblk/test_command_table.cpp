// SPDX-License-Identifier: Apache-2.0
// The command table of a chunk against a model: random issues, completions, fetches, late ends and
// orphans.
#include "cblk/command_table.h"

#include <time.h>

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

// Random steps of a table and of a model of it.
class History {
 public:
  explicit History(unsigned seed) : random_(seed), memory_(kCount), table_(memory_.table) {}

  void step() {
    switch (any(5)) {
      case 0:
      case 1:
        issue_one();
        break;
      case 2:
        ring_takes_one();
        break;
      case 3:
        complete_one();
        break;
      case 4:
        fetch_one();
        break;
    }
    REQUIRE(table_.backlog() == backlog_.size());
    REQUIRE(table_.backlog_after(kNone) == (backlog_.empty() ? kNone : backlog_.front()));
    REQUIRE(table_.fetchable() == active_.size() + done_.size());
    REQUIRE(table_.done() == done_.size());
    REQUIRE(table_.oldest_active() == (active_.empty() ? kNone : active_.begin()->second));
    REQUIRE(table_.oldest_done() == (done_.empty() ? kNone : done_.begin()->second));
  }

  void end() {
    table_.reset();
    CHECK(table_.fetchable() == 0);
    for (uint32_t i = 0; i < kCount; ++i) REQUIRE(table_.take_free() != kNone);
  }

 private:
  static constexpr uint32_t kCount = 37;

  size_t any(size_t size) { return std::uniform_int_distribution<size_t>(0, size - 1)(random_); }

  // Sequences of a group sometimes come out of order.
  void issue_one() {
    const bool late =
        any(8) == 0 && next_ > 3 && !active_.count(next_ - 2) && !done_.count(next_ - 2);
    const uint64_t sequence = late ? next_ - 2 : next_;
    ++next_;
    const uint32_t index = issue(table_, sequence);
    REQUIRE((index == kNone) == (active_.size() + done_.size() == kCount));
    if (index == kNone) return;
    active_[sequence] = index;
    backlog_.push_back(index);
  }

  // Not always the first.
  void ring_takes_one() {
    if (backlog_.empty()) return;
    const size_t at = any(4) == 0 ? any(backlog_.size()) : 0;
    const uint32_t before = at == 0 ? kNone : backlog_[at - 1];
    REQUIRE(table_.backlog_after(before) == backlog_[at]);
    REQUIRE(table_.take_backlog_after(before) == backlog_[at]);
    in_ring_.push_back(backlog_[at]);
    backlog_.erase(backlog_.begin() + static_cast<long>(at));
  }

  // A completion, or one in the backlog is late.
  void complete_one() {
    const bool late = any(6) == 0 && !backlog_.empty();
    if (!late && in_ring_.empty()) return;
    uint32_t index;
    if (late) {
      const size_t at = any(backlog_.size());
      index = backlog_[at];
      REQUIRE(table_.take_from_backlog(index));
      backlog_.erase(backlog_.begin() + static_cast<long>(at));
    } else {
      const size_t at = any(in_ring_.size());
      index = in_ring_[at];
      in_ring_.erase(in_ring_.begin() + static_cast<long>(at));
      REQUIRE_FALSE(table_.take_from_backlog(index));
    }
    table_.move_to_done(index);
    done_[table_[index].sequence] = index;
    active_.erase(table_[index].sequence);
  }

  void fetch_one() {
    if (done_.empty()) return;
    auto one = done_.begin();
    std::advance(one, any(2) == 0 ? 0 : any(done_.size()));
    table_.leave_fetchable(one->second);
    REQUIRE(table_.release(one->second));
    done_.erase(one);
  }

  std::mt19937 random_;
  Table memory_;
  CommandTable& table_;
  std::map<uint64_t, uint32_t> active_, done_;  // sequence, index
  std::deque<uint32_t> backlog_;
  std::vector<uint32_t> in_ring_;
  uint64_t next_ = 0;
};

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
  CHECK(t.table.find_tag(static_cast<int>(index[0]), false, &found) ==
        -EINVAL);  // it has a tag of the caller's
  CHECK(t.table.find_tag(78, true, &found) == -EINVAL);
  CHECK(t.table.find_tag(4, false, &found) == -EINVAL);
  CHECK(t.table.find_tag(-1, false, &found) == -EINVAL);
}

TEST_CASE("random histories give what a model gives") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    History history(seed);
    for (int step = 0; step < 4000; ++step) history.step();
    history.end();
  }
}

TEST_CASE("a waiter leaves the list of its kind and of its command together") {
  using lunar::cblk::Waiter;
  using lunar::cblk::WaitQueue;
  WaitQueue queue;
  Waiter* of_command = nullptr;
  Waiter first(Waiter::kCommand, &of_command), second(Waiter::kCommand, &of_command),
      any(Waiter::kAny);
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

namespace {

// A table full of reads of different blocks, in the order of their issue.
struct Reads {
  explicit Reads(uint32_t count) : of(count) {
    for (uint32_t i = 0; i < count; ++i) issue_read(i);
  }
  void issue_read(uint32_t i) {
    const uint32_t index = of.table.take_free();
    of.table[index].io = read_of(i);
    of.table[index].sequence = i;
    of.table[index].state.store(Entry::kActive);
    of.table.enter_fetchable(index);
  }
  static lunar::cblk::Io read_of(uint32_t i) {
    lunar::cblk::Io io;
    io.lba = i;
    io.blocks = 1;
    return io;
  }
  Table of;
};

// Nanoseconds of CPU a look-up, of the quickest of some rounds.
double cost_of_looks(uint32_t count) {
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    Reads reads(count);
    timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t found = kNone;
      if (reads.of.table.find_like(-1, Reads::read_of(i), &found) != 0 ||
          reads.of.table[found].io.lba != i)
        return 1e9;
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    const double ns = static_cast<double>(to.tv_sec - from.tv_sec) * 1e9 +
                      static_cast<double>(to.tv_nsec - from.tv_nsec);
    least = std::min(least, ns / count);
  }
  return least;
}

}  // namespace

TEST_CASE(
    "a look by contents finds each of its kind, whatever the order and whatever is over "
    "meanwhile") {
  constexpr uint32_t kCount = 64;
  Reads reads(kCount);
  CommandTable& table = reads.of.table;
  uint32_t found = kNone;
  for (uint32_t i : {7u, 8u, 40u, 3u, 9u, 63u, 0u}) {
    REQUIRE(table.find_like(-1, Reads::read_of(i), &found) == 0);
    CHECK(table[found].io.lba == i);
  }
  // the command behind the last one found has ended, and another command has its entry
  REQUIRE(table.find_like(-1, Reads::read_of(20), &found) == 0);
  REQUIRE(table.find_like(-1, Reads::read_of(21), &found) == 0);
  const uint32_t behind = 22;
  uint32_t index = kNone;
  REQUIRE(table.find_like(static_cast<int>(behind), Reads::read_of(behind), &index) == 0);
  table.move_to_done(index);
  table.leave_fetchable(index);
  REQUIRE(table.release(index));
  CHECK(table.find_like(-1, Reads::read_of(behind), &found) == -ENOMSG);
  reads.issue_read(kCount);
  REQUIRE(table.find_like(-1, Reads::read_of(21), &found) == 0);
  REQUIRE(table.find_like(-1, Reads::read_of(kCount), &found) == 0);
  CHECK(table[found].sequence == kCount);
}

TEST_CASE("looks by contents in the order of issue cost the same in a long list and a short one") {
  const double few = cost_of_looks(512), many = cost_of_looks(8192);
  INFO(few << " and " << many << " ns a look");
  CHECK(many < few * 5);
}
