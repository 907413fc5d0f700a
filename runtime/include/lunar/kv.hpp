// SPDX-License-Identifier: Apache-2.0
// lunar/kv.hpp - a key/value store for C++20. Header only, over libarkdb (link with -larkdb).
//
//   auto opened = lunar::kv::Store::open({.place = "/dev/sdb", .dram_bytes = 4ull << 30});
//   if (!opened) return opened.error().value();
//   lunar::kv::Store& store = *opened;
//   store.set("key", "value");                                               blocking
//   lunar::kv::Result<std::string> value = store.get("key");
//   store.async_get("key", [](lunar::kv::Result<std::string> value) {});
//   lunar::kv::Result<std::string> later = co_await store.async_get("key");
//   for (std::string_view key : store.keys()) ...
//
// Units: bytes. Keys and values are arbitrary bytes, of length 0 to 100 GiB.
// Errors: calls return a Result, whose error() is an errno value (std::generic_category). In
// addition to those that a call lists: EINVAL (the store is not open, or was moved from; a key or
// value is too long), ENOMEM, EIO, EBADMSG and other errors of the device. Damaged data are never
// returned. The header itself throws nothing, and compiles without exceptions.
// Threads: any thread may use any call at any time; only open, close, moves and destruction must
// not overlap other calls on the same object. Calls on one key take effect one after the other. No
// call is async-signal-safe. Fork: stores are closed in the child. (Only ark_fork() keeps one open:
// that of a store in memory, by its handle().)
//
// Asynchronous calls copy the key and the value before they return, and own the copies. They run on
// threads of the store (Options::threads): callbacks are called there, and coroutines resume there,
// with all signals blocked and 8 MiB of stack.
//   - EAGAIN: Options::asyncs calls are in progress. In a callback, or in a coroutine that was
//     resumed, the first call of each resumption never fails with EAGAIN.
//   - An exception that leaves a callback or a coroutine ends the program (std::terminate), because
//     there is no caller to catch it.
//   - A coroutine that waits for a call must not be destroyed.
//   - Destruction and close() of a store wait for the calls in progress: each of them calls back,
//     or resumes its coroutine, with its result. Calls that these start meanwhile fail with EINVAL.
//     A coroutine that refers to a store may therefore be suspended in a call when the store is
//     destroyed; it must not use the store afterwards.
#ifndef LUNAR_KV_HPP
#define LUNAR_KV_HPP

#include <lunar/kv.h>

#include <atomic>
#include <cerrno>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

// v0: keeps the symbols apart from those of the engine in libarkdb, and from those of later
// versions of this header.
namespace lunar::kv::inline v0 {

// Errors that a program is likely to compare error() with.
inline constexpr std::errc not_found = std::errc::no_such_file_or_directory;  // no such key
inline constexpr std::errc no_space = std::errc::no_space_on_device;          // nothing was changed
inline constexpr std::errc try_again = std::errc::resource_unavailable_try_again;  // see above

// A value or an error, like C++23's std::expected. pre of value(), * and ->: there is a value
// (otherwise std::terminate).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}              // NOLINT(google-explicit-constructor)
  Result(std::error_code error) noexcept : error_(error) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  std::error_code error() const noexcept { return error_; }  // false if there is a value

  T& value() & noexcept { return checked(*this); }
  const T& value() const& noexcept { return checked(*this); }
  T&& value() && noexcept { return std::move(checked(*this)); }
  T& operator*() & noexcept { return checked(*this); }
  const T& operator*() const& noexcept { return checked(*this); }
  T&& operator*() && noexcept { return std::move(checked(*this)); }
  T* operator->() noexcept { return &checked(*this); }
  const T* operator->() const noexcept { return &checked(*this); }
  template <class U>
  T value_or(U&& otherwise) const& {
    return value_ ? *value_ : static_cast<T>(std::forward<U>(otherwise));
  }
  template <class U>
  T value_or(U&& otherwise) && {
    return value_ ? std::move(*value_) : static_cast<T>(std::forward<U>(otherwise));
  }

