// SPDX-License-Identifier: Apache-2.0
// `deep_bind_test PRELOAD OBJECT NEIGHBOUR CASE`: libraries loaded with RTLD_DEEPBIND, as PHP loads its extensions.
// They share the program's malloc, and the loader still finds what they load by *their* search path: NEIGHBOUR is a
// library next to OBJECT.
#include <dlfcn.h>

#include "preload_test.h"

namespace {

const char* g_object = "";
const char* g_neighbour = "";
bool g_by_space = false;

template <class F>
F* found(void* library, const char* name) {
  auto* function = reinterpret_cast<F*>(dlsym(library, name));
  CHECK(function != nullptr);
  return function;
}

int body() {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
  void* library = g_by_space ? dlmopen(LM_ID_BASE, g_object, kMode) : dlopen(g_object, kMode);
  CHECK(library != nullptr);
  auto* made = found<char*()>(library, "deep_make")();
  CHECK(strcmp(made, "made by the library") == 0);
  made = static_cast<char*>(realloc(made, 100000));
  CHECK(made != nullptr && strcmp(made, "made by the library") == 0);
  made = static_cast<char*>(found<void*(void*, size_t)>(library, "deep_grow")(made, 1 << 20));
  CHECK(made != nullptr && strcmp(made, "made by the library") == 0 && tiered(made));
  free(made);
  for (size_t bytes : {16, 4000, 1 << 20}) found<void(void*)>(library, "deep_free")(malloc(bytes));
  void* neighbour = found<void*(const char*, int)>(library, "deep_open")(g_neighbour, g_by_space);
  if (neighbour == nullptr) fprintf(stderr, "%s\n", dlerror());
  CHECK(neighbour != nullptr);
  CHECK(dlopen(g_neighbour, RTLD_NOW) == nullptr || dlopen(g_neighbour, RTLD_NOW | RTLD_NOLOAD) == neighbour);
  CHECK(dlopen("no-such-library.so", RTLD_NOW) == nullptr && strstr(dlerror(), "no-such-library.so") != nullptr);
  CHECK(dlopen(nullptr, RTLD_NOW | RTLD_DEEPBIND) != nullptr);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  g_object = argv[2];
  g_neighbour = strrchr(argv[3], '/') + 1;
  g_by_space = strcmp(argv[4], "by-space") == 0;
  return run_preloaded(argc, argv, {"LUNAR_DRAM=32m"}, body);
}
