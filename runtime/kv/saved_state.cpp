// SPDX-License-Identifier: Apache-2.0
// The saved state: see saved_state.h and store_format.h; Store::flush.
//
// Order of a save: all records, the links, flush; the root, durable. Until then the previous root
// counts, and nothing that it refers to is overwritten.
// Threading: as in store.h.
#include "kv/saved_state.h"

#include <errno.h>
#include <stddef.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "kv/store.h"
#include "kv/store_head.h"
#include "lun/raw_io.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kShareForOpen = 32;  // of the budget

// Erases both superblocks before anything else, so that no crash leaves one over the roots of
// another store.
int format(Device* device, const media::Superblock& super, AtomicImage* root) {
  int status = raw_zero(device, 0, media::kBlockBytes);
  if (status == 0) status = raw_zero(device, media::kSecondSuperAt, media::kBlockBytes);
  if (status == 0) status = raw_flush(device);
  if (status == 0) status = root->format();
  if (status == 0) status = superblock_write(device, super);
  return status == 0 ? raw_flush(device) : status;
}

}  // namespace

// ---- links --------------------------------------------------------------------------------------

uint64_t LinkBlocks::checksum() const {
  constexpr uint64_t kFrom = sizeof(media::StateLink::checksum);
  return part_checksum(link + kFrom, used - kFrom, number, life);
}

bool LinkBlocks::is_whole() const {
  media::StateLink head;
  memcpy(&head, link, sizeof head);
  return sizeof head + head.bytes == used && head.checksum == checksum();
}

uint64_t LinkBlocks::sum_of(uint64_t i) const {
  return part_checksum(block(i), media::kBlockBytes, number << 32 | i, life);
}

bool LinkBlocks::is_sound(uint64_t i) const {
  const uint64_t is = sum_of(i);
  return memcmp(sum(i), &is, sizeof is) == 0;
}

void LinkBlocks::compute(uint64_t i) const {
  uint64_t words[media::kBlockBytes / sizeof(uint64_t)], all[std::size(words)] = {};
  for (uint64_t other = 0; other <= count(); ++other) {
    if (other == i) continue;
    memcpy(words, block(other), sizeof words);
    for (uint64_t word = 0; word < std::size(words); ++word) all[word] ^= words[word];
  }
  memcpy(block(i), all, sizeof all);
}

bool LinkBlocks::repair_only(uint64_t i) const {
  char as_read[media::kBlockBytes];
  memcpy(as_read, block(i), sizeof as_read);
  compute(i);
  if (is_sound(i)) return true;
  memcpy(block(i), as_read, sizeof as_read);
  return false;
}

uint64_t LinkBlocks::repair(char* sound) const {
  memset(link, 0, sizeof(media::StateLink::checksum));
  memset(link + used, 0, count() * media::kBlockBytes - used);
  uint64_t sound_count = 0, damaged = 0;
  for (uint64_t i = 0; i < count(); ++i) {
    sound[i] = is_sound(i);
    if (sound[i])
      ++sound_count;
    else
      damaged = i;
  }
  if (sound_count + 1 != count() || !repair_only(damaged)) return sound_count;
  sound[damaged] = 1;
  return count();
}

void LinkBlocks::seal() const {
  compute(count());
  for (uint64_t i = 0; i < count(); ++i) {
    const uint64_t is = sum_of(i);
    memcpy(sum(i), &is, sizeof is);
  }
  const uint64_t whole = checksum();
  memcpy(link, &whole, sizeof whole);
}

int StateWriter::write_link(uint64_t next) {
  const media::StateLink link{0, next, fill_};
  memcpy(frame_, &link, sizeof link);
  const LinkBlocks blocks{frame_, sizeof link + fill_, number_, life_};
  const auto end = static_cast<uint64_t>(blocks.sum(blocks.count()) - frame_);
  const uint64_t bytes = round_up(end, media::kBlockBytes);
  memset(frame_ + blocks.used, 0, bytes - blocks.used);
  blocks.seal();
  ++number_;
  fill_ = 0;
  return log_.transfer(Op::kWrite, (segment_ - 1) * log_.segment_bytes(), frame_, bytes);
}

