# SPDX-License-Identifier: Apache-2.0
"""A large dict: N entries, string keys, string and tuple values; read, changed, partly deleted.
Prints checksums. Neighbours are touched together: what is asked for walks through the entries in
windows, shuffled inside each."""
import sys
import zlib

count = int(sys.argv[1])
WINDOW = 1024


def value(i):
    return ("%x" % (i * 2654435761)) * 20 + str(i)


def shuffled(first):
    """WINDOW indices from `first`, in an order that no stride explains."""
    return (first + (j * 389 + 77) % WINDOW for j in range(WINDOW))


table = {}
for first in range(0, count, WINDOW):
    for i in shuffled(first):
        table["key:%d" % i] = value(i)
checksum = 0
for first in range(0, count, WINDOW):
    for i in shuffled(first):
        checksum = zlib.crc32(table["key:%d" % i].encode(), checksum)
print(len(table), checksum)
for first in range(0, count, WINDOW * 4):
    for i in shuffled(first):
        if i % 3 == 0:
            del table["key:%d" % i]
        else:
            table["key:%d" % i] = (i, value(i + 1))
checksum = 0
for number, (key, item) in enumerate(table.items()):
    checksum = zlib.crc32(repr(item).encode(), zlib.crc32(key.encode(), checksum))
    if number % 5000 == 0:
        print(key, checksum)
print(len(table), checksum)
