// SPDX-License-Identifier: Apache-2.0
// The stores that the key/value bench compares, behind one face, so that all are driven by the same
// loops. Threading: connect() and the calls of a KvSystem from any thread, one at a time; a session
// belongs to one thread but for what its header says. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/bench/kv/kv_content.h"

namespace lunar::tools {

struct KvSetup {
  std::string system;   // "lunar", "rocksdb", "rocksdb-lz4", "lmdb"
  std::string place;    // "": memory. A path in a directory of the bench's own, or (lunar) what
                        // ark_create takes
  std::string library;  // of "lunar"
  std::string durability = "flush";  // "group", "each": of every write
  uint64_t dram_bytes = 0, place_bytes = 0, keys = 0;
  size_t value_bytes = 0;
  bool kept = false;  // of "lunar": ARK_KV_PERSIST_STORE
  bool full = false;  // of "lunar": its place is only as large as the pairs need
};

// One asynchronous call; lives until `run` was called, on any thread. `run` may start the next
// call.
struct KvDone {
  void (*run)(KvDone* self, int code, int64_t length) = nullptr;
};

// Of get and set: 0 or a positive errno.
class KvSession {
 public:
  virtual ~KvSession() = default;
  virtual int get(const KvKey& key, char* value, int64_t* length) = 0;
  virtual int set(const KvKey& key, const char* value) = 0;
  // Pairs at once, where a store has something for that; else one after the other. `value` is room
  // for one.
  virtual int set_many(const std::vector<uint64_t>& numbers, const KvContent& content,
                       char* value) {
    for (const uint64_t number : numbers) {
      content.fill(number, 1, value);
      if (const int code = set(content.key(number), value); code != 0) return code;
    }
    return 0;
  }
  // 0: `done` will be called; EAGAIN: too many are under way. `key` and `value` live until then. Of
  // Lunar alone. From the session's thread or from a `run`.
  virtual int start_get(const KvKey&, char*, KvDone*) {
    throw std::logic_error("no asynchronous get");
  }
  virtual int start_set(const KvKey&, const char*, KvDone*) {
    throw std::logic_error("no asynchronous set");
  }
};

class KvSystem {
 public:
  virtual ~KvSystem() = default;
  virtual std::unique_ptr<KvSession> connect() = 0;
  // All that was set is durable (where the setup says so). 0 or errno.
  virtual int flush() = 0;
  // What goes on behind a user's back comes to its end, by all means that a store has; untimed.
  virtual void settle() {}
  virtual int64_t bytes_in_use() const {  // of the place or memory; -1: what its files take
    return -1;
  }
};

// Each throws std::runtime_error: why it cannot be.
std::unique_ptr<KvSystem> make_ark_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_rocksdb_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_lmdb_system(const KvSetup& setup);
inline std::unique_ptr<KvSystem> make_kv_system(const KvSetup& setup) {
  if (setup.system == "lunar") return make_ark_system(setup);
  return setup.system == "lmdb" ? make_lmdb_system(setup) : make_rocksdb_system(setup);
}

}  // namespace lunar::tools
