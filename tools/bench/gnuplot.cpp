// SPDX-License-Identifier: Apache-2.0
// See gnuplot.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/gnuplot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "tools/support/process.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {
constexpr double kDrawSecondsMax = 60;
}

std::string plot_obstacle(const std::string& directory) {
  if (find_in_path("gnuplot").empty()) return "--plot needs gnuplot: apt-get install gnuplot-nox";
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return fmt::format("--plot {}: {}", directory, strerror(errno));
  }
  struct stat info{};
  if (stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return fmt::format("--plot {}: not a directory", directory);
  }
  if (access(directory.c_str(), W_OK) != 0) return fmt::format("--plot {}: {}", directory, strerror(errno));
  return {};
}

std::string gnuplot_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

void run_gnuplot(const std::string& directory, const std::string& name, const std::string& script) {
  const std::string path = directory + "/" + name, errors = path + ".err";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int error_fd = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd >= 0) close(fd);
  if (fd < 0 || error_fd < 0 || write_text(path, script) != 0) {
    if (error_fd >= 0) close(error_fd);
    throw std::runtime_error(fmt::format("{} cannot be written: {}", path, strerror(errno)));
  }
  StartOptions start;
  start.standard_output = start.standard_error = error_fd;
  Process gnuplot({find_in_path("gnuplot"), path}, start);
  close(error_fd);
  const bool ended = gnuplot.wait(kDrawSecondsMax);
  const std::string said = trimmed(read_text(errors).value_or(""));
  unlink(errors.c_str());
  if (!ended || gnuplot.how_it_ended() != "exit code 0") {
    throw std::runtime_error(fmt::format("gnuplot: {}: {}", ended ? gnuplot.how_it_ended() : "too slow", said));
  }
}

}  // namespace lunar::tools
