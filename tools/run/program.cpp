// SPDX-License-Identifier: Apache-2.0
// See program.h. The checks are those of the dynamic loader: an ELF program for this machine, with a glibc loader, that
// gains no privilege when executed.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include "tools/run/program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

int fail(int code, std::string* why, std::string line) {
  *why = std::move(line);
  return code;
}

// Where execvp would find it. 0, or an exit code with *why.
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
    if (refused.empty()) refused = candidate, refused_error = S_ISDIR(status.st_mode) ? EISDIR : EACCES;
  }
  if (refused_error == EISDIR)
    return fail(kExitNotExecutable, why, text_of("%s is a directory, not a program", refused.c_str()));
  if (refused_error) {
    return fail(kExitNotExecutable, why,
                text_of("%s is not executable: %s; to make it so: chmod +x %s", refused.c_str(),
                        errno_text(refused_error), shell_word(refused).c_str()));
  }
  if (name.find('/') != std::string::npos) return fail(kExitNotFound, why, text_of("%s: no such file", name.c_str()));
  return fail(kExitNotFound, why, text_of("%s: command not found in PATH", name.c_str()));
}

// ld.so ignores LD_PRELOAD when executing the file changes user, group or capabilities.
bool gains_privilege(const std::string& path, std::string* how) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return false;
  if ((status.st_mode & S_ISUID) && status.st_uid != getuid()) return *how = "setuid", true;
  if ((status.st_mode & S_ISGID) && (status.st_mode & S_IXGRP) && status.st_gid != getgid())
    return *how = "setgid", true;
  if (geteuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0)
    return *how = "given file capabilities", true;
  return false;
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr unsigned char kDataOrder = ELFDATA2LSB;
#else
constexpr unsigned char kDataOrder = ELFDATA2MSB;
#endif

// e_machine of this process' own program.
unsigned own_machine() {
  ElfW(Ehdr) header{};
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return EM_NONE;
  ssize_t got = pread(fd, &header, sizeof header, 0);
  close(fd);
  return got == static_cast<ssize_t>(sizeof header) ? header.e_machine : static_cast<unsigned>(EM_NONE);
}

// The PT_INTERP text, "" when there is none (a static program). False when the headers cannot be read.
bool read_loader(int fd, const ElfW(Ehdr) & header, std::string* loader) {
  loader->clear();
  if (header.e_phentsize != sizeof(ElfW(Phdr)) || header.e_phnum > 512) return false;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) part{};
    if (pread(fd, &part, sizeof part, static_cast<off_t>(header.e_phoff + i * sizeof part)) !=
        static_cast<ssize_t>(sizeof part))
      return false;
    if (part.p_type != PT_INTERP) continue;
    if (part.p_filesz == 0 || part.p_filesz > 4096) return false;
    std::string text(part.p_filesz, '\0');
    if (pread(fd, text.data(), text.size(), static_cast<off_t>(part.p_offset)) != static_cast<ssize_t>(text.size()))
      return false;
    *loader = text.c_str();
  }
  return true;
}

int check_elf(int fd, const std::string& path, std::string* why) {
  ElfW(Ehdr) header{};
  const char* name = path.c_str();
  bool read_all = pread(fd, &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header);
  if (!read_all || header.e_ident[EI_CLASS] != (sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32) ||
      header.e_ident[EI_DATA] != kDataOrder || header.e_machine != own_machine()) {
    return fail(kExitOwnFailure, why,
                text_of("%s is a program of another architecture; its heap cannot be tiered", name));
  }
  std::string loader;
  if (!read_loader(fd, header, &loader))
    return fail(kExitNotExecutable, why, text_of("%s is a damaged program file", name));
  if (loader.empty()) {
    return fail(
        kExitOwnFailure, why,
        text_of("%s is statically linked, so LD_PRELOAD does not reach it; use a dynamically linked build of it",
                name));
  }
  if (loader.find("ld-musl") != std::string::npos) {
    return fail(kExitOwnFailure, why,
                text_of("%s uses the musl C library; Lunar's preload needs a glibc build of it", name));
  }
  if (access(loader.c_str(), X_OK) != 0) {
    return fail(kExitNotFound, why, text_of("%s needs the loader %s, which is not there", name, loader.c_str()));
  }
  return 0;
}

