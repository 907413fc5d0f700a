// SPDX-License-Identifier: Apache-2.0
// cblk_listio: many I/Os in one call.
//
// Idea: prepares and admits the list in runs. The chunk's lock is taken once per run, and the run
// is submitted to the ring together. Finished I/Os are fetched like any other result, one by one,
// with the waits of wait.cpp.
//
// Callers may pass copies, even copies made before the issue. An entry stands for the I/O of its
// type with the same buf, lba and nblocks, which is looked for at the entry's tag first. The
// outcome of an I/O is written to all entries that stand for it. An I/O that is not in `wait` is
// written to the next structure of `completion`, once, in the call that fetches its result.
// Threading: any; a cblk_io_t belongs to one call at a time. Allocates nothing.
#include <errno.h>

#include <algorithm>

#include "cblk/wait.h"

namespace lunar::cblk {
namespace {

constexpr int kRun = 64;

bool background(const cblk_io_t* io) { return (io->flags & CBLK_IO_USER_STATUS) != 0; }
bool is_pending(cblk_io_t* io) { return get_status(&io->stat) == CBLK_ARW_STATUS_PENDING; }

bool translate(const cblk_io_t* entry, Io* io) {
  switch (entry->request_type) {
    case CBLK_IO_TYPE_READ:
      io->op = Op::kRead;
      break;
    case CBLK_IO_TYPE_WRITE:
      io->op = Op::kWrite;
      break;
    case CBLK_IO_TYPE_UNMAP:
      io->op = Op::kDiscard;
      break;
    default:
      return false;
  }
  io->buffer = static_cast<char*>(entry->buf);
  io->lba = entry->lba;
  io->blocks = entry->nblocks;
  return entry->buf != nullptr;
}

// One of the lists of a call.
struct List {
  cblk_io_t** entries;
  int count;
  bool waits = false;
  int cursor = 0;  // where the last search ended: most lists name the same I/Os in the same order

  bool is_whole() const {
    if (count < 0 || (count > 0 && !entries)) return false;
    for (int i = 0; i < count; ++i) {
      if (!entries[i]) return false;
    }
    return true;
  }
  // Checks all entries. An invalid entry gets EINVAL in its stat. False: an entry is invalid.
  bool is_sound() const {
    for (int i = 0; i < count; ++i) {
      Io ignored;
      if (translate(entries[i], &ignored) && !(waits && background(entries[i]))) continue;
      entries[i]->stat.blocks_transferred = 0;
      entries[i]->stat.fail_errno = EINVAL;
      set_status(&entries[i]->stat, CBLK_ARW_STATUS_INVALID);
      return false;
    }
    return true;
  }
  // The first entry that stands for `io`, or nullptr. by_tag: prefers the one with its tag, or one
  // that is still pending.
  cblk_io_t* find(const cblk_io_t* io, bool by_tag) {
    int found = -1;
    for (int i = 0; i < count; ++i) {
      const int at = cursor + i < count ? cursor + i : cursor + i - count;
      cblk_io_t* one = entries[at];
      if (one != io && (one->request_type != io->request_type || one->buf != io->buf ||
                        one->lba != io->lba || one->nblocks != io->nblocks))
        continue;
      if (one == io || !by_tag || one->tag == io->tag) {
        found = at;
        break;
      }
      if (found < 0 || (!is_pending(entries[found]) && is_pending(one))) found = at;
    }
    if (found < 0) return nullptr;
    cursor = found + 1 < count ? found + 1 : 0;
    return entries[found];
  }
};

void copy_state(cblk_io_t* to, cblk_io_t* from) {
  if (to == from) return;
  to->tag = from->tag;
  const cblk_status_type_t status = get_status(&from->stat);
  to->stat.blocks_transferred = from->stat.blocks_transferred;
  to->stat.fail_errno = from->stat.fail_errno;
  set_status(&to->stat, status);
}

}  // namespace

class ListRun {
 public:
  ListRun(Chunk& chunk, int flags, uint64_t deadline_ns, List issue, List pending, List wait,
          List completion)
      : chunk_(chunk),
        waits_((flags & CBLK_LISTIO_WAIT_ISSUE_CMD) != 0),
        deadline_ns_(deadline_ns),
        issue_(issue),
        pending_(pending),
        wait_(wait),
        completion_(completion) {}
  void issue();
  void look_at_pending();
  [[nodiscard]] int await();  // 0 or -ETIMEDOUT
  int completions() const { return completions_; }

 private:
  void admit(cblk_io_t** list, int n);
  void refuse(cblk_io_t* io, int64_t answer);
  bool make_room();
  bool look(cblk_io_t* io, int flags);
  void settle(cblk_io_t* io, bool by_tag);
  void look_at_waiting(cblk_io_t* io, int flags);

