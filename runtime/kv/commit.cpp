// SPDX-License-Identifier: Apache-2.0
// Durable sets: the tail is written in batches, by group commit. See record_log.h; store_format.h
// has the format.
//
//   segment   │ header │ record │ record │ pad │ header │ record │ ...        │
//             └──────── batch 7, durable ──────┘└── batch 8, the newest ──►
//                                               records are appended and changed here alone
//
// A commit ends the newest batch, waits until its records are filled, writes it and the unwritten
// part of sealed segments, and flushes. Writers continue in the next batch meanwhile. One thread
// commits at a time. Threads that arrive during a commit wait for its end, and one of them makes
// the next commit for all. So a commit begins after the one before is durable: any part of a batch
// on the device proves that all commits before it are durable.
// Threading: as in record_log.h.
#include <errno.h>

#include <algorithm>
#include <new>

#include "kv/record_log.h"
#include "lun/raw_io.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kBlockBytes = media::kBlockBytes;
constexpr uint32_t kHeaderBytes = sizeof(Record) + sizeof(media::BatchHeader);
// The least length of the log at which a state is saved to shorten it.
constexpr uint64_t kLogBytesLeast = kGiB;

Record* new_mark(char* at, uint64_t bytes, uint32_t key_bytes) {
  return new (at) Record{
      0, 0,
      static_cast<uint32_t>(bytes / kUnitBytes << 2 | static_cast<uint32_t>(RecordType::kMark)),
      key_bytes, 0};
}

void pad(char* at, uint64_t bytes) {
  if (bytes != 0) memset(static_cast<void*>(new_mark(at, bytes, 0) + 1), 0, bytes - sizeof(Record));
}

media::BatchHeader* header_of(Record* record) {
  return reinterpret_cast<media::BatchHeader*>(record + 1);
}

}  // namespace

int Log::begin_commits(bool waits_for_company, uint64_t bytes_most) {
  uint64_t id = 0;
  if (const int status = sys::random_bytes(&id, sizeof id); status < 0) return status;
  MutexLock guard(mutex_);
  uint64_t found = 0;
  for (uint64_t i = 0; i < count_ && found < 2; ++i) {
    if (state(i) == SegmentState::kFree) next_[found++] = static_cast<uint32_t>(i + 1);
  }
  for (uint64_t i = 0; i < count_; ++i) segments_[i].tail = 0;
  if (found < 2) return -ENOSPC;
  for (const uint32_t next : next_)
    segments_[next - 1].state.store(SegmentState::kNext, std::memory_order_release);
  free_.fetch_sub(2, std::memory_order_relaxed);
  next_free_ = next_[1];
  waits_for_company_ = waits_for_company;
  log_most_ = bytes_most;
  log_id_ = id | 1;
  return 0;
}

bool Log::log_is_long() const {
  return commits() && opened_.load(std::memory_order_relaxed) >= log_segments_most();
}

uint64_t Log::log_segments_most() const {
  uint64_t most = log_most_;
  if (most == 0) most = std::max(8 * state_bytes_(state_owner_), kLogBytesLeast);
  return (most >> segment_bits_) + 1;
}

// Takes the first of the two announced segments as the next tail. `fresh` becomes the second.
// pre: the mutex
bool Log::take_announced(bool cleaning, uint64_t fresh, uint64_t* number) {
  const uint64_t opened = next_[0] - 1;
  segments_[opened].life.store(new_life(), std::memory_order_release);
  if (!take_frame(cleaning, opened)) return false;
  segments_[fresh].state.store(SegmentState::kNext, std::memory_order_release);
  free_.fetch_sub(1, std::memory_order_relaxed);
  fresh_ = static_cast<uint32_t>(fresh + 1);
  next_free_ = fresh + 1;
  *number = opened;
  return true;
}

// pre: the mutex and the tail's lock; it is the tail
void Log::open_log_segment(uint64_t number) {
  Segment& segment = segments_[number];
  next_[0] = next_[1];
  next_[1] = fresh_;
  segment.saved = true;
  segment.durable = static_cast<uint32_t>(tail_.used);
  segment.next_uncommitted = 0;
  if (first_uncommitted_)
    segments_[last_uncommitted_ - 1].next_uncommitted = number + 1;
  else
    first_uncommitted_ = number + 1;
  last_uncommitted_ = number + 1;
  opened_.fetch_add(1, std::memory_order_relaxed);
  open_batch(static_cast<uint32_t>(tail_.used), 0);
}

