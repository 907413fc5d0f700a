// SPDX-License-Identifier: Apache-2.0
// A store of libarkdb, Lunar's or IBM's, through arkdb.h only. The library is opened by its path.
#include <arkdb.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "tools/bench/kv/kv_system.h"

namespace lunar::tools {

namespace {

constexpr int kStoreThreads = 20, kCommandsMax = 8192, kBlocksMax = 400;

struct ArkCalls {
  explicit ArkCalls(const std::string& path) {
    // The library stays open, because its threads may outlive all users.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(fmt::format("{}: {}", path, dlerror()));
    const auto find = [&](auto** out, const char* name) {
      *reinterpret_cast<void**>(out) = dlsym(library, name);
      if (!*out) throw std::runtime_error(fmt::format("{} has no {}", path, name));
    };
    find(&create, "ark_create_verbose");
    find(&remove, "ark_delete");
    find(&set, "ark_set");
    find(&get, "ark_get");
    find(&set_async, "ark_set_async_cb");
    find(&get_async, "ark_get_async_cb");
    find(&flush, "ark_flush");
    find(&in_use, "ark_inuse");
    find(&allocated, "ark_allocated");
  }
  decltype(ark_create_verbose)* create;
  decltype(ark_delete)* remove;
  decltype(ark_set)* set;
  decltype(ark_get)* get;
  decltype(ark_set_async_cb)* set_async;
  decltype(ark_get_async_cb)* get_async;
  decltype(ark_flush)* flush;
  decltype(ark_inuse)* in_use;
  decltype(ark_allocated)* allocated;
};

// arkdb.h has no const, also for keys and values that it does not change.
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
  ArkSession(const ArkCalls& calls, ARK* ark, size_t value_bytes)
      : calls_(calls), ark_(ark), bytes_(value_bytes) {}
  int get(const KvKey& key, char* value, int64_t* length) override {
    return calls_.get(ark_, key.size(), plain(key.data()), bytes_, value, 0, length);
  }
  int set(const KvKey& key, const char* value) override {
    int64_t length;
    return calls_.set(ark_, key.size(), plain(key.data()), bytes_, plain(value), &length);
  }
  int start_get(const KvKey& key, char* value, KvDone* done) override {
    return calls_.get_async(ark_, key.size(), plain(key.data()), bytes_, value, 0, call_back,
                            reinterpret_cast<uint64_t>(done));
  }
  int start_set(const KvKey& key, const char* value, KvDone* done) override {
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
  explicit ArkSystem(const KvSetup& setup) : setup_(setup), calls_(setup.library) {
    setenv("LUNAR_KV_DRAM", fmt::format("{}", setup.dram_bytes).c_str(), 1);
    if (!setup.place.empty())
      setenv("LUNAR_KV_SIZE", fmt::format("{}", setup.place_bytes).c_str(), 1);
    if (setup.durability != "flush") setenv("LUNAR_KV_DURABILITY", setup.durability.c_str(), 1);
    std::string place = setup.place;
    const int code = calls_.create(place.empty() ? nullptr : place.data(), &ark_, setup.place_bytes,
                                   4096, setup.keys, kStoreThreads, kBlocksMax, kCommandsMax,
                                   setup.kept ? ARK_KV_PERSIST_STORE : 0);
    if (code != 0)
      throw std::runtime_error(fmt::format("ark_create {}: {}", setup.place, strerror(code)));
  }
  ~ArkSystem() override { (void)calls_.remove(ark_); }
  std::unique_ptr<KvSession> connect() override {
    return std::make_unique<ArkSession>(calls_, ark_, setup_.value_bytes);
  }
  // IBM's ark_flush empties the store, so only a kept store is flushed.
  int flush() override { return setup_.kept ? calls_.flush(ark_) : 0; }
  // All allocated bytes of a full place; in another place only live bytes, because the bench chose
  // its size.
  int64_t bytes_in_use() const override {
    uint64_t bytes;
    return (setup_.full ? calls_.allocated : calls_.in_use)(ark_, &bytes) == 0
               ? static_cast<int64_t>(bytes)
               : -1;
  }

 private:
  KvSetup setup_;
  ArkCalls calls_;
  ARK* ark_ = nullptr;
};

}  // namespace

std::unique_ptr<KvSystem> make_ark_system(const KvSetup& setup) {
  return std::make_unique<ArkSystem>(setup);
}

}  // namespace lunar::tools
