// SPDX-License-Identifier: Apache-2.0
// Leases over a memfd of generation words.
#include "kv/lease_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "kv/auth.h"
#include "kv/nrt_codes.h"

namespace nxl::kv {
namespace {

// Leaves room to count: a word never wraps to a number that a ticket holds.
constexpr uint64_t kGenerationMask = UINT64_MAX >> 1;

}  // namespace

LeaseTable::LeaseTable(uint32_t capacity) : capacity_(capacity) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  bytes_ = ((uint64_t{capacity} + 1) * sizeof(uint64_t) + page - 1) / page * page;
  writable_.reset(::memfd_create("nxl-kv-leases", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  NXL_CHECK(writable_ && ::ftruncate(writable_.get(), static_cast<off_t>(bytes_)) == 0, kUnavailable, "lease table of ",
            bytes_, " bytes: ", std::strerror(errno));
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, writable_.get(), 0);
  NXL_CHECK(mapped != MAP_FAILED, kUnavailable, "lease table of ", bytes_, " bytes: ", std::strerror(errno));
  words_ = static_cast<std::atomic<uint64_t>*>(mapped);
  // Peers hold this file: with the seals they can neither write it nor change its size.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  const std::string path = "/proc/self/fd/" + std::to_string(writable_.get());
  if (::fcntl(writable_.get(), F_ADD_SEALS, seals) == 0) read_only_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only_) {
    const int error = errno;
    ::munmap(mapped, bytes_);
    throw_error(ErrorKind::kUnavailable, std::string("lease table cannot be made read-only: ") + std::strerror(error));
  }
  uint64_t first = random_id() & kGenerationMask;
  for (uint64_t i = 0; i <= capacity_; ++i) words_[i].store(first | 1, std::memory_order_relaxed);
  free_words_.reserve(capacity_);
  for (uint32_t i = capacity_; i != 0; --i) free_words_.push_back(i - 1);
}

LeaseTicket LeaseTable::life() const { return {0, {}, capacity_, words_[capacity_].load(std::memory_order_relaxed)}; }

void LeaseTable::end_life() { words_[capacity_].fetch_add(1, std::memory_order_seq_cst); }

LeaseTable::~LeaseTable() { ::munmap(words_, bytes_); }

LeaseTicket LeaseTable::grant(const std::string& request, std::span<const uint32_t> blocks,
                              std::span<const std::string> readers, Milliseconds ttl, Time now) {
  NXL_CHECK(!readers.empty(), kInvalid, "lease for ", request, ": it names no reader");
  NXL_CHECK(ttl.count() > 0, kInvalid, "lease for ", request, ": ttl is ", ttl.count(), " ms, it must be positive");
  const Key key = random_key();
  const std::lock_guard lock(mutex_);
  NXL_CHECK(!free_words_.empty(), kUnavailable, "lease for ", request, ": all ", capacity_,
            " are in use; raise max_leases or release some");
  const uint32_t word = free_words_.back();
  free_words_.pop_back();
  const LeaseId id = next_id_++;
  Lease lease{request, key, word, {blocks.begin(), blocks.end()}, {readers.begin(), readers.end()}, {}, now + ttl};
  expiries_.emplace(lease.expiry, id);
  leases_.emplace(id, std::move(lease));
  ++counts_.granted;
  return {id, key, word, words_[word].load(std::memory_order_relaxed)};
}

Status LeaseTable::renew(LeaseId id, Milliseconds ttl, Time now) {
  if (ttl.count() <= 0) return {kNrtInvalid, "lease ttl is not positive"};
  const std::lock_guard lock(mutex_);
  const auto it = leases_.find(id);
  if (it == leases_.end()) return {kNrtInvalidHandle, "lease " + std::to_string(id) + " has ended"};
  if (it->second.expiry <= now) {
    end(id, LeaseEnd::kExpired, "");
    return {kNrtInvalidHandle, "lease " + std::to_string(id) + " has expired"};
  }
  expiries_.erase({it->second.expiry, id});
  it->second.expiry = now + ttl;
  expiries_.emplace(it->second.expiry, id);
  ++counts_.renewed;
  return Status::ok();
}

Status LeaseTable::release(LeaseId id, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (id == 0 || id >= next_id_) return {kNrtInvalidHandle, "lease " + std::to_string(id) + " was never granted"};
  if (leases_.contains(id)) end(id, LeaseEnd::kReleased, reason);
  return Status::ok();
}

LeaseTable::Finish LeaseTable::finish(LeaseId id, const Key& key, const std::string& reader) {
  const std::lock_guard lock(mutex_);
  const auto it = leases_.find(id);
  if (it == leases_.end()) {
    ++counts_.late;
    return Finish::kUnknown;
  }
  Lease& lease = it->second;
  if (lease.key != key) {
    ++counts_.not_readers;
    return Finish::kWrongKey;
  }
  if (lease.waiting.erase(reader) == 0) {
    const bool repeated = lease.finished.contains(reader);
    ++(repeated ? counts_.repeated : counts_.not_readers);
    return repeated ? Finish::kRepeated : Finish::kNotAReader;
  }
  lease.finished.insert(reader);
  if (!lease.waiting.empty()) return Finish::kCounted;
  end(id, LeaseEnd::kRead, "");
  return Finish::kEnded;
}

void LeaseTable::end(LeaseId id, LeaseEnd how, const std::string& reason) {
  const auto it = leases_.find(id);
  Lease& lease = it->second;
  // The word changes before the event tells the producer that it may write the blocks (it takes mutex_ to learn that):
  // a reader whose copy met new bytes sees a new word.
  words_[lease.word].fetch_add(2, std::memory_order_seq_cst);
  expiries_.erase({lease.expiry, id});
  free_words_.push_back(lease.word);
  events_.push_back({id, lease.request, how, reason, std::move(lease.blocks)});
  uint64_t& count = how == LeaseEnd::kRead      ? counts_.finished
                    : how == LeaseEnd::kExpired ? counts_.expired
                                                : counts_.released;
  ++count;
  leases_.erase(it);
}

size_t LeaseTable::expire(Time now) {
  const std::lock_guard lock(mutex_);
  size_t ended = 0;
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    end(expiries_.begin()->second, LeaseEnd::kExpired, "");
    ++ended;
  }
  return ended;
}

std::optional<LeaseTable::Time> LeaseTable::next_expiry() const {
  const std::lock_guard lock(mutex_);
  if (expiries_.empty()) return std::nullopt;
  return expiries_.begin()->first;
}

std::vector<LeaseEvent> LeaseTable::poll(size_t most) {
  const std::lock_guard lock(mutex_);
  const auto count = static_cast<ptrdiff_t>(std::min(most, events_.size()));
  std::vector<LeaseEvent> result(std::make_move_iterator(events_.begin()),
                                 std::make_move_iterator(events_.begin() + count));
  events_.erase(events_.begin(), events_.begin() + count);
  return result;
}

uint64_t LeaseTable::word(uint64_t index) const {
  return index <= capacity_ ? words_[index].load(std::memory_order_acquire) : 0;
}

LeaseTable::Counts LeaseTable::counts() const {
  const std::lock_guard lock(mutex_);
  Counts result = counts_;
  result.live = leases_.size();
  return result;
}

}  // namespace nxl::kv