// pre, as of the next two: the tail's lock
void Log::open_batch(uint32_t at, unsigned side) {
  Segment& segment = segments_[tail_.segment];
  char* memory = segment.memory.load(std::memory_order_relaxed) + at;
  new (header_of(new_mark(memory, kHeaderBytes, sizeof(media::BatchHeader)))) media::BatchHeader{};
  tail_.used = at + kHeaderBytes;
  segment.used.store(static_cast<uint32_t>(tail_.used), std::memory_order_relaxed);
  segment.batch.store(at | side, std::memory_order_seq_cst);
}

bool Log::any_in_batch() const { return tail_.used != used_durable(tail_.segment) + kHeaderBytes; }

// Numbers the newest batch. Returns whether it has records.
// pre: no open group
bool Log::finish_batch() {
  const Segment& segment = segments_[tail_.segment];
  if (!any_in_batch()) return false;
  const uint32_t begin = used_durable(tail_.segment);
  auto* record = reinterpret_cast<Record*>(segment.memory.load(std::memory_order_relaxed) + begin);
  *header_of(record) = {log_id_,
                        segment.life.load(std::memory_order_relaxed),
                        ++closed_,
                        0,
                        {next_[0], next_[1]},
                        static_cast<uint32_t>(tail_.used - begin),
                        0};
  return true;
}

// Ends the newest batch, if it has records, and begins another behind it, if there is room. Returns
// whether another began.
bool Log::close_batch(unsigned next_side) {
  end_group(tail_);
  if (!tail_.open || !finish_batch()) return false;
  const uint64_t end = tail_.used, to = batch_end(end);
  if (to + kBlockBytes > segment_bytes()) {
    segments_[tail_.segment].state.store(SegmentState::kSealed, std::memory_order_seq_cst);
    tail_ = {.used = segment_bytes()};
    return false;
  }
  char* memory = segments_[tail_.segment].memory.load(std::memory_order_relaxed) + end;
  pad(memory, to - end);
  open_batch(static_cast<uint32_t>(to), next_side);
  return true;
}

// Without batches: pads a tail to a block. The saved state ends there, and the tail continues
// behind it.
// pre: the tails' lock, all shards locked
void Log::cut_locked(Tail& tail) {
  Segment& segment = segments_[tail.segment];
  end_group(tail);
  const uint64_t end = tail.used, to = batch_end(end);
  if (!tail.open || end == segment.batch.load(std::memory_order_relaxed)) return;
  if (to + kBlockBytes > segment_bytes()) return seal_locked(tail);
  pad(segment.memory.load(std::memory_order_relaxed) + end, to - end);
  tail.used = to;
  segment.used.store(static_cast<uint32_t>(to), std::memory_order_relaxed);
  segment.batch.store(static_cast<uint32_t>(to), std::memory_order_seq_cst);
}

void Log::cut_tails() {
  MutexLock guard(mutex_);
  sys::Locked lock(tail_lock_);
  for (Tail& tail : tails_) cut_locked(tail);
}

// Takes the part of the log that is not durable yet, without records that come later.
Log::Uncommitted Log::take_uncommitted() {
  Uncommitted out;
  sys::Locked tail(tail_lock_);
  const unsigned side = segments_[tail_.segment].batch.load(std::memory_order_relaxed) & 1;
  if (close_batch(side ^ 1)) out.sides = 1u << side;
  out.first = first_uncommitted_;
  out.last = last_uncommitted_;
  out.number = closed_;
  if (out.first) out.last_end = used_durable(out.last - 1);
  return out;
}

// Where the batch begins that follows one that ends at `end`. The gap is empty or has room for a
// mark.
uint64_t Log::batch_end(uint64_t end) {
  const uint64_t to = round_up(end, kBlockBytes);
  return to != end && to - end < sizeof(Record) ? to + kBlockBytes : to;
}

