// SPDX-License-Identifier: Apache-2.0
// A store of libarkdb, Lunar's or IBM's, by the calls of arkdb.h alone.
// Threading: as in the header; the library's calls are for any thread. May not be used by runtime/ (it allocates).
#include <arkdb.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tools/bench/kv/kv_system.h"

namespace lunar::tools {

namespace {

struct ArkCalls {
  explicit ArkCalls(const OpenLibrary& library) {
    library.find(&create, "ark_create_verbose");
    library.find(&remove, "ark_delete");
    library.find(&set, "ark_set");
    library.find(&get, "ark_get");
    library.find(&set_async, "ark_set_async_cb");
    library.find(&get_async, "ark_get_async_cb");
    library.find(&first, "ark_first");
    library.find(&next, "ark_next");
    library.find(&next_many, "ark_nextN");
    library.find(&flush, "ark_flush");
    library.find(&in_use, "ark_inuse");
    library.find(&stats, "ark_stats");
  }
  decltype(ark_create_verbose)* create;
  decltype(ark_delete)* remove;
  decltype(ark_set)* set;
  decltype(ark_get)* get;
  decltype(ark_set_async_cb)* set_async;
  decltype(ark_get_async_cb)* get_async;
  decltype(ark_first)* first;
  decltype(ark_next)* next;
  decltype(ark_nextN)* next_many;
  decltype(ark_flush)* flush;
  decltype(ark_inuse)* in_use;
  decltype(ark_stats)* stats;
};

// The interface takes keys and values that it does not change as plain pointers.
template <class T>
T* plain(const T* pointer) {
  return const_cast<T*>(pointer);
}

void call_back(int code, uint64_t tag, int64_t length) {
  auto* done = reinterpret_cast<KvDone*>(tag);
  done->run(done, code, length);
}

class ArkSession : public KvSession {
 public:
  ArkSession(const ArkCalls& calls, ARK* ark, size_t value_bytes) : calls_(calls), ark_(ark), bytes_(value_bytes) {}
  int get(uint64_t, const KvKey& key, char* value, int64_t* length) override {
    return calls_.get(ark_, key.size(), plain(key.data()), bytes_, value, 0, length);
  }
  int set(uint64_t, const KvKey& key, const char* value) override {
    int64_t length;
    return calls_.set(ark_, key.size(), plain(key.data()), bytes_, plain(value), &length);
  }
  int start_get(uint64_t, const KvKey& key, char* value, KvDone* done) override {
    return calls_.get_async(ark_, key.size(), plain(key.data()), bytes_, value, 0, call_back,
                            reinterpret_cast<uint64_t>(done));
  }
  int start_set(uint64_t, const KvKey& key, const char* value, KvDone* done) override {
    return calls_.set_async(ark_, key.size(), plain(key.data()), bytes_, plain(value), call_back,
                            reinterpret_cast<uint64_t>(done));
  }

 private:
  const ArkCalls& calls_;
  ARK* ark_;
  size_t bytes_;
};

class ArkSystem : public KvSystem {
 public:
  explicit ArkSystem(const KvSetup& setup) : setup_(setup), library_(setup.library), calls_(library_) {
    setenv("LUNAR_KV_DRAM", fmt::format("{}", setup.dram_bytes).c_str(), 1);
    if (!setup.place.empty()) setenv("LUNAR_KV_SIZE", fmt::format("{}", setup.place_bytes).c_str(), 1);
    if (setup.durability != "flush") setenv("LUNAR_KV_DURABILITY", setup.durability.c_str(), 1);
    const uint64_t flags = (setup.htc ? ARK_KV_HTC : 0) | (setup.kept ? ARK_KV_PERSIST_STORE : 0);
    std::string place = setup.place;
    const int code =
        calls_.create(place.empty() ? nullptr : place.data(), &ark_, setup.place_bytes, 4096, setup.keys,
                      static_cast<int>(setup.store_threads), static_cast<int>(std::max(setup.in_flight, 400u)),
                      static_cast<int>(std::max(setup.in_flight, 8192u)), flags);
    if (code != 0) throw std::runtime_error(fmt::format("ark_create {}: {}", setup.place, strerror(code)));
  }
  ~ArkSystem() override { (void)calls_.remove(ark_); }
  std::unique_ptr<KvSession> connect() override {
    return std::make_unique<ArkSession>(calls_, ark_, setup_.value_bytes);
  }
  bool asynchronous() const override { return true; }
  // IBM's empties the store.
  int flush() override { return setup_.kept ? calls_.flush(ark_) : 0; }
  int scan(uint64_t at_once, const Visit& visit) override;
  int64_t ios() const override {
    uint64_t ops, ios;
    return calls_.stats(ark_, &ops, &ios) == 0 ? static_cast<int64_t>(ios) : -1;
  }
  int64_t bytes_in_use() const override {
    uint64_t bytes;
    return calls_.in_use(ark_, &bytes) == 0 ? static_cast<int64_t>(bytes) : -1;
  }

 private:
  int scan_many(ARI* iterator, uint64_t at_once, const Visit& visit);
  KvSetup setup_;
  OpenLibrary library_;
  ArkCalls calls_;
  ARK* ark_ = nullptr;
};

int ArkSystem::scan_many(ARI* iterator, uint64_t at_once, const Visit& visit) {
  std::vector<char> keys(at_once * (sizeof(keye_t) + sizeof(KvKey)));
  for (int64_t count;;) {
    if (const int code = calls_.next_many(iterator, keys.size(), keys.data(), &count); code != 0) return code;
    const auto* entry = reinterpret_cast<const keye_t*>(keys.data());
    for (int64_t i = 0; i < count; ++i, entry = BMP_KEYE(entry))
      if (!visit({reinterpret_cast<const char*>(entry->p), entry->len})) return 0;
  }
}

// An iterator that is left before its end goes with the store.
int ArkSystem::scan(uint64_t at_once, const Visit& visit) {
  char key[256];
  int64_t length;
  ARI* iterator = calls_.first(ark_, sizeof key, &length, key);
  if (!iterator) return errno == ENOENT ? 0 : errno;
  int code = 0;
  while (code == 0 && visit({key, static_cast<size_t>(length)})) {
    if (at_once > 1) {
      code = scan_many(iterator, at_once, visit);
      break;
    }
    code = calls_.next(iterator, sizeof key, &length, key);
  }
  return code == ENOENT ? 0 : code;
}

}  // namespace

std::unique_ptr<KvSystem> make_ark_system(const KvSetup& setup) { return std::make_unique<ArkSystem>(setup); }

}  // namespace lunar::tools
