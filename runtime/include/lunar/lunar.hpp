// SPDX-License-Identifier: Apache-2.0
// lunar.hpp - memory that extends onto a LUN, for C++20. Header only, over lunar.h; the head of
// that file describes units, errors, threads and forks, which are the same here.
//
//   lunar::Tier tier({.dram_bytes = 256 << 20});          // or LUNAR_* environment and config
//                                                         file: lunar::Tier tier;
//   std::map<Key, Value, std::less<>, lunar::allocator<std::pair<const Key, Value>>> map;
//   std::pmr::vector<int> numbers(lunar::resource());
//   lunar::Region region(8ull << 30);
//   std::span<double> matrix = region.as<double>();
//   lunar::prefetch(matrix.subspan(row * n, n));
//
// Errors: constructors and stats() throw lunar::Error (a std::runtime_error whose code() is the
// errno value); allocation throws std::bad_alloc, as containers expect; hints return 0 or a
// negative errno value, as in lunar.h.
#ifndef LUNAR_LUNAR_HPP
#define LUNAR_LUNAR_HPP

#include <lunar/lunar.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace lunar {

// Thrown by constructors and stats(). code(): a positive errno value; what(): one line, which says
// what to do if that is known.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

namespace detail {
[[noreturn]] inline void raise(int code, const char* what) {
  std::string text(what);
  text += ": ";
  text += std::generic_category().message(code);
  throw Error(code, text);
}
}  // namespace detail

// The members of lunar_config. Zeros and empty strings select the documented defaults.
struct Config {
  std::uint64_t dram_bytes = 0;
  std::uint64_t lun_bytes = 0;
  std::string lun;      // PATH, directory, block device or URI
  std::string options;  // "name=value,..."
};

// The tier of this process, for the lifetime of the object. If the tier was started already (by
// LD_PRELOAD, or an earlier Tier), the process uses that one, and this object owns nothing. The
// destructor does nothing while memory of the tier is in use.
class Tier {
 public:
  explicit Tier(const Config& config = {}) {
    lunar_config raw{};
    raw.struct_size = sizeof(raw);
    raw.dram_bytes = config.dram_bytes;
    raw.lun_bytes = config.lun_bytes;
    raw.lun = config.lun.empty() ? nullptr : config.lun.c_str();
    raw.options = config.options.empty() ? nullptr : config.options.c_str();
    int rc = lunar_init(&raw);
    if (rc == 0)
      owner_ = true;
    else if (rc != -EEXIST)
      throw Error(-rc, lunar_error());
  }
  ~Tier() {
    if (owner_) (void)lunar_shutdown();
  }
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  bool owner() const noexcept { return owner_; }

 private:
  bool owner_ = false;
};

// A page-granular range of tiered memory. Move-only. bytes() is rounded up to pages.
class Region {
 public:
  Region() noexcept = default;
  explicit Region(std::size_t bytes) {
    std::size_t page = lunar_page_bytes();
    address_ = lunar_region_create(bytes);
    if (address_ == nullptr) detail::raise(errno, "lunar::Region");
    bytes_ = (bytes + page - 1) / page * page;
  }
  ~Region() { reset(); }
  Region(Region&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Region& operator=(Region&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }

  void reset() noexcept {
    if (address_ != nullptr) (void)lunar_region_destroy(address_, bytes_);
    address_ = nullptr;
    bytes_ = 0;
  }
  void* data() const noexcept { return address_; }
  std::size_t bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return address_ != nullptr; }

  // The range as elements. They are zero-initialised, so T must be valid as zero bytes and need no
  // destructor.
  template <class T>
  std::span<T> as() const noexcept {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                  "lunar::Region::as: trivial types only");
    return {static_cast<T*>(address_), bytes_ / sizeof(T)};
  }
  std::span<std::byte> span() const noexcept { return as<std::byte>(); }

  int touch() const noexcept { return lunar_touch(address_, bytes_); }
  int advise(lunar_advice advice) const noexcept { return lunar_advise(address_, bytes_, advice); }
  int discard() const noexcept { return lunar_discard(address_, bytes_); }
  std::int64_t evict() const noexcept { return lunar_evict(address_, bytes_); }

 private:
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