  Chunk& chunk_;
  const bool waits_;
  const uint64_t deadline_ns_;
  List issue_, pending_, wait_, completion_;
  int completions_ = 0;
  // Of issue_: the number of entries issued, and the first one that may not be done.
  int issued_ = 0, oldest_ = 0;
};

// Reports the outcome of an I/O of issue_ or pending_.
void ListRun::settle(cblk_io_t* io, bool by_tag) {
  if (cblk_io_t* waiting = wait_.find(io, by_tag)) {
    copy_state(waiting, io);
  } else if (completions_ < completion_.count) {
    cblk_io_t* place = completion_.entries[completions_++];
    if (place != io) *place = *io;
  }
}

void ListRun::refuse(cblk_io_t* io, int64_t answer) {
  fill_status(&io->stat, answer);
  settle(io, false);
}

// Waits for one of the list's own commands that can be fetched, so that it becomes free. False: no
// command can be fetched, or none was done in time.
bool ListRun::make_room() {
  for (; oldest_ < issued_; ++oldest_) {
    cblk_io_t* io = issue_.entries[oldest_];
    if (background(io) || !is_pending(io)) continue;
    if (!look(io, CBLK_ARESULT_BLOCKING)) return false;
    settle(io, false);
    return true;
  }
  return false;
}

void ListRun::admit(cblk_io_t** list, int n) {
  Io ios[kRun];
  int64_t answers[kRun];  // 0: it goes to the ring
  for (int i = 0; i < n; ++i) {
    list[i]->stat = {};
    (void)translate(list[i], &ios[i]);
    ios[i].has_user_tag = (list[i]->flags & CBLK_IO_USER_TAG) != 0;
    ios[i].user_tag = list[i]->tag;
    ios[i].status = background(list[i]) ? &list[i]->stat : nullptr;
    answers[i] = chunk_.prepare(&ios[i]);
  }
  bool background_work = false;
  chunk_.lock_.lock();
  for (int i = 0; i < n;) {
    if (answers[i] == 0) {
      uint32_t index = kNone;
      answers[i] = chunk_.admit(&ios[i], &index);
      if (answers[i] == -EWOULDBLOCK && waits_ && !ios[i].wait_for_command) {
        answers[i] = 0;
        chunk_.push_backlog();
        chunk_.unlock();
        if (background_work) chunk_.completer_.wake();
        if (!make_room()) {  // all commands belong to other calls
          ios[i].wait_for_command = true;
          ios[i].wait_deadline_ns = deadline_ns_;
        }
        chunk_.lock_.lock();
        continue;
      }
      if (answers[i] < 0) {
        chunk_.drop(&ios[i]);
      } else {
        if (!ios[i].has_user_tag) list[i]->tag = static_cast<int>(index);
        background_work |= ios[i].status != nullptr;
      }
    }
    if (answers[i] != 0) fill_status(&list[i]->stat, answers[i]);  // make_room() must skip it
    ++i;
    ++issued_;
  }
  chunk_.push_backlog();
  chunk_.unlock();
  if (background_work) chunk_.completer_.wake();
  for (int i = 0; i < n; ++i) {
    if (answers[i] != 0) {
      refuse(list[i], answers[i]);
    } else if (!background(list[i])) {
      if (cblk_io_t* waiting = wait_.find(list[i], false))
        copy_state(waiting, list[i]);  // for the tag
    }
  }
}

void ListRun::issue() {
  for (int i = 0; i < issue_.count; i += kRun)
    admit(issue_.entries + i, std::min(issue_.count - i, kRun));
}

// Whether an I/O is done; sets its stat. Waits until the deadline if the flags say so.
bool ListRun::look(cblk_io_t* io, int flags) {
  int tag = io->tag;
  const bool user = (io->flags & CBLK_IO_USER_TAG) != 0;
  Io like;
  (void)translate(io, &like);
  like.has_user_tag = user;
  like.user_tag = tag;
  const int64_t result =
      chunk_.result(&tag, flags | (user ? CBLK_ARESULT_USER_TAG : 0), deadline_ns_, &like);
  io->tag = tag;  // even if it is not done, so that the next look finds it at once
  if (result == 0) return false;
  fill_status(&io->stat, result);
  return true;
}

void ListRun::look_at_pending() {
  if (pending_.count) chunk_.harvest();
  for (int i = 0; i < pending_.count; ++i) {
    cblk_io_t* io = pending_.entries[i];
    if (!background(io) && is_pending(io) && look(io, CBLK_ARESULT_NO_HARVEST)) settle(io, true);
  }
}

void ListRun::look_at_waiting(cblk_io_t* io, int flags) {
  if (!is_pending(io) || !look(io, flags)) return;
  cblk_io_t* source = issue_.find(io, true);
  if (!source) source = pending_.find(io, true);
  if (source) copy_state(source, io);
}

int ListRun::await() {
  for (int i = 0; i < wait_.count; ++i) {
    look_at_waiting(wait_.entries[i], CBLK_ARESULT_BLOCKING);
    if (!is_pending(wait_.entries[i])) continue;
    chunk_.harvest();
    // Reports the I/Os that are done.
    for (int rest = i + 1; rest < wait_.count; ++rest)
      look_at_waiting(wait_.entries[rest], CBLK_ARESULT_NO_HARVEST);
    return -ETIMEDOUT;
  }
  return 0;
}

int Chunk::list(cblk_io_t** issue, int issues, cblk_io_t** pending, int pendings, cblk_io_t** wait,
                int waits, cblk_io_t** completion, int* completions, uint64_t timeout_us,
                int flags) {
  if (!completions) return -EINVAL;
  const List issue_list{issue, issues}, pending_list{pending, pendings},
      wait_list{wait, waits, true};
  const List completion_list{completion, *completions};
  if (!issue_list.is_whole() || !pending_list.is_whole() || !wait_list.is_whole() ||
      !completion_list.is_whole())
    return -EINVAL;
  if (issues == 0 && pendings == 0 && waits == 0) return -EINVAL;
  if (static_cast<int64_t>(waits) + *completions < static_cast<int64_t>(issues) + pendings)
    return -EINVAL;
  if (!issue_list.is_sound() || !pending_list.is_sound() || !wait_list.is_sound()) return -EINVAL;
  const bool limited = timeout_us != 0 && timeout_us < kForever / 2000;
  const uint64_t deadline = limited ? sys::now_ns() + timeout_us * 1000 : kForever;
  ListRun run(*this, flags, deadline, issue_list, pending_list, wait_list, completion_list);
  run.issue();
  run.look_at_pending();
  const int status = run.await();
  *completions = run.completions();
  return status;
}

}  // namespace lunar::cblk
