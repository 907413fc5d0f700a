// SPDX-License-Identifier: Apache-2.0
// See user_share.h.
#include "user_share.h"

#include "sys/arena.h"

namespace lunar::redis {

Share* Shares::of(const void* user) {
  const auto number = reinterpret_cast<uintptr_t>(user);
  Share*& head = bucket_[(number >> 4 ^ number >> 14) % kBuckets];
  Share* free = nullptr;
  for (Share* share = head; share != nullptr; share = share->next) {
    if (share->user == user) return share;
    if (free == nullptr && share->idle()) free = share;
  }
  if (free == nullptr) {
    free = arena_new<Share>();
    if (free == nullptr) return nullptr;
    free->next = head;
    head = free;
  }
  free->user = user;
  free->held = {0, kHeldBytesMax / 2};
  return free;
}

}  // namespace lunar::redis
