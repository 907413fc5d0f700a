// SPDX-License-Identifier: Apache-2.0
// See program_got.h. Programs linked `-z relro -z now` have a read-only table, whose pages are made
// writable for each store.
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

namespace lunar {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kGlobalData = R_X86_64_GLOB_DAT, kJumpSlot = R_X86_64_JUMP_SLOT;
#elif defined(__aarch64__)
constexpr uint32_t kGlobalData = R_AARCH64_GLOB_DAT, kJumpSlot = R_AARCH64_JUMP_SLOT;
#elif defined(__powerpc64__)
constexpr uint32_t kGlobalData = R_PPC64_GLOB_DAT, kJumpSlot = R_PPC64_JMP_SLOT;
#endif

struct Object {
  uintptr_t base = 0;
  uintptr_t relro_begin = 0, relro_end = 0;  // whole pages
  uintptr_t relro_first = 0, relro_last = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
  const ElfW(Rela) * tables[2] = {};
  size_t counts[2] = {};
  bool known = false;
};

// The linker has made most addresses of the dynamic section absolute.
template <class T>
const T* table_at(const dl_phdr_info* info, uintptr_t address) {
  return reinterpret_cast<const T*>(address < info->dlpi_addr ? info->dlpi_addr + address
                                                              : address);
}

void read_object(const dl_phdr_info* info, Object* out) {
  Object& program = *out;
  program.base = info->dlpi_addr;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (header.p_type == PT_GNU_RELRO) {  // the loader protects whole pages only
      program.relro_first = begin;
      program.relro_last = end;
      program.relro_begin = begin / sys::page_bytes() * sys::page_bytes();
      program.relro_end = end / sys::page_bytes() * sys::page_bytes();
    }
  }
  for (; dynamic != nullptr && dynamic->d_tag != DT_NULL; ++dynamic) {
    switch (dynamic->d_tag) {
      case DT_SYMTAB:
        program.symbols = table_at<ElfW(Sym)>(info, dynamic->d_un.d_ptr);
        break;
      case DT_STRTAB:
        program.strings = table_at<char>(info, dynamic->d_un.d_ptr);
        break;
      case DT_RELA:
        program.tables[0] = table_at<ElfW(Rela)>(info, dynamic->d_un.d_ptr);
        break;
      case DT_RELASZ:
        program.counts[0] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
        break;
      case DT_JMPREL:
        program.tables[1] = table_at<ElfW(Rela)>(info, dynamic->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        program.counts[1] = dynamic->d_un.d_val / sizeof(ElfW(Rela));
        break;
      default:
        break;
    }
  }
  program.known = program.symbols != nullptr && program.strings != nullptr;
}

struct Wanted {
  uintptr_t inside;
  Object found;
};

int read_program(dl_phdr_info* info, size_t, void* out) {
  read_object(info, static_cast<Object*>(out));  // the main program comes first
  return 1;
}

int read_wanted(dl_phdr_info* info, size_t, void* out) {
  auto& wanted = *static_cast<Wanted*>(out);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD ||
        wanted.inside - (info->dlpi_addr + header.p_vaddr) >= header.p_memsz)
      continue;
    read_object(info, &wanted.found);
    return 1;
  }
  return 0;
}

const Object& main_program() {
  static const Object program = [] {
    Object found;
    dl_iterate_phdr(read_program, &found);
    return found;
  }();
  return program;
}

Object object_of(const void* inside) {
  Wanted wanted{reinterpret_cast<uintptr_t>(inside), {}};
  dl_iterate_phdr(read_wanted, &wanted);
  return wanted.found;
}

