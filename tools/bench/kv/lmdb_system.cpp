// SPDX-License-Identifier: Apache-2.0
// LMDB, set up as its documentation says for random reads of data larger than memory: no read-ahead, a read transaction
// a thread that is renewed. Its cache is the page cache that the memory cgroup leaves it. Loads go 1000 pairs a
// transaction where they are durable at a flush (MDB_NOSYNC and mdb_env_sync), else one.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include <fmt/format.h>

#include <cerrno>
#include <stdexcept>

#include "tools/bench/kv/kv_system.h"

#ifdef LUNAR_HAVE_LMDB
#include <lmdb.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

namespace lunar::tools {

namespace {

constexpr size_t kLoadBatch = 1000;
constexpr unsigned kReadersMax = 2000;

struct LmdbCalls {
  explicit LmdbCalls(const OpenLibrary& library) {
    library.find(&env_create, "mdb_env_create");
    library.find(&env_open, "mdb_env_open");
    library.find(&env_close, "mdb_env_close");
    library.find(&env_sync, "mdb_env_sync");
    library.find(&set_map_size, "mdb_env_set_mapsize");
    library.find(&set_readers, "mdb_env_set_maxreaders");
    library.find(&begin, "mdb_txn_begin");
    library.find(&commit, "mdb_txn_commit");
    library.find(&abort, "mdb_txn_abort");
    library.find(&reset, "mdb_txn_reset");
    library.find(&renew, "mdb_txn_renew");
    library.find(&dbi_open, "mdb_dbi_open");
    library.find(&get, "mdb_get");
    library.find(&put, "mdb_put");
    library.find(&cursor_open, "mdb_cursor_open");
    library.find(&cursor_get, "mdb_cursor_get");
    library.find(&cursor_close, "mdb_cursor_close");
    library.find(&text, "mdb_strerror");
  }
  decltype(mdb_env_create)* env_create;
  decltype(mdb_env_open)* env_open;
  decltype(mdb_env_close)* env_close;
  decltype(mdb_env_sync)* env_sync;
  decltype(mdb_env_set_mapsize)* set_map_size;
  decltype(mdb_env_set_maxreaders)* set_readers;
  decltype(mdb_txn_begin)* begin;
  decltype(mdb_txn_commit)* commit;
  decltype(mdb_txn_abort)* abort;
  decltype(mdb_txn_reset)* reset;
  decltype(mdb_txn_renew)* renew;
  decltype(mdb_dbi_open)* dbi_open;
  decltype(mdb_get)* get;
  decltype(mdb_put)* put;
  decltype(mdb_cursor_open)* cursor_open;
  decltype(mdb_cursor_get)* cursor_get;
  decltype(mdb_cursor_close)* cursor_close;
  decltype(mdb_strerror)* text;
};

struct Lmdb {
  LmdbCalls calls;
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
    if (reader_) store_.calls.abort(reader_);
  }
  int get(uint64_t, const KvKey& key, char* value, int64_t* length) override {
    int status = reader_ ? store_.calls.renew(reader_) : store_.calls.begin(store_.env, nullptr, MDB_RDONLY, &reader_);
    if (status != 0) return code_of(status);
    MDB_val wanted = val(key.data(), key.size()), found;
    status = store_.calls.get(reader_, store_.dbi, &wanted, &found);
    if (status == 0) {
      *length = static_cast<int64_t>(found.mv_size);
      memcpy(value, found.mv_data, std::min(found.mv_size, store_.value_bytes));
    }
    store_.calls.reset(reader_);
    return code_of(status);
  }
  int set(uint64_t, const KvKey& key, const char* value) override {
    MDB_txn* writer;
    int status = store_.calls.begin(store_.env, nullptr, 0, &writer);
    if (status != 0) return code_of(status);
    status = put(writer, key, value);
    return code_of(finish(writer, status));
  }
  int set_many(const std::vector<uint64_t>& numbers, const KvContent& content, char* value) override {
    for (size_t at = 0; at < numbers.size();) {
      MDB_txn* writer;
      int status = store_.calls.begin(store_.env, nullptr, 0, &writer);
      if (status != 0) return code_of(status);
      for (size_t n = 0; n < store_.batch && at < numbers.size() && status == 0; ++n, ++at) {
        content.fill(numbers[at], 1, value);
        status = put(writer, content.key(numbers[at]), value);
      }
      if (status = finish(writer, status); status != 0) return code_of(status);
    }
    return 0;
  }

