# SPDX-License-Identifier: Apache-2.0
"""System calls that the kernel refuses a process and its children (seccomp; x86-64)."""
import ctypes
import errno
import struct

LOAD, EQUAL, ANSWER = 0x20, 0x15, 0x06
ERRNO, ALLOW = 0x50000, 0x7fff0000
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


def refuse(*numbers, error=errno.EPERM):
    """Of the calling process, from now on."""
    program = [(LOAD, 0, 0, 0)]
    for number in numbers:
        program += [(EQUAL, 0, 1, number), (ANSWER, 0, 0, ERRNO | error)]
    program.append((ANSWER, 0, 0, ALLOW))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(memory))
    libc = ctypes.CDLL(None)
    assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert libc.prctl(SECCOMP, FILTER, header, 0, 0) == 0
