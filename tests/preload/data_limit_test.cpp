// SPDX-License-Identifier: Apache-2.0
// A limit on writable memory (ulimit -d, RLIMIT_DATA): a program gets nearly all of it, as without Lunar; what it gives
// back it can have again, and what is refused is refused in time (ENOMEM, and a line). What the heap has given back is
// inaccessible until it is committed again: the same addresses serve blocks of other sizes (pieces).
//
//   data_limit_test LIBRARY heap | maps | noreserve | pieces   and plain- in front: it stays plain
#include <sys/mman.h>
#include <sys/resource.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "preload_test.h"

extern "C" int mallctl(const char*, void*, size_t*, void*, size_t) __attribute__((weak));

namespace {

constexpr size_t kMiB = 1 << 20, kLimit = 256 * kMiB, kStep = kMiB;
constexpr size_t kOwnMost = 72 * kMiB;  // the runtime's threads, rings, frames and tables, and jemalloc's

std::string g_kind;

char* take() {
  if (g_kind == "heap") return static_cast<char*>(malloc(kStep));
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (g_kind == "noreserve" ? MAP_NORESERVE : 0);
  void* map = mmap(nullptr, kStep, PROT_READ | PROT_WRITE, flags, -1, 0);
  return map == MAP_FAILED ? nullptr : static_cast<char*>(map);
}

int grow_to_the_limit() {
  FILE* said = tmpfile();
  const int error = dup(2);
  CHECK(said != nullptr && error >= 0 && dup2(fileno(said), 2) == 2);
  std::vector<char*> blocks;  // and room for the line: nothing is to be had at the limit
  blocks.reserve(kLimit / kStep);
  std::string text;
  text.reserve(4096);
  for (unsigned long round = 0; round < 3; ++round) {
    blocks.clear();
    for (char* block; blocks.size() < kLimit / kStep && (block = take()) != nullptr; blocks.push_back(block))
      fill(block, kStep, round + blocks.size());
    if (round == 0) {
      CHECK(dup2(error, 2) == 2);
      rewind(said);
      text.resize(4096);
      text.resize(fread(text.data(), 1, text.size(), said));
      fprintf(stderr, "%zu MiB of %zu; %s", blocks.size() * kStep / kMiB, kLimit / kMiB, text.c_str());
      CHECK(text.find("allocation refused") != std::string::npos && text.find("ulimit -d") != std::string::npos);
    }
    CHECK(blocks.size() * kStep >= kLimit - kOwnMost && tiered(blocks.back()));
    for (size_t i = 0; i < blocks.size(); ++i) CHECK(holds(blocks[i], kStep, round + i));
    for (char* block : blocks) {
      if (g_kind == "heap")
        free(block);
      else
        CHECK(munmap(block, kStep) == 0);
    }
    if (g_kind == "heap") CHECK(mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0) == 0);  // all arenas
  }
  return 0;
}

// jemalloc gives back what is freed at once (MALLOC_CONF). Blocks of at most so many bytes in a round, some freed
// between two others, so that pages are asked for again in pieces that end elsewhere.
int reuse_in_other_sizes() {
  static constexpr size_t kBlocks = 1000, kMost[] = {5000, 60000, 20000};
  std::vector<char*> blocks(kBlocks);
  const auto bytes_of = [](size_t round, size_t i) { return 8 + stamp(round, i) % kMost[round % std::size(kMost)]; };
  for (size_t round = 0; round < 60; ++round) {
    for (size_t i = 0; i < kBlocks; ++i) {
      blocks[i] = static_cast<char*>(malloc(bytes_of(round, i)));
      CHECK(blocks[i] != nullptr);
      fill(blocks[i], bytes_of(round, i), round + i);
      if (i % 3 == 2) free(std::exchange(blocks[i - 1], nullptr));
    }
    for (size_t i = 0; i < kBlocks; ++i) CHECK(blocks[i] == nullptr || holds(blocks[i], bytes_of(round, i), round + i));
    for (char* block : blocks) free(block);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  g_kind = argv[2];
  const bool plain = g_kind.starts_with("plain-");
  if (plain) g_kind.erase(0, 6);
  const rlimit limit{kLimit, kLimit};
  CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
  return run_preloaded(argc, argv,
                       {plain ? "LUNAR_DRAM=600m" : "LUNAR_DRAM=64m", "LUNAR_SIZE=1g",
                        g_kind == "pieces" ? "MALLOC_CONF=dirty_decay_ms:0" : "MALLOC_CONF="},
                       g_kind == "pieces" ? reuse_in_other_sizes : grow_to_the_limit);
}
