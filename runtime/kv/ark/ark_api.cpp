// SPDX-License-Identifier: Apache-2.0
// The C ABI of libarkdb: checks arguments, looks handles up, translates results. Semantics:
// arkdb.h.
// Threading: any.
#include <errno.h>

#include "arkdb.h"
#include "kv/ark/ark_store.h"
#include "sys/log.h"

#define ARK_API extern "C" __attribute__((visibility("default")))

using namespace lunar;
using namespace lunar::ark;

static_assert(sizeof(keye_t) == 8 && sizeof(ARK) == 8 && sizeof(ARI) == 8);

namespace {

// A store in use, for one call.
class InUse {
 public:
  InUse(const void* handle, unsigned kinds)
      : object_(handle ? table_acquire(handle, kinds) : nullptr) {}
  ~InUse() {
    if (object_) table_release(object_);
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;
  explicit operator bool() const { return object_ != nullptr; }
  ArkStore* store() const { return object_->store; }
  kv::Store* engine() const { return object_->store->engine; }
  Connection* connection() const { return static_cast<Connection*>(object_); }
  Iterator* keep() {  // the callee releases it
    auto* iterator = static_cast<Iterator*>(object_);
    object_ = nullptr;
    return iterator;
  }

 private:
  Object* object_;
};

bool fits(uint64_t bytes, const void* data) {
  return bytes <= kv::kPairBytesMax && (data || bytes == 0);
}
// The length of a buffer to fill has no limit.
bool is_buffer(uint64_t bytes, const void* data) { return data || bytes == 0; }

bool is_sound(const Request& request) {
  if (!fits(request.key_bytes, request.key)) return false;
  if (request.kind == OpKind::kSet) return fits(request.value_bytes, request.value);
  return is_buffer(request.value_bytes, request.value);
}

int now(ARK* ark, const Request& request, int64_t* res) {
  if (!res || !is_sound(request)) return EINVAL;
  const InUse in_use(ark, kArk);
  if (!in_use) return EINVAL;
  const int64_t result = in_use.store()->carry_out(request);
  *res = result < 0 ? -1 : result;
  return result < 0 ? static_cast<int>(-result) : 0;
}

int later(ARK* ark, Request request, Callback callback, uint64_t tag) {
  if (!callback || !is_sound(request)) return EINVAL;
  const InUse in_use(ark, kArk);
  if (!in_use) return EINVAL;
  request.callback = callback;
  request.tag = tag;
  return in_use.store()->pool.issue(in_use.connection(), request);
}

Request set_of(uint64_t klen, const void* key, uint64_t vlen, void* val) {
  return {OpKind::kSet, klen, key, vlen, val};
}
Request get_of(uint64_t klen, const void* key, uint64_t vbuflen, void* vbuf, uint64_t voff) {
  return {OpKind::kGet, klen, key, vbuflen, vbuf, voff};
}
Request key_of(OpKind kind, uint64_t klen, const void* key) { return {kind, klen, key}; }

int create(const CreateOptions& options, ARK** ark) {
  if (!ark) return EINVAL;
  uint64_t handle = 0;
  const int status = create_store(options, &handle);
  if (status == 0) *ark = reinterpret_cast<ARK*>(handle);
  return status;
}

template <class Number>
int tell(ARK* ark, Number* out, uint64_t (kv::Store::*what)() const) {
  const InUse in_use(ark, kArk);
  if (!out || !in_use) return EINVAL;
  *out = static_cast<Number>((in_use.engine()->*what)());
  return 0;
}

}  // namespace

ARK_API int ark_create(char* path, ARK** ark, uint64_t flags) {
  CreateOptions options;
  options.caller = "ark_create";
  options.path = path;
  options.flags = flags;
  return create(options, ark);
}

ARK_API int ark_create_verbose(char* path, ARK** ark, uint64_t size, uint64_t, uint64_t hcount,
                               int nthreads, int nqueue, int basyncs, uint64_t flags) {
  if (nthreads <= 0) return EINVAL;
  return create({"ark_create_verbose", path, size, hcount, nthreads, nqueue, basyncs, flags}, ark);
}

ARK_API int ark_delete(ARK* ark) { return delete_store(ark); }

ARK_API int ark_connect_verbose(ARC** arc, ARK* ark, int nasync) {
  if (!arc) return EINVAL;
  uint64_t handle = 0;
  const int status = connect_store(ark, nasync, &handle);
  if (status == 0) *arc = reinterpret_cast<ARC*>(handle);
  return status;
}

ARK_API int ark_connect(ARC** arc, ARK* ark) { return ark_connect_verbose(arc, ark, 0); }
ARK_API int ark_disconnect(ARC* arc) { return disconnect_store(arc); }

// ---- pairs ----

ARK_API int ark_set(ARK* ark, uint64_t klen, void* key, uint64_t vlen, void* val, int64_t* res) {
  return now(ark, set_of(klen, key, vlen, val), res);
}
ARK_API int ark_get(ARK* ark, uint64_t klen, void* key, uint64_t vbuflen, void* vbuf, uint64_t voff,
                    int64_t* res) {
  return now(ark, get_of(klen, key, vbuflen, vbuf, voff), res);
}
ARK_API int ark_del(ARK* ark, uint64_t klen, void* key, int64_t* res) {
  return now(ark, key_of(OpKind::kDel, klen, key), res);
}
ARK_API int ark_exists(ARK* ark, uint64_t klen, void* key, int64_t* res) {
  return now(ark, key_of(OpKind::kExists, klen, key), res);
}

ARK_API int ark_set_async_cb(ARK* ark, uint64_t klen, void* key, uint64_t vlen, void* val,
                             void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt) {
  return later(ark, set_of(klen, key, vlen, val), cb, dt);
}
ARK_API int ark_get_async_cb(ARK* ark, uint64_t klen, void* key, uint64_t vbuflen, void* vbuf,
                             uint64_t voff, void (*cb)(int errcode, uint64_t dt, int64_t res),
                             uint64_t dt) {
  return later(ark, get_of(klen, key, vbuflen, vbuf, voff), cb, dt);
}
ARK_API int ark_del_async_cb(ARK* ark, uint64_t klen, void* key,
                             void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt) {
  return later(ark, key_of(OpKind::kDel, klen, key), cb, dt);
}
ARK_API int ark_exists_async_cb(ARK* ark, uint64_t klen, void* key,
                                void (*cb)(int errcode, uint64_t dt, int64_t res), uint64_t dt) {
  return later(ark, key_of(OpKind::kExists, klen, key), cb, dt);
}

// ---- keys ----

ARK_API ARI* ark_first(ARK* ark, uint64_t kbuflen, int64_t* klen, void* kbuf) {
  uint64_t handle = 0;
  int status = EINVAL;
  if (klen && kbuf && kbuflen) {
    const InUse in_use(ark, kArk);
    if (in_use) status = first_key(in_use.store(), kbuflen, klen, kbuf, &handle);
  }
  if (status != 0) errno = status;
  return reinterpret_cast<ARI*>(handle);
}

ARK_API int ark_next(ARI* iter, uint64_t kbuflen, int64_t* klen, void* kbuf) {
  if (!klen || !kbuf || !kbuflen) return EINVAL;
  InUse in_use(iter, kIterator);
  return in_use ? next_key(in_use.keep(), kbuflen, klen, kbuf) : EINVAL;
}

ARK_API int ark_nextN(ARI* iter, uint64_t kbuflen, void* kbuf, int64_t* num_keys) {
  if (!num_keys || !kbuf || !kbuflen) return EINVAL;
  InUse in_use(iter, kIterator);
  return in_use ? next_keys(in_use.keep(), kbuflen, kbuf, num_keys) : EINVAL;
}

ARK_API int ark_random(ARK* ark, uint64_t kbuflen, uint64_t* klen, void* kbuf) {
  if (!klen || !kbuf || !kbuflen) return EINVAL;
  const InUse in_use(ark, kArk);
  if (!in_use) return EINVAL;
  const int64_t length = in_use.engine()->random(kbuf, kbuflen);
  *klen = static_cast<uint64_t>(length < 0 ? -1 : length);
  return length < 0 ? static_cast<int>(-length) : 0;
}

// ---- the store ----

ARK_API int ark_allocated(ARK* ark, uint64_t* size) {
  return tell(ark, size, &kv::Store::bytes_allocated);
}
ARK_API int ark_inuse(ARK* ark, uint64_t* size) { return tell(ark, size, &kv::Store::bytes_live); }
ARK_API int ark_actual(ARK* ark, uint64_t* size) {
  return tell(ark, size, &kv::Store::bytes_actual);
}
ARK_API int ark_count(ARK* ark, int64_t* count) { return tell(ark, count, &kv::Store::count); }

ARK_API int ark_stats(ARK* ark, uint64_t* ops, uint64_t* ios) {
  const InUse in_use(ark, kArk);
  if (!ops || !ios || !in_use) return EINVAL;
  *ops = in_use.engine()->operations();
  *ios = in_use.engine()->device_ios();
  return 0;
}

ARK_API int ark_flush(ARK* ark) {
  const InUse in_use(ark, kArk);
  if (!in_use) return EINVAL;
  return -(in_use.engine()->is_persistent() ? in_use.engine()->flush() : in_use.engine()->clear());
}

ARK_API pid_t ark_fork(ARK* ark) {
  const int64_t pid = fork_store(ark);
  if (pid >= 0) return static_cast<pid_t>(pid);
  errno = static_cast<int>(-pid);
  return -1;
}

// Does nothing: the child has its own copy, for which the parent reserves nothing.
ARK_API int ark_fork_done(ARK* ark) { return InUse(ark, kArk) ? 0 : EINVAL; }
