// SPDX-License-Identifier: Apache-2.0
// See load_generator.h. hiredis' reader parses the replies; the sockets do not block.
#include "tools/bench/redis/load_generator.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include "tools/support/clock.h"
#include "tools/support/process.h"

namespace lunar::tools {

namespace {
constexpr size_t kBufferBytes = 256 << 10;
constexpr int kEventsMax = 256;
constexpr uint64_t kWaitNs = 100'000'000, kSilenceNsMax = 60'000'000'000, kProgressNs = 250'000'000;

uint64_t ns_of(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }
}  // namespace

struct LoadGenerator::Connection {
  unsigned index = 0;
  int fd = -1;
  redisReader* reader = nullptr;
  std::string out;  // from out_at on not written yet
  size_t out_at = 0;
  bool wants_write = false;    // EPOLLOUT is on
  std::vector<Request> batch;  // in order; `answered` of them have their reply
  size_t answered = 0;
  uint64_t period_ns = 0;  // time between batches; 0: closed loop
  uint64_t sent_ns = 0;    // with a rate: the time at which the batch was due
  bool idle = false;       // with a rate: waits until due_ns
  uint64_t due_ns = 0;
  ~Connection() {
    if (reader != nullptr) redisReaderFree(reader);
    if (fd >= 0) close(fd);
  }
};

LoadGenerator::LoadGenerator(const std::vector<uint16_t>& ports, unsigned connections,
                             Dataset& data)
    : data_(data), epoll_(epoll_create1(EPOLL_CLOEXEC)), buffer_(kBufferBytes) {
  try {
    if (epoll_ < 0) throw std::runtime_error(fmt::format("epoll: {}", strerror(errno)));
    connect_all(ports, connections);
  } catch (...) {
    if (epoll_ >= 0) close(epoll_);
    throw;
  }
}

LoadGenerator::~LoadGenerator() { close(epoll_); }

void LoadGenerator::connect_all(const std::vector<uint16_t>& ports, unsigned count) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (unsigned i = 0; i < count; ++i) {
    auto one = std::make_unique<Connection>();
    one->index = i;
    const uint16_t port = ports[i % ports.size()];
    address.sin_port = htons(port);
    one->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = i;
    if (one->fd < 0 ||
        connect(one->fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0 ||
        fcntl(one->fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(epoll_, EPOLL_CTL_ADD, one->fd, &event) != 0) {
      throw std::runtime_error(
          fmt::format("connection {} to 127.0.0.1:{}: {}", i + 1, port, strerror(errno)));
    }
    one->reader = redisReaderCreate();
    if (one->reader == nullptr) throw std::runtime_error("no memory for a reader of replies");
    connections_.push_back(std::move(one));
  }
}

void LoadGenerator::flush(Connection& who) {
  while (who.out_at < who.out.size()) {
    const ssize_t put =
        send(who.fd, who.out.data() + who.out_at, who.out.size() - who.out_at, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno != EAGAIN)
      throw std::runtime_error(fmt::format("sending to the server: {}", strerror(errno)));
    if (put < 0) break;
    who.out_at += static_cast<size_t>(put);
  }
  const bool wants_write = who.out_at < who.out.size();
  if (!wants_write) {
    who.out.clear();
    who.out_at = 0;
  }
  if (wants_write == who.wants_write) return;
  epoll_event event{};
  event.events = EPOLLIN | (wants_write ? EPOLLOUT : 0u);
  event.data.u32 = who.index;
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, who.fd, &event) != 0) {
    throw std::runtime_error(fmt::format("epoll: {}", strerror(errno)));
  }
  who.wants_write = wants_write;
}

void LoadGenerator::send_batch(Connection& who, const LoadPlan& plan) {
  who.batch.clear();
  who.answered = 0;
  Request request;
  while (sending_ && who.batch.size() < plan.pipeline && plan.next(who.index, &request)) {
    who.batch.push_back(request);
    data_.append(request, &who.out);
  }
  if (who.batch.empty()) return;
  outstanding_ += who.batch.size();
  who.sent_ns = who.period_ns > 0 ? who.due_ns : now_ns();
  flush(who);
}

void LoadGenerator::handle_reply(Connection& who, const redisReply& reply, uint64_t now,
                                 LoadCounts* counts) {
  if (who.answered >= who.batch.size())
    throw std::runtime_error("the server sent a reply without a request");
  const Request& request = who.batch[who.answered++];
  --outstanding_;
  ++replies_;
  std::string wrong = data_.check(request, reply);
  if (!wrong.empty() && counts->mismatches++ == 0) counts->first_mismatch = std::move(wrong);
  if (!measuring_) return;
  const bool second = groups_first_ > 0 && who.index >= groups_first_;
  counts->latencies[second ? 1 : 0].add(now - who.sent_ns);
  if (is_read(request.verb)) ++counts->reads;
}

