// SPDX-License-Identifier: Apache-2.0
// See program_got.h. Programs linked `-z relro -z now` have a read-only table: its pages are made writable for the
// store.
#include "program_got.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "base/units.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kGlobalData = R_X86_64_GLOB_DAT, kJumpSlot = R_X86_64_JUMP_SLOT;
#elif defined(__aarch64__)
constexpr uint32_t kGlobalData = R_AARCH64_GLOB_DAT, kJumpSlot = R_AARCH64_JUMP_SLOT;
#elif defined(__powerpc64__)
constexpr uint32_t kGlobalData = R_PPC64_GLOB_DAT, kJumpSlot = R_PPC64_JMP_SLOT;
#elif defined(__s390x__)
constexpr uint32_t kGlobalData = R_390_GLOB_DAT, kJumpSlot = R_390_JMP_SLOT;
#else
constexpr uint32_t kGlobalData = UINT32_MAX, kJumpSlot = UINT32_MAX;
#endif

struct Program {
  uintptr_t base = 0;
  uintptr_t text_begin = 0, text_end = 0;
  uintptr_t relro_begin = 0, relro_end = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) * tables[2] = {};
  size_t counts[2] = {};
  bool known = false;
};

int read_program(dl_phdr_info* info, size_t, void* out) {
  auto& program = *static_cast<Program*>(out);  // the main program is the first one told
  program.base = info->dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (header.p_type == PT_LOAD && (header.p_flags & PF_X) != 0) program.text_begin = begin, program.text_end = end;
    if (header.p_type == PT_GNU_RELRO) {  // the loader protects whole pages only
      program.relro_begin = begin / sys::page_bytes() * sys::page_bytes();
      program.relro_end = end / sys::page_bytes() * sys::page_bytes();
    }
  }
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        program.symbols = reinterpret_cast<const ElfW(Sym)*>(dynamic->d_un.d_ptr);
        break;
      case DT_STRTAB:
        program.strings = reinterpret_cast<const char*>(dynamic->d_un.d_ptr);
        break;
      case DT_RELA:
        program.tables[0] = reinterpret_cast<const ElfW(Rela)*>(dynamic->d_un.d_ptr);
        break;
      case DT_RELASZ:
        program.counts[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_JMPREL:
        program.tables[1] = reinterpret_cast<const ElfW(Rela)*>(dynamic->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        program.counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  }
  program.known = program.symbols != nullptr && program.strings != nullptr;
  return 1;
}

const Program& main_program() {
  static const Program program = [] {
    Program found;
    dl_iterate_phdr(read_program, &found);
    return found;
  }();
  return program;
}

// Calls `visit(slot)` for each slot that holds the address of `name`, until it returns false.
template <class Visit>
bool each_slot(const char* name, Visit visit) {
  const Program& program = main_program();
  for (int t = 0; program.known && t < 2; ++t) {
    for (size_t i = 0; program.tables[t] != nullptr && i < program.counts[t]; ++i) {
      const ElfW(Rela)& entry = program.tables[t][i];
      uint32_t type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
      if (type != kGlobalData && type != kJumpSlot) continue;
      if (strcmp(program.strings + program.symbols[ELF64_R_SYM(entry.r_info)].st_name, name) != 0) continue;
      if (!visit(reinterpret_cast<void**>(program.base + entry.r_offset))) return false;
    }
  }
  return true;
}

bool in_program_text(void* function) {
  auto address = reinterpret_cast<uintptr_t>(function);
  return address >= main_program().text_begin && address < main_program().text_end;
}

int store(void** slot, void* value) {
  const Program& program = main_program();
  auto address = reinterpret_cast<uintptr_t>(slot);
  if (address < program.relro_begin || address >= program.relro_end) {
    __atomic_store_n(slot, value, __ATOMIC_RELEASE);
    return 0;
  }
  size_t page = sys::page_bytes();
  void* start = reinterpret_cast<void*>(address / page * page);
  int rc = sys::protect(start, page, PROT_READ | PROT_WRITE);
  if (rc < 0) return rc;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  return sys::protect(start, page, PROT_READ);
}

}  // namespace

void* program_calls(const char* name) {
  void* found = nullptr;
  each_slot(name, [&](void** slot) {
    found = *slot;
    return false;
  });
  if (found == nullptr || !in_program_text(found)) return found;
  // not RTLD_DEFAULT: for a module loaded RTLD_DEEPBIND that begins with its own libraries
  void* program = dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD);
  return program == nullptr ? nullptr : dlsym(program, name);
}

int program_redirect(const char* name, void* replacement, void** original, ErrorText* why) {
  *original = program_calls(name);
  if (*original == nullptr)
    return why->set(-ENOENT, "the server does not call %s of a shared library (built statically?)", name);
  int rc = 0;
  each_slot(name, [&](void** slot) { return (rc = store(slot, replacement)) == 0; });
  if (rc == 0) return 0;
  each_slot(name, [&](void** slot) { return store(slot, *original) == 0; });
  return why->set(-EACCES,
                  "the server's table of calls cannot be changed (%s of %s); is memory protection locked (SELinux, "
                  "MemoryDenyWriteExecute)?",
                  errno_name(rc), name);
}

}  // namespace lunar::redis
