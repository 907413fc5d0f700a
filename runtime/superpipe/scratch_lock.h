// SPDX-License-Identifier: Apache-2.0
// Whose a scratch LUN given by path is: a lock on the whole file, held *shared*, but taken *exclusively* first.
//
// Who opens it needs it exclusively, so nobody else may hold any of it; then the lock is turned into a shared one, in one step.
// From then on a stranger, who asks for all of it exclusively, is refused as long as one holder is left, while another open file
// description of the same tree (a forked child's, whose program had closed the inherited one) may hold it beside the first.
// Who takes only a byte of the file, shared, asks scratch_locked() after that (LunLocks::enter, a chunk of cblk).
//
// The lock lies on the open file description: children that fork share it, and it ends with the last of them.
// Threading: no state; any thread, blocking. Not for the fault path.
#pragma once
namespace lunar {

// A former owner's ring is torn down by the kernel some milliseconds after its process is gone, and holds the file till then: what
// looks busy is asked again, for a second. 0, -EBUSY, or -errno (-EBADF: not open for writing).
[[nodiscard]] int scratch_lock(int fd);
// `fd`, another description of the file that a relative has locked, holds it too. 0, -EBUSY (a stranger has it), or -errno.
[[nodiscard]] int scratch_hold(int fd);
// Whether another description holds the file as a scratch LUN (by its first byte, which nobody locks alone): 1, 0, or -errno.
[[nodiscard]] int scratch_locked(int fd);

}  // namespace lunar
