// SPDX-License-Identifier: Apache-2.0
// The pager's descriptors. They are in two tables: the program's, where range operations and fork
// need the userfaultfd and the LUNs, and the service threads' own, which the program cannot reach.
// In the program's table they have high numbers, and the pager checks them before it uses them,
// because a daemon closes everything and a shell opens whatever numbers it likes.
// Threading: during activation and fork, under their locks. Blocking.
#pragma once
#include "base/error.h"
#include "pager/state/state.h"

namespace lunar {

// Opens the LUN option's device as number `lun`. 0 or -errno with *why.
[[nodiscard]] int open_device(PagerState& state, unsigned lun, const DeviceOptions& options,
                              ErrorText* why);
// Closes number `lun`, which is nullptr from then on; does nothing if it is already. If the program
// uses a descriptor number by now, that stays open.
void close_device(PagerState& state, unsigned lun);
// number `lun` is the same device as `with`
void share_device(PagerState& state, unsigned lun, unsigned with);
// In a forked child, for an ancestor's device: closes its descriptors, unless another number is the
// same device. Its content stays.
void forget_device(PagerState& state, unsigned lun);
// Opens a new userfaultfd as state.uffd. 0 or -errno with *why.
[[nodiscard]] int open_uffd(PagerState& state, ErrorText* why);
// Whether that is still what state.uffd is in the calling thread's table.
[[nodiscard]] bool uffd_in_place(const PagerState& state);
void close_uffd(PagerState& state);  // unless the program has a descriptor of its own there

// At the start: keeps a handle on the directory of the LUN option, if it is one.
void keep_lun_directory(PagerState& state);
// whether that handle is still in place
[[nodiscard]] bool has_lun_directory(const PagerState& state);

// Registers a region, or a part, in missing mode, around its foreign ranges. Around what a raw call
// has put into a map (MAP_FIXED; regions of maps only) it does so by halving: a few calls for each
// such place.
[[nodiscard]] int region_register(const PagerState& state, const Region& region, char* from,
                                  uint64_t bytes);
// Sets up a map that was just made in a region's place: no huge pages, no merging, not inherited by
// children that the fork handlers have not seen, and registered (by the housekeeping thread, if the
// program has closed this thread's userfaultfd). 0 or -errno. Waits for the housekeeping thread,
// which takes no lock that a program thread waits with.
[[nodiscard]] int watch_fresh_range(PagerState& state, void* address, size_t bytes);

// See pager_keeps_descriptor.
[[nodiscard]] bool keeps_descriptor(const PagerState& state, int fd);
// Whether the program's table still holds the userfaultfd and the LUNs: range operations need both.
[[nodiscard]] bool descriptors_in_place(const PagerState& state);

// Around fork: descriptors of the LUNs that the child will find in its copy of the program's table.
// Those that the program has closed are fetched from the service threads' table.
struct ForkDescriptors {
  int reopened[kLunIds][kDeviceFdsMax];  // -1: the present one is good
};
[[nodiscard]] int fork_descriptors_prepare(PagerState& state, ForkDescriptors* out);
void fork_descriptors_parent(const ForkDescriptors& descriptors);
void fork_descriptors_child(PagerState& state, const ForkDescriptors& descriptors);

}  // namespace lunar
