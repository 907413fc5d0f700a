// SPDX-License-Identifier: Apache-2.0
// Opening by URI: makes a Device from the text that a user wrote.
//
//   raw URI        a URI that device_open takes, or several of them as one device:
//     stripe:URI;URI[;...]   RAID 0 in chunks of 64 KiB, 2 to 8 members
//     paths:URI;URI[;...]    several paths to the same device, 2 to 8: I/O fails over to the next
//   Members of a stripe carry a label (member_label.h) that names the set and their index in it: a
//   wrong order or a foreign member is detected, and never used. `format` applies to labels too.
//   Members may be files, block devices, nvme:, pmem: and sim:; those of a stripe also paths: in
//   parentheses: stripe:(paths:A;B);(paths:C;D).
//   LUN URI        a raw URI, optionally followed by #NAME for a named virtual LUN on it
//
// Threading: any, blocking. Not for the fault path.
#pragma once
#include "lun/volume/physical_lun.h"
#include "lun/volume/virtual_lun.h"
#include "superpipe/device.h"

namespace lunar {

// The length of the scheme at the beginning of `text`, including its colon ("file:", "stripe:"); 0:
// `text` has no scheme.
[[nodiscard]] size_t scheme_length(const char* text);

// Opens a raw URI. options.scratch must be false. format: for labels of composite devices. 0 or
// -errno with *why.
[[nodiscard]] int raw_open(const char* uri, const DeviceOptions& options, Format format,
                           Device** out, ErrorText* why);

// Opens a LUN URI as a physical LUN (a #NAME is an error here).
[[nodiscard]] int physical_open(const char* uri, Format format, PhysicalLun** out, ErrorText* why);

// For callers that need a whole device: removes the format from it if nothing on it outlives its
// owners (PhysicalLun::end), and leaves it blank. 0; -ENODEV: it has no format; -EBUSY: in use, or
// there is a named LUN; -errno. All but 0 with *why.
[[nodiscard]] int physical_end(const char* uri, ErrorText* why);

// Opens a LUN URI for pages that end with their owner. `--lun` uses it.
//   DIR                                  an unlinked file in it, as device_open makes it
//   a file that is empty, or was before  the file, for this process alone, growing
//   a formatted device                   a new scratch LUN on it, shared with other processes
//   a blank device or blank file         is formatted first, then the same
//   URI#NAME                             the named LUN, exclusively; its head must be zeros or that
//                                        of a former heap (otherwise -EEXIST)
//   stripe:, paths:                      a blank or formatted one, likewise
// A regular file must give other users no rights: they are removed (chmod o-rwx), or, if this
// process may not do that, the call fails with -EACCES. Several LUN URIs separated by spaces are
// opened as a stripe of the devices that they stand for.
[[nodiscard]] int scratch_open(const char* uris, const DeviceOptions& options, Device** out,
                               ErrorText* why);

}  // namespace lunar
