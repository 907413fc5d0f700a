// SPDX-License-Identifier: Apache-2.0
// Checks of the LUN of `lunar run` (run_checks.h). `--lun` is a list for scratch_open
// (lun/compose.h): directories, files, devices, URIs, named virtual LUNs. Several are a stripe, as
// large as the smallest times their number. Only open_lun writes.
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "superpipe/registry.h"
#include "tools/lun/lun_tool.h"
#include "tools/run/run_checks.h"
#include "tools/support/host.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

// The space of one LUN of the list.
struct Room {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: not known before it is opened
  const char* kind = "";        // "free", "in all": for the refusal
};

bool has_prefix(const std::string& text, const char* prefix) {
  return text.compare(0, strlen(prefix), prefix) == 0;
}

// "nvme:..." -> "nvme"; "" for a path.
std::string scheme_of(const std::string& lun) {
  size_t colon = lun.find(':');
  if (colon == std::string::npos || colon < 2) return "";
  for (size_t i = 0; i < colon; ++i) {
    if (!isalpha(static_cast<unsigned char>(lun[i]))) return "";
  }
  return lun.substr(0, colon);
}

bool is_composite(const std::string& scheme) { return scheme == "stripe" || scheme == "paths"; }

// Splits the list at blanks. An existing path with a blank is one LUN, as for scratch_open.
std::vector<std::string> luns_of_list(const std::string& list) {
  if (!list.empty() && access(list.c_str(), F_OK) == 0) return {list};
  std::istringstream in(list);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

// Compares the space of the LUNs with --size and --dram.
bool check_space(const Options& options, const OriginOf& origin_of, const std::string& lun,
                 const Room& room, std::string* why) {
  if (options.size > room.bytes) {
    return refuse(
        why,
        text_of(
            "%s: %s has %s %s, less than the %s asked for; give a smaller --size or another --lun",
            origin_of("size").c_str(), lun.c_str(), size_text(room.bytes).c_str(), room.kind,
            size_text(options.size).c_str()));
  }
  if (room.bytes < options.dram) {
    return refuse(why, text_of("%s: %s has %s %s, less than the DRAM budget of %s; give another "
                               "--lun or a smaller --dram",
                               origin_of("lun").c_str(), lun.c_str(), size_text(room.bytes).c_str(),
                               room.kind, size_text(options.dram).c_str()));
  }
  return true;
}

// Refuses the LUN in one line, which begins with the flag, variable or file that names it.
struct Refusal {
  std::string origin;
  std::string* why;
  bool operator()(const std::string& text) const { return refuse(why, origin + ": " + text); }
};

bool check_on_disk(const Refusal& refuse, const std::string& path, FileSystem* fs) {
  int rc = probe_file_system(path, fs);
  if (rc < 0) return refuse(text_of("%s: %s", path.c_str(), errno_text(rc)));
  if (fs->no_data) {
    return refuse(text_of(
        "%s lies on %s, which holds no data; give a directory on a disk, such as --lun /var/tmp",
        path.c_str(), fs->kind.c_str()));
  }
  if (!fs->in_memory) return true;
  return refuse(text_of(
      "%s lies on %s, which is memory itself; give a directory on a disk, such as --lun /var/tmp",
      path.c_str(), fs->kind.c_str()));
}

bool check_directory(const Refusal& refuse, const std::string& path, Room* room) {
  FileSystem fs;
  if (!check_on_disk(refuse, path, &fs)) return false;
  if (faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    int error = errno;  // user_name() changes it
    return refuse(text_of(
        "directory %s is not writable for user %s: %s; give one that is, such as --lun /var/tmp",
        path.c_str(), user_name().c_str(), errno_text(error)));
  }
  int rc = probe_scratch_file(path);
  if (rc == -EINVAL) {
    return refuse(
        text_of("the file system of %s (%s) has no O_DIRECT, which Lunar needs; give a directory "
                "on another disk",
                path.c_str(), fs.kind.c_str()));
  }
  if (rc < 0)
    return refuse(
        text_of("no file can be made in %s: %s; give another --lun", path.c_str(), errno_text(rc)));
  *room = {fs.free_bytes, "free"};
  return true;
}

bool check_regular(const Refusal& refuse, const std::string& path, const struct stat& status,
                   Room* room) {
  FileSystem fs;
  if (!check_on_disk(refuse, path, &fs)) return false;
  *room = {static_cast<uint64_t>(status.st_blocks) * 512 + fs.free_bytes, "of space"};
  return true;
}

bool check_block_device(const Refusal& refuse, const std::string& path, Room* room) {
  // open_lun checks whether it is in use.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return refuse(text_of("%s cannot be opened: %s", path.c_str(), errno_text(errno)));
  uint64_t bytes = 0;
  int rc = ioctl(fd, BLKGETSIZE64, &bytes) == 0 ? 0 : errno;
  close(fd);
  if (rc) return refuse(text_of("the size of %s cannot be read: %s", path.c_str(), errno_text(rc)));
  *room = {bytes, "in all"};
  return true;
}

// True if a missing leaf is a file, which can be made, and not a device.
bool can_be_made(const std::string& leaf, const std::string& path) {
  const std::string scheme = path == leaf ? "" : scheme_of(leaf);
  return (scheme.empty() || scheme == "file") && !has_prefix(path, "/dev/");
}

// Checks that the path of the leaf exists and that this user may use it.
bool check_rights(const Refusal& refuse, const std::string& leaf, const std::string& path,
                  struct stat* status) {
  if (path.empty())
    return refuse(
        "no path is named; give a directory, a block device, file:PATH or nvme:/dev/ngXnY");
  if (stat(path.c_str(), status) != 0) {
    if (errno != ENOENT) return refuse(text_of("%s: %s", path.c_str(), errno_text(errno)));
    if (!can_be_made(leaf, path)) {
      return refuse(text_of("%s does not exist; `lunar doctor` lists the devices of this host",
                            path.c_str()));
    }
    return refuse(
        text_of("%s does not exist; give a directory, a block device, or a file made with "
                "`fallocate -l 8G %s`",
                path.c_str(), shell_word(path).c_str()));
  }
  if (S_ISDIR(status->st_mode) || faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) == 0)
    return true;
  int error = errno;
  std::string user = user_name();
  return refuse(text_of(
      "%s cannot be read and written by user %s: %s; to allow it: sudo setfacl -m u:%s:rw %s",
      path.c_str(), user.c_str(), errno_text(error), user.c_str(), shell_word(path).c_str()));
}

