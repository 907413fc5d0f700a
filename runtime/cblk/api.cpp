// SPDX-License-Identifier: Apache-2.0
// The C calls on chunks: arguments in, errno out. What they do is chunk.h's business.
// Threading: any.
#include <errno.h>
#include <string.h>

#include "cblk/chunk.h"

using namespace lunar;
using namespace lunar::cblk;

#define CBLK_API extern "C" __attribute__((visibility("default")))

// A library that offers IBM's interface and is not IBM's: lunar's capi: device refuses to load it.
extern "C" {
__attribute__((visibility("default"))) extern const int lunar_cblk_marker;
const int lunar_cblk_marker = 1;
}

namespace {

class Use {
 public:
  explicit Use(chunk_id_t id) : chunk_(static_cast<Chunk*>(table_acquire(id, Kind::kChunk))) {}
  ~Use() {
    if (chunk_) table_release(chunk_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const { return chunk_ != nullptr; }
  Chunk* operator->() const { return chunk_; }
  Chunk* leave() {   // the use goes on without this object
    Chunk* chunk = chunk_;
    chunk_ = nullptr;
    return chunk;
  }

 private:
  Chunk* chunk_;
};

int answer(int64_t status, const char* call, int id) {
  if (status >= 0) return static_cast<int>(status);
  if (trace_active()) trace("%s %d: errno %d", call, id, static_cast<int>(-status));
  errno = static_cast<int>(-status);
  return -1;
}

int transfer(const char* call, Op op, chunk_id_t id, void* buffer, cflash_offset_t lba, size_t blocks) {
  Use chunk(id);
  if (!chunk) return answer(-EINVAL, call, id);
  Io io;
  io.op = op;
  io.buffer = static_cast<char*>(buffer);
  io.lba = lba;
  io.blocks = blocks;
  return answer(chunk->transfer(&io), call, id);
}

int issue(const char* call, Op op, chunk_id_t id, void* buffer, cflash_offset_t lba, size_t blocks, int* tag,
          cblk_arw_status_t* status, int flags) {
  Use chunk(id);
  const bool with_status = (flags & CBLK_ARW_USER_STATUS_FLAG) != 0;
  if (!chunk || !tag || (with_status && !status)) return answer(-EINVAL, call, id);
  Io io;
  io.op = op;
  io.buffer = static_cast<char*>(buffer);
  io.lba = lba;
  io.blocks = blocks;
  io.status = with_status ? status : nullptr;
  io.has_user_tag = (flags & CBLK_ARW_USER_TAG_FLAG) != 0;
  io.user_tag = io.has_user_tag ? *tag : 0;
  io.wait_for_command = (flags & CBLK_ARW_WAIT_CMD_FLAGS) != 0;
  return answer(chunk->issue(&io, tag), call, id);
}

}  // namespace

CBLK_API int cblk_init(void*, uint64_t) { return 0; }
CBLK_API int cblk_term(void*, uint64_t) { return 0; }

CBLK_API chunk_id_t cblk_open(const char* path, int max_num_requests, int mode, chunk_ext_arg_t, int flags) {
  Chunk* chunk = nullptr;
  Chunk::Options options;
  options.path = path;
  options.requests = max_num_requests;
  options.mode = mode;
  options.flags = flags;
  const int status = Chunk::open(options, &chunk);
  return status < 0 ? answer(status, "open", 0) : chunk->id;
}

CBLK_API int cblk_close(chunk_id_t id, int flags) {
  Use chunk(id);
  if (!chunk) return answer(-EINVAL, "close", id);
  const int status = chunk->close(flags);
  if (status == 0) (void)chunk.leave();   // it is gone
  return answer(status, "close", id);
}

CBLK_API int cblk_get_lun_size(chunk_id_t id, size_t* nblocks, int) {
  Use chunk(id);
  if (!chunk || !nblocks) return answer(-EINVAL, "get_lun_size", id);
  *nblocks = chunk->lun_blocks();
  return 0;
}

CBLK_API int cblk_get_size(chunk_id_t id, size_t* nblocks, int) {
  Use chunk(id);
  if (!chunk || !nblocks) return answer(-EINVAL, "get_size", id);
  *nblocks = chunk->size_blocks();
  return 0;
}

CBLK_API int cblk_set_size(chunk_id_t id, size_t nblocks, int flags) {
  Use chunk(id);
  return answer(chunk ? chunk->set_size(nblocks, flags) : -EINVAL, "set_size", id);
}

CBLK_API int cblk_get_stats(chunk_id_t id, chunk_stats_t* stats, int) {
  Use chunk(id);
  if (!chunk || !stats) return answer(-EINVAL, "get_stats", id);
  chunk->stats(stats);
  return 0;
}

CBLK_API int cblk_get_attrs(chunk_id_t id, chunk_attrs_t* attrs, int) {
  Use chunk(id);
  if (!chunk || !attrs) return answer(-EINVAL, "get_attrs", id);
  chunk->attributes(attrs);
  return 0;
}

CBLK_API int cblk_read(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("read", Op::kRead, id, buf, lba, nblocks);
}
CBLK_API int cblk_write(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("write", Op::kWrite, id, buf, lba, nblocks);
}
CBLK_API int cblk_unmap(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("unmap", Op::kDiscard, id, buf, lba, nblocks);
}

CBLK_API int cblk_aread(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int* tag, cblk_arw_status_t* status,
                        int flags) {
  return issue("aread", Op::kRead, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_awrite(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int* tag, cblk_arw_status_t* status,
                         int flags) {
  return issue("awrite", Op::kWrite, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_aunmap(chunk_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int* tag, cblk_arw_status_t* status,
                         int flags) {
  return issue("aunmap", Op::kDiscard, id, buf, lba, nblocks, tag, status, flags);
}

CBLK_API int cblk_aresult(chunk_id_t id, int* tag, uint64_t* status, int flags) {
  Use chunk(id);
  if (!chunk || !tag) return answer(-EINVAL, "aresult", id);
  const int64_t blocks = chunk->result(tag, flags, chunk->result_deadline());
  if (status) *status = blocks > 0 ? static_cast<uint64_t>(blocks) : 0;
  return answer(blocks, "aresult", id);
}

CBLK_API int cblk_listio(chunk_id_t id, cblk_io_t* issue_list[], int nissue, cblk_io_t* pending[], int npending,
                         cblk_io_t* wait[], int nwait, cblk_io_t* completion[], int* ncompletion, uint64_t timeout_us,
                         int flags) {
  Use chunk(id);
  return answer(chunk ? chunk->list(issue_list, nissue, pending, npending, wait, nwait, completion, ncompletion, timeout_us, flags)
                      : -EINVAL, "listio", id);
}

CBLK_API int cblk_clone_after_fork(chunk_id_t id, int mode, int) {
  Use chunk(id);
  return answer(chunk ? chunk->clone_after_fork(mode) : -EINVAL, "clone_after_fork", id);
}
