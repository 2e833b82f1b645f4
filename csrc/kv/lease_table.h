// SPDX-License-Identifier: Apache-2.0
// The producer's leases, and the shared page of words by which readers see that one has ended. Time is an argument:
// the table has no clock of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/api.h"
#include "core/unique_handle.h"
#include "kv/agent.h"

namespace nxl::kv {

// Thread safe. Words hold the generation of the lease that owns them; a word is bumped when its lease ends, before the
// blocks go back, and never holds the same number twice: numbers begin at a random one for each table.
class NXL_API LeaseTable {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Throws Error(kUnavailable) when the shared page cannot be made.
  explicit LeaseTable(uint32_t capacity);
  ~LeaseTable();
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // Throws Error(kInvalid) without readers or with a ttl that is not positive, kUnavailable when the table is full.
  LeaseTicket grant(const std::string& request, std::span<const uint32_t> blocks, std::span<const std::string> readers,
                    Milliseconds ttl, Time now);
  Status renew(LeaseId lease, Milliseconds ttl, Time now);   // NRT_INVALID_HANDLE when it has ended
  Status release(LeaseId lease, const std::string& reason);  // OK for one that has ended, too

  enum class Finish { kCounted, kEnded, kRepeated, kNotAReader, kUnknown, kWrongKey };
  Finish finish(LeaseId lease, const Key& key, const std::string& reader);

  // A ticket that is valid until end_life(): what peers copy for this agent's WRITEs is fenced by it.
  LeaseTicket life() const;
  void end_life();

  // Ends every lease whose time is over, however many live ones are among them. Returns how many.
  size_t expire(Time now);
  std::optional<Time> next_expiry() const;

  std::vector<LeaseEvent> poll(size_t most);

  uint64_t word(uint64_t index) const;  // 0: no such word
  int descriptor() const { return read_only_.get(); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(words_); }
  uint64_t bytes() const { return bytes_; }

  struct Counts {
    uint64_t live = 0, granted = 0, renewed = 0, finished = 0, expired = 0, released = 0;
    uint64_t repeated = 0, late = 0, not_readers = 0;  // notifications that changed nothing
  };
  Counts counts() const;

 private:
  struct Lease {
    std::string request;
    Key key{};
    uint32_t word = 0;
    std::vector<uint32_t> blocks;
    std::set<std::string> waiting;  // readers that have not finished
    std::set<std::string> finished;
    Time expiry;
  };
  void end(LeaseId id, LeaseEnd how, const std::string& reason);  // with mutex_ held

  mutable std::mutex mutex_;
  UniqueFd writable_;
  UniqueFd read_only_;
  std::atomic<uint64_t>* words_ = nullptr;
  uint64_t bytes_ = 0;
  uint32_t capacity_;
  std::vector<uint32_t> free_words_;
  std::unordered_map<LeaseId, Lease> leases_;
  std::set<std::pair<Time, LeaseId>> expiries_;
  std::vector<LeaseEvent> events_;
  LeaseId next_id_ = 1;
  Counts counts_;
};

}  // namespace nxl::kv
