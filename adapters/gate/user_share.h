// SPDX-License-Identifier: Apache-2.0
// Shares of the gate per user, so that no user takes it from the others: bytes in progress from the
// LUN, requests, and held input. A client whose user has its full share in progress waits for its
// turn, in order; input beyond the share of held bytes is passed.
//
// A share exists while anything is in it. The user is only an identity, never dereferenced.
//
// Threading: the main thread. Memory from sys/arena, for as many users as had a share at one time.
#pragma once
#include "connections.h"

namespace lunar::redis {

struct Share {
  const void* user = nullptr;
  Share* next = nullptr;  // of the same bucket
  uint64_t bytes = 0;     // under way
  unsigned requests = 0;
  Quota held{0, 0};               // input
  ConnectionList waiting;         // for their turn to ask for pages
  Share* next_waiting = nullptr;  // has clients that wait
  bool listed = false;
  bool idle() const {
    return requests == 0 && held.used == 0 && !listed && waiting.head == nullptr;
  }
};

class Shares {
 public:
  Share* of(const void* user);  // nullptr: no memory
  // Shares with clients that wait, or waited before.
  Share*& waiting() { return waiting_; }
  void list(Share* share) {
    if (share->listed) return;
    share->listed = true;
    share->next_waiting = waiting_;
    waiting_ = share;
  }

 private:
  static constexpr size_t kBuckets = 1024;
  Share* bucket_[kBuckets] = {};
  Share* waiting_ = nullptr;
};

}  // namespace lunar::redis
