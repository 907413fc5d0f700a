// SPDX-License-Identifier: Apache-2.0
// The link to the server's master: the gate reads ahead in the stream, so that a replica fetches many cold keys at a
// time.
//
//   socket ──► buffer of the gate ──► commands, in order:
//
//              done │ done │ asked for │ asked for │ not looked at │ part of one
//              └─ read() ─┘ └─ a wave of requests ─┘
//
// A wave asks for what is missing for all commands of the window, each one step of its lookup (key_lookup.h); when it
// is in, the next one begins. Whole commands are given in the order and with the very bytes that came, as far as
// nothing is missing for them. When the first one waits the server reads nothing: not longer than `hold_ms_max`, then
// the command is passed as it is. To the server the master is merely slower to send: its offsets count what read() gave
// it. Bytes that are here when the link is closed were never received; a partial resync asks for them.
//
// Only what reads through the server's reader of commands is a stream: a full sync, and the handshake before it, have
// others. A link under TLS is passed as it is. A command that is larger than what is kept, and what is no command, go
// on at once; then the server is asked where it is.
//
// The window is bounded by the DRAM budget, as pages that wait for their turn must not push each other out: a command
// for each kPagesEach pages, and what one client may have under way a wave.
//
// Threading: the main thread, inside read() and epoll_wait().
#pragma once
#include "gate_inside.h"

namespace lunar::redis {

// A read of `fd`, which has no entry. Nothing is read unless it returns true; then *got is what read() returns.
[[nodiscard]] bool link_begin(int fd, void* buffer, size_t bytes, ssize_t* got);
// The same for an entry of a link.
ssize_t link_input(Connection* c, void* buffer, size_t bytes);
// A request of a link's entry is in. True: all that its wave asked for.
[[nodiscard]] bool link_request_done(Connection* c);
// The entry whose first command waits, with its deadline; nullptr: none does.
Connection* link_waiting();

}  // namespace lunar::redis
