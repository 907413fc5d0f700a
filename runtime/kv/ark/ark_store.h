// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles of libarkdb.
//
//   ARK* ──► Connection (kMain) ─┐                 ┌─► kv::Store, the engine
//   ARC* ──► Connection ─────────┼──► ArkStore ────┤
//   ARI* ──► Iterator ───────────┘                 └─► Pool, threads of asynchronous calls
//
// A connection owns the Ops that its asynchronous calls take. It is freed when its handle is closed
// and its last Op was given back; ark_delete frees all objects of a store.
// Threading: any. delete_store() and disconnect_store() wait for other threads' calls.
#pragma once
#include <atomic>
#include <cstdint>

#include "kv/ark/ark_pool.h"
#include "kv/ark/handle_table.h"
#include "kv/store.h"

namespace lunar::ark {

struct Connection : Object {
  uint64_t mapping_bytes = 0;
  std::atomic<uint32_t> references{1};  // the handle's, and one per Op in use
  sys::SpinLock lock;
  Op* free_ops = nullptr;
  Op* ops = nullptr;
  // The first `made` Ops were taken at some time; the memory of the others is untouched.
  uint32_t made = 0;
  uint32_t op_count = 0;

  Op* take();  // nullptr: all are in use
  void give_back(Op* op);
  void release();          // a reference; the last one frees it
  void forget_in_child();  // pre: no Op is in use
};

struct Iterator : Object {
  sys::Mutex lock;  // one thread at a time
  kv::Walk* walk = nullptr;
  int pending = 0;  // an error for the next call to return
};

struct ArkStore {
  uint64_t mapping_bytes = 0;
  kv::Store* engine = nullptr;
  bool in_memory = true;
  bool flush_at_end = false;  // ARK_KV_PERSIST_STORE
  Pool pool;
  std::atomic<uint32_t> paused{0};   // for fork: calls wait before they begin
  std::atomic<uint32_t> closers{0};  // disconnect() calls in progress, which still use the store
  sys::Mutex lock;
  bool closing = false;  // under the lock
  Object* objects = nullptr;

  void add(Object* object);  // pre: the lock is held, and not closing
  void remove(Object* object);
  bool idle() const;  // no thread uses any of its objects. pre: the lock is held
  int64_t carry_out(const Request& request);  // length, or -errno
  // The same if it takes no longer than a copy; otherwise -EAGAIN without effect.
  int64_t carry_out_now(const Request& request);
};

struct CreateOptions {
  const char* caller = "";  // for messages: the function that was called
  const char* path = nullptr;
  uint64_t size = 0, hash_count = 0;  // 0: not given
  int threads = 0, queue_depth = 0, asyncs = 0;
  uint64_t flags = 0;
  // Override LUNAR_KV_DRAM and LUNAR_KV_SIZE; 0: not given.
  uint64_t dram_bytes = 0, place_bytes = 0;
  unsigned durability = 0;  // LUNAR_KV_DURABLE_..., overrides LUNAR_KV_DURABILITY; 0: not given
};

// All return 0 or a positive errno value.
[[nodiscard]] int create_store(const CreateOptions& options, uint64_t* handle);
[[nodiscard]] int delete_store(const void* handle);
[[nodiscard]] int connect_store(const void* handle, int asyncs, uint64_t* out);
[[nodiscard]] int disconnect_store(const void* handle);
// Opens the engine at the place that the options name. 0 or -errno with *why.
[[nodiscard]] int open_engine(const CreateOptions& options, kv::Store** out, bool* in_memory,
                              ErrorText* why);
// Returns the pid in the parent, 0 in the child, -errno.
// pre: the caller does not use the store's handle
[[nodiscard]] int64_t fork_store(const void* handle);
[[nodiscard]] int fork_handlers_install();  // once per process; 0 or errno

// 0 with *handle (never 0) and the first key, or errno.
[[nodiscard]] int first_key(ArkStore* store, uint64_t room, int64_t* length, void* buffer,
                            uint64_t* handle);
// 0, ENOENT (the iterator was freed), or errno.
// pre: `iterator` is in use; the call releases it
[[nodiscard]] int next_key(Iterator* iterator, uint64_t room, int64_t* length, void* buffer);
[[nodiscard]] int next_keys(Iterator* iterator, uint64_t room, void* buffer, int64_t* count);
// Frees an iterator, at its end or before.
// pre: `iterator` is in use; the call releases it
void end_iterator(Iterator* iterator);
void free_iterator(Iterator* iterator);  // pre: shut and drained, and no longer in the store's list

}  // namespace lunar::ark
