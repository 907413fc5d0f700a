// SPDX-License-Identifier: Apache-2.0
// The C calls on groups: arguments in, errno out.
// Threading: any.
#include <errno.h>

#include "cblk/group.h"

using namespace lunar;
using namespace lunar::cblk;

#define CBLK_API extern "C" __attribute__((visibility("default")))

namespace {

class Use {
 public:
  explicit Use(chunk_cg_id_t id) : group_(static_cast<Group*>(table_acquire(id, Kind::kGroup))) {}
  ~Use() {
    if (group_) table_release(group_);
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const { return group_ != nullptr; }
  Group* operator->() const { return group_; }
  void leave() { group_ = nullptr; }   // it is gone

 private:
  Group* group_;
};

int answer(int64_t status, const char* call, int id) {
  if (status >= 0) return static_cast<int>(status);
  if (trace_active()) trace("cg_%s %d: errno %d", call, id, static_cast<int>(-status));
  errno = static_cast<int>(-status);
  return -1;
}

int transfer(const char* call, Op op, chunk_cg_id_t id, void* buffer, cflash_offset_t lba, size_t blocks) {
  Use group(id);
  if (!group) return answer(-EINVAL, call, id);
  Io io;
  io.op = op;
  io.buffer = static_cast<char*>(buffer);
  io.lba = lba;
  io.blocks = blocks;
  return answer(group->next().transfer(&io), call, id);
}

int issue(const char* call, Op op, chunk_cg_id_t id, void* buffer, cflash_offset_t lba, size_t blocks, cflsh_cg_tag_t* tag,
          cblk_arw_status_t* status, int flags) {
  Use group(id);
  const bool with_status = (flags & CBLK_ARW_USER_STATUS_FLAG) != 0;
  if (!group || !tag || (with_status && !status)) return answer(-EINVAL, call, id);
  Io io;
  io.op = op;
  io.buffer = static_cast<char*>(buffer);
  io.lba = lba;
  io.blocks = blocks;
  io.status = with_status ? status : nullptr;
  io.has_user_tag = (flags & CBLK_ARW_USER_TAG_FLAG) != 0;
  io.user_tag = io.has_user_tag ? tag->tag : 0;
  io.wait_for_command = (flags & CBLK_ARW_WAIT_CMD_FLAGS) != 0;
  Chunk& chunk = group->next();
  tag->id = chunk.id;
  return answer(chunk.issue(&io, &tag->tag), call, id);
}

}  // namespace

CBLK_API chunk_cg_id_t cblk_cg_open(const char* path, int max_num_requests, int mode, int num_chunks, chunk_ext_arg_t, int flags) {
  Group* group = nullptr;
  Chunk::Options options;
  options.path = path;
  options.requests = max_num_requests;
  options.mode = mode;
  options.flags = flags;
  const int status = Group::open(options, num_chunks, &group);
  return status < 0 ? answer(status, "open", 0) : group->id;
}

CBLK_API int cblk_cg_close(chunk_cg_id_t id, int flags) {
  Use group(id);
  if (!group) return answer(-EINVAL, "close", id);
  const int status = group->close(flags);
  if (status == 0) group.leave();
  return answer(status, "close", id);
}

CBLK_API int cblk_cg_get_num_chunks(chunk_cg_id_t id, int) {
  Use group(id);
  return answer(group ? group->chunks() : -EINVAL, "get_num_chunks", id);
}

CBLK_API int cblk_cg_get_lun_size(chunk_cg_id_t id, size_t* nblocks, int) {
  Use group(id);
  if (!group || !nblocks) return answer(-EINVAL, "get_lun_size", id);
  *nblocks = group->first().lun_blocks();
  return 0;
}

CBLK_API int cblk_cg_get_size(chunk_cg_id_t id, size_t* nblocks, int) {
  Use group(id);
  if (!group || !nblocks) return answer(-EINVAL, "get_size", id);
  *nblocks = group->first().size_blocks();
  return 0;
}

CBLK_API int cblk_cg_set_size(chunk_cg_id_t id, size_t nblocks, int flags) {
  Use group(id);
  return answer(group ? group->first().set_size(nblocks, flags) : -EINVAL, "set_size", id);
}

CBLK_API int cblk_cg_get_stats(chunk_cg_id_t id, chunk_stats_t* stats, int) {
  Use group(id);
  if (!group || !stats) return answer(-EINVAL, "get_stats", id);
  group->stats(stats);
  return 0;
}

CBLK_API int cblk_cg_get_attrs(chunk_cg_id_t id, chunk_attrs_t* attrs, int) {
  Use group(id);
  if (!group || !attrs) return answer(-EINVAL, "get_attrs", id);
  group->first().attributes(attrs);
  return 0;
}

CBLK_API int cblk_cg_read(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("read", Op::kRead, id, buf, lba, nblocks);
}
CBLK_API int cblk_cg_write(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("write", Op::kWrite, id, buf, lba, nblocks);
}
CBLK_API int cblk_cg_unmap(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, int) {
  return transfer("unmap", Op::kDiscard, id, buf, lba, nblocks);
}

CBLK_API int cblk_cg_aread(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, cflsh_cg_tag_t* tag,
                           cblk_arw_status_t* status, int flags) {
  return issue("aread", Op::kRead, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_cg_awrite(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, cflsh_cg_tag_t* tag,
                            cblk_arw_status_t* status, int flags) {
  return issue("awrite", Op::kWrite, id, buf, lba, nblocks, tag, status, flags);
}
CBLK_API int cblk_cg_aunmap(chunk_cg_id_t id, void* buf, cflash_offset_t lba, size_t nblocks, cflsh_cg_tag_t* tag,
                            cblk_arw_status_t* status, int flags) {
  return issue("aunmap", Op::kDiscard, id, buf, lba, nblocks, tag, status, flags);
}

CBLK_API int cblk_cg_aresult(chunk_cg_id_t id, cflsh_cg_tag_t* tag, uint64_t* status, int flags) {
  Use group(id);
  if (!group || !tag) return answer(-EINVAL, "aresult", id);
  int64_t blocks = -EINVAL;
  if (flags & CBLK_ARESULT_NEXT_TAG) {
    blocks = group->next_result(tag, flags);
  } else if (Chunk* chunk = group->find(tag->id)) {
    blocks = chunk->result(&tag->tag, flags, chunk->result_deadline());
  }
  if (status) *status = blocks > 0 ? static_cast<uint64_t>(blocks) : 0;
  return answer(blocks, "aresult", id);
}

CBLK_API int cblk_cg_clone_after_fork(chunk_cg_id_t id, int mode, int) {
  Use group(id);
  return answer(group ? group->clone_after_fork(mode) : -EINVAL, "clone_after_fork", id);
}
