// SPDX-License-Identifier: Apache-2.0
// IntervalMap: disjoint intervals in order, each with a value: a B+ tree. Neighbours that touch and are alike are one
// item. Look-up, change and the search for a gap take logarithmic time; nodes come from private maps, never from a heap.
//
//   Item         has begin, end (both pointers or both integers), and `bool alike(const Item&) const`, which compares
//                the values; trivially copyable
//   leaf         up to kItems items
//   inner node   up to kChildren children: extent, and the largest gap between two neighbours below
//
// Neighbouring nodes are joined when their entries fit into three quarters of one. Memory of nodes is reused, not given
// back.
// Threading: none; the owner holds a lock. Blocking: only reserve (mmap).
#pragma once
#include <errno.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>

#include "sys/arena.h"
#include "sys/fatal.h"

namespace lunar {

template <class Item>
class IntervalMap {
 public:
  using Key = decltype(Item::begin);
  static_assert(std::is_trivially_copyable_v<Item>);

  // Makes room for one more operation: at most kInsertsMax new items. -ENOMEM: do not start the operation.
  [[nodiscard]] int reserve() {
    const size_t needed = kInsertsMax * (height_ + 1);
    while (spare_ + static_cast<size_t>(fresh_end_ - fresh_) < needed) {
      while (fresh_ != fresh_end_) give(new (fresh_++) Node);
      fresh_ = fresh_end_ = static_cast<Node*>(map_private(kBlockBytes, ForkPolicy::kInherit));
      if (fresh_ == nullptr) return -ENOMEM;
      fresh_end_ += kBlockBytes / sizeof(Node);
    }
    return 0;
  }

  size_t count() const { return count_; }
  // The first item that ends above `at`, or nullptr. Pointers to items are valid until the next change.
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

