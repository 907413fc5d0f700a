// SPDX-License-Identifier: Apache-2.0
// cblk_listio: many I/Os in one call.
//
// Idea: the list is prepared and admitted in runs, each under one hold of the chunk's lock and handed to the ring in one go. What
// is done is then asked for like any other result, one by one; the waiting is that of wait.cpp.
// Threading: any; a cblk_io_t belongs to one call at a time. Allocates nothing.
#include <errno.h>

#include "cblk/wait.h"

namespace lunar::cblk {
namespace {

constexpr int kRun = 64;

bool background(const cblk_io_t* io) { return (io->flags & CBLK_IO_USER_STATUS) != 0; }

void refuse(cblk_io_t* io, int64_t error) {
  io->stat.blocks_transferred = 0;
  io->stat.fail_errno = static_cast<int>(-error);
  set_status(&io->stat, CBLK_ARW_STATUS_INVALID);
}

bool listed(cblk_io_t* const* list, int n, const cblk_io_t* io, int hint) {
  if (hint < n && list[hint] == io) return true;   // most lists name the same I/Os in the same order
  for (int i = 0; i < n; ++i) {
    if (list[i] == io) return true;
  }
  return false;
}

bool valid(cblk_io_t* const* list, int n) {
  if (n < 0 || (n > 0 && !list)) return false;
  for (int i = 0; i < n; ++i) {
    if (!list[i]) return false;
  }
  return true;
}

}  // namespace

class ListRun {
 public:
  ListRun(Chunk& chunk, int flags, uint64_t deadline_ns)
      : chunk_(chunk), waits_((flags & CBLK_LISTIO_WAIT_ISSUE_CMD) != 0), deadline_ns_(deadline_ns) {}
  void issue(cblk_io_t** list, int n);
  // Whether it is done; by the deadline, if it is not known yet and the flags say that it blocks.
  bool look(cblk_io_t* io, int flags);

 private:
  bool translate(cblk_io_t* entry, Io* io);
  void admit(cblk_io_t** list, int n);
  bool make_room();