int StateWriter::put(const void* data, uint64_t bytes) {
  const uint64_t room = media::link_room(log_.segment_bytes());
  auto* from = static_cast<const char*>(data);
  while (bytes != 0) {
    if (!segment_ || fill_ == room) {
      uint64_t number;
      if (const int status = log_.take_link(life_, &number); status < 0) return status;
      if (!segment_)
        first_ = number + 1;
      else if (const int status = write_link(number + 1); status < 0)
        return status;
      segment_ = number + 1;
    }
    const uint64_t part = std::min(bytes, room - fill_);
    memcpy(frame_ + sizeof(media::StateLink) + fill_, from, part);
    from += part;
    bytes -= part;
    fill_ += part;
    bytes_ += part;
  }
  return 0;
}

int StateWriter::finish() { return segment_ ? write_link(0) : 0; }

bool StateReader::is_whole() const {
  media::StateLink link;
  memcpy(&link, frame_, sizeof link);
  if (link.bytes > log_.segment_bytes() - sizeof link || link.bytes > left_) return false;
  return LinkBlocks{frame_, sizeof link + link.bytes, number_ - 1, life_}.is_whole();
}

int StateReader::repair() {
  const uint64_t bytes = std::min(left_, media::link_room(log_.segment_bytes()));
  const LinkBlocks blocks{frame_, sizeof(media::StateLink) + bytes, number_ - 1, life_};
  char sound[Log::kSegmentBytesMax / media::kBlockBytes];
  media::StateLink link;
  const bool repaired = blocks.repair(sound) == blocks.count();
  memcpy(&link, frame_, sizeof link);
  if (!repaired || link.bytes != bytes) return -EBADMSG;
  return repaired_->push(segment_ + 1) ? 0 : -ENOMEM;
}

int StateReader::read_link() {
  ++number_;
  if (next_ == 0 || next_ > log_.segments() || log_.state(next_ - 1) != SegmentState::kFree)
    return -EBADMSG;
  const uint64_t segment = segment_ = next_ - 1;
  const int read = log_.read_what_can_be(segment, frame_, log_.segment_bytes());
  if (!is_whole()) {
    if (const int status = repair(); status < 0) return read < 0 ? read : status;
  }
  media::StateLink link;
  memcpy(&link, frame_, sizeof link);
  log_.restore(segment, SegmentState::kState, life_, 0, 0);
  next_ = link.next;
  at_ = sizeof link;
  end_ = sizeof link + link.bytes;
  return 0;
}

int StateReader::take(void* data, uint64_t bytes) {
  auto* out = static_cast<char*>(data);
  while (bytes != 0) {
    if (at_ == end_) {
      if (const int status = read_link(); status < 0) return status;
      continue;
    }
    const uint64_t part = std::min(bytes, end_ - at_);
    memcpy(out, frame_ + at_, part);
    out += part;
    bytes -= part;
    at_ += part;
    left_ -= part;
  }
  return 0;
}

// ---- the store ----------------------------------------------------------------------------------

