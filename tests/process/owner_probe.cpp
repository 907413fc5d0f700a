// SPDX-License-Identifier: Apache-2.0
// owner_probe USE DEVICE: takes a device in one way, says `open` or `refused: REASON`, and keeps it
// until its standard input ends. USE: physical, reserve, forced, readonly, virtual (cblk_open),
// group (two opens of one LUN), named (the virtual LUN `owned`), bench (a scratch device, as the
// benches open it). A chunk that may write the whole device leaves a pattern and says at the end
// whether that was `kept` or `lost`. For ownership_test.py.
// Threading: one thread.
#include <capiblock.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lun/compose.h"
#include "superpipe/registry.h"

namespace {

using namespace lunar;

constexpr size_t kBlock = 4096, kPatternBlocks = 16;
// behind the head, which stays blank: only ownership keeps others from formatting it
constexpr off_t kPatternAt = 100;

int refuse(const char* reason) {
  printf("refused: %s\n", reason);
  return 1;
}

void wait_for_end() {
  puts("open");
  fflush(stdout);
  while (getchar() != EOF) {}
}

char* pattern(char with) {
  static void* memory = nullptr;
  if (!memory && posix_memalign(&memory, kBlock, kPatternBlocks * kBlock) != 0) abort();
  memset(memory, with, kPatternBlocks * kBlock);
  return static_cast<char*>(memory);
}

int keep_chunk(const char* use, const char* path) {
  const auto is = [use](const char* name) { return strcmp(use, name) == 0; };
  const bool group = is("group"), readonly = is("readonly"), is_virtual = is("virtual");
  const int flags = is("reserve")  ? CBLK_OPN_RESERVE
                    : is("forced") ? CBLK_OPN_FORCED_RESERVE
                    : is_virtual   ? CBLK_OPN_VIRT_LUN
                                   : 0;
  const int mode = readonly ? O_RDONLY : O_RDWR;
  const int id = group ? cblk_cg_open(path, 0, mode, 2, 0, CBLK_OPN_GROUP)
                       : cblk_open(path, 0, mode, 0, flags);
  if (id < 0) return refuse(strerror(errno));  // the line is in the trace
  const bool writes = !group && !readonly && !is_virtual;
  if (writes && cblk_write(id, pattern('p'), kPatternAt, kPatternBlocks, 0) !=
                    static_cast<int>(kPatternBlocks))
    return refuse("no write");
  if (is_virtual && cblk_set_size(id, 256, 0) != 0) return refuse("no size");
  wait_for_end();
  if (writes) {
    char* seen = pattern(0);
    const int moved = cblk_read(id, seen, kPatternAt, kPatternBlocks, 0);
    bool kept = moved == static_cast<int>(kPatternBlocks);
    for (size_t i = 0; i < kPatternBlocks * kBlock && kept; ++i) kept = seen[i] == 'p';
    puts(kept ? "kept" : "lost");
  }
  return group ? cblk_cg_close(id, 0) : cblk_close(id, 0);
}

int keep_named(const char* path) {
  PhysicalLun* physical = nullptr;
  VirtualLun* lun = nullptr;
  VirtualOptions options;
  options.name = "owned";
  ErrorText why;
  int status = physical_open(path, Format::kNever, &physical, &why);
  if (status == 0) status = VirtualLun::open(physical, options, &lun, &why);
  if (status < 0) return refuse(why.text);
  wait_for_end();
  lun->close();
  return 0;
}

int keep_bench(const char* path) {
  Device* device = nullptr;
  ErrorText why;
  if (device_open(path, {}, &device, &why) < 0) return refuse(why.text);
  wait_for_end();
  device_close(device);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (strcmp(argv[1], "named") == 0) return keep_named(argv[2]);
  if (strcmp(argv[1], "bench") == 0) return keep_bench(argv[2]);
  return keep_chunk(argv[1], argv[2]);
}
