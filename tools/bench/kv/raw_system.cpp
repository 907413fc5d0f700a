// SPDX-License-Identifier: Apache-2.0
// What the disk gives without any store: values in the slots of a file, a slot a number, read and written with O_DIRECT
// by pread and pwrite, or by an io_uring a session. Nothing is cached, and no key is looked up.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tools/bench/kv/kv_system.h"

namespace lunar::tools {

namespace {

constexpr size_t kSlotUnit = 4096, kLoadBytes = 1 << 20;
constexpr unsigned kRingEntries = 4096, kBatchMax = 32;

struct RawFile {
  int fd = -1;
  size_t value_bytes = 0, slot_bytes = 0;
  off_t at(uint64_t number) const { return static_cast<off_t>(number * slot_bytes); }
};

class RawSession : public KvSession {
 public:
  explicit RawSession(const RawFile& file) : file_(file) {}
  ~RawSession() override {
    if (ring_made_) io_uring_queue_exit(&ring_);
    free(load_);
  }
  int get(uint64_t number, const KvKey&, char* value, int64_t* length) override {
    *length = static_cast<int64_t>(file_.value_bytes);
    return code_of(pread(file_.fd, value, file_.slot_bytes, file_.at(number)));
  }
  int set(uint64_t number, const KvKey&, const char* value) override {
    return code_of(pwrite(file_.fd, value, file_.slot_bytes, file_.at(number)));
  }
  int set_many(const std::vector<uint64_t>& numbers, const KvContent& content, char* value) override;
  int start_get(uint64_t number, const KvKey&, char* value, KvDone* done) override {
    return start(done, [&](io_uring_sqe* sqe) {
      io_uring_prep_read(sqe, 0, value, static_cast<unsigned>(file_.slot_bytes),
                         static_cast<uint64_t>(file_.at(number)));
    });
  }
  int start_set(uint64_t number, const KvKey&, const char* value, KvDone* done) override {
    return start(done, [&](io_uring_sqe* sqe) {
      io_uring_prep_write(sqe, 0, value, static_cast<unsigned>(file_.slot_bytes),
                          static_cast<uint64_t>(file_.at(number)));
    });
  }
  bool carry_on(const std::function<bool()>& over) override;

