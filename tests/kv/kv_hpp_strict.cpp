// SPDX-License-Identifier: Apache-2.0
// lunar/kv.hpp without exceptions and RTTI, under warnings that are errors. One translation unit of
// two: the header is in both.
#include <lunar/kv.hpp>

#include <cstdio>

int more_keys(lunar::kv::Store& store);

int main() {
  lunar::kv::Result<lunar::kv::Store> opened =
      lunar::kv::Store::open({.place = "mem:32m", .expected_keys = 1000});
  if (!opened) return 1;
  lunar::kv::Store store = *std::move(opened);
  if (!store.set("key", "value") || store.get("key").value_or("") != "value") return 2;
  if (store.get("none").error() != lunar::kv::not_found) return 3;
  if (more_keys(store) != 100) return 4;
  int count = 0;
  for (std::string_view key : store.keys()) count += key.empty() ? 0 : 1;
  if (count != 101) return 5;
  return store.close() ? 0 : 6;
}
