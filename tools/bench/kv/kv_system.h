// SPDX-License-Identifier: Apache-2.0
// One interface for all stores of the key/value bench, so that the same loops drive them.
// Threading: the functions of a KvSystem may be called from any thread, one at a time. A session
// belongs to one thread, except as start_get() says.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tools/bench/kv/kv_content.h"

namespace lunar::tools {

struct KvSetup {
  std::string system;  // "lunar", "rocksdb", "rocksdb-lz4", "lmdb"
  // "": in memory. Otherwise a path in the bench's directory, or (lunar) a place for ark_create.
  std::string place;
  std::string library;               // for "lunar"
  std::string durability = "flush";  // "group", "each": every write is durable
  uint64_t dram_bytes = 0, place_bytes = 0, keys = 0;
  size_t value_bytes = 0;
  bool kept = false;  // for "lunar": ARK_KV_PERSIST_STORE
  bool full = false;  // for "lunar": its place is only as large as the pairs need
};

// One asynchronous call. It must live until `run` is called, on any thread. `run` may start the
// next call.
struct KvDone {
  void (*run)(KvDone* self, int code, int64_t length) = nullptr;
};

// get() and set() return 0 or a positive errno.
class KvSession {
 public:
  virtual ~KvSession() = default;
  virtual int get(const KvKey& key, char* value, int64_t* length) = 0;
  virtual int set(const KvKey& key, const char* value) = 0;
  // Sets pairs in batches if the store has them, else one after the other. `value` is a buffer for
  // one value.
  virtual int set_many(const std::vector<uint64_t>& numbers, const KvContent& content,
                       char* value) {
    for (const uint64_t number : numbers) {
      content.fill(number, 1, value);
      if (const int code = set(content.key(number), value); code != 0) return code;
    }
    return 0;
  }
  // Only for Lunar. 0: `done` will be called, and `key` and `value` must live until then. EAGAIN:
  // too many calls are in flight. Call it from the session's thread or from a `run`.
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
  // Makes all sets durable, if the setup says so. 0 or errno.
  virtual int flush() = 0;
  // Waits for background work (compaction, write-back), which is not measured.
  virtual void settle() {}
  // Bytes of the place or memory; -1: the sum of the store's files.
  virtual int64_t bytes_in_use() const { return -1; }
};

// These throw std::runtime_error with the reason.
std::unique_ptr<KvSystem> make_ark_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_rocksdb_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_lmdb_system(const KvSetup& setup);
inline std::unique_ptr<KvSystem> make_kv_system(const KvSetup& setup) {
  if (setup.system == "lunar") return make_ark_system(setup);
  return setup.system == "lmdb" ? make_lmdb_system(setup) : make_rocksdb_system(setup);
}

}  // namespace lunar::tools
