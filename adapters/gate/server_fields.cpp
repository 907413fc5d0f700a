// SPDX-License-Identifier: Apache-2.0
// See server_fields.h.
#include "server_fields.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstring>

#include "base/host_guard.h"

namespace lunar::redis {
namespace {

constexpr unsigned kWordsBehindName = 16;  // the pointer is among so many words after the name

struct Image {
  uintptr_t begin = UINTPTR_MAX, end = 0;            // of the whole program
  uintptr_t text_begin = UINTPTR_MAX, text_end = 0;  // read-only segments, with the names
  uintptr_t data_begin = 0, data_end = 0, zero_end = 0;
  bool has(uintptr_t at) const { return at >= begin && at < end; }
};

int read_image(dl_phdr_info* info, size_t, void* out) {
  auto& image = *static_cast<Image*>(out);  // the main program comes first
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr, end = begin + header.p_memsz;
    if (begin < image.begin) image.begin = begin;
    if (end > image.end) image.end = end;
    if ((header.p_flags & PF_W) != 0) {
      image.data_begin = (begin + 7) & ~uintptr_t{7};
      image.data_end = begin + header.p_filesz;
      image.zero_end = end;
    } else {
      if (begin < image.text_begin) image.text_begin = begin;
      if (end > image.text_end) image.text_end = end;
    }
  }
  return 1;
}

const Image& image() {
  static const Image found = [] {
    Image read;
    HostGuard guard;
    dl_iterate_phdr(read_image, &read);
    return read;
  }();
  return found;
}

bool is_text(uintptr_t at, const char* name) {
  const size_t bytes = strlen(name) + 1;
  // The read-only segments lie together, before the writable ones.
  const uintptr_t end =
      image().text_end < image().data_begin ? image().text_end : image().data_begin;
  return at >= image().text_begin && at < end && end - at >= bytes &&
         memcmp(reinterpret_cast<const void*>(at), name, bytes) == 0;
}

}  // namespace

void* server_export(const char* name) {
  HostGuard guard;
  return dlsym(RTLD_DEFAULT, name);
}

void* server_setting(const char* name) {
  HostGuard guard;
  const auto server = reinterpret_cast<uintptr_t>(server_export("server"));
  Dl_info ignored;
  const ElfW(Sym)* symbol = nullptr;
  if (server == 0 ||
      dladdr1(reinterpret_cast<void*>(server), &ignored,
              reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr)
    return nullptr;
  const auto* words = reinterpret_cast<const uintptr_t*>(image().data_begin);
  const size_t count = (image().data_end - image().data_begin) / sizeof *words;
  void* found = nullptr;
  for (size_t i = 0; i + kWordsBehindName < count; ++i) {
    if (!is_text(words[i], name)) continue;
    size_t at = i + 1;
    while (at < i + kWordsBehindName &&
           (words[at] < server || words[at] >= server + symbol->st_size))
      ++at;
    if (at == i + kWordsBehindName) continue;
    if (found != nullptr) return nullptr;
    found = reinterpret_cast<void*>(words[at]);
  }
  return found;
}

void** program_pointer(bool (*fits)(const void* pointer)) {
  auto* words = reinterpret_cast<void**>(image().data_begin);
  const size_t count = (image().zero_end - image().data_begin) / sizeof *words;
  void** found = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const auto at = reinterpret_cast<uintptr_t>(words[i]);
    if (at < 65536 || at % 16 != 0 || at >> 47 != 0 || image().has(at) || !fits(words[i])) continue;
    if (found != nullptr) return nullptr;
    found = words + i;
  }
  return found;
}

}  // namespace lunar::redis
