// SPDX-License-Identifier: Apache-2.0
// Thousands of reads in flight without thousands of threads. Each coroutine follows a chain of
// records, where the value of one is the key of the next, so a walk is a series of waits. The code
// of a coroutine reads as if it blocked.
//
//   kv_coroutines [PLACE [WALKERS [RECORDS]]]      PLACE: a place for the store; without one, or
//                                                  "": memory
#include <chrono>
#include <coroutine>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <latch>
#include <lunar/kv.hpp>
#include <string>
#include <vector>

namespace kv = lunar::kv;

namespace {

// A coroutine that nothing awaits. It begins in its caller's thread; the calls resume it on the
// store's threads.
struct Detached {
  struct promise_type {
    Detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
};

constexpr unsigned kSteps = 100;

// The step is odd and the number of records is a power of two, so a walk visits every record before
// it returns to the first.
constexpr std::uint64_t kStride = 40503;

struct Walker {
  std::uint64_t at = 0;
  std::error_code error;
};

Detached store_records(kv::Store& store, Walker& walker, std::uint64_t first, std::uint64_t step,
                       std::uint64_t records, std::latch& done) {
  for (std::uint64_t i = first; i < records && !walker.error; i += step)
    walker.error =
        (co_await store.async_set(std::to_string(i), std::to_string((i + kStride) % records)))
            .error();
  done.count_down();
}

Detached walk(kv::Store& store, Walker& walker, std::latch& done) {
  for (unsigned step = 0; step < kSteps; ++step) {
    const kv::Result<std::string> next = co_await store.async_get(std::to_string(walker.at));
    if (!next) {
      walker.error = next.error();
      break;
    }
    walker.at = std::stoull(*next);
  }
  done.count_down();
}

int fail(const char* what, std::error_code why) {
  std::fprintf(stderr, "kv_coroutines: %s: %s\n", what, why.message().c_str());
  return 1;
}

int run(kv::Store& store, unsigned count, std::uint64_t records) {
  std::vector<Walker> walkers(count);
  std::latch stored(count), walked(count);
  for (unsigned i = 0; i < count; ++i) store_records(store, walkers[i], i, count, records, stored);
  stored.wait();
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < count; ++i) {
    walkers[i].at = i % records;
    if (walkers[i].error)
      walked.count_down();
    else
      walk(store, walkers[i], walked);
  }
  walked.wait();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (unsigned i = 0; i < count; ++i) {
    if (walkers[i].error) return fail("a call", walkers[i].error);
    if (walkers[i].at != (i % records + kStride * kSteps) % records)
      return fail("the end of a walk", std::make_error_code(std::errc::bad_message));
  }
  std::printf(
      "kv_coroutines: %u walkers, %u steps each over %llu records: %.0f gets a second, all where "
      "they should be\n",
      count, kSteps, static_cast<unsigned long long>(records), count * kSteps / took.count());
  return 0;
}

int usage(int code) {
  std::fputs("usage: kv_coroutines [PLACE [WALKERS (1 to 65536) [RECORDS (a power of two)]]]\n",
             code == 0 ? stdout : stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') return usage(std::strcmp(argv[1], "--help") == 0 ? 0 : 2);
  const long walkers = argc > 2 ? std::atol(argv[2]) : 4000,
             wanted = argc > 3 ? std::atol(argv[3]) : 65536;
  if (argc > 4 || walkers < 1 || walkers > 65536 || wanted < 1 || (wanted & (wanted - 1)) != 0)
    return usage(2);
  kv::Options options{.place = argc > 1 ? argv[1] : "",
                      .expected_keys = static_cast<std::uint64_t>(wanted),
                      .threads = 4};
  // A call counts as in flight until its coroutine has run, hence one more per thread.
  options.asyncs = static_cast<unsigned>(walkers) + 4;
  options.value_bytes = 32;
  kv::Result<kv::Store> store = kv::Store::open(options);
  if (!store) return fail("opening the store", store.error());
  const int result =
      run(*store, static_cast<unsigned>(walkers), static_cast<std::uint64_t>(wanted));
  const kv::Result<void> closed = store->close();
  return closed ? result : fail("closing the store", closed.error());
}
