// SPDX-License-Identifier: Apache-2.0
#include "go_runtime.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

#include <cstdint>

namespace lunar::preload {

namespace {

// In a note segment, each note has the lengths of its name and content, its type, the name and the
// content, padded to the alignment.
bool has_go_note(const char* at, const char* end, uint64_t alignment) {
  const uint64_t step = alignment == 8 ? 8 : 4;
  const auto padded = [&](uint64_t bytes) { return (bytes + step - 1) / step * step; };
  while (static_cast<uint64_t>(end - at) >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    memcpy(&note, at, sizeof note);
    const char* name = at + sizeof note;
    const uint64_t bytes = sizeof note + padded(note.n_namesz) + padded(note.n_descsz);
    if (bytes > static_cast<uint64_t>(end - at)) return false;
    if (note.n_namesz == 4 && memcmp(name, "Go\0", 4) == 0) return true;
    at += bytes;
  }
  return false;
}

// Whether [begin, begin + bytes), as the file has it, is in a segment that is loaded and may be
// read.
bool is_loaded(const char* headers, unsigned count, uint64_t begin, uint64_t bytes) {
  for (unsigned i = 0; i < count; ++i) {
    ElfW(Phdr) header;
    memcpy(&header, headers + i * sizeof header, sizeof header);
    if (header.p_type == PT_LOAD && (header.p_flags & PF_R) != 0 && begin >= header.p_vaddr &&
        begin - header.p_vaddr <= header.p_filesz &&
        bytes <= header.p_filesz - (begin - header.p_vaddr))
      return true;
  }
  return false;
}

}  // namespace

bool is_go_code(const void* address) {
  dl_find_object object{};
  if (_dl_find_object(const_cast<void*>(address), &object) != 0) return false;  // generated code
  const char* base = static_cast<const char*>(object.dlfo_map_start);
  const uint64_t mapped =
      static_cast<uint64_t>(static_cast<const char*>(object.dlfo_map_end) - base);
  ElfW(Ehdr) elf;
  memcpy(&elf, base, sizeof elf);
  if (memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_phentsize != sizeof(ElfW(Phdr)) ||
      elf.e_phoff + elf.e_phnum * sizeof(ElfW(Phdr)) > mapped)
    return false;
  const uintptr_t moved_by = object.dlfo_link_map->l_addr;
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    ElfW(Phdr) header;
    memcpy(&header, base + elf.e_phoff + i * sizeof header, sizeof header);
    if (header.p_type != PT_NOTE ||
        !is_loaded(base + elf.e_phoff, elf.e_phnum, header.p_vaddr, header.p_filesz))
      continue;
    const char* notes = reinterpret_cast<const char*>(moved_by + header.p_vaddr);
    if (has_go_note(notes, notes + header.p_filesz, header.p_align)) return true;
  }
  return false;
}

}  // namespace lunar::preload
