// SPDX-License-Identifier: Apache-2.0
// See account.h for the rules.
#include "pager/account/account.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/format.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr uint64_t kBatchMostNs = 5'000'000'000;    // a batch of a member that runs takes far less
constexpr uint64_t kMagic = 0x34544e43434e4c55ull;  // "ULNCCNT4"

}  // namespace

int Account::open(int fd, uint64_t cap_pages, uint64_t lun_cap_bytes) {
  void* memory = nullptr;
  if (fd < 0) {
    fd = sys::make_memory_file("lunar-account", sizeof(AccountShared));
    if (fd >= 0) {
      fd = sys::move_high(fd);
      sys::note_own_descriptor(fd, true);
    }
  }
  fd_ = fd;
  file_ = sys::file_identity(fd);
  int rc = fd >= 0 ? sys::map(nullptr, sizeof(AccountShared), PROT_READ | PROT_WRITE, MAP_SHARED,
                              fd, 0, &memory)
                   : sys::map(nullptr, sizeof(AccountShared), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0, &memory);
  if (rc < 0) return rc;
  shared_ = static_cast<AccountShared*>(memory);
  uint32_t fresh = 0;
  if (shared_->ready.compare_exchange_strong(fresh, 1)) {
    shared_->magic = kMagic;
    shared_->bytes = sizeof(AccountShared);
    make_robust_mutex(&shared_->lock);
    shared_->cap_pages.store(static_cast<int64_t>(cap_pages));
    shared_->lun_cap_bytes.store(static_cast<int64_t>(lun_cap_bytes));
    shared_->ready.store(2, std::memory_order_release);
  } else {
    for (int i = 0; shared_->ready.load(std::memory_order_acquire) != 2; ++i) {
      if (i > 10'000) return -EIO;  // the process that made it died while setting it up
      sys::sleep_ns(100'000);
    }
    if (shared_->magic != kMagic || shared_->bytes != sizeof(AccountShared)) return -EPROTO;
  }
  return 0;
}

bool Account::take_plain(int64_t pages, int64_t limit) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    me().pages.begin(0);
    shared_->used_pages.add(pages);
    if (present_at_most() + unused_promises() <= limit) {
      me().pages.end(pages);
      me().fixed.fetch_add(pages, std::memory_order_relaxed);
      return true;
    }
    shared_->used_pages.add(-pages);
    me().pages.end(0);
    if (attempt == 0) sweep_settled();
  }
  return false;
}

int Account::reserve_plain_child(int64_t pages, int64_t prepaid, uint64_t* ticket) {
  const int index = reserve(kWeight, 0, 0, ticket);
  if (index < 0) {
    give_plain(prepaid);
    return index;
  }
  make_lock(static_cast<unsigned>(index));
  if (prepaid > pages) give_plain(prepaid - pages);
  const int64_t moved = std::min(prepaid, pages);
  hand_to_child(static_cast<unsigned>(index), moved, 0);
  if (pages == moved) return index;
  AccountMember& child = shared_->members[index];
  charge(child, pages - moved);
  child.fixed.fetch_add(pages - moved, std::memory_order_acq_rel);
  return index;
}

// The most pages that may be present. A thread that takes or unshares counts first and then looks:
// of two at once, one sees the other. Both counts must be from the same moment. Otherwise pages
// that a fork shared, or pages just given back, would be missing from the result.
int64_t Account::present_at_most() const {
  for (;;) {
    int64_t shared = shared_->shared_pages.load(std::memory_order_seq_cst);
    int64_t used = shared_->used_pages.value();
    if (shared_->shared_pages.load(std::memory_order_seq_cst) == shared) return used - shared;
    sys::cpu_relax();
  }
}

bool Account::take(int64_t pages, int64_t keep_free) {
  me().pages.begin(0);
  shared_->used_pages.add(pages);
  const bool fit = fits(keep_free);
  if (!fit) shared_->used_pages.add(-pages);
  me().pages.end(fit ? pages : 0);
  return fit;
}

void Account::take_always(int64_t pages) {
  me().pages.begin(0);
  shared_->used_pages.add(pages);
  me().pages.end(pages);
}

// Charges another member.
void Account::charge(AccountMember& member, int64_t pages) {
  me().pages.begin(0);
  shared_->used_pages.add(pages);
  member.pages.add(pages);
  me().pages.end(0);
}

bool Account::take_for_child(unsigned index, int64_t pages, int64_t keep_free, bool can_share) {
  // Charged in the child's name: this process may have ended before the child could do that itself.
  charge(shared_->members[index], pages);
  if (fits(keep_free)) return true;
  if (can_share) shared_->shared_pages.fetch_add(pages, std::memory_order_seq_cst);
  return false;
}

