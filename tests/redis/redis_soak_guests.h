// SPDX-License-Identifier: Apache-2.0
// Further clients of the soak test, of one thread each:
//
//   SoakStrings   strings of its own. `expiring`: each batch of them has its end, by the wall
//                 clock; else rounds in which most are deleted at random and written anew with
//                 another size, so that the heap is full of holes
//   SoakLimitedUser   a user that may read some keys and nothing else: it tries what it may not,
//                     and gets NOPERM. The
//                 owners of the keys see that nothing has changed
//
// Idea of SoakStrings. What a key may be is a list of states: one when all is acknowledged, and one
// more for each write whose reply has not come. A read must be one of them, at its time: a key is
// there until its end, and is not behind it; which of both in between the read's own time decides.
//
// Threading: a thread each; run() until told to stop. What they share with the others is in Board.
#pragma once
#include <algorithm>
#include <chrono>
#include <random>

#include "redis_soak_wire.h"

namespace e2e {

class SoakStrings : public SoakWire {
 public:
  struct Plan {
    const char* prefix;
    uint64_t keys;
    uint64_t life_ms_max;  // 0: keys do not expire
    unsigned pause_ms;
  };
  SoakStrings(Board& board, const Plan& plan, uint64_t seed)
      : SoakWire(board),
        plan_(plan),
        keys_(plan.keys, {State{}}),
        random_(seed * 64 + plan.prefix[0]) {}

  void run() {
    SoakWire::run([this] { return connect(); },
                  [this] {
                    exchange(plan_.life_ms_max != 0 ? next_due() : next_round());
                    usleep(static_cast<useconds_t>(1 + random_() % (1000 * plan_.pause_ms + 1)));
                  });
  }

  // Reads every key on the server that there is now. False: the connection was lost.
  bool verify_all() {
    if (!connect()) return false;
    for (uint64_t first = 0; first < keys_.size() && connection_ != nullptr; first += kBatch) {
      std::vector<Op> batch;
      for (uint64_t key = first; key < std::min(first + kBatch, keys_.size()); ++key)
        batch.push_back({key, true, {}});
      exchange(batch);
    }
    return connection_ != nullptr;
  }

  uint64_t writes() const { return writes_; }
  uint64_t reads() const { return reads_; }
  uint64_t expired() const { return expired_; }  // keys that were seen to have gone at their end
  uint64_t rounds() const { return round_; }

 private:
  static constexpr uint64_t kBatch = 40, kNever = ~uint64_t{0};
  // the server's clock is read once a command, in whole milliseconds
  static constexpr uint64_t kClockMs = 2;
  struct State {
    uint64_t version = 0;  // 0: there is no key
    size_t bytes = 0;
    uint64_t due_ms = kNever;
  };
  struct Op {
    uint64_t key;
    bool read;
    State wanted;
  };

