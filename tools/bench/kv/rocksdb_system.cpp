// SPDX-License-Identifier: Apache-2.0
// RocksDB, set up as its wiki says for point lookups: full bloom filters of 10 bits (none for the last level: every key
// that is asked for is there), hash indexes in the blocks, index and filters in the block cache, direct I/O.
//
// The DRAM budget goes to two memtables and the block cache: a quarter and a half for a load (compaction wants the
// rest), which ends with a full compaction (untimed), an eighth and the rest from then on. Durable at a flush: no
// write-ahead log, and a flush of the memtables; every write: a synced log, which concurrent writers share, and loads
// without batches.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include <fmt/format.h>

#include <cerrno>
#include <stdexcept>

#include "tools/bench/kv/kv_system.h"

#ifdef LUNAR_HAVE_ROCKSDB
#include <rocksdb/c.h>
#include <rocksdb/version.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace lunar::tools {

namespace {

constexpr size_t kLoadBatch = 100;
constexpr double kFilterBits = 10;
constexpr int kBackgroundThreads = 2;
constexpr int kBinaryAndHash = 1;  // of a data block's index

struct RocksCalls {
  explicit RocksCalls(const OpenLibrary& library);
  // clang-format off: each run would move one more of them to a line of its own
#define LUNAR_ROCKSDB_CALLS(X) \
  X(open) \
  X(close) \
  X(get_pinned) \
  X(pinnableslice_value) \
  X(pinnableslice_destroy) \
  X(put) \
  X(write) \
  X(flush) \
  X(compact_range) \
  X(property_value) \
  X(free) \
  X(create_iterator) \
  X(iter_seek_to_first) \
  X(iter_valid) \
  X(iter_next) \
  X(iter_key) \
  X(iter_destroy) \
  X(writebatch_create) \
  X(writebatch_put) \
  X(writebatch_clear) \
  X(writebatch_destroy) \
  X(options_create) \
  X(options_destroy) \
  X(options_set_create_if_missing) \
  X(options_set_compression) \
  X(options_set_write_buffer_size) \
  X(options_set_max_write_buffer_number) \
  X(options_set_use_direct_reads) \
  X(options_set_use_direct_io_for_flush_and_compaction) \
  X(options_set_max_background_jobs) \
  X(options_set_optimize_filters_for_hits) \
  X(options_set_level_compaction_dynamic_level_bytes) \
  X(options_compaction_readahead_size) \
  X(options_set_memtable_whole_key_filtering) \
  X(options_set_memtable_prefix_bloom_size_ratio) \
  X(options_set_block_based_table_factory) \
  X(options_set_max_open_files) \
  X(block_based_options_create) \
  X(block_based_options_destroy) \
  X(block_based_options_set_block_cache) \
  X(block_based_options_set_filter_policy) \
  X(block_based_options_set_cache_index_and_filter_blocks) \
  X(block_based_options_set_pin_l0_filter_and_index_blocks_in_cache) \
  X(block_based_options_set_data_block_index_type) \
  X(block_based_options_set_data_block_hash_ratio) \
  X(filterpolicy_create_bloom_full) \
  X(cache_create_lru) \
  X(cache_destroy) \
  X(readoptions_create) \
  X(readoptions_destroy) \
  X(readoptions_set_readahead_size) \
  X(writeoptions_create) \
  X(writeoptions_destroy) \
  X(writeoptions_disable_WAL) \
  X(writeoptions_set_sync) \
  X(flushoptions_create) \
  X(flushoptions_destroy) \
  X(flushoptions_set_wait)
// clang-format on
#define LUNAR_DECLARE(name) decltype(rocksdb_##name)* name;
  LUNAR_ROCKSDB_CALLS(LUNAR_DECLARE)
#undef LUNAR_DECLARE
};

RocksCalls::RocksCalls(const OpenLibrary& library) {
#define LUNAR_FIND(name) library.find(&name, "rocksdb_" #name);
  LUNAR_ROCKSDB_CALLS(LUNAR_FIND)
#undef LUNAR_FIND
}
#undef LUNAR_ROCKSDB_CALLS

struct Rocks {
  RocksCalls calls;
  rocksdb_t* db = nullptr;
  rocksdb_readoptions_t* reads = nullptr;
  rocksdb_writeoptions_t* writes = nullptr;
  size_t value_bytes = 0;
};

// Takes the text over. 0, or EIO: what it was is lost but for the first, which goes to standard error.
int code_of(const RocksCalls& calls, char* error) {
  if (!error) return 0;
  static std::once_flag once;
  std::call_once(once, [&] { fmt::print(stderr, "rocksdb: {}\n", error); });
  calls.free(error);
  return EIO;
}

class RocksSession : public KvSession {
 public:
  RocksSession(const Rocks& store, size_t batch) : store_(store), batch_(batch) {}
  int get(uint64_t, const KvKey& key, char* value, int64_t* length) override {
    char* error = nullptr;
    rocksdb_pinnableslice_t* found = store_.calls.get_pinned(store_.db, store_.reads, key.data(), key.size(), &error);
    if (error) return code_of(store_.calls, error);
    if (!found) return ENOENT;
    size_t bytes;
    const char* content = store_.calls.pinnableslice_value(found, &bytes);
    memcpy(value, content, std::min(bytes, store_.value_bytes));
    store_.calls.pinnableslice_destroy(found);
    *length = static_cast<int64_t>(bytes);
    return 0;
  }
  int set(uint64_t, const KvKey& key, const char* value) override {
    char* error = nullptr;
    store_.calls.put(store_.db, store_.writes, key.data(), key.size(), value, store_.value_bytes, &error);
    return code_of(store_.calls, error);
  }
  int set_many(const std::vector<uint64_t>& numbers, const KvContent& content, char* value) override {
    rocksdb_writebatch_t* batch = store_.calls.writebatch_create();
    int code = 0;
    for (size_t at = 0; at < numbers.size() && code == 0;) {
      store_.calls.writebatch_clear(batch);
      for (size_t n = 0; n < batch_ && at < numbers.size(); ++n, ++at) {
        const KvKey key = content.key(numbers[at]);
        content.fill(numbers[at], 1, value);
        store_.calls.writebatch_put(batch, key.data(), key.size(), value, store_.value_bytes);
      }
      char* error = nullptr;
      store_.calls.write(store_.db, store_.writes, batch, &error);
      code = code_of(store_.calls, error);
    }
    store_.calls.writebatch_destroy(batch);
    return code;
  }