 private:
  template <class Self>
  static auto& checked(Self& self) noexcept {
    if (!self.value_.has_value()) std::terminate();
    return *self.value_;
  }
  std::optional<T> value_;
  std::error_code error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() noexcept = default;
  Result(std::error_code error) noexcept : error_(error) {}  // NOLINT(google-explicit-constructor)
  bool has_value() const noexcept { return !error_; }
  explicit operator bool() const noexcept { return has_value(); }
  std::error_code error() const noexcept { return error_; }
  void value() const noexcept {
    if (error_) std::terminate();
  }

 private:
  std::error_code error_;
};

// A view of bytes, which owns nothing. Made from a string literal or C string (up to its NUL), a
// string, or a span, vector or other contiguous range of one-byte elements.
class Bytes {
 public:
  constexpr Bytes() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr Bytes(const char* text) noexcept : Bytes(std::string_view(text)) {}
  constexpr Bytes(const void* data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <std::ranges::contiguous_range Range>
    requires(std::ranges::sized_range<Range> && !std::is_array_v<std::remove_cvref_t<Range>> &&
             sizeof(std::ranges::range_value_t<Range>) == 1 &&
             std::is_trivially_copyable_v<std::ranges::range_value_t<Range>>)
  constexpr Bytes(const Range& range) noexcept  // NOLINT(google-explicit-constructor)
      : data_(std::ranges::data(range)), size_(std::ranges::size(range)) {}

  constexpr const void* data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
};

enum class Contents {
  // A scratch store: nothing survives it.
  scratch,
  // A persistent store: flush() and close() make the content durable. Overwrites a persistent store
  // that exists there.
  create,
  // As create, but starts with the content that is there, or empty if the file or device is blank.
  keep,
  // A persistent store that exists (otherwise ENOENT); only flush() makes changes durable.
  must_exist,
};

// When a change of a store with Contents::create or ::keep is durable (EINVAL for other stores).
enum class Durability : std::uint32_t {
  // LUNAR_KV_DURABILITY, otherwise flush.
  by_default = 0,
  // With the next flush() or close().
  flush = LUNAR_KV_DURABLE_FLUSH,
  // When the call returns, calls back or resumes. Concurrent calls share a write.
  group = LUNAR_KV_DURABLE_GROUP,
  // The same, but a call does not wait for others.
  each = LUNAR_KV_DURABLE_EACH,
};

struct Options {
  std::string place;  // file, block device, directory, URI: see ark_create(3). Empty: in memory
  // DRAM that the store may use, a hard limit. 0: LUNAR_KV_DRAM, otherwise see ark_create(3)
  std::uint64_t dram_bytes = 0;
  // In memory, a limit for the pairs; otherwise the space to take of a file that grows or for a
  // virtual LUN. 0: LUNAR_KV_SIZE, otherwise see ark_create(3)
  std::uint64_t size_bytes = 0;
  Contents contents = Contents::scratch;
  Durability durability = Durability::by_default;
  std::uint64_t flags = 0;          // further ARK_KV_... flags
  std::uint64_t expected_keys = 0;  // a hint
  unsigned threads = 0;  // for asynchronous calls, each started when it is first needed. 0: 20
  unsigned asyncs = 0;   // maximum number of asynchronous calls in progress. 0: 8192
  // get() and async_get() read values up to this length once, longer ones twice
  std::size_t value_bytes = 4096;
};

struct Stats {
  std::uint64_t pair_bytes;       // keys and values
  std::uint64_t in_use_bytes;     // bytes of the log that their records take
  std::uint64_t allocated_bytes;  // bytes that the log can hold
  std::uint64_t operations;       // so far, including steps of iterators
  std::uint64_t device_ios;       // reads and writes of the device so far
};

namespace detail {

inline std::error_code error_of(int code) noexcept { return {code, std::generic_category()}; }
// The C interface takes keys by void*, but does not write to them.
inline void* pointer_of(const void* data) noexcept { return const_cast<void*>(data); }

// text.resize() without exceptions. Returns false if there is no memory.
inline bool resize(std::string& text, std::uint64_t bytes) noexcept {
#if defined(__cpp_exceptions)
  try {
    text.resize(bytes);
  } catch (...) { return false; }
#else
  text.resize(bytes);
#endif
  return true;
}

inline bool copy(std::string& to, Bytes from) noexcept {
  if (!resize(to, from.size())) return false;
  if (from.size() != 0) std::memcpy(to.data(), from.data(), from.size());
  return true;
}

// Shortens a value to its length after it was read into a larger buffer.
inline void cut(std::string& value, std::uint64_t length) noexcept {
  value.resize(length);
  if (value.capacity() > 2 * length) value.shrink_to_fit();
}

using Callback = void (*)(int error, std::uint64_t tag, std::int64_t length);

enum class Call : unsigned char { get, set, del, exists };

// An asynchronous call: owns its key and its value or buffer.
struct Request {
  ARK* ark = nullptr;
  Call call = Call::get;
  int error = 0;  // set before issue(): the call cannot start
  std::int64_t length = 0;
  std::string key, value;

