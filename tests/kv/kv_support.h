// SPDX-License-Identifier: Apache-2.0
// Helpers of the key/value engine's tests: contents that name their key and version, stores on
// memory, sweeps.
// Threading: no state.
// May not: be used by code that ships.
#pragma once
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/inspect.h"
#include "kv/store.h"
#include "superpipe/registry.h"
#include "tests/support/lun_device.h"
#include "tests/support/meanwhile.h"
#include "tests/support/seed.h"
#ifndef TEST_CASE  // Catch2's macros, if a test uses them; its FAIL in a thread ends the process
#include "tests/support/cases.h"
#endif

namespace kv_test {

using tier::mix;
using tier::Random;

// One in `in` lengths becomes a number of whole blocks; such a value lies apart from its record.
inline uint64_t or_whole_blocks(Random& random, uint64_t in, uint64_t length) {
  return random.below(in) ? length : 4096 * (1 + random.below(3));
}

// Bytes that no other key or version has.
inline void fill(std::string* out, uint64_t key, uint64_t version, uint64_t length) {
  out->resize(length);
  uint64_t word = mix(key * 0x9e3779b97f4a7c15 ^ version);
  for (uint64_t i = 0; i < length; i += 8) {
    const uint64_t value = mix(word += 0x9e3779b97f4a7c15);
    memcpy(out->data() + i, &value, length - i < 8 ? length - i : 8);
  }
}

inline lunar::kv::Bytes bytes_of(const std::string& text) { return {text.data(), text.size()}; }
inline std::string text_of(lunar::kv::Bytes bytes) {
  return {static_cast<const char*>(bytes.data), bytes.size};
}

// A store that takes its whole device, with small limits, so that little work reaches them.
inline lunar::kv::StoreOptions small(
    lunar::Device* device, lunar::kv::Contents contents = lunar::kv::Contents::kNew,
    lunar::kv::Durability durability = lunar::kv::Durability::kFlush) {
  lunar::kv::StoreOptions options;
  options.device = device;
  options.contents = contents;
  options.durability = durability;
  options.log_bytes = 0;
  options.segment_bytes = 64 * lunar::kKiB;
  options.dram_bytes = 4 * lunar::kMiB;
  options.expected_keys = 16;
  options.shards = 4;
  return options;
}

inline lunar::kv::Store* open_store(const lunar::kv::StoreOptions& options) {
  lunar::ErrorText why;
  lunar::kv::Store* store = nullptr;
  if (lunar::kv::Store::open(options, &store, &why) < 0) FAIL(why.text);
  return store;
}

// A store on memory, its device and its options. While it is closed `memory` may be replaced, also
// by another length.
struct Bed {
  std::vector<char> memory;
  lunar_test::MemoryDevice device;
  lunar::kv::StoreOptions options = small(&device);  // of the next open
  lunar::kv::Store* store = nullptr;
  lunar::ErrorText why;
  explicit Bed(uint64_t bytes) : memory(bytes), device(memory.data(), bytes) {}
  ~Bed() { close(); }
  Bed(const Bed&) = delete;
  Bed& operator=(const Bed&) = delete;

