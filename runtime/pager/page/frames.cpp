// SPDX-License-Identifier: Apache-2.0
// The frame pool. See frames.h for states and threading.
#include "pager/page/frames.h"

#include <errno.h>

#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/numa.h"

namespace lunar {

int FramePool::open(uint32_t count, size_t page_size, int node) {
  unmap_private(frames_, count_ * sizeof(Frame));  // a forked child has its parent's
  unmap_private(free_, count_ * sizeof(uint32_t));
  unmap_private(clean_, count_ * sizeof(uint32_t));
  page_size_ = page_size;
  count_ = count;
  memory_ = static_cast<char*>(map_private(window_bytes(), ForkPolicy::kDontFork));
  frames_ = static_cast<Frame*>(map_private(count * sizeof(Frame), ForkPolicy::kInherit));
  free_ = static_cast<uint32_t*>(map_private(count * sizeof(uint32_t), ForkPolicy::kInherit));
  clean_ = static_cast<uint32_t*>(map_private(count * sizeof(uint32_t), ForkPolicy::kInherit));
  if (memory_ == nullptr || frames_ == nullptr || free_ == nullptr || clean_ == nullptr)
    return -ENOMEM;
  sys::bind_to_node(memory_, window_bytes(), node);
  free_count_ = clean_head_ = clean_count_ = 0;
  for (uint32_t i = 0; i < count; ++i) {
    new (&frames_[i]) Frame;
    put_free(count - 1 - i);
  }
  return 0;
}

uint32_t FramePool::being_written() const {
  uint32_t found = 0;
  for (uint32_t i = 0; i < count_; ++i)
    found += frames_[i].state.load(std::memory_order_relaxed) == FrameState::kWriting;
  return found;
}

bool FramePool::take_free(uint32_t* frame) {
  if (free_count_ == 0) return false;
  *frame = free_[--free_count_];
  return true;
}

void FramePool::put_free(uint32_t frame) {
  LUNAR_DCHECK(frame < count_ && free_count_ < count_);
  frames_[frame].state.store(FrameState::kFree, std::memory_order_release);
  free_[free_count_++] = frame;
}

void FramePool::queue_clean(uint32_t frame) {
  LUNAR_DCHECK(frame < count_ && clean_count_ < count_);
  uint32_t at = clean_head_ + clean_count_;
  clean_[at >= count_ ? at - count_ : at] = frame;
  ++clean_count_;
}

bool FramePool::reclaim_oldest() {
  for (uint32_t tries = clean_count_; tries > 0; --tries) {
    uint32_t id = clean_[clean_head_];
    clean_head_ = clean_head_ + 1 == count_ ? 0 : clean_head_ + 1;
    --clean_count_;
    Frame& frame = frames_[id];
    if (frame.state.load(std::memory_order_acquire) == FrameState::kReleased) {
      put_free(id);
      return true;
    }
    AtomicPageWord& place = *frame.word.load(std::memory_order_acquire);
    PageWord word = place.load(std::memory_order_acquire);
    if (word.state() == PageState::kInFrame && word.index() == id) {
      PageWord next = word.with_state(PageState::kEvicted)
                          .with_slot(frame.slot)
                          .with_lun(frame.lun)
                          .with_heat(0);
      if (place.compare_exchange_strong(word, next, std::memory_order_acq_rel)) {
        put_free(id);
        return true;
      }
    }
    queue_clean(id);  // a thread is copying from it, and will release it soon
  }
  return false;
}

bool FramePool::release(uint32_t id, Slot* slot, unsigned* lun) {
  Frame& frame = frames_[id];
  FrameState seen = frame.state.load(std::memory_order_acquire);
  for (;;) {
    bool written = seen != FrameState::kWriting;
    // The slot is read before the release, after which the frame may be reused, and only when no
    // write can change it any more.
    *slot = written ? frame.slot : kNoSlot;
    *lun = frame.lun;
    FrameState next = written ? FrameState::kReleased : FrameState::kAbandoned;
    if (frame.state.compare_exchange_weak(seen, next, std::memory_order_acq_rel)) return written;
  }
}

}  // namespace lunar