  Request(ARK* ark_, Call call_, Bytes key_, Bytes value_, std::size_t room) noexcept
      : ark(ark_), call(call_) {
    const bool filled =
        copy(key, key_) && (call == Call::get ? resize(value, room) : copy(value, value_));
    if (!filled) error = ENOMEM;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // Returns 0 if `back` will be called with `tag` once, or was called already; *this then belongs
  // to the callback.
  int issue(Callback back, void* tag) noexcept {
    const auto word = reinterpret_cast<std::uintptr_t>(tag);
    if (error != 0) return error;
    switch (call) {
      case Call::get:
        return ark_get_async_cb(ark, key.size(), key.data(), value.size(), value.data(), 0, back,
                                word);
      case Call::set:
        return ark_set_async_cb(ark, key.size(), key.data(), value.size(), value.data(), back,
                                word);
      case Call::del:
        return ark_del_async_cb(ark, key.size(), key.data(), back, word);
      case Call::exists:
        return ark_exists_async_cb(ark, key.size(), key.data(), back, word);
    }
    return EINVAL;
  }

  // Called in the callback. Returns false if the value is longer than the buffer and is being read
  // again; *this then belongs to the next callback.
  bool finish(int error_, std::int64_t length_, Callback back, void* tag) noexcept {
    error = error_;
    length = length_;
    if (error != 0 || call != Call::get || static_cast<std::uint64_t>(length) <= value.size())
      return true;
    if (!resize(value, static_cast<std::uint64_t>(length))) {
      error = ENOMEM;
      return true;
    }
    const int status = issue(back, tag);
    if (status == 0) return false;
    error = status;
    return true;
  }

  template <class T>
  Result<T> take() noexcept {
    ark = nullptr;
    if (error != 0) return error_of(error);
    if constexpr (std::is_void_v<T>) {
      return {};
    } else if constexpr (std::is_same_v<T, std::string>) {
      cut(value, static_cast<std::uint64_t>(length));
      return std::move(value);
    } else {
      return static_cast<T>(length);
    }
  }
};

// A call with its callback; on the heap from issue() to the end of the callback.
template <class T, class Function>
struct Pending {
  Request request;
  Function function;

  template <class F>
  Pending(ARK* ark, Call call, Bytes key, Bytes value, std::size_t room, F&& function_)
      : request(ark, call, key, value, room), function(std::forward<F>(function_)) {}