  int try_open(lunar::kv::Contents contents, bool read_only = false, bool salvage = false) {
    close();
    why.text[0] = 0;
    device.move_to(memory.data(), memory.size());
    lunar::kv::StoreOptions now = options;
    now.contents = contents;
    now.read_only = read_only;
    now.salvage = salvage;
    if (read_only) now.durability = lunar::kv::Durability::kFlush;
    return lunar::kv::Store::open(now, &store, &why);
  }
  lunar::kv::Store* open(lunar::kv::Contents contents, bool read_only = false,
                         bool salvage = false) {
    if (try_open(contents, read_only, salvage) < 0) FAIL(why.text);
    return store;
  }
  lunar::kv::Store* open(lunar::kv::Contents contents, lunar::kv::Durability durability) {
    options.durability = durability;
    return open(contents);
  }
  void close() {  // the device fails no more
    if (store) store->close();
    store = nullptr;
    device.fail_after = -1;
  }
};

// Keys that an index of 4 shards with 4 bits each cannot distinguish, because an entry has only 24
// bits of the hash and the record's address.
inline std::vector<std::pair<std::string, std::string>> look_alikes(size_t pairs) {
  std::unordered_map<uint64_t, std::string> seen;
  std::vector<std::pair<std::string, std::string>> out;
  for (uint64_t number = 0; out.size() < pairs; ++number) {
    const std::string key = "key " + std::to_string(number);
    const uint64_t hash = lunar::kv::hash_of(bytes_of(key));
    const auto [other, fresh] = seen.emplace((hash & 0xfffffff) | hash >> 62 << 28, key);
    if (!fresh) out.emplace_back(other->second, key);
  }
  return out;
}

// The value of a key that no thread changes; "none" if there is no value.
inline std::string value_of(lunar::kv::Store* store, const std::string& key) {
  const int64_t length = store->exists(bytes_of(key));
  if (length < 0) return "none";
  std::string value(static_cast<uint64_t>(length), 0);
  if (store->get(bytes_of(key), value.data(), value.size(), 0) != length) FAIL("get of " + key);
  return value;
}

inline void check_store(lunar::kv::Store* store) {
  lunar::ErrorText why;
  if (store->validate(&why) < 0) FAIL(why.text);
}

// The result of a sweep.
struct Swept {
  struct Named {
    std::string what, fault, key;  // key "": it cannot be read
    bool pair_lost;
    uint64_t bytes;
  };
  std::map<std::string, std::string> pairs;
  uint64_t given = 0;  // calls with a pair; more than pairs if a key came twice
  std::vector<Named> damages;
  lunar::kv::CheckReport report;

  // Damages whose name begins so.
  uint64_t count(const std::string& what) const {
    uint64_t out = 0;
    for (const Named& one : damages) out += one.what.find(what) == 0 ? 1 : 0;
    return out;
  }
  // Their keys.
  std::set<std::string> keys(const std::string& what = "") const {
    std::set<std::string> out;
    for (const Named& one : damages)
      if (one.what.find(what) == 0) out.insert(one.key);
    return out;
  }
};

// with_pairs: also the keys and values.
inline Swept sweep_of(lunar::kv::Store* store, bool with_pairs = true) {
  Swept out;
  lunar::kv::Sweep sweep;
  sweep.context = &out;
  sweep.on_damage = [](void* context, const lunar::kv::Damage& damage) {
    static_cast<Swept*>(context)->damages.push_back({damage.what, damage.fault,
                                                     damage.key_readable ? text_of(damage.key) : "",
                                                     damage.pair_lost, damage.bytes});
  };
  const auto note = [](void* context, lunar::kv::Bytes key, lunar::kv::Bytes value) {
    auto& to = *static_cast<Swept*>(context);
    to.pairs.emplace(text_of(key), text_of(value));
    return ++to.given != 0;
  };
  if (with_pairs) sweep.on_pair = note;
  if (store->sweep(sweep, &out.report) != 0) FAIL("a sweep does not come to its end");
  return out;
}

// The log's device; nullptr (DRAM) without a URI. The kernel ends the rings of a killed process in
// the background and holds its locks until then, on a busy machine longer than the second that an
// open waits. So a device in use is tried again.
inline lunar::Device* open_device(const char* uri, uint64_t bytes) {
  if (!uri) return nullptr;
  lunar::DeviceOptions options;
  options.want_bytes = bytes;
  lunar::ErrorText why;
  lunar::Device* device = nullptr;
  int status;
  do status = lunar::device_open(uri, options, &device, &why);
  while (status == -EBUSY);
  if (status < 0) FAIL(why.text);
  return device;
}

// Replaces any file of that name.
inline void make_file(const char* path, uint64_t bytes) {
  FILE* file = fopen(path, "w");
  if (!file || ftruncate(fileno(file), static_cast<off_t>(bytes)) != 0 || fclose(file) != 0)
    FAIL(std::string("cannot make ") + path);
}

}  // namespace kv_test
