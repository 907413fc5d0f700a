# SPDX-License-Identifier: Apache-2.0
"""Grows, checks every byte, and prints a digest. `wait`: prints where its first block lies, and
waits for a signal."""
import hashlib
import signal
import sys

blocks = []
for i in range(96):
    seed = hashlib.sha256(str(i).encode()).digest()
    block = bytearray(b"marker %d\0" % i + seed * 16384)   # half a MiB and a bit
    blocks.append(block)
if sys.argv[1:] == ["wait"]:
    import ctypes
    block = blocks[0]
    address = ctypes.addressof((ctypes.c_char * len(block)).from_buffer(block))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", hex(address), 4096, flush=True)
    signal.pause()
digest = hashlib.sha256()
for i in [*range(95, -1, -1), *range(96)]:
    seed = hashlib.sha256(str(i).encode()).digest()
    if blocks[i][-32:] != seed or len(blocks[i]) != len(b"marker %d\0" % i) + 32 * 16384:
        print("wrong block", i)
        sys.exit(1)
    digest.update(blocks[i])
print(digest.hexdigest())
