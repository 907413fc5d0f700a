// SPDX-License-Identifier: Apache-2.0
// The link to the server's master: the gate reads ahead in the stream, so that a replica fetches
// many cold keys at a time.
//
//   socket ──► buffer of the gate ──► commands, in order:
//
//              done │ done │ asked for │ asked for │ not looked at │ part of one
//              └─ read() ─┘ └─ a wave of requests ─┘
//
// A wave requests what is missing for all commands of the window, each one step of its lookup
// (key_lookup.h); when it is in DRAM, the next wave begins. Whole commands are passed on in order
// and byte for byte, as far as nothing is missing for them. While the first one waits the server
// reads nothing, for at most `hold_ms_max`; then the command is passed as it is. To the server it
// looks as if the master sent more slowly: its offsets count what read() returned. Bytes that the
// gate holds when the link is closed count as not received; a partial resync requests them.
//
// Only the server's reader of commands reads such a stream; a full sync, and the handshake before
// it, have other readers. A link under TLS is passed as it is. A command that is larger than what
// is kept, and input that is not a command, go on at once; then the server's position is determined
// again.
//
// The window is bounded by the DRAM budget, because pages that wait for their turn must not push
// each other out: one command for each kPagesEach pages, and per wave what one client may have in
// progress.
//
// Threading: the main thread, inside read() and epoll_wait().
#pragma once
#include "gate_inside.h"

namespace lunar::redis {

// Begins a read of `fd`, which has no entry. If it returns false, nothing was read; otherwise *got
// is the result of read().
[[nodiscard]] bool link_begin(int fd, void* buffer, size_t bytes, ssize_t* got);
// A read for the entry of a link.
ssize_t link_input(Connection* c, void* buffer, size_t bytes);
// Called when the pages of a request of a link's entry are in DRAM. True: all that its wave
// requested are.
[[nodiscard]] bool link_request_done(Connection* c);
// The entry whose first command waits, with its deadline; nullptr: there is none.
Connection* link_waiting();

}  // namespace lunar::redis
