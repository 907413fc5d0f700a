// SPDX-License-Identifier: Apache-2.0
// IntervalMap: disjoint intervals in order, each with a value: a B+ tree. Neighbours that touch and
// have equal values become one item. Look-up, change and the search for a gap take logarithmic
// time; nodes come from private maps, never a heap.
//
//   Item         has begin, end (both pointers or both integers), and `bool alike(const Item&)
//                const`, which compares the values; trivially copyable
//   leaf         up to kItems items
//   inner node   up to kChildren children: extent, and the largest gap between two neighbours below
//
// A change goes down to a leaf once, replaces the items there that it overlaps or touches, and goes
// up as long as extents change. If a node is full, the change splits it and starts again. A node
// that is less than a quarter full joins a neighbour if both fit into three quarters of one. Memory
// of nodes is reused, not given back. Threading: none; the owner holds a lock. Blocking: only
// reserve (mmap).
#pragma once
#include <errno.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

#include "sys/arena.h"
#include "sys/fatal.h"

namespace lunar {

template <class Item, size_t kNodeBytes = 1024>
class IntervalMap {
 public:
  using Key = decltype(Item::begin);
  static_assert(std::is_trivially_copyable_v<Item>);

  // Makes room for an operation of at most kChangesMax calls of set and erase. -ENOMEM: do not
  // start the operation.
  [[nodiscard]] int reserve() {
    const size_t needed = kChangesMax * (root_ == nullptr ? 2 : root_->level + 2);
    while (spare_ + static_cast<size_t>(fresh_end_ - fresh_) < needed) {
      while (fresh_ != fresh_end_) give(new (fresh_++) Node);
      fresh_ = fresh_end_ = static_cast<Node*>(map_private(kBlockBytes, ForkPolicy::kInherit));
      if (fresh_ == nullptr) return -ENOMEM;
      fresh_end_ += kBlockBytes / sizeof(Node);
    }
    return 0;
  }

  size_t count() const { return count_; }
  // The first item that ends above `at`, or nullptr. Pointers to items are valid until the next
  // change.
  const Item* find(Key at) const {
    for (const Node* node = root_; node != nullptr;) {
      if (node->level == 0) {
        const unsigned i = first_above(node->items, node->count, at);
        return i < node->count ? &node->items[i] : nullptr;
      }
      const unsigned i = first_above(node->children, node->count, at);
      node = i < node->count ? node->children[i].node : nullptr;
    }
    return nullptr;
  }

  // set: all of [begin, end) becomes like `like` (whose begin and end are ignored). erase: it
  // becomes free.
  void set(Key begin, Key end, const Item& like) {
    Item now = like;
    now.begin = begin;
    now.end = end;
    replace(begin, end, &now);
  }
  void erase(Key begin, Key end) {
    if (root_ != nullptr) replace(begin, end, nullptr);
  }

  bool is_free(Key begin, Key end) const {
    const Item* item = find(begin);
    return item == nullptr || item->begin >= end;
  }
  // *place: the lowest free one of `bytes` in [from, limit).
  [[nodiscard]] bool find_free(Key from, Key limit, size_t bytes, Key* place) const {
    if (root_ != nullptr) (void)find_gap(*root_, &from, limit, bytes);
    *place = from;
    return from <= limit && static_cast<size_t>(limit - from) >= bytes;
  }
  // Returns the end of the interval, or gap, that contains `begin`, but at most `end`; *item: the
  // interval (nullptr: free).
  Key piece(Key begin, Key end, const Item** item) const {
    const Item* first = find(begin);
    const bool inside = first != nullptr && first->begin <= begin;
    *item = inside ? first : nullptr;
    if (first == nullptr) return end;
    return std::min(inside ? first->end : first->begin, end);
  }

  // Whole-structure check, for tests.
  bool validate() const {
    return root_ == nullptr ? count_ == 0 : valid(*root_) && items_below(*root_) == count_;
  }

