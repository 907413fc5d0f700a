// SPDX-License-Identifier: Apache-2.0
// See bench_backing.h.
#include "tools/bench/io/bench_backing.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "superpipe/registry.h"
#include "superpipe/signature.h"
#include "tools/bench/bench_host.h"
#include "tools/bench/random.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {
constexpr size_t kChunkBytes = 1 << 20;
}  // namespace

NoiseBuffer::NoiseBuffer(size_t bytes, uint64_t seed) : bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw std::runtime_error(fmt::format("{} bytes of buffers: {}", bytes, strerror(errno)));
  data_ = static_cast<char*>(memory);
  Random random(seed);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i)
    reinterpret_cast<uint64_t*>(data_)[i] = random.next();
}

NoiseBuffer::~NoiseBuffer() { munmap(data_, bytes_); }

BenchBacking::BenchBacking(const std::string& lun, uint64_t bytes, uint64_t seed,
                           SetupJournal& journal)
    : uri_(lun), bytes_(bytes / kChunkBytes * kChunkBytes), seed_(seed) {
  struct stat info{};
  if (stat(lun.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    uri_ = fmt::format("{}/lunar-bench-{}.lun", lun, getpid());
    made_.emplace(journal, uri_);
  }
  open();
  find_path();
}

void BenchBacking::open() {
  if (made_) {
    const int fd = ::open(uri_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    const int error =
        fd < 0 ? errno : posix_fallocate(fd, 0, static_cast<off_t>(bytes_ + kLunOverheadBytes));
    if (fd >= 0) close(fd);
    if (error != 0)
      throw std::runtime_error(fmt::format("{} cannot be made: {}", uri_, strerror(error)));
  }
  ErrorText why;
  DeviceOptions options;
  options.want_bytes = bytes_;
  if (device_open(uri_.c_str(), options, &device_, &why) < 0) throw std::runtime_error(why.text);
  if (const int status = device_->reserve(DeviceOffset{0}, bytes_); status < 0) {
    device_close(device_);
    throw std::runtime_error(fmt::format("{}: space for {} MiB cannot be reserved: {}", uri_,
                                         bytes_ >> 20, errno_text(status)));
  }
}

// The other systems can reach the data of a file, block device or mapped file by its path.
void BenchBacking::find_path() {
  const std::string kind = device_->kind();
  in_memory_ = kind == "pmem";
  if (kind != "file" && kind != "block" && !in_memory_) return;
  const bool scheme = uri_.compare(0, 5, "file:") == 0 || uri_.compare(0, 5, "pmem:") == 0;
  path_ = scheme ? uri_.substr(5, uri_.find(',') - 5) : uri_;
  path_offset_ = kScratchDataOffset;
  struct stat info{};
  std::string ignored;
  if (in_memory_) return;
  if (kind == "file")
    disk_stat_ = disk_stat_path(path_, &ignored);
  else if (stat(path_.c_str(), &info) == 0)
    disk_stat_ = fmt::format("/sys/dev/block/{}:{}/stat", major(info.st_rdev), minor(info.st_rdev));
  if (!read_disk(disk_stat_)) disk_stat_.clear();
}

BenchBacking::~BenchBacking() { device_close(device_); }

int64_t BenchBacking::move(Op op, uint64_t at, char* data, size_t bytes) const {
  const iovec part{data, bytes};
  Command command;
  command.op = op;
  command.offset = DeviceOffset{at};
  command.iov = bytes > 0 ? &part : nullptr;
  command.iov_count = bytes > 0 ? 1 : 0;
  return device_->transfer(command);
}

void BenchBacking::fill(const std::function<void()>& pause) {
  stamps_ = std::make_unique<BlockStamps>(seed_, bytes_ / kBlockBytes);
  const NoiseBuffer chunk(kChunkBytes, seed_);
  const auto must = [&](int64_t moved, size_t wanted) {
    if (moved == static_cast<int64_t>(wanted)) return;
    throw std::runtime_error(
        fmt::format("{}: the first write of all blocks failed: {}", uri_,
                    moved < 0 ? errno_text(static_cast<int>(moved)) : "a short write"));
  };
  for (uint64_t at = 0; at < bytes_; at += kChunkBytes) {
    pause();
    for (size_t inside = 0; inside < kChunkBytes; inside += kBlockBytes)
      stamps_->stamp((at + inside) / kBlockBytes, chunk.data() + inside);
    must(move(Op::kWrite, at, chunk.data(), kChunkBytes), kChunkBytes);
  }
  must(move(Op::kFlush, 0, nullptr, 0), 0);
}

uint64_t BenchBacking::verify(const std::function<void()>& pause) const {
  const NoiseBuffer chunk(kChunkBytes, seed_);
  uint64_t wrong = 0;
  for (uint64_t at = 0; at < bytes_; at += kChunkBytes) {
    pause();
    const bool read =
        move(Op::kRead, at, chunk.data(), kChunkBytes) == static_cast<int64_t>(kChunkBytes);
    for (size_t inside = 0; inside < kChunkBytes; inside += kBlockBytes)
      if (!read || !stamps_->check((at + inside) / kBlockBytes, chunk.data() + inside)) ++wrong;
  }
  return wrong;
}

}  // namespace lunar::tools