bool Account::unshare(int64_t pages, int64_t keep_free) {
  int64_t by = lower_shared(pages);
  if (fits(keep_free)) return true;
  shared_->shared_pages.fetch_add(by, std::memory_order_seq_cst);
  return false;
}

void Account::unshare_always(int64_t pages) { (void)lower_shared(pages); }

void Account::take_fixed(int64_t pages) {
  const int64_t had = std::min(pages, reserved_);
  reserved_ -= had;
  pages -= had;
  take_always(pages);
  me().fixed.fetch_add(pages, std::memory_order_relaxed);
}

bool Account::take_fixed_within(int64_t pages, int64_t keep_free) {
  if (!take(pages, keep_free)) return false;
  me().fixed.fetch_add(pages, std::memory_order_relaxed);
  return true;
}

bool Account::promise_tables(int64_t pages, int64_t room) {
  me().promised_tables.fetch_add(pages, std::memory_order_seq_cst);
  // of two members at once, one sees the other
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (room == INT64_MIN || cap_pages() - fixed_total() >= room) return true;
  me().promised_tables.fetch_sub(pages, std::memory_order_seq_cst);
  return false;
}

bool Account::take_tables(int64_t pages, int64_t keep_free) {
  if (!take_fixed_within(pages, keep_free)) return false;
  me().tables.fetch_add(pages, std::memory_order_relaxed);
  return true;
}

void Account::take_tables_always(int64_t pages) {
  take_fixed(pages);
  me().tables.fetch_add(pages, std::memory_order_relaxed);
}

void Account::give_tables(int64_t pages) {
  me().tables.fetch_sub(pages, std::memory_order_relaxed);
  give_fixed(pages);
}

// A member counts its own part and then looks: of two at once, one sees the other. Both may be
// refused, so a refused caller tries again.
bool Account::reserve_fixed(int64_t pages, int64_t room) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    take_always(pages);
    me().fixed.fetch_add(pages, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (cap_pages() - fixed_total() >= room) return true;
    give_fixed(pages);
    if (attempt == 0)
      sweep_settled();
    else
      sys::sleep_ns(
          static_cast<uint64_t>(attempt * 100'000 + static_cast<int>(member_ % 8) * 20'000));
  }
  return false;
}

void Account::end_reserved() {
  const int64_t left = reserved_;
  reserved_ = 0;
  if (left != 0) give_fixed(left);
}

void Account::hand_to_child(unsigned index, int64_t fixed_pages, int64_t lun_bytes,
                            int64_t promised_tables) {
  AccountMember& child = shared_->members[index];
  child.promised_tables.fetch_add(promised_tables, std::memory_order_acq_rel);
  me().promised_tables.fetch_sub(promised_tables, std::memory_order_acq_rel);
  // Our own part first: a kill in between leaves the sums too high for a while, not too low.
  me().pages.begin(-fixed_pages);
  me().fixed.fetch_sub(fixed_pages, std::memory_order_acq_rel);
  me().lun_bytes.fetch_sub(lun_bytes, std::memory_order_acq_rel);
  child.pages.add(fixed_pages);
  child.fixed.fetch_add(fixed_pages, std::memory_order_acq_rel);
  child.lun_bytes.fetch_add(lun_bytes, std::memory_order_acq_rel);
  me().pages.end(0);
}

void Account::give_fixed(int64_t pages) {
  me().fixed.fetch_sub(pages, std::memory_order_relaxed);
  give(pages);
}

void Account::give(int64_t pages) {
  if (pages == 0) return;
  // Our own part first: a kill in between leaves the sum too high for a while, not too low.
  me().pages.begin(-pages);
  shared_->used_pages.add(-pages);
  me().pages.end(0);
  if (shared_->room_wanted.load(std::memory_order_seq_cst) != 0 &&
      shared_->room_wanted.exchange(0) != 0)
    raise_pressure();
}

void Account::give_maybe_shared(int64_t pages) {
  (void)lower_shared(pages);
  give(pages);
}

int64_t Account::fixed_total() const {
  int64_t total = unused_promises();
  for (const AccountMember& m : all())
    if (m.is_used()) total += m.fixed.load(std::memory_order_relaxed);
  return total;
}

// Pages that are promised to tables and that tables do not take yet.
int64_t Account::unused_promises() const {
  int64_t total = 0;
  for (const AccountMember& m : all()) {
    const int64_t unused = m.promised_tables.load(std::memory_order_relaxed) -
                           m.tables.load(std::memory_order_relaxed);
    if (m.is_used() && unused > 0) total += unused;
  }
  return total;
}

bool Account::others_active() const {
  for (const AccountMember& m : all())
    if (&m != &me() && m.is_used() && m.fixed.load(std::memory_order_relaxed) > 0) return true;
  return false;
}