 private:
  struct Node;
  // All items of a child lie in [begin, end). gap: the largest one between two of them.
  struct Child {
    Key begin, end;
    size_t gap;
    Node* node;
  };
  static constexpr size_t kBlockBytes = size_t{256} << 10, kHeadBytes = 16;
  static constexpr unsigned kItems = (kNodeBytes - kHeadBytes) / sizeof(Item);
  static constexpr unsigned kChildren = (kNodeBytes - kHeadBytes) / sizeof(Child);
  static constexpr size_t kChangesMax = 4;
  static constexpr unsigned kLevelsMax = 16;
  struct alignas(64) Node {
    Node() {}
    uint32_t level = 0;  // 0: leaf
    uint32_t count = 0;
    union {
      Node* next;  // of those that are free
      Item items[kItems];
      Child children[kChildren];
    };
  };
  static_assert(sizeof(Node) <= kNodeBytes && kItems >= 4);

  template <class Entry>
  static Entry* entries_of(Node* node) {
    if constexpr (std::is_same_v<Entry, Item>)
      return node->items;
    else
      return node->children;
  }

  template <class Entry>
  static unsigned first_above(const Entry* entries, unsigned count, Key at) {
    const Entry* low = entries;
    while (count > 1) {
      const unsigned half = count / 2;
      // Without a branch, which would often be mispredicted.
      low += half * static_cast<unsigned>(low[half - 1].end <= at);
      count -= half;
    }
    return static_cast<unsigned>(low - entries) +
           static_cast<unsigned>(count == 1 && low->end <= at);
  }

  // ---- nodes: spare ones in a list, and the never used rest of the last block ----
  Node* take(uint32_t level) {
    Node* node = free_;
    if (node != nullptr) {
      free_ = node->next;
      --spare_;
    } else {
      LUNAR_CHECK(fresh_ != fresh_end_, "interval map: no room was reserved");
      node = new (fresh_++) Node;
    }
    node->level = level;
    node->count = 0;
    return node;
  }
  void give(Node* node) {
    node->next = free_;
    free_ = node;
    ++spare_;
  }

  // ---- entries of a node ----
  // Replaces entries [first, end) by `count` others. pre: there is room.
  template <class Entry>
  static void splice(Node* node, unsigned first, unsigned end, const Entry* entries,
                     unsigned count) {
    Entry* place = entries_of<Entry>(node) + first;
    memmove(place + count, place + (end - first), (node->count - end) * sizeof(Entry));
    for (unsigned i = 0; i < count; ++i) place[i] = entries[i];
    node->count = node->count - (end - first) + count;
  }
  template <class Entry>
  static void move_end(Node* node, unsigned first, Node* to) {
    memcpy(entries_of<Entry>(to) + to->count, entries_of<Entry>(node) + first,
           (node->count - first) * sizeof(Entry));
    to->count += node->count - first;
    node->count = first;
  }
  static unsigned most_of(const Node* node) { return node->level == 0 ? kItems : kChildren; }

  template <class Entry>
  static Child extent(const Entry* entries, Node* node) {
    Child all{entries[0].begin, entries[node->count - 1].end, 0, node};
    for (unsigned i = 0; i < node->count; ++i) {
      size_t gap = i == 0 ? 0 : static_cast<size_t>(entries[i].begin - entries[i - 1].end);
      if constexpr (std::is_same_v<Entry, Child>) gap = gap > entries[i].gap ? gap : entries[i].gap;
      if (gap > all.gap) all.gap = gap;
    }
    return all;
  }
  static Child child_of(Node* node) {
    return node->level == 0 ? extent(node->items, node) : extent(node->children, node);
  }

  // ---- changes. A path: a leaf and what is above it, each with the place in it; the leaf is at [0
  struct Path {
    Node* node[kLevelsMax];
    unsigned at[kLevelsMax];
  };

