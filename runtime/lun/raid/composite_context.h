// SPDX-License-Identifier: Apache-2.0
// The common part of stripes and paths: a device over several devices, and a context over several
// lower contexts.
//
//    submit(parent) ──► device.start: children ──► one ring for all members on files ──────┐
//                                              ├─► the context of another member ──────────┤
//                                              └─► ...                                     │
//    response ◄── done ring ◄── the last child of a parent ◄── device.child_done ◄─────────┘
//
// A parent is one command of the caller, a child its command to one member. Parents, children, and
// the vectors of children that need their own, come from pools that are made at attach.
//
// Waiting. With one lower context (all members on files, the usual case) its own wait() and
// exchange() are used. With several, it polls each in turn for about the usual latency, then sleeps
// once for all of them (wakeups.h). Watches are in the first lower context.
//
// Threading: only its owner uses a context; a device does not change after open, except as its kind
// says.
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
  uint32_t tried = 0, bad = 0;  // one bit per member: the device's own notes
};

struct CompositeChild {
  static constexpr uint32_t kInline = 4;
  Command command;
  uint64_t bytes = 0;  // that a read or write should move
  uint32_t parent = 0, next = 0;
  uint16_t member = 0;
  uint16_t block = 0;  // + 1: of the vector pool; 0: inline or the caller's
  iovec inline_[kInline];
};

class CompositeContext;

class CompositeDevice : public CountedDevice {
 public:
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
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
  void forget() override;

  unsigned member_count() const { return count_; }
  Device* member(unsigned i) const { return member_[i]; }

 protected:
  friend class CompositeContext;
  // Makes the children of `parent` by CompositeContext::add. 0; -EAGAIN: a pool is empty (add was
  // not called); otherwise the parent's result.
  [[nodiscard]] virtual int start(CompositeContext* context, CompositeParent* parent) = 0;
  // Called when a child has ended. Returns true if it was sent again (CompositeContext::resend).
  virtual bool child_done(CompositeContext* context, CompositeParent* parent, CompositeChild* child,
                          int64_t result) = 0;
  // Called when all children have ended: sets parent->result.
  virtual void finish(CompositeContext* context, CompositeParent* parent) = 0;
  virtual void probed(unsigned /*member*/, int64_t /*result*/) {}

  // Takes ownership of the members. name: in the device's memory.
  void adopt(const char* name, Device* const* members, unsigned count);
  // 0, or -EINVAL if the command is out of range or not aligned.
  [[nodiscard]] int check(const Command& command, uint64_t* bytes) const;
  // The member, and the index of its descriptor, that descriptor `i` of the device stands for.
  Device* descriptor(unsigned i, unsigned* inner) const;

  Device* member_[kCompositeMembersMax] = {};  // nullptr: missing
  unsigned count_ = 0;
  const char* name_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint32_t io_align_ = 512;
};

// The tables of a context, which follow it in the same mapping.
struct CompositeTables {
  // Lays the tables out after a context at `memory` (nullptr: only counts) and enters the free
  // items. Returns the total size in bytes.
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
  [[nodiscard]] static int create(CompositeDevice* device, const ContextOptions& options,
                                  CompositeContext** out);

  [[nodiscard]] int submit(const Command* commands, unsigned n) override;
  [[nodiscard]] int reap(Response* out, unsigned max) override;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  [[nodiscard]] int exchange(const Command* commands, unsigned n, unsigned* taken, Response* out,
                             unsigned max, unsigned least, int64_t timeout_ns) override;
  [[nodiscard]] int watch(int fd, uint64_t tag) override;
  unsigned in_flight() const override { return in_flight_; }
  uint64_t usual_latency_ns() const override;
  [[nodiscard]] int await(int64_t timeout_ns) override;
  void wakeups(Wakeups* out) override;
  void release() override;

  // For devices. Whether that many children and vectors are free now.
  bool room(unsigned children, unsigned blocks) const {
    return children <= free_children_ && blocks <= free_blocks_;
  }
  // Adds a child of `parent` for `member` with the given command (its tag is set here). Never
  // returns nullptr after room().
  CompositeChild* add(CompositeParent* parent, unsigned member, const Command& command,
                      uint64_t bytes);
  // Appends an entry to a child's own vector. pre: room() for one block per child, fewer than
  // kCompositeVectorMax entries.
  void append(CompositeChild* child, void* base, size_t bytes);
  void resend(CompositeChild* child, unsigned member);
  // Reads the first page of a member concurrently with the caller's commands and reports to
  // CompositeDevice::probed. Does nothing while a probe is in progress.
  void probe(unsigned member);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint8_t kMissing = UINT8_MAX;
  static constexpr unsigned kBatch = 64;
  // A context that carries out children: the ring that members share, or a member's own.
  struct Lower {
    Context* context = nullptr;
    Device* device = nullptr;  // the device that attached it; of a shared ring the first
    uint32_t first = kNone, last = kNone;  // children that wait to be submitted
  };
  struct Way {  // how a member is reached
    uint8_t lower = kMissing;
    uint8_t file = 0;  // its index in the shared ring
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
  bool works(unsigned lower) const {
    return lower_[lower].context->in_flight() || (lower == 0 && watches_.used);
  }
  bool spin(int64_t timeout_ns);
  int sleep(int64_t timeout_ns);

  CompositeDevice* device_ = nullptr;
  Lower lower_[kCompositeMembersMax];
  Way way_[kCompositeMembersMax];
  unsigned lowers_ = 0;
  // Children wait for room. For await(), which runs concurrently.
  std::atomic<bool> stalled_{false};
  unsigned done_first_ = 0, done_count_ = 0;
  unsigned in_flight_ = 0;
  WatchSet watches_;  // as in the lower context; free again when the response was returned
  int64_t watch_result_[WatchSet::kMax] = {};
  uint32_t watch_fired_ = 0;
  bool spin_ = true;
  uint32_t probing_ = 0;  // one bit per member
  iovec probe_part_{};
  size_t mapping_bytes_ = 0;
};

}  // namespace lunar
