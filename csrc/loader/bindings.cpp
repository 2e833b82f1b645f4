// SPDX-License-Identifier: Apache-2.0
// Counting bound tensors and dropping the sets of one that is about to be freed.
#include "loader/bindings.h"

#include <algorithm>

#include "core/log.h"
#include "loader/core_queue.h"
#include "loader/execution_timeout.h"

namespace nxl::loader {

Bindings& Bindings::get() {
  static Bindings* const bindings = new Bindings;
  return *bindings;
}

void Bindings::add(SetHolder* holder) {
  const std::lock_guard lock(list_mutex_);
  holders_.push_back(holder);
}

void Bindings::remove(SetHolder* holder) {
  const std::lock_guard lock(list_mutex_);
  std::erase(holders_, holder);
}

void Bindings::bound(nrt_tensor_t* tensor) {
  const std::lock_guard lock(counts_mutex_);
  ++counts_[tensor];
}

void Bindings::unbound(nrt_tensor_t* tensor) {
  const std::lock_guard lock(counts_mutex_);
  const auto entry = counts_.find(tensor);
  if (entry != counts_.end() && --entry->second == 0) counts_.erase(entry);
}

bool Bindings::is_bound(nrt_tensor_t* tensor) {
  const std::lock_guard lock(counts_mutex_);
  return counts_.contains(tensor);
}

void Bindings::forget(nrt_tensor_t* tensor) noexcept {
  try {
    while (is_bound(tensor)) {
      uint64_t ticket = 0;
      int core = 0;
      {
        const std::lock_guard lock(list_mutex_);
        for (SetHolder* holder : holders_) {
          const uint64_t busy = holder->forget(tensor);
          if (busy != 0) {
            ticket = busy;
            core = holder->holder_core();
          }
        }
      }
      if (ticket == 0) return;
      // Not under a lock: waiting releases finished work, which may free tensors of its own.
      CoreQueue* queue = CoreQueue::find(core);
      const Status status = queue != nullptr ? queue->wait(ticket, execution_timeout()) : Status::ok();
      if (!status.is_ok()) {
        NXL_LOG(kError, "a tensor is freed while an execution that uses it is in flight: ", status.message);
        return;
      }
    }
  } catch (const std::exception& error) {
    NXL_LOG(kError, "freeing a tensor: ", error.what());
  }
}

}  // namespace nxl::loader
