// SPDX-License-Identifier: Apache-2.0
// RocksDB, set up as its wiki says for point lookups: full bloom filters of 10 bits (none for the
// last level, because every requested key exists), hash indexes in the blocks, index and filters in
// the block cache, direct I/O.
//
// The DRAM budget is divided into two memtables and the block cache. During a load they have a
// quarter and a half (compaction needs the rest); a load ends with a full compaction, which is not
// measured. Afterwards they have an eighth and the rest. Durable at a flush: no write-ahead log,
// and a flush of the memtables. Every write durable: a synced log, which concurrent writers share,
// and loads without batches.
#include "tools/bench/kv/kv_system.h"

#ifdef LUNAR_HAVE_ROCKSDB
#include <fmt/format.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace lunar::tools {

namespace {

constexpr size_t kLoadBatch = 100;

struct Rocks {
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::WriteOptions writes;
  size_t value_bytes = 0, batch = 1;  // batch: pairs per write of a load
};

int code_of(const rocksdb::Status& status) {
  if (status.ok()) return 0;
  if (status.IsNotFound()) return ENOENT;
  fmt::print(stderr, "rocksdb: {}\n", status.ToString());
  return EIO;
}

rocksdb::Slice slice_of(const KvKey& key) { return {key.data(), key.size()}; }

class RocksSession : public KvSession {
 public:
  explicit RocksSession(const Rocks& store) : store_(store) {}
  int get(const KvKey& key, char* value, int64_t* length) override {
    rocksdb::PinnableSlice found;
    const rocksdb::Status status =
        store_.db->Get({}, store_.db->DefaultColumnFamily(), slice_of(key), &found);
    if (!status.ok()) return code_of(status);
    memcpy(value, found.data(), std::min(found.size(), store_.value_bytes));
    *length = static_cast<int64_t>(found.size());
    return 0;
  }
  int set(const KvKey& key, const char* value) override {
    return code_of(store_.db->Put(store_.writes, slice_of(key), {value, store_.value_bytes}));
  }
  int set_many(const std::vector<uint64_t>& numbers, const KvContent& content,
               char* value) override {
    int code = 0;
    for (size_t at = 0; at < numbers.size() && code == 0;) {
      rocksdb::WriteBatch batch;
      for (size_t n = 0; n < store_.batch && at < numbers.size(); ++n, ++at) {
        content.fill(numbers[at], 1, value);
        (void)batch.Put(slice_of(content.key(numbers[at])), {value, store_.value_bytes});
      }
      code = code_of(store_.db->Write(store_.writes, &batch));
    }
    return code;
  }

 private:
  const Rocks& store_;
};

class RocksSystem : public KvSystem {
 public:
  explicit RocksSystem(const KvSetup& setup) : setup_(setup) {
    store_.value_bytes = setup.value_bytes;
    if (setup.durability == "flush") store_.batch = kLoadBatch;
    store_.writes.disableWAL = setup.durability == "flush";
    store_.writes.sync = !store_.writes.disableWAL;
    open(setup.dram_bytes / 8, setup.dram_bytes / 2);
  }
  std::unique_ptr<KvSession> connect() override { return std::make_unique<RocksSession>(store_); }
  int flush() override { return code_of(store_.db->Flush({})); }
  void settle() override;

 private:
  void open(uint64_t memtable_bytes, uint64_t cache_bytes);
  KvSetup setup_;
  Rocks store_;
  bool loaded_ = false;
};

void RocksSystem::open(uint64_t memtable_bytes, uint64_t cache_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(cache_bytes);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.cache_index_and_filter_blocks = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.data_block_hash_table_util_ratio = 0.75;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression =
      setup_.system == "rocksdb-lz4" ? rocksdb::kLZ4Compression : rocksdb::kNoCompression;
  options.write_buffer_size = memtable_bytes;
  options.max_write_buffer_number = 2;
  options.memtable_prefix_bloom_size_ratio = 0.02;
  options.memtable_whole_key_filtering = true;
  options.use_direct_reads = true;
  options.use_direct_io_for_flush_and_compaction = true;
  options.compaction_readahead_size = 2 << 20;
  options.max_background_jobs = 2;
  options.optimize_filters_for_hits = true;
  options.level_compaction_dynamic_level_bytes = true;
  options.max_open_files = -1;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, setup_.place, &db);
  store_.db.reset(db);
  if (!status.ok()) throw std::runtime_error("RocksDB: " + status.ToString());
}

void RocksSystem::settle() {
  (void)flush();
  if (!loaded_) {
    (void)store_.db->CompactRange({}, nullptr, nullptr);
    store_.db.reset();
    open(setup_.dram_bytes / 16, setup_.dram_bytes / 8 * 7);
    loaded_ = true;
  }
  const auto at_work = [&](const std::string& what) {
    uint64_t value = 0;
    return store_.db->GetIntProperty("rocksdb." + what, &value) && value > 0;
  };
  while (at_work("compaction-pending") || at_work("num-running-compactions") ||
         at_work("num-running-flushes"))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

std::unique_ptr<KvSystem> make_rocksdb_system(const KvSetup& setup) {
  return std::make_unique<RocksSystem>(setup);
}

}  // namespace lunar::tools
#else
namespace lunar::tools {
std::unique_ptr<KvSystem> make_rocksdb_system(const KvSetup&) {
  throw std::runtime_error(
      "built without RocksDB: apt-get install librocksdb-dev, and build again");
}
}  // namespace lunar::tools
#endif