 private:
  int code_of(int64_t moved) const {
    if (moved < 0) return errno;
    return moved == static_cast<int64_t>(file_.slot_bytes) ? 0 : EIO;
  }
  int make_ring();
  template <class Prepare>
  int start(KvDone* done, const Prepare& prepare) {
    if (!ring_made_) {
      if (const int code = make_ring(); code != 0) return code;
    }
    io_uring_sqe* sqe = in_flight_ < kRingEntries ? io_uring_get_sqe(&ring_) : nullptr;
    if (!sqe) return EAGAIN;
    prepare(sqe);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, done);
    ++in_flight_;
    return 0;
  }
  const RawFile& file_;
  io_uring ring_{};
  bool ring_made_ = false;
  unsigned in_flight_ = 0;
  char* load_ = nullptr;  // of whole slots
};

// By the session's own thread, which is the one that gets the completions: the kernel need not interrupt it.
int RawSession::make_ring() {
  unsigned flags = 0;
#ifdef IORING_SETUP_DEFER_TASKRUN
  flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
#endif
  int status = io_uring_queue_init(kRingEntries, &ring_, flags);
  if (status == -EINVAL && flags != 0) status = io_uring_queue_init(kRingEntries, &ring_, 0);
  if (status < 0) return -status;
  ring_made_ = true;
  return -io_uring_register_files(&ring_, &file_.fd, 1);
}

bool RawSession::carry_on(const std::function<bool()>& over) {
  while (!over() && in_flight_ > 0) {
    const unsigned batch = in_flight_ < 8 ? 1 : std::min(in_flight_ / 4, kBatchMax);
    if (const int status = io_uring_submit_and_wait(&ring_, batch); status < 0 && status != -EINTR)
      throw std::runtime_error(fmt::format("io_uring: {}", strerror(-status)));
    io_uring_cqe* found[kBatchMax];
    for (unsigned n; (n = io_uring_peek_batch_cqe(&ring_, found, kBatchMax)) > 0;) {
      KvDone* done[kBatchMax];
      int result[kBatchMax];
      for (unsigned i = 0; i < n; ++i) {
        done[i] = static_cast<KvDone*>(io_uring_cqe_get_data(found[i]));
        result[i] = found[i]->res;
      }
      io_uring_cq_advance(&ring_, n);
      in_flight_ -= n;
      for (unsigned i = 0; i < n; ++i) {
        const int code = result[i] < 0 ? -result[i] : result[i] == static_cast<int>(file_.slot_bytes) ? 0 : EIO;
        done[i]->run(done[i], code, static_cast<int64_t>(file_.value_bytes));
      }
      if (n < kBatchMax) break;
    }
  }
  return true;
}

// Slots that follow each other go in one write.
int RawSession::set_many(const std::vector<uint64_t>& numbers, const KvContent& content, char* value) {
  if (!load_) load_ = static_cast<char*>(aligned_alloc(kSlotUnit, kLoadBytes));
  const size_t most = std::max<size_t>(1, kLoadBytes / file_.slot_bytes);
  for (size_t at = 0; at < numbers.size();) {
    size_t n = 0;
    for (; n < most && at + n < numbers.size() && numbers[at + n] == numbers[at] + n; ++n) {
      content.fill(numbers[at + n], 1, value);
      memcpy(load_ + n * file_.slot_bytes, value, file_.value_bytes);
    }
    const auto bytes = static_cast<ssize_t>(n * file_.slot_bytes);
    const ssize_t moved = pwrite(file_.fd, load_, n * file_.slot_bytes, file_.at(numbers[at]));
    if (moved != bytes) return moved < 0 ? errno : EIO;
    at += n;
  }
  return 0;
}

class RawSystem : public KvSystem {
 public:
  explicit RawSystem(const KvSetup& setup) {
    file_.value_bytes = setup.value_bytes;
    file_.slot_bytes = (setup.value_bytes + kSlotUnit - 1) / kSlotUnit * kSlotUnit;
    file_.fd = open(setup.place.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (file_.fd < 0) throw std::runtime_error(fmt::format("{}: {}", setup.place, strerror(errno)));
  }
  ~RawSystem() override { close(file_.fd); }
  std::unique_ptr<KvSession> connect() override { return std::make_unique<RawSession>(file_); }
  bool asynchronous() const override { return true; }
  int flush() override { return fdatasync(file_.fd) == 0 ? 0 : errno; }
  int scan(uint64_t at_once, const Visit& visit) override;

 private:
  RawFile file_;
};

// A file has no keys: it is read from end to end, kScanDepth MiB in flight, and each slot is visited by no name.
int RawSystem::scan(uint64_t, const Visit& visit) {
  constexpr unsigned kScanDepth = 8;
  const auto end = static_cast<uint64_t>(std::max<off_t>(0, lseek(file_.fd, 0, SEEK_END)));
  const std::unique_ptr<char, decltype(&free)> memory(
      static_cast<char*>(aligned_alloc(kSlotUnit, kScanDepth * kLoadBytes)), free);
  io_uring ring{};
  if (const int status = io_uring_queue_init(kScanDepth, &ring, 0); status < 0) return -status;
  uint64_t at = 0;
  unsigned in_flight = 0;
  const auto read_next = [&](uint64_t slot) {
    io_uring_sqe* sqe = at < end ? io_uring_get_sqe(&ring) : nullptr;
    if (!sqe) return;
    io_uring_prep_read(sqe, file_.fd, memory.get() + slot * kLoadBytes, kLoadBytes, at);
    sqe->user_data = slot;
    at += kLoadBytes;
    ++in_flight;
  };
  for (unsigned slot = 0; slot < kScanDepth; ++slot) read_next(slot);
  int code = 0;
  for (bool more = true; in_flight > 0;) {
    io_uring_cqe* done;
    if (io_uring_submit_and_wait(&ring, 1) < 0 || io_uring_peek_cqe(&ring, &done) != 0) continue;
    const uint64_t slot = done->user_data;
    if (done->res < 0) code = -done->res;
    for (int bytes = done->res; bytes > 0 && more; bytes -= static_cast<int>(file_.slot_bytes)) more = visit({});
    io_uring_cqe_seen(&ring, done);
    --in_flight;
    if (code == 0 && more) read_next(slot);
  }
  io_uring_queue_exit(&ring);
  return code;
}

}  // namespace

std::unique_ptr<KvSystem> make_raw_system(const KvSetup& setup) { return std::make_unique<RawSystem>(setup); }

}  // namespace lunar::tools