// Computes the checksums of the records in [from, to).
void Log::prepare(uint64_t number, uint64_t from, uint64_t to) {
  char* memory = segments_[number].memory.load(std::memory_order_relaxed);
  const uint64_t begin = number << segment_bits_,
                 durable = durable_.load(std::memory_order_relaxed);
  for (uint64_t at = from; at < to;) {
    auto* record = reinterpret_cast<Record*>(memory + at);
    if (record->type() == RecordType::kMark && record->key_bytes == sizeof(media::BatchHeader))
      header_of(record)->durable = durable;
    const Address address{(begin + at) / kUnitBytes};
    if (record->has_body()) sum_body(record, address, memory);
    record->checksum = record_checksum(record, address, life(number));
    at += record->span();
  }
  memset(memory + to, 0, round_up(to, kBlockBytes) - to);
}

int Log::write_uncommitted(const Uncommitted& part) {
  const bool alone = part.first == part.last;
  bool wrote = false;
  for (uint64_t at = part.first; at;) {
    Segment& segment = segments_[at - 1];
    uint64_t next = 0;
    if (at != part.last) {
      sys::Locked tail(tail_lock_);
      next = segment.next_uncommitted;
    }
    const uint32_t from = segment.durable, end = at == part.last ? part.last_end : used(at - 1);
    const unsigned sides = at == part.last ? part.sides : 3;
    const auto filled = [&](unsigned side) {
      return (sides & 1u << side) == 0 ||
             segment.filling[side].load(std::memory_order_seq_cst) == 0;
    };
    for (unsigned round = 0; from < end && !(filled(0) && filled(1)); ++round)
      round < 100 ? sys::yield_cpu() : sys::sleep_ns(20'000);
    if (from < end) {
      prepare(at - 1, from, end);
      const uint64_t begin = round_down(from, kBlockBytes),
                     bytes = round_up(end, kBlockBytes) - begin;
      const uint64_t offset = ((at - 1) << segment_bits_) + begin;
      char* memory = segment.memory.load(std::memory_order_relaxed) + begin;
      ios_.fetch_add(1, std::memory_order_relaxed);
      const int status = alone ? raw_write_durable(device_, device_offset_ + offset, memory, bytes)
                               : transfer(Op::kWrite, offset, memory, bytes);
      if (status < 0) return status;
      wrote = !alone;
    }
    segment.durable = end;
    at = next;
  }
  return wrote ? flush_device() : 0;
}

int Log::flush_device() {
  const int status = failed() ? -EIO : raw_flush(device_);
  if (status < 0) failed_.store(true, std::memory_order_release);
  return status;
}

// Writers of the last commit soon return with their next set. Without a pause, half of them would
// just miss each commit. The pause takes at most a quarter of a commit's time.
void Log::wait_for_company() {
  const uint64_t until = sys::now_ns() + commit_ns_ / 4;
  for (unsigned round = 0;
       arrived_.load(std::memory_order_relaxed) - served_ < company_ && sys::now_ns() < until;
       ++round)
    round < 100 ? sys::yield_cpu() : sys::sleep_ns(20'000);
}

int Log::commit_once() {
  if (waits_for_company_) wait_for_company();
  const uint64_t begun = sys::now_ns(), arrived = arrived_.load(std::memory_order_relaxed),
                 served = arrived - served_;
  const Uncommitted now = take_uncommitted();
  int status = failed() ? -EIO : write_uncommitted(now);
  if (status < 0) {
    // Linux reports a failed write once and forgets it, so a later flush that succeeds would prove
    // nothing.
    failed_.store(true, std::memory_order_release);
    LUNAR_LOG_LIMITED(
        log_error, 1,
        "key/value store on %s: commit: %s; nothing more is set until it is opened again",
        device_->name(), errno_text(status));
    return -EIO;
  }
  {
    sys::Locked tail(tail_lock_);
    while (first_uncommitted_) {
      Segment& segment = segments_[first_uncommitted_ - 1];
      if (state(first_uncommitted_ - 1) == SegmentState::kOpen ||
          segment.durable < used(first_uncommitted_ - 1))
        break;
      segment.written.store(true, std::memory_order_release);
      first_uncommitted_ = segment.next_uncommitted;
    }
    if (!first_uncommitted_) last_uncommitted_ = 0;
  }
  durable_.store(now.number, std::memory_order_release);
  commit_ns_ = sys::now_ns() - begun;
  served_ = arrived;
  company_ = served + arrived_.load(std::memory_order_relaxed) - arrived;
  commits_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

template <class Done>
int Log::commit_until(Done done) {
  for (;;) {
    const uint32_t ended = ended_.load(std::memory_order_acquire);
    if (done()) return 0;
    if (failed()) return -EIO;
    if (committing_.exchange(true, std::memory_order_acquire)) {
      (void)sys::futex_wait(&ended_, ended, -1, false);
      continue;
    }
    // The loop checks the result: another thread may have committed before.
    if (!done()) (void)commit_once();
    committing_.store(false, std::memory_order_release);
    ended_.fetch_add(1, std::memory_order_release);
    sys::futex_wake(&ended_, INT32_MAX, false);
  }
}

int Log::commit() {
  uint64_t number;
  {
    sys::Locked tail(tail_lock_);
    number = closed_ + (tail_.open && any_in_batch() ? 1 : 0);
  }
  arrived_.fetch_add(1, std::memory_order_relaxed);
  return commit_until([&] { return durable_.load(std::memory_order_acquire) >= number; });
}

int Log::commit_before(const media::Root& root) {
  if (!commits()) return 0;
  return commit_until(
      [&] { return durable_.load(std::memory_order_acquire) + 1 >= root.log_batch; });
}

int Log::commit_segment(uint64_t number) {
  if (!commits()) return 0;
  return commit_until([&] { return segments_[number].written.load(std::memory_order_acquire); });
}

// No record is being filled, so the next batch may have the side of the one that ends here. A
// commit under way waits for the other side.
void Log::mark_start(media::Root* root) {
  sys::Locked tail(tail_lock_);
  (void)close_batch(segments_[tail_.segment].batch.load(std::memory_order_relaxed) & 1);
  const bool open = tail_.open;
  const uint64_t first = open ? tail_.segment : next_[0] - 1;
  root->log = log_id_;
  root->log_batch = closed_ + 1;
  root->log_segments[0] = static_cast<uint32_t>(first + 1);
  root->log_segments[1] = open ? next_[0] : next_[1];
  root->log_segments[2] = open ? next_[1] : 0;
  root->log_at = open ? used_durable(tail_.segment) : static_cast<uint32_t>(first_at(first));
}

// ---- replay -------------------------------------------------------------------------------------

const media::BatchHeader* Log::batch_at(uint64_t log, uint64_t number, const char* memory,
                                        uint64_t at) const {
  if (at + kHeaderBytes > segment_bytes()) return nullptr;
  const auto* record = reinterpret_cast<const Record*>(memory + at);
  const auto* header = reinterpret_cast<const media::BatchHeader*>(record + 1);
  const bool possible = record->type() == RecordType::kMark &&
                        record->units() * kUnitBytes == kHeaderBytes &&
                        record->key_bytes == sizeof *header && header->log == log &&
                        header->bytes > kHeaderBytes && header->bytes <= segment_bytes() - at;
  const Address address{((number << segment_bits_) + at) / kUnitBytes};
  return possible && record->checksum == record_checksum(record, address, header->life) ? header
                                                                                        : nullptr;
}

bool Log::records_are_sound(uint64_t number, const char* memory, uint64_t from, uint64_t to,
                            uint64_t life) const {
  for (uint64_t at = from; at < to;) {
    const auto* record = reinterpret_cast<const Record*>(memory + at);
    const Address address{((number << segment_bits_) + at) / kUnitBytes};
    if (to - at < sizeof(Record) || !sound(record, address, life, to - at)) return false;
    if (!body_is_sound(record, address, life, memory, to)) return false;
    at += record->span();
  }
  return true;
}

// Reads into the cleaner's memory, not into a frame. Gets and cleaning use records in frames
// without a check of the checksum, and replay checks only the records that it applies.
int Log::read_to_replay(uint64_t number, uint64_t bytes, char** memory) {
  *memory = cleaners_frame();
  return read_what_can_be(number, *memory, bytes);
}

void Log::replayed(uint64_t number, uint64_t life, uint32_t used) {
  if (state(number) == SegmentState::kFree) restore(number, SegmentState::kSealed, life, 0, used);
  segments_[number].used.store(used, std::memory_order_relaxed);
}

}  // namespace lunar::kv
