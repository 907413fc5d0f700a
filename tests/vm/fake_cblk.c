/* SPDX-License-Identifier: Apache-2.0
 * Stands in for IBM's libcflsh_block where there is no CAPI hardware: the few calls that capi:
 * makes, over a regular file. Commands are carried out when their result is asked for, newest
 * first, so that no caller relies on their order. At most 100 blocks a command; a full queue is
 * EWOULDBLOCK. With FAKE_IS_LUNARS it carries Lunar's marker and must be refused.
 * Threading: as IBM's: any thread (a lock a chunk). */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4096
#define CHUNKS 64
#define REQUESTS_MAX 512
#define TRANSFER_MAX 100

#ifdef FAKE_IS_LUNARS
const int lunar_cblk_marker = 1;
#endif

struct request {
  void* buffer;
  off_t lba;
  size_t blocks;
  int write, used;
};
static struct chunk {
  pthread_mutex_t lock;
  int used, fd, writable, requests_max, active;
  struct request requests[REQUESTS_MAX];
} chunks[CHUNKS];
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

static struct chunk* chunk_of(int id) {
  if (id < 0 || id >= CHUNKS || !chunks[id].used) {
    errno = EINVAL;
    return NULL;
  }
  return &chunks[id];
}

int cblk_init(void* unused, uint64_t flags) { return unused || flags ? -1 : 0; }

int cblk_open(const char* path, int requests_max, int mode, uint64_t ext, int flags) {
  int fd = open(path, mode | O_CLOEXEC), id = -1;
  if (fd < 0) return -1;
  pthread_mutex_lock(&table);
  for (int i = 0; i < CHUNKS && id < 0; ++i)
    if (!chunks[i].used) id = i;
  if (id >= 0) {
    struct chunk* chunk = &chunks[id];
    memset(chunk, 0, sizeof *chunk);
    pthread_mutex_init(&chunk->lock, NULL);
    chunk->used = 1;
    chunk->fd = fd;
    chunk->writable = mode != O_RDONLY;
    chunk->requests_max = requests_max < REQUESTS_MAX ? requests_max : REQUESTS_MAX;
  } else {
    close(fd);
    errno = ENOMEM;
  }
  pthread_mutex_unlock(&table);
  return id;
}

int cblk_close(int id, int flags) {
  struct chunk* chunk = chunk_of(id);
  if (!chunk) return -1;
  if (chunk->active) {
    errno = EBUSY;
    return -1;
  }
  close(chunk->fd);
  chunk->used = 0;
  return 0;
}

int cblk_get_lun_size(int id, size_t* blocks, int flags) {
  struct stat status;
  struct chunk* chunk = chunk_of(id);
  if (!chunk || fstat(chunk->fd, &status) != 0) return -1;
  *blocks = (size_t)status.st_size / BLOCK;
  return 0;
}

int cblk_get_attrs(int id, void* attributes, int flags) {
  struct {
    uint64_t flags1, flags2;
    uint32_t block_size, num_paths;
    uint64_t max_transfer_size, data[64];
  } out = {1, 0, BLOCK, 1, TRANSFER_MAX, {0}};
  if (!chunk_of(id)) return -1;
  memcpy(attributes, &out, sizeof out);
  return 0;
}

static int move(struct chunk* chunk, int write, void* buffer, off_t lba, size_t blocks) {
  struct stat status;
  if (fstat(chunk->fd, &status) != 0) return -1;
  if (!buffer || lba < 0 || blocks == 0 || blocks > TRANSFER_MAX || (write && !chunk->writable) ||
      (uint64_t)lba + blocks > (uint64_t)status.st_size / BLOCK) {
    errno = EINVAL;
    return -1;
  }
  ssize_t moved = write ? pwrite(chunk->fd, buffer, blocks * BLOCK, lba * BLOCK)
                        : pread(chunk->fd, buffer, blocks * BLOCK, lba * BLOCK);
  return moved < 0 ? -1 : (int)(moved / BLOCK);
}

int cblk_read(int id, void* buffer, off_t lba, size_t blocks, int flags) {
  struct chunk* chunk = chunk_of(id);
  return chunk ? move(chunk, 0, buffer, lba, blocks) : -1;
}
int cblk_write(int id, void* buffer, off_t lba, size_t blocks, int flags) {
  struct chunk* chunk = chunk_of(id);
  return chunk ? move(chunk, 1, buffer, lba, blocks) : -1;
}
int cblk_unmap(int id, void* zeros, off_t lba, size_t blocks, int flags) {
  static char none[TRANSFER_MAX * BLOCK];
  struct chunk* chunk = chunk_of(id);
  return chunk ? move(chunk, 1, none, lba, blocks) : -1;
}

static int issue(int id, int write, void* buffer, off_t lba, size_t blocks, int* tag) {
  struct chunk* chunk = chunk_of(id);
  int result = -1;
  if (!chunk) return -1;
  pthread_mutex_lock(&chunk->lock);
  if (chunk->active >= chunk->requests_max) {
    errno = EWOULDBLOCK;
  } else {
    int i = 0;
    while (chunk->requests[i].used) ++i;
    chunk->requests[i] = (struct request){buffer, lba, blocks, write, 1};
    ++chunk->active;
    *tag = i;
    result = 0;
  }
  pthread_mutex_unlock(&chunk->lock);
  return result;
}
int cblk_aread(int id, void* buffer, off_t lba, size_t blocks, int* tag, void* status, int flags) {
  return issue(id, 0, buffer, lba, blocks, tag);
}
int cblk_awrite(int id, void* buffer, off_t lba, size_t blocks, int* tag, void* status, int flags) {
  return issue(id, 1, buffer, lba, blocks, tag);
}

int cblk_aresult(int id, int* tag, uint64_t* status, int flags) {
  static int calls;
  struct chunk* chunk = chunk_of(id);
  int result = -1;
  if (!chunk) return -1;
  pthread_mutex_lock(&chunk->lock);
  if (chunk->active == 0) {
    errno = ENOENT;
  } else if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 3 == 0) { /* not yet */
    *tag = -1;
    result = 0;
  } else {
    int i = REQUESTS_MAX - 1;
    while (!chunk->requests[i].used) --i;
    const struct request* request = &chunk->requests[i];
    result = move(chunk, request->write, request->buffer, request->lba, request->blocks);
    chunk->requests[i].used = 0;
    --chunk->active;
    *tag = i;
    *status = result > 0 ? (uint64_t)result : 0;
  }
  pthread_mutex_unlock(&chunk->lock);
  return result;
}
