// SPDX-License-Identifier: Apache-2.0
// See capi_context.h.
#include "superpipe/capi/capi_context.h"

#include <errno.h>

#include <algorithm>
#include <new>

#include "superpipe/ring/sync_context.h"
#include "sys/arena.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr unsigned kDepthMax = 4096;
constexpr uint64_t kBlockBytes = 4096;
// A wait polls the library without a pause for kSpinNs, then every kNapNs.
constexpr uint64_t kSpinNs = 100'000, kNapNs = 20'000;

}  // namespace

int CapiContext::create(CapiDevice* device, int chunk, const ContextOptions& options,
                        OwnedContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const size_t head = round_up(sizeof(CapiContext), 64),
               bytes = head + options.depth * sizeof(InFlight);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) CapiContext;
  context->device_ = device;
  context->chunk_ = chunk;
  context->entries_ = reinterpret_cast<InFlight*>(memory + head);
  context->depth_ = options.depth;
  context->mapping_bytes_ = bytes;
  *out = context;
  return 0;
}

void CapiContext::release() {
  drain();
  // In a forked child the chunk belongs to the parent.
  if (mine()) (void)device_->library().close(chunk_, 0);
  unmap_private(this, mapping_bytes_);
}

void CapiContext::send(InFlight* entry) {
  const Command& command = entry->command;
  const iovec& part = command.iov[entry->part];
  const size_t left = (part.iov_len - entry->skip) / kBlockBytes, most = device_->blocks_max();
  entry->piece = static_cast<uint32_t>(std::min(left, most));
  const auto block = static_cast<off_t>(device_->first_block() +
                                        (command.offset.value + entry->done) / kBlockBytes);
  const auto issue = command.op == Op::kRead ? device_->library().aread : device_->library().awrite;
  int tag = -1;
  errno = 0;
  const int moved = issue(chunk_, static_cast<char*>(part.iov_base) + entry->skip, block,
                          entry->piece, &tag, nullptr, 0);
  entry->tag = tag;
  if (moved > 0) {
    advance(entry, moved);  // the piece is already complete
  } else if (moved < 0 && errno == EWOULDBLOCK) {
    entry->tag = kUnsent;
  } else if (moved < 0) {
    entry->tag = kEnded;
    entry->result = errno ? -errno : -EIO;
  }
}

// Notes that the piece in progress is complete. collect() sends the rest.
void CapiContext::advance(InFlight* entry, int moved_blocks) {
  const uint64_t bytes = static_cast<uint64_t>(moved_blocks) * kBlockBytes;
  entry->done += bytes;
  entry->skip += bytes;
  while (entry->part < entry->command.iov_count &&
         entry->skip >= entry->command.iov[entry->part].iov_len)
    entry->skip -= entry->command.iov[entry->part++].iov_len;
  const bool finished =
      entry->part == entry->command.iov_count || static_cast<uint32_t>(moved_blocks) < entry->piece;
  entry->tag = finished ? kEnded : kUnsent;
  entry->result = static_cast<int64_t>(entry->done);
  if (!finished || entry->command.op != Op::kWrite || !entry->command.fua) return;
  if (const int err = device_->flush(); err < 0) entry->result = err;
}

// Takes completions from the library, and sends pieces that wait.
void CapiContext::collect() {
  for (;;) {
    int tag = -1;
    uint64_t status = 0;
    errno = 0;
    const int moved = device_->library().aresult(chunk_, &tag, &status, CapiLibrary::kNextTag);
    if (tag < 0) break;  // no command is complete, or none is active
    if (moved == 0) break;
    for (unsigned i = 0; i < in_flight_; ++i) {
      InFlight& entry = entries_[i];
      if (entry.tag != tag) continue;
      if (moved > 0) {
        advance(&entry, moved);
      } else {
        entry.tag = kEnded;
        entry.result = errno ? -errno : -EIO;
      }
      break;
    }
  }
  for (unsigned i = 0; i < in_flight_; ++i) {
    while (entries_[i].tag == kUnsent) {
      const uint64_t before = entries_[i].done;
      send(&entries_[i]);
      if (entries_[i].done == before) break;  // it was sent, it ended, or no command is free
    }
  }
}

int CapiContext::submit(const Command* commands, unsigned n) {
  unsigned taken = 0;
  const uint64_t now = sys::now_ns();
  for (; taken < n && in_flight_ < depth_; ++taken) {
    InFlight& entry = entries_[in_flight_++];
    entry = {commands[taken], now, 0, 0, 0, 0, kUnsent, 0};
    const int check = device_->check(commands[taken]);
    if (check != 0 || commands[taken].op == Op::kFlush) {
      entry.tag = kEnded;
      entry.result = check < 0 ? check : check > 0 ? 0 : device_->flush();
    } else {
      send(&entry);
    }
  }
  return taken || n == 0 ? static_cast<int>(taken) : -EAGAIN;
}

int CapiContext::reap(Response* out, unsigned max) {
  if (in_flight_) collect();
  unsigned taken = 0, kept = 0;
  for (unsigned i = 0; i < in_flight_; ++i) {
    InFlight& entry = entries_[i];
    if (entry.tag == kEnded && taken < max) {
      if (entry.command.op == Op::kRead && entry.result > 0)
        latency_.add(sys::now_ns() - entry.start_ns);
      out[taken++] = {entry.command.tag, entry.result};
    } else if (kept++ != i) {
      entries_[kept - 1] = entry;
    }
  }
  in_flight_ = kept;
  if (taken < max && watches_.used) {
    const int n = serve_watches(&watches_, out + taken, max - taken, 0);
    if (n > 0) taken += static_cast<unsigned>(n);
  }
  return static_cast<int>(taken);
}

int CapiContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  const uint64_t start = sys::now_ns();
  for (;;) {
    const int taken = reap(out, max);
    if (taken != 0 || max == 0 || (in_flight_ == 0 && watches_.used == 0)) return taken;
    const uint64_t passed = sys::now_ns() - start;
    if (timeout_ns >= 0 && passed >= static_cast<uint64_t>(timeout_ns)) return 0;
    int64_t left = timeout_ns < 0 ? -1 : timeout_ns - static_cast<int64_t>(passed);
    if (in_flight_ && passed < kSpinNs) {
      sys::cpu_relax();
      continue;
    }
    if (in_flight_ && (left < 0 || left > static_cast<int64_t>(kNapNs)))
      left = static_cast<int64_t>(kNapNs);
    if (watches_.used == 0) {
      sys::sleep_ns(static_cast<uint64_t>(left));
      continue;
    }
    const int n = serve_watches(&watches_, out, max, left);
    if (n != 0) return n;
  }
}

int CapiContext::await(int64_t timeout_ns) {
  sys::sleep_ns(timeout_ns >= 0 && static_cast<uint64_t>(timeout_ns) < kNapNs
                    ? static_cast<uint64_t>(timeout_ns)
                    : kNapNs);
  return 0;
}

}  // namespace lunar
