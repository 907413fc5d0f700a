// SPDX-License-Identifier: Apache-2.0
// What the tests that compare two servers share: a server started by hand, and a socket that sends
// bytes as it is told to.
// Threading: one thread an object.
#pragma once
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>

#include "tests/e2e/e2e.h"

namespace e2e {

inline int g_socket_patience_s = 60;

[[noreturn]] inline void give_up(const std::string& why) { throw std::runtime_error(why); }

// A connection that speaks bytes. Every wait ends.
class Wire {
 public:
  explicit Wire(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }
  ~Wire() { close(); }
  Wire(Wire&& other) noexcept : fd_(std::exchange(other.fd_, -1)), in_(std::move(other.in_)) {}
  Wire(const Wire&) = delete;
  bool open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void close(bool reset = false) {
    if (fd_ < 0) return;
    linger now{1, 0};
    if (reset) setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    ::close(fd_);
    fd_ = -1;
  }
  void end_of_input() { shutdown(fd_, SHUT_WR); }
  void send_all(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      pollfd p{fd_, static_cast<short>(POLLOUT | POLLIN), 0};
      if (poll(&p, 1, g_socket_patience_s * 1000) <= 0)
        give_up(fmt::format("a server took nothing for {} s", g_socket_patience_s));
      if (p.revents & POLLIN) (void)take();  // so that neither side waits for the other
      ssize_t n = send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN) give_up(fmt::format("send: {}", strerror(errno)));
      if (n > 0) at += static_cast<size_t>(n);
    }
  }
  // What has come, up to and with `end` at its end; or until the server closes (ended).
  std::string receive_until(const std::string& end) {
    while (in_.size() < end.size() || in_.compare(in_.size() - end.size(), end.size(), end) != 0) {
      pollfd p{fd_, POLLIN, 0};
      if (poll(&p, 1, g_socket_patience_s * 1000) <= 0)
        give_up(fmt::format("no answer for {} s, waiting for '{}' after {} bytes",
                            g_socket_patience_s, end, in_.size()));
      if (!take()) {
        ended_ = true;
        break;
      }
    }
    return std::exchange(in_, {});
  }
  std::string receive_to_the_end() { return receive_until("\x01 the end \x01"); }
  bool ended() const { return ended_; }

 private:
  bool take() {
    char buffer[1 << 16];
    ssize_t n = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) in_.append(buffer, static_cast<size_t>(n));
    return n > 0 || (n < 0 && errno == EAGAIN);
  }
  int fd_;
  std::string in_;
  bool ended_ = false;
};

inline std::string resp(const Words& words) {
  std::string text = fmt::format("*{}\r\n", words.size());
  for (const auto& w : words) text += fmt::format("${}\r\n{}\r\n", w.size(), w);
  return text;
}

class Server {
 public:
  // `wrapper`: what starts it ("lunar run ... --"), or nothing. `environment`: variables added to
  // ours, "NAME=value".
  Server(const std::string& directory, const std::string& name, int port, const Words& further,
         const Words& wrapper = {}, Words environment = {})
      : port_(port) {
    Words words = wrapper;
    words.insert(words.end(),
                 {redis_server(), "--port", std::to_string(port), "--save", "", "--appendonly",
                  "no", "--dir", directory, "--databases", "4", "--enable-debug-command", "yes",
                  "--hash-max-listpack-entries", "32"});
    words.insert(words.end(), further.begin(), further.end());
    log_ = directory + "/" + name + ".log";
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int log = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(log, 1);
      dup2(log, 2);
      std::vector<char*> arguments;
      for (auto& w : words) arguments.push_back(w.data());
      arguments.push_back(nullptr);
      for (auto& variable : environment) putenv(variable.data());
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    for (int i = 0; i < 200; ++i) {
      if (Wire wire(port); wire.open()) return;
      if (waitpid(pid_, nullptr, WNOHANG) != 0) break;
      usleep(50000);
    }
    give_up(fmt::format("{} did not start: {}", name, text_of(log_)));
  }
  ~Server() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  // SHUTDOWN, and the log with what it left there at its end.
  std::string shut_down() {
    Wire(port_).send_all(resp({"SHUTDOWN", "NOSAVE"}));
    for (int i = 0; i < 400 && pid_ > 0; ++i) {
      if (waitpid(pid_, nullptr, WNOHANG) == pid_)
        pid_ = -1;
      else
        usleep(50000);
    }
    if (pid_ > 0) give_up("a server does not shut down");
    return text_of(log_);
  }
  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  std::string log() const { return text_of(log_); }
  // One command on a connection of its own; the whole reply's bytes. QUIT ends it: a server that
  // loads takes no PING.
  std::string ask(const Words& words) const {
    Wire wire(port_);
    wire.send_all(resp(words) + resp({"QUIT"}));
    std::string reply = wire.receive_to_the_end();
    return reply.substr(0, reply.size() < 5 ? 0 : reply.size() - 5);
  }
  uint64_t info(const std::string& key) const {
    const std::string text = ask({"INFO", "everything"});
    const size_t at = text.find("\n" + key + ":");
    return at == std::string::npos ? 0 : strtoull(text.c_str() + at + key.size() + 2, nullptr, 10);
  }
  // Of its descriptors; the pager opens a ring for a thread that first reads from a LUN.
  size_t sockets() const {
    size_t n = 0;
    std::error_code gone;
    for (auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid_)))
      n += std::filesystem::read_symlink(entry.path(), gone).string().starts_with("socket:");
    return n;
  }

 private:
  int port_;
  pid_t pid_ = -1;
  std::string log_;
};

inline int free_port() {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0;
  close(fd);
  require(bound, "no free port");
  return ntohs(at.sin_port);
}

}  // namespace e2e
