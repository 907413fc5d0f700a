// SPDX-License-Identifier: Apache-2.0
// Opening, keeping and finding again the descriptors of the pager. See descriptors.h.
#include "pager/state/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <initializer_list>

#include "base/format.h"
#include "lun/compose.h"
#include "pager/state/program_end.h"
#include "pager/state/requests.h"
#include "sys/by_halves.h"
#include "sys/proc.h"

namespace lunar {
namespace {

// Whether descriptor `fd` of the calling thread's table is still the i-th file of device number
// `lun`.
bool is_device(const PagerState& state, unsigned lun, unsigned i, int fd) {
  return sys::is_file(fd, state.luns.device_ids[lun][i].file);
}

// The lowest number with the same device. Loops over all descriptors visit a device only under this
// number.
unsigned first_with_device(const PagerState& state, unsigned lun) {
  unsigned first = 0;
  while (state.luns.devices[first] != state.luns.devices[lun]) ++first;
  return first;
}

// How many descriptors that number's device has; 0 if a lower number has the same device.
unsigned own_descriptors(const PagerState& state, unsigned lun) {
  Device* device = state.luns.devices[lun];
  return device == nullptr || first_with_device(state, lun) != lun ? 0 : device->fd_count();
}

bool is_in_place(const PagerState& state, unsigned lun) {
  for (unsigned i = 0; i < own_descriptors(state, lun); ++i)
    if (!is_device(state, lun, i, state.luns.devices[lun]->fd(i))) return false;
  return true;
}

// Opens the i-th file of LUN number `lun` again, through the service threads' table.
int fetch_from_housekeeping(const PagerState& state, unsigned lun, unsigned i) {
  char path[64];
  format_to(path, sizeof path, "/proc/self/task/%d/fd/%d", state.services.housekeeping_tid.load(),
            state.luns.devices[lun]->fd(i));
  return sys::open_file(path, state.luns.device_ids[lun][i].flags);
}

}  // namespace

void keep_lun_directory(PagerState& state) {
  if (has_lun_directory(state)) {  // of an earlier pager_create, perhaps with another directory
    sys::note_own_descriptor(state.luns.directory, false);
    sys::close_file(state.luns.directory);
  }
  state.luns.directory = -1;
  if (state.options.lun == nullptr) return;
  const int opened = sys::open_file(state.options.lun, O_PATH | O_DIRECTORY);
  if (opened < 0) return;
  state.luns.directory = sys::move_high(opened);
  state.luns.directory_identity = sys::file_identity(state.luns.directory);
  sys::note_own_descriptor(state.luns.directory, true);
}

bool has_lun_directory(const PagerState& state) {
  return sys::is_file(state.luns.directory, state.luns.directory_identity);
}

bool keeps_descriptor(const PagerState& state, int fd) {
  if (!sys::is_own_descriptor(fd)) return false;
  if (sys::is_proc_directory(fd) || sys::is_own_file(fd) || program_end_keeps(fd)) return true;
  if (fd == state.account.descriptor()) return true;
  if (fd == state.uffd) return uffd_in_place(state);
  if (fd == state.luns.directory) return has_lun_directory(state);
  const sys::FileIdentity now = sys::file_identity(fd);
  if (now.inode == 0) return false;
  for (const auto& of_lun : state.luns.device_ids)
    for (const auto& id : of_lun)
      if (id.file == now) return true;
  return false;
}

int open_device(PagerState& state, unsigned lun, const DeviceOptions& options, ErrorText* why) {
  const sys::MakingDescriptor making;
  Device* device = nullptr;
  int rc = scratch_open(state.options.lun, options, &device, why);
  if ((rc == -ENOENT || rc == -ENOTDIR || rc == -EACCES) && has_lun_directory(state)) {
    char path[64];
    format_to(path, sizeof path, "/proc/self/fd/%d", state.luns.directory);
    ErrorText second;
    const int by_handle = scratch_open(path, options, &device, &second);
    if (by_handle == 0) rc = 0;
  }
  if (rc < 0) return rc;
  if (device->fd_count() > kDeviceFdsMax) {
    const unsigned count = device->fd_count();
    device_close(device);
    return why->set(-E2BIG,
                    "LUN %s: %u descriptors (two a device node, and one for each further node of "
                    "an NVMe namespace), "
                    "%u is the limit; give fewer devices",
                    state.options.lun, count, kDeviceFdsMax);
  }
  for (unsigned i = 0; i < device->fd_count(); ++i) {
    device->reopen(i, sys::move_high(device->fd(i)));
    sys::note_own_descriptor(device->fd(i), true);
    const long flags = sys::control_file(device->fd(i), F_GETFL, nullptr);
    state.luns.device_ids[lun][i] = {
        sys::file_identity(device->fd(i)),
        flags > 0 ? static_cast<int>(flags & (O_ACCMODE | O_DIRECT)) : O_RDWR};
  }
  state.luns.devices[lun] = device;
  return 0;
}

void close_device(PagerState& state, unsigned lun) {
  Device* device = state.luns.devices[lun];
  if (device == nullptr) return;
  // the program has closed some of its descriptors, whose numbers may be the program's files now
  if (!is_in_place(state, lun)) return forget_device(state, lun);
  const sys::MakingDescriptor ending;
  for (unsigned i = 0; i < device->fd_count(); ++i) sys::note_own_descriptor(device->fd(i), false);
  device_close(device);
  state.luns.devices[lun] = nullptr;
}

void share_device(PagerState& state, unsigned lun, unsigned with) {
  state.luns.devices[lun] = state.luns.devices[with];
  for (unsigned i = 0; i < kDeviceFdsMax; ++i)
    state.luns.device_ids[lun][i] = state.luns.device_ids[with][i];
}

void forget_device(PagerState& state, unsigned lun) {
  Device* device = state.luns.devices[lun];
  unsigned same = 0;
  for (const Device* one : state.luns.devices) same += one == device;
  const sys::MakingDescriptor ending;
  for (unsigned i = 0; device != nullptr && same == 1 && i < device->fd_count(); ++i) {
    sys::note_own_descriptor(device->fd(i), false);
    // the program may have closed it, and opened another file under its number
    if (is_device(state, lun, i, device->fd(i))) sys::close_file(device->fd(i));
  }
  state.luns.devices[lun] = nullptr;
  if (same == 1 && device != nullptr) device->forget();
}

int open_uffd(PagerState& state, ErrorText* why) {
  int fd = sys::uffd_open(&state.write_protect, why);
  if (fd < 0) return fd;
  state.uffd = sys::move_high(fd);
  state.uffd_identity = sys::file_identity(state.uffd);
  sys::note_own_descriptor(state.uffd, true);
  return 0;
}

bool uffd_in_place(const PagerState& state) {
  return sys::is_file(state.uffd, state.uffd_identity);
}

void close_uffd(PagerState& state) {
  sys::note_own_descriptor(state.uffd, false);
  if (uffd_in_place(state)) sys::close_file(state.uffd);
  state.uffd = -1;
}

bool descriptors_in_place(const PagerState& state) {
  for (unsigned lun = 0; lun < kLunIds; ++lun)
    if (!is_in_place(state, lun)) return false;
  return uffd_in_place(state);
}

int region_register(const PagerState& state, const Region& region, char* from, uint64_t bytes) {
  const auto register_some = [&](char* at, size_t part) {
    const int rc = sys::uffd_register(state.uffd, at, part, state.write_protect);
    // a file or shared memory that a raw call has put there
    const bool is_other = rc == -EINVAL && region.of_maps() && part == state.page_size;
    return is_other ? 0 : rc;
  };
  return for_own(state.foreign, from, from + bytes, [&](char* at, size_t part) {
    return region.of_maps() ? sys::by_halves(at, part, -EINVAL, register_some)
                            : register_some(at, part);
  });
}

int watch_fresh_range(PagerState& state, void* address, size_t bytes) {
  for (const int advice : {MADV_NOHUGEPAGE, MADV_UNMERGEABLE, MADV_DONTFORK})
    (void)sys::advise(address, bytes, advice);
  if (!sys::in_program_files() || uffd_in_place(state))
    return sys::uffd_register(state.uffd, address, bytes, state.write_protect);
  return ask_table_request(state, 0, address, bytes);
}

int fork_descriptors_prepare(PagerState& state, ForkDescriptors* out) {
  const sys::MakingDescriptor making;
  for (auto& of_lun : out->reopened)
    for (int& fd : of_lun) fd = -1;
  for (unsigned lun = 0; lun < kLunIds; ++lun) {
    Device* device = state.luns.devices[lun];
    for (unsigned i = 0; i < own_descriptors(state, lun); ++i) {
      if (is_device(state, lun, i, device->fd(i))) continue;
      int fd = fetch_from_housekeeping(state, lun, i);
      if (fd < 0) return fd;
      fd = sys::move_high(fd);
      sys::note_own_descriptor(fd, true);
      out->reopened[lun][i] = fd;
      if (!is_device(state, lun, i, fd)) return -EBADF;
      // This is an open file of its own, which needs the lock too: the parent may end before the
      // child.
      if (int rc = device->share_lock(i, fd); rc < 0) return rc;
    }
  }
  return 0;
}

void fork_descriptors_parent(const ForkDescriptors& descriptors) {
  const sys::MakingDescriptor ending;
  for (const auto& of_lun : descriptors.reopened) {
    for (int fd : of_lun) {
      if (fd < 0) continue;
      sys::note_own_descriptor(fd, false);
      sys::close_file(fd);
    }
  }
}

void fork_descriptors_child(PagerState& state, const ForkDescriptors& descriptors) {
  // Before reopen(): if the program had closed the userfaultfd, a LUN may have its number now.
  close_uffd(state);
  for (unsigned lun = 0; lun < kLunIds; ++lun) {
    for (unsigned i = 0; i < kDeviceFdsMax; ++i) {
      const int fd = descriptors.reopened[lun][i];
      if (fd < 0) continue;
      state.luns.devices[lun]->reopen(i, fd);
      sys::note_own_descriptor(fd, true);
    }
  }
}

}  // namespace lunar
