// SPDX-License-Identifier: Apache-2.0
// Moves the pairs of a persistent store of IBM's libarkdb to a store of Lunar's. The program loads
// both libraries by their paths and uses their common interface. It closes the new store, opens it
// again, and compares it with the old one, pair by pair. `kv_migrate --help` lists the options.
// Build: g++ -std=c++20 -O2 kv_migrate.cpp -o kv_migrate -ltbb -ldl, without -larkdb.
//
// It does not use two functions with defects in IBM's library: ark_nextN, which writes beyond its
// buffer, and reads beyond the end of a value.
#include <arkdb.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <oneapi/tbb/enumerable_thread_specific.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

const char usage[] =
    "usage: kv_migrate --from-library LIBRARY --from PLACE --to PLACE [options]\n"
    "  --from-library LIBRARY  path of the libarkdb.so that has written the old store\n"
    "  --from PLACE            the old store, kept with ARK_KV_PERSIST_STORE; it is only read\n"
    "  --to PLACE              where the new one is made and kept: a blank file or device, or one "
    "with an empty store\n"
    "  --to-library LIBRARY    path of Lunar's library (libarkdb-0.so, where the loader finds it)\n"
    "  --threads N             (all CPUs)\n"
    "  --help                  this text\n";

constexpr size_t kBatchKeys = 4096;

// The first problem of all threads.
class Problem {
 public:
  void note(const std::string& text) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (text_.empty()) text_ = text;
    there_ = true;
  }
  bool there() const { return there_; }
  const std::string& text() const { return text_; }

 private:
  std::mutex lock_;
  std::atomic<bool> there_{false};
  std::string text_;
};

std::string told(const std::string& what, int error) { return what + ": " + strerror(error); }

struct Library {
  decltype(&ark_create) create = nullptr;
  decltype(&ark_delete) close = nullptr;
  decltype(&ark_first) first = nullptr;
  decltype(&ark_next) next = nullptr;
  decltype(&ark_get) get = nullptr;
  decltype(&ark_set) set = nullptr;
  decltype(&ark_count) count = nullptr;

  template <class Function>
  static bool find(void* library, const char* name, Function* out) {
    *out = reinterpret_cast<Function>(dlsym(library, name));
    return *out != nullptr;
  }
  // The library stays loaded. RTLD_LOCAL: each library finds its own functions, not those of the
  // other with the same names.
  bool load(const std::string& path, Problem& problem) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const bool loaded = library && find(library, "ark_create", &create) &&
                        find(library, "ark_delete", &close) && find(library, "ark_first", &first) &&
                        find(library, "ark_next", &next) && find(library, "ark_get", &get) &&
                        find(library, "ark_set", &set) && find(library, "ark_count", &count);
    if (!loaded) problem.note(dlerror());
    return loaded;
  }
};

class Store {
 public:
  Store(const Library& library, std::string place) : library_(library), place_(std::move(place)) {}
  ~Store() { (void)close(); }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  bool open(uint64_t flags, Problem& problem) {
    if (const int error = library_.create(place_.data(), &ark_, flags); error != 0) {
      problem.note(told(place_, error));
      return false;
    }
    return true;
  }
  int close() {
    ARK* ark = std::exchange(ark_, nullptr);
    return ark ? library_.close(ark) : 0;
  }
  int64_t count(Problem& problem) const {
    int64_t pairs = 0;
    if (const int error = library_.count(ark_, &pairs); error != 0)
      problem.note(told(place_ + ": ark_count", error));
    return pairs;
  }
  int set(std::string& key, std::string& value) const {
    int64_t length = 0;
    return library_.set(ark_, key.size(), key.data(), value.size(), value.data(), &length);
  }
  // Reads the whole value into a string, whose memory is used again.
  int get(std::string& key, std::string& value) const {
    value.resize(std::max<size_t>(value.capacity(), 4096));
    for (;;) {
      int64_t length = 0;
      const int error =
          library_.get(ark_, key.size(), key.data(), value.size(), value.data(), 0, &length);
      if (error != 0) return error;
      const bool whole = static_cast<uint64_t>(length) <= value.size();
      value.resize(static_cast<size_t>(length));
      if (whole) return 0;
    }
  }

  // Calls `function` with batches of all keys. Both libraries truncate a key that is longer than
  // the buffer. Then it enlarges the buffer and returns false: the caller must drop the keys so far
  // and call again. Errors go to `problem`.
  template <class Function>
  bool each_batch(std::string& buffer, Problem& problem, Function function) const {
    std::vector<std::string> keys;
    int64_t length = 0;
    errno = 0;
    ARI* iterator = library_.first(ark_, buffer.size(), &length, buffer.data());
    int error = iterator ? 0 : errno ? errno : ENOENT;
    for (; error == 0 && !problem.there();
         error = library_.next(iterator, buffer.size(), &length, buffer.data())) {
      if (static_cast<uint64_t>(length) > buffer.size()) {
        buffer.resize(static_cast<size_t>(length));
        return false;
      }
      keys.emplace_back(buffer.data(), static_cast<size_t>(length));
      if (keys.size() < kBatchKeys) continue;
      function(keys);
      keys.clear();
    }
    if (error != 0 && error != ENOENT) problem.note(told(place_ + ": the keys", error));
    if (!problem.there()) function(keys);
    return true;
  }

