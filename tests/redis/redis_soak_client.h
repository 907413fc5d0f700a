// SPDX-License-Identifier: Apache-2.0
// A client of the soak test: owns keys, knows what the server must hold for each, checks every
// reply against it, and finds out after a lost connection which of its unanswered writes have
// happened.
//
// Idea. Of the steps (commands, or MULTI..EXEC) that were sent and not answered, the server has
// done the first k for some k, in order, each whole or not at all: the only freedom it has. After a
// reconnect the keys they touch are read, and some k must explain all of them at once.
//
// Threading: a thread each; run() until told to stop. What it shares with the others is in Board.
#pragma once
#include <atomic>
#include <map>
#include <random>

#include "redis_soak_wire.h"

namespace e2e {

// The items of a key. string: {0: version}; hash: field -> version; list: place -> version; sorted
// set: member -> score; set: member -> anything. No items: no key.
using Value = std::map<uint64_t, uint64_t>;

enum class Verb : uint8_t { kFill, kPut, kTake, kDelete };

struct Write {
  Verb verb;
  uint64_t key, part, version;
};

// One command, or several in MULTI..EXEC.
struct Step {
  std::vector<Write> writes;  // none: a read of `key`
  uint64_t key = 0;
  bool transaction = false;
};

struct SoakCounts {
  uint64_t writes = 0, reads = 0, connections = 0, in_doubt = 0, happened = 0, errors = 0;
};

class SoakClient : public SoakWire {
 public:
  SoakClient(Board& board, unsigned index, uint64_t first_key, uint64_t keys, uint64_t seed,
             unsigned pause_ms)
      : SoakWire(board),
        first_key_(first_key),
        pause_us_(pause_ms * 1000),
        values_(keys),
        random_(seed * 64 + index) {}

  // Fills its keys, then reads and writes until board.stop.
  void run() {
    SoakWire::run([this] { return reconnect(); },
                  [this] {
                    const bool filling = filled_ < values_.size();
                    exchange(filling ? next_fill() : next_batch());
                    if (!filling && pause_us_ > 0) usleep(static_cast<useconds_t>(pick(pause_us_)));
                  });
  }

  // Reads every key on the server that there is now. False: the connection was lost.
  bool verify_all() {
    if (!reconnect()) return false;
    for (uint64_t key = 0; key < values_.size(); key += 50) {
      std::vector<Step> batch;
      for (uint64_t k = key; k < std::min<uint64_t>(key + 50, values_.size()); ++k)
        batch.push_back({{}, k, false});
      exchange(batch);
      if (connection_ == nullptr) return false;
    }
    return true;
  }

  bool filled() const { return filled_.load() >= values_.size(); }
  const SoakCounts& counts() const { return counts_; }

 private:
  enum Type { kString, kHash, kList, kZset, kSet };

  // ---- commands and what they do ----------------------------------------------------------------
  static Type type(uint64_t key) { return static_cast<Type>(key % 5); }
  // 200: not compact
  static uint64_t parts(uint64_t key) {
    return type(key) == kString ? 1 : key / 5 % 25 == 0 ? 200 : 20;
  }
  static size_t part_bytes(uint64_t key) { return kKeyBytes / parts(key); }
  std::string name(uint64_t key) const { return fmt::format("key:{}", first_key_ + key); }
  std::string text(uint64_t key, uint64_t part, uint64_t version) const {
    return content(first_key_ + key, version * 1000 + part, part_bytes(key));
  }
  static bool has_members(Type t) { return t == kZset || t == kSet; }
  std::string member(uint64_t key, uint64_t part) const {
    return fmt::format("{}:", part) + text(key, part, 0);
  }
  // A list's items do not know their places.
  std::string item(uint64_t key, uint64_t part, uint64_t version) const {
    return text(key, type(key) == kList ? 0 : part, version);
  }

  Words words(const Write& w) const {
    static const char* const kPuts[] = {"SET", "HSET", "RPUSH", "ZADD", "SADD"};
    static const char* const kTakes[] = {"DEL", "HDEL", "LPOP", "ZREM", "SREM"};
    const Type t = type(w.key);
    if (w.verb == Verb::kDelete) return {"DEL", name(w.key)};
    if (w.verb == Verb::kTake) {
      Words result{kTakes[t], name(w.key)};
      if (t == kHash) result.push_back(fmt::format("field {}", w.part));
      if (has_members(t)) result.push_back(member(w.key, w.part));
      return result;
    }
    Words result{kPuts[t], name(w.key)};
    const uint64_t first = w.verb == Verb::kFill ? 0 : w.part,
                   last = w.verb == Verb::kFill ? parts(w.key) - 1 : w.part;
    for (uint64_t part = first; part <= last; ++part) {
      if (t == kHash) result.push_back(fmt::format("field {}", part));
      if (t == kZset) result.push_back(std::to_string(w.version + part - first));
      result.push_back(has_members(t) ? member(w.key, part)
                                      : item(w.key, part, w.version + part - first));
    }
    return result;
  }
  Words read_words(uint64_t key) const {
    switch (type(key)) {
      case kString:
        return {"GET", name(key)};
      case kHash:
        return {"HGETALL", name(key)};
      case kList:
        return {"LRANGE", name(key), "0", "-1"};
      case kSet:
        return {"SMEMBERS", name(key)};
      default:
        return {"ZRANGE", name(key), "0", "-1", "WITHSCORES"};
    }
  }

