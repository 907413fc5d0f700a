// SPDX-License-Identifier: Apache-2.0
// The pager's descriptors. Two tables hold them: the program's, where range operations and fork need the userfaultfd
// and the LUNs, and the service threads' own, which the program cannot reach. In the program's table they have high
// numbers, and the pager checks them before it trusts them: a daemon closes everything, a shell opens what it likes.
// Threading: during activation and fork, under their locks. Blocking.
#pragma once
#include "base/error.h"
#include "pager/state.h"

namespace lunar {

// Opens the LUN option's device as number `lun`. 0 or -errno with *why.
[[nodiscard]] int open_device(PagerState& state, unsigned lun, const DeviceOptions& options, ErrorText* why);
// Closes number `lun`, which is nullptr from then on; fine when it is already. A descriptor number that the program
// uses by now stays open.
void close_device(PagerState& state, unsigned lun);
void share_device(PagerState& state, unsigned lun, unsigned with);  // number `lun` is the same device as `with`
// In a forked child, for an ancestor's device: closes its descriptors, unless another number is the same device. Its
// contents stay.
void forget_device(PagerState& state, unsigned lun);
// A fresh userfaultfd into state.uffd. 0 or -errno with *why.
[[nodiscard]] int open_uffd(PagerState& state, ErrorText* why);

// At the start: keeps a handle on the LUN option's directory, where it is one.
void keep_lun_directory(PagerState& state);
[[nodiscard]] bool has_lun_directory(const PagerState& state);  // whether that handle is still in place

// Whether the program's table still holds the userfaultfd and the LUNs: range operations need both.
[[nodiscard]] bool descriptors_in_place(const PagerState& state);

// Around fork: descriptors of the LUNs that the child will find in its copy of the program's table. Those that the
// program has closed are fetched from the service threads' table.
struct ForkDescriptors {
  int reopened[kLunIds][kDeviceFdsMax];  // -1: the one in place is good
};
[[nodiscard]] int fork_descriptors_prepare(PagerState& state, ForkDescriptors* out);
void fork_descriptors_parent(const ForkDescriptors& descriptors);
void fork_descriptors_child(PagerState& state, const ForkDescriptors& descriptors);

}  // namespace lunar