  // NOLINTNEXTLINE(bugprone-exception-escape): a callback that throws ends the program
  static void done(int error, std::uint64_t tag, std::int64_t length) noexcept {
    auto* pending = reinterpret_cast<Pending*>(static_cast<std::uintptr_t>(tag));
    if (!pending->request.finish(error, length, done, pending)) return;
    std::unique_ptr<Pending> self(pending);
    Result<T> result = self->request.template take<T>();
    Function callback = std::move(self->function);
    self.reset();
    std::invoke(std::move(callback), std::move(result));
  }
};

}  // namespace detail

// The result type of the async_... calls without a callback. The call starts with co_await, which
// yields a Result<T>. Await it at most once; an Awaitable that is not awaited does nothing.
template <class T>
class [[nodiscard]] Awaitable {
 public:
  bool await_ready() const noexcept { return request_.error != 0; }
  bool await_suspend(std::coroutine_handle<> waiting) noexcept {
    waiting_ = waiting;
    const int status = request_.issue(done, this);
    if (status == 0) return true;  // *this may be gone
    request_.error = status;
    return false;
  }
  Result<T> await_resume() noexcept { return request_.template take<T>(); }

  Awaitable(const Awaitable&) = delete;
  Awaitable& operator=(const Awaitable&) = delete;

 private:
  friend class Store;
  Awaitable(ARK* ark, detail::Call call, Bytes key, Bytes value, std::size_t room) noexcept
      : request_(ark, call, key, value, room) {}
  static void done(int error, std::uint64_t tag, std::int64_t length) noexcept {
    auto* self = reinterpret_cast<Awaitable*>(static_cast<std::uintptr_t>(tag));
    if (self->request_.finish(error, length, done, self)) self->waiting_.resume();
  }
  detail::Request request_;
  std::coroutine_handle<> waiting_;
};

// The keys of a store, an input range. Keys come in no particular order. A key that exists during
// the whole iteration comes once; others may or may not come, and one that is deleted and set again
// may come twice. Writers are not blocked, and the loop itself may write. A key is a
// std::string_view that is valid until the iterator advances. Keys that cannot be read are skipped;
// after the loop, error() returns the first error. For one thread at a time. Ends before its store,
// or with it.
class Keys : public std::ranges::view_interface<Keys> {
 public:
  class Iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;
    Iterator() noexcept = default;
    std::string_view operator*() const noexcept { return keys_->key_; }
    Iterator& operator++() noexcept {
      keys_->advance();
      return *this;
    }
    void operator++(int) noexcept { keys_->advance(); }
    bool operator==(std::default_sentinel_t) const noexcept { return keys_->ended_; }

   private:
    friend class Keys;
    explicit Iterator(Keys* keys) noexcept : keys_(keys) {}
    Keys* keys_ = nullptr;
  };

  // Starts the iteration. A second call continues where the first one is.
  Iterator begin() noexcept {
    if (!ended_ && !walk_) start();
    return Iterator(this);
  }
  std::default_sentinel_t end() const noexcept { return {}; }
  std::error_code error() const noexcept { return detail::error_of(error_); }

 private:
  friend class Store;
  static constexpr std::uint64_t kBatchBytes = 64 * 1024;
  explicit Keys(ARK* ark) noexcept : ark_(ark) {}