int Store::open_root(const StoreOptions& options, ErrorText* why) {
  const Contents contents = options.contents;
  int status = 0;
  if (contents == Contents::kNew) {
    status = sys::random_bytes(super_.uuid, sizeof super_.uuid);
    super_.segment_count = log_.segments();
    super_.back_offset = media::kHeadBytes + log_.bytes();
    super_.device_bytes = super_.back_offset + media::kTailBytes;
    super_.segment_bits = static_cast<uint32_t>(__builtin_ctzll(log_.segment_bytes()));
    super_.shard_bits = shard_bits_;
    super_.index_bits = shards_[0].index.bits();
    superblock_seal(&super_);
    if (status == 0) status = device_->reserve(DeviceOffset{0}, super_.device_bytes);
  }
  if (status == 0)
    status = root_.prepare(device_, root_spec(super_),
                           {2, {media::kFrontRootsAt, super_.back_offset}}, nullptr);
  if (status < 0)
    return why->set(status, "key/value store on %s: %s", device_->name(), errno_text(status));
  persistent_ = true;
  log_.keep([](const void* store) { return static_cast<const Store*>(store)->state_bytes(); },
            this);
  media::Root root = {};
  if (contents == Contents::kExisting)
    status = load(&root, why);
  else
    status = format(device_, super_, &root_);
  if (status < 0 && contents == Contents::kNew)
    return why->set(status, "key/value store on %s: cannot be formatted: %s", device_->name(),
                    errno_text(status));
  if (status == 0 && root.log != 0) {
    budget_.keep_for_chains(budget_.limit() / kShareForOpen);
    status = replay(root, why);
    budget_.keep_for_chains(0);
  }
  if (status == 0) {
    status = drop_unreferenced();
    if (status < 0)
      return why->set(status,
                      "key/value store on %s: pieces of a large value that an interrupted set or "
                      "delete left cannot be read: %s; "
                      "try again, or read the store with `lunar kv dump`",
                      device_->name(), errno_text(status));
  }
  if (status < 0 || read_only_ || (root.log == 0 && options.durability == Durability::kFlush))
    return status;
  return begin_commits(options, why);
}

// Saves the replayed store, so there is never more than one log. A replay may split other buckets
// of the index than the run that wrote the log, and needs some memory for that.
int Store::begin_commits(const StoreOptions& options, ErrorText* why) {
  int status = 0;
  if (options.durability != Durability::kFlush)
    status =
        log_.begin_commits(options.durability == Durability::kGroup, options.replay_bytes_most);
  if (status == 0) status = flush();
  if (options.durability != Durability::kFlush)
    budget_.keep_for_open(budget_.limit() / kShareForOpen);
  return status < 0 ? why->set(status, "key/value store on %s: its log cannot be begun: %s",
                               device_->name(), errno_text(status))
                    : 0;
}

int Store::load(media::Root* out, ErrorText* why) {
  SlotReport report;
  const Repair repair = salvage_ ? Repair::kSalvage : read_only_ ? Repair::kNo : Repair::kOne;
  int status = root_.load(repair, &report);
  if (status == -EPROTONOSUPPORT)
    return why->set(
        status,
        "key/value store on %s: made by a later Lunar, which uses what this one does not know",
        device_->name());
  // An interrupted save leaves an older root, which the next open for writing completes.
  root_bad_ = report.bad == report.older ? 0 : report.bad;
  root_may_be_old_ = status == 0 && !report.proven;
  media::Root& root = *out;
  if (status == 0) memcpy(&root, root_.body(), sizeof root);
  if (root_may_be_old_ && root.keys == 0) status = -EBADMSG;  // "empty" is no answer
  if (status == 0 && root.first == 0) return 0;
  if (status < 0)
    return why->set(
        status, "key/value store on %s: the roots of its saved state are damaged (%s: %s)%s",
        device_->name(), report.what, errno_text(status),
        !salvage_ && root_.newest_intact() ? "; `lunar kv dump --salvage` goes by one that is sound"
                                           : "");
  StateReader state(log_, root, &rebuilt_.parts);
  status = load_segments(state);
  if (status == 0) status = load_unreferenced(state);
  if (status == 0) status = load_shards(state);
  if (status == 0 && (!state.at_end() || count() != root.keys)) status = -EBADMSG;
  if (status == 0 && rebuilt_.parts.count() != 0)
    log_warning(
        "key/value store on %s: %llu of its saved state's parts had a damaged block, "
        "which was computed from the others; the next save writes them anew",
        device_->name(), static_cast<unsigned long long>(rebuilt_.parts.count()));
  if (status < 0 && status != -ENOMEM && salvage_) status = load_rebuilt(root);
  if (status == -ENOMEM)
    return why->set(status, "key/value store on %s: %s of DRAM do not hold its index; give it more",
                    device_->name(), format_size(budget_.limit()).text);
  if (status == 0) return 0;
  return why->set(status,
                  "key/value store on %s: its saved state is damaged in part %llu, segment %llu "
                  "(%s); `lunar kv dump --salvage` reads the records themselves",
                  device_->name(), static_cast<unsigned long long>(state.part()),
                  static_cast<unsigned long long>(state.segment()), errno_text(status));
}