 private:
  static MDB_val val(const char* data, size_t bytes) { return {bytes, const_cast<char*>(data)}; }
  int put(MDB_txn* writer, const KvKey& key, const char* value) {
    MDB_val name = val(key.data(), key.size()), content = val(value, store_.value_bytes);
    return store_.calls.put(writer, store_.dbi, &name, &content, 0);
  }
  int finish(MDB_txn* writer, int status) {
    if (status == 0) return store_.calls.commit(writer);
    store_.calls.abort(writer);
    return status;
  }
  const Lmdb& store_;
  MDB_txn* reader_ = nullptr;
};

class LmdbSystem : public KvSystem {
 public:
  explicit LmdbSystem(const KvSetup& setup) : library_("liblmdb.so.0"), store_{LmdbCalls(library_)} {
    store_.value_bytes = setup.value_bytes;
    if (setup.durability != "flush") store_.batch = 1;
    const unsigned flags = MDB_NORDAHEAD | MDB_NOTLS | (setup.durability == "flush" ? MDB_NOSYNC : 0);
    mkdir(setup.place.c_str(), 0700);
    expect(store_.calls.env_create(&store_.env));
    expect(store_.calls.set_map_size(store_.env, 8 * setup.data_bytes + (size_t{1} << 30)));
    expect(store_.calls.set_readers(store_.env, kReadersMax));
    expect(store_.calls.env_open(store_.env, setup.place.c_str(), flags, 0600));
    MDB_txn* txn;
    expect(store_.calls.begin(store_.env, nullptr, 0, &txn));
    expect(store_.calls.dbi_open(txn, nullptr, 0, &store_.dbi));
    expect(store_.calls.commit(txn));
  }
  ~LmdbSystem() override { store_.calls.env_close(store_.env); }
  std::unique_ptr<KvSession> connect() override { return std::make_unique<LmdbSession>(store_); }
  int flush() override { return code_of(store_.calls.env_sync(store_.env, 1)); }
  void settle() override { (void)flush(); }
  int scan(uint64_t, const Visit& visit) override {
    MDB_txn* reader;
    if (const int status = store_.calls.begin(store_.env, nullptr, MDB_RDONLY, &reader); status != 0)
      return code_of(status);
    MDB_cursor* cursor;
    int status = store_.calls.cursor_open(reader, store_.dbi, &cursor);
    MDB_val key, value;
    while (status == 0) {
      status = store_.calls.cursor_get(cursor, &key, &value, MDB_NEXT);
      if (status == 0 && !visit({static_cast<const char*>(key.mv_data), key.mv_size})) break;
    }
    store_.calls.cursor_close(cursor);
    store_.calls.abort(reader);
    return status == MDB_NOTFOUND ? 0 : code_of(status);
  }

 private:
  void expect(int status) {
    if (status != 0) throw std::runtime_error(fmt::format("LMDB: {}", store_.calls.text(status)));
  }
  OpenLibrary library_;
  Lmdb store_;
};

}  // namespace

std::unique_ptr<KvSystem> make_lmdb_system(const KvSetup& setup) { return std::make_unique<LmdbSystem>(setup); }

}  // namespace lunar::tools
#else
namespace lunar::tools {
std::unique_ptr<KvSystem> make_lmdb_system(const KvSetup&) {
  throw std::runtime_error("built without LMDB: apt-get install liblmdb-dev, and build again");
}
}  // namespace lunar::tools
#endif
