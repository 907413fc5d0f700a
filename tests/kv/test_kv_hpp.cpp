// SPDX-License-Identifier: Apache-2.0
// lunar/kv.h and lunar/kv.hpp, the blocking calls: options, results, errors, keys; one behaviour a
// case.
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "kv_hpp_support.h"
#include "tests/catch.h"
#include "tests/support/meanwhile.h"
#include "tests/support/stderr_of.h"

using namespace kv_test;

namespace {

kv::Store store_of(const kv::Options& options = in_memory()) {
  kv::Result<kv::Store> opened = kv::Store::open(options);
  REQUIRE(code(opened) == 0);
  return std::move(*opened);
}

int open_raw(const lunar_kv_options& options, ARK** ark) { return lunar_kv_open(&options, ark); }

std::set<std::string> keys_of(const kv::Store& store) {
  std::set<std::string> found;
  kv::Keys keys = store.keys();
  for (std::string_view key : keys) REQUIRE(found.emplace(key).second);
  REQUIRE(!keys.error());
  return found;
}

}  // namespace

static_assert(!std::is_copy_constructible_v<kv::Store> &&
              std::is_nothrow_move_constructible_v<kv::Store>);
static_assert(std::ranges::input_range<kv::Keys> && std::ranges::view<kv::Keys> &&
              !std::ranges::forward_range<kv::Keys>);
static_assert(std::is_convertible_v<std::vector<unsigned char>, kv::Bytes> &&
              std::is_convertible_v<std::string, kv::Bytes>);
static_assert(std::is_convertible_v<std::span<const std::byte>, kv::Bytes> &&
              !std::is_convertible_v<std::vector<int>, kv::Bytes>);

// ---- lunar_kv_open, lunar_kv_end ----

TEST_CASE("kv-hpp: lunar_kv_open refuses structures that it cannot read") {
  ARK* ark = reinterpret_cast<ARK*>(8);
  lunar_kv_options options{};
  CHECK(open_raw(options, &ark) == EINVAL);
  CHECK(ark == nullptr);
  options.struct_size = sizeof options - 1;
  CHECK(open_raw(options, &ark) == EINVAL);
  options.struct_size = sizeof options;
  options.durability = LUNAR_KV_DURABLE_EACH + 1;
  CHECK(open_raw(options, &ark) == EINVAL);
  options.durability = LUNAR_KV_DURABLE_EACH;  // of a store in memory
  CHECK(open_raw(options, &ark) == EINVAL);
  CHECK(lunar_kv_open(nullptr, &ark) == EINVAL);
  CHECK(lunar_kv_open(&options, nullptr) == EINVAL);
}

