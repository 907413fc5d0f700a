// SPDX-License-Identifier: Apache-2.0
// LMDB, set up as its documentation says for random reads of data larger than memory: no
// read-ahead, and one read transaction per thread, which is renewed. Its cache is the page cache
// within the limit of the memory cgroup. A load makes 1000 pairs per transaction if they are
// durable at a flush (MDB_NOSYNC and mdb_env_sync), else one.
#include "tools/bench/kv/kv_system.h"

#ifdef LUNAR_HAVE_LMDB
#include <lmdb.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lunar::tools {

namespace {

constexpr size_t kLoadBatch = 1000;
constexpr unsigned kReadersMax = 2000;

struct Lmdb {
  MDB_env* env = nullptr;
  MDB_dbi dbi = 0;
  size_t value_bytes = 0, batch = kLoadBatch;
};

// LMDB's own codes are negative.
int code_of(int status) { return status == MDB_NOTFOUND ? ENOENT : status < 0 ? EIO : status; }

class LmdbSession : public KvSession {
 public:
  explicit LmdbSession(const Lmdb& store) : store_(store) {}
  ~LmdbSession() override {
    if (reader_) mdb_txn_abort(reader_);
  }
  int get(const KvKey& key, char* value, int64_t* length) override {
    int status =
        reader_ ? mdb_txn_renew(reader_) : mdb_txn_begin(store_.env, nullptr, MDB_RDONLY, &reader_);
    if (status != 0) return code_of(status);
    MDB_val wanted = val(key.data(), key.size()), found;
    status = mdb_get(reader_, store_.dbi, &wanted, &found);
    if (status == 0) {
      *length = static_cast<int64_t>(found.mv_size);
      memcpy(value, found.mv_data, std::min(found.mv_size, store_.value_bytes));
    }
    mdb_txn_reset(reader_);
    return code_of(status);
  }
  int set(const KvKey& key, const char* value) override {
    return write([&](MDB_txn* writer) { return put(writer, key, value); });
  }
  int set_many(const std::vector<uint64_t>& numbers, const KvContent& content,
               char* value) override {
    int code = 0;
    for (size_t at = 0; at < numbers.size() && code == 0;) {
      code = write([&](MDB_txn* writer) {
        int status = 0;
        for (size_t n = 0; n < store_.batch && at < numbers.size() && status == 0; ++n, ++at) {
          content.fill(numbers[at], 1, value);
          status = put(writer, content.key(numbers[at]), value);
        }
        return status;
      });
    }
    return code;
  }

 private:
  static MDB_val val(const char* data, size_t bytes) { return {bytes, const_cast<char*>(data)}; }
  template <class Work>
  int write(const Work& work) {
    MDB_txn* writer;
    int status = mdb_txn_begin(store_.env, nullptr, 0, &writer);
    if (status != 0) return code_of(status);
    status = work(writer);
    if (status == 0) return code_of(mdb_txn_commit(writer));
    mdb_txn_abort(writer);
    return code_of(status);
  }
  int put(MDB_txn* writer, const KvKey& key, const char* value) {
    MDB_val name = val(key.data(), key.size()), content = val(value, store_.value_bytes);
    return mdb_put(writer, store_.dbi, &name, &content, 0);
  }
  const Lmdb& store_;
  MDB_txn* reader_ = nullptr;
};

class LmdbSystem : public KvSystem {
 public:
  explicit LmdbSystem(const KvSetup& setup) {
    store_.value_bytes = setup.value_bytes;
    if (setup.durability != "flush") store_.batch = 1;
    const unsigned flags =
        MDB_NORDAHEAD | MDB_NOTLS | (setup.durability == "flush" ? MDB_NOSYNC : 0);
    mkdir(setup.place.c_str(), 0700);
    expect(mdb_env_create(&store_.env));
    expect(mdb_env_set_mapsize(store_.env, 8 * setup.keys * setup.value_bytes + (size_t{1} << 30)));
    expect(mdb_env_set_maxreaders(store_.env, kReadersMax));
    expect(mdb_env_open(store_.env, setup.place.c_str(), flags, 0600));
    MDB_txn* txn;
    expect(mdb_txn_begin(store_.env, nullptr, 0, &txn));
    expect(mdb_dbi_open(txn, nullptr, 0, &store_.dbi));
    expect(mdb_txn_commit(txn));
  }
  ~LmdbSystem() override { mdb_env_close(store_.env); }
  std::unique_ptr<KvSession> connect() override { return std::make_unique<LmdbSession>(store_); }
  int flush() override { return code_of(mdb_env_sync(store_.env, 1)); }
  void settle() override { (void)flush(); }

 private:
  static void expect(int status) {
    if (status != 0) throw std::runtime_error(std::string("LMDB: ") + mdb_strerror(status));
  }
  Lmdb store_;
};

}  // namespace

std::unique_ptr<KvSystem> make_lmdb_system(const KvSetup& setup) {
  return std::make_unique<LmdbSystem>(setup);
}

}  // namespace lunar::tools
#else
namespace lunar::tools {
std::unique_ptr<KvSystem> make_lmdb_system(const KvSetup&) {
  throw std::runtime_error("built without LMDB: apt-get install liblmdb-dev, and build again");
}
}  // namespace lunar::tools
#endif
