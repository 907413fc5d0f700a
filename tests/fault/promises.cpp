// SPDX-License-Identifier: Apache-2.0
// promises CASE: promises of the pager at its limits.
//
//   frames         what the pager maps for itself is charged to the budget, page for page, and the
//                  kernel counts no more
//   lun-space      no more memory can be allocated than there is LUN space, and all that was
//                  allocated can be used
//   reader         fault messages that cannot be read end the process, with a line: a thread that
//                  faulted would wait for ever
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "pager/evict/evictor.h"
#include "pager/state/state.h"
#include "tests/support/refused_calls.h"
#include "tests/support/stderr_of.h"
#include "tests/support/test_tier.h"

namespace {

using tier::kMega;
using tier::new_region;

unsigned times(const std::string& text, const char* words) {
  unsigned n = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++n;
  return n;
}

void frames() {
  for (const uint64_t dram : {16 * kMega, 256 * kMega}) {
    int status = 0;
    const std::string text = lunar_test::stderr_of(
        [dram] {
          // their windows are also fixed pages
          tier::start_tier(dram, 4 * dram, nullptr, "handlers=1");
          char* base = new_region(2 * dram);
          const uint64_t page = lunar_page_bytes();
          for (uint64_t at = 0; at < 2 * dram; at += page) base[at] = 1;
          auto& state = lunar::pager_state();
          const uint64_t frames = state.frames.window_bytes();
          const auto fixed = static_cast<uint64_t>(state.account.own_fixed()) * page;
          const uint64_t tables = 2 * dram / page / lunar::kLeafPages * sizeof(lunar::Leaf);
          REQUIRE(frames > 0 && fixed >= frames + tables,
                  "%lu bytes are charged as fixed, but there are %lu of frames and %lu of tables",
                  fixed, frames, tables);
          const lunar_stats now = tier::stats();
          REQUIRE(now.fixed_bytes >= fixed && now.dram_used_bytes >= fixed &&
                      now.dram_used_bytes <= dram,
                  "stats: fixed %lu, used %lu of %lu", now.fixed_bytes, now.dram_used_bytes, dram);
        },
        &status);
    REQUIRE(status == 0, "%lu MiB: ended with %x: %s", dram / kMega, status, text.c_str());
  }
}

TEST_CASE("lun-space") {
  constexpr uint64_t kDram = 16 * kMega, kLun = 128 * kMega, kPiece = kMega;
  constexpr size_t kLunMib = kLun / kMega;
  tier::start_tier(kDram, kLun);
  const uint64_t page = lunar_page_bytes();
  std::vector<char*> pieces;
  for (;;) {
    auto* piece = static_cast<char*>(lunar_region_create(kPiece));
    if (piece == nullptr) break;
    pieces.push_back(piece);
    REQUIRE(pieces.size() * kPiece <= kLun, "%zu MiB of memory on a LUN of %zu MiB", pieces.size(),
            kLunMib);
  }
  REQUIRE(errno == ENOMEM, "a full LUN: %s", strerror(errno));
  REQUIRE(pieces.size() * kPiece >= kLun * 7 / 8, "only %zu MiB of memory on a LUN of %zu MiB",
          pieces.size(), kLunMib);
  for (int pass = 0; pass < 2; ++pass)
    for (size_t i = 0; i < pieces.size(); ++i)
      for (uint64_t at = 0; at < kPiece; at += page) {
        if (pass == 0)
          tier::stamp_write(pieces[i] + at, page, i * kPiece + at, 1);
        else
          REQUIRE(tier::stamp_holds(pieces[i] + at, page, i * kPiece + at, 1),
                  "what was written is not there");
      }
  // The space that is given back can be allocated again, but no more than that.
  REQUIRE(lunar_region_destroy(pieces.back(), kPiece) == 0);
  REQUIRE(lunar_region_create(kPiece) != nullptr, "the space of a region that is gone is not free");
  REQUIRE(lunar_region_create(kPiece) == nullptr, "more than there is");
  REQUIRE(tier::validate());
}

TEST_CASE("reader") {
  int status = 0;
  const std::string text = lunar_test::stderr_of(
      [] {
        tier::start_tier(16 * kMega, 64 * kMega);
        char* base = new_region(32 * kMega);
        base[0] = 1;
        const auto fd = static_cast<unsigned>(lunar::pager_state().uffd);
        if (!refuse_calls({{SYS_read, 0, fd}}, true, SECCOMP_RET_ERRNO | EIO))
          SKIP("seccomp", "no filter for all threads");
        base[8 * kMega] = 1;
        fprintf(stderr, "the fault was answered\n");
      },
      &status);
  REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "ended with %x: %s", status,
          text.c_str());
  REQUIRE(times(text, "reading fault messages failed (EIO)") == 1, "it said: %s", text.c_str());
}

}  // namespace

TEST_CASE("frames") { frames(); }
