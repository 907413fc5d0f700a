// SPDX-License-Identifier: Apache-2.0
// A tiered region with a model of its pages' versions, in plain memory, which fork copies.
#pragma once
#include <vector>

#include "pager/pager.h"
#include "tests/support/test_tier.h"

namespace tier {

struct VersionedPages {
  explicit VersionedPages(uint64_t bytes)
      : page(lunar_page_bytes()),
        count(bytes / page),
        base(new_region(bytes)),
        versions(count, 0) {}
  char* at(uint64_t i) const { return base + i * page; }
  void write(uint64_t i, uint32_t version) {
    versions[i] = version;
    stamp_write(at(i), page, i, version);
  }
  void write_all(uint32_t version) {
    for (uint64_t i = 0; i < count; ++i) write(i, version);
  }
  void check(uint64_t i, const char* who) const {
    if (stamp_holds(at(i), page, i, versions[i])) return;
    auto* word = reinterpret_cast<uint64_t*>(at(i));
    uint64_t begins = ~uint64_t{0};
    for (uint64_t v = 0; v < 100000 && begins == ~uint64_t{0}; ++v)
      if (stamp_holds(word, 8, i, v)) begins = v;
    REQUIRE(false, "%s: page %lu should be version %u, begins like %lld (%lx), state %d", who, i,
            versions[i], static_cast<long long>(begins), word[0], lunar::pager_page_state(at(i)));
  }
  void check_all(const char* who) const {
    for (uint64_t i = 0; i < count; ++i) check(i, who);
  }

  size_t page;
  uint64_t count;
  char* base;
  std::vector<uint32_t> versions;
};

}  // namespace tier