// Standard allocator, for containers in tiered memory. Stateless; all of them are equal.
template <class T>
class allocator {
 public:
  using value_type = T;
  using is_always_equal = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;

  allocator() noexcept = default;
  template <class U>
  // NOLINTNEXTLINE(google-explicit-constructor): allocators convert
  allocator(const allocator<U>&) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw std::bad_array_new_length();
    void* memory = alignof(T) > alignof(std::max_align_t)
                       ? lunar_aligned_alloc(alignof(T), count * sizeof(T))
                       : lunar_malloc(count * sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* pointer, std::size_t) noexcept { lunar_free(pointer); }

  template <class U>
  bool operator==(const allocator<U>&) const noexcept {
    return true;
  }
};

// std::pmr resource in tiered memory. Thread-safe. All of them are equal.
class memory_resource : public std::pmr::memory_resource {
 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* memory = alignment > alignof(std::max_align_t) ? lunar_aligned_alloc(alignment, bytes)
                                                         : lunar_malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  void do_deallocate(void* pointer, std::size_t, std::size_t) override { lunar_free(pointer); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return dynamic_cast<const lunar::memory_resource*>(&other) != nullptr;
  }
};

// A shared resource for the whole process; it is never destroyed.
inline std::pmr::memory_resource* resource() noexcept {
  alignas(memory_resource) static unsigned char place[sizeof(memory_resource)];
  static memory_resource* shared = ::new (static_cast<void*>(place)) memory_resource;
  return shared;
}

// Keeps a range resident during its lifetime. Pins do not nest: if two overlap, the first to be
// destroyed unpins.
class ScopedPin {
 public:
  ScopedPin(const void* address, std::size_t bytes) : address_(address), bytes_(bytes) {
    int rc = lunar_pin(address, bytes);
    if (rc < 0) detail::raise(-rc, "lunar::ScopedPin");
  }
  template <class T, std::size_t N>
  explicit ScopedPin(std::span<T, N> range) : ScopedPin(range.data(), range.size_bytes()) {}
  ~ScopedPin() {
    if (bytes_ != 0) (void)lunar_unpin(address_, bytes_);
  }
  ScopedPin(ScopedPin&& other) noexcept
      : address_(other.address_), bytes_(std::exchange(other.bytes_, 0)) {}
  ScopedPin(const ScopedPin&) = delete;
  ScopedPin& operator=(const ScopedPin&) = delete;
  ScopedPin& operator=(ScopedPin&&) = delete;

 private:
  const void* address_;
  std::size_t bytes_;
};

template <class T, std::size_t N>
lunar_range range_of(std::span<T, N> elements) noexcept {
  return {elements.data(), elements.size_bytes()};
}

// Reads elements into DRAM with many I/Os in flight, without a fault. Returns 0 or a negative errno
// value.
template <class T, std::size_t N>
int prefetch(std::span<T, N> elements) noexcept {
  lunar_range range = range_of(elements);
  return lunar_prefetch(&range, 1);
}
// Many scattered ranges in one batch (of 64 or more for best effect).
inline int prefetch(std::span<const lunar_range> ranges) noexcept {
  return lunar_prefetch(ranges.data(), ranges.size());
}
inline int prefetch(const std::vector<lunar_range>& ranges) noexcept {
  return lunar_prefetch(ranges.data(), ranges.size());
}
// The objects behind `count` pointers.
template <class T>
int prefetch_objects(T* const* pointers, std::size_t count) {
  std::vector<lunar_range> ranges;
  ranges.reserve(count);
  for (std::size_t i = 0; i < count; ++i) ranges.push_back({pointers[i], sizeof(T)});
  return prefetch(ranges);
}
template <class T, std::size_t N>
int advise(std::span<T, N> elements, lunar_advice advice) noexcept {
  return lunar_advise(elements.data(), elements.size_bytes(), advice);
}

inline lunar_stats stats() {
  lunar_stats out{};
  out.struct_size = sizeof(out);
  int rc = lunar_get_stats(&out);
  if (rc < 0) detail::raise(-rc, "lunar::stats");
  return out;
}

}  // namespace lunar
#endif  // LUNAR_LUNAR_HPP