  void stop() noexcept {
    walk_.reset();
    ended_ = true;
  }
  void note(int error) noexcept {
    if (error_ == 0) error_ = error;
  }
  // ark_first() truncates a key to the buffer; in that case try again with a larger one.
  void start() noexcept {
    std::int64_t length = 0;
    left_ = 0;
    std::uint64_t room = kBatchBytes;
    for (;;) {
      if (!detail::resize(batch_, room)) {
        note(ENOMEM);
        return stop();
      }
      walk_.reset(ark_first(ark_, batch_.size(), &length, batch_.data()));
      if (!walk_) {
        if (errno != ENOENT) note(errno);
        return stop();
      }
      if (static_cast<std::uint64_t>(length) <= room) break;
      room = static_cast<std::uint64_t>(length);
    }
    key_ = std::string_view(batch_.data(), static_cast<std::size_t>(length));
  }
  void advance() noexcept {
    while (left_ == 0 && !ended_) fill();
    if (ended_) return;
    std::uint64_t length;
    std::memcpy(&length, batch_.data() + at_, sizeof length);
    key_ = std::string_view(batch_.data() + at_ + sizeof length, static_cast<std::size_t>(length));
    at_ += sizeof length + length;
    --left_;
  }
  // Reads the next batch, into a buffer that its first key fits into; or reaches the end; or skips
  // a key.
  void fill() noexcept {
    at_ = 0;
    const int status = ark_nextN(walk_.get(), batch_.size(), batch_.data(), &left_);
    if (status == 0) return;
    left_ = 0;
    if (status == ENOSPC && detail::resize(batch_, batch_.size() * 2)) return;
    if (status == ENOENT) {
      (void)walk_.release();  // ark_nextN freed it
      return stop();
    }
    note(status == ENOSPC ? ENOMEM : status);
    if (status == EINVAL || status == ENOMEM || status == ENOSPC) stop();
  }

  struct End {
    // EINVAL: the iterator was freed with its store
    void operator()(ARI* walk) const noexcept { (void)lunar_kv_end(walk); }
  };

  ARK* ark_;
  std::unique_ptr<ARI, End> walk_;
  bool ended_ = false;
  std::int64_t left_ = 0;  // remaining keys of the batch
  std::uint64_t at_ = 0;   // offset of the next one in batch_
  int error_ = 0;
  std::string batch_;  // keye_t one after the other
  std::string_view key_;
};

// A store, which is closed with the object. Move-only; a store that was moved from is not open.
class Store {
 public:
  // Errors as for ark_create(3). A line on standard error says why.
  static Result<Store> open(const Options& options = {}) noexcept {
    lunar_kv_options raw{};
    raw.struct_size = sizeof raw;
    raw.place = options.place.c_str();
    raw.flags = options.flags | flags_of(options.contents);
    raw.dram_bytes = options.dram_bytes;
    raw.size_bytes = options.size_bytes;
    raw.expected_keys = options.expected_keys;
    raw.threads = options.threads;
    raw.asyncs = options.asyncs;
    raw.durability = static_cast<std::uint32_t>(options.durability);
    // Makes `asyncs` the only limit.
    raw.queue_depth = options.asyncs != 0 ? options.asyncs : 8192;
    ARK* ark = nullptr;
    if (const int status = lunar_kv_open(&raw, &ark); status != 0) return detail::error_of(status);
    return Store(ark, options.value_bytes,
                 (raw.flags & (ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD)) != 0);
  }

  // Closes the store, as close() does; errors are only reported by a line on standard error. If it
  // runs on a thread of the store itself (in a callback, or in a coroutine that was resumed there)
  // it ends the program (std::terminate), as the destructor of a std::thread that was not joined
  // does.
  ~Store() { reset(); }
  Store(Store&& other) noexcept
      : ark_(std::exchange(other.ark_, nullptr)),
        value_bytes_(other.value_bytes_),
        persistent_(other.persistent_) {}
  Store& operator=(Store&& other) noexcept {
    if (this == &other) return *this;
    reset();
    ark_ = std::exchange(other.ark_, nullptr);
    value_bytes_ = other.value_bytes_;
    persistent_ = other.persistent_;
    return *this;
  }

  explicit operator bool() const noexcept { return ark_ != nullptr; }
  // For the calls of arkdb.h; remains owned by this object.
  ARK* handle() const noexcept { return ark_; }

  // Waits for the calls in progress, and closes the store. With Contents::create and ::keep it
  // first makes the content durable; if that fails (ENOSPC, EIO and others), the store is closed
  // all the same, and the content that was durable before remains. EDEADLK: called on a thread of
  // the store itself; the store stays open.
  Result<void> close() noexcept {
    const int status = ark_delete(ark_);
    if (status != EDEADLK) ark_ = nullptr;
    return result_of(status);
  }

