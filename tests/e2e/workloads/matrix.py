# SPDX-License-Identifier: Apache-2.0
"""A matrix of N x N floats as lists of lists: row sums, a product with a vector, every other band
of blocks transposed in place. Prints exact values."""
import sys

n = int(sys.argv[1])
BLOCK = 256
a = [[float((i * 31 + j * 17) % 1009) / 8 + i for j in range(n)] for i in range(n)]
vector = [float(j % 13) - 6 for j in range(n)]
for i, row in enumerate(a):
    product = 0.0
    for x, v in zip(row, vector):
        product += x * v
    print(i, sum(row).hex(), product.hex())
for top in range(0, n, 2 * BLOCK):      # what lies above the diagonal against what lies below
    for left in range(top, n, BLOCK):
        for i in range(top, min(top + BLOCK, n)):
            row = a[i]
            for j in range(max(left, i + 1), min(left + BLOCK, n)):
                other = a[j]
                row[j], other[i] = other[i], row[j]
for i, row in enumerate(a):
    print(i, sum(row).hex(), max(row).hex(), row[0].hex(), row[-1].hex())