  // To the first item that ends above `key`, or behind the last one.
  Path path_to(Key key) const {
    Path path;
    for (Node* node = root_;; node = node->children[path.at[node->level]].node) {
      path.node[node->level] = node;
      if (node->level == 0) {
        path.at[0] = first_above(node->items, node->count, key);
        return path;
      }
      const unsigned i = first_above(node->children, node->count, key);
      path.at[node->level] = i < node->count ? i : i - 1;
    }
  }
  // Whether an item of another leaf begins at `end` or below; then *begin is where.
  bool next_leaf_touches(const Path& path, Key end, Key* begin) const {
    for (uint32_t level = 1; level <= root_->level; ++level) {
      const Node& node = *path.node[level];
      if (path.at[level] + 1 == node.count) continue;
      *begin = node.children[path.at[level] + 1].begin;
      return *begin <= end;
    }
    return false;
  }

  // Replaces the items that [begin, end) overlaps or touches by up to three: the rest of the first,
  // `now`, and the rest of the last. `now` absorbs a rest with an equal value.
  void replace(Key begin, Key end, const Item* now) {
    if (root_ == nullptr) root_ = take(0);
    Item first, last;
    for (bool any = false;;) {
      const Path path = path_to(begin == Key{} ? begin : begin - 1);
      const Node& leaf = *path.node[0];
      unsigned from = path.at[0], to = from;
      while (to < leaf.count && leaf.items[to].begin <= end) ++to;
      if (Key next; to == leaf.count && next_leaf_touches(path, end, &next)) {
        const Path other = path_to(next);
        last = other.node[0]->items[other.at[0]];
        if (!any) first = last;
        any = true;
        change(other, other.at[0] + 1, nullptr, 0);
        continue;
      }
      if (from != to) {
        first = leaf.items[from];
        if (!any || last.begin < leaf.items[to - 1].begin) last = leaf.items[to - 1];
        any = true;
      }
      Item parts[3];
      if (change(path, to, parts, parts_of(begin, end, now, any ? &first : nullptr, last, parts)))
        return;
    }
  }
  static unsigned parts_of(Key begin, Key end, const Item* now, const Item* first, const Item& last,
                           Item* parts) {
    unsigned n = 0;
    Item middle = now != nullptr ? *now : Item{};
    const bool has_head = first != nullptr && first->begin < begin,
               has_tail = first != nullptr && last.end > end;
    if (has_head && now != nullptr && first->alike(middle)) {
      middle.begin = first->begin;
    } else if (has_head) {
      parts[n] = *first;
      if (begin < first->end) parts[n].end = begin;
      ++n;
    }
    const bool joins_last = has_tail && now != nullptr && last.alike(middle);
    if (joins_last) middle.end = last.end;
    if (now != nullptr) parts[n++] = middle;
    if (has_tail && !joins_last) {
      parts[n] = last;
      if (last.begin < end) parts[n].begin = end;
      ++n;
    }
    return n;
  }

