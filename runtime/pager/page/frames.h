// SPDX-License-Identifier: Apache-2.0
// Frames: DRAM pages of the evictor. A victim's content is captured into a frame, written to its
// slot from there, and stays in the frame until the frame is needed for another victim. A fault
// meanwhile is a copy, not a read. This replaces the reference bit, which user space does not have:
// hot pages come back from their frames and are marked as hot.
//
//   kFree ─► kWriting ─► kClean ─► (reused) kFree
//     │          │          └─ page came back or was discarded ─► kReleased ─► kFree
//     │          └─ the same while the write is in flight ─► kAbandoned ─► kFree: the end of the
//     │             write releases the slot
//     └─ the page has not changed: no write ─► kClean
//
// Threading: only the evictor uses the free list and the queue of clean frames. Any thread that has
// locked the page may copy from its frame and then free it with release(). `state` synchronizes the
// two.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/units.h"
#include "pager/page/page_word.h"

namespace lunar {

enum class FrameState : uint32_t { kFree, kWriting, kClean, kReleased, kAbandoned };

struct Frame {
  // The word of its page: one value, because mremap may move the page while other threads look. The
  // place may be another page's word by now (page_table.h); only the frame's own page is kInFrame
  // with the frame's number.
  std::atomic<AtomicPageWord*> word{nullptr};
  // address of the page; read only by the thread that has locked the page
  std::atomic<char*> address{nullptr};
  Slot slot{kNoSlot};
  uint8_t lun = 0;
  uint8_t slots_tried = 0;   // by the evictor, for the present content
  bool slot_failed = false;  // a write to `slot` has failed, and will be repeated
  uint32_t writes_then = 0;  // Writer::writes_done_ when it failed
  std::atomic<FrameState> state{FrameState::kFree};
};

// On cache lines of its own: the evictor writes to it with each page.
class alignas(64) FramePool {
 public:
  // `count` frames of page_size bytes, on NUMA node `node` (-1: anywhere). 0 or -ENOMEM.
  [[nodiscard]] int open(uint32_t count, size_t page_size, int node);

  char* memory(uint32_t frame) const { return memory_ + static_cast<size_t>(frame) * page_size_; }
  size_t window_bytes() const { return static_cast<size_t>(count_) * page_size_; }
  Frame& at(uint32_t frame) const { return frames_[frame]; }
  uint32_t count() const { return count_; }
  uint32_t being_written() const;  // any thread

  // Evictor only.
  bool take_free(uint32_t* frame);
  void put_free(uint32_t frame);
  uint32_t free_count() const { return free_count_; }
  void queue_clean(uint32_t frame);
  // Frees the oldest clean frame; its page becomes kEvicted. False: no frame of the queue can be
  // freed now.
  bool reclaim_oldest();

  // Called by the thread that has locked the frame's page. True: *slot on *lun contains the content
  // and belongs to the caller from now on. False (*slot is kNoSlot): the write is in flight, and
  // its end frees slot and frame.
  bool release(uint32_t frame, Slot* slot, unsigned* lun);

 private:
  char* memory_ = nullptr;
  size_t page_size_ = 0;
  Frame* frames_ = nullptr;
  uint32_t count_ = 0;
  uint32_t* free_ = nullptr;
  uint32_t free_count_ = 0;
  uint32_t* clean_ = nullptr;  // ring
  uint32_t clean_head_ = 0, clean_count_ = 0;
};

}  // namespace lunar
