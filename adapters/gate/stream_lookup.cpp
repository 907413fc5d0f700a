// SPDX-License-Identifier: Apache-2.0
// See stream_lookup.h.
#include "stream_lookup.h"

#include <dlfcn.h>

#include <cstring>

#include "base/host_guard.h"
#include "sys/mem.h"
#include "value_lookup.h"

namespace lunar::redis {
namespace {

constexpr unsigned kIdBytes = 16;
constexpr unsigned kChildrenMax = 256;
constinit bool g_known = false;

struct Id {
  unsigned char byte[kIdBytes];
};

// A node; its first word has iskey:1, isnull:1, iscompr:1, size:29.
struct Node {
  const unsigned char* at;
  uint32_t word;
  bool is_key() const { return (word & 1) != 0; }
  bool has_value() const { return (word & 3) == 1; }
  bool one_child() const { return (word & 4) != 0; }  // the bytes are one piece of the key
  unsigned size() const { return word >> 3; }
  unsigned children() const { return one_child() ? size() != 0 : size(); }
  bool sound() const { return size() <= (one_child() ? kIdBytes : kChildrenMax); }
  unsigned pointers() const { return (4 + size() + 7) / 8 * 8; }  // offset of the first
  unsigned bytes() const { return pointers() + 8 * (children() + (has_value() ? 1 : 0)); }
  const unsigned char* key_byte(unsigned n) const { return at + 4 + n; }
  const unsigned char* pointer(unsigned n) const {
    const unsigned char* out;
    memcpy(&out, at + pointers() + 8 * n, sizeof out);
    return out;
  }
};

// Goes through the values of ids from `low` to `high`, in order or backwards. See has bool
// have(address, bytes), bool node_missing(), bool node(), and bool value(pointer, Id); false of the
// latter three ends the walk.
template <class See>
struct Tree {
  See& see;
  Id low, high;
  bool backward;
  Id id{};

  // False: the walk has ended.
  bool visit(const unsigned char* at, unsigned depth) {
    if (!see.have(at, 4)) return see.node_missing();
    Node node{at, 0};
    memcpy(&node.word, at, sizeof node.word);
    if (!node.sound()) return false;
    if (!see.have(at, node.bytes())) return see.node_missing();
    if (!see.node()) return false;
    if (depth == kIdBytes)
      return !node.has_value() || outside(kIdBytes) || see.value(node.pointer(node.children()), id);
    for (unsigned n = 0; n < node.children(); ++n) {
      const unsigned i = backward ? node.children() - 1 - n : n;
      const unsigned piece = node.one_child() ? node.size() : 1;
      if (depth + piece > kIdBytes) return false;
      memcpy(id.byte + depth, node.key_byte(i), piece);
      if (!outside(depth + piece) && !visit(node.pointer(i), depth + piece)) return false;
    }
    return true;
  }
  // Whether no id with this beginning is in the range.
  bool outside(unsigned bytes) const {
    return memcmp(id.byte, low.byte, bytes) < 0 || memcmp(id.byte, high.byte, bytes) > 0;
  }
};

constexpr Id kFirst{},
    kLast{{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}};

void put(Id* id, unsigned at, uint64_t number) {
  for (unsigned i = 0; i < 8; ++i)
    id->byte[at + i] = static_cast<unsigned char>(number >> (56 - 8 * i));
}

// "-", "+", "12", "12-3", "(12-3". False: something else.
bool parse_id(Slice text, bool last, Id* out) {
  if (text.bytes != 0 && text.data[0] == '(') text = {text.data + 1, text.bytes - 1};
  if (text.bytes == 1 && (*text.data == '-' || *text.data == '+')) {
    *out = *text.data == '-' ? kFirst : kLast;
    return true;
  }
  uint64_t part[2] = {0, last ? UINT64_MAX : 0};
  unsigned n = 0, digits = 0;
  for (size_t i = 0; i < text.bytes; ++i) {
    const char c = text.data[i];
    if (c == '-' && n == 0 && digits != 0) {
      part[++n] = 0;
      digits = 0;
    } else if (c >= '0' && c <= '9' && ++digits < 20) {
      part[n] = part[n] * 10 + static_cast<uint64_t>(c - '0');
    } else {
      return false;
    }
  }
  put(out, 0, part[0]);
  put(out, 8, part[1]);
  return digits != 0;
}

struct Pages {
  ValueLookup& whole;
  KeyLookup& lookup;
  uint64_t most;  // values to look up
  uint64_t seen = 0, whole_to = 0;
  bool all = true, exact = true;  // exact: all values so far are resident
  Id last{};                      // id of the last of these