  // Changes `value` as the server would; returns the integer that it answers, or the text for SET
  // and LPOP ("" : nil).
  std::string apply(const Write& w, Value* value) const {
    const Type t = type(w.key);
    const size_t before = value->size();
    if (w.verb == Verb::kDelete || (w.verb == Verb::kTake && t == kString)) {
      value->clear();
      return std::to_string(before > 0 ? 1 : 0);
    }
    if (w.verb == Verb::kTake && t == kList) {
      if (value->empty()) return "";
      const std::string popped = item(w.key, 0, value->begin()->second);
      value->erase(value->begin());
      return popped;
    }
    if (w.verb == Verb::kTake) return std::to_string(value->erase(w.part));
    const uint64_t n = w.verb == Verb::kFill ? parts(w.key) : 1;
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t place = t == kList ? (value->empty() ? 0 : value->rbegin()->first + 1)
                             : w.verb == Verb::kFill ? i
                                                     : w.part;
      (*value)[place] = w.version + i;
    }
    if (t == kString) return "OK";
    return std::to_string(t == kList ? value->size() : value->size() - before);
  }

  // ---- replies ----------------------------------------------------------------------------------
  // "" when the reply to read_words is what `value` says; else what differs.
  std::string difference(uint64_t key, const Value& value, const redisReply* r) const {
    const Type t = type(key);
    if (t == kString) {
      const std::string wanted = value.empty() ? "" : item(key, 0, value.begin()->second),
                        got = plain_text(r);
      return got == wanted ? "" : fmt::format("'{}', not '{}'", brief(got), brief(wanted));
    }
    if (r->type != REDIS_REPLY_ARRAY) return fmt::format("'{}', no array", brief(plain_text(r)));
    std::multimap<std::string, std::string> got, wanted;  // lists: by place
    const size_t step = t == kList || t == kSet ? 1 : 2;
    for (size_t i = 0; i + step <= r->elements; i += step)
      got.emplace(t == kList ? fmt::format("{:08}", i) : plain_text(r->element[i]),
                  plain_text(r->element[i + step - 1]));
    size_t place = 0;
    for (const auto& [part, version] : value) {
      if (t == kHash) wanted.emplace(fmt::format("field {}", part), item(key, part, version));
      if (t == kList) wanted.emplace(fmt::format("{:08}", place++), item(key, 0, version));
      if (t == kZset) wanted.emplace(member(key, part), std::to_string(version));
      if (t == kSet) wanted.emplace(member(key, part), member(key, part));
    }
    if (got == wanted) return "";
    for (const auto& [at, text] : wanted)
      if (const auto found = got.find(at); found == got.end() || found->second != text)
        return fmt::format("{} items, not {}; at {}: '{}', not '{}'", got.size(), wanted.size(),
                           brief(at), found == got.end() ? "nothing" : brief(found->second),
                           brief(text));
    return fmt::format("{} items, not {}", got.size(), wanted.size());
  }

  // True: an error reply, which only a LUN that loses pages excuses. The connection is given up:
  // what was done is found out anew.
  bool is_error(const redisReply* r, const Words& command) {
    if (r->type != REDIS_REPLY_ERROR) return false;
    ++counts_.errors;
    if (!board_.lossy.load())
      board_.fail(fmt::format("{} {}: error reply '{}'\n{}", command[0], command[1], r->str,
                              space_line(port_)));
    hang_up();
    return true;
  }

  // ---- the exchange -----------------------------------------------------------------------------
  // Sends all, checks the replies in order. What is unanswered when the connection ends is in
  // doubt.
  void exchange(const std::vector<Step>& batch) {
    for (const Step& step : batch) {
      if (step.transaction) send({"MULTI"});
      for (const Write& w : step.writes) send(words(w));
      if (step.transaction) send({"EXEC"});
      if (step.writes.empty()) send(read_words(step.key));
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      if (take_replies(batch[i])) continue;
      doubt_.assign(batch.begin() + static_cast<ptrdiff_t>(i), batch.end());
      std::erase_if(doubt_, [](const Step& step) { return step.writes.empty(); });
      counts_.in_doubt += doubt_.size();
      return;
    }
  }

