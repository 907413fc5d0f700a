// SPDX-License-Identifier: Apache-2.0
// The common part of stripes and paths: a device over several devices, and a context over several lower contexts.
//
//    submit(parent) ──► device.start: children ──► one ring for all members on files ──────┐
//                                              ├─► the context of another member ──────────┤
//                                              └─► ...                                     │
//    response ◄── done ring ◄── the last child of a parent ◄── device.child_done ◄─────────┘
//
// A parent is one command of the caller, a child its command to one member. All of them, and the vectors of children
// that need their own, come from pools made at attach.
//
// Waiting. One lower context (all members on files, the usual case): its own wait() and exchange(). Several: it polls
// each in turn for about the usual latency, then sleeps once for all of them (wakeups.h). Watches live in the first
// lower context.
//
// Threading: a context is its owner's; a device is immutable after open but for what its kind says.
// May not (submit, reap, wait, watch): allocate, take a lock of the host, use stdio.
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "superpipe/device.h"

namespace lunar {

constexpr unsigned kCompositeMembersMax = 8;
constexpr uint32_t kCompositeVectorMax = 256;         // entries of one command
constexpr uint64_t kCompositeCommandMax = 16u << 20;  // bytes of one command

struct CompositeParent {
  Command command;
  uint64_t bytes = 0;  // of a read or write
  int64_t result = 0;
  uint32_t left = 0;            // children not done
  uint32_t tried = 0, bad = 0;  // bit a member: the device's own notes
};

struct CompositeChild {
  static constexpr uint32_t kInline = 4;
  Command command;
  uint64_t bytes = 0;  // what a read or write should move
  uint32_t parent = 0, next = 0;
  uint16_t member = 0;
  uint16_t block = 0;  // + 1: of the vector pool; 0: inline or the caller's
  iovec inline_[kInline];
};

class CompositeContext;

class CompositeDevice : public Device {
 public:
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  void detach(Context* context) override;
  uint64_t size_bytes() const override { return size_bytes_; }
  bool growable() const override { return false; }
  uint32_t io_align() const override { return io_align_; }
  Capabilities capabilities() const override;
  const char* name() const override { return name_; }
  unsigned fd_count() const override;
  int fd(unsigned i) const override;
  void reopen(unsigned i, int fd) override;
  unsigned lock_count() const override;  // the first member's
  [[nodiscard]] int share_lock(unsigned i, int fd) override;
  void close() override;

  unsigned member_count() const { return count_; }
  Device* member(unsigned i) const { return member_[i]; }

 protected:
  friend class CompositeContext;
  // Makes the children of `parent` by CompositeContext::add. 0; -EAGAIN: a pool is short (add was not called); else the
  // parent's result.
  [[nodiscard]] virtual int start(CompositeContext* context, CompositeParent* parent) = 0;
  // A child ended. It may be sent again (CompositeContext::resend), then true.
  virtual bool child_done(CompositeContext* context, CompositeParent* parent, CompositeChild* child,
                          int64_t result) = 0;
  // All children ended: sets parent->result.
  virtual void finish(CompositeContext* context, CompositeParent* parent) = 0;
  virtual void probed(unsigned /*member*/, int64_t /*result*/) {}

  // Takes the members over. name: in the device's memory.
  void adopt(const char* name, Device* const* members, unsigned count);
  // 0, or -EINVAL for what lies outside or is not aligned.
  [[nodiscard]] int check(const Command& command, uint64_t* bytes) const;
  // Which member and which of its descriptors number i is.
  Device* descriptor(unsigned i, unsigned* inner) const;

  Device* member_[kCompositeMembersMax] = {};  // nullptr: missing
  unsigned count_ = 0;
  const char* name_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint32_t io_align_ = 512;
  std::atomic<int> contexts_{0};
};

// The tables of a context, which lie behind it in one mapping.
struct CompositeTables {
  // Places them behind a context at `memory` (nullptr: only to count) and numbers what is free. Returns the bytes of
  // all.
  size_t lay_out(char* memory, unsigned depth, unsigned members);

