// SPDX-License-Identifier: Apache-2.0
// The C calls: arguments in, errno out. An id and a kind name a chunk or a group (Handle), which
// answers the call: a cblk_cg_ call is on a group, and so is a plain one with a CBLK_GROUP_ flag.
// Threading: any.
#include <errno.h>
#include <limits.h>
#include <string.h>

#include <algorithm>

#include "cblk/group.h"

using namespace lunar;
using namespace lunar::cblk;

#define CBLK_API extern "C" __attribute__((visibility("default")))

// A library that offers IBM's interface and is not IBM's: lunar's capi: device refuses to load it.
extern "C" {
__attribute__((visibility("default"))) extern const int lunar_cblk_marker;
const int lunar_cblk_marker = 1;
}

namespace {

class HandleRef {
 public:
  HandleRef(int id, unsigned kinds) : handle_(table_acquire(id, kinds)) {}
  ~HandleRef() {
    if (handle_) table_release(handle_);
  }
  HandleRef(const HandleRef&) = delete;
  HandleRef& operator=(const HandleRef&) = delete;
  explicit operator bool() const { return handle_ != nullptr; }
  Handle* operator->() const { return handle_; }
  void leave() { handle_ = nullptr; }  // the handle was freed

 private:
  Handle* handle_;
};

Kind kind_of(int flags) { return flags & CBLK_GROUP_MASK ? kGroup : kChunk; }

int answer(int64_t status, const char* call, int id) {
  if (status >= 0) return static_cast<int>(status);
  if (trace_active()) trace("%s %d: errno %d", call, id, static_cast<int>(-status));
  errno = static_cast<int>(-status);
  return -1;
}

Io make_io(Op op, void* buffer, cflash_offset_t lba, size_t blocks) {
  Io io;
  io.op = op;
  io.buffer = static_cast<char*>(buffer);
  io.lba = lba;
  io.blocks = blocks;
  return io;
}

int transfer(const char* call, Op op, Kind kind, int id, void* buffer, cflash_offset_t lba,
             size_t blocks) {
  HandleRef handle(id, kind);
  if (!handle) return answer(-EINVAL, call, id);
  Io io = make_io(op, buffer, lba, blocks);
  return answer(handle->transfer(&io), call, id);
}

int issue(const char* call, Op op, Kind kind, int id, void* buffer, cflash_offset_t lba,
          size_t blocks, cflsh_cg_tag_t* tag, cblk_arw_status_t* status, int flags) {
  HandleRef handle(id, kind);
  const bool with_status = (flags & CBLK_ARW_USER_STATUS_FLAG) != 0;
  if (!handle || !tag || (with_status && !status)) return answer(-EINVAL, call, id);
  Io io = make_io(op, buffer, lba, blocks);
  io.status = with_status ? status : nullptr;
  io.has_user_tag = (flags & CBLK_ARW_USER_TAG_FLAG) != 0;
  io.user_tag = io.has_user_tag ? tag->tag : 0;
  io.wait_for_command = (flags & CBLK_ARW_WAIT_CMD_FLAGS) != 0;
  return answer(handle->issue(&io, tag), call, id);
}

// Issues a command of a chunk. A group is refused, because a tag alone does not name its chunk.
int issue(const char* call, Op op, chunk_id_t id, void* buffer, cflash_offset_t lba, size_t blocks,
          int* tag, cblk_arw_status_t* status, int flags) {
  if (!tag || (flags & CBLK_GROUP_MASK)) return answer(-EINVAL, call, id);
  cflsh_cg_tag_t one = {id, *tag};
  const int result = issue(call, op, kChunk, id, buffer, lba, blocks, &one, status, flags);
  *tag = one.tag;
  return result;
}

int result(const char* call, unsigned kinds, int id, cflsh_cg_tag_t* tag, uint64_t* status,
           int flags) {
  HandleRef handle(id, kinds);
  if (!handle || !tag || !status) return answer(-EINVAL, call, id);
  const int64_t blocks = handle->result(tag, flags);
  // A polling caller yields, because the completion, or other polling threads, may need its CPU.
  if (blocks == 0 && !(flags & CBLK_ARESULT_NO_HARVEST)) sys::yield_cpu();
  *status = blocks > 0 ? static_cast<uint64_t>(blocks) : 0;
  return answer(blocks, call, id);
}

int close(Kind kind, int id, int flags) {
  HandleRef handle(id, kind);
  if (!handle) return answer(-EINVAL, "close", id);
  const int status = handle->close(flags);
  if (status == 0) handle.leave();
  return answer(status, "close", id);
}

int get_lun_size(Kind kind, int id, size_t* nblocks) {
  HandleRef handle(id, kind);
  if (!nblocks) return answer(-EINVAL, "get_lun_size", id);
  // IBM's library returns ENODEV in this call alone.
  if (!handle) return answer(kind == kGroup ? -ENODEV : -EINVAL, "get_lun_size", id);
  *nblocks = handle->lun_blocks();
  return 0;
}

int get_size(Kind kind, int id, size_t* nblocks) {
  HandleRef handle(id, kind);
  if (!handle || !nblocks) return answer(-EINVAL, "get_size", id);
  *nblocks = handle->size_blocks();
  return 0;
}

int set_size(Kind kind, int id, size_t nblocks, int flags) {
  HandleRef handle(id, kind);
  return answer(handle ? handle->set_size(nblocks, flags) : -EINVAL, "set_size", id);
}

int get_stats(Kind kind, int id, chunk_stats_t* stats) {
  HandleRef handle(id, kind);
  if (!handle || !stats) return answer(-EINVAL, "get_stats", id);
  handle->stats(stats);
  return 0;
}

int get_attrs(Kind kind, int id, chunk_attrs_t* attrs) {
  HandleRef handle(id, kind);
  if (!handle || !attrs) return answer(-EINVAL, "get_attrs", id);
  handle->attributes(attrs);
  return 0;
}

int clone_after_fork(Kind kind, int id, int mode) {
  HandleRef handle(id, kind);
  return answer(handle ? handle->clone_after_fork(mode) : -EINVAL, "clone_after_fork", id);
}

Chunk::Options options_of(const char* path, int requests, int mode, int flags) {
  Chunk::Options options;
  options.path = path;
  options.requests = requests;
  options.mode = mode;
  options.flags = flags;
  return options;
}

}  // namespace