// Drops what was loaded of a damaged state, and rebuilds the store.
int Store::load_rebuilt(const media::Root& root) {
  rebuilt_.parts.clear();
  left_unreferenced_.clear();
  log_.forget_restored();
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    Shard& shard = shards_[i];
    for (Index* index : {&shard.index, &shard.pieces}) {
      const unsigned bits = index->bits();
      index->close();
      if (const int status = index->open(bits, &budget_); status < 0) return status;
    }
  }
  return rebuild(*this, root, &rebuilt_);
}

// Checks each number of the state, because a checksum does not prove that it lies within the log or
// an array.
int Store::load_segments(StateReader& state) {
  for (uint64_t i = 0; i < log_.segments(); ++i) {
    media::SegmentEntry entry;
    if (const int status = state.take(&entry, sizeof entry); status < 0) return status;
    if (entry.kind == media::SegmentKind::kFree) continue;
    if (entry.kind != media::SegmentKind::kRecords || log_.state(i) != SegmentState::kFree)
      return -EBADMSG;
    if (entry.used > log_.segment_bytes() || entry.used % kUnitBytes != 0 ||
        entry.live > entry.used / kUnitBytes)
      return -EBADMSG;
    log_.restore(i, SegmentState::kSealed, entry.life, entry.live, entry.used);
  }
  return 0;
}

int Store::load_shards(StateReader& state) {
  const uint64_t bytes = log_.segments() * sizeof(uint32_t);
  // The number of entries that lead to each segment.
  auto* entries = static_cast<uint32_t*>(map_private(bytes, ForkPolicy::kInherit));
  if (!entries) return -ENOMEM;
  int status = 0;
  for (unsigned i = 0; status == 0 && i < 1u << shard_bits_; ++i)
    status = load_shard(state, i, entries);
  for (uint64_t i = 0; status == 0 && i < log_.segments(); ++i) {
    log_.restore_records(i, entries[i]);
    if (uint64_t{entries[i]} * record_units(0, 0) > log_.live(i)) status = -EBADMSG;
  }
  unmap_private(entries, bytes);
  return status;
}

int Store::load_unreferenced(StateReader& state) {
  uint64_t count = 0;
  if (const int status = state.take(&count, sizeof count); status < 0) return status;
  if (count > kUnreferencedMost) return -EBADMSG;
  for (; count; --count) {
    media::UnreferencedPieces one;
    if (const int status = state.take(&one, sizeof one); status < 0) return status;
    if (one.id == 0 || one.count > log_.pieces_most()) return -EBADMSG;
    if (!left_unreferenced_.push(one)) return -ENOMEM;
  }
  return 0;
}

int Store::load_index(StateReader& state, Index& index, uint64_t buckets, uint64_t count,
                      uint32_t* entries) {
  // What is left must hold a count for each bucket, and the entries.
  const uint64_t words = state.left() / sizeof(uint64_t);
  if (buckets > words || count > words - buckets) return -EBADMSG;
  if (const int status = index.resume(buckets, count); status < 0) return status;
  for (uint64_t bucket = 0; bucket < buckets; ++bucket) {
    uint64_t n = 0, entry = 0;
    if (const int status = state.take(&n, sizeof n); status < 0) return status;
    for (; n; --n) {
      if (const int status = state.take(&entry, sizeof entry); status < 0) return status;
      const Address address = Index::address_in(entry);
      const uint64_t segment = log_.segment_of(address);
      if (address.value == 0 || segment >= log_.segments() ||
          log_.state(segment) != SegmentState::kSealed ||
          address.value * kUnitBytes - segment * log_.segment_bytes() + sizeof(Record) >
              log_.used(segment))
        return -EBADMSG;
      ++entries[segment];
      if (const int status = index.restore(bucket, entry); status < 0) return status;
    }
  }
  return index.entries() == count ? 0 : -EBADMSG;
}

