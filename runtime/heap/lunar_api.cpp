// SPDX-License-Identifier: Apache-2.0
// The C API (lunar/lunar.h) over pager and heap. Compiled into liblunar.so and into the preload
// library: when that one is present it comes first in symbol search order, so a program that links
// liblunar talks to the preload's tier.
//
// Threading: any thread; init and shutdown take a lock and are meant for a quiet moment. No call
// throws.
// May not: be used on the fault path, or under a HostGuard.
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/bytes.h"
#include "base/host_guard.h"
#include "base/units.h"
#include "config/options.h"
#include "heap/heap.h"
#include "heap/start.h"
#include "lunar/lunar.h"
#include "pager/pager.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/mem.h"
#include "sys/thread.h"

using namespace lunar;

namespace {

sys::Mutex g_lock;                        // init, shutdown, the first allocation
std::atomic<bool> g_started_here{false};  // lunar_init made the pager (not the preload)
std::atomic<int64_t> g_regions{0};

// Live allocations, in several counters so that threads share no cache line. lunar_shutdown must
// know whether any is left.
constexpr unsigned kCounters = 64;
struct alignas(64) Counter {
  std::atomic<int64_t> value{0};
};
Counter g_live[kCounters];
std::atomic<unsigned> g_next_counter{0};
constinit thread_local unsigned t_counter = UINT32_MAX;

void count_live(int64_t delta) {
  if (t_counter == UINT32_MAX)
    t_counter = g_next_counter.fetch_add(1, std::memory_order_relaxed) % kCounters;
  g_live[t_counter].value.fetch_add(delta, std::memory_order_relaxed);
}

int64_t live_allocations() {
  int64_t sum = 0;
  for (const Counter& counter : g_live) sum += counter.value.load(std::memory_order_relaxed);
  return sum;
}

// Allocated at the first failure of a thread: half a KiB of static TLS is too much for a library
// that may be dlopened.
constinit thread_local ErrorText* t_error = nullptr;

int fail(const ErrorText& why, int err) {
  if (t_error == nullptr) t_error = arena_new<ErrorText>();
  if (t_error != nullptr) *t_error = why;
  return err;
}

// Sets the options of "name=value,name=value" (lunar_config.options).
int set_options(Options* options, const char* text, ErrorText* why) {
  while (text != nullptr && *text != '\0') {
    const char* end = strchrnul(text, ',');
    const char* equals =
        static_cast<const char*>(memchr(text, '=', static_cast<size_t>(end - text)));
    char name[64], value[4096];
    if (equals == nullptr || equals == text || static_cast<size_t>(equals - text) >= sizeof(name) ||
        static_cast<size_t>(end - equals - 1) >= sizeof(value))
      return why->set(-EINVAL, "lunar_config.options: '%.*s' is not name=value",
                      static_cast<int>(end - text), text);
    memcpy(name, text, static_cast<size_t>(equals - text));
    name[equals - text] = '\0';
    memcpy(value, equals + 1, static_cast<size_t>(end - equals - 1));
    value[end - equals - 1] = '\0';
    int rc = options_set(options, name, value, "lunar_config.options", why);
    if (rc < 0) return rc;
    text = *end == ',' ? end + 1 : end;
  }
  return 0;
}

// The value of a member, or T{} if the caller's structure is too short to contain it.
template <class T>
T member(const lunar_config* config, T lunar_config::* which) {
  size_t end = static_cast<size_t>(reinterpret_cast<const char*>(&(config->*which)) -
                                   reinterpret_cast<const char*>(config)) +
               sizeof(T);
  return end <= config->struct_size ? config->*which : T{};
}

int apply_config(Options* options, const lunar_config* config, ErrorText* why) {
  if (config->struct_size < sizeof(size_t))
    return why->set(-EINVAL, "lunar_config.struct_size is %zu; set it to sizeof(lunar_config)",
                    config->struct_size);
  if (config->struct_size > sizeof *config &&
      !bytes_are_zero(config + 1, config->struct_size - sizeof *config))
    return why->set(
        -E2BIG,
        "lunar_config: a member behind the %zu bytes that this library knows is set: needs a newer "
        "liblunar",
        sizeof *config);
  if (uint64_t dram = member(config, &lunar_config::dram_bytes); dram != 0) options->dram = dram;
  if (uint64_t size = member(config, &lunar_config::lun_bytes); size != 0) options->size = size;
  if (const char* lun = member(config, &lunar_config::lun); lun != nullptr) {
    int rc = options_set(options, "lun", lun, "lunar_config.lun", why);  // copies the string
    if (rc < 0) return rc;
  }
  return set_options(options, member(config, &lunar_config::options), why);
}

// A thread may be creating the heap when another one forks. These handlers are registered after the
// pager's, so a fork takes this lock before the pager's locks, in the same order as its holder.
int keep_lock_for_forks() {
  static bool kept = false;
  if (kept) return 0;
  HostGuard guard;
  const int rc = pthread_atfork(
      [] {
        sys::block_signals();  // a handler that forks would wait for this fork
        g_lock.lock();
      },
      [] {
        g_lock.unlock();
        sys::unblock_signals();
      },
      [] {
        g_lock.reset_in_child();
        sys::unblock_signals();
      });
  kept = rc == 0;
  return -rc;
}

int start(const lunar_config* config, ErrorText* why) {
  Options options;
  int rc = options_load(&options, environ, why);
  if (rc < 0) return rc;
  if (config != nullptr) rc = apply_config(&options, config, why);
  if (rc < 0) return rc;
  rc = start_tier(options, why);
  if (rc < 0) return rc;
  HostGuard guard;
  rc = keep_lock_for_forks();
  rc = rc < 0 ? why->set(rc, "lunar_init: fork handlers cannot be installed (%s)", errno_name(rc))
              : pager_activate(why);
  if (rc < 0) (void)pager_destroy();
  return rc;
}

// The first allocation creates the heap, because programs that only use regions do not need it.
bool heap_usable() {
  if (__builtin_expect(heap_ready(), 1)) return true;
  if (pager_created()) {
    sys::Locked<sys::Mutex> lock(g_lock);
    ErrorText why;
    if (heap_ready() || heap_create(HeapMode::kPrivate, &why) == 0) return true;
    fail(why, -ENOMEM);
  }
  errno = ENOMEM;
  return false;
}

void* counted(void* pointer) {
  if (pointer != nullptr) count_live(1);
  return pointer;
}

}  // namespace

