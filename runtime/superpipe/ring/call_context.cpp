// SPDX-License-Identifier: Apache-2.0
// Contexts whose commands are blocking system calls: see call_context.h.
// May not: allocate after attach, take a lock (but the pool's, for instructions).
#include "superpipe/ring/call_context.h"

#include <errno.h>

#include <new>

#include "superpipe/ring/delegate_context.h"
#include "superpipe/ring/sync_context.h"
#include "sys/arena.h"
#include "sys/log.h"

namespace lunar {
namespace {

constexpr unsigned kThreads = 8;  // calls of a device in flight at a time

class CallContext final : public DelegateContext {
 public:
  static int create(const JoinedFiles& files, Device* device, DelegatePool* pool,
                    const ContextOptions& options, OwnedContext** out) {
    if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
    const size_t head = round_up(sizeof(CallContext), 64);
    auto* memory =
        static_cast<char*>(map_private(mapping_bytes(head, options.depth), ForkPolicy::kInherit));
    if (!memory) return -ENOMEM;
    auto* context = new (memory) CallContext(files, device);
    context->start(memory, head, pool, options);
    *out = context;
    return 0;
  }

 private:
  // A waiting thread does not help, because a wait must be able to end before a call does.
  CallContext(const JoinedFiles& files, Device* device)
      : DelegateContext({false, 1, 100'000}), files_(files), device_(device) {}
  int64_t carry_out(const Command& command, bool) override {
    return device_ ? device_->transfer(command) : transfer_on(files_, command);
  }
  bool delegates(uint64_t) override { return true; }

  const JoinedFiles files_;
  Device* const device_;  // in place of files_
};

const char* remedy_of(int lack) {
  switch (-lack) {
    case EMFILE:
      return "close descriptors, or raise the limit (ulimit -n)";
    case ENFILE:
      return "raise the host's limit on open files (sysctl fs.file-max)";
    case ENOMEM:
      return "free memory, or raise the limits on it (ulimit -l, ulimit -v, the cgroup's)";
    default:
      return "look at dmesg";
  }
}

}  // namespace

// -EINVAL: the kernel does not know rings of this form.
bool CallPool::replaces_ring(int status, const char* name, const ContextOptions& options,
                             const char* refusal) {
  if (status == -ENOSYS || status == -EPERM || status == -EACCES || status == -EINVAL ||
      status == -EOPNOTSUPP) {
    if (!refusal_told_.exchange(true, std::memory_order_relaxed))
      log_warning("LUN %s: io_uring is not available here (%s): %s", name, errno_name(status),
                  refusal);
    return true;
  }
  const bool fails = options.delegate && status != -ENOMEM;
  if (!lack_told_.exchange(true, std::memory_order_relaxed))
    log_warning("LUN %s: no ring for its commands: %s (%s): %s; %s", name, errno_text(status),
                errno_name(status),
                fails ? "those that need one fail" : "they go by system calls, slower",
                remedy_of(status));
  return !fails;
}

bool CallPool::runs(const ContextOptions& options) {
  return options.delegate && pool_.create() == 0 && pool_.start(kThreads, "lunar-io") == 0;
}

int CallPool::attach(const JoinedFiles& files, const ContextOptions& options, OwnedContext** out) {
  if (runs(options)) return CallContext::create(files, nullptr, &pool_, options, out);
  return SyncContext::create(files, options, out);
}

int CallPool::attach(Device* device, const ContextOptions& options, OwnedContext** out) {
  if (runs(options)) return CallContext::create({}, device, &pool_, options, out);
  return SyncContext::create(device, options, out);
}

}  // namespace lunar
