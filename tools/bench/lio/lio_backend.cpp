// SPDX-License-Identifier: Apache-2.0
// See lio_backend.h.
// Threading: one thread (the C library's lio_listio has threads of its own). May not be used by runtime/ (it
// allocates).
#include "tools/bench/lio/lio_backend.h"

#include <aio.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "capiblock.h"

namespace lunar::tools {

namespace {

class CblkList final : public LioBackend {
 public:
  CblkList(const char* system, const std::string& path, const std::string& delegate, unsigned depth) : system_(system) {
    chunk_ =
        cblk_open(fmt::format("pmem:{},delegate={}", path, delegate).c_str(), static_cast<int>(depth), O_RDWR, 0, 0);
    if (chunk_ == NULL_CHUNK_ID) throw std::runtime_error(fmt::format("cblk_open of {}: {}", path, strerror(errno)));
  }
  ~CblkList() override { (void)cblk_close(chunk_, 0); }
  CblkList(const CblkList&) = delete;
  CblkList& operator=(const CblkList&) = delete;

  const char* system() const override { return system_; }
  void start(const std::vector<ListIo>& list, bool write) override {
    prepare(list, write);
    auto room = static_cast<int>(list.size());
    done_.resize(list.size());
    places_.resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) places_[i] = &done_[i];
    if (cblk_listio(chunk_, issue_.data(), room, nullptr, 0, nullptr, 0, places_.data(), &room, 0, 0) < 0) fail();
  }
  void finish() override {
    std::vector<cblk_io_t*>& left = places_;
    left.clear();
    for (cblk_io_t& io : ios_) {
      if (io.stat.status == CBLK_ARW_STATUS_PENDING) left.push_back(&io);
    }
    int room = 0;
    const auto n = static_cast<int>(left.size());
    if (n > 0 && cblk_listio(chunk_, nullptr, 0, left.data(), n, left.data(), n, nullptr, &room, 0, 0) < 0) fail();
    check();
  }
  void run(const std::vector<ListIo>& list, bool write) override {
    prepare(list, write);
    const auto n = static_cast<int>(list.size());
    int room = 0;
    if (cblk_listio(chunk_, issue_.data(), n, nullptr, 0, issue_.data(), n, nullptr, &room, 0, 0) < 0) fail();
    check();
  }

 private:
  static constexpr size_t kBlock = 4096;
  [[noreturn]] static void fail() { throw std::runtime_error(fmt::format("cblk_listio: {}", strerror(errno))); }
  void prepare(const std::vector<ListIo>& list, bool write) {
    ios_.assign(list.size(), cblk_io_t{});
    issue_.resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      cblk_io_t& io = ios_[i];
      io.request_type = write ? CBLK_IO_TYPE_WRITE : CBLK_IO_TYPE_READ;
      io.buf = list[i].buffer;
      io.lba = static_cast<cflash_offset_t>(list[i].offset / kBlock);
      io.nblocks = list[i].bytes / kBlock;
      issue_[i] = &io;
    }
  }
  void check() const {
    for (const cblk_io_t& io : ios_) {
      if (io.stat.status != CBLK_ARW_STATUS_SUCCESS || io.stat.blocks_transferred != io.nblocks)
        throw std::runtime_error(fmt::format("an I/O of {} blocks: status {}, {} blocks, errno {}", io.nblocks,
                                             static_cast<int>(io.stat.status), io.stat.blocks_transferred,
                                             io.stat.fail_errno));
    }
  }

  const char* system_;
  chunk_id_t chunk_ = NULL_CHUNK_ID;
  std::vector<cblk_io_t> ios_, done_;
  std::vector<cblk_io_t*> issue_, places_;
};

// An interrupted lio_listio(LIO_WAIT) leaves pointers into its stack behind, by which the library's threads then crash:
// signals wait until the call is over.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

class GlibcList final : public LioBackend {
 public:
  explicit GlibcList(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error(fmt::format("{} cannot be opened: {}", path, strerror(errno)));
    char byte;
    if (pread(fd_, &byte, 1, 0) != 1) {
      close(fd_);
      throw std::runtime_error(fmt::format("{} cannot be read by system calls, which lio_listio makes", path));
    }
  }
  ~GlibcList() override { close(fd_); }
  GlibcList(const GlibcList&) = delete;
  GlibcList& operator=(const GlibcList&) = delete;

  const char* system() const override { return "lio_listio"; }
  void start(const std::vector<ListIo>& list, bool write) override { issue(list, write, LIO_NOWAIT); }
  void finish() override {
    for (aiocb& block : blocks_) {
      const aiocb* one[] = {&block};
      while (aio_error(&block) == EINPROGRESS) (void)aio_suspend(one, 1, nullptr);
      if (aio_return(&block) != static_cast<ssize_t>(block.aio_nbytes))
        throw std::runtime_error("lio_listio: an I/O failed");
    }
  }
  void run(const std::vector<ListIo>& list, bool write) override {
    {
      const NoSignals blocked;
      issue(list, write, LIO_WAIT);
    }
    finish();
  }

 private:
  void issue(const std::vector<ListIo>& list, bool write, int mode) {
    blocks_.assign(list.size(), aiocb{});
    pointers_.resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      aiocb& block = blocks_[i];
      block.aio_fildes = fd_;
      block.aio_offset = static_cast<off_t>(list[i].offset);
      block.aio_buf = list[i].buffer;
      block.aio_nbytes = list[i].bytes;
      block.aio_lio_opcode = write ? LIO_WRITE : LIO_READ;
      block.aio_sigevent.sigev_notify = SIGEV_NONE;
      pointers_[i] = &block;
    }
    if (lio_listio(mode, pointers_.data(), static_cast<int>(list.size()), nullptr) != 0)
      throw std::runtime_error(fmt::format("lio_listio: {}", strerror(errno)));
  }
  int fd_;
  std::vector<aiocb> blocks_;
  std::vector<aiocb*> pointers_;
};

}  // namespace

std::unique_ptr<LioBackend> make_lunar_backend(const char* system, const std::string& path, const std::string& delegate,
                                               unsigned depth) {
  return std::make_unique<CblkList>(system, path, delegate, depth);
}

std::unique_ptr<LioBackend> make_listio_backend(const std::string& path) { return std::make_unique<GlibcList>(path); }

}  // namespace lunar::tools
