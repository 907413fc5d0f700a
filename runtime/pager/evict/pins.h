// SPDX-License-Identifier: Apache-2.0
// Pins: whether devices may write into this process' pages without using its page tables
// (DMA-pinned pages).
//
// If gather-evict drops a DMA-pinned page, the device goes on writing to the old physical page, and
// that is lost. So once a process may pin, the evictor takes pages by UFFDIO_MOVE, whose EBUSY
// means "pinned: keep". Each of these signs holds for good:
//   - registered buffers (VmPin of /proc/self/status)
//   - a descriptor of io_uring, of RDMA, or of a file opened with O_DIRECT
//   - a call of pager_note_pinning, by the program, or by the preload library when an io_uring is
//     set up or a file is opened with O_DIRECT: its descriptor may be gone later
// A check while Lunar sets up or closes a ring of its own is inconclusive: it counts as a sign for
// one batch, and is repeated.
//
// Cost: the descriptor table is scanned when its size has changed (stat of /proc/self/fd, 1 us per
// batch), with at most 1% of a CPU for large tables; VmPin is read at most every 2 ms.
// Threading: the evictor's thread; pins_note() any.
#pragma once

namespace lunar {

[[nodiscard]] bool pins_possible();    // by the evictor, before each batch
[[nodiscard]] bool pins_registered();  // by the evictor: buffers are pinned for longer than a call
bool pins_noted();                     // a sign was found
void pins_note(const char* sign);      // `sign`: the evidence, for the log

}  // namespace lunar
