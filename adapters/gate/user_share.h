// SPDX-License-Identifier: Apache-2.0
// Shares of the gate per user, so that no user can take it from the others. A share bounds bytes in
// progress from the LUN, requests, and held input. A client whose user has its full share in
// progress waits for its turn, in order; input beyond the share of held bytes is passed.
//
// A share is in use while it counts anything. The user is only an identity, never dereferenced.
//
// Threading: the main thread. Memory from sys/arena, for as many users as had a share at one time.
#pragma once
#include "connections.h"

namespace lunar::redis {

struct Share {
  const void* user = nullptr;
  Share* next = nullptr;  // of the same bucket
  uint64_t bytes = 0;     // in progress
  unsigned requests = 0;
  Quota held{0, 0};               // input
  ConnectionList waiting;         // clients that wait for their turn to request pages
  Share* next_waiting = nullptr;  // in Shares::waiting()
  bool listed = false;
  bool idle() const {
    return requests == 0 && held.used == 0 && !listed && waiting.head == nullptr;
  }
};

class Shares {
 public:
  Share* of(const void* user);  // nullptr: no memory
  // A list of the shares whose clients wait, or waited before.
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
