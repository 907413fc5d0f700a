// SPDX-License-Identifier: Apache-2.0
// See program.h. The loader preloads only into an ELF program for this machine, with a glibc
// loader, that gains no privilege when executed.
#include "tools/run/program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "sys/program_file.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

int fail(int code, std::string* why, std::string line) {
  *why = std::move(line);
  return code;
}

// Finds the path that execvp would find. 0, or an exit code with *why.
int locate(const std::string& name, std::string* path, std::string* why) {
  if (name.empty()) return fail(kExitNotFound, why, "the command is an empty word");
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else {
    const char* search = getenv("PATH");
    std::string directories = search ? search : "/bin:/usr/bin";
    for (size_t at = 0; at <= directories.size();) {
      size_t end = std::min(directories.find(':', at), directories.size());
      std::string directory = directories.substr(at, end - at);
      candidates.push_back((directory.empty() ? "." : directory) + "/" + name);
      at = end + 1;
    }
  }
  std::string refused;
  int refused_error = 0;
  for (const std::string& candidate : candidates) {
    struct stat status;
    if (stat(candidate.c_str(), &status) != 0) {
      if (errno == EACCES && refused.empty()) refused = candidate, refused_error = EACCES;
      continue;
    }
    if (S_ISREG(status.st_mode) && faccessat(AT_FDCWD, candidate.c_str(), X_OK, AT_EACCESS) == 0) {
      *path = candidate;
      return 0;
    }
    if (refused.empty())
      refused = candidate, refused_error = S_ISDIR(status.st_mode) ? EISDIR : EACCES;
  }
  if (refused_error == EISDIR)
    return fail(kExitNotExecutable, why,
                text_of("%s is a directory, not a program", refused.c_str()));
  if (refused_error) {
    return fail(kExitNotExecutable, why,
                text_of("%s is not executable: %s; to make it so: chmod +x %s", refused.c_str(),
                        errno_text(refused_error), shell_word(refused).c_str()));
  }
  if (name.find('/') != std::string::npos)
    return fail(kExitNotFound, why, text_of("%s: no such file", name.c_str()));
  return fail(kExitNotFound, why, text_of("%s: command not found in PATH", name.c_str()));
}

// Refuses a program that the library cannot serve. 0, or an exit code with *why.
int check_kind(const sys::ProgramFile& file, const std::string& path, std::string* why) {
  const char *name = path.c_str(), *detail = file.detail;
  switch (file.kind) {
    case sys::ProgramKind::kServed:
      if (*detail == '\0' || access(detail, X_OK) == 0) return 0;
      return fail(kExitNotFound, why,
                  text_of("%s needs the loader %s, which is not there", name, detail));
    case sys::ProgramKind::kScript:
    case sys::ProgramKind::kLoader:
      return 0;
    case sys::ProgramKind::kDamaged:
      return fail(kExitNotExecutable, why, text_of("%s is a damaged program file", name));
    case sys::ProgramKind::kPrivileged:
      return fail(
          kExitOwnFailure, why,
          text_of(
              "%s is %s, and the loader preloads nothing into such programs; run it as its owner "
              "(root: sudo lunar run ...)",
              name, detail));
    case sys::ProgramKind::kOtherMachine:
      return fail(
          kExitOwnFailure, why,
          text_of("%s is a program of another architecture; its heap cannot be tiered", name));
    case sys::ProgramKind::kStatic:
      return fail(kExitOwnFailure, why,
                  text_of("%s is statically linked, so LD_PRELOAD does not reach it; use a "
                          "dynamically linked build of it",
                          name));
    case sys::ProgramKind::kOtherLibc:
      return fail(kExitOwnFailure, why,
                  text_of("%s uses another C library than glibc (musl?); Lunar's preload needs a "
                          "glibc build of it",
                          name));
    case sys::ProgramKind::kSanitized:
      return fail(kExitOwnFailure, why,
                  text_of("%s is built with %s, which needs the memory that Lunar serves; run it "
                          "without Lunar, or use a build without -fsanitize",
                          name, detail));
  }
  return 0;
}

// Splits a #! line into the interpreter and the rest.
void split_script_line(const std::string& line, std::string* interpreter, std::string* rest) {
  size_t start = std::min(line.find_first_not_of(" \t", 2), line.size());
  size_t end = std::min(line.find_first_of(" \t", start), line.size());
  *interpreter = line.substr(start, end - start);
  size_t rest_start = line.find_first_not_of(" \t", end);
  *rest = rest_start == std::string::npos ? "" : line.substr(rest_start);
}