// Calls `visit(name, slot)` for each slot that holds the address of a function or variable, until
// it returns false.
template <class Visit>
bool each_named_slot(const Object& program, Visit visit) {
  for (int t = 0; program.known && t < 2; ++t) {
    for (size_t i = 0; program.tables[t] != nullptr && i < program.counts[t]; ++i) {
      const ElfW(Rela)& entry = program.tables[t][i];
      uint32_t type = static_cast<uint32_t>(ELF64_R_TYPE(entry.r_info));
      if (type != kGlobalData && type != kJumpSlot) continue;
      if (!visit(program.strings + program.symbols[ELF64_R_SYM(entry.r_info)].st_name,
                 reinterpret_cast<void**>(program.base + entry.r_offset)))
        return false;
    }
  }
  return true;
}

// Calls `visit(slot)` for each slot that holds the address of `name`, until it returns false.
template <class Visit>
bool each_slot(const Object& program, const char* name, Visit visit) {
  return each_named_slot(program, [&](const char* other, void** slot) {
    return strcmp(name, other) != 0 || visit(slot);
  });
}

bool in_program(void* function) {
  const Object object = object_of(function);
  return object.known && object.base == main_program().base;
}

int store(const Object& program, void** slot, void* value) {
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

void* function_called(const char* name) {
  // RTLD_DEFAULT would begin with the own libraries of a module that was loaded with RTLD_DEEPBIND
  void* program = dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD);
  void* found = program == nullptr ? nullptr : dlsym(program, name);
  Dl_info where;
  void* entry = nullptr;
  if (found == nullptr || dladdr1(found, &where, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr ||
      static_cast<const ElfW(Sym)*>(entry)->st_shndx != SHN_UNDEF)
    return found;
  link_map* map = nullptr;
  if (dlinfo(program, RTLD_DI_LINKMAP, &map) != 0) return found;
  while ((map = map->l_next) != nullptr) {  // the linker searches in this order
    void* library = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void* defined = library == nullptr
                        ? nullptr
                        : dlsym(library, name);  // in it, or in a library that it needs
    if (defined != nullptr && dladdr(defined, &where) != 0 &&
        where.dli_fbase == reinterpret_cast<void*>(map->l_addr))
      return defined;
  }
  return found;
}

void* program_calls(const char* name) {
  void* found = nullptr;
  each_slot(main_program(), name, [&](void** slot) {
    found = *slot;
    return false;
  });
  return found == nullptr || !in_program(found) ? found : function_called(name);
}

int program_redirect(const char* name, void* replacement, void** original, ErrorText* why) {
  *original = program_calls(name);
  if (*original == nullptr)
    return why->set(-ENOENT, "the server does not call %s of a shared library (built statically?)",
                    name);
  int rc = 0;
  const Object& program = main_program();
  each_slot(program, name,
            [&](void** slot) { return (rc = store(program, slot, replacement)) == 0; });
  if (rc == 0) return 0;
  each_slot(program, name, [&](void** slot) { return store(program, slot, *original) == 0; });
  return why->set(-EACCES,
                  "the server's table of calls cannot be changed (%s of %s); is memory protection "
                  "locked (SELinux, MemoryDenyWriteExecute)?",
                  errno_name(rc), name);
}

int object_redirect(const void* inside, Redirected* calls, size_t count) {
  const Object object = object_of(inside);
  int rc = 0;
  each_named_slot(object, [&](const char* name, void** slot) {
    for (size_t i = 0; i < count && rc == 0; ++i) {
      if (strcmp(calls[i].name, name) != 0) continue;
      rc = store(object, slot, calls[i].replacement);
      ++calls[i].slots;
    }
    return rc == 0;
  });
  return rc;
}

int object_replace_words(const void* inside, const void* original, void* replacement) {
  const Object object = object_of(inside);
  int words = 0;
  for (uintptr_t at = object.relro_first; at + sizeof(void*) <= object.relro_last;
       at += sizeof(void*)) {
    auto** word = reinterpret_cast<void**>(at);
    if (*word != original) continue;
    if (const int rc = store(object, word, replacement); rc < 0) return rc;
    ++words;
  }
  return words;
}

}  // namespace lunar
