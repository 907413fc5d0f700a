// SPDX-License-Identifier: Apache-2.0
// PROGRAM LIBRARY CASE OBJECT NEIGHBOUR: libraries loaded with RTLD_DEEPBIND, as PHP loads its
// extensions.
// They share the program's malloc, and the loader still finds what they load by *their* search
// path: NEIGHBOUR is a library next to OBJECT.
#include <dlfcn.h>

#include "preload_test.h"

namespace {

const char *g_object = "", *g_neighbour = "";

template <class F>
F* found(void* library, const char* name) {
  auto* function = reinterpret_cast<F*>(dlsym(library, name));
  REQUIRE(function != nullptr);
  return function;
}

void body() {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
  const bool by_space = g_case == "by-space";
  void* library = by_space ? dlmopen(LM_ID_BASE, g_object, kMode) : dlopen(g_object, kMode);
  REQUIRE(library != nullptr);
  auto* made = found<char*()>(library, "deep_make")();
  REQUIRE(strcmp(made, "made by the library") == 0);
  made = static_cast<char*>(realloc(made, 100000));
  REQUIRE(made != nullptr && strcmp(made, "made by the library") == 0);
  made = static_cast<char*>(found<void*(void*, size_t)>(library, "deep_grow")(made, 1 << 20));
  REQUIRE(made != nullptr && strcmp(made, "made by the library") == 0 && tiered(made));
  free(made);
  for (size_t bytes : {16, 4000, 1 << 20}) found<void(void*)>(library, "deep_free")(malloc(bytes));
  void* neighbour = found<void*(const char*, int)>(library, "deep_open")(g_neighbour, by_space);
  if (neighbour == nullptr) fprintf(stderr, "%s\n", dlerror());
  REQUIRE(neighbour != nullptr);
  REQUIRE(dlopen(g_neighbour, RTLD_NOW) == nullptr ||
          dlopen(g_neighbour, RTLD_NOW | RTLD_NOLOAD) == neighbour);
  REQUIRE(dlopen("no-such-library.so", RTLD_NOW) == nullptr &&
          strstr(dlerror(), "no-such-library.so") != nullptr);
  REQUIRE(dlopen(nullptr, RTLD_NOW | RTLD_DEEPBIND) != nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  g_object = argv[3];
  g_neighbour = strrchr(argv[4], '/') + 1;
  return run_cases(argc, argv, {"LUNAR_DRAM=32m"}, {{"dlopen", body}, {"by-space", body}});
}
