// SPDX-License-Identifier: Apache-2.0
// Activation while a thread is inside the dynamic linker: dlopen allocates under the lock that making a thread needs.
// First another thread is, then one that waits for the thread whose allocation activates, then that thread itself.
//
//   dlopen_race_test LIBRARY DIRECTORY SHARED_OBJECT   copies SHARED_OBJECT many times (each is a library of
//                                                      its own), and loads the copies
//                                                      while another thread grows beyond what stays plain; several
//                                                      processes, one after the other
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "preload_test.h"

namespace {

constexpr unsigned kCopies = 150, kProcesses = 12;
constexpr size_t kStep = 256 << 10, kGrowth = 48 << 20;

std::string copy_of(unsigned i) {
  return std::string(getenv("DLOPEN_RACE_DIRECTORY")) + "/copy-" + std::to_string(i) + ".so";
}

void make_copies(const char* object) {
  for (unsigned i = 0; i < kCopies; ++i) {
    const int from = open(object, O_RDONLY), to = open(copy_of(i).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0700);
    struct stat status;
    CHECK(from >= 0 && to >= 0 && fstat(from, &status) == 0);
    CHECK(sendfile(to, from, nullptr, static_cast<size_t>(status.st_size)) == status.st_size);
    close(from);
    close(to);
  }
}

int load_and_grow() {
  std::atomic<bool> done{false};
  std::thread loading([&] {
    std::vector<void*> loaded;
    while (!done.load()) {
      for (unsigned i = 0; i < kCopies; ++i) {
        loaded.push_back(dlopen(copy_of(i).c_str(), RTLD_NOW | RTLD_LOCAL));
        CHECK(loaded.back() != nullptr);
      }
      for (void* one : loaded) CHECK(dlclose(one) == 0);
      loaded.clear();
    }
  });
  std::vector<char*> memory;
  for (size_t taken = 0; taken < kGrowth; taken += kStep) {
    memory.push_back(static_cast<char*>(malloc(kStep)));
    CHECK(memory.back() != nullptr);
    fill(memory.back(), kStep, taken);
  }
  done.store(true);
  loading.join();
  for (size_t i = 0; i < memory.size(); ++i) CHECK(holds(memory[i], kStep, i * kStep));
  return 0;
}

// All that grows is what the linker holds: names as long as they may be.
int grow_by_loading() {
  for (unsigned i = 0; i < kCopies; ++i) {
    std::string name = copy_of(i);
    const size_t file = name.rfind('/');
    while (name.size() < 4000) name.insert(file, "/.");
    CHECK(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
  }
  char* memory = static_cast<char*>(malloc(kGrowth));
  CHECK(memory != nullptr);
  fill(memory, kGrowth, 7);
  CHECK(holds(memory, kGrowth, 7));
  return 0;
}

int grow_in_constructor() {
  CHECK(setenv("DLOPEN_RACE_GROW", std::to_string(kGrowth).c_str(), 1) == 0);
  CHECK(dlopen(copy_of(0).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (getenv("PRELOAD_TEST_INSIDE") != nullptr)
    return getenv("DLOPEN_RACE_CONSTRUCTOR") != nullptr ? grow_in_constructor()
           : getenv("LUNAR_ACTIVATE_AT") != nullptr     ? grow_by_loading()
                                                        : load_and_grow();
  CHECK(argc == 4);
  const std::string directory = std::string(argv[2]) + "/dlopen-race-" + std::to_string(getpid());
  CHECK(mkdir(directory.c_str(), 0700) == 0 && setenv("DLOPEN_RACE_DIRECTORY", directory.c_str(), 1) == 0);
  make_copies(argv[3]);
  int rc = 0;
  for (unsigned i = 0; i < kProcesses && rc == 0; ++i)
    rc = run_preloaded(argc, argv, {"LUNAR_DRAM=24m", "LUNAR_SIZE=256m"}, load_and_grow);
  if (rc == 0)
    rc = run_preloaded(argc, argv, {"LUNAR_DRAM=24m", "LUNAR_SIZE=256m", "DLOPEN_RACE_CONSTRUCTOR=1"},
                       grow_in_constructor);
  for (const char* activate_at :
       {"LUNAR_ACTIVATE_AT=256k", "LUNAR_ACTIVATE_AT=400k", "LUNAR_ACTIVATE_AT=512k", "LUNAR_ACTIVATE_AT=700k"})
    if (rc == 0) rc = run_preloaded(argc, argv, {"LUNAR_DRAM=24m", "LUNAR_SIZE=256m", activate_at}, grow_by_loading);
  for (unsigned i = 0; i < kCopies; ++i) unlink(copy_of(i).c_str());
  rmdir(directory.c_str());
  return rc;
}