extern "C" {

int lunar_init(const lunar_config* config) noexcept {
  sys::Locked<sys::Mutex> lock(g_lock);
  ErrorText why;
  if (pager_created()) {
    return fail(why, why.set(-EEXIST, g_started_here.load()
                                          ? "lunar_init: started already"
                                          : "lunar_init: started by LD_PRELOAD; its tier serves"));
  }
  int rc = start(config, &why);
  if (rc < 0) return fail(why, rc);
  g_started_here.store(true);
  if (t_error != nullptr) t_error->text[0] = '\0';
  return 0;
}

int lunar_shutdown(void) noexcept {
  sys::Locked<sys::Mutex> lock(g_lock);
  // The preload's tier lives as long as the process.
  if (!g_started_here.load()) return pager_created() ? -EBUSY : -EINVAL;
  if (g_regions.load() != 0 || live_allocations() != 0) return -EBUSY;
  int rc = heap_destroy();
  if (rc < 0) return rc;
  rc = pager_destroy();
  if (rc == 0) g_started_here.store(false);
  return rc;
}

const char* lunar_error(void) noexcept { return t_error == nullptr ? "" : t_error->text; }
size_t lunar_page_bytes(void) noexcept { return sys::page_bytes(); }
int lunar_set_dram(uint64_t bytes) noexcept {
  return pager_created() ? pager_set_dram(bytes) : -EINVAL;
}

// ---- allocation ---------------------------------------------------------------------------------

void* lunar_malloc(size_t size) noexcept {
  return heap_usable() ? counted(heap_alloc(size)) : nullptr;
}

void* lunar_calloc(size_t count, size_t size) noexcept {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return heap_usable() ? counted(heap_alloc_zeroed(bytes)) : nullptr;
}

void* lunar_realloc(void* pointer, size_t size) noexcept {
  if (pointer == nullptr) return lunar_malloc(size);
  if (size == 0) {  // frees the block, like glibc
    lunar_free(pointer);
    return nullptr;
  }
  return heap_resize(pointer, size);
}

void* lunar_aligned_alloc(size_t alignment, size_t size) noexcept {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    errno = EINVAL;
    return nullptr;
  }
  return heap_usable() ? counted(heap_alloc_aligned(alignment, size)) : nullptr;
}

