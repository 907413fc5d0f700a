// SPDX-License-Identifier: Apache-2.0
// Programs with a malloc of their own (own_malloc.cpp), whose memory comes by mmap under its lock:
// the call that makes the process active, and that makes threads, is inside that lock, and so is a
// fork.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "preload_test.h"

namespace {

constexpr size_t kBlock = 300 << 10, kGrowth = 64 * kMiB;

struct Block {
  char* at = nullptr;
  size_t bytes = 0;
  unsigned long seed = 0;
};

Block make(size_t bytes, unsigned long seed) {
  const Block block{static_cast<char*>(malloc(bytes)), bytes, seed};
  REQUIRE(block.at != nullptr);
  fill(block.at, bytes, seed);
  return block;
}

// Blocks of all sizes.
std::vector<Block> grow(size_t bytes, unsigned long seed) {
  std::vector<Block> blocks;
  for (size_t taken = 0; taken < bytes; taken += blocks.back().bytes) {
    const unsigned long random = stamp(seed, taken);
    blocks.push_back(make(random % 8 == 0   ? kMiB
                          : random % 4 == 0 ? kBlock
                                            : 16 << 10,
                          seed + taken));
  }
  return blocks;
}

bool all_hold(const std::vector<Block>& blocks) {
  for (const Block& block : blocks)
    if (!holds(block.at, block.bytes, block.seed)) return false;
  return true;
}

void give_back(std::vector<Block>* blocks) {
  for (const Block& block : *blocks) free(block.at);
  blocks->clear();
}

void grow_alone() {
  std::vector<Block> blocks = grow(kGrowth, 1);
  // the first chunk may be older than the tier
  REQUIRE(tiered(blocks.back().at) && all_hold(blocks));
  give_back(&blocks);
}

// The child's exit code is 0 when it has found what it inherits, has grown by `bytes`, and a child
// of its own has.
bool child_is_right(const std::vector<Block>& inherited, size_t bytes, int depth) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::vector<Block> own = grow(bytes, 77);
    const bool right = all_hold(inherited) && all_hold(own) &&
                       (depth == 0 || child_is_right(own, bytes, depth - 1));
    _exit(right ? 0 : 7);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (status != 0) fprintf(stderr, "a child ended with status %x\n", status);
  return status == 0;
}

void forks(int children) {
  Meanwhile growing(
      [round = 0ul](unsigned t) mutable {
        std::vector<Block> blocks = grow(3 * kMiB, (t + 1) * 1000000 + ++round);
        REQUIRE(all_hold(blocks));
        give_back(&blocks);
      },
      4);
  std::vector<Block> kept = grow(16 * kMiB, 5);
  for (int i = 0; i < children; ++i) REQUIRE(child_is_right(kept, 2 * kMiB, i % 2));
  growing.end();
  REQUIRE(all_hold(kept));
}

void many_forks() {
  const Meanwhile allocating([] { free(malloc(kBlock)); }, 4);
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      free(malloc(kBlock));
      _exit(0);
    }
    REQUIRE(ends_well(child));
  }
}

void plain_forks() {
  const std::vector<Block> few = grow(4 * kMiB, 5);
  for (int i = 0; i < 3; ++i) REQUIRE(child_is_right(few, 48 * kMiB, 1));
  REQUIRE(all_hold(few));
}

void maps() {
  std::vector<Block> blocks = grow(kGrowth, 1);
  auto* map = static_cast<char*>(mmap(nullptr, kMiB, PROT_READ, kPrivate, -1, 0));
  REQUIRE(map != MAP_FAILED && tiered(map) && mprotect(map, kMiB, kRw) == 0);
  fill(map, kMiB, 9);
  REQUIRE(mlock(map, kMiB) == 0 && munlock(map, kMiB) == 0);
  map = static_cast<char*>(mremap(map, kMiB, 2 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(map != MAP_FAILED && tiered(map) && holds(map, kMiB, 9));
  REQUIRE(madvise(map, kMiB, MADV_DONTNEED) == 0 && map[0] == 0 && map[kMiB - 1] == 0);
  REQUIRE(munmap(map, 2 * kMiB) == 0 && all_hold(blocks));
  give_back(&blocks);
}

void linker() {
  std::vector<Block> blocks = grow(kGrowth, 1);
  REQUIRE(dlopen("/nowhere/libnothing.so", RTLD_NOW) == nullptr && dlerror() != nullptr);
  void* object = dlopen(getenv("OWN_MALLOC_OBJECT"), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(object != nullptr && dlsym(object, "no such symbol") == nullptr);
  auto* touch = reinterpret_cast<int (*)()>(dlsym(object, "touch_thread_local"));
  REQUIRE(touch != nullptr);
  // A thread that ends leaves its stack, and libc frees its thread-local variables when another
  // begins on it.
  for (int i = 0; i < 40; ++i) {
    std::thread first([=] { REQUIRE(touch() == 1); }), second([=] { REQUIRE(touch() == 1); });
    first.join();
    second.join();
  }
  REQUIRE(dlclose(object) == 0 && all_hold(blocks));
}

}  // namespace

// As on a host with two nodes, where the library loads libnuma, whose constructor and calls use
// malloc.
bool has_two_nodes() {
  char path[] = "/var/tmp/lunar-own-malloc-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0 && write(file, "0-1\n", 4) == 4 && close(file) == 0);
  const bool covered =
      unshare(CLONE_NEWNS) == 0 &&
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount(path, "/sys/devices/system/node/online", nullptr, MS_BIND, nullptr) == 0;
  if (!covered) printf("skip: root: a file of /sys cannot be covered (%s)\n", strerror(errno));
  REQUIRE(unlink(path) == 0);
  return covered;
}

// The LUN is a file that libblkid looks at, as `former_lun` makes it.
std::string make_former_lun(const char* make) {
  char path[] = "/var/tmp/lunar-own-malloc-XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0 && close(file) == 0 && system((std::string(make) + " " + path).c_str()) == 0);
  return path;
}

// PROGRAM LIBRARY CASE OBJECT FORMER_LUN
int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string name = argv[2];
  setenv("OWN_MALLOC_OBJECT", argv[3], 1);
  if (name.starts_with("nodes") && !inside() && !has_two_nodes()) return 77;
  const std::string lun = name == "file" && !inside() ? make_former_lun(argv[4]) : "",
                    setting = "LUNAR_LUN=" + lun;
  const int code = run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"},
                             {{"grow", grow_alone},
                              {"nodes", grow_alone},
                              {"nodes-forks", [] { forks(8); }},
                              {"file", grow_alone, {setting.c_str(), "LUNAR_SIZE="}},
                              {"forks", [] { forks(8); }},
                              {"forks-long", [] { forks(60); }},
                              {"many-forks", many_forks},
                              {"plain-forks", plain_forks, {"LUNAR_DRAM=32m"}},
                              {"maps", maps},
                              {"linker", linker}});
  REQUIRE(lun.empty() || unlink(lun.c_str()) == 0);
  return code;
}
