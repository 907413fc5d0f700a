// SPDX-License-Identifier: Apache-2.0
// See program_file.h. The names that a loader or a program with a sanitizer defines or needs
// identify it. They all lie in one table of the dynamic section: glibc's loader has _rtld_global,
// and musl's is a whole libc.
#include "sys/program_file.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/format.h"
#include "sys/file.h"

namespace lunar::sys {
namespace {

#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kMachine = EM_AARCH64;
#elif defined(__powerpc64__)
constexpr unsigned kMachine = EM_PPC64;
#else
#error "the ELF number of this machine"
#endif
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr unsigned char kDataOrder = ELFDATA2LSB;
#else
constexpr unsigned char kDataOrder = ELFDATA2MSB;
#endif
constexpr unsigned char kClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
constexpr unsigned kHeadersMax = 512, kEntriesMax = 4096;

constexpr struct {
  const char *symbol, *name;
} kSanitizers[] = {{"__asan_init", "AddressSanitizer"},
                   {"__hwasan_init", "HWAddressSanitizer"},
                   {"__lsan_init", "LeakSanitizer"},
                   {"__msan_init", "MemorySanitizer"},
                   {"__tsan_init", "ThreadSanitizer"}};

template <class T>
bool read_whole(int fd, T* out, uint64_t offset) {
  return read_at(fd, out, sizeof *out, offset) == static_cast<int64_t>(sizeof *out);
}

// Calls `visit` with each program header until it returns false. Returns whether they could be
// read.
template <class Visit>
bool each_header(int fd, const ElfW(Ehdr) & elf, Visit visit) {
  if (elf.e_phentsize != sizeof(ElfW(Phdr)) || elf.e_phnum > kHeadersMax) return false;
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    ElfW(Phdr) header{};
    if (!read_whole(fd, &header, elf.e_phoff + i * sizeof header)) return false;
    if (!visit(header)) break;
  }
  return true;
}

struct Names {
  uint64_t offset = 0, bytes = 0;  // in the file
};

// The table of names of the dynamic section; empty if the file has none.
Names find_names(int fd, const ElfW(Ehdr) & elf) {
  Names names;
  ElfW(Phdr) dynamic{};
  each_header(fd, elf, [&](const ElfW(Phdr) & header) {
    if (header.p_type == PT_DYNAMIC) dynamic = header;
    return true;
  });
  uint64_t address = 0;
  for (unsigned i = 0; i < dynamic.p_filesz / sizeof(ElfW(Dyn)) && i < kEntriesMax; ++i) {
    ElfW(Dyn) entry{};
    if (!read_whole(fd, &entry, dynamic.p_offset + i * sizeof entry) || entry.d_tag == DT_NULL)
      break;
    if (entry.d_tag == DT_STRTAB) address = entry.d_un.d_ptr;
    if (entry.d_tag == DT_STRSZ) names.bytes = entry.d_un.d_val;
  }
  bool found = false;
  each_header(fd, elf, [&](const ElfW(Phdr) & header) {
    found = header.p_type == PT_LOAD && address - header.p_vaddr < header.p_filesz;
    if (found) names.offset = header.p_offset + (address - header.p_vaddr);
    return !found;
  });
  return found && address != 0 ? names : Names{};
}

// Calls `visit` with each name of at most kNameMax bytes; no longer name is looked for.
template <class Visit>
void each_name(int fd, const Names& names, Visit visit) {
  constexpr size_t kNameMax = 32;
  char buffer[2048];
  size_t kept = 0;
  bool too_long = false;  // the buffer begins with the rest of a longer name
  for (uint64_t done = 0; done < names.bytes;) {
    const uint64_t wanted = std::min<uint64_t>(names.bytes - done, sizeof buffer - kept);
    const int64_t got = read_at(fd, buffer + kept, wanted, names.offset + done);
    if (got <= 0) return;
    done += static_cast<uint64_t>(got);
    const char *at = buffer, *end = buffer + kept + got;
    while (const char* stop =
               static_cast<const char*>(memchr(at, 0, static_cast<size_t>(end - at)))) {
      if (!too_long) visit(at);
      too_long = false;
      at = stop + 1;
    }
    kept = static_cast<size_t>(end - at);
    if (kept > kNameMax) {
      too_long = true;
      kept = 0;
    }
    memmove(buffer, at, kept);
  }
}

// Reads the path of the program's loader; "": it has none. False: the file is damaged.
bool read_loader(int fd, const ElfW(Ehdr) & elf, char* path, size_t size) {
  bool whole = true;
  path[0] = '\0';
  return each_header(fd, elf,
                     [&](const ElfW(Phdr) & header) {
                       if (header.p_type != PT_INTERP) return true;
                       const size_t bytes = header.p_filesz;
                       whole = bytes > 1 && bytes <= size &&
                               read_at(fd, path, bytes, header.p_offset) ==
                                   static_cast<int64_t>(bytes) &&
                               path[bytes - 1] == '\0';
                       return false;
                     }) &&
         whole;
}

struct Found {
  bool glibc_loader = false, whole_libc = false, linked_symbolizer = false, linked_malloc = false;
  const char* sanitizer = nullptr;
};

Found look_at_names(int fd, const ElfW(Ehdr) & elf) {
  Found found;
  each_name(fd, find_names(fd, elf), [&](const char* name) {
    if (name[0] != '_') return;
    if (strcmp(name, "_rtld_global") == 0) found.glibc_loader = true;
    if (strcmp(name, "__libc_start_main") == 0) found.whole_libc = true;
    if (strcmp(name, "__sanitizer_symbolize_code") == 0) found.linked_symbolizer = true;
    if (strcmp(name, "__libc_memalign") == 0) found.linked_malloc = true;
    for (const auto& [symbol, which] : kSanitizers)
      if (strcmp(name, symbol) == 0) found.sanitizer = which;
  });
  // GCC's -static-libasan exports none of these names. (UndefinedBehaviorSanitizer contains no
  // malloc.)
  if (found.linked_symbolizer && found.linked_malloc && found.sanitizer == nullptr)
    found.sanitizer = "a sanitizer";
  return found;
}

bool is_elf(int fd, ElfW(Ehdr) * elf) {
  return read_whole(fd, elf, 0) && memcmp(elf->e_ident, ELFMAG, SELFMAG) == 0;
}

// True also for a loader that cannot be read.
bool is_glibc_loader(const char* path) {
  const int fd = open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return true;
  ElfW(Ehdr) elf{};
  const bool glibc = !is_elf(fd, &elf) || look_at_names(fd, elf).glibc_loader;
  close_file(fd);
  return glibc;
}

const char* gained_rights(int fd) {
  struct stat status;
  if (file_status(fd, &status) < 0) return nullptr;
  if ((status.st_mode & S_ISUID) && status.st_uid != getuid()) return "setuid";
  if ((status.st_mode & S_ISGID) && (status.st_mode & S_IXGRP) && status.st_gid != getgid())
    return "setgid";
  if (geteuid() != 0 && syscall(SYS_fgetxattr, fd, "security.capability", nullptr, 0L) > 0)
    return "given file capabilities";
  return nullptr;
}

ProgramKind look_at_elf(int fd, const ElfW(Ehdr) & elf, char* detail, size_t size) {
  if (elf.e_ident[EI_CLASS] != kClass || elf.e_ident[EI_DATA] != kDataOrder ||
      elf.e_machine != kMachine)
    return ProgramKind::kOtherMachine;
  if (!read_loader(fd, elf, detail, size)) return ProgramKind::kDamaged;
  const Found found = look_at_names(fd, elf);
  if (detail[0] == '\0')
    return found.glibc_loader ? ProgramKind::kLoader
           : found.whole_libc ? ProgramKind::kOtherLibc
                              : ProgramKind::kStatic;
  if (!is_glibc_loader(detail)) return ProgramKind::kOtherLibc;
  if (found.sanitizer == nullptr) return ProgramKind::kServed;
  format_to(detail, size, "%s", found.sanitizer);
  return ProgramKind::kSanitized;
}

}  // namespace

