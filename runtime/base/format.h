// SPDX-License-Identifier: Apache-2.0
// Bounded text formatting for code that runs inside other people's programs.
//
// Why not snprintf: it may allocate, take the locale lock and touch the host's heap. The fault path
// may do none of these. Directives: %s %c %d %i %u %x %p %%, with l, ll, z, j, t lengths, '0'
// padding, '-' (left) and a width; %.Ns and %.*s for strings. Any other directive is copied
// unchanged, and so is the rest of the format, because the positions of its arguments are unknown.
// No floating point.
#pragma once
#include <cstdarg>
#include <cstddef>

namespace lunar {

// Writes at most size-1 bytes and a NUL; returns the length written (not the length wanted). size
// 0: writes nothing.
size_t format_to(char* out, size_t size, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
// The same for one line of output to a user: prints unprintable parts of %s and %c as \xNN (control
// characters, line breaks, C1 and text-direction controls, bytes that are not UTF-8), because names
// of files and processes are untrusted.
size_t format_line_to(char* out, size_t size, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
size_t vformat_line_to(char* out, size_t size, const char* format, va_list args)
    __attribute__((format(printf, 3, 0)));
size_t vformat_to(char* out, size_t size, const char* format, va_list args)
    __attribute__((format(printf, 3, 0)));

}  // namespace lunar
