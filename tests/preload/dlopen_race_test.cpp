// SPDX-License-Identifier: Apache-2.0
// Activation while a thread is inside the dynamic linker: dlopen allocates under the lock that
// making a thread needs. First another thread is, then one that waits for the thread whose
// allocation activates, then that thread itself; then four threads are, which share the allocator's
// locks with two that grow and one that forks. Also with hundreds of threads, for whose
// thread-local variables the linker has allocated many MiB before.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "preload_test.h"

namespace {

constexpr unsigned kCopies = 150, kProcesses = 6, kProcessesLong = 24, kCrowds = 3, kStorms = 3;
constexpr size_t kStep = 256 << 10, kGrowth = 48 << 20;

std::string copy_of(unsigned i) {
  return std::string(getenv("DLOPEN_RACE_DIRECTORY")) + "/copy-" + std::to_string(i) + ".so";
}

void make_copies(const char* object) {
  for (unsigned i = 0; i < kCopies; ++i) {
    const int from = open(object, O_RDONLY),
              to = open(copy_of(i).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0700);
    struct stat status;
    REQUIRE(from >= 0 && to >= 0 && fstat(from, &status) == 0);
    REQUIRE(sendfile(to, from, nullptr, static_cast<size_t>(status.st_size)) == status.st_size);
    close(from);
    close(to);
  }
}

// All at once, every third by a long name where that is asked for.
void load_each(unsigned first, unsigned end, bool long_names) {
  std::vector<void*> loaded;
  for (unsigned i = first; i < end; ++i) {
    std::string name = copy_of(i);
    const size_t file = name.rfind('/');
    while (long_names && i % 3 == 0 && name.size() < 3500) name.insert(file, "/.");
    loaded.push_back(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
    REQUIRE(loaded.back() != nullptr);
  }
  for (void* one : loaded) REQUIRE(dlclose(one) == 0);
}

void load_and_grow() {
  Meanwhile loading([] { load_each(0, kCopies, false); });
  std::vector<char*> memory;
  for (size_t taken = 0; taken < kGrowth; taken += kStep) {
    memory.push_back(static_cast<char*>(malloc(kStep)));
    REQUIRE(memory.back() != nullptr);
    fill(memory.back(), kStep, taken);
  }
  loading.end();
  for (size_t i = 0; i < memory.size(); ++i) REQUIRE(holds(memory[i], kStep, i * kStep));
}

// All that grows is what the linker holds: names as long as they may be.
void grow_by_loading() {
  for (unsigned i = 0; i < kCopies; ++i) {
    std::string name = copy_of(i);
    const size_t file = name.rfind('/');
    while (name.size() < 4000) name.insert(file, "/.");
    REQUIRE(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
  }
  char* memory = static_cast<char*>(malloc(kGrowth));
  REQUIRE(memory != nullptr);
  fill(memory, kGrowth, 7);
  REQUIRE(holds(memory, kGrowth, 7));
}

void grow_among_threads() {
  constexpr unsigned kThreads = 600;
  void* object = dlopen(copy_of(kCopies - 1).c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(object != nullptr);
  auto* touch = reinterpret_cast<int (*)()>(dlsym(object, "touch_thread_local"));
  REQUIRE(touch != nullptr);
  std::atomic<unsigned> begun{0};
  std::atomic<bool> done{false};
  const auto threads = lunar_test::start_threads(kThreads, [&] {
    REQUIRE(touch() == 1);
    ++begun;
    done.wait(false);
    REQUIRE(touch() == 1);
  });
  while (begun.load() != kThreads) usleep(1000);
  load_and_grow();
  const pid_t child = fork();  // which makes threads of its own
  if (child == 0) _exit(malloc(kStep) != nullptr && touch() == 1 ? 0 : 1);
  REQUIRE(ends_well(child));
  done.store(true);
  done.notify_all();
}

void grow_in_constructor() {
  REQUIRE(setenv("DLOPEN_RACE_GROW", std::to_string(kGrowth).c_str(), 1) == 0);
  REQUIRE(dlopen(copy_of(0).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
}

// Blocks of all sizes: the allocator grows in its own lock.
void grow(unsigned long seed) {
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t taken = 0; taken < kGrowth / 2;) {
    const unsigned long random = stamp(seed, taken);
    const size_t bytes = random % 16 == 0 ? 1 << 20 : random % 4 == 0 ? kStep : 16 << 10;
    blocks.emplace_back(static_cast<char*>(malloc(bytes)), bytes);
    REQUIRE(blocks.back().first != nullptr);
    fill(blocks.back().first, bytes, taken);
    taken += bytes;
  }
  size_t taken = 0;
  for (const auto& [block, bytes] : blocks) {
    REQUIRE(holds(block, bytes, taken));
    taken += bytes;
  }
}

void load_grow_and_fork() {
  constexpr unsigned kLoading = 4, kEach = 10;
  const Meanwhile loading([](unsigned i) { load_each(i * kEach, (i + 1) * kEach, true); },
                          kLoading);
  const Meanwhile forking([] {
    const pid_t child = fork();
    if (child == 0) _exit(malloc(kStep) != nullptr ? 0 : 1);
    REQUIRE(ends_well(child));
    usleep(3000);
  });
  std::jthread other([] { grow(1); });
  grow(2);
}

}  // namespace

// PROGRAM LIBRARY CASE DIRECTORY SHARED_OBJECT: a case several times, each in a process of its own,
// with copies of SHARED_OBJECT in DIRECTORY.
int main(int argc, char** argv) {
  const std::vector<Case> cases{{"load", load_and_grow},
                                {"load-long", load_and_grow},
                                {"constructor", grow_in_constructor},
                                {"loading", grow_by_loading},
                                {"threads", grow_among_threads},
                                {"storm", load_grow_and_fork, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"}}};
  const auto run = [&](const char* activate_at = "LUNAR_ACTIVATE_AT=") {
    return run_cases(argc, argv, {"LUNAR_DRAM=24m", "LUNAR_SIZE=256m", activate_at}, cases);
  };
  if (inside()) return run();
  REQUIRE(argc == 5);
  const std::string directory = std::string(argv[3]) + "/dlopen-race-" + std::to_string(getpid()),
                    name = argv[2];
  REQUIRE(mkdir(directory.c_str(), 0700) == 0 &&
          setenv("DLOPEN_RACE_DIRECTORY", directory.c_str(), 1) == 0);
  make_copies(argv[4]);
  int rc = 0;
  const unsigned times = name == "load"        ? kProcesses
                         : name == "load-long" ? kProcessesLong
                         : name == "threads"   ? kCrowds
                         : name == "storm"     ? kStorms
                                               : 1;
  for (unsigned i = 0; i < times && rc == 0 && name != "loading"; ++i) rc = run();
  for (const char* at : {"256k", "400k", "512k", "700k"})
    if (rc == 0 && name == "loading") rc = run((std::string("LUNAR_ACTIVATE_AT=") + at).c_str());
  for (unsigned i = 0; i < kCopies; ++i) unlink(copy_of(i).c_str());
  rmdir(directory.c_str());
  return rc;
}
