// SPDX-License-Identifier: Apache-2.0
// The log on a device: frames, writing, reading. See record_log.h.
//
// A block of a segment is written once in the segment's life. The part that a saved state refers to
// is written with that state, the rest in one piece after the segment was sealed and its last
// writer has left. Written blocks never change, so a reader needs no lock against writing. It reads
// the record that the index led to, or, if the segment has begun another life since, bytes whose
// checksum does not match.
// Threading: as in record_log.h. Blocks for the device.
#include <errno.h>

#include <algorithm>
#include <new>

#include "kv/record_log.h"
#include "sys/arena.h"
#include "sys/log.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr unsigned kBuffers = 32;

}  // namespace

Log::FramePlan Log::plan_frames(uint64_t limit, unsigned segment_bits, uint64_t count) {
  const uint64_t bytes = limit / 4 * 3, segment = uint64_t{1} << segment_bits;
  FramePlan plan{segment / 16 + 2 * kBlockBytes, bytes / 16 / kColdBytes, 0, 0, 0};
  plan.blocks = std::min<uint64_t>(plan.blocks, kBlocksMax);
  plan.reading = kBuffers * plan.buffer_bytes + plan.blocks * kColdBytes;
  plan.own = segment + sizeof(Frame) + segment / kMarkBytes / 8;
  const uint64_t tables = count * sizeof(Segment) + plan.reading;
  plan.frames = bytes > tables ? (bytes - tables) / plan.own : 0;
  return plan;
}

uint64_t Log::dram_least(const LogPlace& place) {
  constexpr uint64_t kForIndex = 4 * kMiB;  // an index of few keys, and the cache's tables
  for (uint64_t limit = kMiB;; limit += kMiB) {
    const unsigned bits = segment_bits_for(place, limit);
    if (plan_frames(limit, bits, place.bytes >> bits).frames >= kFramesMin + 1)
      return limit + kForIndex;
  }
}

// Three quarters of the budget, less the buffers, are for frames. One frame is the cleaner's.
int Log::open_frames(uint64_t limit, bool read_only) {
  const FramePlan plan = plan_frames(limit, segment_bits_, count_most_);
  if (plan.frames < kFramesMin + 1) return -ENOMEM;
  const uint64_t bytes = limit / 4 * 3, reading = plan.reading, own = plan.own,
                 frames = plan.frames;
  const uint64_t marks_a_frame = segment_bytes() / kMarkBytes / 8;
  buffer_bytes_ = plan.buffer_bytes;
  block_count_ = plan.blocks;
  // Unless there is DRAM for the whole log, it gains more in the read cache than in frames.
  const uint64_t share = bytes / kFramesShare / own;
  frame_count_ = frames - 1 >= count_most_ ? count_most_ : std::max(share, kFramesMin);
  const uint64_t marks = (frame_count_ + 1) * marks_a_frame;
  const uint64_t table = round_up((frame_count_ + 1) * sizeof(Frame) + marks, kBlockBytes);
  frames_mapped_ = ((frame_count_ + 1) << segment_bits_) + reading + table;
  if (!budget_->take(frames_mapped_)) return -ENOMEM;
  frames_memory_ = map_records(frames_mapped_);
  if (!frames_memory_) return -ENOMEM;
  frames_ = reinterpret_cast<Frame*>(frames_memory_ + frames_mapped_ - table);
  for (uint64_t i = 0; i < frame_count_; ++i) new (&frames_[i]) Frame;
  marks_ = reinterpret_cast<std::atomic<uint64_t>*>(frames_ + frame_count_ + 1);
  buffers_.store(UINT32_MAX, std::memory_order_relaxed);
  blocks_memory_ = frame_memory(frame_count_ + 1) + kBuffers * buffer_bytes_;
  for (uint64_t i = 0; i < block_count_; ++i)
    blocks_[i / 64].fetch_or(uint64_t{1} << i % 64, std::memory_order_relaxed);
  bodies_.open(budget_);
  cache_.open(budget_, epochs_);
  return read_only ? 0 : device_->reserve(DeviceOffset{device_offset_}, count_ << segment_bits_);
}

