// SPDX-License-Identifier: Apache-2.0
// See kv_system.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/kv/kv_system.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cerrno>
#include <stdexcept>

namespace lunar::tools {

int KvSession::set_many(const std::vector<uint64_t>& numbers, const KvContent& content, char* value) {
  for (const uint64_t number : numbers) {
    content.fill(number, 1, value);
    if (const int code = set(number, content.key(number), value); code != 0) return code;
  }
  return 0;
}
int KvSession::start_get(uint64_t, const KvKey&, char*, KvDone*) { return ENOTSUP; }
int KvSession::start_set(uint64_t, const KvKey&, const char*, KvDone*) { return ENOTSUP; }
bool KvSession::carry_on(const std::function<bool()>&) { return false; }

std::unique_ptr<KvSystem> make_kv_system(const KvSetup& setup) {
  if (setup.system == "lunar") return make_ark_system(setup);
  if (setup.system == "rocksdb" || setup.system == "rocksdb-lz4") return make_rocksdb_system(setup);
  if (setup.system == "lmdb") return make_lmdb_system(setup);
  if (setup.system == "raw") return make_raw_system(setup);
  throw std::runtime_error("no system is named " + setup.system);
}

OpenLibrary::OpenLibrary(const std::string& path) : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!handle_) throw std::runtime_error(fmt::format("{}: {}", path, dlerror()));
}

void* OpenLibrary::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (!found) throw std::runtime_error(fmt::format("{} has no {}", path_, name));
  return found;
}

}  // namespace lunar::tools
