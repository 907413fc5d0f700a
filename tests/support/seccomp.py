# SPDX-License-Identifier: Apache-2.0
"""System calls that the kernel refuses a process and its children (seccomp; x86-64). A rule is the
instructions that answer a call, or go on; it begins with its number loaded."""
import ctypes
import errno
import struct

LOAD, EQUAL, GREATER, ANY_BIT, ANSWER = 0x20, 0x15, 0x25, 0x45, 0x06
ERRNO, ALLOW = 0x50000, 0x7fff0000
NUMBER, ARGUMENT = 0, (16, 24, 32, 40, 48, 56)   # offsets of what can be loaded
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


def answer(error):
    return (ANSWER, 0, 0, ERRNO | error)


def refused(number, error=errno.EPERM):
    return [(EQUAL, 0, 1, number), answer(error)]


def install(*rules):
    """For the calling process, from now on."""
    program = [instruction for rule in rules for instruction in [(LOAD, 0, 0, NUMBER), *rule]]
    program.append((ANSWER, 0, 0, ALLOW))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    memory = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(memory))
    libc = ctypes.CDLL(None)
    assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    assert libc.prctl(SECCOMP, FILTER, header, 0, 0) == 0
