// SPDX-License-Identifier: Apache-2.0
// Opening, keeping and finding again the descriptors of the pager. See descriptors.h.
#include "pager/descriptors.h"

#include <errno.h>
#include <fcntl.h>

#include "base/format.h"
#include "lun/compose.h"
#include "sys/file.h"
#include "sys/proc.h"

namespace lunar {
namespace {

// Whether descriptor `fd` of the calling thread's table is still the file that generation's device has as number i.
bool is_device(const PagerState& state, unsigned generation, unsigned i, int fd) {
  struct stat now;
  const auto& id = state.device_ids[generation][i];
  return sys::file_status(fd, &now) == 0 && now.st_dev == id.dev && now.st_ino == id.ino;
}

// How many descriptors of its own that generation's device has: none when it shares its parent's device.
unsigned own_descriptors(const PagerState& state, unsigned generation) {
  Device* device = state.devices[generation];
  if (device == nullptr || (generation != 0 && device == state.devices[generation - 1])) return 0;
  return device->fd_count();
}

}  // namespace

int open_device(PagerState& state, unsigned generation, const DeviceOptions& options, ErrorText* why) {
  Device* device = nullptr;
  int rc = scratch_open(state.options.lun, options, &device, why);
  if (rc < 0) return rc;
  for (unsigned i = 0; i < device->fd_count(); ++i) {
    device->reopen(i, sys::move_high(device->fd(i)));
    sys::note_own_descriptor(device->fd(i), true);
    struct stat status {};
    (void)!sys::file_status(device->fd(i), &status);
    state.device_ids[generation][i] = {status.st_dev, status.st_ino};
  }
  state.devices[generation] = device;
  return 0;
}

void close_device(PagerState& state, unsigned generation) {
  Device* device = state.devices[generation];
  if (device == nullptr) return;
  for (unsigned i = 0; i < device->fd_count(); ++i) sys::note_own_descriptor(device->fd(i), false);
  device_close(device);
  state.devices[generation] = nullptr;
}

int open_uffd(PagerState& state, ErrorText* why) {
  int fd = sys::uffd_open(&state.features, why);
  if (fd < 0) return fd;
  state.uffd = sys::move_high(fd);
  sys::note_own_descriptor(state.uffd, true);
  return 0;
}

bool descriptors_in_place(const PagerState& state) {
  for (unsigned generation = 0; generation <= state.generation; ++generation)
    for (unsigned i = 0; i < own_descriptors(state, generation); ++i)
      if (!is_device(state, generation, i, state.devices[generation]->fd(i))) return false;
  return sys::is_userfaultfd(state.uffd);
}

int fork_descriptors_prepare(PagerState& state, ForkDescriptors* out) {
  for (auto& of_generation : out->reopened)
    for (int& fd : of_generation) fd = -1;
  for (unsigned generation = 0; generation <= state.generation; ++generation) {
    Device* device = state.devices[generation];
    for (unsigned i = 0; i < own_descriptors(state, generation); ++i) {
      if (is_device(state, generation, i, device->fd(i))) continue;
      char path[64];
      format_to(path, sizeof path, "/proc/self/task/%d/fd/%d", state.keeper_tid.load(), device->fd(i));
      int fd = sys::open_file(path, O_RDWR | O_DIRECT);
      if (fd < 0) return fd;
      fd = sys::move_high(fd);
      sys::note_own_descriptor(fd, true);
      out->reopened[generation][i] = fd;
      if (!is_device(state, generation, i, fd)) return -EBADF;
      // A description of its own: the parent may be gone before the child.
      if (int rc = device->hold(i, fd); rc < 0) return rc;
    }
  }
  return 0;
}

void fork_descriptors_parent(const ForkDescriptors& descriptors) {
  for (const auto& of_generation : descriptors.reopened) {
    for (int fd : of_generation) {
      if (fd < 0) continue;
      sys::note_own_descriptor(fd, false);
      sys::close_file(fd);
    }
  }
}

void fork_descriptors_child(PagerState& state, const ForkDescriptors& descriptors) {
  for (unsigned generation = 0; generation < kLunGenerations; ++generation)
    for (unsigned i = 0; i < kDeviceFdsMax; ++i)
      if (descriptors.reopened[generation][i] >= 0) state.devices[generation]->reopen(i, descriptors.reopened[generation][i]);
  sys::note_own_descriptor(state.uffd, false);
  if (sys::is_userfaultfd(state.uffd)) sys::close_file(state.uffd);
}

}  // namespace lunar
