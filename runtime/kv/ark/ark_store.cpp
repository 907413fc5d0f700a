// SPDX-License-Identifier: Apache-2.0
// Creating and deleting stores, connecting to them: see ark_store.h.
#include "kv/ark/ark_store.h"

#include <errno.h>

#include <algorithm>
#include <new>

#include "arkdb.h"
#include "sys/arena.h"
#include "sys/log.h"

namespace lunar::ark {
namespace {

constexpr int kThreadsDefault = 20, kDepthDefault = 400, kDepthMin = 48, kDepthMax = 1 << 16;
// The longest key or buffer of an operation that the issuing thread carries out itself.
constexpr uint64_t kNowBytesMax = 256 * kKiB;
constexpr int kAsyncsDefault = 8192, kAsyncsMax = 1 << 20;

// otherwise: for a value that was not given.
uint32_t clamp(int value, int otherwise, int least, int most) {
  return static_cast<uint32_t>(value <= 0 ? otherwise : std::clamp(value, least, most));
}

Connection* make_connection(ArkStore* store, Kind kind, int asyncs) {
  const uint32_t count = clamp(asyncs, kAsyncsDefault, 1, kAsyncsMax);
  const uint64_t head = round_up(sizeof(Connection), 64), bytes = head + count * sizeof(Op);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return nullptr;
  auto* connection = new (memory) Connection;
  connection->kind = kind;
  connection->store = store;
  connection->mapping_bytes = bytes;
  connection->ops = reinterpret_cast<Op*>(memory + head);
  connection->op_count = count;
  connection->forget_in_child();
  return connection;
}

void free_connection(Connection* connection) {
  unmap_private(connection, connection->mapping_bytes);
}

Connection* connection_of(Object* object) { return static_cast<Connection*>(object); }

// Waits for calls in progress to end. Asynchronous operations may still be queued.
// pre: all handles are shut
void wait_until_idle(ArkStore* store) {
  for (;;) {
    {
      sys::Locked<sys::Mutex> guard(store->lock);
      if (store->idle()) return;
    }
    sys::sleep_ns(100'000);
  }
}

}  // namespace

Op* Connection::take() {
  lock.lock();
  Op* op = free_ops;
  if (op) {
    free_ops = op->next;
  } else if (made < op_count) {
    op = new (&ops[made++]) Op;
    op->connection = this;
  }
  lock.unlock();
  if (op) references.fetch_add(1, std::memory_order_relaxed);
  return op;
}

void Connection::give_back(Op* op) {
  lock.lock();
  op->next = free_ops;
  free_ops = op;
  lock.unlock();
  release();
}

// The last reference is an Op's if a callback called disconnect. ark_delete therefore ends the
// threads before it frees connections.
void Connection::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  table_drain(this);
  store->remove(this);
  table_free(slot);
  free_connection(this);
}

void Connection::forget_in_child() {
  new (&lock) sys::SpinLock;
  references.store(1, std::memory_order_relaxed);
  free_ops = nullptr;
  made = 0;
}

void ArkStore::add(Object* object) {
  object->next = objects;
  objects = object;
}

void ArkStore::remove(Object* object) {
  sys::Locked<sys::Mutex> guard(lock);
  for (Object** place = &objects; *place; place = &(*place)->next) {
    if (*place != object) continue;
    *place = object->next;
    return;
  }
}

bool ArkStore::idle() const {
  for (const Object* one = objects; one; one = one->next) {
    if (!table_idle(one)) return false;
  }
  return true;
}

int64_t ArkStore::carry_out(const Request& request) {
  const kv::Bytes key{request.key, request.key_bytes};
  switch (request.kind) {
    case OpKind::kSet: {
      const int status = engine->set(key, {request.value, request.value_bytes});
      return status < 0 ? status : static_cast<int64_t>(request.value_bytes);
    }
    case OpKind::kGet:
      return engine->get(key, request.value, request.value_bytes, request.offset);
    case OpKind::kDel:
      return engine->del(key);
    case OpKind::kExists:
      return engine->exists(key);
  }
  return -EINVAL;
}

int64_t ArkStore::carry_out_now(const Request& request) {
  const kv::Bytes key{request.key, request.key_bytes};
  if (request.key_bytes > kNowBytesMax) return -EAGAIN;
  switch (request.kind) {
    case OpKind::kSet: {
      const int status = engine->set_now(key, {request.value, request.value_bytes});
      return status < 0 ? status : static_cast<int64_t>(request.value_bytes);
    }
    case OpKind::kGet:
      if (request.value_bytes > kNowBytesMax) return -EAGAIN;
      return engine->get_now(key, request.value, request.value_bytes, request.offset);
    case OpKind::kDel:
      return engine->on_device() ? -EAGAIN : engine->del(key);
    case OpKind::kExists:
      return engine->get_now(key, nullptr, 0, 0);
  }
  return -EAGAIN;
}

int create_store(const CreateOptions& options, uint64_t* handle) {
  if (const int status = fork_handlers_install(); status != 0) return status;
  const unsigned threads = clamp(options.threads, kThreadsDefault, 1, Pool::kThreadsMax);
  const uint64_t head = round_up(sizeof(ArkStore), 128),
                 lanes_at = head + threads * sizeof(Pool::Queue);
  const uint64_t bytes = lanes_at + Pool::kLanes * sizeof(Pool::Lane);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return ENOMEM;
  auto* store = new (memory) ArkStore;
  store->mapping_bytes = bytes;
  auto* queues = reinterpret_cast<Pool::Queue*>(memory + head);
  for (unsigned i = 0; i < threads; ++i) new (&queues[i]) Pool::Queue;
  auto* lanes = reinterpret_cast<Pool::Lane*>(memory + lanes_at);
  for (unsigned i = 0; i < Pool::kLanes; ++i) new (&lanes[i]) Pool::Lane(0);
  store->pool.open(queues, lanes, threads,
                   clamp(options.queue_depth, kDepthDefault, kDepthMin, kDepthMax));
  Connection* main = make_connection(store, kMain, options.asyncs);
  const EngineChange change;
  ErrorText why;
  int status = main ? open_engine(options, &store->engine, &store->in_memory, &why) : -ENOMEM;
  if (status < 0 && why.text[0]) log_warning("%s", why.text);
  if (status == 0) {
    store->flush_at_end = (options.flags & ARK_KV_PERSIST_STORE) != 0;
    store->add(main);
    *handle = table_add(main);
    if (*handle) return 0;
    status = -ENOMEM;
  }
  if (store->engine) store->engine->close();
  if (main) free_connection(main);
  unmap_private(store, bytes);
  return -status;
}

int delete_store(const void* handle) {
  Object* object = table_acquire(handle, kArk);
  if (!object) return EINVAL;
  ArkStore* store = object->store;
  if (store->pool.is_mine()) {
    table_release(object);
    return EDEADLK;
  }
  bool mine;
  {
    sys::Locked<sys::Mutex> guard(store->lock);
    mine = !store->closing;
    store->closing = true;
    for (Object* one = store->objects; mine && one; one = one->next) (void)table_shut(one);
  }
  table_release(object);
  if (!mine) return EINVAL;
  while (store->closers.load(std::memory_order_acquire) != 0) sys::sleep_ns(100'000);
  wait_until_idle(store);
  store->pool.stop();  // connections that a callback closed are gone from the list by now
  const int status = store->flush_at_end ? store->engine->flush() : 0;
  const EngineChange change;
  // Only now, because a child that is forked meanwhile finds by the objects what it has to close.
  while (Object* one = store->objects) {
    store->objects = one->next;
    if (one->kind == kIterator) {
      free_iterator(static_cast<Iterator*>(one));
    } else {
      table_free(one->slot);
      free_connection(connection_of(one));
    }
  }
  if (status < 0)
    log_warning(
        "ark_delete: the store could not be saved (%s); the last state that was saved is there",
        errno_text(status));
  store->engine->close();
  unmap_private(store, store->mapping_bytes);
  return -status;
}

int connect_store(const void* handle, int asyncs, uint64_t* out) {
  Object* object = table_acquire(handle, kArk);
  if (!object) return EINVAL;
  ArkStore* store = object->store;
  Connection* connection = make_connection(store, kConnection, asyncs);
  int status = connection ? 0 : ENOMEM;
  if (status == 0) {
    sys::Locked<sys::Mutex> guard(store->lock);
    *out = store->closing ? 0 : table_add(connection);
    if (*out)
      store->add(connection);
    else
      status = store->closing ? EINVAL : ENOMEM;
  }
  if (status != 0 && connection) free_connection(connection);
  table_release(object);
  return status;
}

int disconnect_store(const void* handle) {
  Object* object = table_acquire(handle, kArk);
  if (!object) return EINVAL;
  ArkStore* store = object->store;
  Connection* connection = connection_of(object);
  bool mine = false;
  const bool main = connection->kind == kMain;
  if (!main) {
    sys::Locked<sys::Mutex> guard(store->lock);
    mine = !store->closing && table_shut(connection);
    if (mine) store->closers.fetch_add(1, std::memory_order_relaxed);
  }
  table_release(object);
  if (!mine) return main ? 0 : EINVAL;
  table_drain(connection);
  if (!store->pool.is_mine()) {
    for (unsigned round = 0; connection->references.load(std::memory_order_acquire) != 1; ++round)
      round < 50 ? sys::yield_cpu() : sys::sleep_ns(200'000);
  }
  connection->release();
  store->closers.fetch_sub(1, std::memory_order_release);
  return 0;
}

}  // namespace lunar::ark