 private:
  const Library& library_;
  std::string place_;
  ARK* ark_ = nullptr;
};

struct Totals {
  std::atomic<int64_t> pairs{0}, bytes{0};
};
using Values = oneapi::tbb::enumerable_thread_specific<std::pair<std::string, std::string>>;

// Calls `one` with each key of the old store and buffers for two values, on all threads.
template <class Function>
void for_each_pair(const Store& from, Totals& totals, Problem& problem, Function one) {
  Values values;
  std::string buffer(64 * 1024, '\0');
  const auto batch = [&](std::vector<std::string>& keys) {
    oneapi::tbb::parallel_for(size_t{0}, keys.size(), [&](size_t i) {
      if (problem.there()) return;
      auto& [first, second] = values.local();
      if (const int error = from.get(keys[i], first); error != 0)
        return problem.note(told("reading " + keys[i], error));
      one(keys[i], first, second);
      ++totals.pairs;
      totals.bytes += static_cast<int64_t>(keys[i].size() + first.size());
    });
  };
  while (!from.each_batch(buffer, problem, batch)) totals.pairs = totals.bytes = 0;
}

void copy(const Store& from, const Store& to, Totals& totals, Problem& problem) {
  for_each_pair(from, totals, problem, [&](std::string& key, std::string& value, std::string&) {
    if (const int error = to.set(key, value); error != 0)
      problem.note(told("storing " + key, error));
  });
}

void compare(const Store& from, const Store& to, Totals& totals, Problem& problem) {
  for_each_pair(from, totals, problem,
                [&](std::string& key, std::string& value, std::string& moved) {
                  if (const int error = to.get(key, moved); error != 0)
                    problem.note(told("reading back " + key, error));
                  else if (value != moved)
                    problem.note("the value of " + key + " differs");
                });
}

struct Settings {
  std::string from_library, to_library = "libarkdb-0.so", from, to;
  size_t threads = 0;
};

// Returns 0, or the exit code + 1.
int read_options(int argc, char** argv, Settings* out) {
  static const option names[] = {{"from-library", 1, nullptr, 'l'}, {"from", 1, nullptr, 'f'},
                                 {"to", 1, nullptr, 't'},           {"to-library", 1, nullptr, 'L'},
                                 {"threads", 1, nullptr, 'n'},      {"help", 0, nullptr, 'h'},
                                 {nullptr, 0, nullptr, 0}};
  bool bad = false;
  for (int found; (found = getopt_long(argc, argv, "h", names, nullptr)) != -1;) {
    if (found == 'h') return fputs(usage, stdout), 1;
    std::string* text = found == 'l'   ? &out->from_library
                        : found == 'L' ? &out->to_library
                        : found == 'f' ? &out->from
                        : found == 't' ? &out->to
                                       : nullptr;
    if (text) *text = optarg;
    if (found == 'n') out->threads = strtoul(optarg, nullptr, 10);
    bad |= found == '?' || (found == 'n' && out->threads == 0);
  }
  if (!bad && optind == argc && !out->from_library.empty() && !out->from.empty() &&
      !out->to.empty())
    return 0;
  return fputs(usage, stderr), 3;
}

void migrate(const Settings& settings, Totals& totals, Problem& problem) {
  Library old_library, new_library;
  if (!old_library.load(settings.from_library, problem) ||
      !new_library.load(settings.to_library, problem))
    return;
  Store from(old_library, settings.from), to(new_library, settings.to);
  if (!from.open(ARK_KV_PERSIST_LOAD, problem) ||
      !to.open(ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD, problem))
    return;
  const int64_t pairs = from.count(problem), there = to.count(problem);
  if (there != 0)
    problem.note(settings.to + ": a store of " + std::to_string(there) +
                 " pairs is there; give another place");
  if (problem.there()) return;
  copy(from, to, totals, problem);
  if (problem.there()) return;
  if (const int error = to.close(); error != 0)
    return problem.note(told(settings.to + ": keeping it", error));
  Totals compared;
  if (!to.open(ARK_KV_PERSIST_LOAD, problem)) return;
  compare(from, to, compared, problem);
  const int64_t moved = to.count(problem);
  if (!problem.there() && (totals.pairs != pairs || compared.pairs != pairs || moved != pairs))
    problem.note("the old store counts " + std::to_string(pairs) + " pairs, " +
                 std::to_string(totals.pairs) + " were found and " + std::to_string(moved) +
                 " are in the new one");
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  if (const int result = read_options(argc, argv, &settings); result != 0) return result - 1;
  std::unique_ptr<oneapi::tbb::global_control> limit;
  if (settings.threads != 0)
    limit = std::make_unique<oneapi::tbb::global_control>(
        oneapi::tbb::global_control::max_allowed_parallelism, settings.threads);
  Totals totals;
  Problem problem;
  migrate(settings, totals, problem);
  if (problem.there()) {
    fprintf(stderr, "kv_migrate: %s\n", problem.text().c_str());
    return 1;
  }
  printf("kv_migrate: %lld pairs, %lld bytes moved, all equal\n",
         static_cast<long long>(totals.pairs), static_cast<long long>(totals.bytes));
  return 0;
}
