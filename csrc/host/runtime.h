// SPDX-License-Identifier: Apache-2.0
// The host runtime of this process: its state, cores and handles.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/core_claims.h"
#include "host/cores.h"
#include "host/error_trackers.h"
#include "host/handles.h"
#include "host/models.h"
#include "host/tensor_sets.h"
#include "host/tensors.h"
#include "nrt_abi.h"

namespace nxl::host {

// Note: end of life. The object is never destroyed, so that no call and no worker can meet a destroyed one. nrt_close
// and the process's exit handlers stop the cores' threads, for a bounded time; a thread that is still inside a kernel
// then keeps what it uses alive and ends after it. Memory of tensors that are alive at close stays mapped until they
// are freed, because callers still hold addresses. In the child of a fork there are no worker threads and mutexes may
// be held for ever, so there every call returns CLOSED before it takes one.
class Runtime {
 public:
  static Runtime& instance();

  // SUCCESS while open, else UNINITIALIZED or CLOSED.
  static NRT_STATUS state() noexcept;
  // True in the child of a process that had initialised the runtime: nothing may be locked there.
  static bool lost_in_fork() noexcept;

  void initialize();      // throws INVALID (second call, bad environment) or NC_BUSY
  void close() noexcept;  // idempotent

  const std::shared_ptr<Core>& core(int64_t index) const;  // throws INVALID with the valid range
  const std::vector<std::shared_ptr<Core>>& cores() const { return cores_; }

  HandleTable<Tensor, HandleKind::kTensor> tensors;
  HandleTable<TensorSet, HandleKind::kTensorSet> tensor_sets;
  HandleTable<Model, HandleKind::kModel> models;
  HandleTable<ErrorTracker, HandleKind::kErrorTracker> error_trackers;

 private:
  Runtime() = default;
  void open_cores();
  bool stop_cores(std::chrono::milliseconds patience) noexcept;  // true when nothing runs any more

  std::unique_ptr<CoreClaims> claims_;
  std::vector<std::shared_ptr<Core>> cores_;  // written by initialize() only
};

}  // namespace nxl::host