void program_look(int fd, ProgramFile* out) {
  *out = {};
  const int64_t got = read_at(fd, out->detail, sizeof out->detail - 1, 0);
  if (got >= 2 && memcmp(out->detail, "#!", 2) == 0) {
    out->detail[strcspn(out->detail, "\n")] = '\0';
    out->kind = ProgramKind::kScript;
    return;
  }
  const bool short_elf = got >= SELFMAG && memcmp(out->detail, ELFMAG, SELFMAG) == 0;
  out->detail[0] = '\0';
  ElfW(Ehdr) elf{};
  if (const char* how = gained_rights(fd)) {
    format_to(out->detail, sizeof out->detail, "%s", how);
    out->kind = ProgramKind::kPrivileged;
  } else if (is_elf(fd, &elf)) {
    out->kind = look_at_elf(fd, elf, out->detail, sizeof out->detail);
  } else if (short_elf) {
    out->kind = ProgramKind::kOtherMachine;
  }
}

const char* program_unserved(const ProgramFile& file) {
  switch (file.kind) {
    case ProgramKind::kPrivileged:
      return "gains rights, and the loader preloads nothing into such programs";
    case ProgramKind::kOtherMachine:
      return "is a program of another architecture";
    case ProgramKind::kStatic:
      return "is statically linked";
    case ProgramKind::kOtherLibc:
      return "uses another C library than glibc";
    case ProgramKind::kSanitized:
      return "is built with a sanitizer";
    default:
      return nullptr;
  }
}

const char* sanitizer_symbol(unsigned index) {
  return index < sizeof kSanitizers / sizeof *kSanitizers ? kSanitizers[index].symbol : nullptr;
}

const char* sanitizer_name(unsigned index) { return kSanitizers[index].name; }

}  // namespace lunar::sys
