// SPDX-License-Identifier: Apache-2.0
// Opening, sizing, describing and closing a chunk: see chunk.h.
//
// Memory: one mapping holds the chunk, its commands and the chains of user tags.
// Threading: any; all of this may block and allocate.
#include "cblk/chunk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "cblk/fork_handlers.h"
#include "cblk/open_device.h"
#include "cblk/wait.h"
#include "lun/raid/path_device.h"
#include "sys/arena.h"
#include "sys/log.h"

namespace lunar::cblk {
namespace {

constexpr uint32_t kRingDepthMax = 4096;
constexpr uint64_t kScrubBlocks = 4096;

}  // namespace

int Chunk::open(const Options& options, Chunk** out) {
  if (!options.path || !*options.path || (options.mode & O_ACCMODE) == O_ACCMODE) return -EINVAL;
  if ((options.flags & CBLK_OPN_MPIO_FO) &&
      (options.flags & (CBLK_OPN_RESERVE | CBLK_OPN_FORCED_RESERVE)))
    return -EINVAL;
  if (options.requests > kRequestsMax) return -ENOMEM;
  if (const int status = fork_handlers_install(); status < 0) return status;
  trace_open();
  const auto count =
      static_cast<uint32_t>(options.requests <= 0 ? kRequestsDefault : options.requests);
  const size_t commands_at = round_up(sizeof(Chunk), 64),
               bytes = commands_at + CommandTable::bytes_of(count);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* chunk = new (memory) Chunk(options.kind);
  chunk->mapping_bytes_ = bytes;
  chunk->commands_.init(memory + commands_at, count);
  chunk->depth_ = std::min(count, kRingDepthMax);
  chunk->sequence_ = options.sequence ? options.sequence : &chunk->own_sequence_;
  chunk->siblings_ = options.siblings;
  if (options.siblings) chunk->late_ = &options.siblings->late;
  chunk->finished_ = options.finished;
  chunk->access_ = options.mode & O_ACCMODE;
  chunk->flags_ = options.flags;

  const Environment environment = read_environment();
  chunk->command_timeout_ns_ = environment.command_timeout_ns;
  int status = chunk->open_device(options);
  if (status == 0) {
    chunk->find_limits(environment);
    chunk->bounces_.open(count);
    chunk->lanes_.open(chunk->device_, &chunk->bounces_, &chunk->cache_, chunk->late_);
  }
  // Chunks of a group may lie on one LUN, so a cache of each could hold stale blocks.
  if (status == 0 && options.kind == Kind::kChunk)
    status = chunk->cache_.open(environment.cache_blocks);
  if (status == 0) status = table_add(chunk);
  if (status < 0)
    chunk->destroy();
  else
    *out = chunk;
  trace_at(status < 0 ? kTraceFailures : kTraceCalls,
           "open %s lun %llu mode %d flags 0x%x requests %u: %d", options.path,
           static_cast<unsigned long long>(environment.lun_id), options.mode,
           static_cast<unsigned>(options.flags), count, status < 0 ? status : chunk->id);
  return status;
}

int Chunk::open_one(const char* path, Claim claim, Device** out, ErrorText* why) {
  if (flags_ & CBLK_OPN_VIRT_LUN) {
    VirtualLun* lun = nullptr;
    const int status = open_virtual(path, &lun, why);
    if (status == 0) *out = virtual_ = lun;
    return status;
  }
  return open_whole(path, access_ == O_RDONLY, claim, out, why);
}

// A group has one reservation; its further chunks must not conflict with it.
Claim Chunk::claim_of(const Options& options) {
  const bool forced = (options.flags & CBLK_OPN_FORCED_RESERVE) != 0;
  if (!forced && !(options.flags & CBLK_OPN_RESERVE)) return Claim::kWhole;
  return options.further ? Claim::kFurther : forced ? Claim::kForced : Claim::kAlone;
}

int Chunk::open_device(const Options& options) {
  ErrorText why;
  int status = 0;
  char* uri = nullptr;
  if (flags_ & CBLK_OPN_MPIO_FO) {
    uri = static_cast<char*>(map_private(kDevicesMax * kPathBytes, ForkPolicy::kInherit));
    status = uri ? paths_uri(options.path, uri, kDevicesMax * kPathBytes) : -ENOMEM;
    if (status == 0) status = open_one(uri, claim_of(options), &device_, &why);
    if (uri) unmap_private(uri, kDevicesMax * kPathBytes);
  } else {
    status = open_one(options.path, claim_of(options), &device_, &why);
  }
  if (status < 0 && why.text[0]) {
    trace("%s", why.text);
    LUNAR_LOG_LIMITED(log_warning, 10, "%s", why.text);  // errno alone does not say what to do
  }
  return status;
}

void Chunk::find_limits(const Environment& environment) {
  const Capabilities capabilities = device_->capabilities();
  can_unmap_ = capabilities.discard;
  buffer_align_ = capabilities.memory_align ? capabilities.memory_align : 1;
  timeout_ns_ = capabilities.instant ? 0 : environment.io_timeout_ns;
  if (virtual_) {
    transfer_blocks_max_ = 1;
    lun_blocks_ = virtual_->physical().device()->size_bytes() / kBlockBytes;
    return;
  }
  lun_blocks_ = device_->size_bytes() / kBlockBytes;
  const uint64_t carries = capabilities.transfer_bytes_max / kBlockBytes;
  if (carries && carries < transfer_blocks_max_) transfer_blocks_max_ = carries;
  if (environment.transfer_blocks_max && environment.transfer_blocks_max < transfer_blocks_max_)
    transfer_blocks_max_ = environment.transfer_blocks_max;
  if (environment.size_blocks && environment.size_blocks < lun_blocks_)
    lun_blocks_ = environment.size_blocks;
  size_blocks_.store(lun_blocks_, std::memory_order_relaxed);
}

int Chunk::attach() {
  ContextOptions options;
  options.depth = depth_;
  options.spin = false;
  options.shared = options.delegate = true;
  // Under a time limit all I/O uses buffers of the library. If they are registered, the kernel does
  // not pin them for each I/O.
  if (timeout_ns_ != 0) options.buffer = bounces_.window(&options.buffer_bytes);
  return device_->attach(options, &context_);
}

// pre: no longer in use.
void Chunk::destroy() {
  lanes_.close();
  if (context_) device_->detach(context_);
  if (device_) device_close(device_);
  cache_.close();
  bounces_.close();
  unmap_private(this, mapping_bytes_);
}

// Refuses new commands, and waits until no command is in progress and every result is fetched.
// False: the deadline has passed; see reopen().
bool Chunk::drain(uint64_t deadline_ns) {
  lock_.lock();
  closing_ = true;
  waiters_.signal_all(Waiter::kFree);
  Waiter waiter(Waiter::kIdle);
  const int status =
      wait_until(&waiter, deadline_ns, [this] { return idle() && commands_.fetchable() == 0; });
  unlock();
  return status == 0 && late_end(deadline_ns);
}

// Waits until the device has released all late blocking I/O. False: the deadline has passed.
bool Chunk::late_end(uint64_t deadline_ns) {
  while (lanes_.sweep() != 0) {
    if (sys::now_ns() >= deadline_ns) return false;
    sys::sleep_ns(kLostRetryNs);
  }
  return true;
}

void Chunk::reopen() {
  lock_.lock();
  closing_ = false;
  unlock();
}

int Chunk::close(int flags) {
  const uint64_t deadline = sys::now_ns() + kCloseWaitNs;
  if (being_closed_.exchange(true)) return -EINVAL;  // another thread closes it
  bool over = drain(deadline) && table_shut(this, 1, deadline) == 0;
  if (over && !late_end(deadline)) {  // I/O that was in progress has become late since drain()
    table_reopen(this);
    over = false;
  }
  if (!over) {
    reopen();
    being_closed_.store(false);
    trace("close %d: busy", id);
    return -EBUSY;
  }
  end(flags);
  return 0;
}

// pre: drained and shut; the caller is its only user. The object is gone.
void Chunk::end(int flags) {
  registry_remove(this);
  completer_.stop();
  const bool asked = ((flags | flags_) & CBLK_SCRUB_DATA_FLG) && virtual_;
  // Another process may still use the data.
  const bool shared = shared_by_fork_.load(std::memory_order_relaxed);
  if (asked && !shared) (void)scrub(0, size_blocks());
  trace_at(kTraceCalls, "close %d%s", id,
           asked && shared ? ": not scrubbed, a fork shared it" : "");
  Slot* const place = slot;
  destroy();
  place->word.fetch_sub(1, std::memory_order_release);  // the closer's own use
}

// Overwrites [from, to) with zeros. 0 or -errno.
int Chunk::scrub(uint64_t from, uint64_t to) {
  constexpr size_t kBytes = kScrubBlocks * kBlockBytes;
  char* zeros = nullptr;
  int64_t status = 0;
  for (uint64_t at = from; at < to && status >= 0; at += kScrubBlocks) {
    const uint64_t blocks = std::min(to - at, kScrubBlocks);
    ::lunar::Command command;
    command.op = Op::kDiscard;
    command.offset = DeviceOffset{at * kBlockBytes};
    command.length = blocks * kBlockBytes;
    status = can_unmap_ ? device_->transfer(command) : -EOPNOTSUPP;
    if (status >= 0) continue;
    if (!zeros) zeros = static_cast<char*>(map_private(kBytes, ForkPolicy::kInherit));
    if (!zeros) return -ENOMEM;
    const iovec part = {zeros, command.length};
    command.op = Op::kWrite;
    command.iov = &part;
    command.iov_count = 1;
    status = device_->transfer(command);
  }
  if (zeros) unmap_private(zeros, kBytes);
  return status < 0 ? static_cast<int>(status) : 0;
}

uint64_t Chunk::most_blocks(unsigned sharers) {
  return virtual_ ? (virtual_->used_bytes() + virtual_->remaining_bytes() / sharers) / kBlockBytes
                  : 0;
}

bool Chunk::is_on_device_of(const Chunk& other) const {
  return same_backing_device(device_, other.device_);
}

int Chunk::set_size(uint64_t blocks, int flags) {
  if (!virtual_ || inherited_.load(std::memory_order_relaxed)) return -EINVAL;
  sys::Locked guard(resize_);
  const uint64_t now = size_blocks();
  ErrorText why;
  if (blocks == UINT64_MAX) blocks = most_blocks(1);
  if (blocks > lun_blocks_) return -EINVAL;
  if (blocks < now) {
    if (!can_shrink()) return -EBUSY;
    size_blocks_.exchange(blocks);  // no new I/O begins behind the new end; drain_io() waits
    if (!drain_io() || !can_shrink()) {
      size_blocks_.store(now);
      return -EBUSY;
    }
    if (cache_.active()) cache_.drop(blocks, now - blocks);
    if ((flags | flags_) & CBLK_SCRUB_DATA_FLG) {  // before the space may belong to another LUN
      if (const int status = scrub(blocks, now); status < 0) {
        size_blocks_.store(now);
        return status;
      }
    }
  }
  const int status = virtual_->set_size(blocks * kBlockBytes, &why);
  size_blocks_.store(status < 0 ? now : blocks);
  trace_at(status < 0 ? kTraceFailures : kTraceCalls, "set_size %d %llu: %d %s", id,
           static_cast<unsigned long long>(blocks), status, status < 0 ? why.text : "");
  return status == -ENOSPC ? -ENOMEM : status;
}

// A chunk cannot shrink while asynchronous commands are in progress or the device has late I/O; the
// caller must wait for them first. Nor can it shrink while another process uses it, because that
// process could access space that then belongs to another LUN.
bool Chunk::can_shrink() {
  if (virtual_->is_joined_by_others()) return false;
  lock_.lock();
  while (!leader_ && reap()) {}
  const bool over = idle();
  unlock();
  return over && lanes_.sweep() == 0;
}

// Waits for blocking I/O that began before. I/O that begins meanwhile has seen the new size.
bool Chunk::drain_io() {
  return phases_.drain(sys::now_ns() + kCloseWaitNs, [this](unsigned phase) {
    return phase_count_.inside[phase].load(std::memory_order_seq_cst);
  });
}

int Chunk::clone_after_fork(int mode) {
  const int access = mode & O_ACCMODE;
  if (access == O_ACCMODE || (access != access_ && access_ != O_RDWR)) return -EINVAL;
  lock_.lock();
  const bool inherited = inherited_.load(std::memory_order_relaxed);
  const bool busy =
      inherited ? active_at_fork_
                : !forked_ && in_ring_ - lost_ + commands_.backlog() + commands_.fetchable() != 0;
  int status = busy ? -EBUSY : 0;
  if (!busy && inherited) {
    status = virtual_->join();
    if (status == 0) {
      // Another process that shares it may have resized it.
      size_blocks_.store(virtual_->used_bytes() / kBlockBytes, std::memory_order_release);
      access_ = access;
      inherited_.store(false, std::memory_order_relaxed);
    }
  }
  unlock();
  return status;
}

}  // namespace lunar::cblk