  // False: lost before the step was answered.
  bool take_replies(const Step& step) {
    if (step.writes.empty()) {
      const Reply r = receive();
      if (!r || is_error(r.get(), read_words(step.key))) return false;
      const std::string wrong = difference(step.key, values_[step.key], r.get());
      if (!wrong.empty()) board_.fail(fmt::format("{} is {}", name(step.key), wrong));
      ++counts_.reads;
      return true;
    }
    for (size_t i = 0; step.transaction && i <= step.writes.size(); ++i) {  // OK, QUEUED...
      const Reply r = receive();
      if (!r || is_error(r.get(), {"MULTI", name(step.writes[0].key)})) return false;
    }
    const Reply r = receive();
    if (!r || is_error(r.get(), words(step.writes[0]))) return false;
    if (step.transaction && (r->type != REDIS_REPLY_ARRAY || r->elements != step.writes.size())) {
      board_.fail(fmt::format("EXEC of {} commands answers '{}'", step.writes.size(),
                              brief(plain_text(r.get()))));
      return true;
    }
    for (size_t i = 0; i < step.writes.size(); ++i) {
      const Write& w = step.writes[i];
      const std::string wanted = apply(w, &values_[w.key]),
                        got = plain_text(step.transaction ? r->element[i] : r.get());
      if (got != wanted)
        board_.fail(fmt::format("{} {} answers '{}', not '{}'", words(w)[0], name(w.key),
                                brief(got), brief(wanted)));
      ++counts_.writes;
    }
    return true;
  }

  bool reconnect() {
    if (!connect()) return false;
    if (!settle()) {
      hang_up();
      return false;
    }
    ++counts_.connections;
    return true;
  }

  // Finds k. False: the connection is lost; the doubt remains.
  bool settle() {
    if (doubt_.empty()) return true;
    std::map<uint64_t, Value> touched;
    for (const Step& step : doubt_)
      for (const Write& w : step.writes) touched[w.key] = values_[w.key];
    std::map<uint64_t, Reply> seen;
    for (const auto& [key, value] : touched) send(read_words(key));
    for (const auto& [key, value] : touched) {
      Reply r = receive();
      if (!r || is_error(r.get(), read_words(key))) return false;
      seen[key] = std::move(r);
    }
    std::string wrong, first_wrong;
    for (size_t k = 0;; ++k) {
      wrong.clear();
      for (const auto& [key, value] : touched)
        if (wrong.empty())
          if (const std::string text = difference(key, value, seen[key].get()); !text.empty())
            wrong = fmt::format("{} is {}", name(key), text);
      if (k == 0) first_wrong = wrong;
      if (wrong.empty() || k == doubt_.size()) {
        counts_.happened += wrong.empty() ? k : 0;
        break;
      }
      for (const Write& w : doubt_[k].writes) (void)apply(w, &touched[w.key]);
    }
    if (!wrong.empty())
      board_.fail(
          fmt::format("after a reconnect no number of the {} unanswered steps explains what is "
                      "there: without them {}; with all {}",
                      doubt_.size(), first_wrong, wrong));
    for (auto& [key, value] : touched) values_[key] = std::move(value);
    doubt_.clear();
    return true;
  }

  // ---- what to do next --------------------------------------------------------------------------
  uint64_t pick(uint64_t n) { return random_() % n; }
  // Of as many items as a key has: a fill gives each the next one.
  uint64_t new_version(uint64_t key) { return version_ += parts(key); }

  std::vector<Step> next_fill() {
    std::vector<Step> batch;
    for (; batch.size() < 20 && filled_ < values_.size(); ++filled_)
      if (values_[filled_].empty())
        batch.push_back({{{Verb::kFill, filled_, 0, new_version(filled_)}}, filled_, false});
    return batch;
  }

  Write next_write() {
    const uint64_t key = pick(values_.size()), dice = pick(100);
    const bool full = values_[key].size() >= parts(key) + 20;  // only lists grow beyond their parts
    const Verb verb = values_[key].empty() ? Verb::kFill
                      : full || dice < 30  ? Verb::kTake
                      : dice < 33          ? Verb::kDelete
                                           : Verb::kPut;
    return {verb, key, pick(parts(key)), new_version(key)};
  }

  std::vector<Step> next_batch() {
    std::vector<Step> batch;
    for (uint64_t n = pick(10) == 0 ? 30 : 1 + pick(4); n > 0; --n) {
      const uint64_t dice = pick(100);
      Step step;
      step.key = pick(values_.size());
      step.transaction = dice < 10;
      const uint64_t writes = dice < 10 ? 2 + pick(4) : dice < 55 ? 1 : 0;
      for (uint64_t i = 0; i < writes; ++i) step.writes.push_back(next_write());
      batch.push_back(std::move(step));
    }
    return batch;
  }

  const uint64_t first_key_, pause_us_;
  std::vector<Value> values_;  // as acknowledged
  std::vector<Step> doubt_;    // sent and not answered, in order
  std::atomic<uint64_t> filled_{0};
  uint64_t version_ = 0;
  std::mt19937_64 random_;
  SoakCounts counts_;
};

}  // namespace e2e
