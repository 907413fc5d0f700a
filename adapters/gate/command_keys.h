// SPDX-License-Identifier: Apache-2.0
// Which arguments of a command are keys, and how much of a key's value the command is sure to read.
//
// This is the gate's own table. The server's getKeysFromCommand wants the arguments as server
// objects (allocated, or built by hand to a version's layout), answers in a structure that changes
// between versions, and does not tell whether a value is read. Commands that are not in the table
// (of a module, renamed or newer ones) are passed without lookup. A wrong entry costs a lookup, or
// a fault, but never a wrong reply.
//
// Threading: constant data.
#pragma once
#include <cstdint>

#include "resp.h"

namespace lunar::redis {

enum class KeyForm : uint8_t {
  kRange,     // first, last (negative: from the end), step
  kCounted,   // argument `first` says how many keys follow it, `step` apart; `last`, if not 0, is
              // one more key
  kStreams,   // the first half of what follows the word STREAMS, which is looked for from argument
              // `first` on
  kStored,    // `first`, and what follows each word STORE or STOREDIST from argument `last` on
  kMigrated,  // `first`; if that is empty, all that follows the word KEYS
};
enum class Wants : uint8_t {
  kObject,      // the entry, the key and the object: the command describes the value
  kValue,       // also the value's top level
  kFreed,       // also what freeing the value reads: the command deletes or overwrites it
  kFreedLater,  // likewise, but large ones are freed by another thread
  kMoves,       // of the first key its object, of the others what freeing reads
  kStores,      // of the first key what freeing reads, of the others their values
  kDepends,     // on the other arguments (freed_lookup.cpp)
};

// How much of a value is sure to be read beyond its top level.
enum class Reach : uint8_t {
  kTop,
  kAll,    // everything of each key's value
  kFirst,  // everything of the first key's value
  // sets, sorted sets: of the smallest and of those not much larger; the server looks the
  // smallest's members up in the others
  kSmallest,
  kLikeFirst,  // likewise, the first one's
  kIndexes,    // list, sorted set: elements between the indexes in the two arguments behind the key
  kIndex,      // list: the element of the index behind the key
  // sorted set: everything, when the two arguments behind the key are its ends; else nothing that
  // can be told
  kScores,
  kScan,     // buckets from the cursor behind the key on
  kBytes,    // string: between the offsets in the two arguments behind the key
  kIds,      // stream: between the ids in the two arguments behind the key
  kIdsBack,  // the same, the last one first
  kSince,    // stream: from the id on that belongs to the key
};

struct CommandKeys {
  const char* name;  // upper case
  KeyForm form;
  int8_t first, last, step;
  Wants wants;
  // arguments that name members of the keys' hashes, sets or sorted sets; 0: none
  int8_t member, member_step;
  Reach reach = Reach::kTop;
};

// CommandKeys::member: they follow the word FIELDS and their number
constexpr int8_t kBehindFields = -1;

constexpr bool reaches_all(Reach reach) {
  return reach == Reach::kAll || reach == Reach::kFirst || reach == Reach::kSmallest ||
         reach == Reach::kLikeFirst;
}

// nullptr: unknown, or a command without keys.
const CommandKeys* find_command_keys(Slice name);

// Calls see(argument index) for each key of the command that is among the arguments kept.
template <class See>
void for_each_key(const CommandKeys& keys, const Command& command, See see);

// The first argument that names a member; 0: none does; command.kept or more: it is not there.
unsigned first_member(const CommandKeys& keys, const Command& command);
// "17" -> 17; -1: not a small number.
int small_number(Slice text);
// The database that a SELECT chooses; -1: another command.
int chosen_database(const Command& command);
// "-17" -> -17. False: not a number of up to 18 characters.
bool signed_number(Slice text, int64_t* out);
bool same_word(Slice text, const char* upper_case);
// Whether one of the arguments [from, end) that are kept is that word.
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