  // set: all of [begin, end) becomes like `like` (whose begin and end are ignored). erase: it becomes free.
  void set(Key begin, Key end, const Item& like) {
    Item now = like;
    now.begin = begin;
    now.end = end;
    erase(begin, end);
    const Item* next = find(begin);
    const bool joins_next = next != nullptr && next->begin == end && next->alike(now);
    if (joins_next) now.end = next->end;
    const Item* before = find(begin - 1);
    const bool joins_before = before != nullptr && before->end == begin && before->alike(now);
    if (joins_before) now.begin = before->begin;
    if (joins_before && joins_next) remove(end);
    if (joins_before || joins_next)
      change(joins_before ? now.begin : end, now);
    else
      insert(now);
  }
  void erase(Key begin, Key end) {
    for (const Item* item; (item = find(begin)) != nullptr && item->begin < end;) {
      const Item was = *item;
      Item head = was, tail = was;
      head.end = begin;
      tail.begin = end;
      if (was.begin >= begin) {
        was.end > end ? change(was.begin, tail) : remove(was.begin);
        continue;
      }
      change(was.begin, head);
      if (was.end > end) insert(tail);
    }
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
  // Returns the end of the interval, or gap, that contains `begin`, but at most `end`; *item: the interval (nullptr:
  // free).
  Key piece(Key begin, Key end, const Item** item) const {
    const Item* first = find(begin);
    const bool inside = first != nullptr && first->begin <= begin;
    *item = inside ? first : nullptr;
    if (first == nullptr) return end;
    const Key stop = inside ? first->end : first->begin;
    return stop < end ? stop : end;
  }

  // Whole-structure check, for tests.
  bool validate() const { return root_ == nullptr ? count_ == 0 : valid(*root_) && items_below(*root_) == count_; }

 private:
  struct Node;
  // What a child holds lies in [begin, end). gap: the largest between two items in there.
  struct Child {
    Key begin, end;
    size_t gap;
    Node* node;
  };
  static constexpr size_t kNodeBytes = 1024, kBlockBytes = size_t{256} << 10, kHeadBytes = 16;
  static constexpr unsigned kItems = (kNodeBytes - kHeadBytes) / sizeof(Item);
  static constexpr unsigned kChildren = (kNodeBytes - kHeadBytes) / sizeof(Child);
  static constexpr size_t kInsertsMax = 4;
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
  static constexpr unsigned kMost = std::is_same_v<Entry, Item> ? kItems : kChildren;
  template <class Entry>
  static Entry* entries_of(Node* node) {
    if constexpr (std::is_same_v<Entry, Item>)
      return node->items;
    else
      return node->children;
  }

  template <class Entry>
  static unsigned first_above(const Entry* entries, unsigned count, Key at) {
    unsigned low = 0, high = count;
    while (low < high) {
      const unsigned middle = (low + high) / 2;
      if (entries[middle].end > at)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  // ---- nodes: spare ones in a list, and those of the last block that were never used ----
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
  // Returns the node with the upper entries, if this one was full.
  template <class Entry>
  Node* put(Node* node, unsigned at, const Entry& entry) {
    Node* right = nullptr;
    if (node->count == kMost<Entry>) {
      right = take(node->level);
      const unsigned keep = at == node->count ? at : node->count / 2;  // what comes in order leaves full nodes behind
      right->count = node->count - keep;
      memcpy(entries_of<Entry>(right), entries_of<Entry>(node) + keep, right->count * sizeof(Entry));
      node->count = keep;
      if (at >= keep) {
        node = right;
        at -= keep;
      }
    }
    Entry* place = entries_of<Entry>(node) + at;
    memmove(place + 1, place, (node->count++ - at) * sizeof(Entry));
    *place = entry;
    return right;
  }
  template <class Entry>
  static void drop(Node* node, unsigned at) {
    Entry* place = entries_of<Entry>(node) + at;
    memmove(place, place + 1, (--node->count - at) * sizeof(Entry));
  }
  template <class Entry>
  static bool append(Node* left, Node* right) {
    if (left->count + right->count > kMost<Entry> * 3 / 4) return false;
    memcpy(entries_of<Entry>(left) + left->count, entries_of<Entry>(right), right->count * sizeof(Entry));
    left->count += right->count;
    return true;
  }

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

  // ---- the tree. An item is named by its begin ----
  void insert(const Item& item) {
    if (root_ == nullptr) {
      root_ = take(0);
      height_ = 1;
    }
    if (Node* right = insert_below(root_, item); right != nullptr) {
      Node* top = take(root_->level + 1);
      top->children[0] = child_of(root_);
      top->children[1] = child_of(right);
      top->count = 2;
      root_ = top;
      ++height_;
    }
    ++count_;
  }
  Node* insert_below(Node* node, const Item& item) {
    if (node->level == 0) return put(node, first_above(node->items, node->count, item.begin), item);
    unsigned i = first_above(node->children, node->count, item.begin);
    if (i == node->count) --i;
    Node* right = insert_below(node->children[i].node, item);
    node->children[i] = child_of(node->children[i].node);
    return right == nullptr ? nullptr : put(node, i + 1, child_of(right));
  }

  void remove(Key at) {
    remove_below(root_, at);
    --count_;
    while (root_ != nullptr && (root_->count == 0 || (root_->level != 0 && root_->count == 1))) {
      Node* top = root_;
      root_ = top->count == 0 ? nullptr : top->children[0].node;
      --height_;
      give(top);
    }
  }
  void remove_below(Node* node, Key at) {
    if (node->level == 0) return drop<Item>(node, first_above(node->items, node->count, at));
    const unsigned i = first_above(node->children, node->count, at);
    Node* child = node->children[i].node;
    remove_below(child, at);
    if (child->count == 0) {
      give(child);
      return drop<Child>(node, i);
    }
    node->children[i] = child_of(child);
    join(node, i);
    if (i != 0) join(node, i - 1);
  }
  void join(Node* node, unsigned i) {
    if (i + 1 >= node->count) return;
    Node *left = node->children[i].node, *right = node->children[i + 1].node;
    if (!(left->level == 0 ? append<Item>(left, right) : append<Child>(left, right))) return;
    give(right);
    drop<Child>(node, i + 1);
    node->children[i] = child_of(left);
  }

  // pre: the order of items stays as it is.
  void change(Key at, const Item& now) { change_below(root_, at, now); }
  void change_below(Node* node, Key at, const Item& now) {
    if (node->level == 0) {
      node->items[first_above(node->items, node->count, at)] = now;
      return;
    }
    Child& child = node->children[first_above(node->children, node->count, at)];
    change_below(child.node, at, now);
    child = child_of(child.node);
  }

  // Moves *from to the lowest free place, or to the end of what is below. True: it is found, or lies beyond `limit`.
  static bool find_gap(const Node& node, Key* from, Key limit, size_t bytes) {
    return node.level == 0 ? find_gap_among(node, node.items, from, limit, bytes)
                           : find_gap_among(node, node.children, from, limit, bytes);
  }
  template <class Entry>
  static bool find_gap_among(const Node& node, const Entry* entries, Key* from, Key limit, size_t bytes) {
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
    for (unsigned i = 0; node.level != 0 && i < node.count; ++i) sum += items_below(*node.children[i].node);
    return sum;
  }

  Node* root_ = nullptr;
  size_t height_ = 0, count_ = 0;
  Node* free_ = nullptr;
  size_t spare_ = 0;  // in `free_`
  Node *fresh_ = nullptr, *fresh_end_ = nullptr;
};

}  // namespace lunar