CBLK_API int cblk_init(void*, uint64_t) { return 0; }
CBLK_API int cblk_term(void*, uint64_t) { return 0; }

// ---- open ----

CBLK_API chunk_cg_id_t cblk_cg_open(const char* path, int max_num_requests, int mode,
                                    int num_chunks, chunk_ext_arg_t, int flags) {
  Group* group = nullptr;
  const int status =
      Group::open(options_of(path, max_num_requests, mode, flags), num_chunks, &group);
  return status < 0 ? answer(status, "open", 0) : group->id;
}

CBLK_API chunk_id_t cblk_open(const char* path, int max_num_requests, int mode, chunk_ext_arg_t ext,
                              int flags) {
  if (flags & CBLK_OPN_GROUP)
    return cblk_cg_open(path, max_num_requests, mode,
                        static_cast<int>(std::min<uint64_t>(ext, INT_MAX)), ext,
                        flags & ~CBLK_OPN_GROUP);
  Chunk* chunk = nullptr;
  const int status = Chunk::open(options_of(path, max_num_requests, mode, flags), &chunk);
  return status < 0 ? answer(status, "open", 0) : chunk->id;
}

CBLK_API int cblk_cg_get_num_chunks(chunk_cg_id_t id, int) {
  HandleRef group(id, kGroup);
  return answer(group ? static_cast<Group*>(group.operator->())->chunks() : -EINVAL,
                "get_num_chunks", id);
}

// ---- chunks, and groups with a flag ----

CBLK_API int cblk_close(chunk_id_t id, int flags) { return close(kind_of(flags), id, flags); }
CBLK_API int cblk_get_lun_size(chunk_id_t id, size_t* nblocks, int flags) {
  return get_lun_size(kind_of(flags), id, nblocks);
}
CBLK_API int cblk_get_size(chunk_id_t id, size_t* nblocks, int flags) {
  return get_size(kind_of(flags), id, nblocks);
}
CBLK_API int cblk_set_size(chunk_id_t id, size_t nblocks, int flags) {
  return set_size(kind_of(flags), id, nblocks, flags);
}
CBLK_API int cblk_get_stats(chunk_id_t id, chunk_stats_t* stats, int flags) {
  return get_stats(kind_of(flags), id, stats);
}
CBLK_API int cblk_get_attrs(chunk_id_t id, chunk_attrs_t* attrs, int flags) {
  return get_attrs(kind_of(flags), id, attrs);
}
CBLK_API int cblk_clone_after_fork(chunk_id_t id, int mode, int flags) {
  return clone_after_fork(kind_of(flags), id, mode);
}

