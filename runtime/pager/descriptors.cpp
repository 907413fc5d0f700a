// SPDX-License-Identifier: Apache-2.0
// Opening, keeping and finding again the descriptors of the pager. See descriptors.h.
#include "pager/descriptors.h"

#include <errno.h>
#include <fcntl.h>

#include "base/format.h"
#include "sys/file.h"
#include "sys/proc.h"

namespace lunar {
namespace {

// Whether descriptor `fd` of the calling thread's table is still the file that generation's device was opened on.
bool is_device(const PagerState& state, unsigned generation, int fd) {
  struct stat now;
  const auto& id = state.device_ids[generation];
  return sys::file_status(fd, &now) == 0 && now.st_dev == id.dev && now.st_ino == id.ino;
}

bool own_device(const PagerState& state, unsigned generation) {
  Device* device = state.devices[generation];
  return device != nullptr && device->fd() >= 0 && (generation == 0 || device != state.devices[generation - 1]);
}

}  // namespace

int open_device(PagerState& state, unsigned generation, const DeviceOptions& options, ErrorText* why) {
  Device* device = nullptr;
  int rc = device_open(state.options.lun, options, &device, why);
  if (rc < 0) return rc;
  if (device->fd() >= 0) {
    device->reopen(sys::move_high(device->fd()));
    sys::note_own_descriptor(device->fd(), true);
    struct stat status {};
    (void)!sys::file_status(device->fd(), &status);
    state.device_ids[generation] = {status.st_dev, status.st_ino};
  }
  state.devices[generation] = device;
  return 0;
}

int open_uffd(PagerState& state, ErrorText* why) {
  int fd = sys::uffd_open(&state.features, why);
  if (fd < 0) return fd;
  state.uffd = sys::move_high(fd);
  sys::note_own_descriptor(state.uffd, true);
  return 0;
}

bool descriptors_in_place(const PagerState& state) {
  for (unsigned i = 0; i <= state.generation; ++i)
    if (own_device(state, i) && !is_device(state, i, state.devices[i]->fd())) return false;
  return sys::is_userfaultfd(state.uffd);
}

int fork_descriptors_prepare(PagerState& state, ForkDescriptors* out) {
  for (unsigned i = 0; i < kLunGenerations; ++i) {
    out->reopened[i] = -1;
    if (i > state.generation || !own_device(state, i) || is_device(state, i, state.devices[i]->fd())) continue;
    char path[64];
    format_to(path, sizeof path, "/proc/self/task/%d/fd/%d", state.keeper_tid.load(), state.devices[i]->fd());
    int fd = sys::open_file(path, O_RDWR | O_DIRECT);
    if (fd < 0) return fd;
    fd = sys::move_high(fd);
    sys::note_own_descriptor(fd, true);
    out->reopened[i] = fd;
    if (!is_device(state, i, fd)) return -EBADF;
  }
  return 0;
}

void fork_descriptors_parent(const ForkDescriptors& descriptors) {
  for (int fd : descriptors.reopened) {
    if (fd < 0) continue;
    sys::note_own_descriptor(fd, false);
    sys::close_file(fd);
  }
}

void fork_descriptors_child(PagerState& state, const ForkDescriptors& descriptors) {
  for (unsigned i = 0; i < kLunGenerations; ++i) {
    if (descriptors.reopened[i] < 0) continue;
    Device* stale = state.devices[i];
    stale->reopen(descriptors.reopened[i]);
  }
  sys::note_own_descriptor(state.uffd, false);
  if (sys::is_userfaultfd(state.uffd)) sys::close_file(state.uffd);
}

}  // namespace lunar
