// SPDX-License-Identifier: Apache-2.0
// See code_ranges.h.
#include "code_ranges.h"

#include <dlfcn.h>
#include <link.h>

namespace lunar::preload {

constinit CodeRange g_linker_code;

namespace {

constinit CodeRange g_allocator_code, g_own_code;

struct Query {
  const void* address;
  CodeRange found;
};

// Finds the loaded object that holds the address, as one range of its executable segments.
int find_code(dl_phdr_info* info, size_t, void* argument) {
  auto* query = static_cast<Query*>(argument);
  CodeRange code;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    uintptr_t begin = info->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    if (code.end == 0 || begin < code.begin) code.begin = begin;
    if (end > code.end) code.end = end;
  }
  if (!code.holds(query->address)) return 0;
  query->found = code;
  return 1;
}

CodeRange code_around(const void* address) {
  Query query{address, {}};
  dl_iterate_phdr(find_code, &query);
  return query.found;
}

}  // namespace

void code_ranges_prepare(const void* in_allocator) {
  g_allocator_code = code_around(in_allocator);
  g_own_code = code_around(reinterpret_cast<const void*>(&code_ranges_prepare));
  g_linker_code = code_around(dlsym(RTLD_DEFAULT, "__tls_get_addr"));
}

bool is_own_code(const void* address) { return g_own_code.holds(address); }

bool is_runtime_code(const void* address) {
  return g_allocator_code.holds(address) || is_own_code(address);
}

}  // namespace lunar::preload
