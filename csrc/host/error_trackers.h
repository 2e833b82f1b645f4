// SPDX-License-Identifier: Apache-2.0
// Error trackers: where queued work leaves its failures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "nrt_abi.h"

namespace nxl::host {

class ErrorTracker {
 public:
  // Errors that nobody fetched beyond this many are counted, not kept: the first ones tell the cause.
  static constexpr size_t kMaxPending = 1024;

  void add(uint64_t sequence, NRT_STATUS status) {
    std::lock_guard lock(mutex_);
    if (pending_.size() < kMaxPending) pending_.push_back({sequence, static_cast<uint64_t>(status)});
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
  std::mutex mutex_;
  std::vector<nrta_error_t> pending_;
  std::vector<nrta_error_t> fetched_;
};

}  // namespace nxl::host