  CompositeParent* parents_ = nullptr;
  CompositeChild* children_ = nullptr;
  iovec* blocks_ = nullptr;
  uint32_t *free_parent_ = nullptr, *free_child_ = nullptr;
  uint16_t* free_block_ = nullptr;
  Response* done_ = nullptr;  // ring of depth_
  char* probe_page_ = nullptr;
  unsigned depth_ = 0, free_parents_ = 0, free_children_ = 0, free_blocks_ = 0;
};

class CompositeContext final : public OwnedContext, private CompositeTables {
 public:
  [[nodiscard]] static int create(CompositeDevice* device, const ContextOptions& options, CompositeContext** out);

  [[nodiscard]] int submit(const Command* commands, unsigned n) override;
  [[nodiscard]] int reap(Response* out, unsigned max) override;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  [[nodiscard]] int exchange(const Command* commands, unsigned n, unsigned* taken, Response* out, unsigned max,
                             unsigned least, int64_t timeout_ns) override;
  [[nodiscard]] int watch(int fd, uint64_t tag) override;
  unsigned in_flight() const override { return in_flight_; }
  uint64_t usual_latency_ns() const override;
  [[nodiscard]] int await(int64_t timeout_ns) override;
  void wakeups(Wakeups* out) override;
  void release() override;

  // For devices. Whether so many children and vectors are free now.
  bool room(unsigned children, unsigned blocks) const { return children <= free_children_ && blocks <= free_blocks_; }
  // A child of `parent` for `member`, with the command as given (its tag is set here). nullptr never happens after
  // room().
  CompositeChild* add(CompositeParent* parent, unsigned member, const Command& command, uint64_t bytes);
  // One more entry of a child's own vector. pre: room() for a block a child, fewer than kCompositeVectorMax entries.
  void append(CompositeChild* child, void* base, size_t bytes);
  void resend(CompositeChild* child, unsigned member);
  // Reads the first page of a member concurrently with the caller's commands and reports to CompositeDevice::probed.
  // No-op while a probe is under way.
  void probe(unsigned member);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint8_t kMissing = UINT8_MAX;
  static constexpr unsigned kBatch = 64;
  // A context that carries children out: the ring that members share, or a member's own.
  struct Lower {
    Context* context = nullptr;
    Device* device = nullptr;              // that attached it; of the shared ring the first
    uint32_t first = kNone, last = kNone;  // children that wait to be handed over
  };
  struct Way {  // how a member is reached
    uint8_t lower = kMissing;
    uint8_t file = 0;  // its place in the shared ring
  };
  CompositeContext() = default;
  int attach_lowers(const ContextOptions& options);
  void detach_lowers();
  void enqueue(uint32_t child);
  bool begin(uint32_t parent);
  unsigned begin_all(const Command* commands, unsigned n);
  void end_child(uint32_t child, int64_t result);
  void end_parent(uint32_t parent);
  unsigned next_batch(const Lower& lower, Command* batch) const;
  void handed_over(Lower* lower, unsigned n);
  bool flush_lower(Lower* lower);
  void flush();
  void take(const Response* responses, int n);
  void pump();
  int give(Response* out, unsigned max);
  bool works(unsigned lower) const { return lower_[lower].context->in_flight() || (lower == 0 && watches_.used); }
  bool spin(int64_t timeout_ns);
  int sleep(int64_t timeout_ns);

  CompositeDevice* device_ = nullptr;
  Lower lower_[kCompositeMembersMax];
  Way way_[kCompositeMembersMax];
  unsigned lowers_ = 0;
  std::atomic<bool> stalled_{false};  // children wait for room: for await, which looks at nothing else
  unsigned done_first_ = 0, done_count_ = 0;
  unsigned in_flight_ = 0;
  WatchSet watches_;  // as the lower context has them; free again when the response was given
  int64_t watch_result_[WatchSet::kMax] = {};
  uint32_t watch_fired_ = 0;
  bool spin_ = true;
  uint32_t probing_ = 0;  // bit a member
  iovec probe_part_{};
  size_t mapping_bytes_ = 0;
};

}  // namespace lunar
