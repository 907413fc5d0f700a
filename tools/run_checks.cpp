// SPDX-License-Identifier: Apache-2.0
// See run_checks.h. Each refusal is one line: what, where, what to do.
// Threading: one thread. Changes nothing on the host. May not be used by runtime/ (it allocates).
#include "run_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/error.h"
#include "host.h"
#include "text.h"

namespace lunar::tools {
namespace {

bool refuse(std::string* why, std::string line) {
  *why = std::move(line);
  return false;
}

std::string size_text(uint64_t bytes) { return format_size(bytes).text; }

bool has_prefix(const std::string& text, const char* prefix) { return text.compare(0, strlen(prefix), prefix) == 0; }

// "nvme:..." -> "nvme"; "" for a path.
std::string scheme_of(const std::string& lun) {
  size_t colon = lun.find(':');
  if (colon == std::string::npos || colon < 2) return "";
  for (size_t i = 0; i < colon; ++i) {
    if (!isalpha(static_cast<unsigned char>(lun[i]))) return "";
  }
  return lun.substr(0, colon);
}

// The space a LUN can give against the space that is asked of it.
bool check_space(const Options& options, const OriginOf& origin_of, const std::string& lun, uint64_t room,
                 const char* what, std::string* why) {
  if (options.size > room) {
    return refuse(why, text_of("%s: %s has %s %s, less than the %s asked for; give a smaller --size or another --lun",
                               origin_of("size").c_str(), lun.c_str(), size_text(room).c_str(), what,
                               size_text(options.size).c_str()));
  }
  if (room < options.dram) {
    return refuse(
        why,
        text_of("%s: %s has %s %s, less than the DRAM budget of %s; give another --lun or a smaller --dram",
                origin_of("lun").c_str(), lun.c_str(), size_text(room).c_str(), what, size_text(options.dram).c_str()));
  }
  return true;
}

bool check_on_disk(const std::string& origin, const std::string& path, FileSystem* fs, std::string* why) {
  int rc = probe_file_system(path, fs);
  if (rc < 0) return refuse(why, text_of("%s: %s: %s", origin.c_str(), path.c_str(), errno_text(rc)));
  if (fs->no_data) {
    return refuse(why,
                  text_of("%s: %s lies on %s, which holds no data; give a directory on a disk, such as --lun /var/tmp",
                          origin.c_str(), path.c_str(), fs->kind.c_str()));
  }
  if (!fs->in_memory) return true;
  return refuse(why,
                text_of("%s: %s lies on %s, which is memory itself; give a directory on a disk, such as --lun /var/tmp",
                        origin.c_str(), path.c_str(), fs->kind.c_str()));
}

bool check_directory(const Options& options, const OriginOf& origin_of, const std::string& path, std::string* why) {
  std::string origin = origin_of("lun");
  FileSystem fs;
  if (!check_on_disk(origin, path, &fs, why)) return false;
  if (faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    int error = errno;   // user_name() changes it
    return refuse(why,
                  text_of("%s: directory %s is not writable for user %s: %s; give one that is, such as --lun /var/tmp",
                          origin.c_str(), path.c_str(), user_name().c_str(), errno_text(error)));
  }
  int rc = probe_scratch_file(path);
  if (rc == -EINVAL) {
    return refuse(
        why,
        text_of("%s: the file system of %s (%s) has no O_DIRECT, which Lunar needs; give a directory on another disk",
                origin.c_str(), path.c_str(), fs.kind.c_str()));
  }
  if (rc < 0)
    return refuse(why, text_of("%s: no file can be made in %s: %s; give another --lun", origin.c_str(), path.c_str(),
                               errno_text(rc)));
  return check_space(options, origin_of, path, fs.free_bytes, "free", why);
}

bool check_regular(const Options& options, const OriginOf& origin_of, const std::string& path,
                   const struct stat& status, std::string* why) {
  FileSystem fs;
  if (!check_on_disk(origin_of("lun"), path, &fs, why)) return false;
  uint64_t room = static_cast<uint64_t>(status.st_blocks) * 512 + fs.free_bytes;
  return check_space(options, origin_of, path, room, "of space", why);
}

bool check_block_device(const Options& options, const OriginOf& origin_of, const std::string& path, std::string* why) {
  std::string origin = origin_of("lun");
  // O_EXCL: the kernel answers EBUSY for what is mounted, swapped on, or in an array. Read-only: nothing is touched.
  int fd = open(path.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC);
  if (fd < 0 && errno == EBUSY) {
    return refuse(why,
                  text_of("%s: %s is in use (mounted, swap, or part of another device); give a device that is free",
                          origin.c_str(), path.c_str()));
  }
  if (fd < 0)
    return refuse(why, text_of("%s: %s cannot be opened: %s", origin.c_str(), path.c_str(), errno_text(errno)));
  uint64_t bytes = 0;
  int rc = ioctl(fd, BLKGETSIZE64, &bytes) == 0 ? 0 : errno;
  close(fd);
  if (rc)
    return refuse(why, text_of("%s: the size of %s cannot be read: %s", origin.c_str(), path.c_str(), errno_text(rc)));
  return check_space(options, origin_of, path, bytes, "in all", why);
}

bool check_path(const Options& options, const OriginOf& origin_of, const std::string& path, std::string* why) {
  std::string origin = origin_of("lun");
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) return refuse(why, text_of("%s: %s: %s", origin.c_str(), path.c_str(), errno_text(errno)));
    return refuse(
        why,
        text_of("%s: %s does not exist; give a directory, a block device, or a file made with `fallocate -l 8G %s`",
                origin.c_str(), path.c_str(), shell_word(path).c_str()));
  }
  if (S_ISDIR(status.st_mode)) return check_directory(options, origin_of, path, why);
  if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
    return refuse(
        why, text_of("%s: %s is neither a directory, a regular file nor a block device", origin.c_str(), path.c_str()));
  }
  if (faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) != 0) {
    int error = errno;
    std::string user = user_name();
    return refuse(
        why,
        text_of("%s: %s cannot be read and written by user %s: %s; to allow it: sudo setfacl -m u:%s:rw %s",
                origin.c_str(), path.c_str(), user.c_str(), errno_text(error), user.c_str(), shell_word(path).c_str()));
  }
  return S_ISREG(status.st_mode) ? check_regular(options, origin_of, path, status, why)
                                 : check_block_device(options, origin_of, path, why);
}

