// SPDX-License-Identifier: Apache-2.0
// Reads that one thread has in progress: see cold_ring.h.
#include "kv/ark/cold_ring.h"

#include <errno.h>

#include <new>

#include "kv/ark/ark_store.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar::ark {
namespace {

constexpr uint64_t kSignalTag = UINT64_MAX;
constexpr uint16_t kNoLane = UINT16_MAX;
static_assert(Pool::kLanes < kNoLane);

}  // namespace

struct ColdRing::Entry {
  kv::ColdGet get;
  Op* op = nullptr;
};

bool ColdRing::prepare() {
  if (context_ || refused_) return context_ != nullptr;
  refused_ = true;
  auto* memory = static_cast<Entry*>(map_private(kDepth * sizeof(Entry), ForkPolicy::kInherit));
  const int event = memory ? sys::move_high(sys::make_eventfd()) : -1;  // as Store::start
  ContextOptions options;
  options.depth = kDepth;
  options.spin = false;
  const iovec window = engine_->read_window();
  options.buffer = window.iov_base;
  options.buffer_bytes = window.iov_len;
  options.delegate = true;
  if (event < 0 || engine_->device()->attach(options, &context_) < 0) {
    context_ = nullptr;
    if (event >= 0) (void)sys::close_file(event);
    if (memory) unmap_private(memory, kDepth * sizeof(Entry));
    return false;
  }
  refused_ = false;
  entries_ = memory;
  for (unsigned i = 0; i < kDepth; ++i) {
    new (&entries_[i]) Entry;
    free_[i] = static_cast<uint16_t>(kDepth - 1 - i);
    lanes_[i] = kNoLane;
  }
  event_ = event;
  queue_.cold_event.store(event, std::memory_order_relaxed);  // seen by a thread that finds kInRing
  queue_.cold_context.store(context_, std::memory_order_relaxed);
  return true;
}

void ColdRing::close() {
  if (!context_) return;
  queue_.cold_context.store(nullptr, std::memory_order_relaxed);
  queue_.cold_event.store(-1, std::memory_order_relaxed);
  engine_->device()->detach(context_);
  (void)sys::close_file(event_);
  unmap_private(entries_, kDepth * sizeof(Entry));
  context_ = nullptr;
}

bool ColdRing::busy(uint32_t lane) const {
  bool found = false;
  for (unsigned i = 0; in_flight_ && i < kDepth; ++i) found |= lanes_[i] == lane;
  return found;
}

Op* ColdRing::take_waiting(uint32_t lane) {
  Op* before = nullptr;
  for (Op* op = waiting_.first; op; op = op->next) {
    if (op->lane != lane) {
      before = op;
      continue;
    }
    (before ? before->next : waiting_.first) = op->next;
    if (waiting_.last == op) waiting_.last = before;
    return op;
  }
  return nullptr;
}

int64_t ColdRing::begin(Op* op) {
  engine_ = op->connection->store->engine;
  if (!prepare()) return -EAGAIN;
  const unsigned index = free_[kDepth - in_flight_ - 1];
  Entry& entry = entries_[index];
  const Request& request = op->request;
  const bool get = request.kind == OpKind::kGet;
  const int64_t status = engine_->cold_begin(&entry.get, {request.key, request.key_bytes},
                                             get ? request.value : nullptr,
                                             get ? request.value_bytes : 0, request.offset);
  if (status != -EINPROGRESS) return status;
  entry.op = op;
  lanes_[index] = static_cast<uint16_t>(op->lane);
  ++in_flight_;
  commands_[queued_] = entry.get.command;
  commands_[queued_].iov = &entry.get.piece;
  commands_[queued_++].tag = index;
  return status;
}

void ColdRing::finish(unsigned index, int64_t moved, OpList* done) {
  Entry& entry = entries_[index];
  entry.op->result = engine_->cold_finish(&entry.get, moved);
  done->append(entry.op);
  lanes_[index] = kNoLane;
  free_[kDepth - in_flight_] = static_cast<uint16_t>(index);
  --in_flight_;
}

void ColdRing::collect(unsigned least, OpList* done) {
  Response responses[kBatch];
  if (least && !watched_) watched_ = context_->watch(event_, kSignalTag) == 0;
  unsigned taken = 0;
  const int count =
      context_->exchange(commands_, queued_, &taken, responses, kBatch, least, least ? -1 : 0);
  queued_ -= taken;
  for (unsigned i = 0; i < queued_; ++i) commands_[i] = commands_[taken + i];
  for (int i = 0; i < count; ++i) {
    if (responses[i].tag != kSignalTag) {
      finish(static_cast<unsigned>(responses[i].tag), responses[i].result, done);
      continue;
    }
    watched_ = false;
    sys::eventfd_clear(event_);
  }
  // If the ring's descriptor was closed, this saves CPU time.
  if (count < 0 && count != -EINTR) sys::sleep_ns(100'000);
}

}  // namespace lunar::ark
