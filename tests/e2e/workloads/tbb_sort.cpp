// SPDX-License-Identifier: Apache-2.0
// N 64-bit numbers, filled and sorted by oneTBB on at least two threads. Prints checksums and
// samples. Threading: oneTBB's.
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/parallel_sort.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  const size_t count = argc > 1 ? strtoull(argv[1], nullptr, 10) : 100000;
  tbb::global_control threads(tbb::global_control::max_allowed_parallelism, 4);
  std::vector<uint64_t> numbers(count);
  tbb::parallel_for(tbb::blocked_range<size_t>(0, count, 1 << 16),
                    [&](const tbb::blocked_range<size_t>& range) {
                      for (size_t i = range.begin(); i != range.end(); ++i) {
                        uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull;
                        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
                        numbers[i] = x ^ x >> 27;
                      }
                    });
  tbb::parallel_sort(numbers.begin(), numbers.end());
  uint64_t sum = 0, disorder = 0;
  for (size_t i = 0; i < count; ++i) {
    sum = sum * 31 + numbers[i];
    disorder += i > 0 && numbers[i - 1] > numbers[i];
    if (i % (1 << 18) == 0)
      printf("%zu %llx %llx\n", i, static_cast<unsigned long long>(numbers[i]),
             static_cast<unsigned long long>(sum));
  }
  printf("%zu %llx %llu out of order\n", count, static_cast<unsigned long long>(sum),
         static_cast<unsigned long long>(disorder));
  return disorder == 0 ? 0 : 1;
}