bool check_simulated(const Options& options, const OriginOf& origin_of, const std::string& lun, std::string* why) {
  std::string size = lun.substr(4, lun.find(',') == std::string::npos ? std::string::npos : lun.find(',') - 4);
  uint64_t bytes = 0;
  if (parse_size(size.c_str(), &bytes) < 0) {
    return refuse(why, text_of("%s: '%s' in %s is not a size; give sim:SIZE, such as sim:1g", origin_of("lun").c_str(),
                               size.c_str(), lun.c_str()));
  }
  return check_space(options, origin_of, lun, bytes, "in all", why);
}

}   // namespace

std::string absolute_path(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  char* directory = getcwd(nullptr, 0);
  if (!directory) return path;
  std::string absolute = std::string(directory) + "/" + path;
  free(directory);
  return absolute;
}

std::string absolute_lun(const std::string& lun) {
  if (has_prefix(lun, "file:")) return "file:" + absolute_path(lun.substr(5));
  return scheme_of(lun).empty() ? absolute_path(lun) : lun;
}

bool check_sizes(Options* options, const OriginOf& origin_of, std::string* why) {
  MemoryState memory = probe_memory();
  // Whole mebibytes: the number is passed on, and shown.
  if (origin_of("dram").find("default") != std::string::npos)
    options->dram = round_down(memory.usable_bytes() / 4, kMiB);
  std::string origin = origin_of("dram");
  std::string dram = size_text(options->dram);
  if (options->dram < kDramMin) {
    return refuse(why, text_of("%s: %s is less than the minimum of %s; give --dram 16m or more", origin.c_str(),
                               dram.c_str(), size_text(kDramMin).c_str()));
  }
  if (memory.total_bytes && options->dram > memory.total_bytes) {
    return refuse(why, text_of("%s: %s is more than this machine has (%s); give less", origin.c_str(), dram.c_str(),
                               size_text(memory.total_bytes).c_str()));
  }
  if (options->dram > memory.limit_bytes) {
    return refuse(why, text_of("%s: %s is more than the memory cgroup allows (%s in %s); give less", origin.c_str(),
                               dram.c_str(), size_text(memory.limit_bytes).c_str(), memory.limit_file.c_str()));
  }
  bool size_given = origin_of("size").find("default") == std::string::npos;
  if (size_given && options->size < options->dram) {
    return refuse(why,
                  text_of("%s: %s of LUN is less than the DRAM budget of %s (%s); give at least that much",
                          origin_of("size").c_str(), size_text(options->size).c_str(), dram.c_str(), origin.c_str()));
  }
  return true;
}

bool check_lun(const Options& options, const OriginOf& origin_of, std::string* why) {
  std::string lun = options.lun;
  std::string origin = origin_of("lun");
  if (lun.empty())
    return refuse(why,
                  text_of("%s: the LUN is an empty word; give a directory, a file or a block device", origin.c_str()));
  if (has_prefix(lun, "sim:")) return check_simulated(options, origin_of, lun, why);
  if (has_prefix(lun, "file:")) return check_path(options, origin_of, lun.substr(5), why);
  std::string scheme = scheme_of(lun);
  if (!scheme.empty() && access(lun.c_str(), F_OK) != 0) {
    return refuse(why, text_of("%s: %s: there is no LUN kind '%s'; give a path, file:PATH or sim:SIZE", origin.c_str(),
                               lun.c_str(), scheme.c_str()));
  }
  return check_path(options, origin_of, lun, why);
}

bool check_fault_mode(const Options& options, const OriginOf& origin_of, std::string* why) {
  if (strcmp(options.fault, "inline") == 0) {
    return refuse(why, text_of("%s: inline cannot serve system calls on evicted memory, so the preload does not offer "
                               "it; use auto or message",
                               origin_of("fault").c_str()));
  }
  UffdState state = probe_userfaultfd();
  if (state.error == 0) return true;
  return refuse(why, text_of("%s; to mend it: %s", userfaultfd_lack(state).c_str(), userfaultfd_remedy(state).c_str()));
}

}   // namespace lunar::tools