 private:
  const Rocks& store_;
  size_t batch_;  // pairs a write of a load
};

class RocksSystem : public KvSystem {
 public:
  explicit RocksSystem(const KvSetup& setup)
      : setup_(setup),
        library_(fmt::format("librocksdb.so.{}.{}", ROCKSDB_MAJOR, ROCKSDB_MINOR)),
        store_{RocksCalls(library_)} {
    store_.value_bytes = setup.value_bytes;
    const RocksCalls& calls = store_.calls;
    store_.reads = calls.readoptions_create();
    store_.writes = calls.writeoptions_create();
    calls.writeoptions_disable_WAL(store_.writes, setup.durability == "flush");
    calls.writeoptions_set_sync(store_.writes, setup.durability != "flush");
    flush_ = calls.flushoptions_create();
    calls.flushoptions_set_wait(flush_, 1);
    open(setup.dram_bytes / 8, setup.dram_bytes / 2);
  }
  ~RocksSystem() override {
    close();
    store_.calls.readoptions_destroy(store_.reads);
    store_.calls.writeoptions_destroy(store_.writes);
    store_.calls.flushoptions_destroy(flush_);
  }
  std::unique_ptr<KvSession> connect() override {
    return std::make_unique<RocksSession>(store_, setup_.durability == "flush" ? kLoadBatch : 1);
  }
  int flush() override {
    char* error = nullptr;
    store_.calls.flush(store_.db, flush_, &error);
    return code_of(store_.calls, error);
  }
  void settle() override;
  int scan(uint64_t at_once, const Visit& visit) override;