void lunar_free(void* pointer) noexcept {
  if (pointer == nullptr) return;
  LUNAR_CHECK(heap_owns(pointer), "lunar_free(%p): not from lunar_malloc", pointer);
  int saved = errno;
  heap_free(pointer);
  count_live(-1);
  errno = saved;
}

size_t lunar_usable_size(const void* pointer) noexcept {
  return pointer == nullptr ? 0 : heap_usable_size(pointer);
}

// ---- regions ------------------------------------------------------------------------------------

void* lunar_region_create(size_t bytes) noexcept {
  Region* region = nullptr;
  size_t page = sys::page_bytes();
  if (bytes == 0 || !pager_created()) {
    errno = EINVAL;
    return nullptr;
  }
  if (bytes > PTRDIFF_MAX - page) {
    errno = ENOMEM;
    return nullptr;
  }
  bytes = round_up(bytes, page);
  ErrorText why;
  int rc = region_create(bytes, kRegionHeap, &region);
  if (rc == -EMFILE) {
    rc = why.set(-ENOMEM, "lunar_region_create: there are 65536 regions, which is the most");
  } else if (rc < 0) {
    (void)why.set(rc,
                  "lunar_region_create: the kernel gives no address space for %zu bytes and their "
                  "tables (%s)",
                  bytes, "vm.max_map_count, ulimit -v");
  } else {
    rc = region_commit(region, 0, bytes);
    if (rc < 0) {
      (void)why.set(rc,
                    "lunar_region_create: %zu bytes are more than the LUN has left, or their page "
                    "tables are more than the DRAM budget",
                    bytes);
      (void)region_destroy(region);
    }
  }
  if (rc < 0) {
    errno = -fail(why, rc);
    return nullptr;
  }
  g_regions.fetch_add(1);
  return region_base(region);
}

int lunar_region_destroy(void* address, size_t bytes) noexcept {
  Region* region = region_find(address);
  if (region == nullptr || heap_owns(address) || region_base(region) != address) return -EINVAL;
  bytes = round_up(bytes, sys::page_bytes());
  if (region_size(region) != bytes) return -EINVAL;
  region_decommit(region, 0, bytes);
  int rc = region_destroy(region);
  if (rc == 0) g_regions.fetch_sub(1);
  return rc;
}

int lunar_is_tiered(const void* address) noexcept { return region_find(address) != nullptr; }

// ---- hints and range operations -----------------------------------------------------------------

int lunar_advise(const void* address, size_t bytes, lunar_advice advice) noexcept {
  if (region_find(address) == nullptr) return -EINVAL;
  return pager_advise(address, bytes, advice);
}

int lunar_touch(const void* address, size_t bytes) noexcept {
  return region_find(address) == nullptr ? -EINVAL : pager_touch(address, bytes);
}

int lunar_prefetch(const lunar_range* ranges, size_t count) noexcept {
  if (count == 0) return 0;
  if (ranges == nullptr || !pager_created()) return -EINVAL;
  for (size_t i = 0; i < count; ++i)
    if (region_find(ranges[i].address) == nullptr) return -EINVAL;
  return pager_prefetch(ranges, count);
}

int lunar_discard(void* address, size_t bytes) noexcept {
  return region_find(address) == nullptr ? -EINVAL
                                         : pager_discard(address, bytes, Discard::kLocked);
}

int lunar_pin(const void* address, size_t bytes) noexcept {
  return region_find(address) == nullptr ? -EINVAL : pager_pin(address, bytes);
}

int lunar_unpin(const void* address, size_t bytes) noexcept {
  return region_find(address) == nullptr ? -EINVAL : pager_unpin(address, bytes);
}

int64_t lunar_evict(const void* address, size_t bytes) noexcept {
  return region_find(address) == nullptr ? -EINVAL : pager_evict(address, bytes);
}

void lunar_note_pinning(void) noexcept {
  if (pager_created()) pager_note_pinning("it says so");
}

int lunar_get_stats(lunar_stats* stats) noexcept {
  if (stats == nullptr || stats->struct_size < sizeof(size_t) || !pager_created()) return -EINVAL;
  lunar_stats full{};
  full.struct_size = sizeof(full);
  pager_stats(&full);
  full.struct_size = std::min(stats->struct_size, sizeof(full));
  memcpy(stats, &full, full.struct_size);
  return 0;
}

}  // extern "C"
