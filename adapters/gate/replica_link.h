// SPDX-License-Identifier: Apache-2.0
// The link to the server's master: the gate reads ahead in the stream, so that a replica fetches
// many cold keys at a time.
//
//   socket ──► buffer of the gate ──► commands, in order:
//
//              done │ done │ requested │ requested │ not looked up │ part of one
//              └─ read() ─┘ └─ a wave of requests ─┘
//
// The commands are looked up in waves (command_window.h). Whole commands are passed on in order and
// byte for byte, up to the first one that lacks pages. While that one waits, the server reads
// nothing, for at most `hold_ms_max`; then the command is passed as it is. To the server the master
// merely seems slower: its offsets count the bytes that read() returned. Bytes that the gate holds
// when the link is closed count as not received; a partial resync requests them.
//
// Such a stream is read by the server's reader of commands; a full sync, and the handshake before
// it, have other readers. A link under TLS is passed as it is. A command that is larger than the
// gate's buffer, and input that is not a command, go on at once; the next read determines the
// server's position again.
//
// One wave may request as many bytes as one client.
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
// Called when the pages of a request of a link's entry are in DRAM. True: all requests of its wave
// are complete.
[[nodiscard]] bool link_request_done(Connection* c);
// The entry if its first command waits (until its deadline); else nullptr.
Connection* link_waiting();

}  // namespace lunar::redis