TEST_CASE("kv-hpp: the error of a call names the call") {
  setenv("LUNAR_KV_DRAM", "24m", 1);
  ARK* ark = nullptr;
  for (const char* place :
       {"mem:nonsense", "/nonexistent/a=/nonexistent/b=", "/nonexistent/directory/file"}) {
    const std::string path = place;
    for (const uint64_t flags :
         {0, ARK_KV_PERSIST_STORE, ARK_KV_PERSIST_LOAD, ARK_KV_VIRTUAL_LUN}) {
      const auto ours =
          lunar_test::stderr_of([&] { (void)kv::Store::open({.place = path, .flags = flags}); });
      const auto plain =
          lunar_test::stderr_of([&] { ark_create(const_cast<char*>(place), &ark, flags); });
      const auto verbose = lunar_test::stderr_of([&] {
        ark_create_verbose(const_cast<char*>(place), &ark, 1 << 20, 4096, 1, 2, 100, 100, flags);
      });
      INFO(place << " " << flags << ": " << ours << plain << verbose);
      CHECK(!ours.empty());
      CHECK(ours.find("ark_create") == std::string::npos);
      CHECK(plain.find("lunar_kv_open") == std::string::npos);
      CHECK((ours.find("lunar_kv_open:") == std::string::npos) ==
            (plain.find("ark_create:") == std::string::npos));
      CHECK((ours.find("lunar_kv_open:") == std::string::npos) ==
            (verbose.find("ark_create_verbose:") == std::string::npos));
    }
  }
  CHECK(lunar_test::stderr_of([&] {
          (void)kv::Store::open({.place = "mem:nonsense"});
        }).find("lunar_kv_open: mem:nonsense") != std::string::npos);
  setenv("LUNAR_KV_DRAM", "nonsense", 1);
  CHECK(lunar_test::stderr_of([&] {
          (void)kv::Store::open();
        }).find("lunar_kv_open: LUNAR_KV_DRAM") != std::string::npos);
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE(
    "kv-hpp: with a durability what was set is there after a crash, whatever the environment "
    "says") {
  setenv("LUNAR_KV_DURABILITY", "nonsense", 1);
  using kv::Durability;
  for (const Durability level : {Durability::flush, Durability::group, Durability::each}) {
    char path[] = "/var/tmp/lunar-kv-hpp-XXXXXX";
    const int file = mkstemp(path);
    REQUIRE(file >= 0);
    REQUIRE(ftruncate(file, 64 << 20) == 0);
    close(file);
    const kv::Options options{
        .place = path, .dram_bytes = 24 << 20, .contents = kv::Contents::keep, .durability = level};
    const int end = kv_test::ends([&] {
      auto store = kv::Store::open(options);
      const bool done = store && store->set("a", "1") && store->set("b", "2") && store->del("a");
      _exit(done ? 7 : 1);  // neither flush() nor close()
    });
    CHECK(end == 7);
    {
      auto store = kv::Store::open(options);
      REQUIRE(store);
      CHECK(store->get("b").value_or("none") == (level == Durability::flush ? "none" : "2"));
      CHECK(store->get("a").error() == kv::not_found);
    }
    unlink(path);
  }
  const kv::Options memory{.place = "mem:64m", .durability = Durability::each};
  CHECK(code(kv::Store::open(memory)) == EINVAL);
  unsetenv("LUNAR_KV_DURABILITY");
}

TEST_CASE("kv-hpp: what a later version's structure has more may be zero, and nothing else") {
  struct {
    lunar_kv_options now;
    uint64_t later;
  } options{};
  options.now.struct_size = sizeof options;
  options.now.place = "mem:64m";
  ARK* ark = nullptr;
  CHECK(lunar_kv_open(&options.now, &ark) == 0);
  CHECK(ark_delete(ark) == 0);
  options.later = 1;
  CHECK(lunar_kv_open(&options.now, &ark) == E2BIG);
  CHECK(ark == nullptr);
}

TEST_CASE("kv-hpp: options come before the environment, which counts where they are not set") {
  setenv("LUNAR_KV_DRAM", "nonsense", 1);
  setenv("LUNAR_KV_SIZE", "nonsense", 1);
  CHECK(code(kv::Store::open({.dram_bytes = 64 << 20})) == EINVAL);
  CHECK(code(kv::Store::open({.size_bytes = 16 << 20})) == EINVAL);
  {
    const kv::Store store = store_of({.dram_bytes = 64 << 20, .size_bytes = 32 << 20});
    CHECK(store.stats()->allocated_bytes == 32 << 20);
  }
  setenv("LUNAR_KV_SIZE", "16m", 1);
  CHECK(store_of({.dram_bytes = 64 << 20}).stats()->allocated_bytes == 16 << 20);
  unsetenv("LUNAR_KV_SIZE");
  CHECK(store_of({.dram_bytes = 64 << 20}).stats()->allocated_bytes ==
        48 << 20);  // three quarters of the budget
  setenv("LUNAR_KV_DRAM", "128m", 1);
  CHECK(store_of({}).stats()->allocated_bytes == 96 << 20);
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE("kv-hpp: an iterator that was left is ended, once") {
  kv::Store store = store_of();
  for (int i = 0; i < 3; ++i) REQUIRE(store.set(std::to_string(i), "value"));
  ARI* iterator = nullptr;
  for (int i = 0; i < 1000; ++i) {
    char key[8];
    int64_t length = 0;
    iterator = ark_first(store.handle(), sizeof key, &length, key);
    REQUIRE(iterator != nullptr);
    REQUIRE(lunar_kv_end(iterator) == 0);
  }
  char key[8];
  int64_t length = 0;
  CHECK(lunar_kv_end(iterator) == EINVAL);
  CHECK(ark_next(iterator, sizeof key, &length, key) == EINVAL);
  CHECK(lunar_kv_end(nullptr) == EINVAL);
  CHECK(lunar_kv_end(store.handle()) == EINVAL);  // no iterator
  iterator = ark_first(store.handle(), sizeof key, &length, key);
  REQUIRE(iterator != nullptr);
  REQUIRE(store.close());
  CHECK(lunar_kv_end(iterator) == EINVAL);
}

TEST_CASE("kv-hpp: an iterator is ended under threads that use it") {
  kv::Store store = store_of();
  for (int i = 0; i < 5000; ++i) REQUIRE(store.set(std::to_string(i), "value"));
  for (int round = 0; round < 50; ++round) {
    char first[16];
    int64_t length = 0;
    ARI* iterator = ark_first(store.handle(), sizeof first, &length, first);
    REQUIRE(iterator != nullptr);
    std::atomic<int> running{0}, other{0};
    auto threads = lunar_test::start_threads(2, [&] {
      char key[16];
      int64_t key_length = 0;
      int status;
      ++running;
      while ((status = ark_next(iterator, sizeof key, &key_length, key)) == 0) continue;
      if (status != EINVAL && status != ENOENT) ++other;
    });
    while (running < 2) std::this_thread::yield();
    const int status = lunar_kv_end(iterator);
    CHECK((status == 0 || status == EINVAL));  // EINVAL: a thread has brought it to its end
    threads.clear();
    CHECK(other == 0);
  }
}

// ---- opening ----

TEST_CASE("kv-hpp: a failed open gives its errno value") {
  const PlaceFile foreign(64 << 20);
  FILE* file = fopen(foreign.path, "r+");
  REQUIRE(file != nullptr);
  fputs("somebody's data", file);
  fclose(file);
  CHECK(code(kv::Store::open({.place = foreign.path})) == EEXIST);
  CHECK(code(kv::Store::open({.place = foreign.path, .contents = kv::Contents::keep})) == EEXIST);
  CHECK(code(kv::Store::open({.place = "/var/tmp/lunar-test-no-such-directory/place"})) == ENOENT);
  CHECK(code(kv::Store::open({.contents = kv::Contents::keep})) == EINVAL);  // memory is not kept
  CHECK(kv::Store::open({.contents = kv::Contents::create}).error() == std::errc::invalid_argument);
}

TEST_CASE("kv-hpp: contents say what a store begins with and what is kept") {
  const PlaceFile file(64 << 20);
  const auto with = [&](kv::Contents contents) {
    return kv::Options{.place = file.path, .dram_bytes = 64 << 20, .contents = contents};
  };
  CHECK(code(kv::Store::open(with(kv::Contents::must_exist))) == ENOENT);
  {
    kv::Store store = store_of(with(kv::Contents::keep));  // nothing is there: a new one
    REQUIRE(store.set("a", "1"));
    REQUIRE(store.flush());
    REQUIRE(store.set("b", "2"));
    REQUIRE(store.close());
  }
  {
    kv::Store store = store_of(with(kv::Contents::must_exist));
    CHECK(keys_of(store) == std::set<std::string>{"a", "b"});
    REQUIRE(store.set("c", "3"));
  }
  {
    kv::Store store = store_of(with(kv::Contents::must_exist));
    CHECK(*store.count() == 2);  // c was not flushed
    REQUIRE(store.set("d", "4"));
    REQUIRE(store.flush());
  }
  CHECK(keys_of(store_of(with(kv::Contents::keep))) == std::set<std::string>{"a", "b", "d"});
  CHECK(*store_of(with(kv::Contents::create)).count() == 0);
  CHECK(*store_of(with(kv::Contents::keep)).count() == 0);
}

TEST_CASE("kv-hpp: a store without room says so, and has lost nothing") {
  kv::Store store = store_of({.dram_bytes = 64 << 20, .size_bytes = 16 << 20});
  const std::string value(1 << 20, 'v');
  int stored = 0, status = 0;
  for (; stored < 100; ++stored) {
    if ((status = code(store.set(std::to_string(stored), value))) != 0) break;
  }
  CHECK(status == ENOSPC);
  CHECK(store.set("more", value).error() == kv::no_space);
  CHECK(*store.count() == static_cast<uint64_t>(stored));
  for (int i = 0; i < stored; ++i) CHECK(*store.get(std::to_string(i)) == value);
}

TEST_CASE("kv-hpp: errors of a device are results, and the other pairs are not affected") {
  constexpr int kPairs = 15'000;
  kv::Store store =
      store_of({.place = "sim:64m,seed=7,read_error=3", .dram_bytes = 16 << 20, .threads = 1});
  const std::string value(2000, 'v');
  int stored = 0, read = 0, failed = 0;
  for (int i = 0; i < kPairs; ++i) stored += store.set("key " + std::to_string(i), value) ? 1 : 0;
  for (int i = 0; i < kPairs; ++i) {
    const kv::Result<std::string> found = store.get("key " + std::to_string(i));
    if (found) {
      REQUIRE(*found == value);
      ++read;
    } else if (found.error() != kv::not_found) {
      REQUIRE(found.error() == std::errc::io_error);
      ++failed;
    }
  }
  CHECK(failed > 10);
  CHECK(read > 1000);
  CHECK(read + failed >= stored);
  kv::Keys keys = store.keys();
  int seen = 0;
  for (std::string_view key : keys) seen += key.starts_with("key ") ? 1 : 0;
  CHECK(seen > 1000);
  CHECK(seen < stored);
  CHECK(keys.error() == std::errc::io_error);
}

// ---- pairs ----

TEST_CASE("kv-hpp: set, get, exists and del, and what they return where there is no key") {
  kv::Store store = store_of();
  CHECK(store.get("key").error() == kv::not_found);
  CHECK(store.exists("key").error() == kv::not_found);
  CHECK(store.del("key").error() == kv::not_found);
  REQUIRE(store.set("key", "value"));
  CHECK(*store.get("key") == "value");
  CHECK(*store.exists("key") == 5);
  REQUIRE(store.set("key", "other value"));
  CHECK(store.get("key")->size() == 11);
  CHECK(*store.del("key") == 11);
  CHECK(!store.exists("key"));
  CHECK(*store.count() == 0);
}

TEST_CASE("kv-hpp: keys and values are any bytes, of any contiguous range of them") {
  kv::Store store = store_of();
  const std::vector<unsigned char> bytes{0, 255, 0, 10};
  const std::array<std::byte, 3> array{std::byte{0}, std::byte{1}, std::byte{2}};
  REQUIRE(store.set(bytes, array));
  REQUIRE(store.set(std::string("a\0b", 3), std::string_view("\0", 1)));
  REQUIRE(store.set("", ""));
  REQUIRE(store.set(kv::Bytes(), kv::Bytes("xy", 1)));  // the same key
  CHECK(*store.get(bytes) == std::string("\0\1\2", 3));
  CHECK(*store.get(std::span(bytes)) == std::string("\0\1\2", 3));
  CHECK(*store.get(std::string_view("a\0b", 3)) == std::string(1, '\0'));
  CHECK(store.get("a").error() == kv::not_found);
  CHECK(*store.get("") == "x");
  CHECK(*store.count() == 3);
}

TEST_CASE("kv-hpp: values of all lengths around the first buffer's come whole") {
  for (const std::size_t value_bytes : {0, 1, 16, 4096}) {
    kv::Options options = in_memory();
    options.value_bytes = value_bytes;
    kv::Store store = store_of(options);
    for (const std::size_t length :
         {0u, 1u, 15u, 16u, 17u, 2047u, 2048u, 4095u, 4096u, 4097u, 1u << 20}) {
      std::string value(length, ' ');
      for (std::size_t i = 0; i < length; ++i) value[i] = static_cast<char>(i * 7);
      REQUIRE(store.set("key", value));
      const kv::Result<std::string> found = store.get("key");
      REQUIRE(found);
      CHECK(*found == value);
      CHECK(found->capacity() <= 2 * length + 16);  // no buffer's worth of memory for a byte
    }
  }
}

TEST_CASE("kv-hpp: a value that grows between two reads comes whole, the old or a new one") {
  kv::Options options = in_memory();
  options.value_bytes = 1;
  kv::Store store = store_of(options);
  REQUIRE(store.set("key", std::string(10, 'a')));
  std::atomic<bool> end{false};
  std::thread writer([&] {
    for (std::size_t i = 0; !end; ++i) {
      const std::size_t length = 10 + i * 37 % 5000;
      if (!store.set("key", std::string(length, static_cast<char>('a' + length % 26)))) break;
    }
  });
  int wrong = 0;
  for (int i = 0; i < 20'000; ++i) {
    const kv::Result<std::string> value = store.get("key");
    const char letter =
        value && value->size() > 10 ? static_cast<char>('a' + value->size() % 26) : 'a';
    if (!value || value->size() < 10)
      ++wrong;
    else if (value->size() > 10 && *value != std::string(value->size(), letter))
      ++wrong;
  }
  end = true;
  writer.join();
  CHECK(wrong == 0);
}

TEST_CASE("kv-hpp: part of a value into the caller's buffer, with the length of all of it") {
  kv::Store store = store_of();
  REQUIRE(store.set("key", "0123456789"));
  char buffer[5] = "....";
  const std::span<std::byte> room = std::as_writable_bytes(std::span(buffer, 4));
  CHECK(*store.get("key", room) == 10);
  CHECK(std::string(buffer) == "0123");
  CHECK(*store.get("key", room, 8) == 10);
  CHECK(std::string(buffer) == "8923");
  CHECK(*store.get("key", room, 11) == 10);
  CHECK(*store.get("key", {}, 0) == 10);
  CHECK(store.get("none", room).error() == kv::not_found);
}

// ---- objects ----

TEST_CASE("kv-hpp: a store that was closed or moved from answers EINVAL") {
  kv::Store store = store_of();
  REQUIRE(store.set("key", "value"));
  kv::Store other = std::move(store);
  CHECK(other);
  CHECK(!store);  // NOLINT(bugprone-use-after-move): what this is about
  CHECK(store.handle() == nullptr);
  CHECK(*other.get("key") == "value");
  store = std::move(other);
  CHECK(*store.get("key") == "value");
  kv::Store& itself = store;
  store = std::move(itself);
  CHECK(*store.get("key") == "value");
  const kv::Store* closed[] = {&store, &other};  // NOLINT(bugprone-use-after-move): likewise
  REQUIRE(store.close());
  CHECK(code(store.close()) == EINVAL);
  for (const kv::Store* one : closed) {
    CHECK(code(one->get("key")) == EINVAL);
    CHECK(code(one->get("key", std::span<std::byte>())) == EINVAL);
    CHECK(code(one->exists("key")) == EINVAL);
    CHECK(code(one->count()) == EINVAL);
    CHECK(code(one->stats()) == EINVAL);
    CHECK(code(one->random_key()) == EINVAL);
    kv::Keys keys = one->keys();
    CHECK(keys.begin() == keys.end());
    CHECK(keys.error() == std::errc::invalid_argument);
  }
  CHECK(code(store.set("key", "value")) == EINVAL);
  CHECK(code(store.del("key")) == EINVAL);
  CHECK(code(store.flush()) == EINVAL);
}

TEST_CASE("kv-hpp: moving into a store closes the one that was there") {
  kv::Store store = store_of(), other = store_of();
  ARK* first = store.handle();
  REQUIRE(other.set("key", "value"));
  store = std::move(other);
  CHECK(*store.get("key") == "value");
  int64_t count = 0;
  CHECK(ark_count(first, &count) == EINVAL);
}

TEST_CASE("kv-hpp: a result has a value or an error") {
  kv::Result<std::string> value(std::string("text")), none(std::make_error_code(kv::not_found));
  CHECK((value.has_value() && value && !value.error()));
  CHECK((!none.has_value() && !none && none.error() == kv::not_found));
  CHECK((*value == "text" && value.value() == "text" && value->size() == 4));
  CHECK(value.value_or("other") == "text");
  CHECK(none.value_or("other") == "other");
  const std::string moved = *std::move(value);
  CHECK(moved == "text");
  kv::Result<void> done, failed(std::make_error_code(std::errc::io_error));
  CHECK((done && !done.error()));
  done.value();
  CHECK((!failed && failed.error() == std::errc::io_error));
  CHECK(ends([&] { (void)none.value(); }) == -SIGABRT);
  CHECK(ends([&] { failed.value(); }) == -SIGABRT);
}

TEST_CASE("kv-hpp: counts, a random key, flush of a scratch store") {
  kv::Store store = store_of();
  CHECK(store.random_key().error() == kv::not_found);
  REQUIRE(store.set("short", "12345"));
  CHECK(*store.random_key() == "short");
  REQUIRE(store.del("short"));
  const std::string key(1000, 'k');
  REQUIRE(store.set(key, "12345"));
  CHECK(*store.random_key() == key);
  CHECK(*store.count() == 1);
  const kv::Result<kv::Stats> stats = store.stats();
  REQUIRE(stats);
  CHECK(stats->pair_bytes == 1005);
  CHECK(stats->in_use_bytes >= stats->pair_bytes);
  CHECK(stats->allocated_bytes >= stats->in_use_bytes);
  CHECK(stats->operations >= 4);
  CHECK(stats->device_ios == 0);
  CHECK(store.flush());
  CHECK(*store.count() == 1);  // flush is no clear
  REQUIRE(store.set("short", "12345"));
  std::set<std::string> seen;
  for (int i = 0; i < 4; ++i) seen.insert(*store.random_key());
  CHECK(seen == std::set<std::string>{"short", key});
  CHECK(store.clear());
  CHECK(*store.count() == 0);
  CHECK(store.random_key().error() == kv::not_found);
}

// ---- keys ----

TEST_CASE("kv-hpp: every key comes once, also those that are longer than a batch") {
  kv::Store store = store_of();
  CHECK(keys_of(store).empty());
  std::set<std::string> wanted;
  for (const std::size_t length : {0u, 1u, 65'527u, 65'528u, 65'529u, 65'536u, 65'537u, 300'000u}) {
    wanted.emplace(length, 'k');
    REQUIRE(store.set(std::string(length, 'k'), "v"));
    CHECK(keys_of(store) == wanted);
  }
  for (int i = 0; i < 20'000; ++i) {
    wanted.insert("key " + std::to_string(i));
    REQUIRE(store.set("key " + std::to_string(i), "v"));
  }
  CHECK(keys_of(store) == wanted);
}

TEST_CASE("kv-hpp: a range of keys may be left, moved and taken apart by views") {
  kv::Store store = store_of();
  for (int i = 0; i < 10'000; ++i) REQUIRE(store.set(std::to_string(i), "v"));
  for (int i = 0; i < 70'000; ++i) {  // more than there are handles
    for ([[maybe_unused]] std::string_view key : store.keys()) break;
  }
  CHECK(std::ranges::distance(store.keys() | std::views::take(10)) == 10);
  const auto even = [](std::string_view key) { return (key.back() - '0') % 2 == 0; };
  CHECK(std::ranges::count_if(store.keys(), even) == 5000);
  std::set<std::string> found;
  kv::Keys first = store.keys();
  auto at = first.begin();
  for (int i = 0; i < 100; ++i, ++at) found.emplace(*at);
  kv::Keys rest = std::move(first);
  for (std::string_view key : rest)
    REQUIRE(found.emplace(key).second);  // goes on where the other was
  CHECK(found.size() == 10'000);
  rest = store.keys();
  CHECK(std::ranges::distance(rest) == 10'000);
  CHECK(rest.begin() == rest.end());  // a single pass
  kv::Keys of_closed = store.keys();
  (void)of_closed.begin();
  REQUIRE(store.close());
  CHECK(std::ranges::distance(of_closed) < 10'000);  // what its batch still has
  CHECK(of_closed.error() == std::errc::invalid_argument);
}

TEST_CASE("kv-hpp: the loop itself may remove and store") {
  kv::Store store = store_of();
  for (int i = 0; i < 10'000; ++i) REQUIRE(store.set("old " + std::to_string(i), "v"));
  int removed = 0;
  for (std::string_view key : store.keys()) {
    if (!key.starts_with("old ")) continue;
    REQUIRE(store.set("new" + std::string(key.substr(3)), "v"));
    REQUIRE(store.del(key));
    ++removed;
  }
  CHECK(removed == 10'000);
  for (const std::string& key : keys_of(store)) REQUIRE(key.starts_with("new "));
  CHECK(*store.count() == 10'000);
}
