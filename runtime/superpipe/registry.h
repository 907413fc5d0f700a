// SPDX-License-Identifier: Apache-2.0
// The registry: maps URIs to kinds of devices. The only place that knows all kinds.
// Threading: any thread, blocking. Not for the fault path.
#pragma once
#include "superpipe/device.h"

namespace lunar {

// Opens `uri`.
//   PATH or file:PATH   regular file (must exist; empty, all-zero header, or a former Lunar scratch
//                       LUN) or block device
//   DIR                 an unlinked file is created in it (O_TMPFILE, or mkstemp and unlink);
//                       refused on tmpfs/ramfs
//   sim:SIZE[,seed=N][,latency_us=N][,read_error=P][,write_error=P][,flush_error=P][,torn=P]
//           [,misdirect=P][,corrupt=P][,lost_flush=P][,stall=PAGE][,stall_us=N][,stalls=N]
//           [,cache=SIZE][,name=X]
//                       memory; P: one in P I/Os; the first I/O at PAGE takes stall_us longer;
//                       cache: size of a volatile cache; X: several devices with this name share
//                       their memory
//   mem:[SIZE][,limit=SIZE]   memory of this process, raw only; grows, and can be accessed in place
//                             (map)
//   nvme:/dev/ngXnY     whole namespace, by NVMe commands through io_uring; no block layer
//   pmem:PATH[,delegate=auto|on|off]   mapped: /dev/pmemN, /dev/daxX.Y, or a file on a memory or
//                                      DAX file system
//   capi:/dev/sgN[,lib=/path/libcflsh_block-0.so]   through IBM's own library, if it is installed
// O_DIRECT is required (there is no silent buffered I/O). Returns 0, or -errno with *why filled in
// (one line: what failed, where, how to fix it).
[[nodiscard]] int device_open(const char* uri, const DeviceOptions& options, Device** out,
                              ErrorText* why);
// The schemes that device_open knows, for messages: "file, nvme, pmem, capi, mem, sim".
const char* device_schemes();

}  // namespace lunar