int Store::load_shard(StateReader& state, unsigned number, uint32_t* entries) {
  Shard& shard = shards_[number];
  media::ShardHeader header;
  if (const int status = state.take(&header, sizeof header); status < 0) return status;
  shard.pair_bytes.store(header.pair_bytes, std::memory_order_relaxed);
  if (const int status = load_index(state, shard.index, header.buckets, header.keys, entries);
      status < 0)
    return status;
  return load_index(state, shard.pieces, header.piece_buckets, header.pieces, entries);
}

namespace {

uint64_t shard_bytes(const Shard& shard) {
  uint64_t words = 0;
  for (const Index* index : {&shard.index, &shard.pieces})
    words += index->entries() + index->buckets();
  return sizeof(media::ShardHeader) + sizeof(uint64_t) * words;
}

// Puts the state of a shard: the header, then the entries of each bucket. put(data, bytes) returns
// 0, or -errno, which ends it.
template <class Put>
int put_shard(const Shard& shard, Put put) {
  const media::ShardHeader header{
      shard.index.entries(), shard.pair_bytes.load(std::memory_order_relaxed),
      shard.index.buckets(), shard.pieces.entries(), shard.pieces.buckets()};
  int status = put(&header, sizeof header);
  for (const Index* index : {&shard.index, &shard.pieces}) {
    for (uint64_t bucket = 0; status == 0 && bucket < index->buckets(); ++bucket) {
      uint64_t n = 0;
      index->for_bucket(bucket, [&](uint64_t) { ++n; });
      status = put(&n, sizeof n);
      index->for_bucket(bucket, [&](uint64_t entry) {
        if (status == 0) status = put(&entry, sizeof entry);
      });
    }
  }
  return status;
}

}  // namespace

uint64_t Store::state_bytes() const {
  uint64_t bytes = log_.segments() * sizeof(media::SegmentEntry) + sizeof(uint64_t) +
                   sizeof unreferenced_at_cut_;
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) bytes += shard_bytes(shards_[i]);
  return bytes;
}

// Copies the index of a shard for the save. -ENOMEM: nothing changed.
// pre: the shard's lock, and it is unsaved
int Store::keep_image(Shard& shard) {
  const uint64_t bytes = shard_bytes(shard);
  if (!log_.take_memory(bytes)) return -ENOMEM;
  auto* image = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!image) {
    budget_.give_back(bytes);
    return -ENOMEM;
  }
  images_.fetch_add(1, std::memory_order_relaxed);
  char* to = image;
  (void)put_shard(shard, [&](const void* data, uint64_t n) {
    memcpy(to, data, n);
    to += n;
    return 0;
  });
  shard.image = image;
  shard.image_bytes = bytes;
  shard.unsaved = false;
  return 0;
}

void Store::free_image(Shard& shard) {
  if (!shard.image) return;
  unmap_private(shard.image, shard.image_bytes);
  budget_.give_back(shard.image_bytes);
  shard.image = nullptr;
  images_freed_.fetch_add(1, std::memory_order_release);
  images_.fetch_sub(1, std::memory_order_release);
}

