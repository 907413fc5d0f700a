// SPDX-License-Identifier: Apache-2.0
// A program whose page tables come near its budget of 16 MiB. It works, or is told; it never waits
// for ever.

#include "preload_test.h"

namespace {

constexpr size_t kChunk = 2 * kMiB;

void use_sparsely(char* p, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kChunk) *reinterpret_cast<size_t*>(p + at) = at + 1;
  for (size_t at = 0; at < bytes; at += kChunk)
    REQUIRE(*reinterpret_cast<size_t*>(p + at) == at + 1);
}

void sparse() {
  char* p = static_cast<char*>(malloc(3 * kGiB - 64 * kMiB));
  REQUIRE(p != nullptr && tiered(p));
  use_sparsely(p, 3 * kGiB - 64 * kMiB);
  free(p);
  for (int i = 0; i < 3; ++i) {
    void* q = mmap(nullptr, 4 * kGiB, kRw, kPrivate | MAP_NORESERVE, -1, 0);
    REQUIRE(q != MAP_FAILED && tiered(q));
    use_sparsely(static_cast<char*>(q), 4 * kGiB);
    REQUIRE(munmap(q, 4 * kGiB) == 0);
  }
}

// Its tables may not fit.
void refused() {
  REQUIRE(malloc(3 * kGiB + kGiB / 2) == nullptr && errno == ENOMEM);
  char* p = static_cast<char*>(malloc(64 * kMiB));
  REQUIRE(p != nullptr && tiered(p));
  fill(p, 64 * kMiB, 1);
  REQUIRE(holds(p, 64 * kMiB, 1));
}

int ended() {
  constexpr size_t kBytes = size_t{1} << 38, kStep = 64 * 1024;  // a leaf for each page
  auto* p = static_cast<char*>(mmap(nullptr, kBytes, kRw, kPrivate | MAP_NORESERVE, -1, 0));
  if (p == MAP_FAILED) return 77;
  for (size_t at = 0; at < kBytes; at += kStep) p[at] = 1;
  return 0;
}

// Calls for a map take time by the pages in use, not by its size.
void nearly_empty() {
  constexpr size_t kBytes = size_t{1} << 38;
  auto* p = static_cast<char*>(mmap(nullptr, kBytes, kRw, kPrivate | MAP_NORESERVE, -1, 0));
  REQUIRE(p != MAP_FAILED && tiered(p));
  char* const used[] = {p, p + kBytes / 2, p + kBytes - kChunk};
  for (char* at : used) fill(at, kChunk, 1);
  REQUIRE(madvise(p, kBytes, MADV_PAGEOUT) == 0);
  for (char* at : used) REQUIRE(present_pages(at, kChunk) == 0);
  REQUIRE(madvise(p, kBytes, MADV_WILLNEED) == 0);
  for (char* at : used) REQUIRE(present_pages(at, kChunk) == kChunk / g_page);
  REQUIRE(mlock(p, kBytes) == -1 && errno == ENOMEM && mlock(p, kChunk) == 0);
  REQUIRE(munlock(p, kBytes) == 0 && madvise(p, kBytes, MADV_PAGEOUT) == 0);
  for (char* at : used) REQUIRE(present_pages(at, kChunk) == 0 && holds(at, kChunk, 1));
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(
      argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=6g"},
      {{"sparse", sparse},
       {"nearly-empty", nearly_empty},
       {"refused", refused, {}, "allocation refused: the page tables that 3.5 GiB more"},
       fatal("ended", ended, "FATAL: the page tables take all that they may of the DRAM")});
}
