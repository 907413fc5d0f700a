// SPDX-License-Identifier: Apache-2.0
// preload_tables_test LIBRARY CASE: a program whose page tables come near its budget of 16 MiB. It works, or is told;
// it never waits for ever.
//   sparse   a word in each of 2,048 chunks of memory of 3 GiB and more, malloc and MAP_NORESERVE
//   refused  a malloc of 3.5 GiB, whose tables may not fit: NULL, and one line
//   ended    a map without reservation whose tables take all that they may: one line
#include <sys/mman.h>

#include <string>

#include "preload_test.h"
#include "tests/support/stderr_of.h"

namespace {

constexpr size_t kMiB = 1 << 20, kGiB = size_t{1} << 30, kChunk = 2 * kMiB;

void use_sparsely(char* p, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kChunk) *reinterpret_cast<size_t*>(p + at) = at + 1;
  for (size_t at = 0; at < bytes; at += kChunk) CHECK(*reinterpret_cast<size_t*>(p + at) == at + 1);
}

int sparse() {
  char* p = static_cast<char*>(malloc(3 * kGiB - 64 * kMiB));
  CHECK(p != nullptr && tiered(p));
  use_sparsely(p, 3 * kGiB - 64 * kMiB);
  free(p);
  for (int i = 0; i < 3; ++i) {
    void* q = mmap(nullptr, 4 * kGiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(q != MAP_FAILED && tiered(q));
    use_sparsely(static_cast<char*>(q), 4 * kGiB);
    CHECK(munmap(q, 4 * kGiB) == 0);
  }
  return 0;
}

int refused() {
  CHECK(malloc(3 * kGiB + kGiB / 2) == nullptr && errno == ENOMEM);
  char* p = static_cast<char*>(malloc(64 * kMiB));
  CHECK(p != nullptr && tiered(p));
  fill(p, 64 * kMiB, 1);
  CHECK(holds(p, 64 * kMiB, 1));
  return 0;
}

int ended() {
  constexpr size_t kBytes = size_t{1} << 38, kStep = 64 * 1024;  // a leaf for each page
  auto* p = static_cast<char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (p == MAP_FAILED) return 77;
  for (size_t at = 0; at < kBytes; at += kStep) p[at] = 1;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc == 3 ? argv[2] : "";
  const auto run = [=](int (*body)()) { return run_preloaded(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=6g"}, body); };
  if (name == "sparse") return run(sparse);
  int (*const body)() = name == "refused" ? refused : ended;
  if (getenv("PRELOAD_TEST_INSIDE") != nullptr) return run(body);
  int status = 0;
  const std::string text = lunar_test::stderr_of([&] { _exit(run(body)); }, &status);
  CHECK(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) return 77;
  fprintf(stderr, "%s", text.c_str());
  const char* line = name == "refused" ? "allocation refused: the page tables that 3.5 GiB more may take do not fit"
                                       : "FATAL: the page tables take all that they may of the DRAM budget";
  CHECK(text.find(line) != std::string::npos && text.find("give a larger --dram") != std::string::npos);
  CHECK((WEXITSTATUS(status) == 0) == (name == "refused"));
  return 0;
}
