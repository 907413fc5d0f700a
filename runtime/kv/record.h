// SPDX-License-Identifier: Apache-2.0
// A record of the log: one key with its value, and the words by which everything in the store is
// addressed.
//
//   0          8         12           16          20            24        24 + key, rounded up to 8
//   │ checksum │ version │ size, type │ key_bytes │ value_bytes │ key ... │ value ... │ pad to 8
//
// A record may have more units than its content needs: its value became shorter, or it was padded
// to end with a block of the device (record_log.h: block_padding).
//
// On a device, a value of whole blocks is a *body*: it lies on blocks of the same segment behind
// its record (record_log.h). The record has RecordNotes::kBody, and a Body in place of the value.
// So a get reads no more blocks than the value has. value_bytes is still the length of the value.
//
// A record is written once and then published by the index. Afterwards only the value may change,
// if the new one fits, by the thread that holds the lock of its shard. `version` is odd meanwhile,
// and a reader that saw it odd or changed reads again (each record is a sequence lock). Key and
// size never change.
//
// The checksum (XXH3 of the bytes behind `version`, seeded by the record's address and its
// segment's life) is computed when the record leaves DRAM for a device. By it a read detects any
// other bytes.
//
// A pair that is too large for a record has a *head*, of type kLarge. The key of the head is the
// pair's, and its value is a Pieces, which describes the pieces. The pair's value lies in *pieces*,
// records of type kPair with RecordNotes::kPiece, whose keys are PieceKeys. (A key that is too
// large for a head lies in the pieces before the value, and the head's is empty.) Pieces are
// cleaned, saved, replayed and cached as other records are. Each shard has a separate index for
// them, so code that goes over keys meets no piece.
//
// If the log is to be replayed (commit.cpp), a record names the record that it replaces, so that
// replay reads no other record. The record of a set or delete ends with a Replaced (or
// ReplacedLarge), which cleaning removes when it moves the record. kDeleted: the key was deleted;
// the record holds a DeletedKey. kMark: a record without a key: the header of a batch, padding, or
// a record whose set failed. No index entry leads to kDeleted or kMark. value_bytes of a mark is
// the length of the bodies between it and the next record.
//
// Threading: see above; any number of threads may call value_copy_out during one value_overwrite.
// May not: allocate, block.
#pragma once
#include <string.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace lunar::kv {

constexpr uint64_t kUnitBytes = 8;  // records begin and end at multiples of this
// The address of a record, in units from the start of the log; 0: none.
using Address = StrongNumber<struct AddressTag, uint64_t>;
constexpr unsigned kAddressBits = 40;  // 8 TiB
constexpr uint64_t kLogBytesMax = kUnitBytes << kAddressBits;
constexpr uint64_t kPairBytesMax = 100 * kGiB;  // of a key, and of a value

struct Bytes {
  const void* data = nullptr;
  uint64_t size = 0;
};

enum class RecordType : uint32_t { kMark = 0, kPair = 1, kLarge = 2, kDeleted = 3 };

struct Replaced;

// Notes of a record on itself, in the bits of Record::size_type above type and units (14 bits).
struct RecordNotes {
  // The record ends with that structure, unless cleaning moved it.
  static constexpr uint32_t kReplacesPair = 1u << 16, kReplacesLarge = 1u << 17;
  // Cleaning moved it from a segment whose number has the 11 bits at kFromAt.
  static constexpr uint32_t kMoved = 1u << 18;
  // A piece of a large pair; with kDeleted: a piece was deleted.
  static constexpr uint32_t kPiece = 1u << 19;
  static constexpr uint32_t kBody = 1u << 20;  // kPair: its value lies on blocks
  static constexpr unsigned kFromAt = 21;
};

// The value of a head. A value is cut into pieces of piece_bytes each, of which only the last may
// be shorter.
struct Pieces {
  uint64_t hash;  // of the pair's key
  uint64_t key_bytes, value_bytes;
  // The number of this set of the pair, unique in the store over all runs. 0: no pieces.
  uint64_t id;
  uint32_t piece_bytes;
  // 1: the pieces hold the key, and the value behind it, from a multiple of 8 on; 0: the head does.
  uint32_t hold_key;

  uint64_t value_at() const { return hold_key ? round_up(key_bytes, 8) : 0; }
  uint64_t bytes() const { return value_at() + value_bytes; }
  uint64_t count() const { return id ? (bytes() + piece_bytes - 1) / piece_bytes : 0; }
  uint64_t bytes_of(uint64_t number) const {
    return std::min<uint64_t>(bytes() - number * piece_bytes, piece_bytes);
  }
};
static_assert(sizeof(Pieces) == 40);

struct PieceKey {
  uint64_t owner;  // the hash of the pair's key
  uint64_t id, number;
};
static_assert(sizeof(PieceKey) == 24);

// Where the value of a record with kBody is. The checksum is of key and value (body_checksum()).
struct Body {
  uint64_t checksum;
  uint32_t at;  // block of the segment
  uint32_t reserved;
};
static_assert(sizeof(Body) == 16);

struct Record {
  uint64_t checksum;
  uint32_t version;
  uint32_t size_type;  // RecordNotes | units << 2 | RecordType
  uint32_t key_bytes;  // kDeleted: of the structure; value_bytes is 0
  uint32_t value_bytes;