// Gains memory for an index that could not grow: from the log's caches, or by waiting until an
// image of a save is written and freed. freed: images_freed_ before the failure. False: there is no
// more.
// pre: no lock, no epoch
bool Store::gain_memory(uint64_t freed) {
  if (log_.shrink()) return true;
  const bool waits = images_.load(std::memory_order_acquire) != 0;
  if (waits) sys::sleep_ns(50'000);
  return waits || images_freed_.load(std::memory_order_acquire) != freed;
}

// Locks a shard for a writer. If there is no memory for an image, the writer waits until the shard
// is saved.
void Store::lock_shard(Shard& shard) {
  for (;;) {
    shard.lock.lock();
    if (!shard.unsaved || keep_image(shard) == 0) return;
    shard.lock.unlock();
    sys::sleep_ns(50'000);
  }
}

// Writes the image of a shard. Without memory for an image, writes the index under the shard's
// lock.
int Store::save_shard(StateWriter& state, Shard& shard) {
  int status = 0;
  {
    MutexLock lock(shard.lock);
    if (shard.unsaved && keep_image(shard) < 0) {
      status = put_shard(shard, [&](const void* data, uint64_t n) { return state.put(data, n); });
      shard.unsaved = false;
      return status;
    }
  }
  status = state.put(shard.image, shard.image_bytes);  // writers no longer touch the image
  free_image(shard);
  return status;
}

int Store::write_state(media::Root* root) {
  StateWriter state(log_, root->life);
  int status = 0;
  for (uint64_t i = 0; status == 0 && i < log_.segments(); ++i)
    status = state.put(&log_.at_cut(i), sizeof(media::SegmentEntry));
  if (status == 0)
    status = state.put(&unreferenced_at_cut_count_, sizeof unreferenced_at_cut_count_);
  if (status == 0)
    status =
        state.put(unreferenced_at_cut_, unreferenced_at_cut_count_ * sizeof *unreferenced_at_cut_);
  for (unsigned i = 0; status == 0 && i < 1u << shard_bits_; ++i) {
    status = save_shard(state, shards_[i]);
    log_.spare_frames();
  }
  if (status == 0) status = state.finish();
  root->first = state.first();
  root->bytes = state.bytes();
  return status;
}

// Finds out which state counts, after a commit whose outcome could not be read.
int Store::settle() {
  if (root_.loaded()) return 0;
  SlotReport report;
  if (const int status = root_.load(Repair::kOne, &report); status < 0) return status;
  media::Root root;
  memcpy(&root, root_.body(), sizeof root);
  log_.settle(root.life);
  return 0;
}

// Fixes the moment of the state, while no thread writes.
void Store::cut(media::Root* root) {
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) shards_[i].lock.lock();
  log_.save_cut(root);
  cut_unreferenced();
  root->life = log_.new_life();
  root->keys = count();
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    shards_[i].unsaved = true;
    shards_[i].lock.unlock();
  }
}

// Writers wait for the cut, and then for the copy of a shard's index. The cut is short, because all
// but the newest records were written before.
// pre: the cleaning mutex
int Store::save() {
  log_.save_begins();
  // Linux reports a failed write once and forgets it, so a later flush that succeeds would prove
  // nothing.
  int status = log_.failed() ? -EIO : settle();
  if (status == 0) status = log_.save_written();
  if (status < 0) return status;
  log_.spare_frames();
  media::Root root = {};
  cut(&root);
  status = log_.save_cut_written();
  if (status == 0) status = write_state(&root);
  for (unsigned i = 0; i < 1u << shard_bits_; ++i) {
    MutexLock lock(shards_[i].lock);
    shards_[i].unsaved = false;
    free_image(shards_[i]);
  }
  if (status == 0) status = log_.commit_before(root);
  if (status == 0) {
    status = log_.flush_device();
    if (status < 0)
      log_error("key/value store on %s: flush: %s; nothing more is saved until it is opened again",
                device_->name(), errno_text(status));
  }
  Log::Saved saved = Log::Saved::kNo;
  if (status == 0) {
    memcpy(root_.body(), &root, sizeof root);
    if (log_.commits()) root_.header().features |= media::kFeatureLog;
    status = root_.commit();
    saved = status == 0      ? Log::Saved::kYes
            : root_.loaded() ? Log::Saved::kNo
                             : Log::Saved::kUnknown;
  }
  log_.save_end(saved);
  return status;
}

// Called after each set. The first writer that finds a save due soon saves; other writers continue.
// A failure is returned to writers that cannot continue without a save.
void Store::save_early() {
  if (!log_.state_wanted() || !cleaning_.try_lock()) return;
  if (log_.state_wanted()) {
    log_.reclaim();
    (void)save();
    log_.reclaim();
  }
  cleaning_.unlock();
}

int Store::flush() {
  if (!persistent_ || read_only_) return 0;
  yield_to_writers();
  MutexLock guard(cleaning_);
  const int status = save();
  log_.reclaim();  // so that the counters do not show segments of the previous state
  return status;
}

}  // namespace lunar::kv
