// SPDX-License-Identifier: Apache-2.0
// The other half of kv_hpp_strict.cpp.
#include <lunar/kv.hpp>

#include <atomic>
#include <thread>

int more_keys(lunar::kv::Store& store) {
  static std::atomic<int> stored{0};
  for (int i = 0; i < 100; ++i) {
    const auto count = [](lunar::kv::Result<void> result) { stored += result ? 1 : 0; };
    if (!store.async_set("more " + std::to_string(i), "value", count)) return -1;
  }
  while (stored != 100) std::this_thread::yield();
  return stored;
}