char* Log::try_buffer() {
  uint32_t free = buffers_.load(std::memory_order_relaxed);
  while (free) {
    const unsigned i = static_cast<unsigned>(__builtin_ctz(free));
    if (buffers_.compare_exchange_weak(free, free & ~(1u << i), std::memory_order_acquire))
      return frames_memory_ + ((frame_count_ + 1) << segment_bits_) + i * buffer_bytes_;
  }
  return nullptr;
}

char* Log::take_buffer() {
  for (unsigned round = 0;; ++round) {
    if (char* buffer = try_buffer()) return buffer;
    round < 50 ? sys::yield_cpu() : sys::sleep_ns(20'000);  // all are with reads under way
  }
}

void Log::give_buffer(char* buffer) {
  if (!buffer) return;
  const auto i =
      static_cast<uint64_t>(buffer - frames_memory_ - ((frame_count_ + 1) << segment_bits_)) /
      buffer_bytes_;
  buffers_.fetch_or(1u << i, std::memory_order_release);
}

// pre: the mutex
bool Log::take_frame(bool cleaning, uint64_t owner) {
  uint64_t ready = 0, chosen = 0;
  const uint64_t wanted = cleaning ? 1 : kFrameReserve + 1;
  for (uint64_t i = 0; i < frame_count_ && ready < wanted; ++i) {
    if (frames_[i].owner || !epochs_->safe(frames_[i].retired)) continue;
    chosen = i;
    ++ready;
  }
  if (ready < wanted) return false;
  frames_[chosen].owner = owner + 1;
  for (uint64_t at = 0; at < segment_bytes(); at += 64 * kMarkBytes)
    read_mark((chosen << segment_bits_) + at).store(0, std::memory_order_relaxed);
  segments_[owner].memory.store(frame_memory(chosen), std::memory_order_release);
  return true;
}

Log::Frames Log::frames() {
  if (!device_) return Frames::kReady;
  MutexLock guard(mutex_);
  uint64_t ready = 0, unowned = 0;
  for (uint64_t i = 0; i < frame_count_ && ready <= kFrameReserve; ++i) {
    if (frames_[i].owner) continue;
    ++unowned;
    ready += epochs_->safe(frames_[i].retired) ? 1 : 0;
  }
  return ready > kFrameReserve     ? Frames::kReady
         : unowned > kFrameReserve ? Frames::kSoon
                                   : Frames::kWanted;
}

// Frees the frame of a segment that no reader uses any more.
// pre: the mutex
void Log::free_frame_of(uint64_t number) {
  char* memory = segments_[number].memory.exchange(nullptr, std::memory_order_acq_rel);
  if (memory) frames_[static_cast<uint64_t>(memory - frames_memory_) >> segment_bits_] = {};
}

// Finds the frame of the oldest sealed segment. -EAGAIN: no sealed segment has a frame.
int Log::oldest_frame(uint64_t* frame) {
  MutexLock guard(mutex_);
  uint64_t oldest = UINT64_MAX;
  for (uint64_t i = 0; i < frame_count_; ++i) {
    if (!frames_[i].owner) continue;
    const uint64_t number = frames_[i].owner - 1;
    const bool sealed =
        state(number) == SegmentState::kSealed || state(number) == SegmentState::kDamaged;
    if (!sealed || life(number) >= oldest) continue;
    oldest = life(number);
    *frame = i;
  }
  return oldest == UINT64_MAX ? -EAGAIN : 0;
}

int Log::make_frame() {
  uint64_t frame;
  if (const int status = oldest_frame(&frame); status < 0) return status;
  const uint64_t number = frames_[frame].owner - 1;  // only this thread takes it away
  if (!segments_[number].written.load(std::memory_order_acquire)) {
    if (const int status = commits() ? commit_segment(number) : write_out(number); status < 0)
      return status;
  }
  keep_what_was_read(frame);
  MutexLock guard(mutex_);
  segments_[number].memory.store(nullptr, std::memory_order_seq_cst);
  frames_[frame].owner = 0;
  frames_[frame].retired = epochs_->retire();
  return 0;
}

void Log::note_read(const Record* record) {
  const auto byte = static_cast<uint64_t>(reinterpret_cast<const char*>(record) - frames_memory_);
  if (byte >= frame_count_ << segment_bits_) return cache_.note_read(record);
  const uint64_t bit = uint64_t{1} << byte / kMarkBytes % 64;
  if ((read_mark(byte).load(std::memory_order_relaxed) & bit) == 0)
    read_mark(byte).fetch_or(bit, std::memory_order_relaxed);
}

// Admits the records that were read in a frame to the read cache. Their segment is written, so they
// no longer change.
void Log::keep_what_was_read(uint64_t frame) {
  const uint64_t number = frames_[frame].owner - 1, begin = number << segment_bits_,
                 in_frames = frame << segment_bits_;
  const char* memory = frame_memory(frame);
  const uint64_t end = used(number);
  uint64_t at = first_at(number);
  while (at < end && live(number) != 0) {
    const auto* record = reinterpret_cast<const Record*>(memory + at);
    const bool read =
        read_mark(in_frames + at).load(std::memory_order_relaxed) >> at / kMarkBytes % 64 & 1;
    const Address address{(begin + at) / kUnitBytes};
    const bool pair = record->type() == RecordType::kPair || record->type() == RecordType::kLarge;
    if (read && pair && lives_in_index_(index_owner_, record, address))
      cache_.admit(record, address, life(number), true, value_of(record));
    at += record->span();
  }
}

int Log::transfer(Op op, uint64_t offset, void* memory, uint64_t bytes) {
  const uint64_t most = device_->capabilities().transfer_bytes_max;
  uint64_t done = 0;
  while (done < bytes) {
    const uint64_t part = std::min<uint64_t>(bytes - done, most);
    const iovec piece = {static_cast<char*>(memory) + done, part};
    Command command;
    command.op = op;
    command.offset = DeviceOffset{device_offset_ + offset + done};
    command.iov = &piece;
    command.iov_count = 1;
    ios_.fetch_add(1, std::memory_order_relaxed);
    const int64_t moved = device_->transfer(command);
    if (moved < 0) return static_cast<int>(moved);
    if (static_cast<uint64_t>(moved) != part) return -EIO;
    done += part;
  }
  return 0;
}

int Log::read_what_can_be(uint64_t number, char* memory, uint64_t bytes) {
  const uint64_t begin = number << segment_bits_;
  if (transfer(Op::kRead, begin, memory, bytes) == 0) return 0;
  int first = 0;
  for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
    const int status = transfer(Op::kRead, begin + at, memory + at, kBlockBytes);
    if (status == 0) continue;
    memset(memory + at, 0, kBlockBytes);
    if (first == 0) first = status;
  }
  return first;
}