  static uint64_t wall_ms() {
    using namespace std::chrono;
    return static_cast<uint64_t>(
        duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
  }
  std::string name(uint64_t key) const { return fmt::format("{}:{}", plan_.prefix, key); }
  static std::string text(uint64_t key, const State& state) {
    return content(key, state.version, state.bytes);
  }

  Words words(const Op& op) const {
    if (op.read) return {"GET", name(op.key)};
    if (op.wanted.version == 0) return {"UNLINK", name(op.key)};
    Words result{"SET", name(op.key), text(op.key, op.wanted)};
    if (op.wanted.due_ms != kNever)
      result.insert(result.end(), {"PXAT", std::to_string(op.wanted.due_ms)});
    return result;
  }

  // A key is in a batch once.
  void exchange(const std::vector<Op>& batch) {
    const uint64_t begun_ms = wall_ms();
    for (const Op& op : batch) {
      if (!op.read) keys_[op.key].push_back(op.wanted);
      send(words(op));
    }
    for (const Op& op : batch) {
      const Reply r = receive();
      if (!r) return;
      if (r->type == REDIS_REPLY_ERROR) {
        if (!board_.lossy.load())
          board_.fail(fmt::format("{} {}: error reply '{}'", words(op)[0], name(op.key), r->str));
      } else if (op.read) {
        check(op.key, *r, begun_ms, wall_ms());
      } else {
        ++writes_;
        keys_[op.key] = {op.wanted};
      }
    }
  }

  void check(uint64_t key, const redisReply& r, uint64_t from_ms, uint64_t to_ms) {
    ++reads_;
    std::vector<State>& states = keys_[key];
    const bool there = r.type == REDIS_REPLY_STRING;
    const std::string got = plain_text(&r);
    for (const State& state : states) {
      const bool gone = state.version == 0 || to_ms + kClockMs >= state.due_ms;
      const bool alive =
          state.version != 0 && (state.due_ms == kNever || from_ms < state.due_ms + kClockMs);
      if (there ? !alive || got != text(key, state) : !gone) continue;
      expired_ += !there && state.version != 0;
      const State is = there ? state : State{};
      states = {is};
      return;
    }
    std::string may;
    for (const State& state : states)
      may += fmt::format(" version {} of {} bytes until {};", state.version, state.bytes,
                         state.due_ms);
    board_.fail(fmt::format("{} is '{}' from {} to {} ms; may be{}", name(key), brief(got), from_ms,
                            to_ms, may));
  }

  // Keys next to each other, which end together, and reads of others.
  std::vector<Op> next_due() {
    const uint64_t first = random_() % keys_.size(),
                   due = wall_ms() + 50 + random_() % plan_.life_ms_max;
    const bool read = random_() % 2 == 0;
    std::vector<Op> batch;
    for (uint64_t i = 0; i < std::min(kBatch, keys_.size()); ++i)
      batch.push_back({(first + i) % keys_.size(), read, {++version_, 1000, due}});
    return batch;
  }

  // All are written, 7 of 8 deleted at random, and what is left is read, before the next round has
  // another size.
  std::vector<Op> next_round() {
    static constexpr size_t kSizes[] = {1000, 2100, 700, 3500, 300};
    if (at_ == order_.size()) {
      order_.resize(keys_.size());
      for (uint64_t key = 0; key < keys_.size(); ++key) order_[key] = key;
      std::shuffle(order_.begin(), order_.end(), random_);
      at_ = 0;
      part_ = static_cast<Part>((part_ + 1) % kParts);
      if (part_ == kDrop) order_.resize(std::max<size_t>(1, order_.size() / 8 * 7));
      round_ += part_ == kFill;
    }
    std::vector<Op> batch;
    for (; batch.size() < kBatch && at_ < order_.size(); ++at_) {
      const State wanted{part_ == kFill ? ++version_ : 0, kSizes[round_ % std::size(kSizes)],
                         kNever};
      batch.push_back({order_[at_], part_ == kRead, wanted});
    }
    return batch;
  }

  enum Part { kRead, kFill, kDrop, kParts };
  const Plan plan_;
  std::vector<std::vector<State>> keys_;
  std::mt19937_64 random_;
  std::vector<uint64_t> order_;
  size_t at_ = 0;
  Part part_ = kRead;
  uint64_t version_ = 0, round_ = 0, writes_ = 0, reads_ = 0, expired_ = 0;
};

class SoakLimitedUser : public SoakWire {
 public:
  // For the server's command line.
  static constexpr const char* kUser = "--user limited on >sesame %R~key:1* +@read -scan +auth";

  SoakLimitedUser(Board& board, uint64_t keys, unsigned pause_ms, uint64_t seed)
      : SoakWire(board), keys_(keys), pause_ms_(pause_ms), random_(seed) {}
  void run() {
    SoakWire::run([this] { return connect() && is_let_in(); },
                  [this] {
                    for (unsigned i = 0; i < 20; ++i) send(next());
                    for (unsigned i = 0; i < 20; ++i)
                      if (!is_refused()) return;
                    usleep(static_cast<useconds_t>(1 + random_() % (1000 * pause_ms_ + 1)));
                  });
  }
  uint64_t refused() const { return refused_; }

 private:
  bool is_let_in() {
    send({"AUTH", "limited", "sesame"});
    const Reply r = receive();
    if (r && r->type == REDIS_REPLY_STATUS) return true;
    if (r) board_.fail(fmt::format("the limited user is not let in: '{}'", plain_text(r.get())));
    hang_up();
    return false;
  }
  // False: the connection is lost.
  bool is_refused() {
    const Reply r = receive();
    if (!r) return false;
    const bool refused = r->type == REDIS_REPLY_ERROR && strncmp(r->str, "NOPERM", 6) == 0;
    if (!refused)
      board_.fail(fmt::format("the limited user is answered '{}'", brief(plain_text(r.get()))));
    refused_ += refused;
    return true;
  }
  Words next() {
    const std::string key = fmt::format("key:{}", random_() % keys_),
                      other = fmt::format("key:2{}", random_() % keys_);
    switch (random_() % 9) {
      case 0:
        return {"SET", key, "not for this user"};
      case 1:
        return {"DEL", key, other};
      case 2:
        return {"GET", other};
      case 3:
        return {"MGET", key, other};
      case 4:
        return {"HSET", key, "field 1", "x"};
      case 5:
        return {"RPUSH", key, "x"};
      case 6:
        return {"EVAL", "return redis.call('DEL', KEYS[1])", "1", key};
      case 7:
        return {"PEXPIRE", key, "1"};
      default:
        return {"FLUSHALL"};
    }
  }

  const uint64_t keys_;
  const unsigned pause_ms_;
  std::mt19937_64 random_;
  uint64_t refused_ = 0;
};

}  // namespace e2e
