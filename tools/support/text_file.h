// SPDX-License-Identifier: Apache-2.0
// Reads and writes whole small files, as those of /proc, /sys and cgroups.
// Threading: free functions, no state.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>

namespace lunar::tools {

// The whole text, or nothing with errno if it cannot be read.
inline std::optional<std::string> read_text(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  std::string text;
  char chunk[4096];
  ssize_t got;
  while ((got = ::read(fd, chunk, sizeof chunk)) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    text.append(chunk, static_cast<size_t>(got));
  }
  const int saved = errno;
  ::close(fd);
  errno = saved;
  if (got < 0) return std::nullopt;
  return text;
}

// Writes the text in one write(2), which control files require. 0 or -errno.
inline int write_text(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  ssize_t put;
  do put = ::write(fd, text.data(), text.size());
  while (put < 0 && errno == EINTR);
  const int result = put < 0 ? -errno : static_cast<size_t>(put) == text.size() ? 0 : -EIO;
  ::close(fd);
  return result;
}

inline std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\n") - first + 1));
}

}  // namespace lunar::tools