  // ---- blocking ----

  Result<void> set(Bytes key, Bytes value) noexcept {
    std::int64_t length = 0;
    return result_of(
        ark_set(ark_, key.size(), pointer(key), value.size(), pointer(value), &length));
  }
  // ENOENT
  Result<std::string> get(Bytes key) const noexcept {
    std::string value;
    std::uint64_t room = value_bytes_;
    for (;;) {
      if (!detail::resize(value, room)) return detail::error_of(ENOMEM);
      std::int64_t length = 0;
      const int status = ark_get(ark_, key.size(), pointer(key), room, value.data(), 0, &length);
      if (status != 0) return detail::error_of(status);
      if (static_cast<std::uint64_t>(length) <= room) {
        detail::cut(value, static_cast<std::uint64_t>(length));
        return value;
      }
      room = static_cast<std::uint64_t>(length);
    }
  }
  // Copies as much of the value, from `offset` on, as fits; returns the length of the whole value.
  // ENOENT
  Result<std::uint64_t> get(Bytes key, std::span<std::byte> buffer,
                            std::uint64_t offset = 0) const noexcept {
    std::int64_t length = 0;
    return length_of(
        ark_get(ark_, key.size(), pointer(key), buffer.size(), buffer.data(), offset, &length),
        length);
  }
  // Returns the length of the deleted value. ENOENT
  Result<std::uint64_t> del(Bytes key) noexcept {
    std::int64_t length = 0;
    return length_of(ark_del(ark_, key.size(), pointer(key), &length), length);
  }
  // Returns the length of the value. ENOENT
  Result<std::uint64_t> exists(Bytes key) const noexcept {
    std::int64_t length = 0;
    return length_of(ark_exists(ark_, key.size(), pointer(key), &length), length);
  }

  // ---- asynchronous, by callback ----
  // The callback is called once, with a Result. If the call returns an error (EAGAIN, ENOMEM,
  // EINVAL), it was not started, and the callback is not called.

  template <std::invocable<Result<void>> Function>
  Result<void> async_set(Bytes key, Bytes value, Function&& function) {
    return start<void>(detail::Call::set, key, value, std::forward<Function>(function));
  }
  template <std::invocable<Result<std::string>> Function>
  Result<void> async_get(Bytes key, Function&& function) {
    return start<std::string>(detail::Call::get, key, {}, std::forward<Function>(function));
  }
  template <std::invocable<Result<std::uint64_t>> Function>
  Result<void> async_del(Bytes key, Function&& function) {
    return start<std::uint64_t>(detail::Call::del, key, {}, std::forward<Function>(function));
  }
  template <std::invocable<Result<std::uint64_t>> Function>
  Result<void> async_exists(Bytes key, Function&& function) {
    return start<std::uint64_t>(detail::Call::exists, key, {}, std::forward<Function>(function));
  }

  // ---- asynchronous, to be awaited ----
  // co_await yields the Result that the blocking call would return, or EAGAIN.

  Awaitable<void> async_set(Bytes key, Bytes value) noexcept {
    return prepare<void>(detail::Call::set, key, value);
  }
  Awaitable<std::string> async_get(Bytes key) noexcept {
    return prepare<std::string>(detail::Call::get, key, {});
  }
  Awaitable<std::uint64_t> async_del(Bytes key) noexcept {
    return prepare<std::uint64_t>(detail::Call::del, key, {});
  }
  Awaitable<std::uint64_t> async_exists(Bytes key) noexcept {
    return prepare<std::uint64_t>(detail::Call::exists, key, {});
  }

  // ---- the whole store ----

