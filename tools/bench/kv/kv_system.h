// SPDX-License-Identifier: Apache-2.0
// The stores that the key/value bench compares, behind one face, so that all are driven by the same loops.
// Threading: connect() and the calls of a KvSystem from any thread, one at a time; a session belongs to one thread but
// for what its header says. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/kv/kv_content.h"

namespace lunar::tools {

struct KvSetup {
  std::string system;   // "lunar", "rocksdb", "rocksdb-lz4", "lmdb", "raw"
  std::string place;    // "": memory. A path in a directory of the bench's own, or (lunar) what ark_create takes
  std::string library;  // of "lunar"
  std::string durability = "flush";  // "group", "each": of every write
  uint64_t dram_bytes = 0, data_bytes = 0, place_bytes = 0, keys = 0;
  size_t value_bytes = 0;
  unsigned store_threads = 20,
           in_flight = 400;        // of "lunar": ark_create_verbose's nthreads; asynchronous calls at most
  bool htc = false, kept = false;  // of "lunar": ARK_KV_HTC, ARK_KV_PERSIST_STORE
};

// One asynchronous call; lives until `run` was called, on any thread. `run` may start the next call.
struct KvDone {
  void (*run)(KvDone* self, int code, int64_t length) = nullptr;
};

// Of get and set: 0 or a positive errno. Buffers are page-aligned and have room for a value rounded up to 4096 bytes.
class KvSession {
 public:
  virtual ~KvSession() = default;
  // `number` is the key's, for a store that needs no index.
  virtual int get(uint64_t number, const KvKey& key, char* value, int64_t* length) = 0;
  virtual int set(uint64_t number, const KvKey& key, const char* value) = 0;
  // Pairs at once, where a store has something for that; else one after the other.
  virtual int set_many(const std::vector<uint64_t>& numbers, const KvContent& content, char* value);
  // 0: `done` will be called; EAGAIN: too many are under way. `key` and `value` live until then. Of a system that is
  // asynchronous(). From the session's thread or from a `run`.
  virtual int start_get(uint64_t number, const KvKey& key, char* value, KvDone* done);
  virtual int start_set(uint64_t number, const KvKey& key, const char* value, KvDone* done);
  // Carries calls on until `over`; by its own thread. False: the store's own threads do that.
  virtual bool carry_on(const std::function<bool()>& over);
};

class KvSystem {
 public:
  virtual ~KvSystem() = default;
  virtual std::unique_ptr<KvSession> connect() = 0;
  virtual bool asynchronous() const { return false; }
  // All that was set is durable (where the setup says so). 0 or errno.
  virtual int flush() = 0;
  // What goes on behind a user's back comes to its end, by all means that a store has; untimed.
  virtual void settle() {}
  // All keys in any order, `at_once` a call where a call can give several, until `visit` says false. 0 or errno.
  using Visit = std::function<bool(std::string_view key)>;
  virtual int scan(uint64_t at_once, const Visit& visit) = 0;
  virtual int64_t ios() const { return -1; }           // reads and writes of the device so far; -1: not told
  virtual int64_t bytes_in_use() const { return -1; }  // of the place; -1: not told
};

// Each throws std::runtime_error: why it cannot be.
std::unique_ptr<KvSystem> make_ark_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_rocksdb_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_lmdb_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_raw_system(const KvSetup& setup);
std::unique_ptr<KvSystem> make_kv_system(const KvSetup& setup);

// A library of another project's, opened when it is needed: `lunar` itself does not depend on it.
class OpenLibrary {
 public:
  explicit OpenLibrary(const std::string& path);  // throws std::runtime_error
  template <class Function>
  void find(Function** out, const char* name) const {
    *out = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;  // throws std::runtime_error
  std::string path_;
  void* handle_;  // stays open: threads of the library's may outlive all of its users
};

}  // namespace lunar::tools
