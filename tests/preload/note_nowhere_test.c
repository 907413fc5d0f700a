// SPDX-License-Identifier: Apache-2.0
// note_nowhere_test OBJECT: an object whose note segment is not among what is loaded (tools that
// rewrite ELF files leave such headers) makes maps like any other. The test loads a copy of OBJECT
// with such a header.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const char* what) {
  perror(what);
  return 1;
}

int main(int argc, char** argv) {
  const int object = argc > 1 ? open(argv[1], O_RDONLY) : -1;
  const int copy = memfd_create("note_nowhere", 0);
  struct stat status;
  if (object < 0 || copy < 0 || fstat(object, &status) != 0) return fail("object");
  if (ftruncate(copy, status.st_size) != 0) return fail("ftruncate");
  char* content = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, copy, 0);
  if (content == MAP_FAILED || read(object, content, (size_t)status.st_size) != status.st_size)
    return fail("copy");
  const ElfW(Ehdr)* elf = (const ElfW(Ehdr)*)content;
  ElfW(Phdr)* headers = (ElfW(Phdr)*)(content + elf->e_phoff);
  int notes = 0;
  for (unsigned i = 0; i < elf->e_phnum; ++i) {
    if (headers[i].p_type == PT_GNU_PROPERTY) headers[i].p_type = PT_NULL;
    if (headers[i].p_type != PT_NOTE) continue;
    if (headers[i].p_align == 8) {  // the loader reads these itself
      headers[i].p_type = PT_NULL;
      continue;
    }
    headers[i].p_vaddr += (ElfW(Addr))1 << 44;
    ++notes;
  }
  if (notes == 0) {
    printf("%s has no notes\n", argv[1]);
    return 1;
  }
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", copy);
  void* loaded = dlopen(path, RTLD_NOW);
  if (loaded == NULL) {
    printf("%s\n", dlerror());
    return 1;
  }
  void* (*map_from_object)(unsigned long);
  *(void**)&map_from_object = dlsym(loaded, "map_from_object");
  const size_t bytes = 48 << 20;
  char* memory = map_from_object(bytes);
  if (memory == MAP_FAILED) return fail("map");
  memset(memory, 7, bytes);
  return memory[bytes - 1] != 7;
}
