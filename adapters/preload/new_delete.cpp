// SPDX-License-Identifier: Apache-2.0
// All variants of operator new and delete. The throwing ones call the program's new handler until
// there is none, then throw std::bad_alloc by the program's own libstdc++, which is found by weak
// symbols: this library is built without exceptions, and a second copy of libstdc++'s exception
// code would not work with the program's. The handler may throw through our frames.
#include <cstddef>
#include <cstdlib>
#include <new>

#include "malloc_family.h"
#include "sys/fatal.h"

using lunar::preload::allocate;
using lunar::preload::release;

// std::__throw_bad_alloc() and std::get_new_handler() exist in every process that can call operator
// new.
extern "C" __attribute__((weak, visibility("default"), noreturn)) void _ZSt17__throw_bad_allocv();
extern "C" __attribute__((weak, visibility("default"))) std::new_handler _ZSt15get_new_handlerv();

namespace {

__attribute__((noinline)) void* allocate_or_throw(size_t alignment, size_t bytes) {
  for (;;) {
    std::new_handler handler =
        _ZSt15get_new_handlerv != nullptr ? _ZSt15get_new_handlerv() : nullptr;
    if (handler == nullptr) break;
    handler();
    if (void* pointer = allocate(alignment, bytes, false)) return pointer;
  }
  if (_ZSt17__throw_bad_allocv != nullptr) _ZSt17__throw_bad_allocv();
  lunar::fatal(
      "operator new: out of memory (%zu bytes), and the program has no libstdc++ to throw "
      "std::bad_alloc with",
      bytes);
}

inline void* new_block(size_t alignment, size_t bytes) {
  void* pointer = allocate(alignment, bytes, false);
  return __builtin_expect(pointer != nullptr, 1) ? pointer : allocate_or_throw(alignment, bytes);
}

size_t value(std::align_val_t alignment) { return static_cast<size_t>(alignment); }

}  // namespace

#define LUNAR_VISIBLE __attribute__((visibility("default")))

LUNAR_VISIBLE void* operator new(size_t bytes) { return new_block(0, bytes); }
LUNAR_VISIBLE void* operator new[](size_t bytes) { return new_block(0, bytes); }
LUNAR_VISIBLE void* operator new(size_t bytes, std::align_val_t alignment) {
  return new_block(value(alignment), bytes);
}
LUNAR_VISIBLE void* operator new[](size_t bytes, std::align_val_t alignment) {
  return new_block(value(alignment), bytes);
}

// The nothrow variants do not call the handler, because it could throw: the program gets nullptr a
// little earlier.
LUNAR_VISIBLE void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(0, bytes, false);
}
LUNAR_VISIBLE void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(0, bytes, false);
}
LUNAR_VISIBLE void* operator new(size_t bytes, std::align_val_t alignment,
                                 const std::nothrow_t&) noexcept {
  return allocate(value(alignment), bytes, false);
}
LUNAR_VISIBLE void* operator new[](size_t bytes, std::align_val_t alignment,
                                   const std::nothrow_t&) noexcept {
  return allocate(value(alignment), bytes, false);
}

LUNAR_VISIBLE void operator delete(void* pointer) noexcept { release(pointer); }
LUNAR_VISIBLE void operator delete[](void* pointer) noexcept { release(pointer); }
LUNAR_VISIBLE void operator delete(void* pointer, size_t) noexcept { release(pointer); }
LUNAR_VISIBLE void operator delete[](void* pointer, size_t) noexcept { release(pointer); }
LUNAR_VISIBLE void operator delete(void* pointer, const std::nothrow_t&) noexcept {
  release(pointer);
}
LUNAR_VISIBLE void operator delete[](void* pointer, const std::nothrow_t&) noexcept {
  release(pointer);
}
LUNAR_VISIBLE void operator delete(void* pointer, std::align_val_t) noexcept { release(pointer); }
LUNAR_VISIBLE void operator delete[](void* pointer, std::align_val_t) noexcept { release(pointer); }
LUNAR_VISIBLE void operator delete(void* pointer, size_t, std::align_val_t) noexcept {
  release(pointer);
}
LUNAR_VISIBLE void operator delete[](void* pointer, size_t, std::align_val_t) noexcept {
  release(pointer);
}
LUNAR_VISIBLE void operator delete(void* pointer, std::align_val_t,
                                   const std::nothrow_t&) noexcept {
  release(pointer);
}
LUNAR_VISIBLE void operator delete[](void* pointer, std::align_val_t,
                                     const std::nothrow_t&) noexcept {
  release(pointer);
}