// Finds the program in the words "[-S] [NAME=VALUE]... program" of env(1); "" if there is none.
std::string program_of_env(const std::string& words) {
  for (size_t at = 0; at < words.size();) {
    size_t end = std::min(words.find_first_of(" \t", at), words.size());
    std::string word = words.substr(at, end - at);
    at = end + 1;
    if (word == "-u" || word == "-C") {  // with a value: the next word
      at = words.find_first_not_of(" \t", at);
      at = words.find_first_of(" \t", at);
      continue;
    }
    if (!word.empty() && word[0] != '-' && word.find('=') == std::string::npos) return word;
  }
  return "";
}

int check_file(const std::string& path, unsigned depth, bool* shell, sys::ProgramFile* kind,
               std::string* why);

int check_script(const std::string& path, const std::string& line, unsigned depth,
                 std::string* why) {
  if (depth > 4)
    return fail(kExitNotExecutable, why,
                text_of("%s: too many interpreters of interpreters", path.c_str()));
  std::string interpreter, rest;
  split_script_line(line, &interpreter, &rest);
  if (interpreter.empty())
    return fail(kExitNotExecutable, why,
                text_of("%s: its #! line names no interpreter", path.c_str()));
  if (access(interpreter.c_str(), F_OK) != 0) {
    return fail(kExitNotFound, why,
                text_of("%s: its interpreter %s is not there", path.c_str(), interpreter.c_str()));
  }
  bool shell = false;
  sys::ProgramFile kind;
  int code = check_file(interpreter, depth + 1, &shell, &kind, why);
  if (code == 0 && interpreter.substr(interpreter.rfind('/') + 1) == "env") {
    std::string name = program_of_env(rest), found;
    if (!name.empty()) code = locate(name, &found, why);
    if (!name.empty() && code == 0) code = check_file(found, depth + 1, &shell, &kind, why);
  }
  if (code != 0) *why = text_of("%s: %s", path.c_str(), why->c_str());
  return code;
}

int check_file(const std::string& path, unsigned depth, bool* shell, sys::ProgramFile* kind,
               std::string* why) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // A program may be executable but not readable. ld.so preloads into it unless it gains privilege.
  if (fd < 0) return 0;
  char head[1024] = {};
  const ssize_t got = pread(fd, head, sizeof head - 1, 0);
  sys::program_look(fd, kind);
  int code = check_kind(*kind, path, why);
  if (kind->kind == sys::ProgramKind::kScript) {
    std::string line(head, static_cast<size_t>(got));
    code = check_script(path, line.substr(0, line.find('\n')), depth, why);
  } else if (code == 0 && !(got >= SELFMAG && memcmp(head, ELFMAG, SELFMAG) == 0)) {
    if (got > 0 && memchr(head, 0, static_cast<size_t>(got)) != nullptr)
      code = fail(kExitNotExecutable, why,
                  text_of("%s is in no executable format of this machine", path.c_str()));
    else
      *shell = true;  // text: shells run it as a script of their own
  }
  close(fd);
  return code;
}

// Finds the program in a command line of glibc's loader; "": there is none, or the loader searches
// for it like a library.
std::string program_of_loader(const std::vector<char*>& command) {
  for (size_t i = 1; i < command.size(); ++i) {
    const std::string word = command[i];
    if (word.compare(0, 2, "--") != 0) return word.find('/') != std::string::npos ? word : "";
    for (const char* takes_value : {"--library-path", "--inhibit-rpath", "--audit", "--preload",
                                    "--argv0", "--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"})
      if (word == takes_value) ++i;
  }
  return "";
}

}  // namespace

int find_program(const std::vector<char*>& command, Program* out, std::string* why) {
  out->shell = false;
  if (int code = locate(command[0], &out->path, why); code != 0) return code;
  sys::ProgramFile kind;
  const int code = check_file(out->path, 0, &out->shell, &kind, why);
  if (code != 0 || kind.kind != sys::ProgramKind::kLoader) return code;
  const std::string started = program_of_loader(command);
  bool shell = false;
  return started.empty() ? 0 : check_file(started, 0, &shell, &kind, why);
}

}  // namespace lunar::tools