// Writes a segment. 0 or -errno: it stays in its frame, and is tried again.
// pre: sealed, and in a frame
int Log::write_out(uint64_t number) {
  for (unsigned round = 0; filling(number); ++round)
    round < 100 ? sys::yield_cpu() : sys::sleep_ns(20'000);
  const int status = write_part(number, used(number));
  if (status == 0) segments_[number].written.store(true, std::memory_order_relaxed);
  return status;
}

// Writes the unwritten part of a segment up to `end`, which no longer changes.
int Log::write_part(uint64_t number, uint64_t end) {
  Segment& segment = segments_[number];
  const uint64_t from = segment.durable, begin = number << segment_bits_,
                 block = round_down(from, kBlockBytes);
  if (from == end) return 0;
  prepare(number, from == 0 ? first_at(number) : from, end);
  char* memory = segment.memory.load(std::memory_order_relaxed);
  const int status =
      transfer(Op::kWrite, begin + block, memory + block, round_up(end, kBlockBytes) - block);
  if (status == 0) {
    segment.durable = static_cast<uint32_t>(end);
    return 0;
  }
  LUNAR_LOG_LIMITED(log_warning, 10, "key/value store on %s: write at %llu: %s; kept in DRAM",
                    device_->name(), static_cast<unsigned long long>(begin + block),
                    errno_text(status));
  return status;
}

void Log::keep(StateBytes state_bytes, const void* owner) {
  state_owner_ = owner;
  state_bytes_ = state_bytes;
}

int Log::save_written() {
  if (commits()) return commit();
  for (;;) {
    const int status = write_oldest();
    if (status < 0) return status;
    if (status == 0) break;
  }
  return 0;
}

// Segments that were open at the cut have parts that are not written yet.
int Log::save_cut_written() {
  for (uint64_t i = 0; !commits() && i < count_; ++i) {
    const media::SegmentEntry& entry = segments_[i].at_cut;
    if (!has_frame(i) || entry.kind != media::SegmentKind::kRecords ||
        segments_[i].durable >= entry.used)
      continue;
    if (segments_[i].written.load(std::memory_order_relaxed)) continue;
    if (const int status = write_part(i, entry.used); status < 0) return status;
  }
  return 0;
}

// Looks at frames only, because all other segments are written.
int Log::write_oldest() {
  if (commits()) return 0;
  uint64_t oldest = UINT64_MAX, number = 0;
  {
    MutexLock guard(mutex_);
    for (uint64_t i = 0; i < frame_count_; ++i) {
      if (!frames_[i].owner) continue;
      const uint64_t at = frames_[i].owner - 1;
      const bool records =
          state(at) == SegmentState::kSealed || state(at) == SegmentState::kDamaged;
      if (!records || segments_[at].written.load(std::memory_order_relaxed) || life(at) >= oldest)
        continue;
      oldest = life(at);
      number = at;
    }
  }
  if (oldest == UINT64_MAX) return 0;
  const int status = write_out(number);
  return status < 0 ? status : 1;
}

// pre: the mutex of cleaning, all shards locked
void Log::save_cut(media::Root* root) {
  if (commits())
    mark_start(root);
  else
    cut_tails();
  MutexLock guard(mutex_);
  opened_at_cut_ = opened_.load(std::memory_order_relaxed);
  for (uint64_t i = 0; i < count_; ++i) {
    Segment& segment = segments_[i];
    const SegmentState now = state(i);
    segment.retired_at_cut = now == SegmentState::kRetired;
    segment.at_cut = {};
    if (now == SegmentState::kSealed || now == SegmentState::kDamaged || now == SegmentState::kOpen)
      segment.at_cut = {life(i), live(i), used_durable(i), media::SegmentKind::kRecords, 0};
  }
}

void Log::spare_frames() {
  for (;;) {
    uint64_t unowned = 0;
    {
      MutexLock guard(mutex_);
      for (uint64_t i = 0; i < frame_count_; ++i) unowned += frames_[i].owner ? 0 : 1;
    }
    if (unowned >= frame_count_ / 4 + kFrameReserve || make_frame() < 0) return;
  }
}

int Log::take_link(uint64_t life, uint64_t* number) {
  MutexLock guard(mutex_);
  for (uint64_t i = 0; i < count_; ++i) {
    const uint64_t at = (next_free_ + i) % count_;
    if (state(at) != SegmentState::kFree) continue;
    segments_[at].state.store(SegmentState::kState, std::memory_order_release);
    ++links_;
    segments_[at].life.store(life, std::memory_order_release);
    segments_[at].saved = false;  // until save_end
    free_.fetch_sub(1, std::memory_order_relaxed);
    next_free_ = at + 1;
    *number = at;
    return 0;
  }
  return -ENOSPC;
}

// The new state, or the log behind it, refers to segments that were retired after the cut.
void Log::save_end(Saved saved) {
  MutexLock guard(mutex_);
  state_wanted_.store(false, std::memory_order_relaxed);
  if (saved == Saved::kYes) opened_.fetch_sub(opened_at_cut_, std::memory_order_relaxed);
  for (uint64_t i = 0; i < count_; ++i) {
    Segment& segment = segments_[i];
    const SegmentState now = state(i);
    if (now == SegmentState::kState) {
      if (segment.saved ? saved == Saved::kYes : saved == Saved::kNo)
        give_back(i);
      else
        segment.saved = true;
    } else if (now == SegmentState::kHeld && saved == Saved::kYes) {
      held_.fetch_sub(1, std::memory_order_relaxed);
      give_back(i);
    } else if (now == SegmentState::kRetired && segment.retired_at_cut && saved == Saved::kYes) {
      segment.saved = false;
    } else if (saved != Saved::kNo && segment.at_cut.kind != media::SegmentKind::kFree) {
      segment.saved = true;
    }
  }
}

void Log::settle(uint64_t life_of_state) {
  MutexLock guard(mutex_);
  for (uint64_t i = 0; i < count_; ++i) {
    if (state(i) == SegmentState::kState && life(i) != life_of_state) give_back(i);
  }
}

void Log::restore(uint64_t number, SegmentState state, uint64_t life, uint32_t live,
                  uint32_t used) {
  Segment& segment = segments_[number];
  segment.life.store(life, std::memory_order_relaxed);
  segment.live.store(live, std::memory_order_relaxed);
  live_units_.fetch_add(live, std::memory_order_relaxed);
  segment.records.store(0, std::memory_order_relaxed);
  segment.used.store(used, std::memory_order_relaxed);
  segment.written.store(true, std::memory_order_relaxed);
  segment.tail = tail_count() - 1;
  // As if the segment had been opened one log's length before this open.
  segment.opened_at = bytes() / kUnitBytes;
  segment.saved = true;
  segment.state.store(state, std::memory_order_release);
  if (state == SegmentState::kState) ++links_;
  free_.fetch_sub(1, std::memory_order_relaxed);
}

void Log::forget_restored() {
  for (uint64_t i = 0; i < count_; ++i) {
    Segment& segment = segments_[i];
    if (state(i) == SegmentState::kFree) continue;
    segment.written.store(false, std::memory_order_relaxed);
    segment.saved = false;
    segment.state.store(SegmentState::kFree, std::memory_order_release);
  }
  free_.store(count_, std::memory_order_relaxed);
  live_units_.store(0, std::memory_order_relaxed);
  links_ = 0;
}

// How many bytes to read for the record at `at`, from the beginning of its block on.
uint64_t Log::guess_bytes(uint64_t at) const {
  const uint64_t room = segment_bytes() - (round_down(at, kBlockBytes) & (segment_bytes() - 1));
  const uint64_t likely =
      round_up(at % kBlockBytes + usual_bytes_.load(std::memory_order_relaxed), kBlockBytes);
  return std::min(likely, room);
}

// The usual size rises fast and falls slowly, because reading too little costs a second read.
void Log::note_record(uint64_t bytes) {
  const uint32_t usual = usual_bytes_.load(std::memory_order_relaxed),
                 now = static_cast<uint32_t>(bytes);
  if (now == usual) return;
  usual_bytes_.store(now > usual ? usual + (now - usual + 1) / 2 : usual - (usual - now + 15) / 16,
                     std::memory_order_relaxed);
}

char* Log::take_block() {
  for (unsigned i = 0; i < kBlocksMax / 64; ++i) {
    uint64_t free = blocks_[i].load(std::memory_order_relaxed);
    while (free) {
      const auto bit = static_cast<unsigned>(__builtin_ctzll(free));
      if (blocks_[i].compare_exchange_weak(free, free & ~(uint64_t{1} << bit),
                                           std::memory_order_acquire))
        return blocks_memory_ + (i * 64 + bit) * kColdBytes;
    }
  }
  return nullptr;
}

void Log::give_block(char* block) {
  const auto i = static_cast<uint64_t>(block - blocks_memory_) / kColdBytes;
  blocks_[i / 64].fetch_or(uint64_t{1} << i % 64, std::memory_order_release);
}

uint64_t Log::cold_bytes(Address address) const {
  return std::min(guess_bytes(address.value * kUnitBytes), kColdBytes);
}

void Log::cold_command(Address address, iovec* piece, Command* out) {
  read_command(round_down(address.value * kUnitBytes, kBlockBytes), piece, out);
}

void Log::read_command(uint64_t offset, iovec* piece, Command* out) {
  *out = {};
  out->offset = DeviceOffset{device_offset_ + offset};
  out->iov = piece;
  out->iov_count = 1;
  ios_.fetch_add(1, std::memory_order_relaxed);
}

int Log::cold_record(Address address, uint64_t life, char* block, uint64_t bytes, Record** out) {
  const uint64_t at = address.value * kUnitBytes, skip = at % kBlockBytes;
  const uint64_t room = segment_bytes() - (round_down(at, kBlockBytes) & (segment_bytes() - 1));
  auto* record = reinterpret_cast<Record*>(block + skip);
  if (skip + sizeof(Record) > bytes) return -EAGAIN;
  if (!possible_size(record, room - skip)) return -EBADMSG;
  const uint64_t own = record->units() * kUnitBytes;
  if (skip + own > bytes) {
    note_record(own);
    return -EAGAIN;
  }
  if (!sound(record, address, life, room - skip)) return -EBADMSG;
  note_record(own);
  if (record->has_body()) {
    note_body(record, address);
    learn_bodies(address, life, block, bytes);
  }
  *out = record;
  return 0;
}

// ---- bodies -------------------------------------------------------------------------------------

char* Log::value_of(Record* record) const {
  if (!record->has_body()) return record->value();
  const auto byte = static_cast<uint64_t>(reinterpret_cast<char*>(record) - frames_memory_);
  if (byte < (frame_count_ + 1) << segment_bits_)
    return frames_memory_ + round_down(byte, segment_bytes()) + body_at(record);
  // A copy in the read cache.
  return reinterpret_cast<char*>(record) + record->units() * kUnitBytes;
}

void Log::note_body(const Record* record, Address address) {
  bodies_.note(address,
               {record->body().checksum, record->body().at,
                static_cast<uint32_t>(record->value_bytes / kBlockBytes), record->units()});
}

// Computes the checksum of a body that is about to be written.
void Log::sum_body(Record* record, Address address, const char* memory) {
  auto* body = const_cast<Body*>(&record->body());
  const Bytes key{record->key(), record->key_bytes};
  body->checksum =
      body_checksum(key, value_in(record, memory), record->value_bytes, address, life_of(address));
  note_body(record, address);
  if (bodies_.wants_more()) (void)bodies_.grow();
}

bool Log::body_is_sound(const Record* record, Address address, uint64_t life, const char* memory,
                        uint64_t end) const {
  if (!record->has_body()) return true;
  const Bytes key{record->key(), record->key_bytes};
  return body_at(record) + record->value_bytes <= end &&
         record->body().checksum ==
             body_checksum(key, value_in(record, memory), record->value_bytes, address, life);
}

// Notes the bodies of all sound records in a block that was read for one of them. Finds the records
// before that one only if the block begins with a record.
void Log::learn_bodies(Address address, uint64_t life, const char* buffer, uint64_t bytes) {
  const uint64_t own = address.value * kUnitBytes % kBlockBytes,
                 begin = address.value - own / kUnitBytes;
  const uint64_t end = std::min(bytes, kBlockBytes);
  uint64_t at = 0;
  while (at + sizeof(Record) <= end) {
    const auto* record = reinterpret_cast<const Record*>(buffer + at);
    const Address here{begin + at / kUnitBytes};
    if (sound(record, here, life, end - at)) {
      if (record->has_body()) note_body(record, here);
      at += record->span();
    } else if (at < own) {
      at = own;
    } else {
      return;
    }
  }
}

uint64_t Log::span_bytes(Address address, uint64_t units) const {
  const uint64_t at = address.value * kUnitBytes, end = at + units * kUnitBytes;
  if (segment_of(address) >= count_ || end > (segment_of(address) + 1) << segment_bits_) return 0;
  return round_up(end, kBlockBytes) - round_down(at, kBlockBytes);
}

const Record* Log::record_in_span(Address address, uint64_t units, uint64_t life,
                                  const char* buffer) const {
  const auto* record =
      reinterpret_cast<const Record*>(buffer + address.value * kUnitBytes % kBlockBytes);
  return sound(record, address, life, units * kUnitBytes) ? record : nullptr;
}

// Reads one record with its blocks into `buffer`. The record lies at the same offset in its block
// as on the device.
int Log::read_record(Address address, uint64_t life, char* buffer) {
  const uint64_t at = address.value * kUnitBytes, begin = round_down(at, kBlockBytes);
  uint64_t have = std::min(guess_bytes(at), buffer_bytes_);
  if (const int status = transfer(Op::kRead, begin, buffer, have); status < 0) return status;
  Record* record;
  int status = cold_record(address, life, buffer, have, &record);
  if (status != -EAGAIN) return status;
  // Even the header of the record may lie behind the bytes that were read.
  const uint64_t room = segment_bytes() - (begin & (segment_bytes() - 1));
  const uint64_t skip = at - begin;
  uint64_t wanted = skip + sizeof(Record) > have ? 2 * kBlockBytes : 0;
  if (!wanted)
    wanted = round_up(skip + reinterpret_cast<Record*>(buffer + skip)->units() * kUnitBytes,
                      kBlockBytes);
  while (status == -EAGAIN && wanted > have && wanted <= room && wanted <= buffer_bytes_) {
    status = transfer(Op::kRead, begin + have, buffer + have, wanted - have);
    if (status < 0) return status;
    have = wanted;
    status = cold_record(address, life, buffer, have, &record);
    wanted = round_up(skip + reinterpret_cast<Record*>(buffer + skip)->units() * kUnitBytes,
                      kBlockBytes);
  }
  return status == -EAGAIN ? -EBADMSG : status;
}

// An index leads only to pairs and pieces. Only a forged or damaged index leads to any other sound
// record.
int RecordReader::keep_pair() {
  if (record_->type() == RecordType::kPair || record_->type() == RecordType::kLarge) return 0;
  record_ = nullptr;
  return -EBADMSG;
}

int RecordReader::locked(Address address) {
  guard_.emplace(*log_.epochs_);
  value_ = nullptr;
  record_ = log_.in_dram(address);
  if (record_) return keep_pair();
  guard_.reset();
  return cold(address, log_.life_of(address));
}

int RecordReader::locked_again(Address address) {
  int error = 0;
  for (unsigned tries = 0; tries < 3; ++tries) {
    const int status = locked(address);
    if (status == 0) return 0;
    error = graver(error, status);
  }
  return error;
}

int RecordReader::cold(Address address, uint64_t life) {
  if (!buffer_) buffer_ = log_.take_buffer();
  address_ = address;
  life_ = life;
  value_ = nullptr;
  const int status = log_.read_record(address, life, buffer_);
  record_ = status == 0
                ? reinterpret_cast<Record*>(buffer_ + address.value * kUnitBytes % kBlockBytes)
                : nullptr;
  return status == 0 ? keep_pair() : status;
}

int RecordReader::known_body(const BodyPlace& place, Address address, uint64_t life, Bytes key) {
  const uint64_t bytes = place.blocks * kBlockBytes;
  if (!buffer_) buffer_ = log_.take_buffer();
  int status = log_.transfer(Op::kRead, log_.body_offset(address, place.block), buffer_, bytes);
  if (status == 0 && body_checksum(key, buffer_, bytes, address, life) != place.checksum)
    status = -EBADMSG;
  if (status < 0) log_.bodies_.forget(address);
  value_ = buffer_;
  return status;
}

int RecordReader::find_value() {
  if (!record_->has_body() || guard_) {
    value_ = log_.value_of(record_);
    return 0;
  }
  const Body& body = record_->body();
  const uint64_t bytes = record_->value_bytes;
  char* to =
      buffer_ + round_up(address_.value * kUnitBytes % kBlockBytes + record_->units() * kUnitBytes,
                         kBlockBytes);
  const int status = log_.transfer(Op::kRead, log_.body_offset(address_, body.at), to, bytes);
  if (status < 0) return status;
  value_ = to;
  const Bytes key{record_->key(), record_->key_bytes};
  return body.checksum == body_checksum(key, to, bytes, address_, life_) ? 0 : -EBADMSG;
}

int RecordReader::unproven(Address address) {
  if (locked(address) == 0) return 0;
  const uint64_t at = address.value * kUnitBytes, begin = round_down(at, kBlockBytes),
                 skip = at - begin;
  const uint64_t room = log_.segment_bytes() - (begin & (log_.segment_bytes() - 1));
  const uint64_t bytes = std::min(room, log_.buffer_bytes_);
  if (!buffer_) buffer_ = log_.take_buffer();
  if (const int status = log_.transfer(Op::kRead, begin, buffer_, bytes); status < 0) return status;
  auto* record = reinterpret_cast<Record*>(buffer_ + skip);
  record_ = log_.possible(record, bytes - skip) ? record : nullptr;
  return record_ ? 0 : -EBADMSG;
}

int Log::segment_contents(uint64_t number, const char** memory) {
  *memory = segments_[number].memory.load(std::memory_order_acquire);
  if (*memory) return 0;
  char* own = frame_memory(frame_count_);
  const uint64_t begin = number << segment_bits_, end = used(number);
  int status = 0;
  for (unsigned tries = 0; tries < 3; ++tries) {
    status = transfer(Op::kRead, begin, own, round_up(end, kBlockBytes));
    if (status == 0 && !records_are_sound(number, own, first_at(number), end, life(number)))
      status = -EBADMSG;
    if (status == 0) break;
  }
  *memory = own;
  return status;
}

bool Log::possible_size(const Record* record, uint64_t room) const {
  const uint64_t bytes = record->units() * kUnitBytes, longest = inline_units_max() * kUnitBytes;
  // A mark behind a batch may be longer than a block by less than a record (batch_end()).
  const uint64_t most = record->type() == RecordType::kMark ? longest + sizeof(Record) : longest;
  return bytes >= sizeof(Record) && bytes <= most && bytes <= room && record->span() <= room &&
         sizeof(Record) + round_up(record->key_bytes, 8) + record->stored_bytes() +
                 Record::replaced_units(record->size_type) * kUnitBytes <=
             bytes;
}

bool Log::possible(const Record* record, uint64_t room) const {
  if (!possible_size(record, room)) return false;
  if (record->type() == RecordType::kMark) return record->value_bytes % kBlockBytes == 0;
  if (record->type() == RecordType::kDeleted) return record->key_bytes == sizeof(DeletedKey);
  if (record->has_body())
    return !record->is_piece() && record->units() <= kBodyRecordUnits &&
           lies_on_blocks(record->key_bytes, record->value_bytes) &&
           body_at(record) + record->value_bytes <= segment_bytes();
  if (record->is_piece()) {
    if (record->type() != RecordType::kPair || record->key_bytes != sizeof(PieceKey)) return false;
    PieceKey key;
    memcpy(&key, record->key(), sizeof key);
    return key.id != 0 && key.number < pieces_most();
  }
  if (record->type() != RecordType::kLarge) return true;
  if (record->value_bytes != sizeof(Pieces)) return false;
  const Pieces& pieces = record->pieces();
  return pieces.key_bytes <= kPairBytesMax && pieces.value_bytes <= kPairBytesMax &&
         pieces.id != 0 && pieces.hold_key <= 1 &&
         record->key_bytes == (pieces.hold_key ? 0 : pieces.key_bytes) &&
         pieces.bytes() <= bytes() && pieces.piece_bytes != 0 &&
         pieces.piece_bytes <= piece_bytes_max() &&
         (pieces.piece_bytes >= piece_bytes_min() || pieces.count() == 1);
}

bool Log::sound(const Record* record, Address address, uint64_t life, uint64_t room) const {
  // No checksum covers the version. An odd one would make readers wait for the end of a change.
  return possible_size(record, room) && record->version % 2 == 0 &&
         record->checksum == record_checksum(record, address, life) && possible(record, room);
}

}  // namespace lunar::kv