  uint32_t units() const { return size_type >> 2 & 0x3fff; }
  RecordType type() const { return static_cast<RecordType>(size_type & 3); }
  const char* key() const { return reinterpret_cast<const char*>(this + 1); }
  // pre: no body
  char* value() { return reinterpret_cast<char*>(this + 1) + round_up(key_bytes, 8); }
  bool is_piece() const { return (size_type & RecordNotes::kPiece) != 0; }
  bool has_body() const {
    return (size_type & RecordNotes::kBody) != 0 && type() == RecordType::kPair;
  }
  uint64_t body_bytes() const { return has_body() ? value_bytes : 0; }
  const Body& body() const {  // pre: it has one
    return *reinterpret_cast<const Body*>(key() + round_up(key_bytes, 8));
  }
  // The length of the data behind the key in the record itself.
  uint64_t stored_bytes() const {
    return has_body() ? sizeof(Body) : type() == RecordType::kMark ? 0 : uint64_t{value_bytes};
  }
  // Bytes from here to the next record of the segment.
  uint64_t span() const {
    return units() * kUnitBytes + (type() == RecordType::kMark ? value_bytes : 0);
  }
  // The units of its segment that it takes, with its body.
  uint64_t live_units() const { return units() + body_bytes() / kUnitBytes; }
  // pre: kLarge
  const Pieces& pieces() const {
    return *reinterpret_cast<const Pieces*>(key() + round_up(key_bytes, 8));
  }
  uint64_t value_room() const {
    return units() * kUnitBytes - sizeof(Record) - round_up(key_bytes, 8) -
           replaced_units(size_type) * kUnitBytes;
  }
  // The units of the structure at the end of the record.
  static constexpr unsigned replaced_units(uint32_t notes) {
    return notes & RecordNotes::kMoved ? 0 : noted_units(notes);
  }
  Replaced* replaced();  // pre: it replaces something
  // lost: the notes of the structure that the move removed.
  void note_moved(uint64_t from_segment, uint32_t lost) {
    size_type |= RecordNotes::kMoved | lost |
                 static_cast<uint32_t>(from_segment & 0x7ff) << RecordNotes::kFromAt;
  }
  bool moved() const { return (size_type & RecordNotes::kMoved) != 0; }
  uint32_t stripped_units() const { return moved() ? noted_units(size_type) : 0; }
  // Whether it may have been moved from that segment.
  bool may_be_from(uint64_t segment) const {
    return size_type >> RecordNotes::kFromAt == (segment & 0x7ff);
  }

 private:
  static constexpr unsigned noted_units(uint32_t notes) {
    return notes & RecordNotes::kReplacesLarge ? 5 : notes & RecordNotes::kReplacesPair ? 2 : 0;
  }
};
static_assert(sizeof(Record) == 24);

struct DeletedKey {
  uint64_t hash, key_bytes;
};
// The record that the index led to before: its address, live units and value bytes.
struct Replaced {
  uint64_t address;
  uint32_t units, value_bytes;
};
static_assert(sizeof(Replaced) == 16);
struct ReplacedLarge {              // the head of a large pair
  uint64_t value_bytes, id, count;  // of its pieces
  Replaced record;
};
static_assert(sizeof(ReplacedLarge) == 40 && offsetof(ReplacedLarge, record) == 24);
inline Replaced* Record::replaced() {
  return reinterpret_cast<Replaced*>(reinterpret_cast<char*>(this) + units() * kUnitBytes -
                                     sizeof(Replaced));
}

constexpr uint64_t record_units(uint64_t key_bytes, uint64_t value_bytes) {
  return (sizeof(Record) + round_up(key_bytes, 8) + value_bytes + kUnitBytes - 1) / kUnitBytes;
}

// Writes a record of so many units, without its value.
void fill_head(Record* record, uint32_t notes, RecordType type, uint64_t units, Bytes key,
               uint64_t value_bytes);
void fill_record(Record* record, RecordType type, uint64_t units, Bytes key, Bytes value);

inline uint32_t word32(const uint32_t& word, std::memory_order order) {
  return std::atomic_ref<uint32_t>(const_cast<uint32_t&>(word)).load(order);
}
// Copies n bytes of a value, from `offset` on. The copy may be a mix of two versions; `version`,
// read afterwards, tells.
// pre: offset + n is within the record
void value_copy_words(const char* value, uint64_t offset, void* to, uint64_t n);

// The checksum of a record at `address`.
// pre: no thread changes it
uint64_t record_checksum(const Record* record, Address address, uint64_t life);
// The checksum of other bytes that are written together: part `number` of a life.
uint64_t part_checksum(const void* data, uint64_t bytes, uint64_t number, uint64_t life);

// The checksum of key and value of a pair whose value lies on blocks. `address` is the record's.
uint64_t body_checksum(Bytes key, const char* value, uint64_t bytes, Address address,
                       uint64_t life);

// Copies up to `bytes` bytes of one version of the value at `value`, from `offset` on. Returns the
// length of the whole value.
uint64_t value_copy_out(const Record* record, const char* value, uint64_t offset, void* to,
                        uint64_t bytes);
// Replaces the value.
// pre: the lock of the record's shard; there is room
void value_overwrite(Record* record, char* to, Bytes value);

}  // namespace lunar::kv
