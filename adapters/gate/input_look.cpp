// SPDX-License-Identifier: Apache-2.0
// See input_look.h.
#include "input_look.h"

#include <cstring>
#include <initializer_list>

#include "eviction.h"
#include "expiry.h"

namespace lunar::redis {
namespace {

// False for scripts, transactions and unknown commands: they may add any number of keys.
bool adds_few_keys(const Command& command, const CommandKeys* keys) {
  if (command.kept == 0) return true;
  if (keys != nullptr)
    return command.kept == command.count && strncmp(keys->name, "EVAL", 4) != 0 &&
           strncmp(keys->name, "FCALL", 5) != 0;
  for (const char* known : {"PING", "ECHO", "SELECT", "INFO", "MULTI", "DBSIZE", "CLIENT", "CONFIG",
                            "TIME", "PUBLISH", "SCAN", "RANDOMKEY", "HELLO", "COMMAND"})
    if (same_word(command.argument[0], known)) return true;
  return false;
}

}  // namespace

Look::Look(int fd, const void* buffer) : cursor{.bytes_max = lookup_bytes_max()} {
  Gate& g = gate();
  if (!g.holding()) return;
  client_ = g.layout.client_of(fd);
  if (client_ != nullptr && !g.layout.progress_of(*client_, buffer, &progress_)) client_ = nullptr;
}

void Look::pass_rest() {
  good = bytes_;
  waits = Waits::kNothing;
  gate().few_keys = false;
}

void Look::scan(size_t bytes, Time time) {
  Gate& g = gate();
  bytes_ = bytes;
  time_ = time;
  if (!possible()) return pass_rest();
  rights_of(g.layout, *client_, &rights_);
  if (rights_.none()) {
    g.work.refused.add();
    return pass_rest();
  }
  database_ = g.layout.database_of(*client_);
  missing.bytes_max = client_bytes_max();
  missing.units = kLookUnits;
  g.few_keys = true;
  pass();
  if (waits != Waits::kCold) return;
  if (missing.bytes >= missing.bytes_max) g.work.cut.add();
  share = g.shares.of(rights_.user);
}

// Scans commands up to the first one that lacks something.
void Look::pass() {
  Gate& g = gate();
  for (bool first = true; at_ < progress_.bytes + bytes_; first = false) {
    const bool last = first && time_ == Time::kLast;
    switch (next()) {
      case Next::kOpaque:
        return pass_rest();
      case Next::kPart:
        waits = Waits::kPart;
        return;
      case Next::kColdArguments:  // the user of the following commands is not known yet
        if (last) return g.work.timeouts.add(), pass_rest();
        waits = Waits::kCold;
        return;
      case Next::kCommand:
        break;
    }
    if (!first) cursor = {.bytes_max = lookup_bytes_max()};
    if (missing.units == 0) {  // the commands before it were enough for one look
      cursor.counted = true;
      waits = Waits::kCold;
      return;
    }
    if (!look_up(&cursor)) {
      if (!last) {
        waits = Waits::kCold;
        return look_ahead();
      }
      g.work.timeouts.add();
      missing.forget();
    }
    good = at_ - progress_.bytes;
    g.few_keys = g.few_keys && adds_few_keys(g.command, keys_);
  }
}

// Scans commands after the first cold one.
void Look::look_ahead() {
  for (unsigned n = 0;
       n < kLookAhead && at_ < progress_.bytes + bytes_ && missing.units != 0 && !missing.full();
       ++n) {
    if (next() != Next::kCommand) return;
    (void)look_up(nullptr);
  }
}

Look::Next Look::next() {
  Gate& g = gate();
  const bool first = at_ == 0, begun = first && progress_.left != 0;
  const char* text = progress_.text + at_;
  const size_t bytes = progress_.bytes + bytes_ - at_;
  const Parse parse =
      begun ? parse_rest(text, bytes, progress_.taken, progress_.left, progress_.bulk, &g.command)
            : parse_command(text, bytes, &g.command);
  if (parse == Parse::kBad) return Next::kOpaque;
  // A lone partial command is passed on, so that the server's own error and idle rules apply.
  if (parse == Parse::kMore)
    return first || g.command.bytes > kPartialMax ? Next::kOpaque : Next::kPart;
  if (first && g.command.bytes <= progress_.bytes)
    return Next::kOpaque;  // the server has this command already, and waits for something else
  if (begun) {
    const Arguments taken = g.layout.arguments_taken(*client_, progress_, &g.command, &missing);
    if (taken != Arguments::kThere)
      return taken == Arguments::kCold ? Next::kColdArguments : Next::kOpaque;
  }
  keys_ = g.command.kept == 0 ? nullptr : find_command_keys(g.command.argument[0]);
  // The user of the following commands is not known yet.
  if (keys_ == nullptr && g.command.kept != 0 && changes_rights(g.command)) return Next::kOpaque;
  at_ += g.command.bytes;
  return Next::kCommand;
}

// True: the command lacks nothing, or the client may not run it. cursor: as for look_up_command.
bool Look::look_up(LookupCursor* cursor) {
  Gate& g = gate();
  if (g.command.kept == 0) return true;
  g.work.commands.add();
  if (keys_ == nullptr) return follow(), true;
  if (!rights_allow(&rights_, keys_, g.command)) return g.work.refused.add(), true;
  const DatabaseView* where = g.layout.database(database_);
  if (where == nullptr) return true;
  const uint64_t before = missing.bytes;
  const bool there =
      look_up_command(g.layout, *where, *keys_, g.command, time_ == Time::kFirst, cursor, &missing);
  count(!there && (missing.bytes != before || missing.full()), cursor);
  return eviction_has_victim(g.command.bytes, &missing) && there;
}

// Follows the effect of a command without keys on later commands and on the gate, if its client may
// run it.
void Look::follow() {
  Gate& g = gate();
  const Command& command = g.command;
  const int chosen = chosen_database(command);
  const bool wish = command.count == 3 && same_word(command.argument[0], "DEBUG") &&
                    same_word(command.argument[1], "SET-ACTIVE-EXPIRE") && expiry_takes_wishes();
  if (chosen < 0 && !wish) return g.work.unknown.add();
  if (!rights_allow(&rights_, nullptr, command)) return g.work.refused.add();
  if (wish)
    expiry_wished(small_number(command.argument[2]) == 1);
  else
    database_ = chosen;
}

// Counts each command once. Commands that one look does not reach, because they come after too many
// cold ones, are not counted.
void Look::count(bool cold, LookupCursor* cursor) const {
  Gate& g = gate();
  if (time_ == Time::kFirst) {
    unsigned key = 0;
    for_each_key(*keys_, g.command, [&](unsigned i) { key = key == 0 ? i : key; });
    if (key != 0 && key < g.command.kept) {
      g.work.seen.add();
      if (cold) g.work.seen_cold.add();
      g.prefixes.note(g.command.argument[key], cold);
    }
  } else if (cold && cursor != nullptr && !cursor->counted && cursor->idle != 0) {
    g.work.seen_cold.add();  // the first look found nothing missing
  }
  if (cold && cursor != nullptr) cursor->counted = true;
}

}  // namespace lunar::redis