  Keys keys() const noexcept { return Keys(ark_); }
  // Successive calls return each key once, in the order of the keys' hashes, and then begin again.
  // ENOENT: the store is empty
  Result<std::string> random_key() const noexcept {
    std::string key;
    std::uint64_t room = key_room_.load(std::memory_order_relaxed);
    for (;;) {
      if (!detail::resize(key, room)) return detail::error_of(ENOMEM);
      std::uint64_t length = 0;
      if (const int status = ark_random(ark_, room, &length, key.data()); status != 0)
        return detail::error_of(status);
      if (length <= room) {
        detail::cut(key, length);
        return key;
      }
      room = length;  // for the next key, and for this one in the next round
      key_room_.store(room, std::memory_order_relaxed);
    }
  }
  Result<std::uint64_t> count() const noexcept {
    std::int64_t keys = 0;
    return length_of(ark_count(ark_, &keys), keys);
  }
  Result<Stats> stats() const noexcept {
    Stats out{};
    int status = ark_actual(ark_, &out.pair_bytes);
    if (status == 0) status = ark_inuse(ark_, &out.in_use_bytes);
    if (status == 0) status = ark_allocated(ark_, &out.allocated_bytes);
    if (status == 0) status = ark_stats(ark_, &out.operations, &out.device_ios);
    if (status != 0) return detail::error_of(status);
    return out;
  }
  // Makes the content of a persistent store durable: the next open finds it after any crash.
  // Writers are not blocked meanwhile. On a scratch store it does nothing.
  Result<void> flush() noexcept {
    return ark_ != nullptr && !persistent_ ? Result<void>() : result_of(ark_flush(ark_));
  }
  // Deletes all pairs, as one change. EOPNOTSUPP: the store is persistent
  Result<void> clear() noexcept { return result_of(persistent_ ? EOPNOTSUPP : ark_flush(ark_)); }

 private:
  Store(ARK* ark, std::size_t value_bytes, bool persistent) noexcept
      : ark_(ark), value_bytes_(value_bytes), persistent_(persistent) {}

  static std::uint64_t flags_of(Contents contents) noexcept {
    switch (contents) {
      case Contents::scratch:
        return 0;
      case Contents::create:
        return ARK_KV_PERSIST_STORE;
      case Contents::keep:
        return ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD;
      case Contents::must_exist:
        return ARK_KV_PERSIST_LOAD;
    }
    return 0;
  }
  static void* pointer(Bytes bytes) noexcept { return detail::pointer_of(bytes.data()); }
  static Result<void> result_of(int status) noexcept {
    return status == 0 ? Result<void>() : Result<void>(detail::error_of(status));
  }
  static Result<std::uint64_t> length_of(int status, const std::int64_t& length) noexcept {
    if (status != 0) return detail::error_of(status);
    return static_cast<std::uint64_t>(length);
  }
  void reset() noexcept {
    if (ark_ != nullptr && ark_delete(ark_) == EDEADLK) std::terminate();
    ark_ = nullptr;
  }

  template <class T>
  Awaitable<T> prepare(detail::Call call, Bytes key, Bytes value) const noexcept {
    return Awaitable<T>(ark_, call, key, value, value_bytes_);
  }
  template <class T, class Function>
  Result<void> start(detail::Call call, Bytes key, Bytes value, Function&& function) const {
    using Pending = detail::Pending<T, std::decay_t<Function>>;
    std::unique_ptr<Pending> pending(new (std::nothrow) Pending(
        ark_, call, key, value, value_bytes_, std::forward<Function>(function)));
    if (!pending) return detail::error_of(ENOMEM);
    const int status = pending->request.issue(Pending::done, pending.get());
    if (status == 0) (void)pending.release();  // owned by the callback, which may have run already
    return result_of(status);
  }

  ARK* ark_ = nullptr;
  std::size_t value_bytes_ = 0;
  bool persistent_ = false;
  mutable std::atomic<std::uint64_t> key_room_{256};
};

}  // namespace lunar::kv::inline v0
#endif  // LUNAR_KV_HPP