CBLK_API int cblk_read(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int flags) {
  return transfer("read", Op::kRead, kind_of(flags), id, buf, lba, nblocks);
}
CBLK_API int cblk_write(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int flags) {
  return transfer("write", Op::kWrite, kind_of(flags), id, buf, lba, nblocks);
}
CBLK_API int cblk_unmap(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int flags) {
  return transfer("unmap", Op::kDiscard, kind_of(flags), id, buf, lba, nblocks);
}

CBLK_API int cblk_aread(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int* tag,
                        cblk_arw_status_t* status, int flags) {
  return issue("aread", Op::kRead, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_awrite(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int* tag,
                         cblk_arw_status_t* status, int flags) {
  return issue("awrite", Op::kWrite, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_aunmap(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int* tag,
                         cblk_arw_status_t* status, int flags) {
  return issue("aunmap", Op::kDiscard, id, buf, lba, nblocks, tag, status, flags);
}

CBLK_API int cblk_aresult(chunk_id_t id, int* tag, uint64_t* status, int flags) {
  if (!tag || (flags & CBLK_GROUP_MASK)) return answer(-EINVAL, "aresult", id);
  cflsh_cg_tag_t one = {id, *tag};
  const int blocks = result("aresult", kChunk | kMember, id, &one, status, flags);
  *tag = one.tag;
  return blocks;
}

CBLK_API int cblk_listio(chunk_id_t id, cblk_io_t* issue_list[], int nissue, cblk_io_t* pending[],
                         int npending, cblk_io_t* wait[], int nwait, cblk_io_t* completion[],
                         int* ncompletion, uint64_t timeout_us, int flags) {
  HandleRef handle(id, kChunk);
  if (!handle) return answer(-EINVAL, "listio", id);
  auto* chunk = static_cast<Chunk*>(handle.operator->());
  const int status = chunk->list(issue_list, nissue, pending, npending, wait, nwait, completion,
                                 ncompletion, timeout_us, flags);
  if (status == 0 && nissue == 0 && nwait == 0 && *ncompletion == 0) sys::yield_cpu();  // as above
  return answer(status, "listio", id);
}

// ---- groups ----

CBLK_API int cblk_cg_close(chunk_cg_id_t id, int flags) { return close(kGroup, id, flags); }
CBLK_API int cblk_cg_get_lun_size(chunk_cg_id_t id, size_t* nblocks, int) {
  return get_lun_size(kGroup, id, nblocks);
}
CBLK_API int cblk_cg_get_size(chunk_cg_id_t id, size_t* nblocks, int) {
  return get_size(kGroup, id, nblocks);
}
CBLK_API int cblk_cg_set_size(chunk_cg_id_t id, size_t nblocks, int flags) {
  return set_size(kGroup, id, nblocks, flags);
}
CBLK_API int cblk_cg_get_stats(chunk_cg_id_t id, chunk_stats_t* stats, int) {
  return get_stats(kGroup, id, stats);
}
CBLK_API int cblk_cg_get_attrs(chunk_cg_id_t id, chunk_attrs_t* attrs, int) {
  return get_attrs(kGroup, id, attrs);
}
CBLK_API int cblk_cg_clone_after_fork(chunk_cg_id_t id, int mode, int) {
  return clone_after_fork(kGroup, id, mode);
}

CBLK_API int cblk_cg_read(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("cg_read", Op::kRead, kGroup, id, buf, lba, nblocks);
}
CBLK_API int cblk_cg_write(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("cg_write", Op::kWrite, kGroup, id, buf, lba, nblocks);
}
CBLK_API int cblk_cg_unmap(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("cg_unmap", Op::kDiscard, kGroup, id, buf, lba, nblocks);
}

CBLK_API int cblk_cg_aread(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks,
                           cflsh_cg_tag_t* tag, cblk_arw_status_t* status, int flags) {
  return issue("cg_aread", Op::kRead, kGroup, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_cg_awrite(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks,
                            cflsh_cg_tag_t* tag, cblk_arw_status_t* status, int flags) {
  return issue("cg_awrite", Op::kWrite, kGroup, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_cg_aunmap(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks,
                            cflsh_cg_tag_t* tag, cblk_arw_status_t* status, int flags) {
  return issue("cg_aunmap", Op::kDiscard, kGroup, id, buf, lba, nblocks, tag, status, flags);
}

CBLK_API int cblk_cg_aresult(chunk_cg_id_t id, cflsh_cg_tag_t* tag, uint64_t* status, int flags) {
  return result("cg_aresult", kGroup, id, tag, status, flags);
}
