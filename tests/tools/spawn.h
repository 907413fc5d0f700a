// SPDX-License-Identifier: Apache-2.0
// Runs a program to its end with an environment of its own choosing, and keeps what it printed.
// Threading: one thread. Test helper; throws nothing, fails the test case instead.
#pragma once
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace lunar::test {

struct TempDir {
  std::string path;
  TempDir() {
    // Not /tmp: it may be a memory file system, which no LUN may lie on.
    char name[] = "/var/tmp/lunar-test-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
    (void)!chmod(path.c_str(), 0755);
  }
  ~TempDir() { (void)!system(("rm -rf '" + path + "'").c_str()); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string write(const std::string& name, const std::string& text, int mode = 0644) const {
    std::string file = path + "/" + name;
    std::ofstream(file) << text;
    (void)!chmod(file.c_str(), static_cast<mode_t>(mode));
    return file;
  }
};

struct Ended {
  int code = -1;  // exit code; -signal when killed by one
  pid_t pid = 0;
  std::string out, err;
  bool says(const std::string& part) const { return err.find(part) != std::string::npos; }
  size_t err_lines() const { return static_cast<size_t>(std::count(err.begin(), err.end(), '\n')); }
};

struct Spawn {
  std::vector<std::string> variables;  // NAME=VALUE on top of PATH and HOME (an empty directory)
  std::string directory;               // to be in
  bool as_nobody = false;
};

inline std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline Ended run(const std::vector<std::string>& words, const Spawn& how = {}) {
  TempDir dir;
  std::string out_path = dir.path + "/out", err_path = dir.path + "/err", home = "HOME=" + dir.path;
  std::vector<char*> arguments, environment;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::string path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  environment = {path.data(), home.data()};
  for (const std::string& variable : how.variables)
    environment.push_back(const_cast<char*>(variable.c_str()));
  environment.push_back(nullptr);
  Ended ended;
  ended.pid = fork();
  REQUIRE(ended.pid >= 0);
  if (ended.pid == 0) {
    int in = open("/dev/null", O_RDONLY), out = open(out_path.c_str(), O_CREAT | O_WRONLY, 0644),
        err = open(err_path.c_str(), O_CREAT | O_WRONLY, 0644);
    dup2(in, 0), dup2(out, 1), dup2(err, 2);
    for (int fd = 3; fd < 1024; ++fd) close(fd);
    if (!how.directory.empty() && chdir(how.directory.c_str()) != 0) _exit(99);
    constexpr unsigned kNobody = 65534;
    if (how.as_nobody &&
        (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0))
      _exit(99);
    execve(arguments[0], arguments.data(), environment.data());
    _exit(98);
  }
  int status = 0;
  REQUIRE(waitpid(ended.pid, &status, 0) == ended.pid);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  ended.out = text_of_file(out_path);
  ended.err = text_of_file(err_path);
  return ended;
}

}  // namespace lunar::test
