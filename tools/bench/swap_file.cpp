// SPDX-License-Identifier: Apache-2.0
// See swap_file.h.
#include "tools/bench/swap_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/swap.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "sys/proc.h"
#include "tools/bench/random.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {
constexpr size_t kChunkBytes = 4 << 20;

[[noreturn]] void give_up(const std::string& path, const char* step, int error) {
  unlink(path.c_str());
  throw std::runtime_error(fmt::format("{} of {} failed: {}", step, path, strerror(error)));
}

void fill_noise(void* buffer, size_t bytes, Random& random) {
  auto* words = static_cast<uint64_t*>(buffer);
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) words[i] = random.next();
}
}  // namespace

void write_whole_file(const std::string& path, uint64_t bytes, size_t zero_bytes, uint64_t seed,
                      const std::function<void()>& pause) {
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | O_DIRECT, 0600);
  if (fd < 0 && errno == EINVAL) {  // a file system without O_DIRECT, whose open made the file
    fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  }
  if (fd < 0) throw std::runtime_error(fmt::format("{} cannot be made: {}", path, strerror(errno)));
  void* buffer =
      mmap(nullptr, kChunkBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const char* failed = nullptr;
  int error = 0;
  if (buffer == MAP_FAILED) failed = "mapping a buffer", error = errno;
  if (failed == nullptr && (error = posix_fallocate(fd, 0, static_cast<off_t>(bytes))) != 0)
    failed = "reserving space";
  Random random(seed);
  try {
    for (uint64_t at = 0; failed == nullptr && at < bytes; at += kChunkBytes) {
      pause();
      // Only the first chunk is filled with noise. Later chunks get their offset stamped into every
      // page, which prevents deduplication and is faster than the disk.
      if (at == 0) fill_noise(buffer, kChunkBytes, random);
      for (size_t page = 0; page < kChunkBytes; page += 4096) {
        uint64_t* words = reinterpret_cast<uint64_t*>(static_cast<char*>(buffer) + page);
        for (size_t i = 0; i < 512; i += 8) words[i] = mix64(seed ^ (at + page + i));
      }
      if (at == 0) memset(buffer, 0, std::min(zero_bytes, kChunkBytes));
      const size_t want = static_cast<size_t>(std::min<uint64_t>(kChunkBytes, bytes - at));
      const ssize_t put = pwrite(fd, buffer, want, static_cast<off_t>(at));
      if (put != static_cast<ssize_t>(want)) failed = "writing", error = put < 0 ? errno : ENOSPC;
    }
  } catch (...) {
    munmap(buffer, kChunkBytes);
    close(fd);
    unlink(path.c_str());
    throw;
  }
  if (failed == nullptr && fsync(fd) != 0) failed = "fsync", error = errno;
  if (buffer != MAP_FAILED) munmap(buffer, kChunkBytes);
  close(fd);
  if (failed != nullptr) give_up(path, failed, error);
}

std::string swap_header(uint64_t bytes, size_t page_bytes) {
  std::string page(page_bytes, '\0');
  // union swap_header of linux/swap.h: 1024 bytes for boot loaders, then version, last_page,
  // nr_badpages.
  const uint32_t words[3] = {1, static_cast<uint32_t>(bytes / page_bytes - 1), 0};
  memcpy(&page[1024], words, sizeof words);
  memcpy(&page[page_bytes - 10], "SWAPSPACE2", 10);
  return page;
}

bool remove_zram(const std::string& number) {
  if (swapoff(("/dev/zram" + number).c_str()) != 0 && errno != EINVAL && errno != ENOENT)
    return false;
  (void)write_text(fmt::format("/sys/block/zram{}/reset", number), "1");
  return write_text("/sys/class/zram-control/hot_remove", number) == 0 ||
         access(("/sys/block/zram" + number).c_str(), F_OK) != 0;
}

SwapFile::SwapFile(SwapKind kind, const std::string& path, uint64_t bytes, SetupJournal& journal,
                   const std::function<void()>& pause)
    : kind_(kind), path_(path), journal_(journal) {
  try {
    if (kind_ == SwapKind::kZram)
      make_zram(bytes);
    else
      make_file(bytes, pause);
    turn_on(bytes);
    if (kind_ == SwapKind::kZswap) zswap_.emplace(journal_, "zswap").set("Y");
    cluster_.emplace(journal_, "page-cluster");
  } catch (...) {
    undo();
    throw;
  }
}

