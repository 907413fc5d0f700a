// SPDX-License-Identifier: Apache-2.0
// What the tests of the key/value engine share: contents that say whose and of which version they
// are, numbers by chance.
// Threading: no state.
// May not: be used by code that ships.
#pragma once
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "kv/store.h"
#include "superpipe/registry.h"
#include "tests/support/seed.h"
#ifndef TEST_CASE  // those of Catch2, whose FAIL a thread may reach, too: it ends the process
#include "tests/support/cases.h"
#endif

namespace kv_test {

using tier::mix;
using tier::Random;

// One in `in` lengths is of whole blocks: such values lie apart from their records.
inline uint64_t or_whole_blocks(Random& random, uint64_t in, uint64_t length) {
  return random.below(in) ? length : 4096 * (1 + random.below(3));
}

// Bytes that only this key in this version has.
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

// Of a persistent store that takes all of its device.
inline lunar::kv::StoreOptions kept_options(lunar::Device* device, lunar::kv::Contents contents,
                                            lunar::kv::Durability durability,
                                            bool read_only = false) {
  lunar::kv::StoreOptions options;
  options.device = device;
  options.contents = contents;
  options.durability = read_only ? lunar::kv::Durability::kFlush : durability;
  options.log_bytes = 0;
  options.read_only = read_only;
  return options;
}

// What of a store outlives its opens: the memory that its device has.
template <class D>
struct KeptStore {
  std::vector<char> memory;
  D device;
  lunar::kv::Store* store = nullptr;
  lunar::kv::Durability durability = lunar::kv::Durability::kFlush;
  explicit KeptStore(uint64_t bytes) : memory(bytes), device(memory.data(), bytes) {}
  ~KeptStore() { close(); }
  KeptStore(const KeptStore&) = delete;
  KeptStore& operator=(const KeptStore&) = delete;
  void close() {
    if (store) store->close();
    store = nullptr;
  }
};

inline lunar::kv::Store* open_store(const lunar::kv::StoreOptions& options) {
  lunar::ErrorText why;
  lunar::kv::Store* store = nullptr;
  if (lunar::kv::Store::open(options, &store, &why) < 0) FAIL(why.text);
  return store;
}

// The value of a key that no thread changes; "none": there is none.
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

// Where the log lies: nullptr (DRAM) when the arguments name no --device URI. The kernel ends the
// rings of a killed process in the background, and has its locks until then: on a busy machine for
// longer than the second that an open waits. So one that is in use is opened again.
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

// An empty file, whatever was there.
inline void make_file(const char* path, uint64_t bytes) {
  FILE* file = fopen(path, "w");
  if (!file || ftruncate(fileno(file), static_cast<off_t>(bytes)) != 0 || fclose(file) != 0)
    FAIL(std::string("cannot make ") + path);
}

}  // namespace kv_test
