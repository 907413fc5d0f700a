// SPDX-License-Identifier: Apache-2.0
// Lengths beyond 32 bits, up to the 100 GiB that the interface allows, on a device that keeps only
// words that are not zero. A value is zeros with marks at its ends, at each 4 GiB and around the
// ends of parts and segments. It is set, read in pieces at every mark, replaced, and read again
// after another open, with its length. The same with a key.
//   kv_huge [--gib N]
// Threading: one thread.
#include <errno.h>
#include <sys/mman.h>

#include <map>
#include <vector>

#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;

// a part of a large pair on a device: a checksum, then data
constexpr uint64_t kPart = 64 * kKiB, kPartData = kPart - 8;

// The words that are not zero, by offset / 8. Outlives the device.
using Words = std::map<uint64_t, uint64_t>;

class SparseDevice : public lunar_test::MemoryDevice {
 public:
  SparseDevice(Words* words, uint64_t bytes) : MemoryDevice(nullptr, bytes), words_(words) {}
  int64_t transfer(const Command& command) override {
    if (command.op == Op::kFlush) return 0;
    uint64_t at = command.offset.value, moved = 0;
    if (command.op == Op::kDiscard) {
      zero(at, command.length);
      return 0;
    }
    for (uint32_t i = 0; i < command.iov_count; ++i) {
      const uint64_t length = command.iov[i].iov_len;
      if (at % 512 || length % 512 || at > size_bytes() || length > size_bytes() - at)
        return -EINVAL;
      auto* memory = static_cast<uint64_t*>(command.iov[i].iov_base);
      command.op == Op::kWrite ? write(at, memory, length) : read(at, memory, length);
      at += length, moved += length;
    }
    return static_cast<int64_t>(moved);
  }

 private:
  void zero(uint64_t at, uint64_t length) {
    words_->erase(words_->lower_bound(at / 8), words_->lower_bound((at + length) / 8));
  }
  void write(uint64_t at, const uint64_t* memory, uint64_t length) {
    constexpr uint64_t kStep = 64;  // words
    zero(at, length);
    for (uint64_t i = 0; i < length / 8; i += kStep) {
      if (memory[i] == 0 && memcmp(memory + i, memory + i + 1, (kStep - 1) * 8) == 0) continue;
      for (uint64_t word = i; word < i + kStep; ++word)
        if (memory[word] != 0) (*words_)[at / 8 + word] = memory[word];
    }
  }
  void read(uint64_t at, uint64_t* memory, uint64_t length) const {
    memset(memory, 0, length);
    const auto end = words_->lower_bound((at + length) / 8);
    for (auto word = words_->lower_bound(at / 8); word != end; ++word)
      memory[word->first - at / 8] = word->second;
  }
  Words* words_;
};

// Zeros of which only the pages with marks take memory.
struct Content {
  char* data;
  uint64_t bytes;
  std::vector<uint64_t> marks;  // one byte each

  Content(uint64_t length, uint64_t seed) : bytes(length) {
    void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED, "no address space");
    // reading zeros takes a page table entry for 2 MiB
    (void)madvise(memory, length, MADV_HUGEPAGE);
    data = static_cast<char*>(memory);
    for (const uint64_t at : {uint64_t{0}, kPartData - 1, kPartData, kMiB, length / 2, length - 1})
      mark(at, seed);
    for (uint64_t at = 4 * kGiB; at < length; at += 4 * kGiB)
      for (uint64_t near = at - 1; near <= at + 1; ++near) mark(near, seed);
  }
  ~Content() { (void)munmap(data, bytes); }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
  void mark(uint64_t at, uint64_t seed) {
    if (at >= bytes) return;
    data[at] = static_cast<char>(1 + mix(at ^ seed) % 255);
    marks.push_back(at);
  }
  Bytes as_bytes() const { return {data, bytes}; }
};

Store* open(Words* words, uint64_t bytes, Contents contents) {
  StoreOptions options;
  options.device = new SparseDevice(words, bytes);  // for the rest of the process
  options.contents = contents;
  options.log_bytes = 0;
  options.dram_bytes = 64 * kMiB + bytes / 4096;
  options.expected_keys = 16;
  return open_store(options);
}

void check_value(Store* store, Bytes key, const Content& content) {
  const auto length = static_cast<int64_t>(content.bytes);
  if (store->exists(key) != length) FAIL("its length is " + std::to_string(store->exists(key)));
  char piece[100];
  for (const uint64_t mark : content.marks) {
    const uint64_t from = mark < 50 ? 0 : mark - 50, rest = content.bytes - from;
    memset(piece, '?', sizeof piece);
    if (store->get(key, piece, sizeof piece, from) != length)
      FAIL("get at " + std::to_string(from));
    const uint64_t most = rest < sizeof piece ? rest : sizeof piece;
    if (memcmp(piece, content.data + from, most) != 0)
      FAIL("other bytes at " + std::to_string(from));
    for (uint64_t i = most; i < sizeof piece; ++i)
      if (piece[i] != '?') FAIL("bytes beyond the end of the value were written");
  }
  for (const uint64_t offset :
       {content.bytes, content.bytes + 1, content.bytes + 4 * kGiB, ~uint64_t{0}}) {
    piece[0] = '?';
    if (store->get(key, piece, sizeof piece, offset) != length || piece[0] != '?')
      FAIL("get behind the end");
  }
}

void check_lengths(uint64_t value_bytes, uint64_t key_bytes) {
  Words words;
  // Both values at a time, and a sixteenth for cleaning.
  const uint64_t device_bytes = round_up((2 * value_bytes + key_bytes) / 8 * 9 + kGiB, kMiB);
  Store* store = open(&words, device_bytes, Contents::kNew);
  const Content first(value_bytes, 1), second(value_bytes - 4 * kGiB + 3, 2);
  const Bytes name = {"huge", 4};
  REQUIRE(store->set(name, first.as_bytes()) == 0);
  check_value(store, name, first);
  REQUIRE(store->set(name, second.as_bytes()) == 0, "set of another value");
  check_value(store, name, second);
  if (store->bytes_actual() != name.size + second.bytes)
    FAIL("bytes: " + std::to_string(store->bytes_actual()));
  if (key_bytes) {
    const Content key(key_bytes, 3);
    REQUIRE(store->set(key.as_bytes(), {"short", 5}) == 0, "set of a huge key");
    REQUIRE(store->exists(key.as_bytes()) == 5, "a huge key is not there");
    REQUIRE(store->exists({key.data, key_bytes - 1}) == -ENOENT, "a prefix of a huge key is there");
  }
  REQUIRE(store->flush() == 0);
  check_store(store);
  store->close();
  store = open(&words, device_bytes, Contents::kExisting);
  check_value(store, name, second);
  REQUIRE(store->del(name) == static_cast<int64_t>(second.bytes));
  if (store->exists(name) != -ENOENT || store->count() != (key_bytes ? 1 : 0))
    FAIL("it is still there");
  check_store(store);
  store->close();
}

}  // namespace

TEST_CASE("kv-huge") {
  const uint64_t gib = option("--gib", 5);
  REQUIRE(gib >= 5 && gib <= kPairBytesMax / kGiB, "--gib 5 to 100");
  check_lengths(gib * kGiB, gib < 10 ? 4 * kGiB + 17 : 0);
  printf("a value of %lu GiB was set, replaced, read, kept and deleted\n", gib);
}