  bool have(const void* at, size_t bytes) { return lookup.have(at, bytes); }
  bool node() { return whole.work(2); }
  bool node_missing() {
    all = exact = false;
    return !whole.enough();
  }
  bool value(const unsigned char* listpack, const Id& id) {
    ++seen;
    uint32_t bytes = 0;
    bool there = lookup.have(listpack, sizeof bytes);
    if (there) memcpy(&bytes, listpack, sizeof bytes);
    if (!there || !whole.bytes(reinterpret_cast<const char*>(listpack), bytes)) all = exact = false;
    if (exact) {
      whole_to = seen;
      last = id;
    }
    return seen < most && !whole.enough();
  }
};

struct Range {
  Id low = kFirst, high = kLast;
  bool backward = false;
  uint64_t most = UINT64_MAX;
};

// False: the part that the command reads is not known.
bool range_of(const Command& command, const CommandKeys& keys, unsigned argument,
              const StreamView& stream, Range* out) {
  unsigned options = argument + 3;
  if (keys.reach == Reach::kIds || keys.reach == Reach::kIdsBack) {
    if (argument + 2 >= command.kept) return false;
    const bool back = out->backward = keys.reach == Reach::kIdsBack;
    if (!parse_id(command.argument[argument + (back ? 2 : 1)], false, &out->low) ||
        !parse_id(command.argument[argument + (back ? 1 : 2)], true, &out->high))
      return false;
  } else if (keys.reach == Reach::kSince) {
    // As many ids as keys follow the word STREAMS.
    unsigned word = argument;
    while (word > 0 && !same_word(command.argument[word], "STREAMS")) --word;
    const auto id = argument + static_cast<unsigned>((command.count - word - 1) / 2);
    if (word == 0 || id >= command.kept || !parse_id(command.argument[id], false, &out->low))
      return false;
    options = 1;
  } else if (keys.reach != Reach::kAll && keys.reach != Reach::kFirst) {
    return false;
  }
  for (unsigned i = options; i + 1 < command.kept && i < options + 6; ++i)
    if (const int n = small_number(command.argument[i + 1]);
        n >= 0 && same_word(command.argument[i], "COUNT")) {
      const uint64_t each = stream.tree->elements == 0 ? 1 : stream.length / stream.tree->elements;
      out->most = 2 + static_cast<uint64_t>(n) / (each == 0 ? 1 : each);
      break;
    }
  return true;
}

}  // namespace

bool stream_lookup(ValueLookup& whole, KeyLookup& lookup, const StreamView* stream,
                   const Command& command, const CommandKeys& keys, unsigned argument,
                   LookupCursor* cursor) {
  if (!g_known) return true;
  if (!lookup.have(stream, kStreamBytes) || !lookup.have(stream->tree, sizeof *stream->tree))
    return false;
  Range range;
  if (!range_of(command, keys, argument, *stream, &range)) return true;
  Pages pages{whole, lookup,
              range.most - (range.most == UINT64_MAX  ? 0
                            : cursor->at < range.most ? cursor->at
                                                      : range.most - 1)};
  bool floor = true;
  if (cursor->at != 0) {
    memcpy(range.backward ? range.high.byte : range.low.byte, cursor->id, kIdBytes);
  } else if (!range.backward && memcmp(&range.low, &kFirst, sizeof kFirst) != 0) {
    // The first id may be in a listpack with a lower id.
    Pages before{whole, lookup, 1};
    (void)Tree<Pages>{before, kFirst, range.low, true}.visit(stream->tree->head, 0);
    floor = before.all;
  }
  (void)Tree<Pages>{pages, range.low, range.high, range.backward}.visit(stream->tree->head, 0);
  const uint64_t again = cursor->at == 0 ? 0 : 1;  // the listpack from which this look continues
  if (floor && pages.whole_to > again) {
    cursor->at += pages.whole_to - again;
    memcpy(cursor->id, pages.last.byte, kIdBytes);
  }
  return floor && pages.all && (!whole.enough() || pages.seen >= pages.most);
}

void stream_lookup_check() {
  HostGuard guard;
  auto* make = reinterpret_cast<RaxView* (*)()>(dlsym(RTLD_DEFAULT, "raxNew"));
  auto* insert = reinterpret_cast<int (*)(RaxView*, unsigned char*, size_t, void*, void**)>(
      dlsym(RTLD_DEFAULT, "raxInsert"));
  auto* free_tree = reinterpret_cast<void (*)(RaxView*)>(dlsym(RTLD_DEFAULT, "raxFree"));
  auto* make_stream = reinterpret_cast<StreamView* (*)()>(dlsym(RTLD_DEFAULT, "streamNew"));
  auto* free_stream = reinterpret_cast<void (*)(StreamView*)>(dlsym(RTLD_DEFAULT, "freeStream"));
  if (make == nullptr || insert == nullptr || free_tree == nullptr || make_stream == nullptr ||
      free_stream == nullptr)
    return;
  struct Put {  // first reads all memory by a call that fails on a wild pointer
    uint64_t values = 0, wrong = 0;
    Id last{};
    static bool have(const void* at, size_t bytes) {
      char copy[8 + kChildrenMax * 9 + 8];
      return bytes <= sizeof copy && sys::peek(at, copy, bytes) == 0;
    }
    static bool node() { return true; }
    static bool node_missing() { return false; }
    bool value(const unsigned char* value, const Id& id) {
      uint64_t number = 0;
      for (unsigned i = 0; i < 8; ++i) number = number << 8 | id.byte[i];
      wrong += reinterpret_cast<uintptr_t>(value) != number * 8 + id.byte[kIdBytes - 1] ||
               (values != 0 && memcmp(&last, &id, sizeof id) >= 0);
      last = id;
      return ++values <= 1000;
    }
  };
  constexpr uint64_t kIds = 200;
  RaxView* tree = make();
  for (uint64_t n = 0; n < kIds; ++n) {
    // Some ids differ only in the last byte, others in many.
    Id id{};
    const uint64_t ms = 1700000000000 + n / 4 * 4 * (n % 8 < 4 ? 1 : 7919);
    put(&id, 0, ms);
    put(&id, 8, n % 4);
    (void)insert(tree, id.byte, sizeof id, reinterpret_cast<void*>(ms * 8 + n % 4), nullptr);
  }
  StreamView* stream = make_stream();
  RaxView empty{};
  bool right = tree->elements == kIds && stream->length == 0 &&
               sys::peek(stream->tree, &empty, sizeof empty) == 0 && empty.elements == 0 &&
               empty.head != nullptr;
  if (right) {
    Put put_in;
    right = Tree<Put>{put_in, kFirst, kLast, false}.visit(tree->head, 0) && put_in.values == kIds &&
            put_in.wrong == 0;
  }
  free_stream(stream);
  free_tree(tree);
  g_known = right;
}

}  // namespace lunar::redis