  // Replaces the items of the path's leaf from the path's place to `end`. False: the leaf was full,
  // and a node has been split; repeat the change.
  bool change(const Path& path, unsigned end, const Item* items, unsigned count) {
    Node* leaf = path.node[0];
    const unsigned first = path.at[0], after = leaf->count - (end - first) + count;
    if (after > kItems) {
      split(path);
      return false;
    }
    count_ = count_ - (end - first) + count;
    splice(leaf, first, end, items, count);
    uint32_t level = 0;  // of the lowest node that is not empty
    while (path.node[level]->count == 0) {
      give(path.node[level]);
      if (path.node[level++] == root_) {
        root_ = nullptr;
        return true;
      }
      splice<Child>(path.node[level], path.at[level], path.at[level] + 1, nullptr, 0);
    }
    update_above(path, level);
    return true;
  }
  // Splits the lowest node of the path that is full and whose parent is not.
  void split(const Path& path) {
    uint32_t level = 0;
    while (path.node[level] != root_ && path.node[level + 1]->count == kChildren) ++level;
    Node *node = path.node[level], *right = take(level), *parent = nullptr;
    if (node == root_) {
      root_ = parent = take(level + 1);
      LUNAR_CHECK(parent->level < kLevelsMax, "interval map: too many levels");
      parent->children[0] = child_of(node);
      parent->count = 1;
    } else {
      parent = path.node[level + 1];
    }
    // Entries that arrive in ascending order leave full nodes behind.
    const unsigned keep = path.at[level] + 1 >= node->count ? node->count - 1 : node->count / 2;
    level == 0 ? move_end<Item>(node, keep, right) : move_end<Child>(node, keep, right);
    const Child both[2] = {child_of(node), child_of(right)};
    const unsigned at = parent->count == 1 ? 0 : path.at[level + 1];
    splice(parent, at, at + 1, both, 2);
    if (parent != root_) update_above(path, level + 1);
  }
  void update_above(const Path& path, uint32_t level) {
    for (; path.node[level] != root_; ++level) {
      Node *node = path.node[level], *parent = path.node[level + 1];
      const unsigned at = path.at[level + 1];
      Child& child = parent->children[at];
      const Child now = child_of(node);
      const bool same = child.begin == now.begin && child.end == now.end && child.gap == now.gap;
      child = now;
      const bool joined = node->count < most_of(node) / 4 &&
                          (join(parent, at) || (at != 0 && join(parent, at - 1)));
      if (same && !joined) break;
    }
    for (Node* top = root_; top->level != 0 && top->count == 1; top = root_) {
      root_ = top->children[0].node;
      give(top);
    }
  }
  bool join(Node* parent, unsigned at) {
    if (at + 1 >= parent->count) return false;
    Node *left = parent->children[at].node, *right = parent->children[at + 1].node;
    if (left->count + right->count > most_of(left) * 3 / 4) return false;
    left->level == 0 ? move_end<Item>(right, 0, left) : move_end<Child>(right, 0, left);
    give(right);
    const Child both = child_of(left);
    splice(parent, at, at + 2, &both, 1);
    return true;
  }

  // Moves *from to the lowest free place, or to the end of the node. True: a place is found, or
  // *from lies beyond `limit`.
  static bool find_gap(const Node& node, Key* from, Key limit, size_t bytes) {
    return node.level == 0 ? find_gap_among(node, node.items, from, limit, bytes)
                           : find_gap_among(node, node.children, from, limit, bytes);
  }
  template <class Entry>
  static bool find_gap_among(const Node& node, const Entry* entries, Key* from, Key limit,
                             size_t bytes) {
    for (unsigned i = first_above(entries, node.count, *from); i < node.count; ++i) {
      const Entry& entry = entries[i];
      if (entry.begin >= limit) return true;
      if (entry.begin > *from && static_cast<size_t>(entry.begin - *from) >= bytes) return true;
      if constexpr (std::is_same_v<Entry, Child>)
        if (entry.gap >= bytes && find_gap(*entry.node, from, limit, bytes)) return true;
      *from = entry.end;
    }
    return false;
  }

  // ---- checks ----
  static bool valid(const Node& node) {
    const bool is_leaf = node.level == 0;
    if (node.count == 0 || node.count > (is_leaf ? kItems : kChildren)) return false;
    for (unsigned i = 0; i < node.count; ++i) {
      if (is_leaf) {
        if (!(node.items[i].begin < node.items[i].end)) return false;
        if (i != 0 && node.items[i].begin < node.items[i - 1].end) return false;
        continue;
      }
      const Child& child = node.children[i];
      const Child now = child_of(child.node);
      if (child.node->level + 1 != node.level || !valid(*child.node)) return false;
      if (child.begin != now.begin || child.end != now.end || child.gap != now.gap) return false;
      if (i != 0 && child.begin < node.children[i - 1].end) return false;
    }
    return true;
  }
  static size_t items_below(const Node& node) {
    size_t sum = node.level == 0 ? node.count : 0;
    for (unsigned i = 0; node.level != 0 && i < node.count; ++i)
      sum += items_below(*node.children[i].node);
    return sum;
  }

  Node* root_ = nullptr;
  size_t count_ = 0;
  Node* free_ = nullptr;
  size_t spare_ = 0;  // in `free_`
  Node *fresh_ = nullptr, *fresh_end_ = nullptr;
};

}  // namespace lunar
