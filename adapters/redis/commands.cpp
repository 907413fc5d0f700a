// SPDX-License-Identifier: Apache-2.0
// See commands.h. Keys that do not exist are skipped; the reply is the number of the others, as for
// UNLINK and TOUCH.
//
// A pin holds memory, not a name: when a pinned key is overwritten, its new value is not pinned,
// and the old place stays pinned until LUNAR UNPIN without keys. Neighbours share pages, so the
// pins are kept in a list: when one key is unpinned, pages that another pin covers stay pinned.
#include "commands.h"

#include <errno.h>
#include <strings.h>

#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "info_section.h"
#include "key_memory.h"
#include "sys/mem.h"
#include "tier.h"
#include "top.h"

namespace lunar::redis {
namespace {

constexpr unsigned kPinsMax = 8192;

// ---- pins ---------------------------------------------------------------------------------------

struct Pins {
  lunar_range pages[kPinsMax] = {};  // page-aligned
  unsigned count = 0;
};
constinit Pins g_pins;

lunar_range page_range(const lunar_range& piece) {
  const uintptr_t page = sys::page_bytes(),
                  start = reinterpret_cast<uintptr_t>(piece.address) / page * page;
  return {reinterpret_cast<const void*>(start),
          round_up(reinterpret_cast<uintptr_t>(piece.address) + piece.bytes, page) - start};
}

bool same(const lunar_range& a, const lunar_range& b) {
  return a.address == b.address && a.bytes == b.bytes;
}

bool overlap(const lunar_range& a, const lunar_range& b) {
  auto from_a = reinterpret_cast<uintptr_t>(a.address),
       from_b = reinterpret_cast<uintptr_t>(b.address);
  return from_a < from_b + b.bytes && from_b < from_a + a.bytes;
}

int pin(const lunar_range& piece) {
  lunar_range pages = page_range(piece);
  for (unsigned i = 0; i < g_pins.count; ++i)
    if (same(g_pins.pages[i], pages))
      return tier().pin(pages.address, pages.bytes);  // again: the memory may have been freed since
  if (g_pins.count == kPinsMax) return -EMFILE;
  int rc = tier().pin(pages.address, pages.bytes);
  if (rc == 0) g_pins.pages[g_pins.count++] = pages;
  return rc;
}

void unpin(const lunar_range& piece) {
  lunar_range pages = page_range(piece);
  bool ours = false;
  for (unsigned i = 0; i < g_pins.count; ++i) {
    if (!same(g_pins.pages[i], pages)) continue;
    g_pins.pages[i] = g_pins.pages[--g_pins.count];
    ours = true;
    break;
  }
  if (!ours) return;
  (void)tier().unpin(pages.address, pages.bytes);
  for (unsigned i = 0; i < g_pins.count; ++i)
    if (overlap(g_pins.pages[i], pages))
      (void)tier().pin(g_pins.pages[i].address, g_pins.pages[i].bytes);
}

long long unpin_all() {
  long long count = g_pins.count;
  while (g_pins.count > 0) {
    const lunar_range& last = g_pins.pages[--g_pins.count];
    (void)tier().unpin(last.address, last.bytes);
  }
  return count;
}

// ---- commands -----------------------------------------------------------------------------------

int reply_unknown_layout(Context* context) {
  return g_api.ReplyWithError(
      context, "ERR this server's layout of keys is not known to this version of the module");
}

int arity_error(Context* context) {
  return g_api.ReplyWithError(context, "ERR wrong number of arguments for 'lunar' command");
}

int stats_command(Context* context, String**, int count) {
  if (count != 2) return arity_error(context);
  Figure list[kFiguresMax];
  unsigned n = figures(list);
  g_api.ReplyWithMap(context, n);
  for (unsigned i = 0; i < n; ++i) {
    g_api.ReplyWithSimpleString(context, list[i].name);
    switch (list[i].kind) {
      case Figure::Kind::kText:
        g_api.ReplyWithSimpleString(context, list[i].text);
        break;
      case Figure::Kind::kInteger:
        g_api.ReplyWithLongLong(context, static_cast<long long>(list[i].integer));
        break;
      case Figure::Kind::kReal:
        g_api.ReplyWithDouble(context, list[i].real);
        break;
    }
  }
  return kOk;
}

void reply_memory(Context* context, const KeyMemory& memory) {
  if (!memory.found) {
    g_api.ReplyWithNull(context);
    return;
  }
  uint64_t bytes = 0, tiered = 0, pages = 0, resident = 0;
  for (unsigned i = 0; i < memory.count; ++i) {
    bytes += memory.pieces[i].bytes;
    if (i < memory.tiered) tiered += memory.pieces[i].bytes;
  }
  key_memory_resident(memory, &pages, &resident);
  g_api.ReplyWithMap(context, 6);
  g_api.ReplyWithSimpleString(context, "encoding");
  g_api.ReplyWithSimpleString(context, memory.encoding);
  g_api.ReplyWithSimpleString(context, "covers");
  g_api.ReplyWithSimpleString(context, memory.whole ? "value" : "top");
  g_api.ReplyWithSimpleString(context, "bytes");
  g_api.ReplyWithLongLong(context, static_cast<long long>(bytes));
  g_api.ReplyWithSimpleString(context, "tiered_bytes");
  g_api.ReplyWithLongLong(context, static_cast<long long>(tiered));
  g_api.ReplyWithSimpleString(context, "page_bytes");
  g_api.ReplyWithLongLong(context, static_cast<long long>(pages));
  g_api.ReplyWithSimpleString(context, "resident_page_bytes");
  g_api.ReplyWithLongLong(context, static_cast<long long>(resident));
}

int memory_command(Context* context, String** words, int count) {
  if (count < 3) return arity_error(context);
  if (!key_memory_known()) return reply_unknown_layout(context);
  if (count > 3) g_api.ReplyWithArray(context, count - 2);
  for (int i = 2; i < count; ++i) reply_memory(context, key_memory(context, words[i]));
  return kOk;
}

// Calls `act` for the tiered pieces of each key that exists, and replies with the number of these
// keys. A negative result of `act` ends it with an error.
template <class Act>
int for_keys(Context* context, String** words, int count, Act act) {
  if (count < 3) return arity_error(context);
  if (!key_memory_known()) return reply_unknown_layout(context);
  long long done = 0;
  for (int i = 2; i < count; ++i) {
    KeyMemory memory = key_memory(context, words[i]);
    if (!memory.found) continue;
    for (unsigned piece = 0; piece < memory.tiered; ++piece) {
      int rc = act(memory.pieces[piece]);
      if (rc == 0) continue;
      char line[160];
      const char* text = rc == -ENOMEM ? "pins would hold more than half of the DRAM budget; LUNAR "
                                         "UNPIN others or raise lunar.dram"
                         : rc == -EMFILE ? "too many pins; LUNAR UNPIN others"
                         : rc == -EIO    ? "its memory cannot be read from the LUN"
                                         : errno_text(rc);
      format_to(line, sizeof(line), "ERR key %d of %d: %s", i - 1, count - 2, text);
      return g_api.ReplyWithError(context, line);
    }
    ++done;
  }
  return g_api.ReplyWithLongLong(context, done);
}

int hot_command(Context* context, String** words, int count) {
  return for_keys(context, words, count, [](const lunar_range& piece) {
    return tier().advise(piece.address, piece.bytes, LUNAR_HOT);
  });
}

int cold_command(Context* context, String** words, int count) {
  return for_keys(context, words, count, [](const lunar_range& piece) {
    return tier().advise(piece.address, piece.bytes, LUNAR_COLD);
  });
}

int pin_command(Context* context, String** words, int count) {
  return for_keys(context, words, count, pin);
}

int unpin_command(Context* context, String** words, int count) {
  if (count == 2) return g_api.ReplyWithLongLong(context, unpin_all());
  return for_keys(context, words, count, [](const lunar_range& piece) { return unpin(piece), 0; });
}

int prefetch_command(Context* context, String** words, int count) {
  if (count < 3) return arity_error(context);
  if (!key_memory_known()) return reply_unknown_layout(context);
  constexpr unsigned kBatch = 64;
  lunar_range batch[kBatch + kPiecesMax];
  unsigned waiting = 0;
  long long done = 0;
  int rc = 0;
  for (int i = 2; i < count && rc == 0; ++i) {
    KeyMemory memory = key_memory(context, words[i]);
    done += memory.found ? 1 : 0;
    for (unsigned piece = 0; piece < memory.tiered; ++piece)
      batch[waiting++] = memory.pieces[piece];
    if (waiting >= kBatch || i + 1 == count) {
      rc = waiting != 0 ? tier().prefetch(batch, waiting) : 0;
      waiting = 0;
    }
  }
  if (rc < 0)
    return g_api.ReplyWithError(context, rc == -EIO
                                             ? "ERR memory of a key cannot be read from the LUN"
                                             : "ERR prefetch failed");
  return g_api.ReplyWithLongLong(context, done);
}

int help_command(Context* context, String**, int) {
  static const char* const kLines[] = {
      "LUNAR <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
      "STATS",
      "    Figures of the tier: budget, residents, faults, LUN (as INFO lunar).",
      "MEMORY <key> [<key> ...]",
      "    Where the value lies: bytes, of these tiered, pages of these in DRAM. 'covers' says "
      "whether that is the whole value",
      "    or only its top structure (hash tables, skip lists, quick lists, streams).",
      "HOT <key> [<key> ...]",
      "    Keep what is in DRAM of the keys' values there longer.",
      "COLD <key> [<key> ...]",
      "    Write the keys' values to the LUN and free their DRAM now.",
      "PREFETCH <key> [<key> ...]",
      "    Bring the keys' values into DRAM, in one batch.",
      "PIN <key> [<key> ...]",
      "    Keep the memory that the keys' values have now in DRAM, within half of the budget.",
      "UNPIN [<key> ...]",
      "    Undo PIN; without keys, of all.",
      "TOP [COUNT <count>]",
      "    Prefixes of the keys that clients asked for lately, by how often ('hot'), and by how "
      "often something of the key was not",
      "    in DRAM ('cold'): one in 8 of the commands that the gate looks up, counts are halved "
      "each minute.",
      "HELP",
      "    Print this help.",
  };
  g_api.ReplyWithArray(context, static_cast<long>(sizeof(kLines) / sizeof(kLines[0])));
  for (const char* line : kLines) g_api.ReplyWithSimpleString(context, line);
  return kOk;
}

// ---- registration -------------------------------------------------------------------------------

enum class Keys { kNone, kSome, kOptional, kNoneButArguments };

struct Subcommand {
  const char* name;
  CommandFunction function;
  const char* flags;
  Keys keys;
  const char *summary, *complexity;
  bool takes_keys() const { return keys == Keys::kSome || keys == Keys::kOptional; }
};

constexpr CommandInfoVersion kInfoVersion{1, sizeof(HistoryEntry), sizeof(KeySpec),
                                          sizeof(CommandArgument)};

const Subcommand kSubcommands[] = {
    {"stats", stats_command, "readonly fast allow-stale allow-loading", Keys::kNone,
     "Figures of the memory tier.", "O(1)"},
    {"memory", memory_command, "readonly", Keys::kSome,
     "Tells where the values of keys lie and how much of them is in DRAM.",
     "O(N) where N is the number of pages of the values."},
    {"hot", hot_command, "readonly", Keys::kSome, "Keeps the values of keys in DRAM longer.",
     "O(N) where N is the number of pages of the values."},
    {"cold", cold_command, "readonly admin", Keys::kSome, "Moves the values of keys to the LUN.",
     "O(N) where N is the number of pages of the values."},
    {"prefetch", prefetch_command, "readonly", Keys::kSome, "Brings the values of keys into DRAM.",
     "O(N) where N is the number of pages of the values."},
    {"pin", pin_command, "readonly admin", Keys::kSome,
     "Keeps the values of keys in DRAM until they are unpinned.",
     "O(N) where N is the number of pages of the values."},
    {"unpin", unpin_command, "readonly admin", Keys::kOptional,
     "Undoes LUNAR PIN, of all keys when none is named.",
     "O(N) where N is the number of pages of the values."},
    {"top", top_command, "readonly admin fast allow-stale allow-loading", Keys::kNoneButArguments,
     "Tells which prefixes of keys are asked for, and which are cold.", "O(1)"},
    {"help", help_command, "readonly fast allow-stale allow-loading", Keys::kNone,
     "Returns helpful text about the subcommands.", "O(1)"},
};

int describe(Command* command, const Subcommand& subcommand) {
  KeySpec specs[2] = {};
  specs[0].flags = kKeyReadOnly | kKeyAccess;
  specs[0].begin_search = kBeginAtIndex;
  specs[0].begin.index.position = 2;
  specs[0].find_keys = kFindRange;
  specs[0].find.range = {-1, 1, 0};
  CommandArgument arguments[2] = {};
  arguments[0] = {"key",
                  kArgumentKey,
                  0,
                  nullptr,
                  nullptr,
                  nullptr,
                  kArgumentMultiple | (subcommand.keys == Keys::kOptional ? kArgumentOptional : 0),
                  nullptr,
                  nullptr};
  const bool keys = subcommand.takes_keys();
  CommandArgument count[2] = {};
  count[0] = {"count", kArgumentInteger,  -1,      "COUNT", nullptr,
              nullptr, kArgumentOptional, nullptr, nullptr};
  CommandInfo info{};
  info.version = &kInfoVersion;
  info.summary = subcommand.summary;
  info.complexity = subcommand.complexity;
  info.since = "0.1.0";
  info.arity = subcommand.keys == Keys::kSome ? -3 : subcommand.keys == Keys::kNone ? 2 : -2;
  info.key_specs = keys ? specs : nullptr;
  info.arguments = keys ? arguments : subcommand.keys == Keys::kNoneButArguments ? count : nullptr;
  if (g_api.SetCommandInfo(command, &info) != kOk) return -EINVAL;
  // Redis 7.0 gives commands of modules no categories; later servers let them be set.
  if (g_api.SetCommandACLCategories == nullptr) return 0;
  const char* categories = strstr(subcommand.flags, "admin") != nullptr
                               ? "read slow admin dangerous"
                           : strstr(subcommand.flags, "fast") != nullptr ? "fast"
                                                                         : "read slow";
  return g_api.SetCommandACLCategories(command, categories) == kOk ? 0 : -EINVAL;
}

}  // namespace

bool commands_free(Context* context) {
  // GetCommand finds commands of this module only
  Reply* reply = g_api.Call(context, "COMMAND", "cc", "INFO", "lunar");
  if (reply == nullptr) return true;
  Reply* first =
      g_api.CallReplyLength(reply) == 1 ? g_api.CallReplyArrayElement(reply, 0) : nullptr;
  const bool taken = first != nullptr && g_api.CallReplyType(first) == kReplyArray;
  g_api.FreeCallReply(reply);
  return !taken;
}

int commands_register(Context* context, ErrorText* why) {
  if (g_api.CreateCommand(context, "lunar", nullptr, "readonly", 0, 0, 0) != kOk)
    return why->set(-EINVAL, "the server refuses the command LUNAR");
  Command* parent = g_api.GetCommand(context, "lunar");
  CommandInfo container{};
  container.version = &kInfoVersion;
  container.summary = "A container for commands of the memory tier.";
  container.complexity = "Depends on subcommand.";
  container.since = "0.1.0";
  container.arity = -2;
  bool done = parent != nullptr && g_api.SetCommandInfo(parent, &container) == kOk;
  for (const Subcommand& subcommand : kSubcommands) {
    const bool keys = subcommand.takes_keys();
    done = done &&
           g_api.CreateSubcommand(parent, subcommand.name, subcommand.function, subcommand.flags,
                                  keys ? 2 : 0, keys ? -1 : 0, keys ? 1 : 0) == kOk;
    char full[32];
    format_to(full, sizeof(full), "lunar|%s", subcommand.name);
    Command* command = done ? g_api.GetCommand(context, full) : nullptr;
    done = done && command != nullptr && describe(command, subcommand) == 0;
  }
  return done ? 0 : why->set(-EINVAL, "the server refuses to register the LUNAR command");
}

}  // namespace lunar::redis
