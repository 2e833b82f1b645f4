// SPDX-License-Identifier: Apache-2.0
// Error trackers: where queued work leaves its failures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nrt_abi.h"

namespace nxl::host {

class ErrorTracker {
 public:
  // Errors that nobody fetched beyond this many are counted, not kept: the first ones tell the cause.
  static constexpr size_t kMaxPending = 1024;

  void add(uint64_t sequence, NRT_STATUS status, const std::string& message) {
    std::lock_guard lock(mutex_);
    if (pending_.size() >= kMaxPending) return;
    pending_.push_back({sequence, static_cast<uint64_t>(status)});
    messages_.emplace_back(sequence, message);
    if (messages_.size() > kMaxPending) messages_.pop_front();
  }

  // Why the work of this sequence failed; empty when that is not known any more. May be asked after fetch().
  std::string message(uint64_t sequence) const {
    std::lock_guard lock(mutex_);
    for (const auto& [failed, message] : messages_) {
      if (failed == sequence) return message;
    }
    return {};
  }

  // The errors since the last call, oldest first. The list is the tracker's and valid until the next call or its
  // destruction, so one thread at a time may fetch.
  const std::vector<nrta_error_t>& fetch() {
    std::lock_guard lock(mutex_);
    fetched_.clear();
    fetched_.swap(pending_);
    return fetched_;
  }

 private:
  mutable std::mutex mutex_;
  std::deque<std::pair<uint64_t, std::string>> messages_;
  std::vector<nrta_error_t> pending_;
  std::vector<nrta_error_t> fetched_;
};

}  // namespace nxl::host
