// SPDX-License-Identifier: Apache-2.0
// The arguments of a command that are keys, and the part of a key's value that the command is sure
// to read.
//
// This is the gate's own table. The server's getKeysFromCommand takes the arguments as server
// objects (allocated, or built by hand to a version's layout), returns a structure that changes
// between versions, and does not say whether a value is read. Commands that are not in the table
// (those of modules, renamed or newer ones) are passed without lookup. A wrong entry costs a
// lookup, or a fault, but never a wrong reply.
//
// Threading: constant data.
#pragma once
#include <cstdint>

#include "resp.h"

namespace lunar::redis {

enum class KeyForm : uint8_t {
  kRange,     // first, last (negative: from the end), step
  kCounted,   // argument `first` is the number of keys after it, `step` apart; `last`, if not 0, is
              // one more key
  kStreams,   // the first half of the arguments after the word STREAMS, at `first` or later
  kStored,    // `first`, and the argument after each word STORE or STOREDIST from `last` on
  kMigrated,  // `first`; if that is empty, all arguments after the word KEYS
};
enum class Wants : uint8_t {
  kObject,      // the entry, the key and the object: the command describes the value
  kValue,       // also the value's top level
  kFreed,       // also memory read to free the value: the command deletes or overwrites it
  kFreedLater,  // like kFreed, but another thread frees large values
  kMoves,       // first key: kObject; others: kFreed
  kStores,      // first key: kFreed; others: kValue
  kDepends,     // one of the above, by the other arguments (freed_lookup.cpp)
};

// The part of a value that the command is sure to read beyond its top level.
enum class Reach : uint8_t {
  kTop,
  kAll,    // everything of each key's value
  kFirst,  // everything of the first key's value
  // sets, sorted sets: everything of the smallest and of those that are not much larger; the server
  // looks the members of the smallest up in the others
  kSmallest,
  kLikeFirst,  // the same with the first instead of the smallest
  kIndexes,    // list, sorted set: elements between the indexes in the two arguments after the key
  kIndex,      // list: the element of the index after the key
  // sorted set: everything, if the two arguments after the key are its ends; else not known
  kScores,
  kScan,     // buckets from the cursor after the key on
  kBytes,    // string: bytes between the offsets in the two arguments after the key
  kIds,      // stream: entries between the ids in the two arguments after the key
  kIdsBack,  // the same, the last entry first
  kSince,    // stream: entries from the key's id on
};

struct CommandKeys {
  const char* name;  // upper case
  KeyForm form;
  int8_t first, last, step;
  Wants wants;
  // the first argument that names a member of a hash, set or sorted set, and their step; 0: none
  int8_t member, member_step;
  Reach reach = Reach::kTop;
};

// CommandKeys::member: the members follow the word FIELDS and their number
constexpr int8_t kBehindFields = -1;

constexpr bool reaches_all(Reach reach) {
  return reach == Reach::kAll || reach == Reach::kFirst || reach == Reach::kSmallest ||
         reach == Reach::kLikeFirst;
}

// nullptr: unknown, or a command without keys.
const CommandKeys* find_command_keys(Slice name);

// Calls see(argument index) for each key of the command among the arguments kept.
template <class See>
void for_each_key(const CommandKeys& keys, const Command& command, See see);

// The first argument that names a member. 0: none does; command.kept or more: it was not kept.
unsigned first_member(const CommandKeys& keys, const Command& command);
// "17" -> 17; -1: not a small number.
int small_number(Slice text);
// The database that a SELECT chooses; -1: another command.
int chosen_database(const Command& command);
// "-17" -> -17. False: not a number of up to 18 characters.
bool signed_number(Slice text, int64_t* out);
bool same_word(Slice text, const char* upper_case);
// Whether one of the kept arguments in [from, end) is that word.
bool has_word(const Command& command, unsigned from, unsigned end, const char* upper_case);

template <class See>
void for_each_key(const CommandKeys& keys, const Command& command, See see) {
  const auto kept = static_cast<int64_t>(command.kept);
  if (keys.form == KeyForm::kRange) {
    int64_t last = keys.last < 0 ? static_cast<int64_t>(command.count) + keys.last : keys.last;
    for (int64_t i = keys.first; i <= last && i < kept; i += keys.step)
      see(static_cast<unsigned>(i));
  } else if (keys.form == KeyForm::kCounted) {
    if (keys.first >= kept) return;
    if (keys.last != 0) see(static_cast<unsigned>(keys.last));
    int64_t n = small_number(command.argument[keys.first]);
    for (int64_t i = keys.first + 1; n > 0 && i < kept; i += keys.step, --n)
      see(static_cast<unsigned>(i));
  } else if (keys.form == KeyForm::kStreams) {
    int64_t i = keys.first;
    while (i < kept && !same_word(command.argument[i], "STREAMS")) ++i;
    int64_t n = (static_cast<int64_t>(command.count) - i - 1) / 2;
    for (++i; n > 0 && i < kept; ++i, --n) see(static_cast<unsigned>(i));
  } else if (keys.form == KeyForm::kStored) {
    if (keys.first < kept) see(static_cast<unsigned>(keys.first));
    for (int64_t i = keys.last; i + 1 < kept; ++i)
      if (same_word(command.argument[i], "STORE") || same_word(command.argument[i], "STOREDIST"))
        see(static_cast<unsigned>(++i));
  } else if (keys.first < kept && command.argument[keys.first].bytes != 0) {
    see(static_cast<unsigned>(keys.first));
  } else {
    int64_t i = keys.first;
    while (i < kept && !same_word(command.argument[i], "KEYS")) ++i;
    for (++i; i < kept; ++i) see(static_cast<unsigned>(i));
  }
}

}  // namespace lunar::redis