// The words of a #! line: interpreter, and the rest.
void split_script_line(const std::string& line, std::string* interpreter, std::string* rest) {
  size_t start = std::min(line.find_first_not_of(" \t", 2), line.size());
  size_t end = std::min(line.find_first_of(" \t", start), line.size());
  *interpreter = line.substr(start, end - start);
  size_t rest_start = line.find_first_not_of(" \t", end);
  *rest = rest_start == std::string::npos ? "" : line.substr(rest_start);
}

// "env [-S] [NAME=VALUE]... program": the program, "" when it cannot be told.
std::string program_of_env(const std::string& words) {
  for (size_t at = 0; at < words.size();) {
    size_t end = std::min(words.find_first_of(" \t", at), words.size());
    std::string word = words.substr(at, end - at);
    at = end + 1;
    if (!word.empty() && word[0] != '-' && word.find('=') == std::string::npos) return word;
  }
  return "";
}

int check_file(const std::string& path, unsigned depth, bool* shell, std::string* why);

int check_script(const std::string& path, const std::string& line, unsigned depth, std::string* why) {
  if (depth > 4)
    return fail(kExitNotExecutable, why, text_of("%s: too many interpreters of interpreters", path.c_str()));
  std::string interpreter, rest;
  split_script_line(line, &interpreter, &rest);
  if (interpreter.empty())
    return fail(kExitNotExecutable, why, text_of("%s: its #! line names no interpreter", path.c_str()));
  if (access(interpreter.c_str(), F_OK) != 0) {
    return fail(kExitNotFound, why, text_of("%s: its interpreter %s is not there", path.c_str(), interpreter.c_str()));
  }
  bool shell = false;
  int code = check_file(interpreter, depth + 1, &shell, why);
  if (code == 0 && interpreter.substr(interpreter.rfind('/') + 1) == "env") {
    std::string name = program_of_env(rest), found;
    if (!name.empty()) code = locate(name, &found, why);
    if (!name.empty() && code == 0) code = check_file(found, depth + 1, &shell, why);
  }
  if (code != 0) *why = text_of("%s: %s", path.c_str(), why->c_str());
  return code;
}

int check_file(const std::string& path, unsigned depth, bool* shell, std::string* why) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Executable but unreadable is allowed; ld.so then preloads all the same unless privilege is gained.
  if (fd < 0) return 0;
  char head[1024] = {};
  ssize_t got = pread(fd, head, sizeof head - 1, 0);
  int code = 0;
  if (got >= 2 && head[0] == '#' && head[1] == '!') {
    std::string line(head, static_cast<size_t>(got));
    code = check_script(path, line.substr(0, line.find('\n')), depth, why);
  } else {
    std::string how;
    if (gains_privilege(path, &how)) {
      code = fail(kExitOwnFailure, why,
                  text_of("%s is %s, and the loader preloads nothing into such programs; run it as its owner "
                          "(root: sudo lunar run ...)",
                          path.c_str(), how.c_str()));
    } else if (got >= SELFMAG && memcmp(head, ELFMAG, SELFMAG) == 0) {
      code = check_elf(fd, path, why);
    } else if (got <= 0 || memchr(head, 0, static_cast<size_t>(got)) == nullptr) {
      *shell = true;  // text: shells run it as a script of their own
    } else {
      code = fail(kExitNotExecutable, why, text_of("%s is in no executable format of this machine", path.c_str()));
    }
  }
  close(fd);
  return code;
}

}  // namespace

int find_program(const std::string& name, Program* out, std::string* why) {
  out->shell = false;
  if (int code = locate(name, &out->path, why); code != 0) return code;
  return check_file(out->path, 0, &out->shell, why);
}

}  // namespace lunar::tools
