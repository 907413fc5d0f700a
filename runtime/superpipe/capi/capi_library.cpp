// SPDX-License-Identifier: Apache-2.0
// See capi_library.h.
//
// RTLD_LOCAL and RTLD_DEEPBIND: the library's calls of its own functions must not reach Lunar's
// libcflsh_block, which has the same names and may have been loaded before by the program.
#include "superpipe/capi/capi_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/host_guard.h"
#include "sys/file.h"

namespace lunar {

const char* const kCapiLibraryPlaces[] = {"/usr/lib/libcflsh_block-0.so",
                                          "/usr/lib64/libcflsh_block-0.so",
                                          "/usr/lib/powerpc64le-linux-gnu/libcflsh_block-0.so",
                                          "/opt/ibm/capikv/lib/libcflsh_block-0.so",
                                          "/opt/ibm/capikv/lib/libcflsh_block.so",
                                          nullptr};

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kBind = 0;  // a sanitizer's own functions must take precedence
#else
constexpr int kBind = RTLD_DEEPBIND;
#endif

bool is_there(const char* path) {
  struct stat status;
  return sys::path_status(path, &status) == 0;
}

template <class F>
bool find(void* library, F* function, const char* name) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

int CapiLibrary::load(const char* uri, const char* path, ErrorText* why) {
  if (*path && *path != '/')
    return why->set(-EINVAL,
                    "LUN %s: lib=%s: not an absolute path; write lib=/path/libcflsh_block-0.so",
                    uri, path);
  if (*path && !is_there(path))
    return why->set(-ENODEV,
                    "LUN %s: there is no library %s; give IBM's libcflsh_block with lib=/path", uri,
                    path);
  bool ours = false;
  char reason[192] = {};
  const HostGuard guard;  // dlopen allocates from DRAM
  const char* const given[] = {path, nullptr};
  for (const char* const* place = *path ? given : kCapiLibraryPlaces; *place; ++place) {
    if (!is_there(*place)) continue;
    void* library = dlopen(*place, RTLD_NOW | RTLD_LOCAL | kBind);
    if (!library) {
      const char* text = dlerror();
      strncpy(reason, text ? text : "dlopen failed", sizeof reason - 1);
      continue;
    }
    if (dlsym(library, "lunar_cblk_marker")) {
      ours = true;
    } else if (find(library, &open, "cblk_open") && find(library, &close, "cblk_close") &&
               find(library, &get_lun_size, "cblk_get_lun_size") &&
               find(library, &read, "cblk_read") && find(library, &write, "cblk_write") &&
               find(library, &aread, "cblk_aread") && find(library, &awrite, "cblk_awrite") &&
               find(library, &aresult, "cblk_aresult")) {
      (void)find(library, &init, "cblk_init");
      (void)find(library, &unmap, "cblk_unmap");
      (void)find(library, &get_attrs, "cblk_get_attrs");
      return 0;  // the library stays loaded, because its threads may run
    } else {
      strncpy(reason, "it lacks functions of cblk_*", sizeof reason - 1);
    }
    dlclose(library);
  }
  if (reason[0])
    return why->set(-ENODEV, "LUN %s: IBM's libcflsh_block cannot be used: %s", uri, reason);
  if (ours)
    return why->set(-ENODEV,
                    "LUN %s: the libcflsh_block here is Lunar's own, not IBM's, and cannot drive "
                    "CAPI hardware; give IBM's with lib=/path, or use nvme: or file: for this disk",
                    uri);
  return why->set(-ENODEV,
                  "LUN %s: no CAPI Flash here: IBM's libcflsh_block is not installed (looked at %s "
                  "and others); give it with lib=/path, or use nvme: or file: for this disk",
                  uri, kCapiLibraryPlaces[0]);
}

}  // namespace lunar