  Chunk& chunk_;
  const bool waits_;
  const uint64_t deadline_ns_;
  cblk_io_t** issued_ = nullptr;   // the whole list, and how far it is issued
  int issued_count_ = 0;
  int oldest_ = 0;                 // of issued_, that may not be done
};

bool ListRun::translate(cblk_io_t* entry, Io* io) {
  switch (entry->request_type) {
    case CBLK_IO_TYPE_READ: io->op = Op::kRead; break;
    case CBLK_IO_TYPE_WRITE: io->op = Op::kWrite; break;
    case CBLK_IO_TYPE_UNMAP: io->op = Op::kDiscard; break;
    default: return false;
  }
  io->buffer = static_cast<char*>(entry->buf);
  io->lba = entry->lba;
  io->blocks = entry->nblocks;
  io->has_user_tag = (entry->flags & CBLK_IO_USER_TAG) != 0;
  io->user_tag = entry->tag;
  io->status = background(entry) ? &entry->stat : nullptr;
  return true;
}

// Waits for one of the list's own commands that can be fetched, so that its place is free. False: there is none, or none
// in time.
bool ListRun::make_room() {
  for (; oldest_ < issued_count_; ++oldest_) {
    cblk_io_t* io = issued_[oldest_];
    if (background(io) || get_status(&io->stat) != CBLK_ARW_STATUS_PENDING) continue;
    return look(io, CBLK_ARESULT_BLOCKING);
  }
  return false;
}

void ListRun::admit(cblk_io_t** list, int n) {
  Io ios[kRun];
  bool ready[kRun];
  for (int i = 0; i < n; ++i) {
    cblk_io_t* entry = list[i];
    entry->stat = {};
    int64_t answer = translate(entry, &ios[i]) ? chunk_.prepare(&ios[i]) : -EINVAL;
    ready[i] = answer == 0;
    if (answer < 0) refuse(entry, answer);
    else if (answer > 0) fill_status(&entry->stat, answer);
  }
  bool background_work = false;
  chunk_.lock_.lock();
  for (int i = 0; i < n;) {
    if (!ready[i]) {
      ++i;
      ++issued_count_;
      continue;
    }
    uint32_t index = kNone;
    const int64_t status = chunk_.admit(&ios[i], &index);
    if (status == -EWOULDBLOCK && waits_ && !ios[i].wait_for_command) {
      chunk_.push_backlog();
      chunk_.unlock();
      if (background_work) chunk_.wake_completer();
      if (!make_room()) {   // the places are others'
        ios[i].wait_for_command = true;
        ios[i].wait_deadline_ns = deadline_ns_;
      }
      chunk_.lock_.lock();
      continue;
    }
    if (status < 0) {
      chunk_.drop(&ios[i]);
      refuse(list[i], status);
    } else {
      if (!ios[i].has_user_tag) list[i]->tag = static_cast<int>(index);
      background_work |= ios[i].status != nullptr;
    }
    ++i;
    ++issued_count_;
  }
  chunk_.push_backlog();
  chunk_.unlock();
  if (background_work) chunk_.wake_completer();
}

void ListRun::issue(cblk_io_t** list, int n) {
  issued_ = list;
  for (int i = 0; i < n; i += kRun) admit(list + i, n - i < kRun ? n - i : kRun);
}

bool ListRun::look(cblk_io_t* io, int flags) {
  if (get_status(&io->stat) != CBLK_ARW_STATUS_PENDING) return true;
  if (background(io)) return false;
  int tag = io->tag;
  if ((flags & CBLK_ARESULT_NO_HARVEST) && !(io->flags & CBLK_IO_USER_TAG) && chunk_.under_way(tag)) return false;
  const int64_t result = chunk_.result(&tag, flags | (io->flags & CBLK_IO_USER_TAG ? CBLK_ARESULT_USER_TAG : 0), deadline_ns_);
  if (result == 0 || result == -ETIMEDOUT) return false;
  if (result == -EINVAL || result == -ENOMSG) refuse(io, -EINVAL);   // no such command
  else fill_status(&io->stat, result);
  return true;
}

int Chunk::list(cblk_io_t** issue, int issues, cblk_io_t** pending, int pendings, cblk_io_t** wait, int waits,
                cblk_io_t** completion, int* completions, uint64_t timeout_us, int flags) {
  const int room = completions ? *completions : 0;
  if (!valid(issue, issues) || !valid(pending, pendings) || !valid(wait, waits) || room < 0 || (room > 0 && !completion)) return -EINVAL;
  if (static_cast<int64_t>(waits) + room < static_cast<int64_t>(issues) + pendings) return -EINVAL;
  for (int i = 0; i < waits; ++i) {
    if (background(wait[i])) return -EINVAL;
  }
  const bool limited = timeout_us != 0 && timeout_us < kForever / 2000;
  const uint64_t deadline = limited ? sys::now_ns() + timeout_us * 1000 : kForever;
  ListRun run(*this, flags, deadline);
  run.issue(issue, issues);
  int status = 0;
  for (int i = 0; i < waits && status == 0; ++i) {
    if (!run.look(wait[i], CBLK_ARESULT_BLOCKING)) status = -ETIMEDOUT;
  }
  harvest();
  for (int i = 0; i < waits && status < 0; ++i) (void)run.look(wait[i], CBLK_ARESULT_NO_HARVEST);   // what is done is told
  int done = 0;
  for (int l = 0; l < 2; ++l) {
    cblk_io_t** from = l == 0 ? issue : pending;
    const int n = l == 0 ? issues : pendings;
    for (int i = 0; i < n; ++i) {
      const bool over = run.look(from[i], CBLK_ARESULT_NO_HARVEST);
      if (!over || done == room || listed(wait, waits, from[i], i)) continue;
      completion[done++] = from[i];
    }
  }
  for (int i = done; i < room; ++i) completion[i] = nullptr;
  if (completions) *completions = done;
  return status;
}

}  // namespace lunar::cblk
