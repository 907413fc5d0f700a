// SPDX-License-Identifier: Apache-2.0
// See bench_backing.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/io/bench_backing.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "lun/compose.h"
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
  if (memory == MAP_FAILED) throw std::runtime_error(fmt::format("{} bytes of buffers: {}", bytes, strerror(errno)));
  data_ = static_cast<char*>(memory);
  Random random(seed);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) reinterpret_cast<uint64_t*>(data_)[i] = random.next();
}

NoiseBuffer::~NoiseBuffer() { munmap(data_, bytes_); }

BenchFile::BenchFile(std::string path, uint64_t bytes, SetupJournal& journal)
    : path_(std::move(path)), journal_(journal) {
  journal_.record("file " + path_);
  const int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) throw std::runtime_error(fmt::format("{} cannot be made: {}", path_, strerror(errno)));
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes + kLunOverheadBytes));
  ::close(fd);
  if (error == 0) return;
  unlink(path_.c_str());
  throw std::runtime_error(fmt::format("reserving space for {} failed: {}", path_, strerror(error)));
}

BenchFile::~BenchFile() {
  unlink(path_.c_str());
  journal_.forget("file " + path_);
}

BenchBacking::BenchBacking(uint64_t bytes, uint64_t seed, SetupJournal& journal, std::string disk_stat)
    : disk_stat_(std::move(disk_stat)), bytes_(bytes / kChunkBytes * kChunkBytes), seed_(seed), journal_(journal) {}

BenchBacking::BenchBacking(const std::string& lun, uint64_t bytes, uint64_t seed, SetupJournal& journal)
    : BenchBacking(bytes, seed, journal, "") {
  std::string& uri = uri_ = lun;
  struct stat info{};
  if (stat(lun.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    made_ = std::make_unique<BenchFile>(fmt::format("{}/lunar-bench-{}.lun", lun, getpid()), bytes_, journal_);
    uri = made_->path();
  }
  ErrorText why;
  DeviceOptions options;
  options.want_bytes = bytes_;
  const int opened = uri.compare(0, 7, "stripe:") == 0 ? scratch_open(uri.c_str(), options, &device_, &why)
                                                       : device_open(uri.c_str(), options, &device_, &why);
  if (opened < 0) throw std::runtime_error(why.text);
  if (const int status = device_->reserve(DeviceOffset{0}, bytes_); status < 0) {
    throw std::runtime_error(
        fmt::format("{}: space for {} MiB cannot be reserved: {}", uri, bytes_ >> 20, errno_text(status)));
  }
  find_path();
}

// Only a file, block device or mapped file of the kernel's holds the same bytes at a path.
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

int64_t BenchBacking::move(bool write, uint64_t at, char* data, size_t bytes) const {
  const iovec part{data, bytes};
  Command command;
  command.op = write ? Op::kWrite : Op::kRead;
  command.offset = DeviceOffset{at};
  command.iov = &part;
  command.iov_count = 1;
  return device_->transfer(command);
}

void BenchBacking::fill(size_t unit_bytes, const std::function<void()>& pause) {
  stamps_ = std::make_unique<BlockStamps>(seed_, bytes_ / unit_bytes, unit_bytes);
  const size_t chunk_bytes = std::max(kChunkBytes, unit_bytes);
  const NoiseBuffer chunk(chunk_bytes, seed_);
  for (uint64_t at = 0; at + chunk_bytes <= bytes_; at += chunk_bytes) {
    pause();
    for (size_t inside = 0; inside < chunk_bytes; inside += unit_bytes) {
      stamps_->stamp((at + inside) / unit_bytes, chunk.data() + inside);
    }
    const int64_t moved = move(true, at, chunk.data(), chunk_bytes);
    if (moved != static_cast<int64_t>(chunk_bytes)) {
      throw std::runtime_error(fmt::format("{}: writing it whole failed: {}", uri_,
                                           moved < 0 ? errno_text(static_cast<int>(moved)) : "a short write"));
    }
  }
  if (!device_) return;
  Command flush;
  flush.op = Op::kFlush;
  if (const int64_t status = device_->transfer(flush); status < 0) {
    throw std::runtime_error(fmt::format("{}: flush: {}", device_->name(), errno_text(static_cast<int>(status))));
  }
}

uint64_t BenchBacking::verify(const std::function<void()>& pause) const {
  const size_t unit_bytes = stamps_->unit_bytes(), chunk_bytes = std::max(kChunkBytes, unit_bytes);
  const NoiseBuffer chunk(chunk_bytes, seed_);
  uint64_t wrong = 0;
  for (uint64_t at = 0; at + chunk_bytes <= bytes_; at += chunk_bytes) {
    pause();
    const bool read = move(false, at, chunk.data(), chunk_bytes) == static_cast<int64_t>(chunk_bytes);
    for (size_t inside = 0; inside < chunk_bytes; inside += unit_bytes) {
      if (!read || !stamps_->check((at + inside) / unit_bytes, chunk.data() + inside)) ++wrong;
    }
  }
  return wrong;
}

}  // namespace lunar::tools