void SwapFile::make_file(uint64_t bytes, const std::function<void()>& pause) {
  recorded_.emplace(journal_, "swapfile " + path_);
  write_whole_file(path_, bytes, 0, 0x5157, pause);
}

// A read of hot_add makes a device. A process that is killed before the record leaves an empty one.
void SwapFile::make_zram(uint64_t bytes) {
  zram_ = trimmed(read_text("/sys/class/zram-control/hot_add").value_or(""));
  if (zram_.empty())
    throw std::runtime_error("this kernel has no zram (modprobe zram), or root is needed");
  recorded_.emplace(journal_, fmt::format("zram {} {}", zram_, SetupJournal::boot_id()));
  path_ = "/dev/zram" + zram_;
  if (const int error =
          write_text(fmt::format("/sys/block/zram{}/disksize", zram_), fmt::format("{}", bytes));
      error != 0)
    throw std::runtime_error(fmt::format("the size of {}: {}", path_, strerror(-error)));
}

void SwapFile::turn_on(uint64_t bytes) {
  const std::string header = swap_header(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  const int fd = open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  const bool put =
      fd >= 0 &&
      pwrite(fd, header.data(), header.size(), 0) == static_cast<ssize_t>(header.size()) &&
      fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!put)
    throw std::runtime_error(
        fmt::format("writing the header of {} failed: {}", path_, strerror(error)));
  // This swap has a higher priority than the host's, so that it is the one that is measured.
  if (swapon(path_.c_str(), SWAP_FLAG_PREFER | SWAP_FLAG_PRIO_MASK) != 0) {
    const char* hint =
        errno == EPERM ? " (run as root: sudo)"
        : errno == EINVAL
            ? " (this file system cannot hold a swap file; try --lun DIR on ext4 or xfs)"
            : "";
    throw std::runtime_error(fmt::format("swapon {}: {}{}", path_, strerror(errno), hint));
  }
  on_ = true;
}

SwapFile::~SwapFile() { undo(); }

void SwapFile::undo() {
  cluster_.reset();
  zswap_.reset();
  const char* failed = nullptr;
  if (on_ && swapoff(path_.c_str()) != 0)
    failed = "swapoff";
  else if (!zram_.empty() && !remove_zram(zram_))
    failed = "removal";
  if (failed != nullptr) {
    fmt::print(stderr, "lunar: bench: {} of {} failed: {}; the next run tries again\n", failed,
               path_, strerror(errno));
    if (recorded_) recorded_->keep();
  } else if (kind_ != SwapKind::kZram) {
    unlink(path_.c_str());
  }
  recorded_.reset();
}

uint64_t SwapFile::memory_bytes() const {
  if (kind_ == SwapKind::kZswap) return sys::machine_memory_bytes("Zswap");
  if (kind_ == SwapKind::kFile) return 0;
  std::istringstream words(read_text(fmt::format("/sys/block/zram{}/mm_stat", zram_)).value_or(""));
  uint64_t stored = 0, compressed = 0, used = 0;
  words >> stored >> compressed >> used;
  return used;
}

std::string SwapFile::state() const {
  if (kind_ == SwapKind::kFile) return "file";
  const auto text = [](const std::string& path) { return trimmed(read_text(path).value_or("")); };
  if (kind_ == SwapKind::kZram)
    return "zram, " + text(fmt::format("/sys/block/zram{}/comp_algorithm", zram_));
  return fmt::format("zswap, {}, at most {}% of memory",
                     text("/sys/module/zswap/parameters/compressor"),
                     text("/sys/module/zswap/parameters/max_pool_percent"));
}

RunResult SwapFile::at_better_page_cluster(const std::function<RunResult()>& measure,
                                           int* page_cluster) {
  constexpr int kChoice[2] = {0, 3};
  RunResult trials[2];
  for (int i = 0; i < 2; ++i) {
    cluster_->set(std::to_string(kChoice[i]));
    trials[i] = measure();
  }
  const bool second = trials[0].job_s > 0 ? trials[1].job_s < trials[0].job_s
                                          : trials[1].ops_per_s > trials[0].ops_per_s;
  *page_cluster = kChoice[second ? 1 : 0];
  cluster_->set(std::to_string(*page_cluster));
  return trials[second ? 1 : 0];
}

}  // namespace lunar::tools