bool check_leaves(const Refusal& refuse, const std::string& device) {
  for (const std::string& leaf : leaves_of(device)) {
    struct stat status{};
    const std::string path = path_of_leaf(leaf);
    if (!path.empty() && !check_rights(refuse, leaf, path, &status)) return false;
  }
  return true;
}

bool check_path(const Refusal& refuse, const std::string& path, Room* room) {
  struct stat status{};
  if (!check_rights(refuse, path, path, &status)) return false;
  if (S_ISDIR(status.st_mode)) return check_directory(refuse, path, room);
  if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
    return refuse(
        text_of("%s is neither a directory, a regular file nor a block device", path.c_str()));
  }
  return S_ISREG(status.st_mode) ? check_regular(refuse, path, status, room)
                                 : check_block_device(refuse, path, room);
}

bool check_simulated(const Refusal& refuse, const std::string& lun, Room* room) {
  std::string size =
      lun.substr(4, lun.find(',') == std::string::npos ? std::string::npos : lun.find(',') - 4);
  room->kind = "in all";
  if (parse_size(size.c_str(), &room->bytes) == 0) {
    // The open checks its settings, because the program may open it much later, or never.
    Device* device = nullptr;
    ErrorText text;
    const int status = device_open(lun.c_str(), {}, &device, &text);
    device_close(device);
    return status != -EINVAL || refuse(text.text);
  }
  return refuse(text_of("'%s' in %s is not a size; give sim:SIZE, such as sim:1g", size.c_str(),
                        lun.c_str()));
}

// Checks that a named virtual LUN exists and is not in use.
bool check_named(const Refusal& refuse, const LunName& name, Room* room) {
  if (!check_leaves(refuse, name.device)) return false;
  PhysicalLun* physical = nullptr;
  ErrorText text;
  if (physical_open(name.device.c_str(), Format::kNever, &physical, &text) < 0)
    return refuse(text.text);
  const std::vector<VirtualLunInfo> luns = luns_of(physical);
  const std::string whole = name.device + "#" + name.name;
  bool there = false, used = false;
  for (const VirtualLunInfo& lun : luns) {
    if (name.name != lun.name) continue;
    there = true;
    used = stays_in_use(physical, lun);
    *room = {lun.size_bytes, "in all"};
  }
  physical->close();
  if (there && !used) return true;
  if (there) {
    return refuse(text_of("%s is in use by another process; wait for it, or give another LUN",
                          whole.c_str()));
  }
  return refuse(text_of("%s has no LUN named '%s'; to make it: lunar lun create %s --size SIZE",
                        name.device.c_str(), name.name.c_str(), shell_word(whole).c_str()));
}

