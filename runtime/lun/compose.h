// SPDX-License-Identifier: Apache-2.0
// Opening by URI: turns what a user wrote into a Device.
//
//   raw URI        what device_open takes, or several of them as one:
//     stripe:URI;URI[;...]   RAID 0 in chunks of 64 KiB, 2 to 8 members
//     paths:URI;URI[;...]    several paths to the same device, 2 to 8: I/O fails over to the next
//   Members of a stripe carry a label (member_label.h) with the set and their place in it: a wrong order or a foreign
//   member is detected, never used. `format` applies to labels too. Members may be files, block devices, nvme:, pmem:
//   and sim:; those of a stripe also paths: in parentheses: stripe:(paths:A;B);(paths:C;D).
//   LUN URI        raw URI, optionally followed by #NAME: that named virtual LUN of it
//
// Threading: any, blocking. Not for the fault path.
#pragma once
#include "lun/volume/physical_lun.h"
#include "lun/volume/virtual_lun.h"
#include "superpipe/device.h"

namespace lunar {

// Length of the scheme that `text` begins with, its colon included ("file:", "stripe:"); 0: of none.
[[nodiscard]] size_t scheme_length(const char* text);

// Opens a raw URI. options.scratch must be false. format: for labels of composite devices. 0 or -errno with *why.
[[nodiscard]] int raw_open(const char* uri, const DeviceOptions& options, Format format, Device** out, ErrorText* why);

// Opens a LUN URI as a physical LUN (a #NAME is an error here).
[[nodiscard]] int physical_open(const char* uri, Format format, PhysicalLun** out, ErrorText* why);

// For callers that want a device as a whole: ends the format it carries, if nothing there outlives its owners
// (PhysicalLun::end), and leaves it blank. 0; -ENODEV: it carries none; -EBUSY: in use, or a named LUN lies there;
// -errno. All but 0 with *why.
[[nodiscard]] int physical_end(const char* uri, ErrorText* why);

// Opens a LUN URI for pages that end with their owner: what `--lun` means.
//   DIR                                  an unlinked file in it, as device_open makes it
//   a file that is empty or was one      the file, for this process alone, growing
//   a formatted device                   a new scratch LUN on it, shared with other processes
//   a blank device or blank file         formatted first, then the same
//   URI#NAME                             the named LUN, exclusively; its head must be zeros or a former heap's
//                                        (-EEXIST)
//   stripe:, paths:                      a blank or formatted one, likewise
// A regular file must give other users nothing: their rights are taken away (chmod o-rwx), or, where that is not ours
// to do, it is -EACCES. Several LUN URIs separated by spaces are a stripe of what each of them gives.
[[nodiscard]] int scratch_open(const char* uris, const DeviceOptions& options, Device** out, ErrorText* why);

}  // namespace lunar