void LoadGenerator::receive(Connection& who, const LoadPlan& plan, LoadCounts* counts) {
  const ssize_t got = recv(who.fd, buffer_.data(), buffer_.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    throw std::runtime_error(fmt::format("the server closed a connection{}{}", got < 0 ? ": " : "",
                                         got < 0 ? strerror(errno) : ""));
  }
  const uint64_t now = now_ns();
  if (redisReaderFeed(who.reader, buffer_.data(), static_cast<size_t>(got)) != REDIS_OK) {
    throw std::runtime_error(fmt::format("reading replies: {}", who.reader->errstr));
  }
  for (;;) {
    void* raw = nullptr;
    if (redisReaderGetReply(who.reader, &raw) != REDIS_OK) {
      throw std::runtime_error(
          fmt::format("the server does not speak RESP: {}", who.reader->errstr));
    }
    if (raw == nullptr) break;
    const std::unique_ptr<redisReply, decltype(&freeReplyObject)> reply(
        static_cast<redisReply*>(raw), freeReplyObject);
    handle_reply(who, *reply, now, counts);
  }
  if (who.answered < who.batch.size()) return;
  if (who.period_ns == 0) return send_batch(who, plan);
  who.due_ns += who.period_ns;
  who.idle = true;
}

uint64_t LoadGenerator::send_due(const LoadPlan& plan, uint64_t now) {
  uint64_t next = now + kWaitNs;
  for (auto& one : connections_) {
    if (!one->idle) continue;
    if (one->due_ns > now) {
      next = std::min(next, one->due_ns);
    } else if (sending_) {
      one->idle = false;
      send_batch(*one, plan);
    }
  }
  return next;
}

void LoadGenerator::serve(const LoadPlan& plan, LoadCounts* counts) {
  epoll_event events[kEventsMax];
  uint64_t wait_ns = kWaitNs;
  if (plan.rate > 0) {
    const uint64_t now = now_ns();
    wait_ns = send_due(plan, now) - now;
  }
  const timespec wait{0, static_cast<long>(wait_ns)};
  const int ready = epoll_pwait2(epoll_, events, kEventsMax, &wait, nullptr);
  if (ready < 0 && errno != EINTR)
    throw std::runtime_error(fmt::format("epoll: {}", strerror(errno)));
  for (int i = 0; i < ready; ++i) {
    Connection& who = *connections_[events[i].data.u32];
    if ((events[i].events & EPOLLOUT) != 0) flush(who);
    if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) receive(who, plan, counts);
  }
}

LoadCounts LoadGenerator::run(const LoadPlan& plan) {
  LoadCounts counts;
  groups_first_ = plan.first_group;
  sending_ = true;
  measuring_ = false;
  replies_ = 0;
  const uint64_t begin = now_ns();
  uint64_t start = 0, cpu = 0, told = begin, moved = begin, moved_replies = 0;
  const size_t paced = plan.rate <= 0         ? 0
                       : plan.first_group > 0 ? plan.first_group
                                              : connections_.size();
  for (auto& one : connections_) {
    one->period_ns = one->index < paced ? ns_of(static_cast<double>(paced) / plan.rate) : 0;
    one->idle = one->period_ns > 0;
    one->due_ns = begin + (one->idle ? one->period_ns * one->index / paced : 0);
    if (!one->idle) send_batch(*one, plan);
  }
  for (;;) {
    if (start == 0 && now_ns() >= begin + ns_of(plan.warm_seconds)) {
      if (plan.on_start) plan.on_start();
      cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
      start = now_ns();
      measuring_ = true;
    }
    serve(plan, &counts);
    check_interrupted();
    const uint64_t now = now_ns();
    if (replies_ != moved_replies || outstanding_ == 0) {
      moved = now;
      moved_replies = replies_;
    } else if (now - moved > kSilenceNsMax) {
      throw std::runtime_error("the server has not answered for a minute");
    }
    if (plan.on_progress && now - told > kProgressNs) {
      told = now;
      plan.on_progress(replies_);
    }
    const bool stopped = plan.is_over && plan.is_over();
    const bool late = plan.seconds > 0 && start != 0 && now >= start + ns_of(plan.seconds);
    if (measuring_ && (stopped || late || (outstanding_ == 0 && plan.rate <= 0))) {
      counts.seconds = static_cast<double>(now - start) / 1e9;
      counts.cpu_s = static_cast<double>(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu) / 1e9;
      if (plan.on_end) plan.on_end();
      measuring_ = sending_ = false;
    }
    if (!sending_ && outstanding_ == 0) return counts;
  }
}

}  // namespace lunar::tools