bool check_one(const Refusal& refuse, const std::string& lun, Room* room) {
  if (has_prefix(lun, "sim:")) return check_simulated(refuse, lun, room);
  const LunName name = split_lun(lun);
  if (name.device != lun && access(lun.c_str(), F_OK) != 0) return check_named(refuse, name, room);
  const std::string scheme = scheme_of(lun);
  if (scheme == "mem")
    return refuse(
        text_of("%s is memory itself; give a directory on a disk (--lun /var/tmp)", lun.c_str()));
  if (scheme.empty() || access(lun.c_str(), F_OK) == 0) return check_path(refuse, lun, room);
  if (scheme == "file") return check_path(refuse, path_of_leaf(lun), room);
  if (is_composite(scheme) || scheme == "nvme" || scheme == "pmem" || scheme == "capi") {
    // open_lun checks the contents of the members and the composite device.
    return check_leaves(refuse, lun);
  }
  return refuse(
      text_of("%s: there is no LUN kind '%s'; give a path, file:PATH, sim:SIZE, or one of nvme, "
              "pmem, capi, stripe, paths",
              lun.c_str(), scheme.c_str()));
}

}  // namespace

std::string absolute_path(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  std::error_code failed;
  const auto directory = std::filesystem::current_path(failed);
  return failed ? path : (directory / path).string();
}

namespace {
// The URI of one device.
std::string absolute_leaf(const std::string& leaf) {
  const std::string scheme = scheme_of(leaf);
  if (scheme.empty()) return absolute_path(leaf);
  for (const char* known : {"file", "nvme", "pmem", "capi"}) {
    if (scheme == known) return scheme + ":" + absolute_path(leaf.substr(scheme.size() + 1));
  }
  return leaf;
}

std::string absolute_uri(const std::string& lun) {
  std::string out, piece;
  for (const char c : lun + ";") {
    if (!strchr(";()", c)) {
      piece += c;
      if (c == ':' && is_composite(piece.substr(0, piece.size() - 1))) out += piece, piece.clear();
      continue;
    }
    // A name after ')' is not a path.
    out += piece.empty() || piece[0] == '#' ? piece : absolute_leaf(piece);
    out += c;
    piece.clear();
  }
  out.pop_back();
  return out;
}
}  // namespace

std::string absolute_lun(const std::string& lun) {
  std::string out;
  for (const std::string& one : luns_of_list(lun))
    out += (out.empty() ? "" : " ") + absolute_uri(one);
  return out;
}

bool check_lun(const Options& options, const OriginOf& origin_of, std::string* why) {
  const Refusal refuse_lun{origin_of("lun"), why};
  const std::vector<std::string> luns = luns_of_list(options.lun);
  if (luns.empty()) {
    return refuse_lun("the LUN is an empty word; give a directory, a file or a block device");
  }
  Room least;
  for (const std::string& lun : luns) {
    const std::string absolute = absolute_uri(lun);
    const bool alone = luns.size() == 1 && access(absolute.c_str(), F_OK) == 0;
    if (absolute.find_first_of(" \t\n") != std::string::npos && !alone) {
      return refuse_lun(text_of(
          "the working directory of %s has a blank in its name, which divides LUNs; go elsewhere",
          lun.c_str()));
    }
    Room room;
    if (!check_one(refuse_lun, lun, &room)) return false;
    if (room.bytes <= least.bytes) least = room;
  }
  if (least.bytes == UINT64_MAX) return true;
  least.bytes *= luns.size();
  return check_space(options, origin_of, options.lun, least, why);
}

bool open_lun(const Options& options, const OriginOf& origin_of, std::string* why) {
  bool known = true;
  for (const std::string& lun : luns_of_list(options.lun)) {
    struct stat status;
    known &=
        has_prefix(lun, "sim:") || (stat(lun.c_str(), &status) == 0 && S_ISDIR(status.st_mode));
  }
  if (known) return true;
  DeviceOptions wanted;
  wanted.want_bytes = options.size;
  Device* device = nullptr;
  ErrorText text;
  if (scratch_open(options.lun, wanted, &device, &text) < 0)
    return Refusal{origin_of("lun"), why}(text.text);
  const Room room = {device->size_bytes(), device->growable() ? "free" : "in all"};
  device_close(device);
  return check_space(options, origin_of, options.lun, room, why);
}

}  // namespace lunar::tools
