// SPDX-License-Identifier: Apache-2.0
// Threads under the preload: churn of short-lived threads, memory freed by another thread than made
// it, forks in between, and a LUN that runs full: ENOMEM for the program, which goes on.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <thread>
#include <vector>

#include "preload_test.h"

namespace {

struct Parcel {
  Parcel* next;
  size_t bytes;
  unsigned long seed;
  unsigned long* content() { return reinterpret_cast<unsigned long*>(this + 1); }
};
std::atomic<Parcel*> g_parcels{nullptr};

void send(Parcel* parcel) {
  parcel->next = g_parcels.load();
  while (!g_parcels.compare_exchange_weak(parcel->next, parcel)) {}
}

void check_and_free(Parcel* list) {
  while (list != nullptr) {
    Parcel* next = list->next;
    REQUIRE(holds(list->content(), list->bytes, list->seed));
    free(list);
    list = next;
  }
}

void worker(unsigned long seed) {
  unsigned long random = seed * 2654435761u + 1;
  for (int i = 0; i < 60; ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    size_t bytes = (random % (i % 10 == 0 ? 300000 : 8000)) & ~7ul;
    auto* parcel = static_cast<Parcel*>(malloc(sizeof(Parcel) + bytes));
    REQUIRE(parcel != nullptr && tiered(parcel));
    parcel->bytes = bytes;
    parcel->seed = random;
    fill(parcel->content(), bytes, random);
    send(parcel);
    if (i % 16 == 0) check_and_free(g_parcels.exchange(nullptr));
  }
}

void churn() {
  for (unsigned long round = 0; round < 40; ++round) {
    std::vector<std::thread> threads;
    for (unsigned long i = 0; i < 4; ++i) threads.emplace_back(worker, round * 100 + i);
    for (auto& thread : threads) thread.join();
  }
  check_and_free(g_parcels.exchange(nullptr));
}

void forks_between() {
  constexpr size_t kBytes = 48 << 20;
  void* block = malloc(kBytes);
  void* map = mmap(nullptr, kBytes, kRw, kPrivate, -1, 0);
  REQUIRE(block != nullptr && map != MAP_FAILED);
  fill(block, kBytes, 41);
  fill(map, kBytes, 43);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    for (unsigned long i = 0; !stop.load(); ++i) worker(i);
  });
  for (int i = 0; i < 3; ++i) {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      REQUIRE(holds(block, kBytes, 41) && holds(map, kBytes, 43));
      void* more = malloc(4 << 20);
      REQUIRE(more != nullptr && tiered(more));
      fill(more, 4 << 20, 47);
      std::thread([] { worker(7); }).join();
      REQUIRE(holds(more, 4 << 20, 47) && munmap(map, kBytes) == 0);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop.store(true);
  busy.join();
  check_and_free(g_parcels.exchange(nullptr));
  REQUIRE(holds(block, kBytes, 41) && holds(map, kBytes, 43));
  free(block);
  REQUIRE(munmap(map, kBytes) == 0);
}

void full() {
  std::vector<void*> blocks;
  blocks.reserve(1000);
  constexpr size_t kBlock = 8 << 20;
  for (;;) {
    errno = 0;
    void* block = malloc(kBlock);
    if (block == nullptr) break;
    memset(block, static_cast<int>(blocks.size() % 251) + 1, 64);
    blocks.push_back(block);
    REQUIRE(blocks.size() < 1000);
  }
  REQUIRE(errno == ENOMEM && blocks.size() > 10);
  errno = 0;
  void* map = mmap(nullptr, size_t(64) << 20, kRw, kPrivate, -1, 0);
  REQUIRE(map == MAP_FAILED && errno == ENOMEM);
  for (size_t i = 0; i < blocks.size(); ++i) {
    REQUIRE(*static_cast<unsigned char*>(blocks[i]) == i % 251 + 1);
    free(blocks[i]);
  }
  void* again = malloc(size_t(64) << 20);  // what was freed can be allocated again at once
  REQUIRE(again != nullptr);
  fill(again, size_t(64) << 20, 53);
  REQUIRE(holds(again, size_t(64) << 20, 53));
  free(again);
}

// A process ends with its last thread, whichever that is, and runs its exit handlers: also with
// service threads it.
void* sleep_then_end(void*) {
  usleep(50000);
  return nullptr;
}

void* wait_for_main(void* main_thread) {
  pthread_join(*static_cast<pthread_t*>(main_thread), nullptr);
  pthread_exit(nullptr);
}

int leave_main_first() {
  static pthread_t main_thread = pthread_self();
  pthread_t thread;
  if (pthread_create(&thread, nullptr, wait_for_main, &main_thread) != 0) return 2;
  pthread_exit(nullptr);
}

int leave_main_last() {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, sleep_then_end, nullptr) != 0) return 2;
  pthread_detach(thread);
  usleep(100000);
  pthread_exit(nullptr);
}

void* fork_from_thread(void*) {
  const pid_t child = fork();
  if (child == 0) return nullptr;  // the only thread of the child
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  _exit(WIFEXITED(status) && WEXITSTATUS(status) == 42 ? 42 : 1);
}

int leave_in_forked_child() {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, fork_from_thread, nullptr) != 0) return 2;
  pause();
  return 1;
}

void ends_with_its_last_thread() {
  void* block = malloc(24 << 20);
  REQUIRE(block != nullptr);
  fill(block, 24 << 20, 59);
  for (int (*leave)() : {leave_main_first, leave_main_last, leave_in_forked_child}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      REQUIRE(holds(block, 24 << 20, 59));  // it has a tier of its own now
      atexit([] { _exit(42); });
      _exit(leave());
    }
    int status = 0;
    pid_t ended = 0;
    for (int i = 0; i < 600 && (ended = waitpid(child, &status, WNOHANG)) == 0; ++i) usleep(100000);
    if (ended == 0) kill(child, SIGKILL);
    REQUIRE(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
  }
  free(block);
}

void body() {
  ends_with_its_last_thread();
  churn();
  forks_between();
  full();
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=1m"},
                   {{"all", body}});
}
