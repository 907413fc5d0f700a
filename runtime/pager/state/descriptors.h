// SPDX-License-Identifier: Apache-2.0
// The pager's descriptors. They are in two tables: the program's, where range operations and fork
// need the userfaultfd and the LUNs, and the service threads' own, which the program cannot reach.
// In the program's table they have high numbers, and the pager checks them before use: a daemon
// closes all descriptors, and a shell opens any number. Threading: during activation and fork,
// under their locks. Blocking.
#pragma once
#include "base/error.h"
#include "pager/state/state.h"

namespace lunar {

// Opens the LUN option's device as number `lun`. 0 or -errno with *why.
[[nodiscard]] int open_device(PagerState& state, unsigned lun, const DeviceOptions& options,
                              ErrorText* why);
// Closes the device with number `lun`, which is nullptr from then on; does nothing if it is
// already. A descriptor number that the program has reused stays open.
void close_device(PagerState& state, unsigned lun);
// Makes number `lun` the same device as `with`.
void share_device(PagerState& state, unsigned lun, unsigned with);
// In a forked child, for an ancestor's device: closes its descriptors, unless another number has
// the same device. Its content stays.
void forget_device(PagerState& state, unsigned lun);
// Opens a new userfaultfd as state.uffd. 0 or -errno with *why.
[[nodiscard]] int open_uffd(PagerState& state, ErrorText* why);
// Whether state.uffd is still that userfaultfd in the calling thread's table.
[[nodiscard]] bool uffd_in_place(const PagerState& state);
void close_uffd(PagerState& state);  // unless the program has reused its number

// At the start: opens the LUN option's directory, if it names one, and keeps the descriptor.
void keep_lun_directory(PagerState& state);
// Whether that descriptor is still in place.
[[nodiscard]] bool has_lun_directory(const PagerState& state);

// Registers a region, or a part, in missing mode, except its foreign ranges. In regions of maps it
// also leaves out what a raw call has put there (MAP_FIXED). It finds such a place by halving the
// range, which takes a few calls each.
[[nodiscard]] int region_register(const PagerState& state, const Region& region, char* from,
                                  uint64_t bytes);
// Sets up a map that was just made in a region's place: without huge pages and merging, not
// inherited by raw forks, and registered (by the housekeeping thread, if the program has closed
// this thread's userfaultfd). 0 or -errno. May wait for the housekeeping thread, which takes no
// lock that a program thread holds while it waits.
[[nodiscard]] int watch_fresh_range(PagerState& state, void* address, size_t bytes);

// See pager_keeps_descriptor.
[[nodiscard]] bool keeps_descriptor(const PagerState& state, int fd);
// Whether the program's table still holds the userfaultfd and the LUNs: range operations need both.
[[nodiscard]] bool descriptors_in_place(const PagerState& state);

// For a fork: the LUNs' descriptors in the child's copy of the program's table. Descriptors that
// the program has closed are opened again through the service threads' table.
struct ForkDescriptors {
  int reopened[kLunIds][kDeviceFdsMax];  // -1: the program's is still in place
};
[[nodiscard]] int fork_descriptors_prepare(PagerState& state, ForkDescriptors* out);
void fork_descriptors_parent(const ForkDescriptors& descriptors);
void fork_descriptors_child(PagerState& state, const ForkDescriptors& descriptors);

}  // namespace lunar