bool Account::above_share() const {
  int64_t total = 0, weights = 0;
  for (const AccountMember& m : all()) {
    const int64_t pages =
        m.is_used() ? m.pages.value() - m.fixed.load(std::memory_order_relaxed) : 0;
    if (pages <= 0) continue;
    total += pages;
    weights += m.weight.load(std::memory_order_relaxed);
  }
  if (weights == 0) return true;
  // own / weight >= total / weights
  const int64_t own = own_pages() - own_fixed();
  return own > 0 &&
         own * weights >= total * static_cast<int64_t>(me().weight.load(std::memory_order_relaxed));
}

void Account::raise_pressure() {
  shared_->pressure.fetch_add(1, std::memory_order_acq_rel);
  if (shared_->sleepers.load(std::memory_order_acquire) != 0)
    sys::futex_wake(&shared_->pressure, INT32_MAX, true);
}

void Account::wait_pressure(uint32_t seen, int64_t timeout_ns) {
  shared_->sleepers.fetch_add(1, std::memory_order_acq_rel);
  (void)sys::futex_wait(&shared_->pressure, seen, timeout_ns, true);
  shared_->sleepers.fetch_sub(1, std::memory_order_acq_rel);
}

namespace {

// Waits for the end of a member's batch. False: it still goes on at `until`. A member that was
// killed inside a batch has no pages left.
bool batch_ends(const AccountMember& m, uint64_t until) {
  const uint32_t seen = m.batch.load(std::memory_order_acquire);
  while ((seen & 1) != 0 && m.batch.load(std::memory_order_acquire) == seen &&
         m.state.load() == kMemberActive) {
    if (sys::now_ns() >= until) return false;
    sys::sleep_ns(20'000);
  }
  return true;
}

}  // namespace

// A batch waits for no thread of the program, so a signal handler on any of them may call this.
void Account::wait_for_own_batch() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  (void)batch_ends(me(), UINT64_MAX);
}

bool Account::write_elsewhere_begin() {
  me().writing_elsewhere.fetch_add(1, std::memory_order_seq_cst);
  // pairs with the fence of someone_writes_elsewhere: one of the two sees the other
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t until = sys::now_ns() + kBatchMostNs;
  for (const AccountMember& m : all()) {
    if (batch_ends(m, until)) continue;
    sweep_settled();  // the member may have been killed
    if (batch_ends(m, 0)) continue;
    write_elsewhere_end();
    return false;
  }
  return true;
}

bool Account::someone_writes_elsewhere() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const AccountMember& m : all())
    if (m.writing_elsewhere.load(std::memory_order_acquire) != 0 && m.is_used()) return true;
  return false;
}

int Account::lun_take(int64_t bytes) {
  me().pages.begin(0);
  int64_t before = shared_->lun_used_bytes.add(bytes);
  const bool fit = before + bytes <= shared_->lun_cap_bytes.load(std::memory_order_relaxed);
  if (fit)
    me().lun_bytes.fetch_add(bytes, std::memory_order_relaxed);
  else
    shared_->lun_used_bytes.add(-bytes);
  me().pages.end(0);
  return fit ? 0 : -ENOMEM;
}

void Account::lun_give(int64_t bytes) {
  me().pages.begin(0);
  me().lun_bytes.fetch_sub(bytes, std::memory_order_release);
  shared_->lun_used_bytes.add(-bytes);
  me().pages.end(0);
}

int Account::carve(unsigned pieces) {
  lock();
  int found = -ENOSPC;
  for (unsigned first = 0, run = 0, i = 0; i < kCarvePieces; ++i) {
    run = shared_->carve_owner[i].load() == 0 ? run + 1 : 0;
    if (run == 1) first = i;
    if (run == pieces) {
      for (unsigned k = first; k <= i; ++k)
        shared_->carve_owner[k].store(static_cast<uint16_t>(member_ + 1));
      found = static_cast<int>(first);
      break;
    }
  }
  unlock();
  return found;
}

void Account::uncarve(int first, unsigned pieces) {
  lock();
  for (unsigned i = 0; i < pieces; ++i)
    shared_->carve_owner[static_cast<unsigned>(first) + i].store(0);
  unlock();
}

void Account::dump(int fd) const {
  char line[160];
  size_t n =
      format_to(line, sizeof line,
                "account: cap %ld pages, used %ld, shared %ld, own %ld, lun %ld of %ld bytes\n",
                cap_pages(), shared_->used_pages.value(), shared_pages(), own_pages(),
                shared_->lun_used_bytes.value(), lun_cap());
  (void)sys::write_to_program(fd, line, n);
}

}  // namespace lunar