 private:
  void open(uint64_t memtable_bytes, uint64_t cache_bytes);
  void close();
  uint64_t property(const char* name) const;
  KvSetup setup_;
  OpenLibrary library_;
  Rocks store_;
  rocksdb_flushoptions_t* flush_ = nullptr;
  bool loaded_ = false;
};

void RocksSystem::open(uint64_t memtable_bytes, uint64_t cache_bytes) {
  const RocksCalls& calls = store_.calls;
  rocksdb_cache_t* cache = calls.cache_create_lru(cache_bytes);
  rocksdb_block_based_table_options_t* table = calls.block_based_options_create();
  calls.block_based_options_set_block_cache(table, cache);
  calls.block_based_options_set_filter_policy(table, calls.filterpolicy_create_bloom_full(kFilterBits));
  calls.block_based_options_set_cache_index_and_filter_blocks(table, 1);
  calls.block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
  calls.block_based_options_set_data_block_index_type(table, kBinaryAndHash);
  calls.block_based_options_set_data_block_hash_ratio(table, 0.75);
  rocksdb_options_t* options = calls.options_create();
  calls.options_set_create_if_missing(options, 1);
  calls.options_set_block_based_table_factory(options, table);
  calls.options_set_compression(options,
                                setup_.system == "rocksdb-lz4" ? rocksdb_lz4_compression : rocksdb_no_compression);
  calls.options_set_write_buffer_size(options, memtable_bytes);
  calls.options_set_max_write_buffer_number(options, 2);
  calls.options_set_memtable_prefix_bloom_size_ratio(options, 0.02);
  calls.options_set_memtable_whole_key_filtering(options, 1);
  calls.options_set_use_direct_reads(options, 1);
  calls.options_set_use_direct_io_for_flush_and_compaction(options, 1);
  calls.options_compaction_readahead_size(options, 2 << 20);
  calls.options_set_max_background_jobs(options, kBackgroundThreads);
  calls.options_set_optimize_filters_for_hits(options, 1);
  calls.options_set_level_compaction_dynamic_level_bytes(options, 1);
  calls.options_set_max_open_files(options, -1);
  char* error = nullptr;
  store_.db = calls.open(options, setup_.place.c_str(), &error);
  calls.options_destroy(options);
  calls.block_based_options_destroy(table);
  calls.cache_destroy(cache);  // the store holds it
  if (!error) return;
  const std::string why = error;
  calls.free(error);
  throw std::runtime_error("RocksDB: " + why);
}

void RocksSystem::close() {
  if (store_.db) store_.calls.close(store_.db);
  store_.db = nullptr;
}

uint64_t RocksSystem::property(const char* name) const {
  char* text = store_.calls.property_value(store_.db, name);
  const uint64_t value = text ? strtoull(text, nullptr, 10) : 0;
  if (text) store_.calls.free(text);
  return value;
}

void RocksSystem::settle() {
  (void)flush();
  if (!loaded_) {
    store_.calls.compact_range(store_.db, nullptr, 0, nullptr, 0);
    close();
    open(setup_.dram_bytes / 16, setup_.dram_bytes / 8 * 7);
    loaded_ = true;
  }
  while (property("rocksdb.compaction-pending") + property("rocksdb.num-running-compactions") +
             property("rocksdb.num-running-flushes") >
         0)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

int RocksSystem::scan(uint64_t, const Visit& visit) {
  const RocksCalls& calls = store_.calls;
  rocksdb_readoptions_t* reads = calls.readoptions_create();
  calls.readoptions_set_readahead_size(reads, 2 << 20);
  rocksdb_iterator_t* iterator = calls.create_iterator(store_.db, reads);
  calls.iter_seek_to_first(iterator);
  for (bool more = true; more && calls.iter_valid(iterator); calls.iter_next(iterator)) {
    size_t bytes;
    const char* key = calls.iter_key(iterator, &bytes);
    more = visit({key, bytes});
  }
  calls.iter_destroy(iterator);
  calls.readoptions_destroy(reads);
  return 0;
}

}  // namespace

std::unique_ptr<KvSystem> make_rocksdb_system(const KvSetup& setup) { return std::make_unique<RocksSystem>(setup); }

}  // namespace lunar::tools
#else
namespace lunar::tools {
std::unique_ptr<KvSystem> make_rocksdb_system(const KvSetup&) {
  throw std::runtime_error("built without RocksDB: apt-get install librocksdb-dev, and build again");
}
}  // namespace lunar::tools
#endif
