// SPDX-License-Identifier: Apache-2.0
// Go's runtime discards memory by madvise in its own code, and from Go 1.26 on relies on zeros
// afterwards (runtime/mheap.go, initSpan). The pager does not see such a call: a page that was
// evicted would come back with its old content. A Go program with cgo makes its maps through libc.
// Those maps stay plain, as all maps of a Go program without cgo do.
#pragma once

namespace lunar::preload {

// Whether the address is in a program or library that carries the build id of the Go linker. C code
// that is linked into such a program counts as Go code. Threading: any thread, signal handlers
// included; takes no lock.
bool is_go_code(const void* address);

}  // namespace lunar::preload
