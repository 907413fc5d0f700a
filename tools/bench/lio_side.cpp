// SPDX-License-Identifier: Apache-2.0
// See lio_side.h.
// Threading: one thread (the C library's lio_listio has threads of its own). May not be used by runtime/ (it allocates).
#include "bench/lio_side.h"

#include <aio.h>
#include <fcntl.h>
#include <signal.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "superpipe/device.h"

namespace lunar::tools {

namespace {

class LunarList final : public LioSide {
 public:
  LunarList(const char* system, const std::string& path, const std::string& delegate, unsigned depth) : system_(system) {
    DeviceOptions options;
    options.scratch = false;
    ErrorText why;
    if (device_open(fmt::format("pmem:{},delegate={}", path, delegate).c_str(), options, &device_, &why) < 0)
      throw std::runtime_error(why.text);
    ContextOptions context;
    context.depth = depth;
    if (const int err = device_->attach(context, &context_); err < 0) {
      device_close(device_);
      throw std::runtime_error(fmt::format("no context on {}: {}", path, errno_text(err)));
    }
    responses_.resize(depth);
  }
  ~LunarList() override {
    device_->detach(context_);
    device_close(device_);
  }
  LunarList(const LunarList&) = delete;
  LunarList& operator=(const LunarList&) = delete;

  const char* system() const override { return system_; }
  void start(const std::vector<ListIo>& list, bool write) override {
    parts_.resize(list.size());
    commands_.resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      parts_[i] = {list[i].buffer, list[i].bytes};
      Command& command = commands_[i];
      command.op = write ? Op::kWrite : Op::kRead;
      command.offset = DeviceOffset{list[i].offset};
      command.iov = &parts_[i];
      command.iov_count = 1;
      command.tag = i;
    }
    const auto n = static_cast<unsigned>(list.size());
    if (context_->submit(commands_.data(), n) != static_cast<int>(n)) throw std::runtime_error("the list was not taken whole");
  }
  void finish() override {
    while (context_->in_flight() > 0) {
      const int n = context_->wait(responses_.data(), static_cast<unsigned>(responses_.size()), -1);
      for (int i = 0; i < n; ++i) {
        const Response& response = responses_[static_cast<size_t>(i)];
        if (response.result != static_cast<int64_t>(parts_[response.tag].iov_len))
          throw std::runtime_error(fmt::format("an I/O of {} bytes ended with {}", parts_[response.tag].iov_len, response.result));
      }
    }
  }

 private:
  const char* system_;
  Device* device_ = nullptr;
  Context* context_ = nullptr;
  std::vector<iovec> parts_;
  std::vector<Command> commands_;
  std::vector<Response> responses_;
};

// An interrupted lio_listio(LIO_WAIT) leaves pointers into its stack behind, by which the library's threads then crash: signals
// wait until the call is over.
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

class GlibcList final : public LioSide {
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
      if (aio_return(&block) != static_cast<ssize_t>(block.aio_nbytes)) throw std::runtime_error("lio_listio: an I/O failed");
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
    if (lio_listio(mode, pointers_.data(), static_cast<int>(list.size()), nullptr) != 0) throw std::runtime_error(fmt::format("lio_listio: {}", strerror(errno)));
  }
  int fd_;
  std::vector<aiocb> blocks_;
  std::vector<aiocb*> pointers_;
};

}   // namespace

std::unique_ptr<LioSide> make_lunar_side(const char* system, const std::string& path, const std::string& delegate, unsigned depth) {
  return std::make_unique<LunarList>(system, path, delegate, depth);
}

std::unique_ptr<LioSide> make_listio_side(const std::string& path) { return std::make_unique<GlibcList>(path); }

}   // namespace lunar::tools
